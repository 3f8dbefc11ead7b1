"""Standard normal noise from counter-based streams, one stream a trial.

On a CPU the bits come from NumPy's Philox-4x64-10, keyed by (fingerprint, trial), and the Box-Muller transform runs
on whole vectors in torch. A 31-bit uniform puts the largest value at √(−2·ln 2⁻³²) = 6.66 standard deviations, and
the distribution differs from the normal by less than 2⁻³⁰ (float64: 63 bits, 9.4 standard deviations). On a GPU the
bits are those of torch's own Philox-4x32-10, so the two kinds of device draw different noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coalmine import seeds

_CHUNK = 16_384
"""Small models draw the noise of several steps in one go, about this many numbers at a time."""


class Noise(Protocol):
    """Noise for S trials, vector by vector."""

    def vector(self, position: int) -> Tensor:
        """The next vector of the trial at this position of the stack; valid until the next call."""
        ...


def make_noise(
    fingerprint: str, trials: Sequence[int], *, size: int, device: torch.device, dtype: torch.dtype
) -> Noise:
    """The noise of these trials, from the streams of this kind of device."""
    if device.type == "cpu":
        return CpuNoise(fingerprint, trials, size=size, dtype=dtype)
    return CudaNoise(fingerprint, trials, size=size, device=device, dtype=dtype)


class CudaNoise:
    """Noise from torch's own Philox on the GPU: a generator a trial, keyed by 64 bits of the trial's key."""

    def __init__(
        self, fingerprint: str, trials: Sequence[int], *, size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._held = torch.empty(size, device=device, dtype=dtype)
        self._generators = []
        for trial in trials:
            generator = torch.Generator(device=device)
            generator.manual_seed(seeds.key(fingerprint, purpose="noise", trial=trial) % 2**64)
            self._generators.append(generator)

    def vector(self, position: int) -> Tensor:
        """The next vector of the trial at this position of the stack; valid until the next call."""
        return self._held.normal_(generator=self._generators[position])


class CpuNoise:
    """Noise for S trials, step by step: ``next()`` gives, for each trial, a fresh vector of P standard normals."""

    def __init__(self, fingerprint: str, trials: Sequence[int], *, size: int, dtype: torch.dtype) -> None:
        self._size = size
        self._ahead = max(1, _CHUNK // size)
        self._bits = [np.random.Philox(key=seeds.key(fingerprint, purpose="noise", trial=t)) for t in trials]
        self._pairs = -(-self._ahead * size // 2)
        self._dtype = dtype
        self._angle = torch.empty(self._pairs, dtype=dtype)
        held = len(trials) if self._ahead > 1 else 1
        self._held = torch.empty((held, 2 * self._pairs), dtype=dtype)
        self._left = [0] * len(trials)

    def vector(self, position: int) -> Tensor:
        """The next vector of the trial at this position of the stack; valid until the next call."""
        row = self._held[position if self._ahead > 1 else 0]
        if self._left[position] == 0:
            self._fill(row, self._bits[position])
            self._left[position] = self._ahead
        self._left[position] -= 1
        start = self._left[position] * self._size
        return row[start : start + self._size]

    def _fill(self, out: Tensor, bits: np.random.Philox) -> None:
        """Box-Muller: r = √(−2·ln u), z = r·cos θ and r·sin θ, with u in (0, 1] and θ in [−π, π]."""
        pairs = self._pairs
        if self._dtype == torch.float32:
            words, unit = bits.random_raw(pairs).view(np.int32), 2.0**-31
        else:
            words, unit = bits.random_raw(2 * pairs).view(np.int64), 2.0**-63
        raw = torch.from_numpy(words)
        radius, angle = out[:pairs], self._angle
        second = out[pairs:]
        radius.copy_(raw[:pairs])
        angle.copy_(raw[pairs:])
        # |integer| keeps every small u apart; half a unit keeps u above 0, and 1 plus half a unit rounds to 1.
        radius.abs_().mul_(unit).add_(unit / 2).log_().mul_(-2.0).sqrt_()
        angle.mul_(math.pi * unit)
        torch.sin(angle, out=second)
        second.mul_(radius)
        radius.mul_(angle.cos_())
