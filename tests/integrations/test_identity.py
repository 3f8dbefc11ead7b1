"""An edited function, another argument or other data are never taken for the old ones."""

import functools
import importlib
import io
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from coalmine.errors import InvalidInputError
from coalmine.integrations.content import NoContentError, content_hash
from coalmine.integrations.identity import followed


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write modules and import them anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(texts)))

    return write


def one(function):
    return content_hash(followed("train", function).identity)


def test_an_edited_function_is_another_function(module):
    before = one(module(mine="def train(dataset, seed):\n    return 1\n").train)
    again = one(module(mine="def train(dataset, seed):\n    return 1\n").train)
    after = one(module(mine="def train(dataset, seed):\n    return 2\n").train)
    assert before == again
    assert before != after


@pytest.mark.parametrize("how", ["import helper", "from helper import SIGMA", "from helper import *"])
def test_an_edited_module_that_is_imported_counts_too(module, how):
    text = f"{how}\ndef train(dataset, seed):\n    return 1\n"
    before = one(module(mine=text, helper="SIGMA = 1\n").train)
    after = one(module(mine=text, helper="SIGMA = 2\n").train)
    assert before != after


def test_an_import_inside_the_function_counts_too(module):
    text = "def train(dataset, seed):\n    from helper import SIGMA\n    return SIGMA\n"
    before = one(module(mine=text, helper="SIGMA = 1\n").train)
    after = one(module(mine=text, helper="SIGMA = 2\n").train)
    assert before != after


def test_installed_packages_count_with_their_version(module):
    mine = module(mine="import numpy as np\ndef train(d, s):\n    return np.sum(d)\n")
    found = followed("train", mine.train).identity
    assert found["packages"] == {"numpy": np.__version__}
    assert found["function"] == "mine:train"


def test_values_that_a_function_reads_count_as_they_are(module):
    mine = module(mine="SIGMA = 1.0\ndef noise():\n    return SIGMA\ndef train(d, s):\n    return noise()\n")
    before = one(mine.train)
    mine.SIGMA = 0.5
    assert one(mine.train) != before
    mine.SIGMA = 1.0
    assert one(mine.train) == before


def test_values_of_an_imported_module_count_as_they_are(module):
    mine = module(mine="import helper\ndef train(d, s):\n    return helper.SIGMA\n", helper="SIGMA = 1.0\n")
    before = one(mine.train)
    mine.helper.SIGMA = 0.5
    assert one(mine.train) != before


def test_bound_arguments_defaults_closures_and_decorators_count(module):
    mine = module(
        mine="import functools\n"
        "def make(sigma):\n    def train(d, s):\n        return sigma\n    return train\n"
        "def train(d, s, sigma=1.0):\n    return sigma\n"
        "def scaled(by):\n    def wrap(f):\n        @functools.wraps(f)\n        def inner(d, s):\n"
        "            return by * f(d, s)\n        return inner\n    return wrap\n"
    )
    assert one(mine.make(1.0)) == one(mine.make(1.0)) != one(mine.make(2.0))
    assert one(functools.partial(mine.train, sigma=1.0)) != one(functools.partial(mine.train, sigma=2.0))
    assert one(functools.partial(mine.train, sigma=1.0)) != one(mine.train)
    assert one(mine.scaled(1.0)(mine.train)) != one(mine.scaled(2.0)(mine.train))
    before = one(mine.train)
    mine.train.__defaults__ = (2.0,)
    assert one(mine.train) != before


def test_functions_among_bound_arguments_are_followed(module):
    texts = {
        "mine": "def score(model, build):\n    return build()\n",
        "parts": "def one():\n    return 1\ndef two():\n    return 2\n",
    }
    mine = module(**texts)
    parts = importlib.import_module("parts")
    before = one(functools.partial(mine.score, build=parts.one))
    assert before == one(functools.partial(mine.score, build=parts.one))
    assert before != one(functools.partial(mine.score, build=parts.two))
    assert before != one(functools.partial(mine.score, build=functools.partial(parts.one)))
    edited = module(**{**texts, "parts": texts["parts"].replace("return 1", "return 3")})
    assert before != one(functools.partial(edited.score, build=importlib.import_module("parts").one))


OBJECTS = """
import functools, io, helper
SCALE = 1.0
def noise():
    return SCALE
class Trainer:
    def __init__(self, held=None):
        self.held = held
    def fit(self, d, s):
        return self.held
    def more(self):
        return noise()
    def __call__(self, d, s):
        return self.fit(d, s)
"""
HELPER = "class Part:\n    def __init__(self, value):\n        self.value = value\n"


