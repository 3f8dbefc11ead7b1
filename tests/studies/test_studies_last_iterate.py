"""The studies of last-iterate-2024: theory exactly, and small runs of the audits."""

import dataclasses

import pytest

from coalmine.studies import Cell, Scale, Study, find
from coalmine.studies.run import run_cell


def tiny(adversary, **training):
    tree = {
        "data": {"name": "synthetic", "rows": 40},
        "model": {"kind": "logistic"},
        "training": {
            "steps": 3, "sampling": "full", "noise_multiplier": 0.3, "learning_rate": 1.0, "initialization": 0.0,
            **training,
        },
        "audit": {"delta": 1e-5, "confidence": 0.95, "trials": 200},
        "adversary": [adversary],
    }  # fmt: skip
    return Study(
        name="a/b", title="t", citation="c", quantity="q", measure="final-model", notes=(),
        cells=(Cell(name="one", tree=tree, published=None),), scales={"quick": Scale(tolerance=0.1)},
        options={"ours": "proved"},
    )  # fmt: skip


def run(name, cell, bench, *, trials=None):
    study = find(f"last-iterate-2024/{name}")
    scale = study.scale("quick")
    if trials is not None:
        scale = dataclasses.replace(scale, options={**scale.options, "trials": trials})
    return run_cell(study, cell=study.cell(cell), scale=scale, bench=bench)


def test_the_three_values_of_section_4_2(bench):
    study = find("last-iterate-2024/section-4")
    found = [run("section-4", cell.name, bench) for cell in study.cells]
    assert [one.verdict for one in found] == ["matches"] * 3
    assert [one.columns["exceeded"] for one in found] == ["no", "yes", "no"]


def test_figure_5_exceeds_the_heuristic_by_about_three_per_cent_at_most(bench):
    above = run("figure-5", "b,q=0.1,T=3", bench)
    assert 1.0 < above.ours < 1.035
    assert above.columns["exceeded"] == "yes"
    below = run("figure-5", "b,q=0.5,T=3", bench)
    assert below.ours < 1.0


def test_figure_1_is_not_monotone(bench):
    one, many = run("figure-1", "c,T=1", bench), run("figure-1", "c,T=100", bench)
    assert many.ours < one.ours
    assert many.columns["4.1 refutes"] == "yes"
    assert one.columns["standard"] < many.columns["standard"]
    full = [run("figure-1", f"a,T={steps}", bench).columns["full batch"] for steps in (1, 10, 100)]
    assert full == pytest.approx([full[0]] * 3, abs=1e-6)  # panel a keeps the full-batch baseline where it is
    assert run("figure-1", "b,T=100", bench).columns["standard"] == pytest.approx(10.0, abs=1e-3)


def test_figure_3_reaches_the_heuristic(bench):
    """20,000 scores at 95 %, seed fixed; the bound is what more trials make close."""
    found = run("figure-3", "q=0.1,T=1000", bench, trials=20_000)
    assert 0.9 < found.columns["of heuristic"] < 1.02
    assert found.columns["share of ε"] == pytest.approx(found.ours / found.guarantee)
    assert found.columns["share of ε"] < found.columns["of heuristic"]
    assert (found.delta, found.confidence, found.played) == (1e-5, 0.95, {"trials": 20_000})
    assert found.columns["guarantee"] == pytest.approx(8.0, abs=1e-3)
    assert found.columns["accuracy"] is None
    assert found.verdict == "no published value"


def test_figure_6_linear_passes_the_heuristic_and_one_bit_does_not(bench):
    linear = run("figure-6", "linear,q=0.1,T=100", bench, trials=20_000)
    bit = run("figure-6", "one-bit,q=0.1,T=100", bench, trials=20_000)
    assert linear.columns["heuristic"] < linear.ours < linear.columns["exact"]
    assert linear.columns["exact"] == pytest.approx(8.0, abs=5e-3)
    assert bit.columns["exact"] == pytest.approx(5.52, abs=0.05)
    assert bit.columns["proved"] < bit.columns["exact"] < bit.columns["heuristic"]


def test_bounds_of_several_copies_are_per_row(bench):
    """Four copies with little noise, told apart without an error: read as one row, the bound would be four times ε."""
    found = {}
    for copies in (1, 4):
        study = tiny({"name": "clipbkd", "copies": copies, "norm": 50.0})
        found[copies] = run_cell(study, cell=study.cells[0], scale=study.scale("quick"), bench=bench).columns
    for name in ("proved", "if DP-SGD"):
        assert 0.0 < found[4][name] < 0.5 * found[1][name]


def test_one_who_sees_every_step_is_not_read_as_a_last_iterate(bench):
    study = tiny({"name": "malicious-dataset"})
    columns = run_cell(study, cell=study.cells[0], scale=study.scale("quick"), bench=bench).columns
    assert columns["if last iterate"] is None
    assert columns["if DP-SGD"] > 0.0
