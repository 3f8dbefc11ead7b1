"""From what a person tolerates to ε and to noise (bernau-2021, Section 5.1), two ways side by side.

**classical**: the paper's way. ε by eq. (5) or the corrected eq. (6), then σ by eq. (1), times √T for T steps (RDP of
Gaussian steps adds up, eq. 3). Proved for ε ≤ 1 only, and blind to sampling.

**exact**: the smallest σ that keeps what was asked for. For a belief it is the (ε, δ) behind it, by the analytic
Gaussian mechanism (or the PLD if batches are sampled). For an advantage it is the advantage itself, as total variation:
a σ that only met ε would let the advantage go higher.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from coalmine import _validate
from coalmine.accounting import calibrate, standard
from coalmine.errors import InvalidInputError
from coalmine.identifiability import advantage as advantages
from coalmine.identifiability import belief as beliefs
from coalmine.records import DpSgd, Record, Relation, plain
from coalmine.theory import curves


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice(Record):
    """What follows from a tolerated belief or advantage.

    ``epsilon``, ``belief`` and ``advantage`` are ε, ρβ and ρα of the paper, which go together for one Gaussian release
    with the classical noise. What each of the two σ keeps in this very training stands under "classical" and "exact":
    ``noise_multiplier`` is σ itself, ``actual_epsilon`` the ε that is proved at δ for it, ``actual_advantage`` the
    exact advantage, and ``belief_exceeded`` the probability that the belief ends above ``belief`` (an upper bound with
    sampling). All of it is for neighbours by ``relation``. A classical σ that is larger than any that is looked at has
    no entry but its own.
    """

    epsilon: float
    delta: float
    belief: float
    advantage: float
    steps: int
    sample_rate: float
    relation: Relation
    noise_multiplier: dict[str, float]
    actual_epsilon: dict[str, float]
    actual_advantage: dict[str, float]
    belief_exceeded: dict[str, float]
    assumptions: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One tolerated belief: ε and σ for it, the exact advantage at that σ, and the accuracy that is left.

    ``accuracy`` is the mean over the trainings, ``standard_error`` that of the mean.
    """

    belief: float
    epsilon: float
    noise_multiplier: float
    advantage: float
    accuracy: float
    standard_error: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """The price of a belief: ``chosen`` is the one asked for, ``points`` are in rising order with it among them.

    ``without_noise`` is the accuracy of the same training without any privacy.
    """

    chosen: Point
    points: tuple[Point, ...]
    without_noise: float
    delta: float
    steps: int
    sample_rate: float
    trainings: int
    test_rows: int
    subject: str
    choice: Choice

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types: the choice, and the sweep beside it."""
        tree: dict[str, Any] = plain(dataclasses.asdict(self))
        del tree["choice"]
        return {**self.choice.to_dict(), "sweep": tree}


def from_belief(belief: float, *, delta: float, steps: int = 1, sample_rate: float = 1.0) -> Choice:
    """ε and σ for a tolerated posterior belief ρβ.

    >>> choice = from_belief(0.9, delta=0.01)
    >>> round(choice.epsilon, 3), round(choice.advantage, 2)
    (2.197, 0.28)
    >>> {name: round(sigma, 4) for name, sigma in choice.noise_multiplier.items()}
    {'classical': 1.4143, 'exact': 1.0406}
    """
    belief = _validate.between("belief", belief, 0.5, 1.0)  # 0.5 itself would need infinite noise
    delta, steps, sample_rate = _common(delta, steps, sample_rate)
    epsilon = beliefs.to_epsilon(belief)
    if sample_rate < 1.0:
        exact = calibrate.noise_multiplier(
            sample_rate=sample_rate, steps=steps, epsilon=epsilon, delta=delta
        ).noise_multiplier
    else:
        exact = math.sqrt(steps) / curves.gaussian_mu(epsilon, delta=delta)
        _check_noise("belief", belief, exact)
    return dataclasses.replace(_choice(epsilon, delta, steps, sample_rate, exact, "epsilon"), belief=belief)


def from_advantage(advantage: float, *, delta: float, steps: int = 1, sample_rate: float = 1.0) -> Choice:
    """ε and σ for a tolerated membership advantage ρα.

    Without sampling both σ agree: the paper's detour through ε cancels.

    >>> choice = from_advantage(0.23, delta=0.001)
    >>> round(choice.epsilon, 2), round(choice.belief, 2)
    (2.21, 0.9)
    >>> {name: round(sigma, 4) for name, sigma in choice.noise_multiplier.items()}
    {'classical': 1.7101, 'exact': 1.7101}
    """
    advantage = _validate.open_unit("advantage", advantage)
    delta, steps, sample_rate = _common(delta, steps, sample_rate)
    epsilon = advantages.to_epsilon(advantage, delta=delta)
    exact = math.sqrt(steps) / advantages.mu_for(advantage)
    if sample_rate < 1.0:
        exact = calibrate.for_advantage(sample_rate=sample_rate, steps=steps, advantage=advantage)
    else:
        _check_noise("advantage", advantage, exact)
        while advantages.of_mechanism(_mechanism(exact, steps, sample_rate)) > advantage:  # rounding, at most
            exact *= 1.0 + 1e-15
    return _choice(epsilon, delta, steps, sample_rate, exact, "advantage")


def _common(delta: float, steps: int, sample_rate: float) -> tuple[float, int, float]:
    """Check what both ways share."""
    delta = _validate.open_unit("delta", delta)
    steps = _validate.integer("steps", steps, at_least=1)
    sample_rate = _validate.unit("sample_rate", sample_rate)
    if sample_rate == 0.0:
        raise InvalidInputError("sample_rate = 0 is not allowed: expected a number above 0 (nothing would be learned)")
    return delta, steps, sample_rate


def _check_noise(name: str, value: float, sigma: float) -> None:
    """The noise that keeps what was asked for is one that a training may have."""
    most = _validate.LIMITS["noise_multiplier"][1]
    if sigma > most:
        raise _validate.reject(
            name,
            value,
            f"one that a noise_multiplier of at most {most:g} keeps, and this needs {sigma:.4g}: a larger one, or "
            "fewer steps",
        )


def _mechanism(sigma: float, steps: int, sample_rate: float) -> DpSgd:
    return DpSgd(sample_rate=sample_rate, noise_multiplier=sigma, steps=steps)


def _choice(epsilon: float, delta: float, steps: int, sample_rate: float, exact: float, kept: str) -> Choice:
    """Put both ways side by side."""
    classical = math.sqrt(steps) * advantages.classical_noise(epsilon, delta=delta)
    sigmas = {"classical": classical, "exact": exact}
    most = _validate.LIMITS["noise_multiplier"][1]
    mechanisms = {name: _mechanism(sigma, steps, sample_rate) for name, sigma in sigmas.items() if sigma <= most}
    notes = [
        "classical: bernau-2021 eq. (1) and RDP over the steps; takes no account of sampling",
        f"exact: the smallest noise that keeps the {kept} asked for, every iterate seen",
        "add/remove neighbours: one row more or less",
    ]
    if epsilon > 1.0:
        notes.append(f"the classical calibration is proved for epsilon up to 1 only, and epsilon = {epsilon:.4g} here")
    if classical > most:
        notes.append(f"the classical noise is beyond {most:g}, the largest looked at: what it keeps is not computed")
    return Choice(
        epsilon=epsilon,
        delta=delta,
        belief=beliefs.from_epsilon(epsilon),
        advantage=advantages.from_epsilon(epsilon, delta=delta),
        steps=steps,
        sample_rate=sample_rate,
        relation=Relation.ADD_REMOVE,
        noise_multiplier=sigmas,
        actual_epsilon={name: standard.epsilon(m, delta=delta).epsilon for name, m in mechanisms.items()},
        actual_advantage={name: advantages.of_mechanism(m) for name, m in mechanisms.items()},
        belief_exceeded={name: beliefs.exceedance(m, epsilon=epsilon) for name, m in mechanisms.items()},
        assumptions=tuple(notes),
    )
