"""One run as a picture: the scores of canaries that were in and of those that were out, and which were guessed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np

from coalmine.report.figures import FONT, INK, PROMISED, PROVED, WIDE, Figure

_BINS = 40


def scores(section: Mapping[str, Any], *, width: int = WIDE) -> Figure:
    """Histograms of the scores, in and out, with the ranges that were guessed.

    Args:
        section: What :func:`coalmine.one_run.section` gives.
        width: In pixels.

    Returns:
        The figure.
    """
    canaries = section["canaries"]
    values = np.asarray(canaries["score"], dtype=np.float64)
    included = np.asarray(canaries["included"], dtype=bool)
    guess = np.asarray(canaries["guess"], dtype=object)
    edges = np.linspace(values.min(), max(values.max(), values.min() + 1e-9), _BINS + 1)
    rows = [
        {"from": float(edges[i]), "to": float(edges[i + 1]), "count": int(count), "coin": name}
        for name, chosen in (("in the training", included), ("left out", ~included))
        for i, count in enumerate(np.histogram(values[chosen], edges)[0])
    ]
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar(opacity=0.65, stroke=INK, strokeWidth=0.4)
        .encode(
            x=alt.X("from:Q", title="score (larger speaks for a canary that is in)"),
            x2="to:Q",
            y=alt.Y("count:Q", title="canaries", stack=None),
            color=alt.Color(
                "coin:N",
                scale=alt.Scale(domain=["in the training", "left out"], range=[PROVED, PROMISED]),
                legend=alt.Legend(title=None, orient="bottom"),
            ),
        )
    )
    marks = []
    if (guess == "in").any():
        marks.append({"at": float(values[guess == "in"].min()), "words": "guessed IN from here"})
    if (guess == "out").any():
        marks.append({"at": float(values[guess == "out"].max()), "words": "guessed OUT up to here"})
    rules = alt.Chart(alt.InlineData(values=marks)).mark_rule(color=INK, strokeDash=[4, 3]).encode(x="at:Q")
    labels = (
        alt.Chart(alt.InlineData(values=marks))
        .mark_text(align="left", dx=4, dy=10, baseline="top", font=FONT, color=INK)
        .encode(x="at:Q", y=alt.value(0), text="words:N")
    )
    found, verdict = section["guesses"], section["verdict"]
    return Figure(
        name="one-run-scores",
        title=f"{found['correct']} of {found['guesses']} guesses about {found['canaries']} canaries were right",
        caption=(
            "Scores of the canaries that were in the training and of those that were left out. The highest were "
            f"guessed to be in and the lowest out; the rest was not guessed. The claim is {verdict['outcome']}."
        ),
        chart=alt.layer(bars, rules, labels).properties(width=width, height=220),
    )
