"""Standard normal noise from counter-based streams, one stream a trial.

On a CPU with compiled kernels (:mod:`coalmine.training.backends`) float32 noise comes from Philox-4x32-10. Otherwise
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
from numpy.typing import NDArray
from torch import Tensor

from coalmine import seeds
from coalmine.training.backends import compiled, numba_kernels, triton_kernels

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


def make_noise(
    fingerprint: str, trials: Sequence[int], *, size: int, steps: int, device: torch.device, dtype: torch.dtype
) -> Noise:
    """The noise of these trials for so many steps, from the streams of this kind of device."""
    if compiled(device=device, dtype=dtype):
        return CompiledNoise(fingerprint, trials)
    if device.type == "cpu":
        return CpuNoise(fingerprint, trials, size=size, steps=steps, dtype=dtype)
    return gpu_noise(fingerprint, trials, size=size, device=device, dtype=dtype, purpose="noise")


def gpu_noise(
    fingerprint: str, trials: Sequence[int], *, size: int, device: torch.device, dtype: torch.dtype, purpose: str
) -> Noise:
    """Standard normals on a GPU; each ``purpose`` has streams of its own."""
    if triton_kernels is not None and dtype == torch.float32:
        return KernelNoise(fingerprint, trials, size=size, device=device, purpose=purpose)
    return CudaNoise(fingerprint, trials, held=torch.empty(size, device=device, dtype=dtype), purpose=purpose)


class CudaNoise:
    """Noise from torch's own Philox on the GPU: a generator a trial, keyed by 64 bits of the trial's key."""

    one_at_a_time = True

    def __init__(self, fingerprint: str, trials: Sequence[int], *, held: Tensor, purpose: str) -> None:
        self._held = held
        words = seeds.keys(fingerprint, purpose=purpose, trials=trials)[:, 0].tolist()
        self._generators = [torch.Generator(device=held.device).manual_seed(word) for word in words]

    def add_to(self, gradient: Tensor, *, scale: float, part: slice = ALL) -> None:
        """Add ``scale`` times a fresh vector of standard normals to each row, or to those of ``part``."""
        for row, generator in zip(gradient[part].unbind(0), self._generators[part], strict=True):
            row.add_(self._held.normal_(generator=generator), alpha=scale)


def key_words(fingerprint: str, trials: Sequence[int], *, purpose: str) -> Tensor:
    """64 bits of each trial's key, as the kernels of a GPU take them."""
    return torch.from_numpy(seeds.keys(fingerprint, purpose=purpose, trials=trials)[:, 0].copy().view(np.int64))


class KernelNoise:
    """Noise from one Triton kernel for the whole stack: Philox-4x32-10 of (64 bits of the trial's key, step, place)."""

    one_at_a_time = False

    def __init__(
        self, fingerprint: str, trials: Sequence[int], *, size: int, device: torch.device, purpose: str
    ) -> None:
        self._keys = key_words(fingerprint, trials, purpose=purpose).to(device)
        self._size, self._step = size, 0

    def add_to(self, gradient: Tensor, *, scale: float, part: slice = ALL) -> None:
        """Add ``scale`` times a fresh vector of standard normals to each row."""
        assert part == ALL
        self._step += 1
        quarter = -(-self._size // 4)
        triton_kernels.add_noise[(gradient.shape[0], -(-quarter // _LANES))](
            gradient, gradient.stride(0), self._size, quarter, self._keys, self._step, scale, LANES=_LANES
        )


def row_storage(rows: Tensor) -> NDArray[np.float32]:
    """Rows with the padding behind each: always contiguous, so that the kernels are compiled once."""
    stride = rows.stride(0)
    return rows.as_strided((rows.shape[0], stride), (stride, 1)).numpy()


class CompiledNoise:
    """Noise from Philox-4x32-10: for each trial, step and place a counter of its own, so nothing is ever carried."""

    one_at_a_time = False

    def __init__(self, fingerprint: str, trials: Sequence[int]) -> None:
        self._keys = seeds.keys(fingerprint, purpose="noise", trials=trials)
        self._step = 0

    def add_to(self, gradient: Tensor, *, scale: float | Tensor, part: slice = ALL) -> None:
        """Add ``scale`` (one for all, or one a row) times a fresh vector of standard normals to each row."""
        assert part == ALL
        self._step += 1
        scales = np.empty(len(self._keys), dtype=np.float32)
        scales[:] = scale
        numba_kernels.add_noise(row_storage(gradient), gradient.shape[1], self._keys, self._step, scales)


class CpuNoise:
    """Noise from NumPy's Philox, a generator a trial, keyed by all 128 bits of the trial's key.

    A small model draws the noise of several steps in one go; a large one draws a step at a time, while the row it is
    added to is in the cache.
    """

    def __init__(self, fingerprint: str, trials: Sequence[int], *, size: int, steps: int, dtype: torch.dtype) -> None:
        self._size = size
        self._ahead = max(1, min(steps, _CHUNK // size))
        self.one_at_a_time = self._ahead == 1
        self._left = 0
        self._bits = [np.random.Philox(key=seeds.key(fingerprint, purpose="noise", trial=t)) for t in trials]
        self._angle = torch.empty(-(-self._ahead * size // 2), dtype=dtype)
        self._held = torch.empty((len(trials) if self._ahead > 1 else 1, 2 * self._angle.numel()), dtype=dtype)

    def add_to(self, gradient: Tensor, *, scale: float, part: slice = ALL) -> None:
        """Add ``scale`` times a fresh vector of standard normals to each row, or to those of ``part``."""
        if self.one_at_a_time:
            vector = self._held[0, : self._size]
            for row, bits in zip(gradient[part].unbind(0), self._bits[part], strict=True):
                fill_normals(self._held[0], bits, angle=self._angle)
                row.add_(vector, alpha=scale)
            return
        assert part == ALL
        if self._left == 0:
            for held, bits in zip(self._held.unbind(0), self._bits, strict=True):
                fill_normals(held, bits, angle=self._angle)
            self._left = self._ahead
        self._left -= 1
        start = self._left * self._size
        gradient.add_(self._held[:, start : start + self._size], alpha=scale)


def fill_normals(out: Tensor, bits: np.random.BitGenerator, *, angle: Tensor | None = None) -> None:
    """Fill a vector of even length with standard normals by the Box-Muller transform of 64-bit words.

    z = r·cos θ and r·sin θ with r = √(−2·ln u), u in (0, 1] and θ in [−π, π]; the kernels of both devices write the
    same in their own languages. ``angle`` is memory for half as many numbers.
    """
    pairs = out.numel() // 2
    if out.dtype == torch.float32:
        words, unit = bits.random_raw(pairs).view(np.int32), 2.0**-31
    else:
        words, unit = bits.random_raw(2 * pairs).view(np.int64), 2.0**-63
    raw = torch.from_numpy(words)
    radius, second = out[:pairs], out[pairs:]
    angle = torch.empty_like(radius) if angle is None else angle
    radius.copy_(raw[:pairs])
    angle.copy_(raw[pairs:])
    # |integer| keeps every small u apart; half a unit keeps u above 0, and 1 plus half a unit rounds to 1.
    radius.abs_().mul_(unit).add_(unit / 2).log_().mul_(-2.0).sqrt_()
    angle.mul_(math.pi * unit)
    torch.sin(angle, out=second)
    second.mul_(radius)
    radius.mul_(angle.cos_())
