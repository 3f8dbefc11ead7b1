"""The figures of an audit, as Altair charts: one specification serves the notebook, the page, and print.

Colours are told apart in grey too, and by people who do not see red or green: dark blue, orange, pale grey, with
different shapes and line patterns beside them.
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
from typing import TYPE_CHECKING, Any

import altair as alt

from coalmine.auditing.proof import METHODS
from coalmine.records import Outcome
from coalmine.report import rounding, series, words

if TYPE_CHECKING:
    from coalmine.auditing.results import AdversaryResult, AuditResult

INK, QUIET, PALE = "#1a1a1a", "#595959", "#d4d4d4"
PROVED, PROMISED, SECOND = "#0b4f8a", "#e69f00", "#f3cf86"
COLORS = {
    INK: "ink",
    QUIET: "quiet",
    PALE: "line",
    PROVED: "blue",
    PROMISED: "orange",
    SECOND: "pale-orange",
    "#c77f00": "dark-orange",
    "#c9d9ea": "pale-blue",
    "#7fa3c7": "soft-blue",
    "#e6e6e6": "grid",
    "#9b2c00": "warn",
    "#fdf0ea": "refuted",
    "#ffffff": "paper",
    "white": "paper",
}
"""The colors of all figures, and the names under which the page's style sheet has a light and a dark form of them."""
FONT = "Arial, Helvetica, Liberation Sans, sans-serif"
NARROW, WIDE = 340, 860
"""Widths in pixels: one fits a phone and a third of a screen, the other a page."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart with a name for files, a title that says what it shows, and a caption for a reader in a hurry.

    ``caption`` says how to read every figure of this kind, so a page prints it once; ``note`` is about this one alone.
    """

    name: str
    title: str
    caption: str
    chart: Any
    note: str = ""


def overview(result: AuditResult, *, width: int = WIDE) -> Figure:
    """Theory, evidence and meaning as one picture: every ε on one axis, with the belief it allows above it."""
    rows, marks, labels = _rows(result)
    end = _end_of_axis([row["to"] for row in rows])
    title = _overview_title(result)
    y = alt.Y("row:N", sort=[label["row"] for label in labels], axis=None)
    scale = alt.Scale(domain=[0.0, end], nice=False, zero=True)
    ticks = 5 if width < 600 else 10
    x = alt.X(
        "from:Q",
        scale=scale,
        axis=alt.Axis(
            title="privacy loss ε (no unit; smaller is more private)", tickCount=ticks, grid=True, orient="bottom"
        ),
    )
    kinds = [kind for kind in _MEANINGS if any(row["kind"] == kind for row in rows)]
    meanings = [_MEANINGS[kind] for kind in kinds]
    bars = (
        chart_of([{**row, "to": min(row["to"], end), "what": _MEANINGS[row["kind"]]} for row in rows])
        .mark_bar(height=13, stroke=INK, strokeWidth=1)
        .encode(
            x=x,
            x2="to:Q",
            y=y,
            color=alt.Color(
                "what:N",
                scale=alt.Scale(domain=meanings, range=[_FILLS[kind] for kind in kinds]),
                legend=alt.Legend(title=None, orient="bottom", columns=1 if width < 600 else 4, symbolType="square"),
            ),
        )
    )
    layers: list[Any] = [bars]
    inside = [mark for mark in marks if mark["epsilon"] <= end]
    if marks:
        shapes = {mark["what"]: "M0,-1V1" if mark["what"] == _CEILING else "circle" for mark in marks}
        layers.append(
            chart_of(inside)
            .mark_point(size=150, filled=False, stroke=INK, strokeWidth=2, opacity=1)
            .encode(
                x=alt.X("epsilon:Q", scale=scale, axis=None),
                y=y,
                shape=alt.Shape(
                    "what:N",
                    scale=alt.Scale(domain=list(shapes), range=list(shapes.values())),
                    legend=alt.Legend(title=None, orient="bottom", columns=1 if width < 600 else 2),
                ),
            )
        )
    far = _beyond([*marks, *({"row": row["row"], "epsilon": row["to"]} for row in rows)], end, y=y, scale=scale)
    layers += far
    room = width - 16
    words_above = chart_of(labels).mark_text(
        align="left", baseline="bottom", dy=-10, dx=1, font=FONT, fontSize=12, fontWeight="bold", color=INK, limit=room
    )
    words_below = chart_of(labels).mark_text(
        align="left", baseline="bottom", dy=22, dx=1, font=FONT, fontSize=11, color=QUIET, limit=room
    )
    layers += [
        words_above.encode(x=alt.X("zero:Q", scale=scale, axis=_belief_axis(ticks)), y=y, text="name:N"),
        words_below.encode(x=alt.X("zero:Q", scale=scale, axis=None), y=y, text="note:N"),
    ]
    chart = alt.layer(*layers).resolve_axis(x="independent").properties(width=width, height=56 * len(labels))
    caption = (
        f"Each bar is one statement about ε for one row, at δ = {rounding.small(result.config.audit.delta)}; what is "
        f"proved holds at {rounding.confidence(result.config.audit.confidence)} confidence, all bars together. "
        f"{_reading(result)} The scale on top says how sure an attacker who starts at 50% may become, "
        "to the nearest tenth of a percent."
        f"{' A value beyond the axis stands at its edge.' if far else ''}"
    )
    return Figure(name="overview", title=title, caption=caption, chart=finished(chart, title, width))


