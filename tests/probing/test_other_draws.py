"""Random draws beside the noise may decide what a step does: each of its ways must keep the promise."""

import random

import numpy as np
import pytest
import torch

from coalmine.probing.probe import probe
from coalmine.probing.tape import Tape
from coalmine.records import Outcome

OPTIONS = {"replays": 40, "tries": 30, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0}
PROMISE = {"divisor": 8.0, "learning_rate": 1.0}
ROWS = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
OWN = np.random.default_rng(8)

COINS = {
    "python": random.random,
    "numpy": np.random.rand,
    "a generator of its own": lambda: OWN.random(),
    "torch": lambda: float(torch.rand(1)),
    "small whole numbers": lambda: int(torch.randint(0, 1000, (1,))) / 1000,
    "a choice": lambda: random.choice([0.1, 0.3, 0.5, 0.7, 0.9]),
}


def clip(rows, bound=1.0):
    return rows / (rows.norm(dim=1, keepdim=True) / bound).clamp(min=1.0)


def noise():
    return torch.randn(10)


def probed(total, **more):
    weight = torch.zeros(10)

    def step(rows):
        weight.sub_(total(rows) / 8)

    return probe(step, state={"weight": weight}, batch=ROWS, **{**PROMISE, **OPTIONS, **more})


def unclipped_by(coin, p):
    return lambda rows: (clip(rows) if coin() >= p else rows).sum(0) + noise()


def silent_by(coin, p):
    return lambda rows: clip(rows).sum(0) + (noise() if coin() >= p else 0.0)


def said(report, name):
    return next(one.sentence for one in report.measurements if one.name == name)


@pytest.mark.parametrize("coin", COINS.values(), ids=COINS)
@pytest.mark.parametrize("kind", [unclipped_by, silent_by])
def test_a_coin_that_leaves_out_clipping_or_noise_is_found(kind, coin):
    report = probed(kind(coin, 0.2))
    assert report.verdict.outcome is Outcome.REFUTED, report.in_words()
    assert "the same release in every run" not in report.in_words()


@pytest.mark.parametrize("coin", COINS.values(), ids=COINS)
def test_a_coin_that_breaks_no_promise_passes(coin):
    def total(rows):
        turned = -rows if coin() < 0.2 else rows
        return clip(turned).sum(0) + noise()

    report = probed(total)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    assert "Made anew 72 times in the first step and in steps 2 to 8" in said(report, "other draws")


@pytest.mark.parametrize("seed", range(4))
def test_a_rare_coin_is_found_with_most_seeds(seed):
    # Unseen with probability 0.95^72 = 0.025; these seeds are fixed.
    assert probed(silent_by(random.random, 0.05), seed=seed).verdict.outcome is Outcome.REFUTED


def test_noise_that_is_dropped_half_the_time_is_said_to_be():
    found = [probed(silent_by(random.random, 0.5), seed=seed).findings for seed in range(6)]
    assert {one.fault for (one,) in found} == {"noise too small", "no noise"}  # as the first draws have it
    assert all("runs with other random draws (random.random at test_other_draws.py" in one.sentence for (one,) in found)


def test_the_same_seed_gives_the_same_verdict():
    first, second = (probed(silent_by(random.random, 0.05), seed=3).in_words() for _ in range(2))
    assert first == second


def test_less_noise_by_a_coin_is_measured():
    def total(rows):
        return clip(rows).sum(0) + (0.8 if random.random() < 0.2 else 1.0) * noise()

    (found,) = probed(total, replays=200, level=1e-4).findings
    assert found.fault == "noise too small"
    assert "×0.8 the noise of the first" in found.sentence


@pytest.mark.parametrize("bound", [1.01, 1.05, 3.0])
def test_a_coin_that_clips_some_runs_to_a_little_more_is_found(bound):
    # Both too far by the unit of the sum, and, of three times C, too far for the noise.
    def total(rows):
        return clip(rows, random.choice([1.0, 1.0, 0.5 * (1.0 + bound), bound])).sum(0) + noise()

    found = probed(total, seed=1).findings[0]
    assert found.fault == "sensitivity too large"
    assert found.number == pytest.approx(bound, rel=1e-3)


def test_without_a_divisor_clipping_left_out_by_a_coin_is_found():
    report = probed(unclipped_by(random.random, 0.2), divisor=None, learning_rate=None)
    assert report.verdict.outcome is Outcome.REFUTED, report.in_words()


