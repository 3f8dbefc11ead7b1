"""The pictures of docs/probe.md, drawn from real probes of the trainers in tests/probing: right beside wrong ones.

``python docs/images/probe_pictures.py`` writes probe-*.svg beside this file. About a minute.
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "probing"))
warnings.simplefilter("ignore")

import altair as alt  # noqa: E402
import numpy as np  # noqa: E402
from trainers import by_hand  # noqa: E402
from trainers.cases import made  # noqa: E402

from coalmine.probing import carriers, hiding, noise, search, shifter  # noqa: E402
from coalmine.probing.bench import on_bench  # noqa: E402
from coalmine.probing.faults import FAULTS, Stage  # noqa: E402
from coalmine.probing.pictures import WRONG  # noqa: E402
from coalmine.probing.probe import probe  # noqa: E402
from coalmine.report import render  # noqa: E402
from coalmine.report.figures import INK, PROVED, QUIET, Figure, finished  # noqa: E402

PANEL, HEIGHT = 190, 150
RIGHT = "as it should be"


def details(build: Any, measure: str) -> dict[str, Any]:
    """What one measure of a probe found."""
    report = probe(made(build, 0), replays=60, tries=60)
    return next(dict(one.details) for one in report.measurements if one.name == measure)


def write(name: str, chart: Any, title: str) -> None:
    """The chart as a file."""
    figure = Figure(name=name, title=title, caption="", chart=finished(chart, title, 4 * PANEL, fit=False))
    # Descriptions of single marks would only weigh on the file: the text around a picture says what it shows.
    text = re.sub(r' (?:aria-label|aria-roledescription|role)="[^"]*"', "", render.svg(figure))
    (HERE / f"{name}.svg").write_text(text, encoding="utf-8")


def panels(name: str, title: str, parts: list[tuple[str, Any]]) -> None:
    """Charts beside each other, each with its title."""
    named = [
        chart.properties(width=PANEL, height=HEIGHT, title=alt.Title(part, fontSize=12, fontWeight="normal", color=INK))
        for part, chart in parts
    ]
    write(name, alt.hconcat(*named, spacing=26), title)


def data(rows: list[dict[str, Any]]) -> alt.InlineData:
    """Values for a chart."""
    return alt.InlineData(values=rows)


def color(part: str) -> str:
    """Blue for what is right, red for what is wrong."""
    return PROVED if part == RIGHT else WRONG


def fault_map() -> None:
    """Every stage of a private step, and below it the faults that lie there."""
    wide = 150
    cells = [
        {"x": place % 5, "y": 6.2 * (place // 5) + line, "text": text, "stage": line == 0}
        for place, stage in enumerate(Stage)
        for line, text in enumerate([stage.value, *(one.name for one in FAULTS if one.stage is stage)])
    ]
    base = alt.Chart(data(cells))
    place = {
        "x": alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, 5], nice=False)),
        "y": alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-0.7, 13.5], reverse=True, nice=False)),
        "text": "text:N",
    }
    stage = base.transform_filter("datum.stage").mark_text(align="left", fontSize=13, fontWeight="bold", color=INK)
    fault = base.transform_filter("!datum.stage").mark_text(align="left", fontSize=11, color=WRONG)
    chart = alt.layer(stage.encode(**place), fault.encode(**place)).properties(width=5 * wide, height=268)
    write("probe-map", chart, "The way of the data through a private step, and the faults of each stage")


def clipping() -> None:
    """Influences of the rows that were tried."""
    parts = []
    for part, build in (
        (RIGHT, by_hand.Trainer),
        ("clipping per layer", by_hand.ClipsEachLayer),
        ("the bias forgotten in the norm", by_hand.ForgetsTheBias),
        ("no clipping", by_hand.NoClipping),
    ):
        found = details(build, "sensitivity")
        most = 3.2
        rows = [
            {"row": place, "moves": min(value, most), "kind": "beyond the picture" if value > most else "row"}
            for place, value in enumerate(found["influences"])
        ]
        dots = (
            alt.Chart(data(rows))
            .mark_point(filled=True, size=22, color=color(part))
            .encode(
                x=alt.X("row:Q", title="rows tried, by influence", axis=alt.Axis(grid=False, tickCount=4)),
                y=alt.Y("moves:Q", title="moves the sum by", scale=alt.Scale(domain=[0, most + 0.1], nice=False)),
                shape=alt.Shape(
                    "kind:N",
                    scale=alt.Scale(domain=["row", "beyond the picture"], range=["circle", "triangle-up"]),
                    legend=None,
                ),
            )
        )
        rule = (
            alt.Chart(data([{"allowed": found["allowed"]}]))
            .mark_rule(strokeDash=[5, 3], color=INK)
            .encode(y="allowed:Q")
        )
        parts.append((part, alt.layer(dots, rule)))
    panels("probe-clipping", "How far one row moves the sum; dashed: the clip norm C", parts)


def noise_sizes() -> None:
    """Noise in each tensor."""
    parts = []
    for part, build in (
        (RIGHT, by_hand.Trainer),
        ("noise ×0.8", by_hand.EightTenthsOfTheNoise),
        ("noise divided twice", by_hand.NoiseDividedTwice),
    ):
        rows = details(build, "noise")["tensors"]
        bars = (
            alt.Chart(data(rows))
            .mark_bar(height=14, color=color(part))
            .encode(
                x=alt.X("ratio:Q", title="part of what is promised", scale=alt.Scale(domain=[0, 1.15], nice=False)),
                y=alt.Y("tensor:N", title=None, sort=None),
            )
        )
        ticks = alt.Chart(data(rows)).mark_tick(color=INK, thickness=2, height=20)
        ticks = ticks.encode(x="smallest_ratio_found:Q", y=alt.Y("tensor:N", sort=None))
        rule = alt.Chart(data([{"one": 1.0}])).mark_rule(strokeDash=[5, 3], color=INK).encode(x="one:Q")
        parts.append((part, alt.layer(bars, ticks, rule)))
    panels("probe-noise", "Noise in each tensor; ticks: less than this is found nine times out of ten (60 runs)", parts)


def additivity() -> None:
    """Second differences."""
    rows = []
    for part, build in (
        (RIGHT, by_hand.Trainer),
        ("divided by the real batch size", by_hand.RealizedBatchSize),
        ("microbatches of two", by_hand.ClipsPairs),
        ("batch normalization", by_hand.BatchNorm),
        ("standardized by the batch", by_hand.Standardizes),
        ("classes weighed by the batch", by_hand.WeighsClasses),
    ):
        rows.append({"part": part, "second": details(build, "additivity")["second_difference"], "color": color(part)})
    bars = (
        alt.Chart(data(rows))
        .mark_bar(height=15)
        .encode(
            x=alt.X("second:Q", title="how much a row's part changes with another row (1: its largest influence)"),
            y=alt.Y("part:N", title=None, sort=None, axis=alt.Axis(labelLimit=260)),
            color=alt.Color("color:N", scale=None),
        )
    )
    words = (
        alt.Chart(data([{**row, "words": f"{row['second']:.2g}"} for row in rows]))
        .mark_text(align="left", dx=5, color=QUIET)
        .encode(x="second:Q", y=alt.Y("part:N", sort=None), text="words:N")
    )
    write(
        "probe-additivity",
        alt.layer(bars, words).properties(width=2.4 * PANEL, height=HEIGHT),
        "Rows must add up: D + a + b less D + a less D + b plus D is zero",
    )


def noises(build: Any, names: tuple[str, str], *, steps: bool) -> list[dict[str, float]]:
    """Noise in pairs: of two steps in a row, or of two tensors in one step."""
    with on_bench(made(build, 0)) as bench:
        base = carriers.record(bench)
        reading = carriers.read(bench, base)
        runs = [
            [carriers.delta(shown[f"gradient of {name}"], before[f"gradient of {name}"]).numpy() for name in names]
            for before, shown in noise.walk(bench, reading, 3)
        ]
    pair = (runs[0][0], runs[1][0]) if steps else (runs[0][0], runs[0][1])
    width = min(len(one) for one in pair)
    return [
        {"x": round(float(a), 3), "y": round(float(b), 3)}
        for a, b in zip(pair[0][:width], pair[1][:width], strict=True)
    ]


def shared() -> None:
    """Noise against noise: of the next step, and of another tensor."""
    weights = ("0.weight", "2.weight")
    parts = []
    for part, build, names, steps, words in (
        (RIGHT, by_hand.Trainer, weights, True, ("in one step", "in the next")),
        ("seeded in each step", by_hand.NoiseSeededInTheStep, weights, True, ("in one step", "in the next")),
        (RIGHT, by_hand.AKeyForEachTensor, weights, False, ("in one tensor", "in another")),
        ("one key for two tensors", by_hand.OneKeyForTwoTensors, weights, False, ("in one tensor", "in another")),
    ):
        scale = alt.Scale(domain=[-0.6, 0.6], nice=False)
        dots = (
            alt.Chart(data(noises(build, names, steps=steps)))
            .mark_point(filled=True, size=24, color=color(part), clip=True)
            .encode(
                x=alt.X("x:Q", title=f"noise {words[0]}", scale=scale, axis=alt.Axis(tickCount=3)),
                y=alt.Y("y:Q", title=f"noise {words[1]}", scale=scale, axis=alt.Axis(tickCount=3)),
            )
        )
        parts.append((part, dots))
    panels("probe-shared", "Noise must be new for every number and every step", parts)


def order() -> None:
    """Noise in the release against the factor that the tape puts to the draws."""
    factors = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
    parts = []
    for part, build in ((RIGHT, by_hand.Trainer), ("noise before clipping", by_hand.NoisedSumClipped)):
        with on_bench(made(build, 0)) as bench:
            base = carriers.record(bench)
            reading = carriers.read(bench, base)
            names = list(reading.silent.gradients)
            rows = []
            for factor in factors:
                shown = bench.scaled(base, factor)
                moved = [float(carriers.delta(shown[name], reading.silent[name]).norm()) for name in names]
                rows.append({"factor": factor, "moved": float(np.linalg.norm(moved))})
        line = (
            alt.Chart(data(rows))
            .mark_line(point=alt.OverlayMarkDef(filled=True, color=color(part)), color=color(part))
            .encode(
                x=alt.X("factor:Q", title="the same draws, times"),
                y=alt.Y("moved:Q", title="noise in the release", axis=alt.Axis(tickCount=4)),
            )
        )
        parts.append((part, line))
    panels("probe-order", "Noise must reach the release in proportion: what clips it makes room for a large row", parts)


def covered() -> None:
    """What is left of a row in each tensor once noise hides it from the private sum."""
    parts = []
    percent = alt.Axis(format="%")
    for part, build in (
        (RIGHT, by_hand.Momentum),
        ("raw momentum", by_hand.MomentumBeforeNoise),
        ("base trained beside", by_hand.BaseTrainedAfterwards),
    ):
        with on_bench(made(build, 0)) as bench:
            base = carriers.record(bench)
            reading = carriers.read(bench, base)
            row = search.search(bench, reading, tries=30).best.row
            found = hiding.hide(bench, reading, shifter.Shifter(bench, reading), search.with_row(bench, row))
            plain, hidden = found.plain, found.shown
        rows = []
        for name, before in reading.plain.released.items():
            size = float(carriers.delta(plain[name], before).norm())
            if size > 1e-6 and before.numel() > 1:
                left = float(carriers.delta(hidden[name], before).norm()) / size
                rows.append({"tensor": name.removeprefix("momentum_buffer of ")[:26], "left": min(left, 1.0)})
        rows = sorted(rows, key=lambda one: -one["left"])[:6]
        bars = (
            alt.Chart(data(rows))
            .mark_bar(height=12, color=color(part))
            .encode(
                x=alt.X("left:Q", title="still shows the row", scale=alt.Scale(domain=[0, 1]), axis=percent),
                y=alt.Y("tensor:N", title=None, sort=None, axis=alt.Axis(labelLimit=150)),
            )
        )
        parts.append((part, bars))
    panels("probe-coverage", "Noise that hides a row from the private sum must hide it from everything", parts)


if __name__ == "__main__":
    for draw in (fault_map, clipping, noise_sizes, additivity, shared, order, covered):
        draw()
