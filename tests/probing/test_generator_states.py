"""The state of a generator, released: its noise is then known. What looks like one, or is a step's tool, is none."""

import random

import numpy as np
import pytest
import torch

from coalmine.probing.generator_states import mark
from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 20, "tries": 10, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 2.0}
ROWS = torch.eye(20)[:4]
FAULT = "generator state is released"


class Holder:
    """An object of the user that has a generator, as private optimizers do."""

    def __init__(self, generator):
        self.generator, self.scale = generator, torch.ones(2)


def torch_noise():
    return torch.randn(20)


def shared_numpy():
    return torch.from_numpy(np.random.normal(size=20)).float()  # noqa: NPY002  # what users' code calls


def python_noise():
    return torch.tensor([random.gauss(0.0, 1.0) for _ in range(20)])


def probed(draw, give, *, before=False, state=None, **more):
    """A right step that returns what ``give`` gives, before it draws its noise or after that."""
    weight = torch.zeros(20)

    def step(rows):
        given = give() if before else None
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_((clipped.sum(dim=0) + 2.0 * draw()) / 8)
        return {"rng": given if before else give()}

    promise = {"state": {"weight": weight, **(state or {})}, "batch": ROWS, "divisor": 8, "learning_rate": 1.0}
    return probe(step, **promise, **OPTIONS, **more)


def own(library):
    """Noise from a generator of its own, and the generator."""
    if library == "torch":
        generator = torch.Generator().manual_seed(1)
        return (lambda: torch.randn(20, generator=generator)), generator
    generator = np.random.default_rng(1) if library == "numpy" else np.random.RandomState(1)
    return (lambda: torch.from_numpy(generator.normal(size=20)).float()), generator


@pytest.mark.parametrize(
    ("draw", "give", "before"),
    [
        (torch_noise, torch.get_rng_state, True),
        (torch_noise, torch.get_rng_state, False),
        (torch_noise, lambda: {"cpu": [torch.get_rng_state()]}, False),
        (torch_noise, lambda: torch.get_rng_state().numpy().tobytes(), True),
        (shared_numpy, np.random.get_state, False),
        (shared_numpy, lambda: np.random.get_state(legacy=False), True),  # noqa: NPY002
        (python_noise, random.getstate, False),
    ],
    ids=["torch, before the draw", "torch, after it", "in a dict", "bytes", "NumPy", "NumPy's dict", "Python"],
)
def test_the_state_of_a_shared_generator_is_found(draw, give, before):
    (found,) = probed(draw, give, before=before).findings
    assert (found.fault, found.level) == (FAULT, 0.0)
    assert found.witness.startswith("returned.rng")


@pytest.mark.parametrize("give", [torch.get_rng_state, lambda: {"cpu": [torch.get_rng_state()]}])
def test_what_is_kept_is_no_finding(give):
    report = probed(torch_noise, give, kept=("returned.rng",))
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


@pytest.mark.parametrize(
    ("library", "give"),
    [
        ("torch", lambda one: one.get_state()),
        ("torch", lambda one: one),
        ("numpy", lambda one: one.bit_generator.state),
        ("numpy", lambda one: one),
        ("legacy", lambda one: one.get_state()),
    ],
)
def test_that_of_a_generator_of_its_own_too(library, give):
    draw, generator = own(library)
    assert [one.fault for one in probed(draw, lambda: give(generator)).findings] == [FAULT]


def test_a_checkpoint_in_the_state_is_looked_at():
    checkpoint = {"rng": torch.get_rng_state()}

    def keep():
        checkpoint["rng"] = torch.get_rng_state()

    (found,) = probed(torch_noise, keep, state={"checkpoint": checkpoint}).findings
    assert (found.fault, found.witness) == (FAULT, "checkpoint.rng")


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_a_generator_that_the_state_itself_holds_is_asked_about(library):
    draw, generator = own(library)
    report = probed(draw, lambda: 1.0, state={"generator": generator})
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert 'kept=("generator",)' in report.verdict.reasons[0]
    kept = probed(draw, lambda: 1.0, state={"generator": generator}, kept=("generator",))
    assert kept.verdict.outcome is Outcome.CONSISTENT


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_a_generator_that_an_object_has_for_its_own_use_is_no_release(library):
    draw, generator = own(library)
    report = probed(draw, lambda: 1.0, state={"holder": Holder(generator)})
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


def test_a_generator_that_only_the_function_holds_is_no_release():
    weight, generator = torch.zeros(20), torch.Generator().manual_seed(1)

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_((clipped.sum(dim=0) + 2.0 * torch.randn(20, generator=generator)) / 8)

    report = probe(step, batch=ROWS, divisor=8, learning_rate=1.0, **OPTIONS)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


@pytest.mark.parametrize("give", [random.getstate, np.random.get_state], ids=["Python", "NumPy"])
def test_a_generator_that_gives_no_noise_is_inconclusive(give):
    report = probed(torch_noise, give)
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert "no noise of two steps came from it" in report.verdict.reasons[0]


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(624),
        torch.zeros(16, dtype=torch.uint8),
        torch.arange(16, dtype=torch.uint8),
        torch.zeros(5056, dtype=torch.uint8),
        [0.5] * 624,
        ("a", [1, 2]),
        {"bit_generator": 1},
        b"0123456789abcdef",
    ],
    ids=["counts", "no flags", "bytes", "an image", "rates", "pair", "name", "a key"],
)
def test_what_is_no_state_is_none(value):
    report = probed(torch_noise, lambda: value)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


def test_a_state_has_one_mark_however_it_is_packed():
    generator = torch.Generator().manual_seed(3)
    held = generator.get_state()
    assert mark(held) == mark(generator) == mark(held.tolist()) == mark(bytes(held.tolist())) != mark(torch.Generator())
    legacy = np.random.RandomState(3)
    assert mark(legacy.get_state()) == mark(legacy) == mark(legacy.get_state(legacy=False))
    drawn = np.random.default_rng(3)
    before = mark(drawn)
    drawn.normal()
    assert mark(drawn) != before
    assert mark(random.Random(3).getstate()) == mark(random.Random(3))
