"""``coalmine bound`` as a user types it."""

import json

import numpy as np
import pytest

from coalmine.cli import main

COUNTS = ["--false-positives", "2", "--negatives", "1000", "--false-negatives", "983", "--positives", "1000"]


def run(capsys, *arguments):
    code = main(["bound", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def answer(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.fixture
def scores(tmp_path):
    rng = np.random.default_rng(0)
    world = np.repeat([0, 1], 300)
    score = rng.normal(size=600) + 2 * world
    path = tmp_path / "scores.csv"
    path.write_text(
        "world,score\n" + "".join(f"{w},{s!r}\n" for w, s in zip(world.tolist(), score.tolist(), strict=True))
    )
    np.savez(tmp_path / "scores.npz", world=world, score=score)
    return path


def test_counts(capsys):
    found = answer(capsys, *COUNTS, "--delta", "1e-5", "--confidence", "0.95", "--method", "clopper-pearson")
    assert found["epsilon"] == pytest.approx(0.320015, abs=1e-6)
    assert found["ceiling"] == pytest.approx(5.600577, abs=1e-6)
    assert found["method"] == "clopper_pearson"
    assert found["kind"] == "lower_bound"
    assert found["assumptions"]
    assert answer(capsys, *COUNTS, "--delta", "1e-5", "--copies", 2)["epsilon"] < found["epsilon"] / 2


@pytest.mark.parametrize("method", ["gdp", "anytime"])
def test_other_methods_for_counts(capsys, method):
    found = answer(capsys, *COUNTS, "--delta", "1e-5", "--method", method)
    assert 0 <= found["epsilon"] < found["ceiling"]


def test_dpsgd(capsys):
    dpsgd = [
        "--delta",
        "1e-5",
        "--method",
        "dpsgd",
        "--sample-rate",
        "0.1",
        "--steps",
        "50",
        "--family",
        "last-iterate",
    ]
    few = ["--false-positives", "2", "--negatives", "1000", "--false-negatives", "500", "--positives", "1000"]
    found = answer(capsys, *few, *dpsgd)
    assert found["details"]["noise_multiplier"] > 0
    assert found["epsilon"] > 1


def test_bayesian_is_shown_as_an_estimate(capsys):
    assert answer(capsys, *COUNTS, "--delta", "1e-5", "--method", "bayesian")["kind"] == "estimate"
    code, out, _ = run(capsys, *COUNTS, "--delta", "1e-5", "--method", "bayesian")
    assert code == 0
    assert "proves nothing" in out
    assert "is at least" not in out


@pytest.mark.parametrize(
    "rule", ["sup", "holdout", "holdout:0.3", "bonferroni", "bonferroni:0.5,1,1.5", "dkw", "given:1.0"]
)
def test_scores(capsys, scores, rule):
    found = answer(capsys, "--scores", scores, "--threshold", rule, "--delta", "1e-5")
    assert found["threshold_rule"].startswith(rule.split(":")[0])
    assert 0 < found["epsilon"] < 9
    archive = answer(capsys, "--scores", scores.with_suffix(".npz"), "--threshold", rule, "--delta", "1e-5")
    assert archive["epsilon"] == found["epsilon"]


def test_scores_use_the_sup_test_unless_told(capsys, scores):
    found = answer(capsys, "--scores", scores, "--delta", "1e-5", "--method", "gdp")
    assert found["threshold_rule"] == "sup"
    assert answer(capsys, "--scores", scores, "--delta", "1e-5", "--threshold", "optimistic")["kind"] == "estimate"


def test_one_run_counts(capsys):
    one = ["--one-run", "--canaries", 1000, "--guesses", 300, "--correct", 250, "--delta", "1e-5"]
    assert answer(capsys, *one)["epsilon"] == pytest.approx(1.347004, abs=1e-6)
    assert answer(capsys, *one, "--method", "one-run-fdp")["method"] == "one_run_fdp"
    assert answer(capsys, *one, "--method", "one-run-fdp", "--family", "epsilon-delta")["epsilon"] > 0


def test_exactly_half_is_noted_in_a_plain_file_too(capsys, tmp_path):
    """Pairs of which one is in have no coin for each: what is printed is not proved for them."""
    draw = np.random.default_rng(0)
    for members, noted in ((100, True), (103, False)):
        included = draw.permutation(np.arange(200) < members).astype(int)
        rows = zip(included.tolist(), (included + draw.normal(size=200)).tolist(), strict=True)
        path = tmp_path / "pairs.csv"
        path.write_text("id,included,score\n" + "".join(f"{at},{i},{s!r}\n" for at, (i, s) in enumerate(rows)))
        found = answer(capsys, "--one-run", "--scores", path, "--delta", "1e-5")
        assert ["Exactly half are members" in note for note in found.get("notes", [])] == [True] * noted
        code, out, _ = run(capsys, "--one-run", "--scores", path, "--delta", "1e-5")
        assert code == 0
        assert ("Note: Exactly half are members" in out) is noted


def test_a_key_that_stands_twice_is_refused(capsys, tmp_path):
    path = tmp_path / "twice.json"
    path.write_text('{"world": [0, 1], "score": [1, 2], "score": [5, 1]}')
    code, out, err = run(capsys, "--scores", path, "--delta", "1e-5")
    assert (code, out) == (2, "")
    assert "a key stands twice in one object: 'score'" in err


def test_one_run_scores(capsys, tmp_path):
    rng = np.random.default_rng(1)
    included = rng.random(500) < 0.5
    path = tmp_path / "canaries.csv"
    rows = [f"c{i},{int(b)},{rng.normal() + 3 * b:.6f}\n" for i, b in enumerate(included)]
    path.write_text("id,included,score\n" + "".join(rows))
    assert answer(capsys, "--one-run", "--scores", path, "--delta", "1e-5")["epsilon"] > 0.5
    chosen = answer(capsys, "--one-run", "--scores", path, "--delta", "1e-5", "--guess-in", 100, "--guess-out", 50)
    assert chosen["threshold_rule"] == "in:100,out:50"


def test_people_get_sentences(capsys):
    code, out, err = run(capsys, *COUNTS, "--delta", "1e-5")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert "0.3200" in words
    assert "ceiling" in words
    assert "Assumed" in words
    code, out, _ = run(
        capsys, "--false-positives", 5, "--negatives", 9, "--false-negatives", 5, "--positives", 9, "--delta", 0
    )
    assert "Nothing is refuted" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([*COUNTS], "--delta"),
        ([*COUNTS, "--delta", "2"], "--delta"),
        ([*COUNTS, "--delta", "1e-5", "--confidence", "95"], "--confidence"),
        ([*COUNTS, "--delta", "1e-5", "--method", "clopper"], "--method"),
        ([*COUNTS, "--delta", "1e-5", "--method", "one-run"], "--one-run"),
        ([*COUNTS, "--delta", "1e-5", "--threshold", "sup"], "--threshold"),
        ([*COUNTS, "--delta", "1e-5", "--copies", "0"], "--copies"),
        ([*COUNTS, "--delta", "1e-5", "--steps", "5"], "--steps"),
        ([*COUNTS, "--delta", "1e-5", "--method", "dpsgd", "--steps", "5"], "--sample-rate"),
        ([*COUNTS, "--delta", "1e-5", "--canaries", "5"], "--canaries"),
        ([*COUNTS, "--delta", "1e-5", "--relation", "sibling"], "--relation"),
        ([*COUNTS[:-2], "--delta", "1e-5"], "--positives"),
        (["--delta", "1e-5"], "--scores"),
        (["--delta", "1e-5", *COUNTS[:-1], "100"], "--false-negatives"),
        (["--delta", "1e-5", "--one-run", "--canaries", "10"], "--guesses"),
        (["--delta", "1e-5", "--one-run", "--canaries", "10", "--guesses", "11", "--correct", "1"], "--guesses"),
        (["--delta", "1e-5", "--one-run", *COUNTS], "--false-positives"),
        (["--delta", "1e-5", "--scores", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_bad_options_are_named_in_one_line(capsys, arguments, named):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert named in err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no column world"),
        ("world,score\n", "no rows"),
        ("world;score\n0;1\n", "no column world"),
        ("world,score\n0,1.0\n1,high\n", "row 3: score = 'high'"),
        ("world,score\n0,1.0\n1,nan\n", "row 3: score = nan"),
        ("world,score\n0,1.0\n1,inf\n", "row 3: score = inf"),
        ("world,score\n0,1.0\n2,1.0\n", "row 3: world = 2"),
        ("world,score\n0,1.0\n0,2.0\n", "no row has world = 1"),
        ("world,score\n0,1.0\n1\n", "row 3 has 1 cells"),
        ("world,score\n0,1.0\n\n1,2.0\n", "row 3 is empty"),
        ("id,included,score\na,1,2\n", "--one-run"),
    ],
)
def test_bad_score_files_name_the_row(capsys, tmp_path, text, named):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    code, out, err = run(capsys, "--scores", path, "--delta", "1e-5")
    assert (code, out) == (2, "")
    assert named in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("id,included,score\na,1,2\na,0,3\n", "row 2 and again in row 3"),
        ("id,included,score\na,1,2\nb,2,3\n", "row 3: included = 2"),
        ("id,included,score\na,1,x\n", "row 2: score = 'x'"),
        ("world,score\n0,1\n1,2\n", "leave --one-run out"),
    ],
)
def test_bad_canary_files_name_the_row(capsys, tmp_path, text, named):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    code, _, err = run(capsys, "--one-run", "--scores", path, "--delta", "1e-5")
    assert code == 2
    assert named in err


def test_other_files(capsys, tmp_path):
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"not a zip file")
    assert run(capsys, "--scores", broken, "--delta", "1e-5")[0] == 2
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, world=np.array([0, 1], dtype=object), score=np.array([0.0, 1.0]))
    code, _, err = run(capsys, "--scores", pickled, "--delta", "1e-5")
    assert code == 2
    assert "npz" in err
    uneven = tmp_path / "uneven.npz"
    np.savez(uneven, world=np.array([0, 1, 1]), score=np.array([0.0, 1.0]))
    assert "do not match" in run(capsys, "--scores", uneven, "--delta", "1e-5")[2]
    parquet = tmp_path / "scores.parquet"
    parquet.write_bytes(b"PAR0")
    code, _, err = run(capsys, "--scores", parquet, "--delta", "1e-5")
    assert code == 2
    assert "arquet" in err


