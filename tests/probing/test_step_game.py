"""The step as a game: bounds below the truth and close to it, missing noise refuted, weak canaries told."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from coalmine.accounting import standard
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.probing import carriers
from coalmine.probing.bench import on_bench
from coalmine.probing.private_step import PrivateStep
from coalmine.probing.step_game import play_step, replayed
from coalmine.records import DpSgd, Outcome, Relation, Sampling
from coalmine.theory import curves

CLAIM = DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=50)


def noisy(sigma, *, size=1, shift=1.0):
    """A release along ``size`` numbers, of which the canary moves the first by ``shift``."""

    def release(with_canary, seed):
        value = sigma * np.random.default_rng(seed).normal(size=size)
        value[0] += shift * with_canary
        return value if size > 1 else float(value[0])

    return release


def test_bounds_are_below_the_truth_and_close():
    # At 99 % one bound in a hundred may be too high; the seed is fixed.
    game = play_step(noisy(1.0), claim=CLAIM, trials=4000)
    assert game.verdict.outcome is Outcome.CONSISTENT, game.in_words()
    one, all_steps = curves.gaussian_epsilon(1.0, delta=1e-5), standard.epsilon(CLAIM, delta=1e-5).epsilon
    assert 0.85 * one < game.step.epsilon < one
    assert 0.8 * all_steps < game.training.epsilon < all_steps
    assert "every one of the 50 steps is like the one that was replayed" in game.training.assumptions


@pytest.mark.parametrize("size", [1, 30])
def test_missing_noise_is_refuted(size):
    game = play_step(noisy(0.5, size=size), claim=CLAIM, trials=800)
    assert game.verdict.outcome is Outcome.REFUTED
    assert game.training.epsilon > standard.epsilon(CLAIM, delta=1e-5).epsilon
    assert game.to_dict()["verdict"]["outcome"] == "refuted"


def test_a_weak_canary_or_few_trials_are_inconclusive():
    assert play_step(noisy(1.0, shift=0.2), claim=CLAIM, trials=4000).verdict.outcome is Outcome.INCONCLUSIVE
    assert play_step(noisy(1.0), claim=CLAIM, trials=30).verdict.outcome is Outcome.INCONCLUSIVE


@dataclasses.dataclass
class Shown:
    gradients: dict[str, torch.Tensor]


class Bench:
    """A step on three rows that clips, adds up and adds noise; the probe's own bench is like this."""

    def __init__(self, sigma):
        self.rows, self.sigma, self.generator = torch.eye(3), sigma, torch.Generator().manual_seed(0)

    def world(self, extra=None):
        return torch.cat([self.rows, *(extra or {}).values()])

    def silent(self, world):
        clipped = world / world.norm(dim=1, keepdim=True).clamp(min=1.0)
        return Shown({"weight": clipped.sum(dim=0)[:2], "bias": clipped.sum(dim=0)[2:]})

    def renewed(self, world):
        shown = self.silent(world).gradients
        return Shown(
            {name: one + self.sigma * torch.randn(one.shape, generator=self.generator) for name, one in shown.items()}
        )


def test_a_step_on_the_bench_is_played():
    canary = torch.tensor([[30.0, -40.0, 5.0]])
    assert play_step(replayed(Bench(0.5), canary), claim=CLAIM, trials=600).verdict.outcome is Outcome.REFUTED
    right = play_step(replayed(Bench(1.0), canary), claim=CLAIM, trials=2000)
    assert right.verdict.outcome is Outcome.CONSISTENT
    assert right.scores.world1.mean() == pytest.approx(1.0, abs=0.2)  # 6.6 standard errors
    with pytest.raises(InvalidInputError, match="does not change the step"):
        replayed(Bench(1.0), torch.zeros(1, 3))


def test_a_private_step_is_played_on_the_probe_s_bench_and_stays_as_it_was():
    model = torch.nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(batch):
        clipped = batch / batch.norm(dim=1, keepdim=True).clamp(min=1.0)
        model.weight.grad = (clipped.sum(dim=0, keepdim=True) + 0.5 * torch.randn(1, 3)) / 8.0
        optimizer.step()

    subject = PrivateStep(
        step=step, state=[model, optimizer], batch=torch.eye(3), clip_norm=1.0, noise_multiplier=1.0, divisor=8.0
    )
    before = model.weight.detach().clone(), torch.get_rng_state()
    with on_bench(subject) as bench:
        carriers.record(bench)
        game = play_step(replayed(bench, torch.tensor([[9.0, -9.0, 9.0]])), claim=CLAIM, trials=400)
    assert game.verdict.outcome is Outcome.REFUTED, game.in_words()
    assert torch.equal(model.weight, before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
    assert not optimizer.state


@pytest.mark.parametrize(
    ("release", "options", "message"),
    [
        (noisy(1.0), {"trials": 3}, "trials = 3"),
        (lambda with_canary, seed: float("nan"), {}, "finite numbers"),
        (lambda with_canary, seed: np.zeros(1 + seed % 2), {}, "different lengths"),
        (noisy(1.0), {"claim": dataclasses.replace(CLAIM, sampling=Sampling.SHUFFLE)}, "Poisson"),
        (noisy(1.0), {"claim": dataclasses.replace(CLAIM, relation=Relation.REPLACE)}, "add or remove"),
    ],
)
def test_bad_input_is_refused(release, options, message):
    with pytest.raises((InvalidInputError, UnsupportedError), match=message):
        play_step(release, **{"claim": CLAIM, **options})
