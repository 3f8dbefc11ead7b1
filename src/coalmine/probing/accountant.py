"""``check_accountant``: what really ran, by our accountant and by the user's, and the difference in words."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from coalmine import _validate
from coalmine.accounting import sequence, standard
from coalmine.errors import InvalidInputError
from coalmine.probing.batches import batch_sampler_of, count_rows, stated_rate
from coalmine.probing.findings import Finding, Measurement, ProbeReport, quoted
from coalmine.records import DpSgd, Relation, Sampling

_SAME = 1e-3
"""Rates and noise multipliers that differ by less are the same but for rounding."""
_TOLD = 2e-3
"""People tell an ε with three digits: one that is smaller by this share is still the same."""
_FINER = 2.0 ** (1.0 / 512.0)
"""So much more noise outweighs what our accountant rounds up for several kinds of steps (a test holds it to that)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Loader:
    """How a loader draws, as far as its sampler tells: ``rate`` is that of the row that is drawn most often."""

    kind: str
    rate: float
    usual: float


def check_accountant(
    accountant: Any,
    *,
    delta: float,
    ran: DpSgd | Sequence[DpSgd] | None = None,
    optimizer: Any = None,
    loader: Any = None,
    steps: int | None = None,
    target_epsilon: float | None = None,
) -> ProbeReport:
    """Put an accountant's ε beside ours for what really ran, and what it was told beside what really ran.

    Nothing here is statistical: every finding is a contradiction between two numbers. What really ran is ``ran``, or
    what ``optimizer`` (noise), ``loader`` (rate and kind of sampling) and ``steps`` tell; what none of them tells is
    taken from the accountant's own history.

    >>> report = check_accountant(6.01, delta=1e-5, ran=DpSgd(sample_rate=0.5, noise_multiplier=1.0, steps=4))
    >>> report.findings[0].fault, round(report.findings[0].allowed, 2)
    ('epsilon understated', 6.66)

    Args:
        accountant: An Opacus ``PrivacyEngine`` or accountant, one of dp-accounting, a function of δ, or the ε itself.
        delta: The δ at which ε is stated.
        ran: The DP-SGD that really ran, or several in a row.
        optimizer: Opacus's optimizer: its noise multiplier is what is really added.
        loader: The loader of the training: its sampler tells the rate, and whether it samples by Poisson at all.
        steps: How many steps with noise the training took.
        target_epsilon: The ε that the noise was searched for.

    Returns:
        A report whose level is 0: a finding is seen, not inferred.
    """
    started = time.perf_counter()
    delta = _validate.open_unit("delta", delta)
    theirs = _Accountant(accountant)
    told = theirs.history()
    drawn = None if loader is None else _drawn(loader)
    real = _what_ran(ran, optimizer, drawn, steps, told)
    first = _reading(theirs, delta)
    measured = [first]
    if ran is None and optimizer is None and drawn is None and steps is None:
        measured.append(
            Measurement(
                name="what ran",
                sentence="What the accountant was told was not compared with what really ran.",
                blind="only the accountant's own history is known; hand over what really ran: ran, or optimizer, "
                "loader and steps",
            )
        )
    elif told is not None:
        measured.append(_told(told, real, drawn))
    if drawn is not None:
        measured.append(_sampling(drawn, real, delta))
    value = first.details["epsilon"]
    if not first.blind:
        measured.append(_epsilons(value, theirs.name, real, delta))
    if target_epsilon is not None:
        measured.append(_target(_validate.positive("target_epsilon", target_epsilon), real, delta))
    return ProbeReport(
        subject=f"the accountant ({theirs.name})",
        measurements=tuple(measured),
        level=0.0,
        seconds=time.perf_counter() - started,
    )