def test_parquet(capsys, tmp_path, scores):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    with np.load(scores.with_suffix(".npz")) as archive:
        table = arrow.table({"world": archive["world"], "score": archive["score"]})
    path = tmp_path / "scores.parquet"
    parquet.write_table(table, path)
    by_csv = answer(capsys, "--scores", scores, "--delta", "1e-5")
    assert answer(capsys, "--scores", path, "--delta", "1e-5")["epsilon"] == by_csv["epsilon"]


@pytest.mark.parametrize(
    ("evidence", "ceiling"),
    [
        ("--false-positives 0 --negatives 100000 --false-negatives 99100 --positives 100000 --delta 0.01", False),
        ("--one-run --canaries 1000 --guesses 30 --correct 30 --delta 0.01", True),
    ],
)
def test_a_bound_of_0_is_not_called_no_leakage(capsys, evidence, ceiling):
    """The first tells the worlds apart beyond doubt, the second has every guess right: at this δ that is not enough."""
    code, out, _ = run(capsys, *evidence.split())
    text = " ".join(out.split())
    assert code == 0
    assert "no leakage" not in text
    assert "not even ε = 0 at δ = 0.01" in text
    assert ("could not have refuted any ε" in text) is ceiling


@pytest.mark.parametrize(
    "evidence",
    [
        "--false-positives 900 --negatives 1000 --false-negatives 900 --positives 1000",
        "--one-run --canaries 96 --guesses 96 --correct 0",
    ],
)
def test_counts_that_point_the_wrong_way_are_noted(capsys, evidence):
    _, out, _ = run(capsys, *evidence.split(), "--delta", "1e-5")
    assert "points the wrong way" in " ".join(out.split())
    assert "points the wrong way" in answer(capsys, *evidence.split(), "--delta", "1e-5")["notes"][0]


def test_scores_that_point_the_wrong_way_are_noted(capsys, scores):
    assert "notes" not in answer(capsys, "--scores", scores, "--delta", "1e-5")
    turned = answer(capsys, "--scores", scores, "--delta", "1e-5", "--member-scores", "lower")
    assert turned["epsilon"] == 0
    assert "--member-scores the other way" in turned["notes"][0]


def test_one_run_of_dpsgd_takes_its_mechanism(capsys):
    counts = ["--one-run", "--canaries", 1000, "--guesses", 300, "--correct", 250]
    guesses = [*counts, "--delta", "1e-5", "--method", "one-run-dpsgd"]
    found = answer(capsys, *guesses, "--sample-rate", 1, "--steps", 3)
    assert 2 < found["epsilon"] < found["ceiling"]
    assert found["details"]["noise_multiplier"] > 1
    code, _, err = run(capsys, *guesses)
    assert code == 2
    assert "--sample-rate is missing" in err