class Late:
    """From the second step on a coin decides."""

    def __init__(self, kind):
        self.weight, self.steps, self.kind = torch.zeros(10), 0, kind

    def step(self, rows):
        self.steps += 1
        heads = random.random() < 0.5 and self.steps > 1
        clipped = rows if heads and self.kind == "clipping" else clip(rows)
        added = 0.0 if heads and self.kind == "noise" else noise()
        self.weight = self.weight - (clipped.sum(0) + added) / 8


@pytest.mark.parametrize(
    ("kind", "outcome"), [("clipping", Outcome.REFUTED), ("noise", Outcome.REFUTED), ("nothing", Outcome.CONSISTENT)]
)
def test_a_coin_that_decides_in_later_steps_only_is_found(kind, outcome):
    trainer = Late(kind)
    report = probe(trainer.step, state=trainer, batch=ROWS, **PROMISE, **OPTIONS)
    assert report.verdict.outcome is outcome, report.in_words()


class SeededByTheStep:
    """A coin from a seed that follows the number of the step: from one state it always falls alike."""

    def __init__(self, p):
        self.weight, self.steps, self.p = torch.zeros(10), 0, p

    def step(self, rows):
        self.steps += 1
        torch.manual_seed(self.steps)
        mask = torch.rand(len(rows), 10) > 0.3
        clipped = clip(rows * mask) if float(torch.rand(1)) >= self.p else rows
        self.weight = self.weight - (clipped.sum(0) + torch.from_numpy(OWN.normal(size=10)).float()) / 8


def two_places(rows):
    total = clip(rows).sum(0)
    if random.random() < 0.5:
        return total + torch.randn(10)
    return total + noise()


def sampled(rows):
    return clip(rows[torch.rand(len(rows)) < 0.3]).sum(0) + noise()


def sampled_one_by_one(rows):
    return clip(rows[[row for row in range(len(rows)) if random.random() < 0.3]]).sum(0) + noise()


def dropout(rows):
    return clip(torch.nn.functional.dropout(rows, 0.4)).sum(0) + noise()


def augmented(rows):
    return clip(rows + 0.1 * torch.randn_like(rows)).sum(0) + noise()


def shuffled(rows):
    order = list(range(len(rows)))
    random.shuffle(order)
    return clip(rows[order]).sum(0) + noise()


def seeded_anew(rows):
    generator = torch.Generator().manual_seed(random.getrandbits(31))
    return clip(rows).sum(0) + torch.randn(10, generator=generator)


def clipped_to_less(rows):
    bound = 1.0 if random.random() < 0.7 else 0.5
    return clip(rows, bound).sum(0) + noise()


RIGHT = [
    two_places,
    sampled,
    sampled_one_by_one,
    dropout,
    augmented,
    shuffled,
    seeded_anew,
    clipped_to_less,
]


@pytest.mark.parametrize("total", RIGHT)
def test_other_draws_of_a_right_step_are_no_fault(total):
    report = probed(total)
    assert report.findings == (), report.in_words()
    if total is not clipped_to_less:  # with its first draws no row comes near the clip norm
        assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


@pytest.mark.parametrize(("p", "outcome"), [(0.3, Outcome.REFUTED), (0.0, Outcome.CONSISTENT)])
def test_draws_that_follow_the_state_are_made_anew_too(p, outcome):
    trainer = SeededByTheStep(p)
    report = probe(trainer.step, state=trainer, batch=ROWS, **PROMISE, **OPTIONS)
    assert report.verdict.outcome is outcome, report.in_words()


def test_a_tape_makes_other_draws_anew_and_keeps_the_noise():
    def step():
        return torch.randn(3), torch.rand(3), random.random(), random.sample(range(100), 3)

    tape = Tape()

    def played(how):
        with how:
            return step()

    first = played(tape.record())
    anew = played(tape.toss(1))
    again = played(tape.replay())
    other = played(tape.toss(2))
    once_more = played(tape.toss(1))
    assert torch.equal(first[0], anew[0])
    assert not torch.equal(first[1], anew[1])
    assert (first[2], first[3]) != (anew[2], anew[3])
    for one in (again, once_more):
        assert torch.equal(one[1], anew[1])
        assert one[2:] == anew[2:]
    assert other[2:] != anew[2:]
    tape.take_back()
    back = played(tape.replay())
    assert torch.equal(back[1], first[1])
    assert back[2:] == first[2:]
