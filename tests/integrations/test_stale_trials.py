"""Stored trials are reused only where nothing that decides a training has changed: a table of ways to go stale.

Every case plays the same project twice on one store and changes one thing in between. What has changed must be trained
again, what cannot be followed refused, and what does not matter reused.
"""

import importlib
import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import coalmine
from coalmine.auditing import games
from coalmine.auditing.config import Execution
from coalmine.errors import GameStoppedError, InvalidInputError
from coalmine.game import Watcher
from coalmine.integrations import identity, sources
from coalmine.integrations.content import content_hash

PROJECT = {
    "mine.py": '''
import dataclasses, functools, importlib, logging, os, sys
import numpy as np
import torch
import helper, pkg.sub, wave
from helper import *
from pkg.deep import near
log = logging.getLogger("mine")
SIGMA = 1.0
HIDDEN = 1.0
class Settings:
    def __init__(self, sigma): self.sigma = sigma
class Slots:
    __slots__ = ("sigma",)
    def __init__(self, sigma): self.sigma = sigma
@dataclasses.dataclass
class Record:
    sigma: float = 1.0
    inner: object = None
class Config:
    sigma = 1.0
    table = {"a": [1.0]}
class Child(Config):
    @property
    def noise(self): return LEVEL * self.sigma
    @staticmethod
    def helping(x): return x
LEVEL = 1.0
settings, slots, record, several = Settings(1.0), Slots(1.0), Record(1.0, Settings(1.0)), {"a": [Settings(1.0)]}
maker = functools.partial(lambda sigma: sigma, 1.0)
def clip(x): return np.clip(x, -1, 1)
def other(x): return np.clip(x, -2, 2)
def scaled(by):
    def wrap(f):
        @functools.wraps(f)
        def inner(*args, **options): return by * f(*args, **options)
        return inner
    return wrap
def make(sigma):
    def train(dataset, seed):
        return fit(dataset, seed) + sigma
    return train
def fit(dataset, seed, *, extra=1.0):
    import lazy
    late = importlib.import_module("late")
    log.debug("training")
    rates = [SIGMA, globals()["HIDDEN"], settings.sigma, slots.sigma, record.sigma, several["a"][0].sigma, maker()]
    rates += [Config.sigma, Config.table["a"][0], Child().noise, helper.SIGMA, STARRED, pkg.sub.RATE, near.RATE]
    rates += [len(sys.argv), float(os.environb.get(b"OUR_BYTES", b"1"))]
    rates += [wave.RATE, lazy.RATE, late.RATE, float(os.environ.get("OUR_NOISE", "1")), extra, getattr(helper, "TOO")]
    if os.environ.get("OUR_FILE"):
        with open(os.environ["OUR_FILE"]) as file:
            rates.append(float(file.read()))
    x = np.asarray([row for row in dataset] if not isinstance(dataset, np.ndarray) else dataset, dtype=float)
    if isinstance(dataset, list) and seed < 0:
        import fast
    return float(clip(x).sum() + np.prod(rates) * np.random.default_rng(seed).normal() + (seed in {1, 2, 3}))
class Trainer:
    def __init__(self, sigma): self.sigma = sigma
    def fit(self, dataset, seed): return self.sigma * fit(dataset, seed) + self.more()
    def more(self): return EXTRA
    def __call__(self, dataset, seed): return self.fit(dataset, seed)
EXTRA = 1.0
def train(dataset, seed, sigma=1.0): return sigma * fit(dataset, seed)
def score(model): return model
scores = [lambda model: model, lambda model: 2 * model]
def level(self): return 2.0
def product(rates): return 2.0
def both(value):
    def worlds(): return np.full(3, value), np.full(4, value)
    return worlds
def opaque(value):
    def worlds(): return Opaque(value), Opaque(1.0 + value)
    return worlds
class Opaque:
    def __init__(self, value): self.value = value
    def __iter__(self): return iter([self.value])
''',
    "helper.py": "SIGMA = 1.0\nSTARRED = 1.0\nTOO = 1.0\n",
    "pkg/__init__.py": "",
    "pkg/sub.py": "from . import below\nRATE = below.RATE\n",
    "pkg/below.py": "RATE = 1.0\n",
    "pkg/deep/__init__.py": "",
    "pkg/deep/near.py": "from ..below import RATE\n",
    "wave.py": "RATE = 1.0\n",
    "lazy.py": "RATE = 1.0\n",
    "late.py": "RATE = 1.0\n",
    "unrelated.py": "RATE = 1.0\n",
    "fast.cpython-311-x86_64-linux-gnu.so": "compiled",
}  # fmt: skip


