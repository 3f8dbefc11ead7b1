"""Steps in which nothing but a canary meets the noise: each is one normal number, and nothing is trained.

Along the canary's gradient, step t shows s = b + σ·z in units of C, where b is 1 in the steps that draw the canary and
0 in all others. The likelihood ratio of world 1 and world 0 is the product over the steps of

    F = (1 − q) + q·exp((s − ½)/σ²) = (1 − q) + q·E·e^{b/σ²},     E = exp(z/σ − 1/(2σ²)).

The steps are exchangeable, so in world 1 the K ~ Binomial(T, q) steps that draw the canary may as well be the first K.
Several factors are multiplied before one logarithm is taken. On a CPU a compiled loop does this where numba is
installed, otherwise torch does, in pieces; on a GPU torch does many trials at a time. The three draw different numbers
of the same law.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coalmine import seeds
from coalmine.training import backends
from coalmine.training.noise import fill_normals

BLOCK = 16
"""Trials that share a stream: trial t has place t mod 16 in the stream of block ⌊t/16⌋."""
_STEPS = 4096
"""Steps drawn together: few enough for a core's cache, enough to spread the cost of a call."""
_GPU_NUMBERS = 2**27
_LEAST_SIGMA = 0.05
"""Without noise the ratio is 0 or infinite; scores then use this σ, which keeps them finite and in the same order."""


def log_mixture(
    exponents: ArrayLike, *, sample_rate: float, copies: int = 1, half: ArrayLike = 0.0
) -> NDArray[np.float64]:
    """ln((1 − q) + q·e^a), in log space: the log-likelihood ratio of a step whose canary is drawn with probability q.

    Of ``copies`` = k canaries, each drawn on its own, j = 0, 1, …, k are drawn with the chance of Binomial(k, q). Where
    one gives the exponent a = s − h, ``half`` = h being half its squared length, j of them give j·s − j²·h, so it is

        ln Σ_j C(k, j) q^j (1 − q)^(k − j) · exp(j·a − j·(j − 1)·h).

    Args:
        exponents: a, one for each model.
        sample_rate: q.
        copies: k.
        half: h, for each model or for all; needed with several copies alone.

    Returns:
        The ratios.

    >>> log_mixture([0.0, 99.5], sample_rate=0.01).round(4).tolist()
    [0.0, 94.8948]
    >>> log_mixture([0.5], sample_rate=1.0, copies=3, half=0.25).tolist()
    [0.0]
    """
    never = math.log1p(-sample_rate) if sample_rate < 1.0 else -math.inf
    drawn = math.log(sample_rate) if sample_rate > 0.0 else -math.inf
    given = np.asarray(exponents, dtype=np.float64)
    if copies == 1:
        return np.asarray(np.logaddexp(never, drawn + given))
    halves = np.asarray(half, dtype=np.float64)
    total = np.full(given.shape, -math.inf)
    for times in range(copies + 1):
        some, others = (times * drawn if times else 0.0), ((copies - times) * never if times < copies else 0.0)
        chance = math.lgamma(copies + 1) - math.lgamma(times + 1) - math.lgamma(copies - times + 1) + some + others
        if chance > -math.inf:
            total = np.logaddexp(total, chance + times * given - times * (times - 1) * halves)
    return np.asarray(total)


