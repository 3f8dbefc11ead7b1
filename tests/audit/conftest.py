"""A tiny audit that every test here may change, and a count of the blocks that are really played."""

import pytest

from coalmine.auditing import config
from coalmine.auditing.config import Execution
from coalmine.auditing.run import audit
from coalmine.game.built_in import BuiltInTask


def made(*, adversaries=({"name": "clipbkd", "copies": 2},), **sections):
    tree = {
        "data": {"name": "synthetic", "rows": 60},
        "model": {"kind": "logistic"},
        "training": {"steps": 4, "sample_rate": 0.5, "noise_multiplier": 1.0},
        "audit": {"trials": 64},
        "adversary": list(adversaries),
    }
    for section, values in sections.items():
        tree[section] = {**tree[section], **values}
    return config.parse(tree)


@pytest.fixture(scope="session")
def settings():
    """A config on 60 rows and 64 trials; keywords replace values of its sections."""
    return made


@pytest.fixture
def play(tmp_path):
    """Run an audit in this process, with one store for the test."""

    def run(settings, **options):
        return audit(settings, **{"store": tmp_path / "a.db", "execution": Execution(workers=1), **options})

    return run


@pytest.fixture
def trained(monkeypatch):
    """The blocks that are really played."""
    blocks = []
    play = BuiltInTask.play

    def counting(self, wanted):
        blocks.extend(wanted)
        return play(self, wanted)

    monkeypatch.setattr(BuiltInTask, "play", counting)
    return blocks