class _Accountant:
    """A user's accountant, whatever it is, as a function of δ; never asked itself, only a copy of it."""

    def __init__(self, given: Any) -> None:
        inner = getattr(given, "accountant", None) if hasattr(given, "get_epsilon") else None
        self.given = given if inner is None else inner
        self.name = _name(self.given)
        try:
            self.copy = copy.deepcopy(self.given)
        except Exception:  # noqa: BLE001  a user's object may refuse in any way; then it must be asked itself
            self.copy = self.given

    def epsilon(self, delta: float) -> float:
        """What it says."""
        asked: Callable[[float], Any] | None = getattr(self.copy, "get_epsilon", None)
        if asked is None:
            asked = self.copy if callable(self.copy) else None
        if asked is None:
            if isinstance(self.copy, bool) or not isinstance(self.copy, (int, float)):
                raise _validate.reject("accountant", self.given, "an accountant, a function of delta, or a number")
            return float(self.copy)
        return float(asked(delta))

    def history(self) -> list[tuple[float, float, int]] | None:
        """(σ, q, steps) as an Opacus accountant was told them; None for one that does not tell."""
        told = getattr(self.copy, "history", None)
        if not isinstance(told, list):
            return None
        try:
            return [(float(sigma), float(rate), int(count)) for sigma, rate, count in told]
        except (TypeError, ValueError):
            return None


def _name(given: Any) -> str:
    """What to call it."""
    if isinstance(given, (int, float)):
        return f"ε = {given:g}"
    mechanism = getattr(given, "mechanism", None)
    if hasattr(given, "history") and callable(mechanism):
        return f"Opacus {mechanism()}"
    return str(getattr(given, "__name__", type(given).__name__))


def _reading(theirs: _Accountant, delta: float) -> Measurement:
    """Ask twice: the answer must be a number of at least 0, and asking must change nothing."""
    name = "reading the accountant"
    before = theirs.history()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            values = [theirs.epsilon(delta) for _ in range(2)]
    except InvalidInputError:
        raise
    except Exception as error:  # noqa: BLE001  a user's accountant may raise anything
        reason = f"{theirs.name} raised {type(error).__name__}: {quoted(error)}"
        return Measurement(name=name, sentence=reason, blind=reason, details={"epsilon": None})
    value, findings = values[0], []
    if not value >= 0.0:
        findings.append(
            Finding(
                fault="negative epsilon" if value < 0.0 else "epsilon is not a number",
                sentence=f"{theirs.name} gives ε = {value:g}; an ε is at least 0.",
                look_at="the conversion to (ε, δ) in the accountant: a large δ, or orders that are too few.",
                number=value if value < 0.0 else None,
                allowed=0.0,
            )
        )
    after = theirs.history()
    if after != before or not _alike(values[1], value, 1e-12):
        what = f"ε = {values[1]:g} after ε = {value:g}" if values[1] != value else f"{after} after {before}"
        findings.append(
            Finding(
                fault="the accountant changes when it is read",
                sentence=f"Asked twice without a step in between, {theirs.name} tells {what}.",
                look_at="get_epsilon: it must not change the history.",
                number=values[1],
                allowed=value,
            )
        )
    said_words = sorted({quoted(one.message) for one in said})
    return Measurement(
        name=name,
        sentence=f"{theirs.name} gives ε = {value:.4g} at δ = {delta:g}.",
        findings=tuple(findings),
        details={"epsilon": value, "warnings": said_words},
    )


