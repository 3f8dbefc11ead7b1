"""The nouns of Coalmine as frozen values. No bare ε: what is promised, predicted, proved and estimated differ in type.

=============  ==========================================================================================
type           what its ε means
=============  ==========================================================================================
Guarantee      proved: the algorithm leaks no more, under the stated assumptions
Heuristic      predicted: usually close, but the algorithm may leak more; never a promise
LowerBound     proved by evidence: at the stated confidence, the algorithm leaks at least this much
Estimate       a best guess from evidence; proves nothing
=============  ==========================================================================================
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError


class Named(StrEnum):
    """A few values that go by their names."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """The value of that name; the error lists the names."""
        return cls(_validate.choice(cls.__name__.lower(), value, [member.value for member in cls]))


class Relation(Named):
    """Which data sets count as neighbours."""

    ADD_REMOVE = "add_remove"
    """One data set has one row more than the other ("unbounded")."""
    REPLACE = "replace"
    """Both have the same number of rows and differ in one ("bounded")."""


class Sampling(Named):
    """How a training step draws its batch."""

    POISSON = "poisson"
    """Every row on its own with the same probability, anew each step."""
    SHUFFLE = "shuffle"
    """Fixed-size batches from a random order; every row exactly once an epoch."""
    FULL = "full"
    """Every row in every step."""


@dataclasses.dataclass(frozen=True)
class Record:
    """A frozen value that can be written as plain data."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types, with its kind spelled out: "lower_bound" for a LowerBound."""
        kind = re.sub("(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()
        return {"kind": kind, **plain(dataclasses.asdict(self))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DpSgd:
    """DP-SGD as a mechanism: T steps, each a clipped gradient sum over a sampled batch plus Gaussian noise.

    Algorithm 1 of last-iterate-2024 (Steinke et al.). ``noise_multiplier`` is σ: the noise on the sum of gradients
    clipped to norm C has standard deviation σ·C, whatever the neighbouring relation.

    >>> DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=10_000).steps
    10000
    """

    sample_rate: float
    noise_multiplier: float
    steps: int
    sampling: Sampling = Sampling.POISSON
    relation: Relation = Relation.ADD_REMOVE

    SMALLEST_NOISE: ClassVar[float] = 1e-3
    """With less no privacy is left (ε is above 500 000 for one step), and the analyses overflow."""

    def __post_init__(self) -> None:
        _validate.assign(
            self,
            sample_rate=_validate.unit("sample_rate", self.sample_rate),
            noise_multiplier=_validate.positive("noise_multiplier", self.noise_multiplier),
            steps=_validate.integer("steps", self.steps, at_least=1),
            sampling=Sampling.parse(self.sampling),
            relation=Relation.parse(self.relation),
        )
        if self.noise_multiplier < self.SMALLEST_NOISE:
            raise _validate.reject("noise_multiplier", self.noise_multiplier, f"at least {self.SMALLEST_NOISE:g}")
        if self.sampling is Sampling.FULL and self.sample_rate != 1.0:
            raise InvalidInputError(
                f"sample_rate = {self.sample_rate!r} is not allowed with sampling = 'full': expected 1"
            )

    def with_noise(self, noise_multiplier: float) -> Self:
        """The same mechanism with another σ."""
        return dataclasses.replace(self, noise_multiplier=noise_multiplier)

    def with_share(self, share: float) -> Self:
        """The same mechanism with this share of its noise, as far as there is less: nothing is left to lose below."""
        return self.with_noise(max(self.noise_multiplier * share, self.SMALLEST_NOISE))

    def with_steps(self, steps: int) -> Self:
        """The same mechanism with another number of steps."""
        return dataclasses.replace(self, steps=steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PrivacyStatement(Record):
    """What a Guarantee and a Heuristic have in common: a point (ε, δ), how it was found, what it rests on."""

    epsilon: float
    delta: float
    analysis: str
    relation: Relation
    assumptions: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee(_PrivacyStatement):
    """An upper bound on the privacy loss that is proved under its assumptions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heuristic(_PrivacyStatement):
    """A prediction of the privacy loss. The truth may be larger: never report it as a guarantee."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpsilonClaim:
    """The claim "(ε, δ)-DP under this relation".

    >>> EpsilonClaim(epsilon=2.0, delta=1e-5).relation.value
    'add_remove'
    """

    epsilon: float
    delta: float
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _validate.positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", _validate.open_unit("delta", self.delta))
        object.__setattr__(self, "relation", Relation.parse(self.relation))

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {"kind": "epsilon", **plain(dataclasses.asdict(self))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismClaim:
    """The claim "no more is released than by this mechanism": its whole trade-off curve, not ε at one δ.

    ``delta`` is where ε is stated for people; the test of the claim does not depend on it.

    >>> MechanismClaim(mechanism=DpSgd(sample_rate=1.0, noise_multiplier=2.0, steps=1), delta=1e-5).relation.value
    'add_remove'
    """

    mechanism: DpSgd
    delta: float

    def __post_init__(self) -> None:
        _validate.instance("mechanism", self.mechanism, DpSgd)
        object.__setattr__(self, "delta", _validate.open_unit("delta", self.delta))

    @property
    def relation(self) -> Relation:
        """The mechanism's own."""
        return self.mechanism.relation

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {"kind": "mechanism", **plain(dataclasses.asdict(self)), "relation": self.relation.value}


Claim: TypeAlias = EpsilonClaim | MechanismClaim
"""What is said about a training, and tested: never stored as a :class:`Guarantee`, because nobody has proved it."""


def claim_from_dict(tree: Mapping[str, Any]) -> Claim:
    """The claim from plain data, as its ``to_dict`` gives it.

    >>> claim_from_dict(EpsilonClaim(epsilon=2.0, delta=1e-5).to_dict()).epsilon
    2.0
    """
    fields = dict(tree)
    if _validate.choice("claim.kind", fields.pop("kind"), ("epsilon", "mechanism")) == "epsilon":
        return EpsilonClaim(**fields)
    fields.pop("relation")  # that of the mechanism
    return MechanismClaim(mechanism=DpSgd(**fields.pop("mechanism")), **fields)


class Outcome(StrEnum):
    """How a claim fares. The number is the exit code of every command that judges."""

    CONSISTENT = "consistent"
    """Not refuted, and a training that leaks clearly more would have been."""
    REFUTED = "refuted"
    """False at the stated confidence."""
    INCONCLUSIVE = "inconclusive"
    """Not refuted, but nothing much could have been: this says nothing about the claim."""

    @property
    def exit_code(self) -> int:
        """0 consistent, 1 refuted, 3 inconclusive (2 is wrong input, 4 an error of ours)."""
        return {"consistent": 0, "refuted": 1, "inconclusive": 3}[self.value]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Power:
    """What would have been refuted: ``alternative`` in words, and the probability of refuting it."""

    alternative: str
    probability: float


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Verdict(Record):
    """What a judge says about a claim: the outcome, why, and what this evidence could have refuted.

    ``ceiling`` is the largest ε that a perfect attack could have proved with as many trials, by a method that decides.

    >>> Verdict(outcome=Outcome.REFUTED, confidence=0.99, reasons=()) == "refuted"
    True
    """

    outcome: Outcome
    confidence: float
    reasons: tuple[str, ...]
    power: Power | None = None
    ceiling: float | None = None

    def __str__(self) -> str:
        return self.outcome.value

    def __eq__(self, other: object) -> bool:
        """A verdict is also equal to its outcome, which is what is printed: ``verdict == "refuted"``."""
        if isinstance(other, str):
            return self.outcome == other
        same = dataclasses.astuple(self) == dataclasses.astuple(other) if isinstance(other, Verdict) else None
        return NotImplemented if same is None else same

    def __hash__(self) -> int:
        return hash(self.outcome)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """How often a fixed test was wrong: ``false_positives`` of ``negatives`` trials in world 0 were taken for world 1,
    ``false_negatives`` of ``positives`` trials in world 1 for world 0.

    >>> Counts(false_positives=2, negatives=1000, false_negatives=983, positives=1000).false_positive_rate
    0.002
    """

    false_positives: int
    negatives: int
    false_negatives: int
    positives: int

    def __post_init__(self) -> None:
        for wrong, total in (("false_positives", "negatives"), ("false_negatives", "positives")):
            n = _validate.integer(total, getattr(self, total), at_least=1)
            k = _validate.integer(wrong, getattr(self, wrong), at_least=0)
            if k > n:
                raise InvalidInputError(f"{wrong} = {k} is not allowed: expected at most {total} = {n}")
            _validate.assign(self, **{total: n, wrong: k})

    @property
    def false_positive_rate(self) -> float:
        """Share of world-0 trials taken for world 1."""
        return self.false_positives / self.negatives

    @property
    def false_negative_rate(self) -> float:
        """Share of world-1 trials taken for world 0."""
        return self.false_negatives / self.positives


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """Scores of independent trials; a larger score speaks for world 1.

    >>> Scores([0.1, 0.2], [0.9]).world1.tolist()
    [0.9]
    """

    world0: NDArray[np.float64]
    world1: NDArray[np.float64]

    def __init__(self, world0: ArrayLike, world1: ArrayLike) -> None:
        object.__setattr__(self, "world0", _validate.finite_vector("world0", world0))
        object.__setattr__(self, "world1", _validate.finite_vector("world1", world1))


@dataclasses.dataclass(frozen=True, eq=False)
class OneRunScores:
    """One training with many canaries: which were included (each by its own fair coin) and the score of each.

    These scores are not independent of each other, so they are a type of their own: a method for independent
    trials refuses them, and the other way round.
    """

    included: NDArray[np.bool_]
    score: NDArray[np.float64]
    ids: NDArray[Any]

    def __init__(self, included: ArrayLike, score: ArrayLike, ids: ArrayLike | None = None) -> None:
        scores = _validate.finite_vector("score", score)
        try:
            flags = np.asarray(included)
        except (ValueError, OverflowError):
            raise InvalidInputError("included is not allowed: expected 0 or 1 for each canary") from None
        if flags.ndim != 1 or flags.size != scores.size:
            raise InvalidInputError(f"included has {flags.size} entries: expected {scores.size}, one for each score")
        if flags.dtype != np.bool_:
            if flags.dtype.kind not in "iuf":
                raise InvalidInputError("included is not allowed: expected 0 or 1 for each canary")
            bad = np.flatnonzero((flags != 0) & (flags != 1))
            if bad.size:
                raise _validate.reject(f"included[{bad[0]}]", flags[bad[0]].item(), "0 or 1")
        try:
            names = np.arange(scores.size) if ids is None else np.asarray(ids)
            if names.dtype.kind not in "iufUS":
                raise TypeError
        except (TypeError, ValueError, OverflowError):
            raise InvalidInputError("ids is not allowed: expected a name or a number for each canary") from None
        if names.shape != scores.shape:
            raise InvalidInputError(f"ids has {names.size} entries: expected {scores.size}, one for each score")
        unique, counts = np.unique(names, return_counts=True)
        if unique.size != names.size:
            twice = unique[counts > 1][0]
            raise InvalidInputError(f"id {twice!s} occurs more than once: expected one row for each canary")
        _validate.assign(self, included=flags.astype(np.bool_), score=scores, ids=names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowerBound(Record):
    """An ε that the evidence proves: at the stated confidence, no smaller ε holds at this δ and relation.

    ``copies`` is k: the worlds differ in k rows, and ε is already per single row. ``counts`` are those of the threshold
    used for the bound, where there is one. ``ceiling`` is the largest ε that a perfect attack could have proved
    with as many trials. ``details`` holds what the method found on the way (μ, σ, p-value).
    """

    epsilon: float
    delta: float
    confidence: float
    method: str
    threshold_rule: str
    trials: tuple[int, int]
    relation: Relation
    copies: int
    assumptions: tuple[str, ...]
    counts: Counts | None = None
    ceiling: float | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate(Record):
    """A best guess of ε from evidence, with an interval where there is one. It proves nothing and is never a bound."""

    epsilon: float
    delta: float
    method: str
    relation: Relation
    copies: int
    assumptions: tuple[str, ...]
    interval: tuple[float, float] | None = None
    credibility: float | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


def content_hash(arrays: Mapping[str, ArrayLike]) -> str:
    """SHA-256 over named arrays (name, type, shape, little-endian bytes): the same numbers, however they were stored.

    >>> content_hash({"x": np.arange(3)}) == content_hash({"x": np.arange(6)[::2]})
    False
    >>> content_hash({"x": np.arange(3.0)})[:8]
    'a9285c2d'
    """
    digest = hashlib.sha256()
    for name, values in arrays.items():
        array = np.asarray(values, order="C")
        if array.dtype.hasobject:
            raise InvalidInputError(f"{name} is an array of Python objects, which has no content: expected numbers")
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {little.dtype.str} {little.shape}\n".encode())
        digest.update(little.data)
    return digest.hexdigest()


def plain(value: Any) -> Any:
    """NumPy scalars, tuples and enums as JSON types; infinities as the string "infinity" (JSON has no such number)."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "infinity" if value > 0 else "-infinity"
    return value
