"""Wrong input of a probe: words and exit code 2, never a traceback."""

import pytest
import torch

from coalmine.cli import main
from coalmine.errors import InvalidInputError
from coalmine.probing.probe import probe

MODULE = """
import torch, coalmine
weight = torch.zeros(3)
def step(rows):
    weight.sub_((rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)).sum(0) + torch.randn(3))
def given(**more):
    return coalmine.PrivateStep(**{"step": step, "state": {"weight": weight}, "batch": torch.eye(3),
                                   "clip_norm": 1.0, "noise_multiplier": 1.0} | more)
def fails(): raise RuntimeError("cannot build")
def asks(x): return given()
def unknown(): return given(foo=1)
def right(): return given()
"""


def step(rows):
    WEIGHT.sub_((rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)).sum(dim=0) + torch.randn(3))


WEIGHT = torch.zeros(3)
GIVEN = {"state": {"weight": WEIGHT}, "batch": torch.eye(3), "clip_norm": 1.0, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": torch.full((3, 3), float("nan"))}, "batch holds NaN or infinity"),
        ({"state": {"weight": torch.full((3,), float("inf"))}}, "weight holds NaN or infinity before the step"),
        ({"state": "hello"}, "state is of type str"),
        ({"state": 5}, "state is of type int"),
        ({"state": lambda: 1}, "state is of type function"),
        ({"seed": -1}, "seed = -1"),
        ({"kept": 5}, "kept = 5"),
        ({"sample_rate": 3}, "sample_rate = 3"),
        ({"released": 3}, "released = 3"),
    ],
)
def test_wrong_values_are_named(change, words):
    with pytest.raises(InvalidInputError, match=words):
        probe(step, **GIVEN | change)


async def waits(rows):
    step(rows)


def yields(rows):
    yield step(rows)


@pytest.mark.parametrize("lazy", [waits, yields])
def test_a_step_that_does_nothing_when_it_is_called_is_refused(lazy):
    with pytest.raises(InvalidInputError, match="a generator or a coroutine does nothing when it is called"):
        probe(lazy, **GIVEN)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["probed:fails"], "cannot build"),
        (["probed:asks"], "missing 1 required positional argument"),
        (["probed:unknown"], "unexpected keyword argument 'foo'"),
        (["probed.py:right"], "probed:right"),
        (["probed:right", "--processes", "0"], "processes = 0"),
        (["probed:right", "--processes", "-3"], "processes = -3"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path, monkeypatch, capsys, arguments, words):
    (tmp_path / "probed.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["probe", *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_one_name_is_enough_for_kept():
    def returning(rows):
        step(rows)
        return {"loss": rows.sum().item()}

    given = GIVEN | {"divisor": 1.0, "learning_rate": 1.0, "replays": 40, "tries": 20, "level": 1e-8}
    (found,) = probe(returning, **given).findings
    assert 'kept=("returned.loss",)' in found.sentence
    assert probe(returning, kept="returned*", **given).findings == ()