def _what_ran(
    ran: DpSgd | Sequence[DpSgd] | None,
    optimizer: Any,
    drawn: _Loader | None,
    steps: int | None,
    told: list[tuple[float, float, int]] | None,
) -> tuple[DpSgd, ...]:
    """The DP-SGD that really ran, from the best source for each of its parts."""
    if ran is not None:
        given = (ran,) if isinstance(ran, DpSgd) else tuple(ran)
        return sequence.merged(given)
    if steps is not None:
        steps = _validate.integer("steps", steps, at_least=1)
    noise = None if optimizer is None else getattr(optimizer, "noise_multiplier", None)
    if optimizer is not None and not isinstance(noise, (int, float)):
        raise InvalidInputError(
            f"optimizer is of type {type(optimizer).__name__} and has no noise_multiplier: expected one of Opacus, or "
            "ran in its place"
        )
    known = [(s, q, n) for s, q, n in told or [] if n > 0]
    rate = drawn.usual if drawn is not None else None
    if noise is not None and rate is not None and steps is not None:
        known = [(float(noise), rate, steps)]
    elif not known:
        raise InvalidInputError(
            "ran is missing: expected the DP-SGD that really ran; this accountant does not tell what it was told, and "
            "optimizer, loader and steps are not all given"
        )
    else:
        known = [(float(noise) if noise is not None else s, rate if rate is not None else q, n) for s, q, n in known]
        if steps is not None and steps != sum(n for _, _, n in known):
            if len(sequence.merged([DpSgd(sample_rate=q, noise_multiplier=s, steps=n) for s, q, n in known])) > 1:
                raise InvalidInputError(f"steps = {steps} is not enough where noise or rate changed: expected ran")
            known = [(*known[0][:2], steps)]
    for sigma, q, _ in known:
        if not sigma > 0.0:
            raise InvalidInputError(f"the noise multiplier is {sigma:g}: without noise there is no ε to check")
        if not 0.0 <= q <= 1.0:
            raise InvalidInputError(f"the accountant was told the sample rate {q:g}: expected a number from 0 to 1")
    return sequence.merged([DpSgd(sample_rate=q, noise_multiplier=s, steps=n) for s, q, n in known])


def _told(told: list[tuple[float, float, int]], real: tuple[DpSgd, ...], drawn: _Loader | None) -> Measurement:
    """The accountant's history beside what really ran."""
    total, really = sum(n for _, _, n in told), sum(one.steps for one in real)
    findings = []
    for fault, what, ours, theirs, look_at in (
        (
            "wrong sample rate",
            "sample rate",
            max(one.sample_rate for one in real),
            max((q for _, q, _ in told), default=math.nan),
            "what the accountant takes for q: 1/len(loader) is right for a Poisson loader alone.",
        ),
        (
            "wrong noise multiplier",
            "noise multiplier",
            min(one.noise_multiplier for one in real),
            min((s for s, _, _ in told), default=math.nan),
            "the noise multiplier of the optimizer, a schedule, and what the accountant is told.",
        ),
    ):
        if not _alike(ours, theirs, _SAME):
            findings.append(
                Finding(
                    fault=fault,
                    sentence=f"The accountant was told the {what} {theirs:.6g}; what ran has {ours:.6g}.",
                    look_at=look_at,
                    number=theirs,
                    allowed=ours,
                )
            )
    if total != really:
        findings.append(_steps_finding(total, really))
    words = ", ".join(f"{n} steps with q = {q:.4g}, σ = {s:.4g}" for s, q, n in told) or "nothing"
    return Measurement(
        name="what the accountant was told",
        sentence=f"The accountant was told {words}; {_words(real)} ran.",
        findings=tuple(findings),
        details={"told": told, "ran": [dataclasses.asdict(one) for one in real]},
    )


def _steps_finding(told: int, ran: int) -> Finding:
    """More or fewer steps than there were."""
    if told > ran and told % ran == 0:
        fault, look_at = (
            "virtual steps counted as steps",
            "where the accountant is told of a step: a part of a large batch is not one; only a step with noise is.",
        )
    else:
        fault, look_at = (
            "wrong number of steps",
            "epochs times batches, a restart, and where the accountant is told of a step.",
        )
    effect = "too large" if told > ran else "too small"
    return Finding(
        fault=fault,
        sentence=f"The accountant counted {_validate.counted(told, 'step')}; {ran:,} with noise ran. "
        f"Its ε is {effect}.",
        look_at=look_at,
        number=float(told),
        allowed=float(ran),
    )