_MEANINGS = {
    "guarantee": "guaranteed: never more",
    "claim": "claimed: put to the test",
    "heuristic": "heuristic estimate, not a bound",
    "proved": "proved by attack: at least this much",
}
_FILLS = {"guarantee": PROMISED, "claim": SECOND, "heuristic": "#ffffff", "proved": PROVED}
_FAR = 6.0
"""A bar this many times as long as the next one would squeeze all others: it is cut off, and its value written."""


def _end_of_axis(lengths: list[float]) -> float:
    """Where the axis of the overview ends.

    >>> round(_end_of_axis([4.0, 0.5]), 2), _end_of_axis([3600.0, 1.0, 0.2])
    (4.32, 2.0)
    """
    longest, *rest = sorted([*lengths, 0.5], reverse=True)
    following = max([*rest, 0.5])
    return 2.0 * following if longest > _FAR * max(following, 1.0) else 1.08 * longest


def _beyond(marks: list[dict[str, Any]], end: float, *, y: alt.Y, scale: alt.Scale) -> list[Any]:
    """Arrows at the edge of the axis, with the values, for what lies beyond it."""
    far: dict[str, list[float]] = {}
    for mark in marks:
        if mark["epsilon"] > end:
            far.setdefault(mark["row"], []).append(mark["epsilon"])
    if not far:
        return []
    rows = [
        {"row": row, "epsilon": end, "text": f"{', '.join(rounding.down(one) for one in sorted(values))} ▸"}
        for row, values in far.items()
    ]
    text = chart_of(rows).mark_text(
        align="right", baseline="bottom", dy=-10, dx=-1, font=FONT, fontSize=11, fontWeight="bold", color=INK
    )
    return [text.encode(x=alt.X("epsilon:Q", scale=scale, axis=None), y=y, text="text:N")]


_CEILING = "ceiling: the most these trials could prove"


