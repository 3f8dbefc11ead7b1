"""``watch``: an anytime monitor of the noise in a live training, which leaves the training alone to the last bit.

In each step a fair coin decides whether a canary gradient of norm C would be in the sum. The private gradient of the
training is only read: with the canary it *would* have been that gradient plus the canary, and without it is that
gradient. Both are what the mechanism releases, so forecasts of the coin from it must be as bad as the claimed noise
makes them, given all that happened before (:mod:`.forecasts`). What the other rows add along the canary's direction is
known to the adversary of differential privacy; where the optimizer tells it (Opacus does), it is subtracted.

The canary's direction is a vector of random signs, one for each tensor, drawn from a generator of its own like the
coins: the training's generators are not touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from coalmine import _validate
from coalmine.bounds.anytime import anytime_limit
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.probing import forecasts
from coalmine.records import DpSgd, LowerBound, Outcome, Power, Relation, Verdict, plain

Array = NDArray[np.float64]

_STATE = ("center", "before", "seen", "wrong", "squares")
_CENTER, _BEFORE, _SEEN, _WRONG, _SQUARES = range(len(_STATE))
"""What is kept for a tensor: where its scores lie, the last one, how many, wrong guesses, and the sum of squares."""
_ENOUGH_POWER = 0.9
_SLOWEST = 0.02
"""The center of scores whose other part is not known follows the last 50 steps."""


class Watch:
    """The monitor itself: give it every private gradient sum, and ask when you like.

    >>> noise = np.random.default_rng(0)
    >>> monitor = Watch(noise_multiplier=1.0, seed=0)
    >>> for _ in range(150):  # a training that adds half the noise that it claims
    ...     _ = monitor.step(0.5 * noise.normal(size=10), clipped_sum=np.zeros(10))
    >>> monitor.verdict.outcome.value, monitor.refuted_at
    ('refuted', 85)
    """

    def __init__(
        self,
        *,
        noise_multiplier: float,
        max_grad_norm: float = 1.0,
        level: float = 0.01,
        seed: int | None = None,
        when_refuted: Callable[[Watch], None] | None = None,
    ) -> None:
        self.noise_multiplier = _validate.positive("noise_multiplier", noise_multiplier)
        self.max_grad_norm = _validate.positive("max_grad_norm", max_grad_norm)
        self.level = _validate.open_unit("level", level)
        self.refuted_at: int | None = None
        self.steps = 0
        self._coins = np.random.default_rng(seed)
        self._signs: dict[str, Array] = {}
        self._when_refuted = when_refuted
        self._log_e = 0.0
        # One row for each tensor, in the order of their names.
        self._names: list[str] = []
        self._wealth = np.zeros((0, len(forecasts.FRACTIONS) + 1))
        self._state = np.zeros((0, len(_STATE)))
        self._release: list[Callable[[], None]] = []

    def step(
        self,
        private_sum: ArrayLike | Mapping[str, ArrayLike],
        *,
        clipped_sum: ArrayLike | Mapping[str, ArrayLike] | None = None,
        noise_multiplier: float | None = None,
        max_grad_norm: float | None = None,
    ) -> float:
        """One step of the training: the sum of clipped gradients with its noise, before any division.

        Args:
            private_sum: An array, or one for each tensor by name.
            clipped_sum: The same without noise, where it is known: it makes the monitor sharper, never wrong.
            noise_multiplier: What is claimed for this step, if it changes on the way.
            max_grad_norm: The clipping norm of this step, if it changes on the way.

        Returns:
            The evidence so far (:attr:`e_value`).
        """
        norm = self.max_grad_norm if max_grad_norm is None else _validate.positive("max_grad_norm", max_grad_norm)
        private, known = _named(private_sum), None if clipped_sum is None else _named(clipped_sum)
        if known is not None and known.keys() != private.keys():
            raise InvalidInputError(f"clipped_sum has tensors {sorted(known)}: expected {sorted(private)}")
        along = {name: self._along(name, value) / norm for name, value in private.items()}
        other = None if known is None else {name: self._along(name, value) / norm for name, value in known.items()}
        return self.observe(along, other, noise_multiplier=noise_multiplier)

    def observe(
        self,
        along: Mapping[str, float],
        known: Mapping[str, float] | None = None,
        *,
        noise_multiplier: float | None = None,
    ) -> float:
        """One step, already projected: the private sum along a unit vector in clipping norms, for each tensor.

        A number that is not finite is left out: that is for the training to deal with.
        """
        claimed = self.noise_multiplier
        if noise_multiplier is not None:
            claimed = _validate.positive("noise_multiplier", noise_multiplier)
        names = [name for name, value in along.items() if math.isfinite(value)]
        if names:
            values = np.array([along[name] for name in names])
            others = None if known is None else np.array([known[name] for name in names])
            self._bet(self._places(names), values, others, claimed)
        self.steps += 1
        if self._names:
            self._log_e = float(special.logsumexp(forecasts.log_evidence(self._wealth)) - math.log(len(self._names)))
        if self.refuted_at is None and self._log_e >= -math.log(self.level):
            self.refuted_at = self.steps
            if self._when_refuted is not None:
                self._when_refuted(self)
        return self.e_value

    @property
    def log_e_value(self) -> float:
        """The natural logarithm of :attr:`e_value`."""
        return self._log_e

    @property
    def e_value(self) -> float:
        """The evidence against the claimed noise so far: what a fair bettor would have made of 1.

        If the claim holds, it ever reaches 1/level with a chance of at most level, however often one looks.
        """
        return math.exp(min(self._log_e, 700.0))

    @property
    def verdict(self) -> Verdict:
        """Refuted for good once the evidence reached 1/level; consistent if half the noise would have been found."""
        power = Power(alternative="half the claimed noise in every tensor", probability=self._power())
        if self.refuted_at is not None:
            outcome, reason = Outcome.REFUTED, f"{self._sentence()} {self._weakest()}"
        elif power.probability >= _ENOUGH_POWER:
            outcome, reason = Outcome.CONSISTENT, self._sentence()
        else:
            outcome = Outcome.INCONCLUSIVE
            reason = (
                f"{self._sentence()} Half the noise would have been found with probability {power.probability:.2f}: "
                "watch longer."
            )
        return Verdict(outcome=outcome, confidence=1.0 - self.level, reasons=(reason,), power=power)

    def bound(self, *, delta: float = 1e-5, sample_rate: float = 1.0, steps: int | None = None) -> LowerBound:
        """What the guesses so far prove about a training of ``steps`` such steps, each row drawn at ``sample_rate``.

        A guess "in" is a score above ½. Its error rate has a limit that holds at all times at once, and a Gaussian
        mechanism with so small an error has noise of at most σ* = 1/(2·Φ⁻¹(1 − limit)). ε is that of DP-SGD with σ*,
        rounded down (Nasr et al. 2023: the noise of one step is bounded, then composed).
        """
        steps = max(1, self.steps) if steps is None else _validate.integer("steps", steps, at_least=1)
        counts = [(int(wrong), int(seen)) for wrong, seen in self._state[:, (_WRONG, _SEEN)] if seen]
        if not counts:
            raise InvalidInputError("nothing was watched yet: expected at least one step")
        limits = [anytime_limit(wrong, seen, level=self.level / len(counts)) for wrong, seen in counts]
        limit, (wrong, seen) = min(zip(limits, counts, strict=True))
        sigma = 0.5 / float(-special.ndtri(limit)) if limit < 0.5 else math.inf
        value = 0.0
        if math.isfinite(sigma) and sigma < 1e4:
            from coalmine.accounting import standard

            composed = DpSgd(sample_rate=sample_rate, noise_multiplier=sigma, steps=steps)
            value = standard.epsilon_at_least(composed, delta=_validate.open_unit("delta", delta))
        return LowerBound(
            epsilon=value,
            delta=delta,
            confidence=1.0 - self.level,
            method="watch",
            threshold_rule="fixed before the first step",
            trials=(seen - seen // 2, seen // 2),
            relation=Relation.ADD_REMOVE,
            copies=1,
            assumptions=(
                f"all {steps} steps are like those that were watched: Gaussian mechanisms with the same noise",
                f"each row is drawn by Poisson sampling at rate {sample_rate:g}; every iterate may be seen",
                "valid at any moment, however the moment was chosen",
            ),
            details={"noise_multiplier": sigma, "wrong_guesses": wrong, "guesses": seen},
        )

    def in_words(self) -> str:
        """The verdict, for a log."""
        verdict = self.verdict
        return f"{str(verdict).capitalize()}: {verdict.reasons[0]}"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "kind": "watch",
            "verdict": self.verdict.to_dict(),
            "steps": self.steps,
            "log_e_value": self._log_e,
            "refuted_at": self.refuted_at,
            "noise_multiplier": self.noise_multiplier,
            "level": self.level,
            "tensors": {
                name: plain({"log_e_value": log_e, "guesses": int(row[_SEEN]), "wrong": int(row[_WRONG])})
                for name, log_e, row in zip(self._names, forecasts.log_evidence(self._wealth), self._state, strict=True)
            },
        }

    def close(self) -> None:
        """Let go of the optimizer. What was seen stays."""
        for release in self._release:
            release()
        self._release.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def new_signs(self, size: int) -> Array:
        """A unit vector of random signs: the direction of a canary."""
        return np.asarray((2.0 * self._coins.integers(0, 2, size) - 1.0) / math.sqrt(size))

    def _along(self, name: str, value: Array) -> float:
        """The component along this tensor's canary."""
        if name not in self._signs:
            self._signs[name] = self.new_signs(value.size)
        signs = self._signs[name]
        if signs.size != value.size:
            raise InvalidInputError(f"the private gradient of {name!r} has {value.size} numbers: expected {signs.size}")
        return float(signs @ value.ravel())

    def _places(self, names: list[str]) -> NDArray[np.intp]:
        """The rows of these tensors; new ones start with a stake of 1."""
        new = [name for name in names if name not in self._names]
        if new:
            self._names += new
            self._wealth = np.vstack([self._wealth, np.zeros((len(new), self._wealth.shape[1]))])
            fresh = np.zeros((len(new), len(_STATE)))
            fresh[:, (_CENTER, _BEFORE)] = np.nan
            self._state = np.vstack([self._state, fresh])
        return np.array([self._names.index(name) for name in names])

    def _bet(self, rows: NDArray[np.intp], along: Array, known: Array | None, claimed: float) -> None:
        """All bets of all tensors on one step."""
        state = self._state[rows]
        coins = (self._coins.random(rows.size) < 0.5).astype(np.float64)
        residuals = along - (state[:, _CENTER] if known is None else known)
        placed = np.isfinite(residuals)  # not in the first step, where the center is not known yet
        factors = forecasts.log_factors(np.where(placed, residuals, 0.0), state[:, _BEFORE], coins, claimed=claimed)
        self._wealth[rows] += np.where(placed[:, None], factors, 0.0)
        state[:, _SEEN] += placed
        state[:, _WRONG] += placed & ((residuals + coins > 0.5) != (coins > 0.5))
        state[:, _SQUARES] += np.where(placed, residuals / claimed, 0.0) ** 2
        state[:, _BEFORE] = residuals
        pace = np.maximum(_SLOWEST, 1.0 / (state[:, _SEEN] + 1.0))
        first = np.isnan(state[:, _CENTER])
        moved = np.where(first, along, state[:, _CENTER]) * (1.0 - pace) + pace * along
        state[:, _CENTER] = moved
        self._state[rows] = state

    def _power(self) -> float:
        """The chance that half the noise would have been found by now, by the law of the bet on it.

        Where the other rows' part is not known, its variance counts as noise: less of what is seen is then missing.
        """
        seen = self._state[self._state[:, _SEEN] > 1]
        if not seen.size:
            return 0.0
        n = float(seen[:, _SEEN].min())
        variance = float(np.median(seen[:, _SQUARES] / seen[:, _SEEN]))
        fraction = math.sqrt(0.25 + max(0.0, variance - 1.0 - 3.0 * math.sqrt(2.0 / n)))
        if fraction > 0.95:
            return 0.0
        best = forecasts.bet(self.noise_multiplier, round(fraction, 2))
        needed = -math.log(self.level) - math.log(min(forecasts.WEIGHTS) * (1.0 - forecasts.REPEATED))
        if best.growth <= 0.0 or best.spread <= 0.0:
            return 0.0
        return float(special.ndtr((n * best.growth - needed) / (math.sqrt(n) * best.spread)))

    def _sentence(self) -> str:
        """The evidence in words."""
        when = "" if self.refuted_at is None else f" It reached {1.0 / self.level:.4g} in step {self.refuted_at}."
        return (
            f"after {self.steps} steps the evidence against a noise multiplier of {self.noise_multiplier:g} is "
            f"{self.e_value:.3g} (if the claim holds, it ever reaches {1.0 / self.level:.4g} with a chance of at most "
            f"{self.level:g}).{when}"
        )

    def _weakest(self) -> str:
        """Where the noise is missing."""
        place = int(np.argmax(forecasts.log_evidence(self._wealth)))
        name, bets, row = self._names[place], self._wealth[place], self._state[place]
        if bets[-1] > bets[:-1].max():
            return f"The noise of {name!r} is that of the step before: it is not fresh."
        share = math.sqrt(row[_SQUARES] / max(row[_SEEN], 1.0))
        return f"The evidence is strongest in {name!r}, where the noise is about {share:.2f} of what is claimed."


