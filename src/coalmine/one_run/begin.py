"""One run inside one Python program: coins are flipped, the rows to train on come back, scores are judged once."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.one_run import seal
from coalmine.one_run.canaries import Canaries, GradientCanaries, RowCanaries, content_of
from coalmine.one_run.design import Design, design
from coalmine.one_run.judge import OneRunResult, check_same_canaries, judge
from coalmine.records import Claim, OneRunScores


class OneTraining:
    """Canaries whose coins are flipped; :func:`begin` makes it.

    ``included`` are the canaries that go into the training, ``x`` and ``y`` the user's rows with them among them (None
    for gradients, which a hook puts in: :mod:`coalmine.one_run.hooks`). ``canaries`` are all, to be scored.
    """

    def __init__(self, canaries: Canaries, *, design: Design, secret: bytes) -> None:
        """Flip the coins, which ``secret`` decides."""
        self.canaries, self.design = canaries, design
        self._ids = seal.make_ids("run", canaries=canaries.number, part=1)
        self._coins = seal.coins(secret, self._ids)
        # In an order of their own, so that places say nothing about the canaries that were left out.
        self._shuffle = np.random.default_rng([*secret, 0x5E7])
        self.included = canaries.take(self._shuffle.permutation(np.flatnonzero(self._coins)))
        self.x: NDArray[Any] | None = None
        self.y: NDArray[Any] | None = None
        self._judged: NDArray[np.float64] | None = None

    def add_to(self, x: NDArray[Any], y: NDArray[Any] | None) -> None:
        """Put the included canaries among the user's rows, in random order."""
        assert isinstance(self.included, RowCanaries)
        extra = self.included
        if x.shape[1:] != extra.x.shape[1:]:
            raise InvalidInputError(
                f"x has rows of shape {x.shape[1:]}: expected {extra.x.shape[1:]}, as the canaries have"
            )
        if (y is None) != (extra.y is None):
            raise InvalidInputError("y does not fit: expected labels for the rows and for the canaries, or for neither")
        if x.dtype.kind not in "biuf" or not np.isfinite(x).all():
            raise InvalidInputError(f"x = {_validate.shown(x)} is not allowed: expected finite numbers")
        if y is not None and y.shape != x.shape[:1]:
            raise InvalidInputError(f"y has shape {y.shape}: expected a label for each of {x.shape[0]} rows")
        assert isinstance(self.canaries, RowCanaries)
        _check_holds("x", x, self.canaries.x)
        order = self._shuffle.permutation(x.shape[0] + extra.number)
        self.x = np.concatenate([x, extra.x.astype(x.dtype)])[order]
        if y is not None and extra.y is not None and self.canaries.y is not None:
            _check_holds("y", y, self.canaries.y)
            self.y = np.concatenate([y, extra.y.astype(y.dtype)])[order]

    def judge(self, scores: ArrayLike, *, control: OneRunResult | OneRunScores | None = None) -> OneRunResult:
        """Judge the claim by one score for each canary, in the order of ``canaries``.

        Args:
            scores: m numbers; a larger one speaks for a canary that is in.
            control: What the ``judge`` of another run gave, whose training had half the noise; the same canaries and
                claim.

        Returns:
            The verdict and the bounds. Other scores are refused from then on: whoever saw a verdict knows something
            about the coins.
        """
        values = _numbers(scores)
        if values.shape != (self.canaries.number,):
            raise InvalidInputError(f"scores has shape {values.shape}: expected {self.canaries.number}, one a canary")
        joined = OneRunScores(self._coins, values, np.array(self._ids))
        if self._judged is not None and not np.array_equal(self._judged, values):
            raise InvalidInputError("scores were judged before, and these are others: expected a new run for them")
        kind = self.canaries.kind
        if isinstance(control, OneRunResult) and control.canary_kind not in ("", kind):
            raise InvalidInputError(f"control has {control.canary_kind} canaries: expected {kind}, as this run has")
        content = content_of(self.canaries)
        if isinstance(control, OneRunResult):
            check_same_canaries(control.content, audited=content)
        found = judge(
            joined,
            design=self.design,
            control=control,
            gradients=isinstance(self.canaries, GradientCanaries),
            doubt=getattr(scores, "doubt", None),
        )
        self._judged = values.copy()  # only now: what was refused has shown nobody a verdict
        return dataclasses.replace(found, canary_kind=kind, content=content)

    def judge_fresh(self, scores: ArrayLike) -> OneRunResult:
        """The negative control: the same game with fresh canaries, which no training has seen, in place of the real.

        The fresh canary at position i gets the coin of the canary at position i. Nothing that the training did can
        tell that coin, so ε ≥ 0 is all that may come out, but for one control in 1/(1 − confidence). More says that
        scores follow the coins by another way: a place, an id, a file.

        Args:
            scores: m numbers, made in the same way as those of the canaries.

        Returns:
            As :meth:`judge`, for the fresh canaries. Refused before :meth:`judge`: it tells something about the coins.
        """
        values = _numbers(scores)
        if self._judged is None:
            raise InvalidInputError("fresh canaries are judged after the real ones: expected judge(scores) first")
        if values.shape != self._judged.shape:
            raise InvalidInputError(f"scores has shape {values.shape}: expected {self._judged.shape}, as for judge")
        return judge(OneRunScores(self._coins, values, np.array(self._ids)), design=self.design)