def histograms(one: AdversaryResult, *, width: int = NARROW) -> Figure:
    """The scores of the two worlds over each other."""
    rows = series.histogram(series.scores_of(one))
    plays = words.plays(one)
    title = f"The scores that {one.label} gives to {plays} without and with the canary"
    steps = [{**row, "at": row["from"]} for row in rows]
    for world in ("world 0", "world 1"):  # close the last step
        last = [row for row in rows if row["world"] == world][-1]
        steps.append({**last, "at": last["to"]})
    names = {"world 0": "world 0: without the canary", "world 1": "world 1: with the canary"}
    for row in steps:
        row["name"] = names[row["world"]]
    color = alt.Color(
        "name:N",
        scale=alt.Scale(domain=list(names.values()), range=[PROMISED, PROVED]),
        legend=alt.Legend(title=None, orient="top", columns=1, symbolType="square"),
    )
    x = alt.X(
        "at:Q",
        title=f"score of one {plays.removesuffix('s')} (no unit)",
        scale=alt.Scale(zero=False, nice=False),
        axis=alt.Axis(tickCount=5),
    )
    y = alt.Y("percent:Q", title=f"{plays} of that world (%)")
    filled = (
        chart_of([row for row in steps if row["world"] == "world 0"])
        .mark_area(interpolate="step-after", color=SECOND, line={"color": PROMISED, "strokeWidth": 1})
        .encode(x=x, y=y)
    )
    lines = chart_of(steps).mark_line(interpolate="step-after", strokeWidth=2).encode(x=x, y=y, color=color)
    layers: list[Any] = [filled, lines]
    threshold = one.bound.details.get("threshold")
    if one.bound.epsilon > 0.0 and isinstance(threshold, float) and math.isfinite(threshold):
        layers.append(
            chart_of([{"at": threshold}]).mark_rule(color=INK, strokeDash=[4, 3], strokeWidth=1.5).encode(x=x)
        )
    caption = (
        f"Every {plays.removesuffix('s')} ends in one score; a larger score speaks for world 1. Where the outlines lie "
        "on each other, the attack learns nothing."
    )
    return Figure(
        name=f"scores-{slug(one)}",
        title=title,
        caption=caption,
        note=f"{sum(one.failed):,} {plays} failed and stand at the far left." if any(one.failed) else "",
        chart=finished(
            alt.layer(*layers).properties(width=width, height=230),
            title,
            width,
            subtitle="dashed: the threshold used for the bound" if len(layers) > 2 else "",
        ),
    )


def trade_off(result: AuditResult, one: AdversaryResult, *, width: int = NARROW) -> Figure:
    """False alarms against misses: what the attack reached, how sure that is, and the lowest rates permitted."""
    rows = series.trade_off(series.scores_of(one), confidence=one.bound.confidence)
    limits = series.promised(result, one)
    x = alt.X("alarm:Q", title=f"false alarms (share of world-0 {words.plays(one)})", scale=_UNIT, axis=_percent())
    layers: list[Any] = [
        chart_of(rows)
        .mark_area(interpolate="step-after", color="#c9d9ea", stroke="#7fa3c7", strokeWidth=0.8)
        .encode(
            x=x,
            y=alt.Y("low:Q", title=f"misses (share of world-1 {words.plays(one)})", scale=_UNIT, axis=_percent()),
            y2="high:Q",
        ),
    ]
    names = {
        "attack": "this attack",
        "guarantee": "lowest error rates the guarantee permits",
        "claim": "lowest error rates the claim permits",
        "coin": "random guessing",
    }
    lines = [{"curve": "attack", "alarm": row["alarm"], "miss": row["miss"]} for row in rows] + limits
    lines += [{"curve": "coin", "alarm": 0.0, "miss": 1.0}, {"curve": "coin", "alarm": 1.0, "miss": 0.0}]
    kinds = [name for name in names if any(line["curve"] == name for line in lines)]
    colors = {"attack": PROVED, "guarantee": "#c77f00", "claim": INK, "coin": QUIET}
    dashes = {"attack": [1, 0], "guarantee": [1, 0], "claim": [7, 3], "coin": [2, 3]}
    widths = {"attack": 2.0, "guarantee": 3.0, "claim": 2.0, "coin": 1.2}
    for line in lines:
        line["name"] = names[line["curve"]]
    layers += [
        (
            chart_of([line for line in lines if line["curve"] == kind])
            .mark_line(strokeWidth=widths[kind], interpolate="step-after" if kind == "attack" else "linear", clip=True)
            .encode(
                x=x,
                y=alt.Y("miss:Q", scale=_UNIT),
                color=alt.Color(
                    "name:N",
                    scale=alt.Scale(domain=[names[k] for k in kinds], range=[colors[k] for k in kinds]),
                    legend=alt.Legend(title=None, orient="top", columns=1, symbolType="stroke", symbolStrokeWidth=3),
                ),
                strokeDash=alt.StrokeDash(
                    "name:N",
                    scale=alt.Scale(domain=[names[k] for k in kinds], range=[dashes[k] for k in kinds]),
                ),
            )
        )
        for kind in kinds
    ]
    counts = one.bound.counts if one.bound.epsilon > 0.0 else None
    if counts is not None:
        layers.append(
            chart_of([{"alarm": counts.false_positive_rate, "miss": counts.false_negative_rate}])
            .mark_point(shape="diamond", filled=True, size=90, color=INK, opacity=1)
            .encode(x=x, y=alt.Y("miss:Q", scale=_UNIT))
        )
    sure = rounding.confidence(one.bound.confidence)
    title = f"The errors that {one.label} makes, against the fewest that privacy allows"
    caption = (
        "Each point on the blue line is a threshold; further down and left is a better attack. A band "
        "(Dvoretzky–Kiefer–Wolfowitz) wholly below the lowest error rates permitted would break the promise. Diamond: "
        "the threshold used for the bound."
    )
    rows_apart = one.bound.copies
    return Figure(
        name=f"tradeoff-{slug(one)}",
        title=title,
        caption=caption,
        note=f"The promise is drawn for worlds that differ in {rows_apart} rows." if rows_apart > 1 else "",
        chart=finished(
            alt.layer(*layers).properties(width=width, height=width - 60),
            title,
            width,
            subtitle=f"band: holds the whole true line at {sure} confidence",
        ),
    )