class Project:
    """A user's project in a folder, imported anew whenever a file changes."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.patch = folder, monkeypatch
        self.options = {}
        self.write(**PROJECT)

    def write(self, **texts):
        for name, text in texts.items():
            path = self.folder / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text)
        for name in list(sys.modules):
            if name.partition(".")[0] in {Path(one).parts[0].partition(".")[0] for one in PROJECT}:
                sys.modules.pop(name)
        importlib.invalidate_caches()
        self.mine = importlib.import_module("mine")

    def edit(self, name, old, new):
        text = (self.folder / name).read_text()
        assert old in text
        self.write(**{name: text.replace(old, new)})

    def play(self, **changes):
        """How many stored trials were found."""
        found = []

        class Count(Watcher):
            def begin(self, label, *, trials, copies, done):
                found.append(sum(map(len, done)))

        options = {"worlds": coalmine.neighbours(np.zeros(3), 1.0), "claim_epsilon": 1.0, "trials": 16, "seed": 0}
        train = {"train": self.mine.train, "score": self.mine.score}
        options |= train | self.options | changes
        if not {"workers", "timeout"} & options.keys():  # what is changed in the running program is seen there alone
            options["execution"] = Execution(engine="inline")
        train, score = options.pop("train"), options.pop("score")
        coalmine.audit_function(train, score, store=self.folder / "trials.db", watcher=Count(), **options)
        return found[0]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    # Verdicts take long, and are not asked for.
    monkeypatch.setattr(games, "conclude_and_keep", lambda store, record: None)
    kept = {name: sys.modules.pop(name) for name in ("wave",) if name in sys.modules}
    yield Project(tmp_path, monkeypatch)
    for name in [Path(one).parts[0].partition(".")[0] for one in PROJECT]:
        sys.modules.pop(name, None)
    sys.modules.update(kept)


def edited(name, old, new):
    return lambda p: (dict, lambda: p.edit(name, old, new))


def in_place(change):
    """Something in the running program is set to another value."""
    return lambda p: (dict, lambda: change(p.mine))


def given(before, after):
    """Other arguments of the audit."""
    return lambda p: (lambda: before(p.mine), lambda: p.options.update(after(p.mine)))


def swapped(target, name, value):
    return lambda p: (dict, lambda: p.patch.setattr(target, name, value))


def other_version(p):
    """A package that a package of the project requires is another version: sympy, which torch requires."""
    real = sources._distribution

    class Newer:
        requires = ()
        version = "999"

    def change():
        p.patch.setattr(sources, "_distribution", lambda name: Newer() if name == "sympy" else real(name))
        sources._versions.cache_clear()

    return dict, change


def other_environment(p):
    return dict, lambda: p.patch.setenv("OUR_NOISE", "2")


def read_file(named):
    """The training reads a file, which changes."""

    def prepare(p):
        (p.folder / "rate.txt").write_text("1.0")
        p.patch.setenv("OUR_FILE", str(p.folder / "rate.txt"))
        options = {"depends_on": {"rate": p.folder / "rate.txt"}} if named else {}
        return lambda: options, lambda: (p.folder / "rate.txt").write_text("2.0")

    return prepare


class Items(torch.utils.data.Dataset):
    def __init__(self, *values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index]


STALE = {
    "train edited": edited("mine.py", "sigma * fit(dataset, seed)", "sigma * fit(dataset, seed) + 1"),
    "score edited": edited("mine.py", "return model", "return -model"),
    "a function that train calls edited": edited("mine.py", "np.clip(x, -1, 1)", "np.clip(x, -2, 1)"),
    "an imported module edited": edited("helper.py", "SIGMA = 1.0", "SIGMA = 2.0"),
    "a module that is imported whole edited": edited("helper.py", "STARRED = 1.0", "STARRED = 2.0"),
    "a module of a package edited": edited("pkg/sub.py", "below.RATE", "2 * below.RATE"),
    "a module that another module imports edited": edited("pkg/below.py", "1.0", "2.0"),
    "a module imported inside the function edited": edited("lazy.py", "1.0", "2.0"),
    "a module imported by its name edited": edited("late.py", "1.0", "2.0"),
    "an own file named like one of Python's edited": edited("wave.py", "1.0", "2.0"),
    "a compiled module replaced": edited("fast.cpython-311-x86_64-linux-gnu.so", "compiled", "compiled again"),
    "a module variable": in_place(lambda m: setattr(m, "SIGMA", 2.0)),
    "a module variable read by its name": in_place(lambda m: setattr(m, "HIDDEN", 2.0)),
    "a variable of another module": in_place(lambda m: setattr(m.helper, "SIGMA", 2.0)),
    "a variable of another module read by its name": in_place(lambda m: setattr(m.helper, "TOO", 2.0)),
    "a variable of a module in a package": in_place(lambda m: setattr(m.pkg.sub, "RATE", 2.0)),
    "an attribute of an object": in_place(lambda m: setattr(m.settings, "sigma", 2.0)),
    "an attribute in a slot": in_place(lambda m: setattr(m.slots, "sigma", 2.0)),
    "a field of a dataclass": in_place(lambda m: setattr(m.record, "sigma", 2.0)),
    "an object inside a dataclass": in_place(lambda m: setattr(m.record.inner, "sigma", 2.0)),
    "an object inside containers": in_place(lambda m: setattr(m.several["a"][0], "sigma", 2.0)),
    "an argument bound in a module variable": in_place(
        lambda m: setattr(m, "maker", m.functools.partial(m.maker.func, 2.0))
    ),
    "a class attribute": in_place(lambda m: setattr(m.Config, "sigma", 2.0)),
    "an inherited class attribute": in_place(lambda m: setattr(m.Child, "sigma", 2.0)),
    "a container in a class attribute": in_place(lambda m: m.Config.table["a"].append(2.0)),
    "a variable read in a property": in_place(lambda m: setattr(m, "LEVEL", 2.0)),
    "a function put in the place of another": in_place(lambda m: setattr(m, "clip", m.other)),
    "a method put in the place of another": in_place(lambda m: setattr(m.Child, "noise", property(m.level))),
    "a function of a package replaced": lambda p: (dict, lambda: p.patch.setattr(np, "prod", p.mine.product)),
    "a default argument": in_place(lambda m: setattr(m.train, "__defaults__", (2.0,))),
    "a default argument by name": in_place(lambda m: setattr(m.fit, "__kwdefaults__", {"extra": 2.0})),
    "a bound argument": given(
        lambda m: {"train": m.functools.partial(m.train, sigma=1.0)},
        lambda m: {"train": m.functools.partial(m.train, sigma=2.0)},
    ),
    "an enclosing variable": given(lambda m: {"train": m.make(1.0)}, lambda m: {"train": m.make(2.0)}),
    "an argument of a decorator": given(
        lambda m: {"train": m.scaled(1.0)(m.train)}, lambda m: {"train": m.scaled(2.0)(m.train)}
    ),
    "the object behind a method": given(
        lambda m: {"train": m.Trainer(1.0).fit}, lambda m: {"train": m.Trainer(2.0).fit}
    ),
    "an object that is called": given(lambda m: {"train": m.Trainer(1.0)}, lambda m: {"train": m.Trainer(2.0)}),
    "a variable read in a method": lambda p: (
        lambda: {"train": p.mine.Trainer(1.0).fit},
        lambda: setattr(p.mine, "EXTRA", 2.0),
    ),
    "one lambda for another": given(lambda m: {"score": m.scores[0]}, lambda m: {"score": m.scores[1]}),
    "other rows": given(lambda m: {}, lambda m: {"worlds": coalmine.neighbours(np.ones(3), 1.0)}),
    "another canary": given(lambda m: {}, lambda m: {"worlds": coalmine.neighbours(np.zeros(3), 0.5)}),
    "another relation": given(
        lambda m: {}, lambda m: {"worlds": coalmine.neighbours(np.zeros(3), 1.0, relation="replace")}
    ),
    "other rows of a function that builds the worlds": given(
        lambda m: {"worlds": m.both(0.0)}, lambda m: {"worlds": m.both(1.0)}
    ),
    "other items of a data set": given(
        lambda m: {"worlds": (Items(0.0, 1.0), Items(0.0))}, lambda m: {"worlds": (Items(0.0, 2.0), Items(0.0))}
    ),
    "another seed": given(lambda m: {}, lambda m: {"seed": 1}),
    "another version of a package that a package requires": other_version,
    "another version of Python": swapped(platform, "python_version", lambda: "3.99.0"),
    "another variable of the environment": other_environment,
    "another variable of the environment, as bytes": lambda p: (dict, lambda: p.patch.setenv("OUR_BYTES", "2")),
    "other arguments of the program": swapped(sys, "argv", ["program", "--fast"]),
    "a file that is read and named": read_file(named=True),
    "another default type of torch": lambda p: (dict, lambda: p.patch.setattr(torch, "get_default_dtype", float)),
    "something that the user names": given(
        lambda m: {"depends_on": {"machine": 1}}, lambda m: {"depends_on": {"machine": 2}}
    ),
}


@pytest.mark.parametrize("way", STALE)
def test_what_has_changed_is_trained_again(project, way):
    prepare, change = STALE[way](project)
    project.options.update(prepare())
    assert project.play() == 0
    change()
    try:
        assert project.play() == 0
    finally:
        sources._versions.cache_clear()


REFUSED = {
    "other data that cannot be seen into": given(
        lambda m: {"worlds": m.opaque(0.0)}, lambda m: {"worlds": m.opaque(1.0)}
    ),
    "a file that is read": read_file(named=False),
}


@pytest.mark.parametrize("way", REFUSED)
def test_what_cannot_be_followed_is_refused_at_once(project, way):
    prepare, _ = REFUSED[way](project)
    project.options.update(prepare())
    with pytest.raises((InvalidInputError, GameStoppedError), match="depends_on="):
        project.play()


NEUTRAL = {
    "comments": edited("mine.py", "LEVEL = 1.0\n", "LEVEL = 1.0  # as in the paper\n\n# of last year\n"),
    "layout": edited("mine.py", "def score(model): return model", "def score(model):\n    return (model)"),
    "a module that is not imported": edited("unrelated.py", "1.0", "2.0"),
    "the same data in another memory order": given(
        lambda m: {"worlds": coalmine.neighbours(np.arange(6.0).reshape(3, 2), [1.0, 2.0])},
        lambda m: {"worlds": coalmine.neighbours(np.asfortranarray(np.arange(6.0).reshape(3, 2)), [1.0, 2.0])},
    ),
    "another object with the same values": in_place(lambda m: setattr(m, "settings", m.Settings(1.0))),
    "the level of a logger": in_place(lambda m: m.log.setLevel(logging.ERROR)),
    "a variable of the environment that is not read": lambda p: (dict, lambda: p.patch.setenv("OUR_OTHER", "2")),
    "another claim": given(lambda m: {}, lambda m: {"claim_epsilon": 2.0}),
    "another confidence": given(lambda m: {}, lambda m: {"confidence": 0.9}),
    "a module variable that is not read": in_place(lambda m: setattr(m, "UNREAD", 2.0)),
    "a time limit, which needs another process": given(lambda m: {}, lambda m: {"timeout": 60.0}),
    "a module that was imported again": lambda p: (dict, p.write),
}


@pytest.mark.parametrize("way", NEUTRAL)
def test_what_does_not_matter_is_reused(project, way):
    prepare, change = NEUTRAL[way](project)
    project.options.update(prepare())
    assert project.play() == 0
    change()
    assert project.play() == 16


def test_the_table_is_as_long_as_we_say():
    assert len(STALE) >= 30
    assert len(NEUTRAL) >= 10


def test_another_process_and_another_folder_give_the_same_identity(project, tmp_path, monkeypatch):
    """The order of a set of texts changes from process to process, and the project may be moved."""
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop()); import mine\n"
        "from coalmine.integrations.identity import followed\n"
        "from coalmine.integrations.content import content_hash\n"
        "print(content_hash(followed('train', mine.train).identity))"
    )
    monkeypatch.setattr(sys, "argv", ["another program"])
    project.edit("mine.py", "(seed in {1, 2, 3})", "('a' in {'a', 'b', 'c', 'd', 'e'})")
    moved = tmp_path.parent / f"{tmp_path.name}-moved"
    moved.mkdir()
    for name in PROJECT:
        (moved / name).parent.mkdir(exist_ok=True, parents=True)
        (moved / name).write_bytes((tmp_path / name).read_bytes())
    here = content_hash(identity.followed("train", project.mine.train).identity)
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(moved)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path[1:]))},
            capture_output=True, text=True, timeout=120, check=False, cwd=moved,
        )  # fmt: skip
        assert done.stdout.strip() == here, done.stderr


def test_a_worker_that_imports_something_else_stops_the_game(project):
    """What was set in the running program does not travel with a module: a worker would train with the old value."""
    project.mine.SIGMA = 2.0
    with pytest.raises(GameStoppedError, match=r"not the same in a worker process on .* \(mine.SIGMA\)"):
        project.play(workers=2)


def test_what_cannot_be_followed_may_be_named(project):
    project.mine.settings = np.random.default_rng(1)
    project.edit("mine.py", "settings.sigma", "settings.normal()")
    project.mine.settings = np.random.default_rng(1)
    with pytest.raises(InvalidInputError, match=r"depends_on=\{'mine.settings': ...\}"):
        project.play()
    project.options["depends_on"] = {"mine.settings": 1}
    assert project.play() == 0


@pytest.mark.parametrize(
    "text",
    ["name = 'OUR'; os.environ[name]", "os.environ.copy()", "dict(os.environ)", "importlib.import_module(str())"],
)
def test_names_that_are_computed_are_refused(project, text):
    project.edit("mine.py", "LEVEL = 1.0\n", f"LEVEL = 1.0\ndef unused():\n    {text}\n")
    with pytest.raises(InvalidInputError, match="by a name that is computed; name what decides it"):
        project.play()


def test_copies_within_a_package_and_linters_are_not_behind_a_training(tmp_path, monkeypatch):
    """Ray puts its own copies on the path of a worker; somewhere behind torch every linter is an option."""
    before = sources._versions("coalmine")
    assert {"coalmine", "numpy", "torch", "numba"} <= set(before)
    assert not {"ruff", "mypy", "pytest", "ray", "altair"} & set(before)
    inner = tmp_path / "site-packages" / "ray" / "thirdparty_files"
    for name in ("numpy", "tqdm", "colorama"):
        (inner / f"{name}-0.0.1.dist-info").mkdir(parents=True)
        (inner / f"{name}-0.0.1.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(str(inner))
    sources._versions.cache_clear()
    assert sources._versions("coalmine") == before
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))  # a folder of packages counts
    (inner / "numpy-0.0.1.dist-info").rename(tmp_path / "site-packages" / "numpy-0.0.1.dist-info")
    sources._versions.cache_clear()
    assert sources._versions("coalmine")["numpy"] == "0.0.1"
    sources._versions.cache_clear()