def _check_holds(name: str, given: NDArray[Any], canaries: NDArray[Any]) -> None:
    """Refuse data of a type that the canaries do not fit into: 0.9 among whole numbers would be trained as 0.

    A shorter float rounds, as the training itself would.
    """
    with np.errstate(all="ignore"):
        held = canaries.astype(given.dtype) if given.dtype.kind in "biuf" else None
    if held is not None and given.dtype.kind == "f" and canaries.dtype.kind == "f":
        fits = np.isfinite(held)
    else:
        fits = np.zeros(canaries.shape, dtype=bool) if held is None else held == canaries
    if not fits.all():
        raise InvalidInputError(
            f"{name} has type {given.dtype}, which cannot hold the canaries' {canaries[~fits].flat[0]}: expected "
            f"{name}.astype({str(canaries.dtype)!r}), or canaries of its own type"
        )


def _numbers(scores: ArrayLike) -> NDArray[np.float64]:
    """Scores as an array of their own; what is no list of real numbers is refused."""
    wrong = InvalidInputError(f"scores = {_validate.shown(scores)} is not allowed: expected real numbers")
    if np.ma.isMaskedArray(scores):
        raise InvalidInputError("scores has a mask: expected a number for every canary")
    try:
        plain = np.asarray(scores)
    except Exception:  # noqa: BLE001 - a tensor of torch that needs a gradient raises a RuntimeError
        raise wrong from None
    if plain.dtype.kind not in "biuf":
        raise wrong
    found = plain.astype(np.float64)
    if plain.dtype.kind in "iu" and np.unique(found).size != np.unique(plain).size:
        raise InvalidInputError(
            "scores has whole numbers too large to be told apart: expected them below 2**53 in size"
        )
    return found


def begin(
    canaries: Canaries,
    *,
    claim: Claim,
    x: ArrayLike | None = None,
    y: ArrayLike | None = None,
    confidence: float = 0.95,
    aim: str = "refute",
    attack: float | None = None,
    seed: int | None = None,
) -> OneTraining:
    """Flip a fair coin for every canary and hand back what to train on, once.

    Args:
        canaries: Of :mod:`coalmine.one_run.canaries`.
        claim: What is tested: ``EpsilonClaim`` or ``MechanismClaim``.
        x: The user's rows; for canaries that are rows.
        y: Their labels, where there are any.
        confidence: Between 0 and 1.
        aim: As in :func:`coalmine.one_run.design`.
        attack: As there.
        seed: For a test that can be repeated; the coins are fresh, and known to nobody, if left out.

    Returns:
        The run: train on its ``x`` and ``y``, score its ``canaries``, call its ``judge``.

    >>> from coalmine.one_run.canaries import extreme
    >>> from coalmine.records import EpsilonClaim
    >>> rows = np.random.default_rng(0).normal(size=(100, 40))
    >>> chosen = extreme(rows, classes=2, canaries=200)
    >>> claim = EpsilonClaim(epsilon=1.0, delta=1e-5)
    >>> run = begin(chosen, claim=claim, x=rows, y=np.zeros(100, dtype=int), seed=1)
    >>> memory = {tuple(row) for row in run.x.tolist()}  # a "model" that keeps every row
    >>> str(run.judge([tuple(row) in memory for row in run.canaries.x.tolist()]).verdict)
    'refuted'
    """
    _validate.instance("canaries", canaries, (RowCanaries, GradientCanaries))
    if (x is None) != isinstance(canaries, GradientCanaries):
        raise InvalidInputError(
            "x is missing: expected the rows that the canaries are put among"
            if x is None
            else "x is not allowed with gradients: a hook puts them into the training"
        )
    secret = seal.new_secret() if seed is None else seal.derived(_validate.integer("seed", seed, at_least=0))
    plan = design(claim, canaries=canaries.number, confidence=confidence, aim=aim, attack=attack)
    made = OneTraining(canaries, design=plan, secret=secret)
    if x is not None:
        made.add_to(np.asarray(x), None if y is None else np.asarray(y))
    return made