def growth(result: AuditResult, one: AdversaryResult, *, width: int = NARROW) -> Figure:
    """What the first n trials alone prove, as n grows, below what a perfect attack could have proved."""
    points, plays = series.growth(one), words.plays(one)
    names = {"epsilon": f"proved by the first n {plays}", "ceiling": f"the most that n {plays} can prove"}
    rows = [
        {"trials": point["trials"], "epsilon": point[key], "name": names[key]}
        for key in names
        for point in points
        if point[key] is not None and math.isfinite(point[key])
    ]
    low, high = points[0]["trials"], points[-1]["trials"]
    if _promises(result):
        names["guarantee"] = "claim" if result.subject.own else "guarantee"
        rows += [{"trials": n, "epsilon": result.promised, "name": names["guarantee"]} for n in (low, high)]
    x = alt.X(
        "trials:Q",
        title=f"{plays} n, both worlds together (log scale)",
        scale=alt.Scale(type="log", domain=[low * 0.9, high * 1.1] if high > low else [low / 2, low * 2], nice=False),
        axis=alt.Axis(values=[point["trials"] for point in points], format="~s", grid=True, labelOverlap="greedy"),
    )
    domain = list(names.values())
    color = alt.Color(
        "name:N",
        scale=alt.Scale(domain=domain, range=[PROVED, QUIET, "#c77f00"][: len(domain)]),
        legend=alt.Legend(title=None, orient="top", columns=1, symbolType="stroke", symbolStrokeWidth=3),
    )
    dash = alt.StrokeDash("name:N", scale=alt.Scale(domain=domain, range=[[1, 0], [4, 3], [1, 0]][: len(domain)]))
    y = alt.Y("epsilon:Q", title="privacy loss ε (no unit)", scale=alt.Scale(zero=True))
    lines = chart_of(rows).mark_line(strokeWidth=2).encode(x=x, y=y, color=color, strokeDash=dash)
    dots = (
        chart_of([row for row in rows if row["name"] == names["epsilon"]])
        .mark_point(filled=True, size=55, color=PROVED, opacity=1)
        .encode(x=x, y=y)
    )
    sure = rounding.confidence(one.bound.confidence)
    title = f"What {one.label} proved as the number of {plays} grew"
    caption = f"Each dot is the bound of the first n {plays}{_how(one)}. No attack can lift it above the dashed line."
    return Figure(
        name=f"growth-{slug(one)}",
        title=title,
        caption=caption,
        chart=finished(
            alt.layer(lines, dots).properties(width=width, height=230),
            title,
            width,
            subtitle=f"each dot by itself at {sure} confidence",
        ),
    )


