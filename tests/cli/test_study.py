"""coalmine study: list, show, run."""

import pytest
from cli_runner import assert_refused, run

from coalmine.studies import find, names


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("COALMINE_DATA", raising=False)
    return tmp_path


@pytest.fixture
def small(monkeypatch):
    """The first study on tiny data, so that its cells run in a moment."""
    import dataclasses

    from coalmine import studies
    from coalmine.studies.cells import Cell, Scale

    real = find("jagielski-2020/table-2")
    tree = {
        "data": {"name": "synthetic", "rows": 60},
        "model": {"kind": "logistic"},
        "training": {"steps": 4, "sample_rate": 0.5, "noise_multiplier": 1.0},
        "audit": {"delta": 1e-5, "confidence": 0.99},
        "adversary": [{"name": "clipbkd"}],
    }
    small = dataclasses.replace(
        real,
        cells=(Cell(name="one", tree=tree, published=0.0), Cell(name="two", tree=tree, published=None)),
        scales={
            "quick": Scale(cells=("one",), tolerance=0.15, options={"trials": 32, "copies": [1, 2]}),
            "paper": Scale(tolerance=0.15, options={"trials": 32, "copies": [1]}),
        },
    )
    monkeypatch.setattr(studies, "find", lambda name: small)
    return small


def test_list(capsys):
    listed = run(capsys, "study list --json").json["studies"]
    assert [one["study"] for one in listed] == list(names())
    text = run(capsys, "study list").out
    for name in names():
        assert name in text


@pytest.mark.parametrize("name", names())
def test_show(name, capsys):
    done = run(capsys, f"study show {name}")
    assert done.code == 0
    cells = run(capsys, f"study show {name} --json").json["cells"]
    assert len(cells) == len(find(name).cells)
    assert all(one["cell"] in done.out for one in cells)


def test_show_says_what_the_quick_scale_runs(capsys):
    text = " ".join(run(capsys, "study show cebere-2025/housing").out.split())
    assert "quick, the default, runs 2 of 10 cells (full,epsilon=4; sampled,epsilon=4)" in text
    cells = run(capsys, "study show cebere-2025/housing --json").json["cells"]
    assert [one["cell"] for one in cells if one["quick"]] == ["full,epsilon=4", "sampled,epsilon=4"]
    assert "runs every cell" in " ".join(run(capsys, "study show pradhan-2026/s1").out.split())


@pytest.mark.parametrize(
    ("study", "cell", "words", "played"),
    [
        ("pradhan-2026/s1", "q=1,epsilon=4", "1,000 draws in each world, confidence 99 %.", {"draws": 1000}),
        (
            "nasr-2023/canary-each-step",
            "draws=1,sigma=1.6",
            "3 audits of 2,500 draws in each world, confidence 95 %.",
            {"audits": 3, "draws": 2500},
        ),
        ("bernau-2021/table-3", None, "theory alone, nothing is played.", {}),
    ],
)
def test_run_says_how_much_evidence_there_is(study, cell, words, played, capsys):
    cell = cell or find(study).cells[0].name
    line = f"study run {study} --cell {cell}"
    text = " ".join(run(capsys, line).out.split())
    assert f"Scale quick{', each cell' if played else ''}: {words}" in text
    found = run(capsys, f"{line} --json").json
    assert found["scale"] == "quick"
    assert found["results"][0]["played"] == played
    assert 0.0 < found["results"][0]["delta"] < 1.0


def test_run_prints_ours_beside_the_published_value(small, capsys):
    done = run(capsys, "study run jagielski-2020/table-2 --workers 1")
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    for words in ("one", "matches", "published", "ours", "proved", "if Gaussian", "heuristic", "guarantee", "best k"):
        assert words in text
    assert "two" not in text.split("The same cells")[0].split("verdict")[1]
    assert max(len(line.rstrip()) for line in done.out.splitlines()) <= 80
    again = run(capsys, "study run jagielski-2020/table-2 --workers 1 --json").json["results"]
    assert len(again) == 1
    assert again[0]["verdict"] == "matches"
    assert set(again[0]["details"]["by_copies"]) == {"1", "2"}
    assert again[0]["trials"] == 64
    assert (again[0]["played"], again[0]["confidence"]) == ({"trials": 64}, 0.99)
    assert "Scale quick, each cell: 64 trials (both worlds together), confidence 99 %." in text


