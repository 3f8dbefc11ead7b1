"""One run for people: canaries with their coins and scores, what was guessed, the trade-off, and the price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
from markupsafe import Markup

from coalmine._validate import counted
from coalmine.auditing.proof import METHODS
from coalmine.one_run.section import evidence
from coalmine.report import render, rounding
from coalmine.report.figures import INK, NARROW, PROMISED, PROVED, QUIET, WIDE, Figure, chart_of, finished

if TYPE_CHECKING:
    from coalmine.auditing.results import AdversaryResult

_BINS = 40
_SHOWN = 8
_GUESSES = {"in": "guessed in", "out": "guessed out", "": "not guessed"}


def section_of(one: AdversaryResult) -> dict[str, Any]:
    """What :func:`coalmine.one_run.section` gives, for one adversary of an audit."""
    assert one.one_run is not None
    found = one.one_run
    price = None
    if found.with_canaries is not None and one.accuracy is not None:
        price = {"with_canaries": found.with_canaries, "without": one.accuracy}
    return {**found.to_dict(), **evidence(found.scores, design=found.design), "price": price}


def scores(section: Mapping[str, Any], *, width: int = WIDE, name: str = "one-run") -> Figure:
    """Histograms of the scores, in and out, with the ranges that were guessed."""
    canaries = section["canaries"]
    values = np.asarray(canaries["score"], dtype=np.float64)
    included = np.asarray(canaries["included"], dtype=bool)
    guess = np.asarray(canaries["guess"], dtype=object)
    edges = np.linspace(values.min(), max(values.max(), values.min() + 1e-9), _BINS + 1)
    kinds = {"in the training": included, "left out": ~included}
    rows = [
        {"from": float(edges[i]), "to": float(edges[i + 1]), "count": int(count), "coin": kind}
        for kind, chosen in kinds.items()
        for i, count in enumerate(np.histogram(values[chosen], edges)[0])
    ]
    bars = (
        chart_of(rows)
        .mark_bar(opacity=0.65, stroke=INK, strokeWidth=0.4)
        .encode(
            x=alt.X("from:Q", title="score (larger speaks for a canary that is in)"),
            x2="to:Q",
            y=alt.Y("count:Q", title="canaries", stack=None),
            y2=alt.datum(0),
            color=alt.Color(
                "coin:N",
                scale=alt.Scale(domain=list(kinds), range=[PROVED, PROMISED]),
                legend=alt.Legend(title=None, orient="top", symbolType="square"),
            ),
        )
    )
    marks: list[dict[str, Any]] = []
    if (guess == "out").any():
        marks.append({"at": float(values[guess == "out"].max()), "what": "guessed out up to here"})
    if (guess == "in").any():
        marks.append({"at": float(values[guess == "in"].min()), "what": "guessed in from here"})
    rules = (
        chart_of(marks)
        .mark_rule(color=INK, strokeWidth=1.5)
        .encode(
            x="at:Q",
            strokeDash=alt.StrokeDash(
                "what:N",
                scale=alt.Scale(domain=[mark["what"] for mark in marks], range=[[2, 3], [8, 3]][-len(marks) :]),
                legend=alt.Legend(title=None, orient="top", symbolType="stroke", symbolStrokeColor=INK),
            ),
        )
    )
    guesses = section["guesses"]
    title = (
        f"{guesses['correct']:,} of {guesses['guesses']:,} guesses about {guesses['canaries']:,} canaries were right"
    )
    return Figure(
        name=f"{name}-scores",
        title=title,
        caption=(
            "Scores of the canaries that the coins put into the training, and of those that were left out. The highest "
            "were guessed in and the lowest out, as many as had been fixed beforehand; the rest was not guessed."
        ),
        chart=finished(alt.layer(bars, rules).properties(width=width, height=230), title, width),
    )


def trade_off(section: Mapping[str, Any], *, width: int = NARROW, name: str = "one-run") -> Figure:
    """False alarms against misses of "the score is above a threshold", and the fewest that the claim allows."""
    names = {"false_negatives": "this attack", "allowed": "lowest error rates the claim permits", "": "random guessing"}
    rows = [
        {"alarm": point["false_positives"], "miss": point[kind], "name": names[kind], "place": place}
        for kind in ("false_negatives", "allowed")
        for place, point in enumerate(section["trade_off"])
    ]
    rows += [{"alarm": share, "miss": 1.0 - share, "name": names[""], "place": share} for share in (0.0, 1.0)]
    domain = list(names.values())
    lines = (
        chart_of(rows)
        .mark_line(strokeWidth=2, clip=True)
        .encode(
            x=alt.X("alarm:Q", title="false alarms (share of canaries left out)", scale=_UNIT, axis=_PERCENT),
            y=alt.Y("miss:Q", title="misses (share of canaries in)", scale=_UNIT, axis=_PERCENT),
            color=alt.Color(
                "name:N",
                scale=alt.Scale(domain=domain, range=[PROVED, "#c77f00", QUIET]),
                legend=alt.Legend(title=None, orient="top", columns=1, symbolType="stroke", symbolStrokeWidth=3),
            ),
            strokeDash=alt.StrokeDash("name:N", scale=alt.Scale(domain=domain, range=[[1, 0], [1, 0], [2, 3]])),
            order="place:Q",
        )
    )
    title = "The errors of this attack on the canaries, against the fewest that the claim allows"
    return Figure(
        name=f"{name}-tradeoff",
        title=title,
        caption=(
            "Each point on the blue line is a threshold: how often a canary that was left out lies above it, and how "
            "often one that was in lies below. Canaries of one training may depend on each other, so there is no band "
            "around the line, and the verdict rests on the guesses that were fixed beforehand."
        ),
        chart=finished(alt.layer(lines).properties(width=width, height=width - 60), title, width),
    )


_UNIT = alt.Scale(domain=[0, 1], nice=False)
_PERCENT = alt.Axis(format="%", tickCount=5)


def figures(section: Mapping[str, Any], *, name: str = "one-run") -> list[Figure]:
    """Both figures, in the width of a column."""
    return [scores(section, width=NARROW, name=name), trade_off(section, name=name)]


def shown(section: Mapping[str, Any], *, name: str = "one-run") -> dict[str, Any]:
    """Everything that the page shows of one run: sentences, figures, a table of guesses, a table of canaries."""
    return {
        **told(section),
        "figures": [
            {"title": one.title, "caption": one.caption, "svg": Markup(render.inline_svg(one)), "narrow": None}
            for one in figures(section, name=name)
        ],
    }


def told(section: Mapping[str, Any]) -> dict[str, Any]:
    """The same without the figures."""
    return {
        "lines": sentences(section),
        "counts": [
            (_GUESSES[guess], f"{found['in']:,}", f"{found['out']:,}", _right(guess, found))
            for guess, found in section["counts"].items()
        ],
        "canaries": _canaries(section["canaries"]),
    }


def sentences(section: Mapping[str, Any]) -> list[str]:
    """What was done, and what it cost, in words."""
    design, guesses, price = section["design"], section["guesses"], section["price"]
    runs = section["runs"]
    where = "one training" if runs == 1 else f"{runs} trainings together"
    sides = (("guess_in", "highest scores are guessed in"), ("guess_out", "lowest scores are guessed out"))
    fixed = [f"the {design[name]:,} {what}" for name, what in sides if design[name]]
    lines = [
        f"{design['canaries']:,} canaries were put into {where}, or left out, each by a fair coin of its own. Before a "
        f"score was seen it was fixed that {' and '.join(fixed)}. {guesses['correct']:,} of "
        f"{guesses['guesses']:,} guesses were right.",
    ]
    if price is not None:
        lines.append(
            f"The price: the model answers {100 * price['with_canaries']:.1f}% of test rows rightly with the canaries, "
            f"{100 * price['without']:.1f}% without them (same start, batches and noise)."
        )
    return lines


def _right(guess: str, found: Mapping[str, int]) -> str:
    """The share of right guesses."""
    number = found["in"] + found["out"]
    if not guess or not number:
        return "–"
    return f"{rounding.near(100.0 * found[guess] / number, 1)}%"


def _canaries(canaries: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """The canaries with the highest and the lowest scores."""
    every = ranked(canaries)
    return every if len(every) <= 2 * _SHOWN else [*every[:_SHOWN], *every[-_SHOWN:]]


def ranked(canaries: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Every canary, the highest score first: id, score, coin, guess."""
    order = np.argsort(np.asarray(canaries["score"], dtype=np.float64), kind="stable")[::-1]
    return [
        (
            str(canaries["id"][place]),
            f"{canaries['score'][place]:.3f}",
            "in" if canaries["included"][place] else "out",
            _GUESSES[canaries["guess"][place]],
        )
        for place in order.tolist()
    ]


