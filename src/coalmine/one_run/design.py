"""Everything that is fixed before a score is seen: the claim, the confidence, the numbers of guesses, the method."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.bounds.one_run import Guesses, count_guesses, ranked
from coalmine.errors import InvalidInputError
from coalmine.one_run import claims, guesses
from coalmine.records import Claim, OneRunScores, claim_from_dict, plain


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
    """One audit, decided beforehand. :func:`design` makes a good one for a claim.

    ``canaries`` counts those of all runs together. ``tie_seed`` orders equal scores.

    >>> from coalmine.records import EpsilonClaim
    >>> claim = EpsilonClaim(epsilon=2.0, delta=1e-5)
    >>> Design(claim=claim, confidence=0.95, canaries=100, guess_in=10, guess_out=10, method="one_run").level
    0.05
    """

    claim: Claim
    confidence: float
    canaries: int
    guess_in: int
    guess_out: int
    method: str
    tie_seed: int = 0

    def __post_init__(self) -> None:
        claims.check(self.claim)
        _validate.choice("method", self.method, claims.methods(self.claim))
        object.__setattr__(self, "confidence", _validate.open_unit("confidence", self.confidence))
        m = _validate.integer("canaries", self.canaries, at_least=2)
        high = _validate.integer("guess_in", self.guess_in, at_least=0)
        low = _validate.integer("guess_out", self.guess_out, at_least=0)
        _validate.integer("tie_seed", self.tie_seed, at_least=0)
        if not 1 <= high + low <= m:
            raise InvalidInputError(
                f"guess_in = {high} and guess_out = {low} are not allowed together: expected 1 to {m} guesses"
            )

    @property
    def level(self) -> float:
        """1 − confidence."""
        return round(1.0 - self.confidence, 12)

    @property
    def test(self) -> claims.Test:
        """The method against the claim."""
        return claims.Test(claim=self.claim, method=self.method)

    def choice(self) -> guesses.Choice:
        """What these numbers of guesses need to refute the claim."""
        pair = (self.guess_in, self.guess_out)
        return guesses.weigh(self.claim, self.canaries, pair, method=self.method, level=self.level)

    def count(self, scores: OneRunScores) -> Guesses:
        """The guesses about these scores, and how many are right."""
        if scores.score.size != self.canaries:
            raise InvalidInputError(f"score has {scores.score.size} entries: expected {self.canaries}, one a canary")
        return count_guesses(scores, guess_in=self.guess_in, guess_out=self.guess_out, seed=self.tie_seed)

    def order(self, scores: OneRunScores) -> NDArray[np.int64]:
        """The canaries by score, the lowest first, as they are guessed."""
        return ranked(scores, seed=self.tie_seed)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "claim"}
        return {"claim": self.claim.to_dict(), **plain(fields)}

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Self:
        """The design that :meth:`to_dict` wrote down."""
        try:
            fields = dict(tree)
            return cls(claim=claim_from_dict(fields.pop("claim")), **fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInputError(f"design is not allowed: {error}; expected what `prepare` wrote") from None


def design(
    claim: Claim,
    *,
    canaries: int,
    confidence: float = 0.95,
    guess_in: int | None = None,
    guess_out: int | None = None,
    method: str | None = None,
    aim: str = "refute",
    attack: float | None = None,
) -> Design:
    """A design for this claim: numbers of guesses and method chosen by :func:`~coalmine.one_run.guesses.choose` where
    they are not given.

    Args:
        claim: What will be tested.
        canaries: m, all runs together.
        confidence: Between 0 and 1.
        guess_in: How many of the highest scores are guessed IN.
        guess_out: How many of the lowest are guessed OUT.
        method: "one_run" or "one_run_fdp".
        aim: "refute" or "bound", as in :func:`~coalmine.one_run.guesses.choose`.
        attack: μ of the attack that is expected, as there.

    Returns:
        The design; keep it unchanged until the judge has spoken.

    >>> from coalmine.records import EpsilonClaim
    >>> design(EpsilonClaim(epsilon=2.0, delta=1e-5), canaries=1000).guess_in
    49
    """
    claims.check(claim)
    m = _validate.integer("canaries", canaries, at_least=2)
    level = 1.0 - _validate.open_unit("confidence", confidence)
    if method is not None:
        _validate.choice("method", method, claims.methods(claim))
    if guess_in is None and guess_out is None:
        chosen = guesses.choose(claim, canaries=m, confidence=confidence, aim=aim, attack=attack, method=method)
    else:
        pair = (guess_in or 0, guess_out or 0)
        names = [name for name in claims.methods(claim) if method in (None, name)]
        chosen = max(
            (guesses.weigh(claim, m, pair, method=name, level=level, attack=attack) for name in names),
            key=lambda each: each.noise or 0.0,
        )
    return Design(
        claim=claim,
        confidence=confidence,
        canaries=m,
        guess_in=chosen.guess_in,
        guess_out=chosen.guess_out,
        method=chosen.method,
    )
