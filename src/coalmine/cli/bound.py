"""``coalmine bound``: what the evidence proves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalmine.cli._options import RelationName, SamplingName, beginning_with, relation_named
from coalmine.cli._output import Json, number, print_json, print_lines, print_table
from coalmine.errors import InvalidInputError

if TYPE_CHECKING:
    from coalmine.bounds import Guesses, Method, Optimistic
    from coalmine.bounds.thresholds import Rule
    from coalmine.integrations.tool_files import ToolScores
    from coalmine.integrations.tool_formulas import ToolClaim
    from coalmine.records import Counts, DpSgd, Estimate, LowerBound, OneRunScores, Scores

_METHODS = (
    *("clopper-pearson", "gdp", "dpsgd", "bayesian", "anytime", "anytime-gdp"),
    *("one-run", "one-run-fdp", "one-run-dpsgd"),
)
_SOURCES = ("auto", "coalmine", "jax-privacy", "opake", "privacyguard", "ml-privacy-meter")
_RULES = "sup, ranks, holdout, holdout:FRACTION, bonferroni, bonferroni:VALUE,VALUE,…, dkw, given:VALUE or optimistic"


def bound(
    delta: Annotated[float, typer.Option(help="δ, from 0 up to, not including, 1.")],
    confidence: Annotated[float, typer.Option(help="Between 0 and 1.")] = 0.95,
    method: Annotated[
        str | None,
        typer.Option(
            help="clopper-pearson (assumes nothing; default), gdp, dpsgd, bayesian, anytime, anytime-gdp; with "
            "--one-run: one-run (default), one-run-fdp or one-run-dpsgd.",
            autocompletion=beginning_with(lambda: _METHODS),
        ),
    ] = None,
    false_positives: Annotated[int | None, typer.Option(help="World-0 trials that were taken for world 1.")] = None,
    negatives: Annotated[int | None, typer.Option(help="Trials in world 0.")] = None,
    false_negatives: Annotated[int | None, typer.Option(help="World-1 trials that were taken for world 0.")] = None,
    positives: Annotated[int | None, typer.Option(help="Trials in world 1.")] = None,
    scores: Annotated[
        Path | None, typer.Option(help="CSV, JSON, Parquet or .npz: world,score; with --one-run: id,included,score.")
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="Who made the scores: coalmine, jax-privacy, opake, privacyguard, ml-privacy-meter, or auto (by the "
            "names in the file).",
            autocompletion=beginning_with(lambda: _SOURCES),
        ),
    ] = "auto",
    scores_out: Annotated[
        Path | None,
        typer.Option(help="With --from: the scores of non-members, where --scores holds those of members alone."),
    ] = None,
    member_scores: Annotated[
        str, typer.Option(help="higher or lower: which scores speak for a member (world 1).")
    ] = "higher",
    threshold: Annotated[
        str | None,
        typer.Option(
            help=f"How the threshold of scores is chosen: {_RULES}. sup (default) tries all and pays for it; ranks "
            "(default for dpsgd, for gdp and dpsgd alone) looks at all errors together."
        ),
    ] = None,
    copies: Annotated[int, typer.Option(help="k: in how many rows the worlds differ.")] = 1,
    sample_rate: Annotated[float | None, typer.Option(help="q, for dpsgd and one-run-dpsgd.")] = None,
    steps: Annotated[int | None, typer.Option(help="T, for dpsgd and one-run-dpsgd.")] = None,
    family: Annotated[
        str | None,
        typer.Option(
            help="dpsgd: standard (default) or last-iterate; one-run-fdp: gdp (default) or epsilon-delta.",
            autocompletion=beginning_with(lambda: ("standard", "last-iterate", "gdp", "epsilon-delta")),
        ),
    ] = None,
    sampling: SamplingName = "poisson",
    relation: RelationName = "add-remove",
    one_run: Annotated[
        bool | None,
        typer.Option(
            "--one-run/--no-one-run",
            help="One training with many canaries, or (the default but for scores of opake, privacyguard and "
            "ml-privacy-meter) a training for every score.",
        ),
    ] = None,
    canaries: Annotated[int | None, typer.Option(help="One run: number of canaries.")] = None,
    guesses: Annotated[int | None, typer.Option(help="One run: how many were guessed.")] = None,
    correct: Annotated[int | None, typer.Option(help="One run: how many guesses were right.")] = None,
    guess_in: Annotated[int | None, typer.Option(help="One run, scores: highest scores guessed IN.")] = None,
    guess_out: Annotated[int | None, typer.Option(help="One run, scores: lowest scores guessed OUT.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the hold-out split, the simulations and ties.")] = 0,
    as_json: Json = False,
) -> None:
    """The ε that trials prove: a lower bound that holds at the stated confidence, from counts, scores or one run.

    Scores of other auditing tools are read as they are, and what those tools would claim is shown beside what holds.
    """
    from coalmine.bounds import Evidence, Guesses
    from coalmine.cli._evidence import choose_method, known_mechanism
    from coalmine.records import Counts, OneRunScores

    foreign = _foreign(scores, source, scores_out, one_run=one_run, member_scores=member_scores)
    if foreign is not None:
        one_run = isinstance(foreign.evidence, OneRunScores)
    chosen = choose_method(method or ("one-run" if one_run else "clopper-pearson"), family)
    if (chosen.evidence is Evidence.ONE_RUN) is not bool(one_run):
        where = "with --one-run: its evidence is not" if one_run else "without --one-run: its evidence is"
        raise InvalidInputError(f"method = {method!r} is not allowed {where} one run")
    given = (
        foreign.evidence if foreign is not None else _own(scores, one_run=bool(one_run), member_scores=member_scores)
    )
    counts: dict[str, Any] = {
        "false_positives": false_positives,
        "negatives": negatives,
        "false_negatives": false_negatives,
        "positives": positives,
    }
    guessed: dict[str, Any] = {"canaries": canaries, "guesses": guesses, "correct": correct}
    found: LowerBound | Estimate
    if one_run:
        unused = {**counts, "threshold": threshold}
        _refuse({**unused, "copies": None if copies == 1 else copies}, "with --one-run")
        mechanism = known_mechanism(chosen, sample_rate=sample_rate, steps=steps, sampling=sampling, relation=relation)
        neighbours = {"relation": relation_named(relation)} if mechanism is None else {"mechanism": mechanism}
        found = _one_run(
            chosen,
            guessed,
            given,
            numbers=(guess_in, guess_out),
            common={"delta": delta, "confidence": confidence, "seed": seed, **neighbours},
        )
    else:
        _refuse({**guessed, "guess_in": guess_in, "guess_out": guess_out}, "without --one-run")
        mechanism = known_mechanism(chosen, sample_rate=sample_rate, steps=steps, sampling=sampling, relation=relation)
        found = _trials(
            chosen,
            counts,
            given,
            rule=threshold,
            seed=seed,
            common={"delta": delta, "confidence": confidence, "copies": copies, "relation": relation_named(relation)},
            mechanism=mechanism,
        )
    claims: tuple[ToolClaim, ...] = ()
    if foreign is not None:
        from coalmine.integrations.tool_formulas import tool_claims

        claims = tool_claims(foreign, delta=delta, confidence=confidence, seed=seed)
    notes = _notes(given if given is not None else Guesses(**guessed) if one_run else Counts(**counts))
    if as_json:
        more = _claimed(foreign, claims) if foreign is not None else {"notes": list(notes)} if notes else {}
        print_json(found.to_dict() | more)
        return
    _show(found)
    if foreign is None:
        print_lines([f"Note: {note}" for note in notes])
    if foreign is not None:
        _show_claims(foreign, claims)


def _foreign(
    path: Path | None, source: str, nonmembers: Path | None, *, one_run: bool | None, member_scores: str
) -> ToolScores | None:
    """Scores of another tool, or None where there are none."""
    from coalmine import _validate

    _validate.choice("from", source, _SOURCES)
    if path is None:
        if source not in ("auto", "coalmine") or nonmembers is not None:
            raise InvalidInputError("scores is missing: expected --scores with a file beside --from or --scores-out")
        return None
    from coalmine.integrations.tool_files import detect_tool, read_tool_scores

    if source == "coalmine" or (source == "auto" and nonmembers is None and detect_tool(path) is None):
        if nonmembers is not None:
            raise InvalidInputError("scores_out is not allowed with --from coalmine: expected both worlds in one file")
        return None
    return read_tool_scores(path, tool=source, nonmembers=nonmembers, one_run=one_run, member_scores=member_scores)


def _own(path: Path | None, *, one_run: bool, member_scores: str) -> Scores | OneRunScores | None:
    """Scores in a file of our own, with the direction that was said."""
    from coalmine import _validate
    from coalmine.integrations.score_files import read_canaries, read_scores
    from coalmine.records import OneRunScores, Scores

    _validate.choice("member_scores", member_scores, ("higher", "lower"))
    if path is None:
        if member_scores != "higher":
            raise InvalidInputError("member_scores = lower is not allowed without --scores")
        return None
    sign = 1.0 if member_scores == "higher" else -1.0
    if one_run:
        canaries = read_canaries(path)
        return OneRunScores(canaries.included, sign * canaries.score, canaries.ids)
    trials = read_scores(path)
    return Scores(sign * trials.world0, sign * trials.world1)


def _notes(evidence: Scores | OneRunScores | Counts | Guesses) -> tuple[str, ...]:
    """What a reader should know of counts and of scores in a file of our own."""
    from coalmine.bounds import points_the_wrong_way
    from coalmine.bounds.one_run import coin_notes
    from coalmine.records import OneRunScores, Scores

    notes: list[str] = []
    if isinstance(evidence, OneRunScores):
        notes += coin_notes(int(evidence.included.sum()), evidence.included.size)
    if points_the_wrong_way(evidence):
        scored = isinstance(evidence, OneRunScores | Scores)
        notes.append(
            "The evidence points the wrong way: "
            + (
                "members (world 1) have the smaller scores, though larger ones were said to speak for them. If these "
                "are losses, or if the sign was changed twice, say --member-scores the other way"
                if scored
                else "it is wrong more often than guessing would be, so the two answers seem to be exchanged"
            )
            + " (in advance: a direction chosen on the evidence is not paid for)."
        )
    return tuple(notes)


def _claimed(foreign: ToolScores, claims: tuple[ToolClaim, ...]) -> dict[str, Any]:
    """What belongs to scores of another tool, as JSON."""
    found = {"tool": foreign.tool, "notes": list(foreign.notes), "would_claim": [one.to_dict() for one in claims]}
    return {"other_tool": found}


def _show_claims(foreign: ToolScores, claims: tuple[ToolClaim, ...]) -> None:
    """What the other tool would claim, with what each number leaves out."""
    print_lines([""])
    print_table(
        f"What {foreign.tool} would say of these scores (its formulas, computed again; not bounds of ours)",
        ("formula", "epsilon", "delta", "level"),
        [
            (one.formula, number(one.epsilon), f"{one.delta:g}", "-" if one.level is None else f"{one.level:.3g}")
            for one in claims
        ],
    )
    print_lines([*(f"- {one.formula}: {one.holds}" for one in claims), *(f"Note: {note}" for note in foreign.notes)])


def _refuse(options: dict[str, Any], where: str) -> None:
    """Options that would be ignored are errors."""
    for name, value in options.items():
        if value is not None:
            raise InvalidInputError(f"{name} = {value} is not allowed {where}")


def _complete(given: dict[str, int | None], expected: str) -> dict[str, Any]:
    """All of these counts, or an error that names the missing ones."""
    missing = ["--" + name.replace("_", "-") for name, value in given.items() if value is None]
    if missing:
        raise InvalidInputError(f"{', '.join(missing)} not given: expected {expected}")
    return given


def parse_rule(text: str, *, seed: int) -> Rule | Optimistic:
    """A rule from its name, with its numbers after a colon: ``holdout:0.3``, ``bonferroni:0,1,2``, ``given:1.5``."""
    from coalmine.bounds import DKW, Bonferroni, Given, HoldOut, Optimistic, Ranks, Sup

    name, _, value = text.partition(":")
    try:
        if name == "given":
            return Given(float(value))
        if name == "bonferroni" and value:
            return Bonferroni(tuple(float(each) for each in value.split(",")))
        if name == "holdout":
            return HoldOut(fraction=float(value), seed=seed) if value else HoldOut(seed=seed)
    except InvalidInputError:
        raise
    except ValueError:
        raise InvalidInputError(f"threshold = {text!r} is not allowed: expected a number after '{name}:'") from None
    rules: dict[str, Rule | Optimistic] = {
        "sup": Sup(seed=seed),
        "ranks": Ranks(seed=seed),
        "bonferroni": Bonferroni(),
        "dkw": DKW(),
        "optimistic": Optimistic(),
    }
    if value or name not in rules:
        raise InvalidInputError(f"threshold = {text!r} is not allowed: expected {_RULES}")
    return rules[name]


def _trials(
    method: Method,
    counts: dict[str, int | None],
    scores: Scores | OneRunScores | None,
    *,
    rule: str | None,
    seed: int,
    common: dict[str, Any],
    mechanism: DpSgd | None,
) -> LowerBound | Estimate:
    """Independent trials, counted or scored."""
    from coalmine import bounds
    from coalmine.records import Counts

    evidence: Any
    threshold = None
    if scores is None:
        if rule is not None:
            raise InvalidInputError(f"threshold = {rule!r} is not allowed with counts: the counts have one already")
        evidence = Counts(**_complete(counts, "all four counts, or --scores with a file of scores"))
        if method.from_counts is not None:
            return method.from_counts(evidence, **common)
    else:
        _refuse(counts, "with --scores: the scores are counted here")
        if method.from_counts is not None:
            raise InvalidInputError(
                f"method = {method.name!r} is not allowed with --scores: expected counts of a fixed test"
            )
        usual = "ranks" if method.needs_mechanism else "sup"
        evidence, threshold = scores, parse_rule(rule or usual, seed=seed)
    found: LowerBound | Estimate = bounds.lower_bound(
        evidence, method=method.name, threshold=threshold, mechanism=mechanism, **common
    )
    return found


def _one_run(
    method: Method,
    guessed: dict[str, int | None],
    scores: Scores | OneRunScores | None,
    *,
    numbers: tuple[int | None, int | None],
    common: dict[str, Any],
) -> LowerBound:
    """One run, counted or scored."""
    from coalmine import bounds

    pairs = None
    if scores is None:
        _refuse({"guess_in": numbers[0], "guess_out": numbers[1]}, "without --scores: the guesses are counted already")
        expected = "--canaries, --guesses and --correct, or --scores with a file"
        evidence: Any = bounds.Guesses(**_complete(guessed, expected))
    else:
        _refuse(guessed, "with --scores: the guesses are counted here")
        evidence = scores
        if numbers != (None, None):
            pairs = [(numbers[0] or 0, numbers[1] or 0)]
    assert method.from_run is not None
    return method.from_run(evidence, guess_numbers=pairs, **common)


def _show(found: LowerBound | Estimate) -> None:
    """A small table and plain sentences."""
    from coalmine.records import LowerBound

    if isinstance(found, LowerBound):
        _show_bound(found)
        return
    rows = [("ε (a guess)", number(found.epsilon))]
    if found.interval is not None and found.credibility is not None:
        low, high = found.interval
        rows.append((f"{100 * found.credibility:g}% credible", f"{number(low)} to {number(high)}"))
    rows += [
        ("δ", f"{found.delta:g}"),
        ("method", found.method),
        ("neighbours", found.relation.value.replace("_", "-")),
    ]
    print_table("Estimate (proves nothing)", ("what", "value"), rows)
    print_lines(
        [
            "This is an estimate, not a bound: it may be above the truth more often than its level says. Do not report "
            "it as a lower bound.",
            *_assumptions(found.assumptions),
        ]
    )


def _show_bound(found: LowerBound) -> None:
    """The bound, its ceiling and what they mean: what is proved is rounded down, what limits it is rounded up."""
    from coalmine.report.rounding import down, up

    proved = down(found.epsilon, 4)
    rows = [
        ("ε is at least", proved),
        ("at δ", f"{found.delta:g}"),
        ("confidence", _in_percent(found.confidence)),
        ("method", found.method.replace("_", "-")),
        ("threshold", found.threshold_rule),
        (
            "neighbours",
            found.relation.value.replace("_", "-") + (f", {found.copies} copies" if found.copies > 1 else ""),
        ),
    ]
    if found.counts is not None:
        counts = found.counts
        rows.append(("false positives", f"{counts.false_positives:,} of {counts.negatives:,}"))
        rows.append(("false negatives", f"{counts.false_negatives:,} of {counts.positives:,}"))
    if "correct" in found.details:
        details = found.details
        rows.append(
            ("right guesses", f"{details['correct']:,} of {details['guesses']:,}, {details['canaries']:,} canaries")
        )
    for name, words, rounded in (("mu", "mu at least", down), ("noise_multiplier", "noise multiplier at most", up)):
        if name in found.details:
            rows.append((words, rounded(found.details[name], 4)))
    if found.ceiling is not None:
        rows.append(("ceiling", up(found.ceiling, 4)))
    print_table("Lower bound", ("what", "value"), rows)
    level = 1.0 - found.confidence
    about = "about " if found.threshold_rule in ("sup", "ranks") else ""  # simulated copies scatter
    lines = [
        (
            f"{_any_claim(found)} of an ε below {proved} at δ = {found.delta:g} is refuted. If all that "
            f"is assumed holds, a bound like this is too high in at most {100 * level:.3g}% of audits."
            if found.epsilon > 0.0
            else f"Nothing is refuted by this method, not even ε = 0 at δ = {found.delta:g}. That is no proof of "
            "privacy: a better attack, more trials or a smaller δ may show more."
        )
    ]
    if found.ceiling == 0.0:
        lines.append("So little evidence could not have refuted any ε, whatever the truth is (its ceiling is 0).")
    elif found.ceiling is not None:
        lines.append(
            f"With this many trials even an attack without error proves no more than {about}{up(found.ceiling, 4)} "
            "(the ceiling): a claim above it cannot be refuted here, whatever the truth is."
        )
    print_lines([*lines, *_assumptions(found.assumptions)])


def _any_claim(found: LowerBound) -> str:
    """The words "any claim", behind the condition of a bound that stands on a shape of the trade-off curve."""
    from coalmine.bounds.methods import METHODS

    method = METHODS[found.method]
    return "Any claim" if method.decides else f"{method.words.partition(', ')[0]}, any claim"


def _assumptions(words: tuple[str, ...]) -> list[str]:
    """The assumptions, one a line."""
    return ["Assumed:", *(f"- {word}" for word in words)]


def _in_percent(confidence: float) -> str:
    """A confidence in per cent, which is never all of them.

    >>> _in_percent(0.9975), _in_percent(0.999999999)
    ('99.75%', '99.9999999%')
    """
    shown = f"{100 * confidence:g}"
    return f"{100 * confidence:.12g}%" if shown == "100" else f"{shown}%"
