"""What the other rows and the noise do to a step, and rows that are weighed against it."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine.training import Dataset, Network, PartSums, TrainingConfig, dots, in_parts, one_thread, whole_lines

MOST_DIRECTIONS = 16
_PARTS = 64
"""How many parts the other rows are cut into where their sums tell a model's own background."""
_MOST_NUMBERS = {"cpu": 2**26, "cuda": 2**29}
"""Sums of parts that are held at a time, in numbers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Background:
    """What the other rows and the noise do to a step: Σ = noise·I + Σ_k variance_k·u_k u_kᵀ.

    ``directions`` are the leading u_k, orthonormal, ``[k, P]``; ``variances`` those of the other rows along them.
    """

    directions: NDArray[np.float64]
    variances: NDArray[np.float64]
    noise: float
    looks: ClassVar[int] = 0
    """How often the models were looked at."""

    def renews(self, step: int) -> bool:
        """Never: it is known before the first step."""
        return False

    def renew(self, step: int, models: Tensor) -> None:
        """Nothing: it is the same for every model."""

    def forget(self) -> None:
        """Nothing: it belongs to no model."""

    def whiten(self, gradients: Tensor) -> Tensor:
        """Σ⁻¹·g for each line of ``[S, P]``, in float64; no line depends on the others."""
        return in_parts(self._whiten, gradients)

    def strengths(self, gradients: Tensor) -> Tensor:
        """d² = gᵀ Σ⁻¹ g for each line, ``[S]``."""
        return in_parts(self._strengths, gradients)

    def _whiten(self, gradients: Tensor) -> Tensor:
        wide, parts = self._parts(gradients)
        directions = torch.as_tensor(self.directions, device=wide.device)
        if wide.device.type != "cpu":
            return (wide - parts @ directions) / self.noise
        along = [part @ directions for part in parts.unbind(0)]
        return (wide - torch.stack(along)) / self.noise if along else wide

    def _strengths(self, gradients: Tensor) -> Tensor:
        wide, parts = self._parts(gradients)
        shares = torch.as_tensor(self._shares, device=wide.device)
        return (whole_lines(wide * wide).sum(1) - whole_lines(parts * parts / shares).sum(1)) / self.noise

    @property
    def _shares(self) -> NDArray[np.float64]:
        """How much of a direction's part the other rows hide."""
        return self.variances / (self.variances + self.noise)

    def _parts(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The lines in float64, and what the other rows hide of each along each direction, ``[S, k]``."""
        wide = gradients.double()
        directions = torch.as_tensor(self.directions, device=wide.device)
        shares = torch.as_tensor(self._shares, device=wide.device)
        if wide.device.type != "cpu":
            return wide, (wide @ directions.T) * shares
        # On a CPU a product of a line's own, from memory that begins on a cache line: the same bits in every stack.
        lines = [directions @ line.clone() for line in wide.unbind(0)]
        return wide, (torch.stack(lines) if lines else wide.new_zeros((0, len(self.variances)))) * shares


class _Look(NamedTuple):
    """What the other rows do at some models."""

    models: Tensor
    total: Tensor
    """Σ_i g_i, ``[S, P]``."""
    directions: Tensor
    """``[S, k, P]``."""
    shares: Tensor
    """How much the other rows hide of each direction, ``[S, k]``."""


class OwnBackground:
    """Σ and Σ_i g_i at the very models that are watched, looked at anew at steps 1, 2, 4, … and at every ``every``-th.

    With ``last``, the number of a step, also there.

    Networks that start from weights of their own have units of their own, so what the other rows do to one says
    nothing of another. The N base rows are cut into J = 64 parts by chance (into single rows where there are fewer).
    With s_j the sum of the clipped gradients of part j and G = Σ_j s_j that of all,

        q(1 − q)·Σ_i g_i g_iᵀ ≈ q(1 − q)·(J(N − 1)/((J − 1)N)·Σ_j (s_j − G/J)(s_j − G/J)ᵀ + G Gᵀ/N),

    right in the mean over ways to cut, and exactly with single rows. Its 16 leading directions are kept. Parts rather
    than some rows: late in a training few rows have long gradients, which a sample would miss, and G needs all anyway.
    """

    def __init__(
        self,
        base: Dataset,
        *,
        network: Network,
        training: TrainingConfig,
        noise: float,
        every: int,
        stream: np.random.Generator,
        last: int | None = None,
    ) -> None:
        """``noise``: σ²C²; ``stream`` cuts the parts."""
        self.noise, self._every, self._last = noise, every, last
        self._rows = base.rows
        parts = np.array_split(stream.permutation(base.rows), min(_PARTS, base.rows))
        self._count = len(parts)
        self._parts = PartSums(network, dataset=base, parts=parts, config=training)
        rate = training.rate(base.rows)
        self._spread = rate * (1.0 - rate)
        self.looks = 0
        self._seen: _Look | None = None

    def renews(self, step: int) -> bool:
        """Whether this step's models are looked at: models change fast at first."""
        early = step < self._every and step & (step - 1) == 0
        return early or (step - 1) % self._every == 0 or step == self._last

    def renew(self, step: int, models: Tensor) -> None:
        """Look at the models before this step, if it is one at which they are; once, whoever asks first."""
        if not self.renews(step):
            return
        known = self._seen
        if known is not None and known.models.device == models.device and torch.equal(known.models, models):
            return
        del known
        self.forget()  # its room is needed, and a look that does not come to its end must leave nothing
        number, size = models.shape
        kept = min(MOST_DIRECTIONS, self._count + 1)
        wide = models.new_empty((number, size), dtype=torch.float64)
        shares = models.new_empty((number, kept), dtype=torch.float64)
        seen = _Look(models.clone(), wide, models.new_empty((number, kept, size)), shares)
        most = _MOST_NUMBERS.get(models.device.type, 2**26) // (self._count * size)
        for some in zip(*(torch.split(one, max(1, min(256, most))) for one in seen), strict=True):
            self._look(_Look(*some))
        self._seen = seen
        self.looks += 1

    def forget(self) -> None:
        """Drop what is known of the models: it may be as large as sixteen stacks of them."""
        self._seen = None

    @property
    def total(self) -> Tensor:
        """Σ_i g_i at the models that were looked at, ``[S, P]``."""
        return self._known.total

    @property
    def _known(self) -> _Look:
        if self._seen is None:
            raise RuntimeError("a model's own background is asked before it has looked at the models (renew)")
        return self._seen

    def whiten(self, gradients: Tensor) -> Tensor:
        """Σ⁻¹·g for each line, which is of the model in that place, ``[S, P]``."""
        wide = gradients.double()
        parts = self._along(wide)
        for place, direction in enumerate(self._known.directions.unbind(1)):
            wide = wide - parts[:, place, None] * direction
        return wide / self.noise

    def strengths(self, gradients: Tensor) -> Tensor:
        """d² = gᵀ Σ⁻¹ g for each line, ``[S]``."""
        wide = gradients.double()
        return dots(self.whiten(wide), wide)

    def _along(self, wide: Tensor) -> Tensor:
        """What the other rows hide of each line along each direction, ``[S, k]``."""
        known = self._known
        return torch.stack([dots(direction, wide) for direction in known.directions.unbind(1)], 1) * known.shares

    def _look(self, seen: _Look) -> None:
        """Write down what the other rows do at some models."""
        sums = self._parts.at(seen.models)
        seen.total.zero_()
        for one in sums.unbind(1):
            seen.total.add_(one)
        count, rows = self._count, self._rows
        scale = (self._spread * count * (rows - 1) / (max(count - 1, 1) * rows)) ** 0.5
        with one_thread():
            # One model after the other: a library's product of several might depend on their number.
            for model, (mine, whole) in enumerate(zip(sums.unbind(0), seen.total.unbind(0), strict=True)):
                lines = (mine - whole / count) * scale
                lines = torch.cat([lines, whole[None] * (self._spread / rows) ** 0.5])
                lines = lines.nan_to_num()  # of a model that has diverged: the trainer names it
                values, vectors = torch.linalg.eigh((lines @ lines.T).cpu())
                values, vectors = values.flip(0)[:MOST_DIRECTIONS], vectors.flip(1)[:, :MOST_DIRECTIONS]
                there = values > 1e-10 * values[:1].clamp(min=1e-300)
                weights = vectors * torch.where(there, values, 1.0).rsqrt() * there
                seen.directions[model] = weights.T.to(lines.device).contiguous() @ lines
                seen.shares[model] = torch.where(there, values / (values + self.noise), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A row that the worlds may differ in, and its mean d² at shadow models."""

    x: NDArray[Any]
    y: int
    strength: float
    words: str
