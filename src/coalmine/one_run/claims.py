"""A claim as a test of right guesses, and the trainings it is held against.

An :class:`~coalmine.records.EpsilonClaim` is tested by its (ε, δ) alone, a :class:`~coalmine.records.MechanismClaim` by
the whole trade-off curve of its mechanism, which is far sharper.
"""

from __future__ import annotations

import bisect
import dataclasses

from coalmine import _validate
from coalmine.bounds.dpsgd import mechanism_curve
from coalmine.bounds.one_run import Guesses, p_value
from coalmine.bounds.one_run_fdp import critical_count, fdp_p_value, refutes
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import Claim, DpSgd, EpsilonClaim, MechanismClaim, Relation
from coalmine.theory.curves import EpsilonDeltaCurve, TradeOff

METHODS = ("one_run", "one_run_fdp")
"""Steinke, Nasr and Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2024."""


def check(claim: Claim) -> None:
    """A claim that one run can test: the coins decide whether a canary is there, so neighbours add or remove a row."""
    if isinstance(claim, DpSgd):
        raise InvalidInputError(
            "claim is a DpSgd without a δ: expected MechanismClaim(mechanism=DpSgd(...), delta=...), or EpsilonClaim"
        )
    _validate.instance("claim", claim, (EpsilonClaim, MechanismClaim))
    if claim.relation is not Relation.ADD_REMOVE:
        raise UnsupportedError(
            "relation = 'replace' does not fit one run: a coin decides whether a canary is there or not, and a claim "
            "about replaced rows says nothing about that; expected 'add_remove', or an audit of many trainings"
        )


def methods(claim: Claim) -> tuple[str, ...]:
    """The methods that can test this claim."""
    return METHODS if isinstance(claim, EpsilonClaim) else METHODS[1:]


def claimed_curve(claim: Claim) -> TradeOff:
    """The trade-off curve that the claim says no training of its kind goes below.

    >>> round(float(claimed_curve(EpsilonClaim(epsilon=1.0, delta=0.01))(0.0)), 2)
    0.99
    """
    if isinstance(claim, EpsilonClaim):
        return EpsilonDeltaCurve(epsilon=claim.epsilon, delta=claim.delta)
    return mechanism_curve(claim.mechanism)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Test:
    """One method against one claim.

    >>> test = Test(claim=EpsilonClaim(epsilon=1.0, delta=1e-5), method="one_run")
    >>> test.critical(canaries=1000, guesses=100, level=0.05)
    81
    """

    __test__ = False  # not one of pytest's

    claim: Claim
    method: str

    def __post_init__(self) -> None:
        check(self.claim)
        _validate.choice("method", self.method, methods(self.claim))

    def p_value(self, guesses: Guesses) -> float:
        """The chance of so many right guesses is at most this if the claim is true."""
        if self.method == "one_run":
            assert isinstance(self.claim, EpsilonClaim)
            return p_value(guesses, epsilon=self.claim.epsilon, delta=self.claim.delta)
        return fdp_p_value(guesses, claimed_curve(self.claim))

    def refuted(self, guesses: Guesses, *, level: float) -> bool:
        """Whether the guesses refute the claim at ``level``."""
        if self.method == "one_run":
            return self.p_value(guesses) <= level
        return refutes(guesses, claimed_curve(self.claim), level=level)

    def critical(self, *, canaries: int, guesses: int, level: float, sides: int = 2) -> int | None:
        """The smallest number of right guesses that refutes the claim at ``level``; None if not even all do."""
        if self.method == "one_run_fdp":
            curve = claimed_curve(self.claim)
            return critical_count(curve, canaries=canaries, guesses=guesses, level=level, sides=sides)
        correct = 1 + bisect.bisect_left(
            range(1, guesses + 1),
            True,
            key=lambda right: self.p_value(Guesses(canaries=canaries, guesses=guesses, correct=right)) <= level,
        )
        return correct if correct <= guesses else None