def page(section: Mapping[str, Any], *, kept: Sequence[tuple[str, str]] = ()) -> str:
    """The report of one run as one HTML document: what :func:`coalmine.one_run.section` gives, for people.

    ``kept`` says what it is called and where it comes from; without it, the run and the digest alone.
    """
    from coalmine.report.html import render_template

    known = [("Run", str(section.get("run") or "")), ("Digest", str(section.get("digest") or ""))]
    about = list(kept) or [(key, value) for key, value in known if value]
    return render_template({**judged(section), "run": shown(section), "kept": about}, name="one_run.html.j2")


def judged(section: Mapping[str, Any]) -> dict[str, Any]:
    """What the judge said of one run: the verdict in words, why, and every bound."""
    verdict, claim = section["verdict"], section["design"]["claim"]
    sure = rounding.confidence(verdict["confidence"])
    said = {
        "refuted": f"Refuted at {sure} confidence: {_claim(claim)} is false",
        "consistent": f"Consistent: nothing here contradicts {_claim(claim)}",
        "inconclusive": f"Inconclusive: this run says nothing about {_claim(claim)}",
    }[verdict["outcome"]]
    return {
        "verdict": f"{said}.",
        "outcome": verdict["outcome"],
        "reasons": verdict["reasons"],
        "bounds": [_bound(bound, decides=place == 0) for place, bound in enumerate(section["bounds"])],
        "confidence": sure,
    }


def _claim(claim: Mapping[str, Any]) -> str:
    """A claim from plain data, in words."""
    point = f"δ = {rounding.small(claim['delta'])}"
    if claim["kind"] == "epsilon":
        return f"the claim ε = {claim['epsilon']:g} at {point}"
    found = claim["mechanism"]
    return (
        f"the claim of DP-SGD with sampling rate {found['sample_rate']:.4g}, noise multiplier "
        f"{found['noise_multiplier']:.4g} and {counted(found['steps'], 'step')} ({point})"
    )


def _bound(bound: Mapping[str, Any], *, decides: bool) -> dict[str, Any]:
    """One row of the table of bounds."""
    method = METHODS[bound["method"]]
    return {
        "decides": decides,
        "method": f"{method.words} ({method.name.replace('_', '-')})",
        "epsilon": f"ε ≥ {rounding.down(bound['epsilon'])}",
        "kind": "proved" if method.decides else "proved only if its assumption holds",
        "ceiling": "none" if bound["ceiling"] is None else rounding.down(bound["ceiling"]),
        "assumptions": bound["assumptions"],
    }