def _drawn(loader: Any) -> _Loader:
    """What the loader's sampler tells of itself, without drawing anything (:func:`probe_sampler` draws)."""
    rate = stated_rate(loader)
    if rate is not None:
        return _Loader(kind="poisson", rate=rate, usual=rate)
    batches = batch_sampler_of(loader)
    rows, size = count_rows(loader), getattr(batches, "batch_size", None)
    if not isinstance(size, int):
        raise InvalidInputError(
            f"loader is of type {type(loader).__name__} and tells neither a sample rate nor a batch size: expected ran "
            "in its place (probe_sampler can see what it draws)"
        )
    inner = getattr(batches, "sampler", None)
    weights = getattr(inner, "weights", None)
    usual = min(1.0, size / rows)
    if weights is not None:
        values = [float(one) for one in weights]
        most = max(values) / sum(values)
        largest = 1.0 - (1.0 - most) ** size if getattr(inner, "replacement", True) else min(1.0, size * most)
        return _Loader(kind="weighted", rate=largest, usual=usual)
    if getattr(inner, "replacement", False):
        return _Loader(kind="with replacement", rate=usual, usual=usual)
    return _Loader(kind="shuffled or in order", rate=usual, usual=usual)


def _sampling(drawn: _Loader, real: tuple[DpSgd, ...], delta: float) -> Measurement:
    """A loader that is not Poisson beside accountants that are all for Poisson sampling."""
    name = "loader and accountant"
    if drawn.kind == "poisson":
        return Measurement(name=name, sentence=f"The loader samples by Poisson at rate {drawn.rate:.4g}.")
    steps, sigma = sum(one.steps for one in real), min(one.noise_multiplier for one in real)
    if drawn.kind == "weighted":
        held = DpSgd(sample_rate=drawn.rate, noise_multiplier=sigma, steps=steps)
        value = standard.epsilon(held, delta=delta).epsilon
        finding = Finding(
            fault="weighted sampler accounted as uniform",
            sentence=(
                f"The loader's rows have weights: the heaviest is drawn with probability {drawn.rate:.4g} in a step, "
                f"the average row with {drawn.usual:.4g}. Poisson sampling at the larger rate has ε = {value:.4g}."
            ),
            look_at="the sampler. Draw all rows alike, or account for the largest rate of any row.",
            number=drawn.rate,
            allowed=drawn.usual,
        )
    else:
        shuffled = DpSgd(sample_rate=drawn.usual, noise_multiplier=sigma, steps=steps, sampling=Sampling.SHUFFLE)
        value = standard.shuffle_epsilon(shuffled, delta=delta).epsilon
        finding = Finding(
            fault="shuffled batches accounted as Poisson",
            sentence=(
                f"The loader's rows are {drawn.kind}, in batches of a fixed size; the accountant's ε holds for Poisson "
                f"sampling alone. Shuffling each epoch without any gain from sampling has ε = {value:.4g}."
            ),
            look_at="the loader: poisson_sampling=True in make_private, or an accountant without amplification.",
            number=value,
        )
    return Measurement(name=name, sentence=finding.sentence, findings=(finding,))


def _epsilons(value: float, name: str, real: tuple[DpSgd, ...], delta: float) -> Measurement:
    """Their ε beside ours. Ours is rounded up; a little more noise gives one that is rounded down."""
    if any(one.sampling is Sampling.SHUFFLE for one in real):
        return _shuffled(value, name, real, delta)
    upper, lower = _ours(real, delta)
    findings: tuple[Finding, ...] = ()
    if value < lower:
        central = standard.gdp_clt(real[0], delta=delta).epsilon if len(real) == 1 and _has_limit(real[0]) else math.nan
        why = (
            "the central limit of Gaussian DP, which is not a bound."
            if _alike(value, central, 1e-3)
            else "the analysis, and the sample rate, noise and steps that it was given."
        )
        findings = (
            Finding(
                fault="epsilon understated",
                sentence=(
                    f"{name} gives ε = {value:.4g} at δ = {delta:g}, and {_words(real)} has ε = {upper:.4g} "
                    f"(at least {lower:.4g})."
                ),
                look_at=why,
                number=value,
                allowed=lower,
            ),
        )
        words = findings[0].sentence
    elif value > 1.02 * upper + 0.02:
        more = 100.0 * (value / upper - 1.0)
        words = f"Ours is ε = {upper:.4g}, theirs {value:.4g}: not wrong, but {more:.0f} % more than it needs to be."
    else:
        words = f"Ours is ε = {upper:.4g}, theirs {value:.4g}: they agree."
    details = {"ours": upper, "ours_rounded_down": lower, "theirs": value, "delta": delta}
    return Measurement(name="epsilon, ours and theirs", sentence=words, findings=findings, details=details)


