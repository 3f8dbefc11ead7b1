"""The encoding attack in numbers: its constants, the law of the final cells, and the test that reads them.

Everything is counted in units of ηC/B, what one use of the canary adds to a cell: noise of standard deviation σ comes
in at every step, and n repeaters, K ~ Binomial(n, q) of which are drawn, move the model by at most B = nq units, give
or take K/B. With κ_t = K_t/B the cell of step t holds, when it is written,

    x_t = A_t + σ·√w_t·ξ_t,   w_t = 1 + (1 − κ_t)²·w_{t−1},   w_0 = 0

(the repeaters clear what noise there was, up to the factor 1 − κ). At step t + 1 the repeaters rewrite it:

    linear    to V·x_t, and never touch it again:  y_t = x_t·(1 + (V − 1)·κ_{t+1}) + σ·√(T − t)·ζ_t
    one-bit   to ±V by the test x_t ≥ τ, and hold it there to the end: only the sign counts

The last cell is read as it was written. Given the κ's, all cells are independent.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine import _validate
from coalmine.adversaries.attack import DrawnScores
from coalmine.errors import InvalidInputError
from coalmine.theory import bits
from coalmine.training import log_mixture

Array = NDArray[np.float64]

FORMS = ("linear", "one-bit")
FAILURE = 1e-9
"""How likely one trial may fail any objective of the repeaters, at most."""
_ROOMY = 1e5
"""Expected batch sizes start here: what repeaters are off by is then 0.3 % of what they do."""
_LOSS = 0.01
"""By how much, relative to σ², leftovers and later noise may widen a cell (linear form)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodingLaw(DrawnScores):
    """The constants of the construction; :func:`choose` finds them."""

    form: str
    steps: int
    sample_rate: float
    noise: float
    rows: int
    amplification: float
    threshold: float = 0.0

    @property
    def batch(self) -> float:
        """B, the expected number of repeaters in a step."""
        return self.rows * self.sample_rate

    def score(self, cells: Array) -> float:
        """The log-likelihood ratio of what the T cells of a final model hold, in units."""
        if self.form == "one-bit":
            ones = int(np.count_nonzero(cells[:-1] > 0.0)) + int(cells[-1] >= self.threshold)
            return self._count_score(ones)
        values = cells / self.amplification
        values[-1] = cells[-1]
        return self._value_score(values)

    def draw(self, stream: np.random.Generator, *, canary: bool) -> float:
        """The score of one trial, from the law of its cells alone."""
        share = stream.binomial(self.rows, self.sample_rate, size=self.steps) / self.batch
        # w by its own equation, until it stands still: every round gains the factor (1 − κ)² < 1.
        left = (1.0 - share) ** 2
        widen = np.ones(self.steps)
        for _ in range(self.steps):
            before = widen
            widen = np.ones(self.steps)
            widen[1:] += left[1:] * before[:-1]
            if (widen == before).all():
                break
        written = self.noise * np.sqrt(widen) * stream.standard_normal(self.steps)
        if canary:
            written += stream.random(self.steps) < self.sample_rate
        if self.form == "one-bit":
            return self._count_score(int(np.count_nonzero(written >= self.threshold)))
        later = self.noise * np.sqrt(np.arange(self.steps - 1, 0, -1)) * stream.standard_normal(self.steps - 1)
        written[:-1] = (written[:-1] * (1.0 + (self.amplification - 1.0) * share[1:]) + later) / self.amplification
        return self._value_score(written)

    def _value_score(self, values: Array) -> float:
        """Σ_t ln(1 − q + q·exp((x_t − ½)/s_t²))."""
        return float(log_mixture((values - 0.5) / self.variances, sample_rate=self.sample_rate).sum())

    @property
    def variances(self) -> Array:
        """s_t²: the noise of each cell as it is read, leftovers and later noise included."""
        later = np.arange(self.steps - 1, -1, -1) / self.amplification**2 if self.form == "linear" else 0.0
        return np.asarray(self.noise**2 * (1.0 + (1.0 - self.sample_rate) / self.batch + later), dtype=np.float64)

    def _count_score(self, ones: int) -> float:
        """The ratio of the two binomials; it grows with the number of ones."""
        p0, p1 = bits.rates(self.threshold, sample_rate=self.sample_rate, noise_multiplier=self.noise)
        return ones * (math.log(p1) - math.log(p0)) + (self.steps - ones) * (math.log1p(-p1) - math.log1p(-p0))