def test_run_a_cell_alone_and_train_only(small, capsys):
    done = run(capsys, "study run jagielski-2020/table-2 --cell two --workers 1 --json")
    assert [one["cell"] for one in done.json["results"]] == ["two"]
    assert done.json["results"][0]["verdict"] == "no published value"
    both = run(capsys, "study run jagielski-2020/table-2 --cell two --cell one --cell two --workers 1 --json")
    assert [one["cell"] for one in both.json["results"]] == ["two", "one"]
    line = "study run jagielski-2020/table-2 --scale paper --workers 1 --train-only"
    assert "Trained 2 cells" in run(capsys, line).out
    assert run(capsys, f"{line} --json").json["trained"] == ["one", "two"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("study show jagielski-2020/table-9", ["did you mean 'jagielski-2020/table-"]),
        ("study run nonsense", ["study = 'nonsense' is not known"]),
        ("study run jagielski-2020/table-2 --scale huge", ["--scale = 'huge'", "quick, paper"]),
        ("study run jagielski-2020/table-2 --cell sigma=1", ["--cell = 'sigma=1' is not in study", "did you mean"]),
        ("study run jagielski-2020/table-2 --device tpu", ["--device = 'tpu'"]),
        ("study run", ["Missing argument 'name'"]),
    ],
)
def test_bad_input(line, words, capsys):
    assert_refused(run(capsys, line), *words)


def test_a_gpu_that_is_not_there_is_refused_where_nothing_is_trained_either(capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    outcome = run(capsys, "study run nasr-2021/figure-8 --device cuda")
    assert_refused(outcome, "--device = 'cuda'", "expected 'cpu'")


def test_a_figure_that_cannot_be_is_found_out_before_any_work(capsys):
    assert_refused(run(capsys, "study run last-iterate-2024/section-4 --figure x.svg"), "has no figure")
    assert_refused(run(capsys, "study run nasr-2021/figure-8 --figure nowhere/x.svg"), "--figure = 'nowhere/x.svg'")


def test_a_bound_that_nobody_has_evidence_for_is_a_dash_and_not_zero(capsys, monkeypatch):
    import dataclasses

    from coalmine import studies
    from coalmine.studies.cells import Cell

    real = find("nasr-2021/figure-8")  # its adversary sees every iterate: no bound for the last one alone
    tree = {
        "data": {"name": "synthetic", "rows": 60},
        "model": {"kind": "logistic"},
        "training": {"steps": 4, "sample_rate": 0.5, "noise_multiplier": 1.0},
        "audit": {"delta": 1e-5, "confidence": 0.95, "trials": 64},
        "adversary": [{"name": "malicious-dataset"}],
    }
    scale = dataclasses.replace(real.scales["quick"], cells=("one",), config={}, options={})
    small = dataclasses.replace(
        real, cells=(Cell(name="one", tree=tree, published=None),), scales={"quick": scale}, options={}, figure={}
    )
    monkeypatch.setattr(studies, "find", lambda name: small)
    found = run(capsys, "study run x --workers 1 --json").json["results"][0]["columns"]
    assert found["if last iterate"] is None
    assert found["if DP-SGD"] is not None


def test_other_numbers_of_trials(small, capsys):
    found = run(capsys, "study run jagielski-2020/table-2 --trials 64 --json").json["results"]
    assert [one["trials"] for one in found] == [128]  # 64 for each number of copies
    assert_refused(run(capsys, "study run jagielski-2020/table-2 --trials 0"), "trials", "0")


def test_studies_that_train_nothing_have_no_trials_to_choose(capsys):
    assert_refused(run(capsys, "study run last-iterate-2024/section-4 --trials 64"), "--trials")
