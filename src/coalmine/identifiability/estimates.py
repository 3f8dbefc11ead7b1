"""What the beliefs of many trainings say about ε: three estimates ε′ and the share δ′ (bernau-2021, 5.2 and 5.3).

The scores are log-odds: ln(β/(1 − β)) of the belief β in world 1, from even odds. An estimate proves nothing; the same
scores prove lower bounds with :mod:`coalmine.bounds`, for which they are the best scores that there are.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.identifiability import advantage as advantages
from coalmine.identifiability import belief as beliefs
from coalmine.records import Estimate, Relation, Scores, plain
from coalmine.theory.rates import two_sided


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """How often something happened, with its two-sided Clopper-Pearson interval.

    >>> Share.of(2, trials=1000).interval[1] < 0.01
    True
    """

    count: float
    trials: int
    interval: tuple[float, float]
    confidence: float

    @classmethod
    def of(cls, count: float, *, trials: int, confidence: float = 0.99) -> Share:
        """``count`` of ``trials``; a tie that counts half widens the interval to both sides."""
        trials = _validate.integer("trials", trials, at_least=1)
        confidence = _validate.open_unit("confidence", confidence)
        interval = two_sided(math.floor(count), math.ceil(count), trials, confidence=confidence)
        return cls(count=count, trials=trials, interval=interval, confidence=confidence)

    @property
    def value(self) -> float:
        """The share itself."""
        return self.count / self.trials


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beliefs:
    """What the beliefs of the trials say.

    ``epsilon`` and ``bound`` are the ε and the belief ρβ that the trials are held against; ``promised`` says whether
    that ε is a guarantee (else it holds for the two data sets alone, or is none). ``exceeded`` is δ′: how often the
    belief in the right world ended above ρβ; theory expects at most ``expected``. ``wins`` is how often the right world
    got the larger belief; ``loss_wins`` how often membership inference by the loss of the same models was right, on
    the half of the trials that did not choose its threshold.
    """

    epsilon: float
    bound: float
    delta: float
    promised: bool
    exceeded: Share
    expected: float | None
    wins: Share
    loss_wins: Share | None
    estimates: tuple[Estimate, ...]

    @property
    def advantage(self) -> float:
        """2·Pr[right] − 1 (Definition 5)."""
        return 2.0 * self.wins.value - 1.0

    @property
    def loss_advantage(self) -> float | None:
        """The same for membership inference."""
        return None if self.loss_wins is None else 2.0 * self.loss_wins.value - 1.0

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        tree = plain(dataclasses.asdict(dataclasses.replace(self, estimates=())))
        tree["estimates"] = [one.to_dict() for one in self.estimates]
        return {"kind": "beliefs", **tree, "advantage": self.advantage, "loss_advantage": self.loss_advantage}


def rdp_epsilon(mu: float, *, delta: float) -> float:
    """ε of Gaussian steps through RDP: the least of α·μ²/2 + ln(1/δ)/(α − 1) over α, which is μ²/2 + μ·√(2·ln(1/δ)).

    μ² = Σ_t (Δ_t/σ_t)²: the RDP of the steps adds up (bernau-2021, eq. 3; the conversion is Mironov's 2017).

    >>> round(rdp_epsilon(0.5505, delta=0.001), 2)
    2.2
    """
    mu = _validate.non_negative("mu", mu)
    return mu * mu / 2.0 + mu * math.sqrt(2.0 * math.log(1.0 / _validate.open_unit("delta", delta)))


def rdp_noise(epsilon: float, *, delta: float, steps: int = 1) -> float:
    """σ for T Gaussian steps, per unit of sensitivity, so that RDP composition gives ε: :func:`rdp_epsilon` inverted.

    >>> round(rdp_noise(2.2, delta=0.001, steps=30), 3)
    9.94
    """
    epsilon = _validate.positive("epsilon", epsilon)
    twice = 2.0 * math.log(1.0 / _validate.open_unit("delta", delta))
    mu = 2.0 * epsilon / (math.sqrt(twice + 2.0 * epsilon) + math.sqrt(twice))
    return math.sqrt(_validate.integer("steps", steps, at_least=1)) / mu


def right_log_odds(scores: Scores) -> NDArray[np.float64]:
    """The log-odds of the world that each trial was trained in, world 0 first.

    >>> right_log_odds(Scores([-2.0, 1.0], [0.5])).tolist()
    [2.0, -1.0, 0.5]
    """
    _validate.instance("scores", scores, Scores)
    return np.concatenate([-scores.world0, scores.world1])


def wins(scores: Scores, *, confidence: float = 0.99) -> Share:
    """How often the right world got the larger belief; equal beliefs are random guesses and count half.

    >>> wins(Scores([-2.0, 1.0], [0.5, 0.0])).value
    0.625
    """
    right = right_log_odds(scores)
    count = float((right > 0.0).sum()) + 0.5 * float((right == 0.0).sum())
    return Share.of(count, trials=right.size, confidence=confidence)


def exceeded(scores: Scores, *, epsilon: float, confidence: float = 0.99) -> Share:
    """δ′: how often the belief in the right world ended above ρβ = 1/(1 + e^−ε), that is, its log-odds above ε.

    >>> exceeded(Scores([-2.5, 1.0], [0.5, 0.0]), epsilon=2.2).value
    0.25
    """
    epsilon = _validate.non_negative("epsilon", epsilon)
    right = right_log_odds(scores)
    return Share.of(int((right > epsilon).sum()), trials=right.size, confidence=confidence)


def from_sensitivities(distances: ArrayLike, *, delta: float, relation: Relation | str) -> Estimate:
    """ε′ from the local sensitivities: RDP composition of every training's own steps, the largest over the trainings.

    ``distances`` are √Σ_t (LS_t/s_t)², one for each training, with s_t the noise's standard deviation on the sum.

    >>> round(from_sensitivities([0.5, 0.55], delta=0.001, relation="replace").epsilon, 3)
    2.196
    """
    values = _validate.finite_vector("distances", distances)
    if (values < 0.0).any():
        raise _validate.reject("distances", float(values.min()), "numbers of at least 0")
    mu = float(values.max())
    return Estimate(
        epsilon=rdp_epsilon(mu, delta=delta),
        delta=delta,
        method="sensitivities",
        relation=Relation.parse(relation),
        copies=1,
        assumptions=("the largest over these trainings of these two data sets", "full batches, RDP composition"),
        details={"mu": mu, "smallest mu": float(values.min())},
    )


def from_belief(scores: Scores, *, delta: float, relation: Relation | str) -> Estimate:
    """ε′ = ln(β/(1 − β)) of the largest belief in the right world (eq. 5; Section 5.3 lacks the logarithm).

    >>> from_belief(Scores([-2.5, 1.0], [0.5, 0.0]), delta=0.001, relation="replace").epsilon
    2.5
    """
    largest = float(right_log_odds(scores).max())
    return Estimate(
        epsilon=max(0.0, largest),
        delta=delta,
        method="largest belief",
        relation=Relation.parse(relation),
        copies=1,
        assumptions=("the largest of so many beliefs: it grows with the number of trainings",),
        details={"belief": float(special.expit(largest))},
    )


def from_advantage(scores: Scores, *, delta: float, relation: Relation | str, confidence: float = 0.99) -> Estimate:
    """ε′ from the share of right guesses: Theorem 3 inverted (eq. 6 with its missing factor 2).

    >>> scores = Scores([-1.0] * 615 + [1.0] * 385, [1.0] * 615 + [-1.0] * 385)
    >>> round(from_advantage(scores, delta=0.001, relation="replace").epsilon, 2)
    2.21
    """
    won = wins(scores, confidence=confidence)

    def of(share: float) -> float:
        gain = max(0.0, 2.0 * share - 1.0)
        return math.inf if gain >= 1.0 else advantages.to_epsilon(gain, delta=delta)

    return Estimate(
        epsilon=of(won.value),
        delta=delta,
        method="advantage",
        relation=Relation.parse(relation),
        copies=1,
        assumptions=("a Gaussian mechanism with classically calibrated noise (Theorem 3)",),
        interval=(of(won.interval[0]), of(won.interval[1])),
        details={"advantage": 2.0 * won.value - 1.0, "confidence": confidence},
    )


def loss_wins(world0: ArrayLike, world1: ArrayLike, *, confidence: float = 0.99) -> Share:
    """Right guesses of membership inference (Yeom et al. 2018): "world 1" where the score is above a threshold.

    The threshold is the best one of the first half of the trials of each world; the other half is counted.

    >>> loss_wins([0.0, 0.1, 0.0, 0.2], [1.0, 0.9, 1.1, 0.8]).value
    1.0
    """
    parts = [_validate.finite_vector(name, values) for name, values in (("world0", world0), ("world1", world1))]
    if min(part.size for part in parts) < 2:
        raise InvalidInputError("membership inference needs two trials in each world: one chooses the threshold")
    (first0, rest0), (first1, rest1) = ((part[: part.size // 2], part[part.size // 2 :]) for part in parts)
    values = np.unique(np.concatenate([first0, first1]))
    cuts = np.concatenate([[values[0] - 1.0], (values[1:] + values[:-1]) / 2.0])
    above0 = 1.0 - np.searchsorted(np.sort(first0), cuts, side="right") / first0.size
    above1 = 1.0 - np.searchsorted(np.sort(first1), cuts, side="right") / first1.size
    cut = cuts[int(np.argmax(above1 - above0))]
    right = int((rest0 <= cut).sum()) + int((rest1 > cut).sum())
    return Share.of(right, trials=rest0.size + rest1.size, confidence=confidence)


def summary(
    scores: Scores,
    *,
    epsilon: float,
    delta: float,
    relation: Relation | str,
    promised: bool,
    expected: float | None = None,
    distances: ArrayLike | None = None,
    losses: tuple[ArrayLike, ArrayLike] | None = None,
    confidence: float = 0.99,
) -> Beliefs:
    """All of it for one adversary's log-odds. ``distances`` are for full batches only, ``losses`` for both worlds.

    >>> summary(Scores([-2.5, 1.0], [0.5, 0.0]), epsilon=2.2, delta=0.001, relation="replace", promised=True).advantage
    0.25
    """
    if epsilon != math.inf:
        epsilon = _validate.non_negative("epsilon", epsilon)
    if losses is not None and not (isinstance(losses, tuple | list) and len(losses) == 2):
        raise _validate.reject("losses", losses, "a pair: the losses in world 0 and in world 1")
    found = [
        from_belief(scores, delta=delta, relation=relation),
        from_advantage(scores, delta=delta, relation=relation, confidence=confidence),
    ]
    if distances is not None:
        found.insert(0, from_sensitivities(distances, delta=delta, relation=relation))
    return Beliefs(
        epsilon=epsilon,
        bound=beliefs.from_epsilon(epsilon) if epsilon < math.inf else 1.0,
        delta=delta,
        promised=promised,
        exceeded=exceeded(scores, epsilon=min(epsilon, 1e300), confidence=confidence),
        expected=expected,
        wins=wins(scores, confidence=confidence),
        loss_wins=None if losses is None else loss_wins(*losses, confidence=confidence),
        estimates=tuple(found),
    )