def all_figures(result: AuditResult) -> list[Figure]:
    """The overview, then those of each adversary, and its beliefs where it has any."""
    from coalmine.report import persons

    found = [overview(result)]
    for one in result.adversaries:
        found += of_adversary(result, one)
    return [*found, *(wide for _, _, wide, _ in persons.sections(result))]


def of_adversary(result: AuditResult, one: AdversaryResult) -> list[Figure]:
    """Scores, errors, and what was proved as trials came in; for canaries of one training, scores and errors."""
    if one.one_run is not None:
        from coalmine.report import one_run

        return one_run.figures(one_run.section_of(one), name=slug(one))
    return [histograms(one), trade_off(result, one), growth(result, one)]


def _rows(result: AuditResult) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """The bars, the marks and the labels of the overview."""
    rows: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []

    def add(kind: str, name: str, note: str, value: float) -> str:
        row = f"{len(labels)}"
        labels.append({"row": row, "name": name, "note": note, "zero": 0.0})
        if 0.0 < value < math.inf:
            rows.append({"row": row, "kind": kind, "from": 0.0, "to": value})
        return row

    claimed = result.claim_epsilon if result.subject.own else result.config.audit.claim_epsilon
    if result.guarantee is not None:
        note = "theory, for every attack" if _promises(result) else words.nothing(result)
        add("guarantee", f"Guarantee: {words.epsilon(result.guarantee)}", note, result.guarantee.epsilon)
    if claimed:
        add("claim", f"Claim: ε ≤ {rounding.up(claimed)}", f"put to the test: {result.verdict}", claimed)
    if result.heuristic is not None:
        add(
            "heuristic",
            f"Prediction: {words.epsilon(result.heuristic)}",
            "a heuristic, not a bound",
            result.heuristic.epsilon,
        )
    for one in result.ranked:
        bound = one.bound
        row = add("proved", f"{one.label}: {words.proved(bound)}", _note(one), bound.epsilon)
        if bound.ceiling is not None and math.isfinite(bound.ceiling):
            marks.append({"row": row, "what": _CEILING, "epsilon": bound.ceiling})
        assumed = one.assumed
        if assumed is not None and 0.0 < assumed.epsilon < math.inf:
            sentence = METHODS[assumed.method].words
            marks.append(
                {"row": row, "what": f"proved {sentence[0].lower()}{sentence[1:]}", "epsilon": assumed.epsilon}
            )
    return rows, marks, labels


def _overview_title(result: AuditResult) -> str:
    """What the overview shows, in a sentence."""
    mine, chosen = result.on_data, result.on_chosen_data
    proved = f"At least {rounding.least(result.strongest.bound.epsilon)} is proved"
    if not rounding.worth_saying(result.strongest.bound.epsilon):
        proved = "No attack proved any leakage"
    elif mine is not None and chosen is not None:
        both = [
            rounding.least(one.bound.epsilon) if rounding.worth_saying(one.bound.epsilon) else "nothing"
            for one in (mine, chosen)
        ]
        least = "At least " if rounding.worth_saying(mine.bound.epsilon) else ""
        proved = f"{least}{both[0]} is proved on your data and {both[1]} on data that the attacker chose"
        proved = proved[0].upper() + proved[1:]
    own = result.subject.own
    promised = "claimed" if own or result.config.audit.claim_epsilon else "guaranteed"
    if result.verdict.outcome is Outcome.REFUTED and result.strongest.bound.epsilon > result.claim_epsilon:
        known = f"{proved}, although no more than {rounding.up(result.claim_epsilon)} is {promised}"
    elif result.verdict.outcome is Outcome.REFUTED:
        known = (
            f"{proved}; that no more than {rounding.up(result.claim_epsilon)} leaks is refuted by the attack's errors"
        )
    elif _promises(result):
        known = f"{proved}, at most {rounding.up(result.promised)} is {'claimed' if own else 'guaranteed'}"
    else:
        known = f"{proved}, nothing is guaranteed"
    return f"{known}: what is known about the privacy loss ε"


