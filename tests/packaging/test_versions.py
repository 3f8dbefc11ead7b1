"""The lower bounds that pyproject.toml declares are the versions that `make test-minimal` tests."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TESTED = ("train", "fast", "report", "view")


def test_lower_bounds_are_those_that_are_tested():
    asked = [*PROJECT["dependencies"], *(one for extra in TESTED for one in PROJECT["optional-dependencies"][extra])]
    declared = dict(one.split(">=") for one in asked if ">=" in one)
    lines = (ROOT / "constraints-minimal.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    assert set(declared) == set(tested)
    for name, version in declared.items():
        if name != "torch":  # one release is pinned everywhere
            assert re.match(rf"{re.escape(version)}(\.0)*$", tested[name]), name


def test_every_dependency_has_a_lower_bound():
    extras = PROJECT["optional-dependencies"]
    for one in [*PROJECT["dependencies"], *(one for some in extras.values() for one in some)]:
        assert ">=" in one or one.startswith("coalmine["), one