def test_methods_and_objects_that_can_be_called_are_known_by_what_they_hold(module):
    mine = module(mine=OBJECTS, helper=HELPER)
    held = [None, 1.0, np.arange(3), [1, 2], mine.helper.Part(1), mine.helper.Part(2), mine.Trainer(1), mine.noise,
            functools.partial(mine.noise, 1), functools.partial(mine.noise, 2)]  # fmt: skip
    for take in (lambda one: one.fit, lambda one: one):
        names = [one(take(mine.Trainer(value))) for value in held]
        assert len(set(names)) == len(names)
        assert names == [one(take(mine.Trainer(value))) for value in held]
    assert one(mine.Trainer()) != one(mine.Trainer().fit)
    loop = mine.Trainer()
    loop.held = loop
    assert one(loop.fit) != one(mine.Trainer().fit)


def test_what_the_other_methods_of_an_object_read_counts_too(module):
    mine = module(mine=OBJECTS, helper=HELPER)
    before = one(mine.Trainer().fit)
    mine.SCALE = 2.0
    assert one(mine.Trainer().fit) != before


def test_an_edited_class_of_an_object_that_is_held_counts_too(module):
    """The class stands in a module that the function's own module does not import."""
    text = OBJECTS.replace(", helper", "")
    part = module(helper=HELPER).Part(1)
    before = one(module(mine=text).Trainer(part).fit)
    part = module(helper=HELPER + "edited = 1\n").Part(1)
    assert one(module(mine=text).Trainer(part).fit) != before


@pytest.mark.parametrize("hidden", [io.BytesIO(b"1"), np.random.default_rng(1), ValueError("1"), iter([1])])
def test_objects_whose_state_cannot_be_seen_are_refused(module, hidden):
    """Two of a kind may differ and look the same, so trials of one could be taken for those of the other."""
    mine = module(mine=OBJECTS, helper=HELPER)
    for train in (mine.Trainer(hidden).fit, mine.Trainer(hidden), functools.partial(mine.Trainer().fit, hidden)):
        with pytest.raises(InvalidInputError, match="cannot be told from others"):
            one(train)


def test_two_lambdas_on_one_line_differ(module):
    mine = module(mine="both = [lambda d, s: 1, lambda d, s: 2]\n")
    assert one(mine.both[0]) != one(mine.both[1])


def test_a_decorated_function_is_taken(module):
    mine = module(mine="import torch\n@torch.no_grad()\ndef score(model):\n    return 1.0\n")
    assert followed("score", mine.score).identity["function"] == "mine:score"


def test_what_cannot_be_told_apart_is_refused(module, tmp_path):
    mine = module(mine="def make(thing):\n    def train(d, s):\n        return thing\n    return train\n")
    with pytest.raises(InvalidInputError, match="cannot be told from others"):
        one(mine.make(object()))
    exec("def train(d, s): return 1", space := {"__name__": "nowhere"})
    with pytest.raises(InvalidInputError, match="has no source text"):
        one(space["train"])
    with pytest.raises(InvalidInputError, match="expected a function"):
        one(len)


def test_a_file_edited_after_its_import_is_refused(module, tmp_path):
    mine = module(mine="def train(d, s):\n    return 1\n")
    (tmp_path / "mine.py").write_text("def train(d, s):\n    return 2\n")
    with pytest.raises(InvalidInputError, match=r"mine.py was edited after it was imported"):
        one(mine.train)


def test_content_hashes_tell_values_apart():
    tensors = torch.zeros(3, 2), torch.zeros(3)
    values = [
        None, 0, 0.0, False, "0", b"0", [0], (0,), {"a": 0}, {0}, 0j,
        np.zeros(3), np.zeros((3, 1)), np.zeros(3, np.float32), torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16),
        [np.zeros(3), np.zeros(3)], np.float64(0.0), TensorDataset(*tensors), Subset(TensorDataset(*tensors), [0]),
    ]  # fmt: skip
    hashes = [content_hash(value) for value in values]
    assert len(set(hashes)) == len(values)
    assert content_hash(TensorDataset(*tensors)) == content_hash(TensorDataset(*tensors))
    with pytest.raises(NoContentError, match="object of type object"):
        content_hash(object())
    with pytest.raises(NoContentError, match="Python objects"):
        content_hash(np.array([object()]))
