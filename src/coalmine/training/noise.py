"""Standard normal noise from counter-based streams, one stream a trial.

On a CPU with compiled kernels (:mod:`coalmine.training.compiled`) float32 noise comes from Philox-4x32-10. Otherwise
the bits come from NumPy's Philox-4x64-10, keyed by (fingerprint, trial), and the Box-Muller transform runs on whole
vectors in torch. A 31-bit uniform puts the largest value at √(−2·ln 2⁻³²) = 6.66 standard deviations, and
the distribution differs from the normal by less than 2⁻³⁰ (float64: 63 bits, 9.4 standard deviations). On a GPU the
bits are those of Philox-4x32-10 (a Triton kernel; torch's own generator for float64 or without Triton), so the
kinds of device draw different noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coalmine import seeds
from coalmine.training import compiled

try:
    from coalmine.training import kernels
except ImportError:  # Triton comes with torch's GPU builds alone
    kernels = None  # type: ignore[assignment]

_LANES = 256  # of a program of the noise kernel, four numbers each
_CHUNK = 16_384
"""Small models draw the noise of several steps in one go, about this many numbers at a time."""


ALL = slice(None)


class Noise(Protocol):
    """Noise for S trials, step by step."""

    one_at_a_time: bool
    """Whether a trial's noise may be added apart from the others', while its row is in the cache."""

    def add_to(self, gradient: Tensor, *, scale: float, part: slice = ALL) -> None:
        """Add ``scale`` times a fresh vector of standard normals to each row of ``[S, P]``, or to those of ``part``."""
        ...


def make_noise(
    fingerprint: str, trials: Sequence[int], *, size: int, steps: int, device: torch.device, dtype: torch.dtype
) -> Noise:
    """The noise of these trials for so many steps, from the streams of this kind of device."""
    if compiled.usable(device=device, dtype=dtype):
        return compiled.CompiledNoise(fingerprint, trials)
    if device.type == "cpu":
        return CpuNoise(fingerprint, trials, size=size, steps=steps, dtype=dtype)
    return gpu_noise(fingerprint, trials, size=size, device=device, dtype=dtype, purpose="noise")


def gpu_noise(
    fingerprint: str, trials: Sequence[int], *, size: int, device: torch.device, dtype: torch.dtype, purpose: str
) -> Noise:
    """Standard normals on a GPU; each ``purpose`` has streams of its own."""
    if kernels is not None and dtype == torch.float32:
        return KernelNoise(fingerprint, trials, size=size, device=device, purpose=purpose)
    return CudaNoise(fingerprint, trials, size=size, device=device, dtype=dtype, purpose=purpose)


class CudaNoise:
    """Noise from torch's own Philox on the GPU: a generator a trial, keyed by 64 bits of the trial's key."""

    one_at_a_time = True

    def __init__(
        self,
        fingerprint: str,
        trials: Sequence[int],
        *,
        size: int,
        device: torch.device,
        dtype: torch.dtype,
        purpose: str,
    ) -> None:
        self._held = torch.empty(size, device=device, dtype=dtype)
        self._generators = []
        for trial in trials:
            generator = torch.Generator(device=device)
            generator.manual_seed(seeds.key(fingerprint, purpose=purpose, trial=trial) % 2**64)
            self._generators.append(generator)

    def add_to(self, gradient: Tensor, *, scale: float, part: slice = ALL) -> None:
        """Add ``scale`` times a fresh vector of standard normals to each row, or to those of ``part``."""
        for row, generator in zip(gradient[part].unbind(0), self._generators[part], strict=True):
            row.add_(self._held.normal_(generator=generator), alpha=scale)


class KernelNoise:
    """Noise from one Triton kernel for the whole stack: Philox-4x32-10 of (64 bits of the trial's key, step, place)."""

    one_at_a_time = False

    def __init__(
        self, fingerprint: str, trials: Sequence[int], *, size: int, device: torch.device, purpose: str
    ) -> None:
        keys = [seeds.key(fingerprint, purpose=purpose, trial=trial) % 2**64 for trial in trials]
        self._keys = torch.from_numpy(np.array(keys, dtype=np.uint64).view(np.int64)).to(device)
        self._size, self._step = size, 0

    def add_to(self, gradient: Tensor, *, scale: float, part: slice = ALL) -> None:
        """Add ``scale`` times a fresh vector of standard normals to each row."""
        assert part == ALL
        self._step += 1
        quarter = -(-self._size // 4)
        kernels.add_noise[(gradient.shape[0], -(-quarter // _LANES))](
            gradient, gradient.stride(0), self._size, quarter, self._keys, self._step, scale, LANES=_LANES
        )


class CpuNoise:
    """Noise from NumPy's Philox, a generator a trial, keyed by all 128 bits of the trial's key.

    A small model draws the noise of several steps in one go; a large one draws a step at a time, while the row it is
    added to is in the cache.
    """

    def __init__(self, fingerprint: str, trials: Sequence[int], *, size: int, steps: int, dtype: torch.dtype) -> None:
        self._size, self._dtype = size, dtype
        self._ahead = max(1, min(steps, _CHUNK // size))
        self.one_at_a_time = self._ahead == 1
        self._left = 0
        self._bits = [np.random.Philox(key=seeds.key(fingerprint, purpose="noise", trial=t)) for t in trials]
        self._pairs = -(-self._ahead * size // 2)
        self._angle = torch.empty(self._pairs, dtype=dtype)
        self._held = torch.empty((len(trials) if self._ahead > 1 else 1, 2 * self._pairs), dtype=dtype)

    def add_to(self, gradient: Tensor, *, scale: float, part: slice = ALL) -> None:
        """Add ``scale`` times a fresh vector of standard normals to each row, or to those of ``part``."""
        if self.one_at_a_time:
            vector = self._held[0, : self._size]
            for row, bits in zip(gradient[part].unbind(0), self._bits[part], strict=True):
                self._fill(self._held[0], bits)
                row.add_(vector, alpha=scale)
            return
        assert part == ALL
        if self._left == 0:
            for held, bits in zip(self._held.unbind(0), self._bits, strict=True):
                self._fill(held, bits)
            self._left = self._ahead
        self._left -= 1
        start = self._left * self._size
        gradient.add_(self._held[:, start : start + self._size], alpha=scale)

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