def _reading(result: AuditResult) -> str:
    """How the bars of the overview stand to each other."""
    if result.verdict.outcome is Outcome.REFUTED:
        if result.strongest.bound.epsilon > result.claim_epsilon:
            return f"Here the longest blue bar goes beyond {words.claim(result)}: that is false."
        return "What is claimed is refuted by its whole trade-off curve, which says more than its ε."
    if not _promises(result):
        return "The truth is at least the longest blue bar; nothing limits it from above."
    if result.subject.own:
        return "The truth is at least the longest blue bar; whether it stays within the claim is not proved."
    return "If the program is what theory describes, the truth lies between the longest blue bar and the orange one."


def _note(one: AdversaryResult) -> str:
    """What stands below an adversary's bar."""
    note = words.played(one)
    if one.bound.ceiling is not None:
        note += f" (ceiling {rounding.down(one.bound.ceiling)})"
    assumed = one.assumed
    if assumed is None or not assumed.epsilon > 0.0:
        return note
    return f"{note}; ≥ {rounding.down(assumed.epsilon)} {METHODS[assumed.method].short}"


def _promises(result: AuditResult) -> bool:
    return result.promised < math.inf


_LEGENDS = (
    "{offset: 14, bottom: {direction: 'vertical', anchor: 'start'}, top: {direction: 'vertical', anchor: 'start'}}"
)
_UNIT = alt.Scale(domain=[0, 1], nice=False)


def _percent() -> alt.Axis:
    return alt.Axis(format="%", tickCount=5)


def _belief_axis(ticks: int) -> alt.Axis:
    """The axis on top: ε as the belief 1/(1 + e^−ε) of one who starts at one half.

    Rounded to the nearest: it is read for what is promised, which is rounded up elsewhere, and for what is proved.
    """
    return alt.Axis(
        orient="top",
        title="attacker's certainty (prior 50%)",
        tickCount=ticks,
        grid=False,
        labelExpr="datum.value > 6.95 ? '>99.9%' : format(1/(1+exp(-datum.value)), '.1%')",
        labelOverlap="greedy",
    )


def chart_of(rows: list[dict[str, Any]]) -> alt.Chart:
    """A chart of these rows, which it carries itself."""
    return alt.Chart(alt.InlineData(values=rows))


def _how(one: AdversaryResult) -> str:
    """What the growing bound leaves out, where the bound that counts assumes more than it."""
    return "" if series.assumes_nothing(one) is one.bound else " with nothing assumed about the algorithm"


def slug(one: AdversaryResult) -> str:
    """A name for files, from an adversary's label."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in one.label.lower())
    return "-".join(part for part in letters.split("-") if part) or "adversary"


def finished(chart: Any, title: str, width: int, *, subtitle: str = "", fit: bool = True) -> Any:
    """The chart with its title, in the house style."""
    lines = textwrap.wrap(title, int(width / 7.6))
    return (
        chart.properties(
            title=alt.Title(
                lines,
                anchor="start",
                frame="bounds",
                fontSize=13,
                fontWeight="bold",
                color=INK,
                subtitleColor=QUIET,
                subtitleFontSize=11,
                subtitlePadding=4,
                offset=12,
                subtitle=textwrap.wrap(subtitle, int(width / 6.2)) or alt.Undefined,
            ),
            background="white",
            padding=4,
            autosize=alt.AutoSizeParams(type="fit-x" if fit else "pad", contains="padding"),
        )
        .configure(font=FONT)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=INK,
            titleColor=INK,
            labelFontSize=11,
            titleFontSize=11.5,
            titleFontWeight="normal",
            gridColor="#e6e6e6",
            domainColor=QUIET,
            tickColor=QUIET,
        )
        .configure_legend(
            labelColor=INK,
            labelFontSize=11.5,
            labelLimit=320,
            rowPadding=2,
            symbolStrokeColor=INK,
            layout=alt.ExprRef(_LEGENDS),
        )
    )