def log_ratio(projection: NDArray[np.float64], *, sample_rate: float, sigma: float) -> NDArray[np.float64]:
    """ln((1 − q) + q·exp((s − ½)/σ²)) for projections s on the canary's gradient, in units of C.

    >>> log_ratio(np.array([0.5, 100.0]), sample_rate=0.01, sigma=1.0).round(4).tolist()
    [0.0, 94.8948]
    """
    return log_mixture((projection - 0.5) / max(sigma, _LEAST_SIGMA) ** 2, sample_rate=sample_rate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianSteps:
    """Log-likelihood ratios of ``steps`` such steps at rate ``sample_rate`` and noise ``sigma``, in units of C."""

    sample_rate: float
    sigma: float
    steps: int

    def scores(
        self, trials: NDArray[np.int64], *, worlds: NDArray[np.int8], fingerprint: str, device: str
    ) -> NDArray[np.float64]:
        """One score a trial, a function of (fingerprint, trial, world) on one kind of device.

        >>> GaussianSteps(sample_rate=1.0, sigma=1.0, steps=4).scores(
        ...     np.arange(4), worlds=np.array([0, 1, 0, 1], dtype=np.int8), fingerprint="a run", device="cpu").round(3)
        array([-2.121,  2.101, -1.118,  3.328])
        """
        trials, worlds = np.asarray(trials, dtype=np.int64), np.asarray(worlds)
        blocks, inverse = np.unique(trials // BLOCK, return_inverse=True)
        # Both worlds of every place are known by (block, place); a world that is not asked for is left out.
        inside = np.zeros((blocks.size, BLOCK), dtype=bool)
        inside[inverse, trials % BLOCK] = worlds == 1
        drawn = np.stack([self._drawn(fingerprint, int(block)) for block in blocks]) * inside
        if self.sigma == 0.0:
            found = self._noiseless(drawn)
        elif self.sample_rate == 1.0:
            found = self._certain(drawn, blocks, fingerprint)
        elif backends.compiled(device=torch.device(device), dtype=self._few[1]):
            found = self._compiled(fingerprint, blocks, drawn)
        elif device == "cpu":
            found = np.stack(
                [self._on_cpu(fingerprint, int(b), counts) for b, counts in zip(blocks, drawn, strict=True)]
            )
        else:
            found = self._on_gpu(fingerprint, blocks, drawn, torch.device(device))
        return np.asarray(found[inverse, trials % BLOCK])

    def _drawn(self, fingerprint: str, block: int) -> NDArray[np.int64]:
        """How many steps draw the canary, for each trial of a block."""
        generator = seeds.generator(fingerprint, purpose="drawn steps", trial=block)
        return generator.binomial(self.steps, self.sample_rate, size=BLOCK)

    def _noiseless(self, drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        """No noise: every step shows 0 or 1."""
        ratios = log_ratio(np.array([0.0, 1.0]), sample_rate=self.sample_rate, sigma=0.0)
        return np.asarray((self.steps - drawn) * ratios[0] + drawn * ratios[1])

    def _certain(self, drawn: NDArray[np.int64], blocks: NDArray[np.int64], fingerprint: str) -> NDArray[np.float64]:
        """q = 1: the ratio is linear in the sum of the steps, which is one normal number."""
        normals = np.stack(
            [seeds.generator(fingerprint, purpose="noise", trial=int(b)).standard_normal(BLOCK) for b in blocks]
        )
        mean = (drawn - 0.5 * self.steps) / self.sigma**2
        return np.asarray(mean + math.sqrt(self.steps) / self.sigma * normals)

    @property
    def _few(self) -> tuple[int, torch.dtype]:
        """How many factors are multiplied before a logarithm is taken, and in which precision.

        Σ of k exponents z/σ + 1/(2σ²) overflows only where the sum of k normals is beyond 12 standard deviations, which
        the generator's normals (9.5 at most each) reach with a chance below 1e-32; and (1 − q)^k does not underflow.
        """
        sigma, least = self.sigma, -math.log1p(-self.sample_rate)
        for dtype, room in ((torch.float32, 85.0), (torch.float64, 700.0)):
            for few in (16, 8, 4):
                if few * least < room and room * sigma - 0.5 * few / sigma > 12.0 * math.sqrt(few):
                    return few, dtype
        return 1, torch.float64

    def _ratios(self, exponents: Tensor, drawn: Tensor, first: int, few: int) -> Tensor:
        """Σ ln F over the steps of ``exponents`` (normal numbers, used up), ``[trials, steps]``; steps from ``first``.

        ``exponents`` has a power of two of steps; what is past the last step of all counts as F = 1.
        """
        q, sigma = self.sample_rate, self.sigma
        width = exponents.shape[1]
        exponents.mul_(1.0 / sigma).sub_(0.5 / sigma**2)
        most = int(drawn.max()) - first
        if most > 0:
            places = torch.arange(first, first + min(most, width), device=exponents.device)
            exponents[:, : places.numel()] += (places < drawn[:, None]).to(exponents.dtype) / sigma**2
        factors = exponents.exp_().mul_(q).add_(1.0 - q)
        if first + width > self.steps:
            factors[:, self.steps - first :] = 1.0
        while few > 1 and width > 1:
            width //= 2
            factors = factors[:, :width].mul_(factors[:, width:])
            few //= 2
        return factors.log_().sum(1, dtype=torch.float64)

    def _compiled(self, fingerprint: str, blocks: NDArray[np.int64], drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        """All blocks in one compiled loop; the noise of each trial has a key of its own."""
        trials = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        keys = seeds.keys(fingerprint, purpose="noise", trials=trials.tolist())
        found = np.empty(trials.size)
        log_ratios = backends.numba_kernels.log_ratios
        log_ratios(keys, self.steps, drawn.ravel(), self.sigma, self.sample_rate, self._few[0], found)
        return found.reshape(drawn.shape)

    def _on_cpu(self, fingerprint: str, block: int, drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        """One block, in pieces that stay in the cache."""
        few, dtype = self._few
        bits = np.random.SFC64(np.random.SeedSequence(seeds.key(fingerprint, purpose="noise", trial=block)))
        total = torch.zeros(BLOCK, dtype=torch.float64)
        counts = torch.from_numpy(drawn)
        for first in range(0, self.steps, _STEPS):
            width = min(_STEPS, 2 ** math.ceil(math.log2(self.steps - first)))
            normals = torch.empty(BLOCK * width, dtype=dtype)
            fill_normals(normals, bits)
            total += self._ratios(normals.view(BLOCK, width), counts, first, few)
        return total.numpy()

    def _on_gpu(
        self, fingerprint: str, blocks: NDArray[np.int64], drawn: NDArray[np.int64], device: torch.device
    ) -> NDArray[np.float64]:
        """Many blocks at a time, each from a generator of its own."""
        few, dtype = self._few
        width = 2 ** math.ceil(math.log2(self.steps))
        together = max(1, _GPU_NUMBERS // (BLOCK * width))
        room = torch.empty((together, BLOCK, width), dtype=dtype, device=device)
        found = []
        generator = torch.Generator(device=device)
        for start in range(0, blocks.size, together):
            part = slice(start, start + together)
            held = room[: blocks[part].size]
            for place, block in zip(held, blocks[part].tolist(), strict=True):
                generator.manual_seed(seeds.key(fingerprint, purpose="noise", trial=block) % 2**64)
                place[:, : self.steps].normal_(generator=generator)
            counts = torch.from_numpy(drawn[part].reshape(-1)).to(device)
            found.append(self._ratios(held.view(-1, width), counts, 0, few).view(-1, BLOCK).cpu().numpy())
        return np.concatenate(found)
