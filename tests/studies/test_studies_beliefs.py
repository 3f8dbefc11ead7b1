"""The studies of bernau-2021: theory against its tables, and the measure of beliefs on a tiny audit."""

import math

import numpy as np
import pytest
from scipy import special, stats

from coalmine.identifiability import estimates
from coalmine.studies import Cell, Scale, Study, find, measures, names, run_cell
from coalmine.studies.figure import draw

PAPER = [name for name in names() if name.startswith("bernau-2021/")]


def test_every_table_and_figure_is_there():
    expected = [
        "figure-3",
        "figure-4",
        "figure-5",
        "figure-6",
        "figure-7",
        "figure-8",
        "figure-9",
        "table-2",
        "table-3",
    ]
    assert sorted(PAPER) == sorted(f"bernau-2021/{one}" for one in expected)


def test_table_3_is_reproduced_to_the_printed_digits(bench):
    study = find("bernau-2021/table-3")
    results = [run_cell(study, cell=cell, scale=study.scale("paper"), bench=bench) for cell in study.cells]
    printed = [one for one in results if one.published is not None]
    assert len(printed) == 12
    assert all(one.verdict == "matches" for one in printed)
    assert draw(study, results).chart.to_dict()


def test_the_noise_is_that_of_the_belief():
    study = find("bernau-2021/table-2")
    paper = study.scale("paper")
    for cell in study.chosen("paper"):
        (settings,) = measures.find("beliefs").audits(study, cell, paper)
        training, delta = settings.training, settings.audit.delta
        # RDP of 30 Gaussian steps with the sensitivity over the noise as it is for these neighbours.
        sensitivity = 2.0 if cell.name.endswith("GS B") else 1.0
        mu = sensitivity * math.sqrt(30) / training.noise_multiplier
        orders = np.geomspace(1.001, 1e4, 200_000)
        epsilon = (orders * mu**2 / 2 + math.log(1 / delta) / (orders - 1)).min()
        assert epsilon == pytest.approx(special.logit(0.9), rel=1e-6)
        assert training.noise_scale == ("local" if "LS" in cell.name else "clip")
        assert (settings.audit.trials, training.steps, training.clip, training.learning_rate) == (4000, 30, 3.0, 0.005)
        assert delta == (0.01 if cell.name.startswith("MNIST") else 0.001)
    assert study.cell("MNIST,LS B").published == 0.24
    assert study.cell("Adult,GS B").published == 0.13
    assert study.cell("purchase-like,GS B").published is None


def tiny(**changes):
    tree = {
        "belief": 0.9,
        "data": {"name": "synthetic", "rows": 40},
        "model": {"kind": "logistic"},
        "training": {"steps": 5, "sampling": "full", "clip": 1.0, "learning_rate": 0.1, **changes},
        "audit": {"delta": 0.01, "confidence": 0.99},
        "adversary": [{"name": "identifiability", "neighbours": "bounded"}],
    }
    cell = Cell(name="one", tree=tree, published=0.25)
    scale = Scale(tolerance=0.3, options={"trials": 128})
    study = Study(
        name="a/b", title="t", citation="c", quantity="q", measure="beliefs", notes=(), cells=(cell,),
        scales={"quick": scale},
    )  # fmt: skip
    return study, cell, scale


def test_the_measure_of_beliefs(bench):
    study, cell, scale = tiny(noise_scale="local")
    result = run_cell(study, cell=cell, scale=scale, bench=bench)
    columns = result.columns
    assert columns["ε′ sensitivities"] == pytest.approx(columns["ε"], rel=1e-6)
    assert columns["ε"] == pytest.approx(special.logit(0.9))
    mu = math.sqrt(5) / estimates.rdp_noise(special.logit(0.9), delta=0.01, steps=5)
    # 128 trainings: five standard errors of the advantage are 0.44, passed less than once in a million.
    assert result.ours == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, abs=0.44)
    assert columns["low"] <= result.ours <= columns["high"]
    assert columns["global sensitivity"] == 2.0
    assert 0 < columns["sensitivity 5 %"] <= columns["sensitivity"] <= columns["sensitivity 95 %"] <= 2.0
    assert result.verdict in ("matches", "falls short", "tighter")
    assert result.guarantee is not None
    study, cell, scale = tiny()
    other = run_cell(study, cell=cell, scale=scale, bench=bench)
    assert other.columns["ε′ sensitivities"] < other.columns["ε"]  # 2·C is more than the two gradients are apart