def choose(
    *,
    form: str,
    steps: int,
    sample_rate: float,
    noise: float,
    batch_size: float | None = None,
    amplification: float | None = None,
    threshold: float | None = None,
    delta: float = 1e-5,
) -> EncodingLaw:
    """Constants for which every objective of the repeaters holds, or an error that says which one does not.

    >>> law = choose(form="linear", steps=100, sample_rate=0.01, noise=0.4645)
    >>> round(law.amplification), round(law.batch)
    (1000, 100000)
    """
    reach = 1.0 + _tail(steps) * noise * 1.01  # no |x_t| is larger, but with probability FAILURE/4
    if amplification is None:
        amplification = 100.0 * math.sqrt(steps) if form == "linear" else 4.0 * reach
    if form == "one-bit" and threshold is None:
        threshold = bits.best_threshold(sample_rate=sample_rate, noise_multiplier=noise, steps=steps, delta=delta)[0]
    needed = _needed_batch(form, steps=steps, noise=noise, reach=reach, amplification=amplification)
    batch = max(2.0 * needed, _ROOMY) if batch_size is None else batch_size
    if batch < needed:
        raise _validate.reject(
            "batch_size",
            batch_size,
            f"at least {math.ceil(needed)}: a smaller batch of repeaters would be clipped, and the record of earlier "
            "steps lost",
        )
    law = EncodingLaw(
        form=form,
        steps=steps,
        sample_rate=sample_rate,
        noise=noise,
        rows=math.ceil(batch / sample_rate - 1e-9),
        amplification=amplification,
        threshold=threshold or 0.0,
    )
    _check(law, reach)
    return law


def _tail(steps: int) -> float:
    """z with T·Pr[|N(0, 1)| > z] at most FAILURE/4."""
    return float(-special.ndtri(FAILURE / (8.0 * steps)))


def _needed_batch(form: str, *, steps: int, noise: float, reach: float, amplification: float) -> float:
    """The norm, in units, that the repeaters' update stays below in all T steps: one rewrite, noise in all other cells.

    The squared noise of T cells is σ²·χ²_T; its quantile is a bound for every step at once.
    """
    spread = noise * math.sqrt(1.02 * float(special.chdtri(steps, FAILURE / (4.0 * steps))))
    rewrite = (amplification - 1.0) * reach if form == "linear" else amplification + reach
    return math.hypot(rewrite, spread)


def _check(law: EncodingLaw, reach: float) -> None:
    """Every objective but the clipping, which :func:`choose` has looked at."""
    off = _tail(law.steps) * math.sqrt((1.0 - law.sample_rate) / law.batch) if law.sample_rate < 1.0 else 0.0
    if off >= 0.1:
        raise InvalidInputError(
            f"batch_size = {law.batch:g} is not allowed: expected more, because the number of repeaters in a step "
            f"would be off by up to {100 * off:.0f} %, and old noise would stay in the cells"
        )
    if law.form == "linear":
        later = (law.steps - 1) / law.amplification**2
        gain = (1.0 - law.sample_rate) / law.batch * reach**2 / law.noise**2
        if later + gain > _LOSS:
            raise _validate.reject(
                "amplification" if later > gain else "batch_size",
                law.amplification if later > gain else law.batch,
                f"more: later noise and uneven amplification would widen a cell by {100 * (later + gain):.2g} %, over "
                f"{100 * _LOSS:g} %",
            )
        return
    p0, p1 = bits.rates(law.threshold, sample_rate=law.sample_rate, noise_multiplier=law.noise)
    if not 0.0 < p0 < p1 < 1.0:
        raise _validate.reject("threshold", law.threshold, "a value that noise alone passes sometimes and not always")
    # The value is V·κ plus what was left of x, and later ±V plus noise: the sign stays if V exceeds both many times.
    if law.amplification * (1.0 - 2.0 * off) <= reach * (1.0 + off):
        raise _validate.reject(
            "amplification", law.amplification, f"more than {reach:.3g}: noise could turn a stored sign round"
        )
