"""A study as a picture: the values that were measured are in it, and nothing else."""

import dataclasses

import pytest

from coalmine.errors import UnsupportedError
from coalmine.report import render
from coalmine.studies import CellResult, find
from coalmine.studies.figure import draw


def cell(values, ours, **columns):
    return CellResult(
        study="paper/figure", cell=str(values), values=values, published=None, ours=ours, columns=columns,
        guarantee=4.0, verdict="no published value", trials=0, seconds=0.0, details={},
    )  # fmt: skip


RESULTS = [
    cell({"T": t, "q": q}, 8.0 - t * q, heuristic=None if t == 1 else 5.0 + q) for q in (0.1, 0.2) for t in (1, 9)
]


def study(**figure):
    return dataclasses.replace(find("jagielski-2020/table-2"), figure=figure)


@pytest.mark.parametrize("kind", ["lines", "points", "bars"])
@pytest.mark.parametrize("where", [{}, {"color": "q"}, {"facet": "q"}, {"color": "q", "rule": "guarantee"}])
def test_every_kind_draws_the_values_that_were_measured(kind, where):
    figure = draw(study(kind=kind, x="T", y=["ours", "heuristic"], **where), RESULTS)
    drawn = next(iter(figure.chart.to_dict()["datasets"].values())) if "datasets" in figure.chart.to_dict() else None
    text = render.svg(figure)
    assert text.startswith("<svg")
    assert ("q = 0.2" in text) == ("facet" in where)
    values = drawn or _values(figure.chart.to_dict())
    assert sorted(one["y"] for one in values if one["series"] == "ours") == pytest.approx([6.2, 7.1, 7.8, 7.9])
    assert len([one for one in values if one["series"] == "heuristic"]) == 2


def _values(spec):
    if "values" in spec.get("data", {}) and spec["data"]["values"]:
        return spec["data"]["values"]
    inner = spec.get("layer", []) + ([spec["spec"]] if "spec" in spec else [])
    return next((found for part in inner if (found := _values(part))), None)


def test_a_study_without_a_figure_or_without_values_says_so():
    with pytest.raises(UnsupportedError, match="has no figure"):
        draw(study(), RESULTS)
    with pytest.raises(UnsupportedError, match="no finite values"):
        draw(study(kind="lines", x="T", y="paid"), RESULTS)


def test_the_line_across_is_named():
    for kind, mark in (("lines", "black dashes: guarantee"), ("bars", "black ticks: guarantee")):
        assert mark in render.svg(draw(study(kind=kind, x="T", y="ours", rule="guarantee"), RESULTS))
        assert mark not in render.svg(draw(study(kind=kind, x="T", y="ours"), RESULTS))


def test_the_legend_shows_the_dashes_of_each_series():
    text = render.svg(draw(study(kind="lines", x="T", y=["ours", "heuristic"], color="q"), RESULTS))
    legend = text[text.index("role-legend") :]
    assert 'stroke-dasharray="6,3"' in legend


def test_bars_of_several_colours_stand_beside_each_other():
    spec = draw(study(kind="bars", x="T", y="ours", color="q"), RESULTS).chart.to_dict()
    assert spec["layer"][0]["encoding"]["xOffset"]["field"] == "color"
