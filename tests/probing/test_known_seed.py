"""Noise from a seed that the step sets itself is known to whoever knows the program, though each step has another."""

import os
import random
import secrets

import numpy as np
import pytest
import torch

from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 120, "tries": 20, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0}
PROMISE = {"divisor": 8.0, "learning_rate": 1.0}
ROWS = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
NORMAL = torch.Generator().manual_seed(11)


class Trainer:
    """A right step but for the seed of its noise, which may follow the number of the step."""

    def __init__(self, noise):
        self.weight, self.steps, self.noise = torch.zeros(5), 0, noise

    def step(self, rows):
        self.steps += 1
        total = (rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)).sum(0)
        self.weight = self.weight - (total + self.noise(self.steps)) / 8


def probed(noise):
    trainer = Trainer(noise)
    return probe(trainer.step, state=trainer, batch=ROWS, **PROMISE, **OPTIONS)


def seeded(seed):
    torch.manual_seed(seed)
    return torch.randn(5)


def generator(seed):
    return torch.randn(5, generator=torch.Generator().manual_seed(seed))


def numpy_generator(*seed):
    return torch.from_numpy(np.random.default_rng(*seed).normal(size=5)).float()


def numpy_shared(seed):
    np.random.seed(seed)  # noqa: NPY002  # as people do
    return torch.from_numpy(np.random.normal(size=5)).float()  # noqa: NPY002


def numpy_state(seed):
    return torch.from_numpy(np.random.RandomState(seed).normal(size=5)).float()


def python_shared(seed):
    random.seed(seed)
    return torch.tensor([random.gauss(0.0, 1.0) for _ in range(5)])


def python_own(seed):
    own = random.Random(seed)
    return torch.tensor([own.gauss(0.0, 1.0) for _ in range(5)])


def seeded_for_the_next(seed):
    found = torch.randn(5)
    torch.manual_seed(seed)
    return found


KNOWN = [
    seeded,
    generator,
    numpy_generator,
    numpy_shared,
    numpy_state,
    python_shared,
    python_own,
    lambda step: seeded(1000 + 7 * step),
    lambda step: numpy_generator([3, step]),
    seeded_for_the_next,
]


@pytest.mark.parametrize("noise", KNOWN)
def test_noise_that_is_seeded_by_the_step_is_refuted(noise):
    report = probed(noise)
    assert "noise from a known seed" in {one.fault for one in report.findings}, report.in_words()


def from_the_system(_):
    return generator(secrets.randbits(62))


def from_the_system_in_bytes(_):
    return generator(int.from_bytes(os.urandom(7), "big"))


def unseeded(_):
    return numpy_generator()


def from_the_shared_generator(_):
    return generator(int(torch.randint(0, 2**62, ())))


def from_few_seeds_of_the_shared_generator(_):
    return seeded(random.randrange(2**20))


def from_one_generator(_):
    return torch.randn(5, generator=NORMAL)


def by_torch_itself(_):
    own = torch.Generator()
    own.seed()
    return torch.randn(5, generator=own)


RIGHT = [
    from_the_system,
    from_the_system_in_bytes,
    unseeded,
    from_the_shared_generator,
    from_few_seeds_of_the_shared_generator,
    from_one_generator,
    by_torch_itself,
]


@pytest.mark.parametrize("noise", RIGHT)
def test_noise_from_seeds_that_nobody_knows_passes(noise):
    report = probed(noise)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


def test_a_state_that_is_kept_and_set_again_is_not_taken_as_known():
    """Whether it was seeded with a secret cannot be seen."""
    kept = [torch.Generator().manual_seed(secrets.randbits(60)).get_state()]

    def noise(_):
        own = torch.Generator()
        own.set_state(kept[0])
        found = torch.randn(5, generator=own)
        kept[0] = own.get_state()
        return found

    report = probed(noise)
    assert report.verdict.outcome is Outcome.INCONCLUSIVE, report.in_words()
    assert "it follows from what the step holds" in report.in_words()


COUNT = iter(range(10**9))


def test_a_counter_that_cannot_be_put_back_is_not_taken_as_right():
    report = probed(lambda _: generator(next(COUNT)))
    assert report.verdict.outcome is Outcome.INCONCLUSIVE, report.in_words()
    assert "with seeds that are close together" in report.in_words()
