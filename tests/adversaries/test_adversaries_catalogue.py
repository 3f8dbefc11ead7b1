"""The catalogue: adversaries as objects, of other packages, and what identifies them."""

import dataclasses
import json
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from coalmine.adversaries import GROUP, Scene, adversary, catalogue, identity_of, resolve
from coalmine.adversaries.membership import Membership
from coalmine.errors import InvalidInputError
from coalmine.training import Dataset, LogisticRegression, TrainingConfig, train

OWN = """
    import dataclasses
    from typing import ClassVar
    from coalmine.adversaries import Attack, Scene, ThreatModel
    from coalmine.adversaries.membership import Membership
    from coalmine.roles import View

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class FirstRow:
        weight: float = 2.0
        sizes: tuple[int, ...] = (1, 2)

        threat: ClassVar[ThreatModel] = ThreatModel(
            view=View.BLACK_BOX, access="loss", modification="none", dataset="given", paper="ours",
            summary="Asks about the first row.",
        )

        def craft(self, scene: Scene) -> Attack:
            return Membership(row=0).craft(scene)

    class NoAdversary:
        pass
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A distribution that brings adversaries, as pip would have installed it."""

    def install(name, points, *, version="1.2", source=OWN):
        folder = tmp_path / name
        folder.mkdir()
        module = name.replace("-", "_")
        (folder / f"{module}.py").write_text(textwrap.dedent(source))
        info = folder / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = "".join(f"{key} = {module}:{value}\n" for key, value in points.items())
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, module, raising=False)
        return module

    return install


def scene():
    rng = np.random.default_rng(0)
    base = Dataset(rng.normal(size=(20, 3)), rng.integers(0, 2, size=20))
    training = TrainingConfig(steps=3, clip=1.0, noise_multiplier=1.0, learning_rate=0.5, sample_rate=0.5)
    return Scene(base=base, classes=2, network=LogisticRegression(3), training=training)


def test_an_adversary_of_another_package_plays_by_its_name(package):
    package("fake-attacks", {"first-row": "FirstRow"})
    made = adversary("first-row", weight=3.0)
    assert made.weight == 3.0
    given = scene()
    attack = made.craft(given)
    result = train(
        given.network, neighbours=attack.neighbours, config=given.training, fingerprint="f", trials=range(4),
        worlds=[0, 1, 0, 1], observer=attack.distinguisher,
    )  # fmt: skip
    assert np.isfinite(result.scores).all()
    listed = catalogue()["first-row"]
    assert (listed.package, listed.version, listed.problem) == ("fake-attacks", "1.2", "")
    assert identity_of(made) == {
        "name": "first-row", "options": {"weight": 3.0, "sizes": [1, 2]}, "package": "fake-attacks", "version": "1.2",
    }  # fmt: skip
    assert next(iter(catalogue())) == "membership"


def test_only_what_is_asked_for_is_imported(package):
    module = package("fake-attacks", {"first-row": "FirstRow"})
    adversary("membership")
    assert module not in sys.modules
    with pytest.raises(InvalidInputError, match="did you mean 'first-row'"):
        adversary("frst-row")
    assert module not in sys.modules
    with pytest.raises(InvalidInputError, match=r"'wieght' is not an option.*did you mean 'weight'"):
        adversary("first-row", wieght=1.0)


@pytest.mark.parametrize(
    ("points", "source", "name", "words"),
    [
        ({"clipbkd": "FirstRow"}, OWN, "clipbkd", "package fake-attacks brings another of that name"),
        ({"broken": "FirstRow"}, "import no_such_module", "broken", "cannot be imported .ModuleNotFoundError"),
        ({"broken": "FirstRow"}, "raise SystemExit(0)", "broken", "cannot be imported .SystemExit"),
        ({"broken": "Missing"}, OWN, "broken", "cannot be imported .AttributeError"),
        ({"broken": "NoAdversary"}, OWN, "broken", "is no adversary: expected a dataclass"),
    ],
)
def test_what_cannot_be_used_is_named_and_hurts_nobody_else(package, points, source, name, words):
    package("fake-attacks", points, source=source)
    with pytest.raises(InvalidInputError, match=words):
        adversary(name)
    assert adversary("membership") == Membership()
    assert re.search(words, catalogue()[name].problem)


def test_two_packages_with_one_name(package):
    package("fake-attacks", {"first-row": "FirstRow"})
    package("more-attacks", {"first-row": "FirstRow"})
    with pytest.raises(InvalidInputError, match=r"package \w+-attacks and package \w+-attacks each bring"):
        adversary("first-row")


def test_the_command_line_lists_them_with_their_package(package, tmp_path):
    package("fake-attacks", {"first-row": "FirstRow", "broken": "Missing"})
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'fake-attacks')!r}); import coalmine.cli as c; c.main()"

    def listed(*arguments):
        command = [sys.executable, "-c", code, "adversaries", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    text = " ".join(listed().stdout.split())
    assert "fake-attacks 1.2" in text
    assert "Asks about the first row." in text
    assert "cannot be used" in text
    entries = {one["name"]: one for one in json.loads(listed("--json").stdout)["adversaries"]}
    assert entries["first-row"]["package"] == "fake-attacks"
    assert entries["first-row"]["options"] == {"weight": 2.0, "sizes": [1, 2]}
    assert "AttributeError" in entries["broken"]["problem"]
    assert entries["clipbkd"]["package"] == "coalmine"


@dataclasses.dataclass(frozen=True)
class Mine(Membership):
    """An adversary of the user's own."""

    direction: np.ndarray | None = None
    helper: object = None


def test_objects_are_taken_as_they_are():
    mine = Mine(row=3)
    assert resolve(mine) is mine
    assert resolve("membership", row=3) == Membership(row=3)
    with pytest.raises(InvalidInputError, match="row is not allowed beside an adversary"):
        resolve(mine, row=4)
    for wrong in (3, None, Mine, object()):
        with pytest.raises(InvalidInputError, match=r"adversary = .*expected a name, or an instance"):
            resolve(wrong)


def test_an_identity_holds_every_value_and_nothing_else():
    assert "shadow_steps" not in identity_of(resolve("crafted-row"))["options"]  # it came later: old trials are found
    assert identity_of(resolve("crafted-row", shadow_steps=9))["options"]["shadow_steps"] == 9
    assert identity_of(resolve("clipbkd")) == identity_of(resolve("clipbkd", copies=1, norm=None))
    assert identity_of(resolve("clipbkd"))["options"] == {"copies": 1, "norm": None, "world0": "clean"}
    assert identity_of(resolve("clipbkd")) != identity_of(resolve("clipbkd", copies=2))
    first, second = (identity_of(Mine(row=1, direction=np.arange(n))) for n in (3, 4))
    assert first["class"] == f"{__name__}:Mine"
    assert len(first["source"]) == 64
    assert first["options"]["direction"] != second["options"]["direction"]
    for one in (first, identity_of(resolve("encoding"))):
        assert json.loads(json.dumps(one, allow_nan=False)) == one
    with pytest.raises(InvalidInputError, match=r"helper = .*cannot identify"):
        identity_of(Mine(helper=object()))
