"""What to do next where a run can say nothing: too few canaries for its claim, or an attack that is too weak."""

from __future__ import annotations

from coalmine.one_run import guesses
from coalmine.one_run.design import Design
from coalmine.one_run.planning import least_canaries
from coalmine.records import EpsilonClaim

CONTROL = (
    "play a positive control (canaries of the same kind and number for the same claim, prepared as a run of their own, "
    "in a training with half of the noise) and hand it over: --control-run and --control-scores"
)


def too_few(design: Design) -> str | None:
    """That these canaries can hardly refute the claim, however strong the attack, and what helps; None if they can.

    >>> from coalmine.one_run.design import design
    >>> print(too_few(design(EpsilonClaim(epsilon=8.0, delta=1e-5), canaries=1000)))
    ... # doctest: +NORMALIZE_WHITESPACE +ELLIPSIS
    1000 canaries are too few for this claim: not even an attack without a single error would refute it; claim ...
    """
    choice = design.choice()
    half = guesses.refutes(design.claim, canaries=design.canaries, choice=choice)
    if half >= guesses.POWER:
        return None
    if choice.critical is None:
        what = "not even an attack without a single error would refute it"
    else:
        what = f"the best attack there is would refute half the noise with probability {half:.2f} alone"
    return f"{design.canaries} canaries are too few for this claim: {what}; {more(design)}"


def more(design: Design) -> str:
    """Which claim, or how many canaries, would do."""
    claim = design.claim
    if isinstance(claim, EpsilonClaim):
        return (
            "claim the DP-SGD itself, whose whole curve is tested (--noise-multiplier, --sample-rate and --steps in "
            f"place of --epsilon); how many canaries this claim needs says `coalmine plan --one-run --epsilon "
            f"{claim.epsilon:g} --delta {claim.delta:g}`"
        )
    needed = least_canaries(claim, confidence=design.confidence)
    if needed is None:
        return "not even 200,000 would do"
    if needed <= design.canaries:
        return "with other numbers of guesses they would do (leave out --guess-in, --guess-out and --aim)"
    return f"about {needed} would do (--canaries {needed}, or as many in several --runs together)"
