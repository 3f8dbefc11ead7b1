"""How sure someone who knew all the rest became of one person's row: a picture (the words: one_person.certainty)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
from scipy import special

from coalmine.identifiability.estimates import right_log_odds
from coalmine.report.figures import INK, NARROW, PROMISED, PROVED, QUIET, WIDE, Figure, chart_of, finished, slug
from coalmine.report.one_person import certainty
from coalmine.report.rounding import up

if TYPE_CHECKING:
    from coalmine.auditing.results import AdversaryResult, AuditResult

_BINS = 40


def sections(result: AuditResult) -> list[tuple[AdversaryResult, list[str], Figure, Figure]]:
    """For every adversary with beliefs: its sentences, and its picture wide and narrow."""
    return [
        (one, certainty(one), figure(one, width=WIDE), figure(one, width=NARROW))
        for one in result.adversaries
        if one.log_odds is not None
    ]


def figure(one: AdversaryResult, *, width: int = WIDE) -> Figure:
    """The beliefs of all trainings as a distribution, with the limit drawn."""
    found, odds = one.beliefs, one.log_odds
    assert found is not None
    assert odds is not None
    right = np.asarray(special.expit(right_log_odds(odds)))
    edges = np.linspace(0.0, 1.0, _BINS + 1)
    heights, _ = np.histogram(right, edges)
    rows = [
        {"from": float(a), "to": float(b), "percent": 100.0 * int(h) / right.size, "zero": 0.0}
        for a, b, h in zip(edges[:-1], edges[1:], heights, strict=True)
        if h
    ]
    top = max(row["percent"] for row in rows)
    x = alt.X(
        "from:Q",
        title="how sure they ended of the truth",
        scale=alt.Scale(domain=[0, 1], nice=False),
        axis=alt.Axis(format="%", tickCount=5 if width < 600 else 10),
    )
    y = alt.Y("percent:Q", title="trainings (%)", scale=alt.Scale(domain=[0, 1.12 * top], nice=False))
    bars = chart_of(rows).mark_bar(color=PROVED, stroke="#ffffff", strokeWidth=0.5)
    layers: list[Any] = [bars.encode(x=x, x2="to:Q", y=y, y2="zero:Q")]
    marks: list[tuple[float, str, str]] = [(0.5, "knows nothing", QUIET)]
    if found.bound < 1.0:
        marks.append((found.bound, f"limit {up(100 * found.bound, 1)}%", PROMISED))
    for at, text, color in marks:
        right_of_it = 0.5 < at < 0.85  # where there is room for its name
        mark = chart_of([{"from": at, "percent": 1.12 * top, "text": text}])
        layers += [
            mark.mark_rule(color=color, strokeWidth=3, strokeDash=[4, 3] if at == 0.5 else [1, 0]).encode(x=x),
            mark.mark_text(
                align="left" if right_of_it else "right",
                dx=5 if right_of_it else -5,
                dy=8,
                fontSize=12,
                fontWeight="bold",
                color=INK,
            ).encode(x=x, y=y, text="text:N"),
        ]
    title = f"How sure {one.label} became of the truth, over {right.size} trainings"
    caption = (
        "One belief for each training: left of 50% they were misled, right of it on the right track, at 100% certain."
        + (" The thick line is the limit that follows from ε." if found.bound < 1.0 else "")
    )
    chart = alt.layer(*layers).properties(width=width, height=230)
    return Figure(name=f"beliefs-{slug(one)}", title=title, caption=caption, chart=finished(chart, title, width))
