"""Where the gap comes from, for people: one bar for each attack, cut into what is proved and what is lost to what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from coalmine.auditing.proof import METHODS
from coalmine.report import rounding
from coalmine.report.figures import FONT, INK, PROMISED, PROVED, SECOND, WIDE, Figure, chart_of, finished

if TYPE_CHECKING:
    from coalmine.auditing.gap import Gap

PARTS = {
    "proved": "proved",
    "assumptions": "lost to assuming nothing",
    "view": "lost to what it may not see or do",
    "attack": "left to the attack and the accountant",
    "trials": "lost to the number of trials",
}
"""The parts of the bar from left to right, and what each is called."""
_COLORS = dict(zip(PARTS, (PROVED, "#7fa3c7", "#c9d9ea", SECOND, PROMISED), strict=True))


def figure(gaps: tuple[Gap, ...], *, width: int = WIDE) -> Figure:
    """The whole of what is promised as a bar for each attack, and its parts."""
    rows: list[dict[str, Any]] = []
    labels = []
    for place, gap in enumerate(gaps):
        start = 0.0
        labels.append({"row": str(place), "zero": 0.0, "name": f"{gap.adversary}: {rounding.down(gap.proved)} of "
                       f"{rounding.up(gap.promised)}"})  # fmt: skip
        for name, title in PARTS.items():
            amount = float(getattr(gap, name))
            if amount > 0.0:
                rows.append({"row": str(place), "from": start, "to": start + amount, "part": title})
            start += amount
    kinds = [title for title in PARTS.values() if any(row["part"] == title for row in rows)]
    names = {title: name for name, title in PARTS.items()}
    scale = alt.Scale(domain=[0.0, 1.02 * max(gap.promised for gap in gaps)], nice=False)
    y = alt.Y("row:N", axis=None)
    ticks = 5 if width < 600 else 10
    bars = (
        chart_of(rows)
        .mark_bar(height=18, stroke=INK, strokeWidth=0.8)
        .encode(
            x=alt.X("from:Q", scale=scale, axis=alt.Axis(title="privacy loss ε (no unit)", tickCount=ticks, grid=True)),
            x2="to:Q",
            y=y,
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=kinds, range=[_COLORS[names[kind]] for kind in kinds]),
                legend=alt.Legend(title=None, orient="bottom", columns=1 if width < 600 else 3, symbolType="square"),
            ),
        )
    )
    text = (
        chart_of(labels)
        .mark_text(
            align="left", baseline="bottom", dy=-12, dx=1, font=FONT, fontSize=12, fontWeight="bold", color=INK,
            limit=width - 16,
        )
        .encode(x=alt.X("zero:Q", scale=scale), y=y, text="name:N")
    )  # fmt: skip
    title = "What is proved of what is promised, and where the rest is lost"
    return Figure(
        name="gap",
        title=title,
        caption=(
            "Each bar is the whole ε that is promised. A perfect attack makes no more errors than the promise permits; "
            "with as many trials, half of all such attacks prove the stated ε. Each number is rounded by itself."
        ),
        chart=finished(alt.layer(bars, text).properties(width=width, height=58 * len(gaps)), title, width),
    )


def lines(gap: Gap) -> list[tuple[str, str, str]]:
    """The parts of one gap: what it is, how much, and what it was measured by."""
    short = METHODS[gap.method].short
    if gap.above:
        above = f"{gap.above} proves {rounding.down(gap.stronger)} {short}"
    else:
        above = "nobody who may see or do more " + ("proved more" if gap.tried else "was played")
    lucky = "; chance let this one prove more" if gap.typical < gap.perfect else ""
    measured = {
        "proved": "nothing assumed",
        "assumptions": f"the same scores prove {rounding.down(gap.assumed)} {short}",
        "view": above,
        "attack": "what the other parts do not explain",
        "trials": f"a perfect attack would typically prove {rounding.down(gap.typical)} {short}{lucky}",
    }
    rounded = {name: rounding.near(float(getattr(gap, name))) for name in PARTS} | {"proved": rounding.down(gap.proved)}
    return [(title, rounded[name], measured[name]) for name, title in PARTS.items() if rounded[name] != "0.00"]
