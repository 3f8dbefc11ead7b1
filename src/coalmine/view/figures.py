"""Figures of the view, as Vega-Lite for a browser: those of the report, and three that only a live page has."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from coalmine.auditing.progress import PILOT
from coalmine.auditing.results import AdversaryResult, AuditResult
from coalmine.report import figures, one_run, persons, rounding, series
from coalmine.report.figures import INK, NARROW, PROMISED, PROVED, QUIET, WIDE, Figure, finished
from coalmine.view.live import LiveAttack, LiveAudit

_SHOWN = 600
"""Points of a curve, at most: more than a screen can show."""
LOGARITHMIC = (
    "On logarithmic axes it is hits (1 − misses) against false alarms: further up and left is a better attack, and a "
    "true promise keeps every attack below its dashed line, but for chance. Rates that no trial reached are left out."
)
_BROAD = 560
"""The width of a figure whose legend holds names."""
_LOWEST = 1e-4
"""Where logarithmic axes begin at the least."""
_PERMITTED = "#c77f00"
_GRID = np.unique(np.concatenate([np.geomspace(_LOWEST / 10.0, 1.0, 160), np.linspace(0.0, 1.0, 101)]))
_COLORS = (PROVED, "#c44601", "#2a7f62", "#7b3294", "#8c6d31", "#b3006b", "#4d4d4d", "#5e8fc7")


def shown(figure: Figure, narrow: Figure | None = None) -> dict[str, Any]:
    """A figure for a page: what it shows in words, and its specification for a wide and for a narrow screen."""
    specs = {"wide": spec(figure)} | ({"narrow": spec(narrow)} if narrow else {})
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "specs": specs,
        "thresholds": None,
    }


def spec(figure: Figure) -> dict[str, Any]:
    """The specification without a background of its own: the page is light or dark."""
    found: dict[str, Any] = figure.chart.to_dict()
    return found | {"background": None}


def overview(result: AuditResult) -> dict[str, Any]:
    """Every ε on one axis."""
    return shown(figures.overview(result, width=WIDE), figures.overview(result, width=NARROW))


def scores(one: AdversaryResult) -> dict[str, Any]:
    """The scores of both worlds, with a threshold that a reader moves: ``chosen`` is a parameter of the figure."""
    if one.one_run is not None:
        return shown(one_run.scores(one_run.section_of(one), width=NARROW))
    found = shown(figures.histograms(one))
    rates = thresholds(one)
    specification = found["specs"]["wide"]
    middle = rates["threshold"][len(rates["threshold"]) // 2]
    specification["params"] = [*specification.get("params", []), {"name": "chosen", "value": middle}]
    specification["layer"].append(
        {
            "data": {"values": [{}]},
            "transform": [{"calculate": "chosen", "as": "chosen"}],
            "mark": {"type": "rule", "color": "#b3006b", "strokeWidth": 2},
            "encoding": {"x": {"field": "chosen", "type": "quantitative"}},
        }
    )
    return found | {"thresholds": rates}


def thresholds(one: AdversaryResult) -> dict[str, list[float]]:
    """Thresholds from low to high with the false alarms and the misses of each: counted, not bounded."""
    found = series.scores_of(one)
    cuts = np.unique(np.concatenate([found.world0, found.world1]))
    if cuts.size > _SHOWN:
        cuts = cuts[np.linspace(0, cuts.size - 1, _SHOWN).astype(int)]
    zero, first = np.sort(found.world0), np.sort(found.world1)
    return {
        "threshold": cuts.tolist(),
        "alarm": (1.0 - np.searchsorted(zero, cuts, side="right") / zero.size).tolist(),
        "miss": (np.searchsorted(first, cuts, side="right") / first.size).tolist(),
    }


def trade_off(result: AuditResult, one: AdversaryResult) -> dict[str, Any]:
    """The trade-off curve on linear and on logarithmic axes."""
    canaries = one.one_run is not None
    linear = one_run.trade_off(one_run.section_of(one)) if canaries else figures.trade_off(result, one)
    return shown(linear) | {
        "caption": f"{linear.caption} {LOGARITHMIC}",
        "specs": {"linear": spec(linear), "logarithmic": spec(curves([("", result, one)], log=True))},
    }


def compared(first: tuple[str, AuditResult], second: tuple[str, AuditResult]) -> dict[str, Any]:
    """The strongest attacks of two audits, with what each promises, on linear and on logarithmic axes."""
    pairs = [(name, result, result.strongest) for name, result in (first, second)]
    specs = {
        f"{kind}{suffix}": spec(curves(pairs, log=kind == "logarithmic", width=width))
        for kind in ("linear", "logarithmic")
        for suffix, width in (("", _BROAD), ("-narrow", NARROW))
    }
    return shown(curves(pairs)) | {"specs": specs}


def beliefs(one: AdversaryResult) -> dict[str, Any] | None:
    """How sure the attack became, where its scores are beliefs."""
    if one.log_odds is None:
        return None
    return shown(persons.figure(one, width=WIDE), persons.figure(one, width=NARROW))


def curves(
    attacks: Sequence[tuple[str, AuditResult, AdversaryResult]], *, log: bool = False, width: int = NARROW
) -> Figure:
    """Trade-off curves of attacks over each other, each with the lowest error rates that its promise permits."""
    lines: list[_Line] = []
    several = len(attacks) > 1
    for place, (name, result, one) in enumerate(attacks):
        alarm, miss = _errors(one)
        lines.append(_Line(f"{name}: {one.label}" if several else "this attack", alarm, miss, _COLORS[place]))
        for kind, curve in series.promised_curves(result, one):
            limit = f"permitted by the {kind} of {name}" if several else f"lowest error rates the {kind} permits"
            color = _COLORS[place] if several else _PERMITTED
            lines.append(_Line(limit, _GRID.tolist(), np.asarray(curve(_GRID)).tolist(), color, attack=False))
    return _drawn(lines, log=log, width=width)


def canaries(section: Mapping[str, Any]) -> dict[str, Any]:
    """The trade-off curve of one training with canaries, on linear and on logarithmic axes."""
    linear, points = one_run.trade_off(section), section["trade_off"]
    alarm, miss, allowed = ([one[key] for one in points] for key in ("false_positives", "false_negatives", "allowed"))
    lines = [
        _Line("this attack", alarm, miss, PROVED),
        _Line("lowest error rates the claim permits", alarm, allowed, _PERMITTED, attack=False),
    ]
    return shown(linear) | {
        "caption": f"{linear.caption} {LOGARITHMIC}",
        "specs": {"linear": spec(linear), "logarithmic": spec(_drawn(lines, log=True))},
    }


@dataclasses.dataclass(frozen=True)
class _Line:
    """A line of a trade-off figure: an attack, or what a promise permits."""

    name: str
    alarm: Sequence[float]
    miss: Sequence[float]
    color: str
    attack: bool = True

    def rows(self) -> list[dict[str, Any]]:
        """As data of a figure."""
        return [
            {"name": self.name, "alarm": alarm, "miss": miss, "place": place}
            for place, (alarm, miss) in enumerate(zip(self.alarm, self.miss, strict=True))
        ]


def _drawn(lines: Sequence[_Line], *, log: bool = False, width: int = NARROW) -> Figure:
    """Lines of false alarms and misses, with random guessing.

    On logarithmic axes they are drawn as is usual for membership inference (Carlini et al. 2022, "Membership inference
    attacks from first principles"): hits, which are 1 - misses, against false alarms.
    """
    attacks = [line for line in lines if line.attack]
    reached = [rate for line in attacks for rate in (*line.alarm, *(1.0 - miss for miss in line.miss)) if rate > 1e-12]
    every = [*lines, _Line("random guessing", _GRID.tolist(), (1.0 - _GRID).tolist(), QUIET, attack=False)]
    rows = [row for line in every for row in line.rows()]
    domain = [line.name for line in every]
    dashes = [*([1, 0] if line.attack else [7, 3] for line in lines), [2, 3]]
    scale, axis, y = alt.Scale(domain=[0, 1], nice=False), alt.Axis(format="%", tickCount=5), "miss"
    if log:
        low = max(_LOWEST, 10.0 ** math.floor(math.log10(min([1.0, *reached]))))
        # What no trial reached has no place here: an attack without a single false alarm among n trials is not at 0.
        rows = [row | {"hit": 1.0 - row["miss"]} for row in rows if row["alarm"] >= low and 1.0 - row["miss"] >= low]
        scale, axis, y = alt.Scale(type="log", domain=[low, 1], nice=False), alt.Axis(format="~%", tickCount=4), "hit"
    names = {"miss": "misses (share of world 1)", "hit": "hits: 1 − misses (share of world 1)"}
    drawn = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(strokeWidth=2, clip=True)
        .encode(
            x=alt.X("alarm:Q", title="false alarms (share of world 0)", scale=scale, axis=axis),
            y=alt.Y(f"{y}:Q", title=names[y], scale=scale, axis=axis),
            color=alt.Color(
                "name:N",
                scale=alt.Scale(domain=domain, range=[line.color for line in every]),
                legend=alt.Legend(title=None, orient="top", columns=1, symbolType="stroke", symbolStrokeWidth=3),
            ),
            strokeDash=alt.StrokeDash("name:N", scale=alt.Scale(domain=domain, range=dashes)),
            order="place:Q",
        )
    )
    title = f"Errors of the {'attacks' if len(attacks) > 1 else 'attack'}" + (", logarithmic axes" if log else "")
    return Figure(
        name="curves-log" if log else "curves",
        title=title,
        caption=(
            "Each point of a solid line is a threshold: how often it raises a false alarm, and how often it misses. "
            "Further down and left is a better attack. A true promise keeps every attack above its dashed line, but "
            f"for chance: these lines are counts without a band around them. {LOGARITHMIC}"
        ),
        chart=finished(
            alt.layer(drawn).properties(width=width, height=min(width, 480) - 60), title, width
        ).configure_legend(labelLimit=width - 110, labelFontSize=11.5, rowPadding=2, symbolStrokeColor=INK),
    )


def _errors(one: AdversaryResult) -> tuple[list[float], list[float]]:
    """False alarms and misses at every threshold that matters."""
    if one.one_run is None:
        alarm, miss = series.error_rates(series.scores_of(one))
        if alarm.size > _SHOWN:
            # Evenly in the rank, and all of the steepest part: where one of the two is rare.
            part = np.linspace(0, alarm.size - 1, _SHOWN).astype(int)
            ends = np.concatenate([np.arange(60), alarm.size - 1 - np.arange(60)])
            chosen = np.unique(np.concatenate([part, ends]))
            alarm, miss = alarm[chosen], miss[chosen]
        return alarm.tolist(), miss.tolist()
    points = one_run.section_of(one)["trade_off"]
    return [point["false_positives"] for point in points], [point["false_negatives"] for point in points]


def so_far(audit: LiveAudit, *, width: int = WIDE) -> Figure:
    """The bound so far of every attack as its trials came in, below the claim; ``so_far`` is data that is replaced."""
    attacks = [one for one in audit.attacks if not one.control]
    names = [one.label for one in attacks]
    most = max([2 * PILOT, *(one.wanted for one in attacks)])
    x = alt.X(
        "trials:Q",
        title="trials so far, up to those that are wanted (log scale)",
        scale=alt.Scale(type="log", domain=[PILOT, most], nice=False),
        axis=alt.Axis(format="~s", tickCount=6),
    )
    y = alt.Y("epsilon:Q", title="privacy loss ε (no unit)", scale=alt.Scale(zero=True))
    color = alt.Color(
        "name:N",
        scale=alt.Scale(domain=names, range=list(_COLORS[: len(names)]) or [INK]),
        legend=alt.Legend(
            title=None, orient="top", columns=1 if width < 600 else 2, symbolType="stroke", symbolStrokeWidth=3
        ),
    )
    data = alt.InlineData(values=points_of(attacks), name="so_far")
    base = alt.Chart(data)
    layers: list[Any] = [
        # The axis reaches 1 even where nothing is proved yet and nothing is claimed.
        alt.Chart(alt.InlineData(values=[{"epsilon": 1.0}])).mark_rule(opacity=0).encode(y=y),
        base.transform_filter("datum.kind == 'ceiling'")
        .mark_line(color=QUIET, strokeDash=[4, 3], strokeWidth=1.2, clip=True)
        .encode(x=x, y=y, detail="name:N"),
        base.transform_filter("datum.kind == 'proved'")
        .mark_line(strokeWidth=2.5, clip=True)
        .encode(x=x, y=y, color=color),
    ]
    if audit.claim is not None and math.isfinite(audit.claim):
        claim = alt.Chart(
            alt.InlineData(values=[{"epsilon": audit.claim, "text": f"claim ε ≤ {rounding.up(audit.claim)}"}])
        )
        layers += [
            claim.mark_rule(color=PROMISED, strokeWidth=3).encode(y=y),
            claim.mark_text(align="right", baseline="bottom", dy=-4, fontSize=12, fontWeight="bold", color=INK).encode(
                x=alt.value(width - 90), y=y, text="text:N"
            ),
        ]
    title = "What is proved so far, as trials come in"
    return Figure(
        name="so-far",
        title=title,
        caption=(
            "Solid lines: what each attack has proved at any moment it is looked at. Its threshold was fixed by the "
            f"first {PILOT} trials, so the final bound is usually larger. Dashed: the most that an attack without a "
            "single error would have proved with as many trials."
        ),
        chart=finished(alt.layer(*layers).properties(width=width, height=260), title, width),
    )


def points_of(attacks: Sequence[LiveAttack]) -> list[Mapping[str, Any]]:
    """The rows behind :func:`so_far`."""
    return [
        {"name": one.label, "kind": kind, "trials": point.trials, "epsilon": value}
        for one in attacks
        if not one.control
        for point in one.points
        for kind, value in (("proved", point.epsilon), ("ceiling", point.ceiling))
        if math.isfinite(value)
    ]