def watch(
    optimizer: Any,
    *,
    model: Any = None,
    noise_multiplier: float | None = None,
    max_grad_norm: float | None = None,
    divisor: float | None = None,
    level: float = 0.01,
    seed: int | None = None,
    when_refuted: Callable[[Watch], None] | None = None,
) -> Watch:
    """Watch the noise of a live training: the optimizer's private gradients are read just before each of its steps.

    Parameters, gradients and random generators are not changed: a watched training ends with the same bits. The cost is
    one inner product for each tensor and step, and memory for one more copy of the parameters.

    Args:
        optimizer: Opacus's optimizer (all else is read off it), or any torch optimizer whose gradients hold the private
            gradient when ``step`` is called.
        model: Gives the tensors their names.
        noise_multiplier: The claimed σ. Default: the optimizer's own, step by step.
        max_grad_norm: The clipping norm C. Default: the optimizer's own, step by step.
        divisor: What the private sum is divided by before the step: the expected batch size, or 1 for a sum. Default:
            the optimizer's own.
        level: The chance that a training with the claimed noise is ever refuted.
        seed: Of the coins and canaries. Default: a fresh one.
        when_refuted: Called once, when the evidence is complete; for instance to stop the training.

    Returns:
        The monitor; ``close()`` or leaving its ``with`` block lets go of the optimizer.
    """
    from coalmine.probing import _watch_torch

    return _watch_torch.attach(
        optimizer,
        model=model,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        divisor=divisor,
        level=level,
        seed=seed,
        when_refuted=when_refuted,
    )


def _named(given: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Arrays by name."""
    parts = given if isinstance(given, Mapping) else {"gradient": given}
    named = {}
    for name, value in parts.items():
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, dtype=np.float64)
        if array.size == 0:
            raise UnsupportedError(f"the private gradient of {name!r} is empty: nothing can be watched in it")
        named[name] = array
    return named