def _ours(real: tuple[DpSgd, ...], delta: float) -> tuple[float, float]:
    """Our ε, rounded up and rounded down."""
    if len(real) == 1:
        exact = standard.epsilon_at_least(real[0], delta=delta)
        return standard.epsilon(real[0], delta=delta).epsilon, exact * (1.0 - _TOLD)
    noisier = [one.with_noise(one.noise_multiplier * _FINER) for one in real]
    return sequence.epsilon(real, delta=delta).epsilon, sequence.epsilon(noisier, delta=delta).epsilon


def _shuffled(value: float, name: str, real: tuple[DpSgd, ...], delta: float) -> Measurement:
    """Shuffled batches: what holds without amplification, beside what the accountant says."""
    if len(real) > 1:
        raise InvalidInputError(
            "ran holds several mechanisms and shuffled batches: expected one mechanism where it shuffles"
        )
    upper = standard.shuffle_epsilon(real[0], delta=delta).epsilon
    words = f"{name} gives ε = {value:.4g} at δ = {delta:g}; {_words(real)}, shuffled, has ε = {upper:.4g}."
    finding = Finding(
        fault="shuffled batches accounted as Poisson",
        sentence=words,
        look_at="the accountant: no gain from sampling is proved for shuffled batches.",
        number=value,
        allowed=upper,
    )
    return Measurement(
        name="epsilon, ours and theirs",
        sentence=words,
        findings=(finding,) if value < 0.999 * upper else (),
        details={"ours": upper, "theirs": value, "delta": delta},
    )


def _target(target: float, real: tuple[DpSgd, ...], delta: float) -> Measurement:
    """The noise that was searched for an ε must reach it."""
    if any(one.sampling is Sampling.SHUFFLE for one in real):
        upper = lower = standard.shuffle_epsilon(real[0], delta=delta).epsilon
    else:
        upper, lower = _ours(real, delta)
    findings: tuple[Finding, ...] = ()
    if lower > target:
        findings = (
            Finding(
                fault="the target epsilon is exceeded",
                sentence=f"{_words(real)} has ε = {upper:.4g} at δ = {delta:g}, above the target {target:g}.",
                look_at="the search for the noise: its accountant, the number of steps and the rate that it was given.",
                number=upper,
                allowed=target,
            ),
        )
    return Measurement(
        name="target epsilon",
        sentence=f"What ran has ε = {upper:.4g}; the target is {target:g}.",
        findings=findings,
        details={"ours": upper, "target": target},
    )


def _has_limit(mechanism: DpSgd) -> bool:
    """Whether a central-limit value exists."""
    return mechanism.sampling is not Sampling.SHUFFLE and mechanism.relation is Relation.ADD_REMOVE


def _words(real: tuple[DpSgd, ...]) -> str:
    """What ran, in words."""
    return " and ".join(
        f"{_validate.counted(one.steps, 'step')} with q = {one.sample_rate:.4g}, σ = {one.noise_multiplier:.4g}"
        for one in real
    )


def _alike(one: float, other: float, relative: float) -> bool:
    """Equal but for rounding; two values that are no number are alike too."""
    return math.isclose(one, other, rel_tol=relative, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))
