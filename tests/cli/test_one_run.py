"""The commands: prepare, a training elsewhere, judge; play; plan."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from cli_runner import assert_refused, run

# A training that knows neither Coalmine nor the coins: plain NumPy, softmax regression by noisy clipped steps.
TRAINING = """
import csv, sys
import numpy as np
folder, data, out, sigma = sys.argv[1:]
base, extra, ask = np.load(data), np.load(folder + "/train/run-1.npz"), np.load(folder + "/score/run-1.npz")
x = np.concatenate([base["x"], extra["x"]]); y = np.concatenate([base["y"], extra["y"]])
rng = np.random.default_rng(7)
w = np.zeros((x.shape[1], 2))
def grads(x, y):
    z = x @ w
    p = np.exp(z - z.max(1, keepdims=True)); p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return x[:, :, None] * p[:, None, :]
for step in range(20):
    g = grads(x, y)
    norms = np.sqrt((g ** 2).sum((1, 2)))
    total = (g / np.maximum(norms, 1.0)[:, None, None]).sum(0) + float(sigma) * rng.normal(size=w.shape)
    w -= 0.02 * total
z = ask["x"] @ w
score = z[np.arange(len(z)), ask["y"]] - z[np.arange(len(z)), 1 - ask["y"]]
with open(out, "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["id", "score"])
    rows = list(zip(ask["id"], score))
    rng.shuffle(rows)
    writer.writerows(rows)
assert not any(name.startswith("coalmine") for name in sys.modules)
"""


@pytest.fixture
def rows(tmp_path):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(300, 20)), np.zeros((300, 200))], axis=1)
    path = tmp_path / "data.npz"
    np.savez(path, x=x, y=(x[:, 0] > 0).astype(int))
    return path


def elsewhere(folder, data, out, sigma):
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(folder), str(data), str(out), str(sigma)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("sigma", "code"), [(0.02, 1), (40.0, 3)])
def test_prepare_train_elsewhere_judge(capsys, tmp_path, rows, sigma, code):
    folder, scores = tmp_path / "run", tmp_path / "scores.csv"
    made = run(
        capsys,
        f"one-run prepare --kind low-variance --data {rows} --canaries 300 --epsilon 1 --delta 1e-5 --json "
        f"--out {folder}",
    )
    assert made.code == 0, made.err
    elsewhere(folder, rows, scores, sigma)
    section, figure = tmp_path / "section.json", tmp_path / "scores.svg"
    found = run(
        capsys,
        f"one-run judge --run {folder} --scores {scores} --digest {made.json['digest']} --json --section {section} "
        f"--figure {figure}",
    )
    assert found.code == code, found.out + found.err
    assert found.json["verdict"]["outcome"] == {1: "refuted", 3: "inconclusive"}[code]
    assert len(json.loads(section.read_text())["canaries"]["id"]) == 300
    assert figure.read_text().startswith("<svg")
    again = run(capsys, f"one-run judge --run {folder} --scores {scores}")
    assert again.code == code
    assert "(confidence 95%)" in again.out.splitlines()[0]
    with scores.open(newline="") as file:
        changed = list(csv.reader(file))
    changed[1][1] = "0"
    with scores.open("w", newline="") as file:
        csv.writer(file).writerows(changed)
    assert_refused(run(capsys, f"one-run judge --run {folder} --scores {scores}"), "was opened on", "prepare a new run")


def test_every_kind_can_be_prepared(capsys, tmp_path, rows):
    for kind, options in {
        "mislabeled": f"--data {rows}",
        "blank": f"--data {rows}",
        "extreme": f"--data {rows} --form csv",
        "random-tokens": "--vocabulary 100 --length 8",
        "new-tokens": "--vocabulary 100 --length 8",
        "dirac": "--parameters 500 --per-coordinate 2",
        "random-directions": "--parameters 500 --support 5",
    }.items():
        folder = tmp_path / kind
        made = run(
            capsys,
            f"one-run prepare --kind {kind} {options} --canaries 40 --delta 1e-5 --noise-multiplier 1 --sample-rate 1 "
            f"--steps 1 --runs 2 --guess-in 5 --guess-out 5 --out {folder}",
        )
        assert made.code == 0, made.err
        assert "digest" in made.out
        assert len(list((folder / "train").iterdir())) == 2
    for kind in ("random-tokens", "new-tokens"):
        tokens = (tmp_path / f"{kind}/score/run-2.jsonl").read_text().splitlines()
        assert len(tokens) == 40
        assert sorted(json.loads(tokens[0])) == ["id", "tokens"]
    header = (tmp_path / "extreme/train/run-1.csv").read_text().splitlines()[0]
    assert header.startswith("x0,x1,")
    assert header.endswith(",y")


def test_bad_options_are_refused_in_one_line(capsys, tmp_path, rows):
    start = f"one-run prepare --canaries 40 --delta 1e-5 --out {tmp_path / 'x'}"
    assert_refused(run(capsys, f"{start} --kind odd --epsilon 1"), "--kind = 'odd'", "mislabeled")
    assert_refused(run(capsys, f"{start} --kind blank --epsilon 1"), "--data is missing", "blank")
    assert_refused(run(capsys, f"{start} --kind dirac --parameters 50"), "--noise-multiplier", "not given")
    assert_refused(
        run(capsys, f"{start} --kind dirac --parameters 50 --epsilon 1 --steps 3"), "--steps", "expected one claim"
    )
    assert_refused(run(capsys, f"{start} --kind dirac --parameters 5 --epsilon 1"), "--canaries = 40", "at most 5")
    assert_refused(run(capsys, f"{start} --kind blank --data {tmp_path} --epsilon 1"), "--data", "cannot be read")
    assert_refused(run(capsys, f"one-run judge --run {tmp_path} --scores nowhere.csv"), "seal.json", "no such file")
    assert_refused(run(capsys, "plan --epsilon 1 --delta 1e-5 --canaries 100"), "--canaries", "--one-run")
    assert not (tmp_path / "x").exists()


def scored(folder, path, *, apart, part=1):
    """Scores for the canaries of a run, ``apart`` for those that are in (a cheat, that reads the seal)."""
    from coalmine.one_run.seal import open_seal

    opened = open_seal(folder)
    rng = np.random.default_rng(len(str(path)))
    values = rng.normal(size=len(opened.ids)) + apart * opened.included
    lines = [f"{name},{value}" for name, value in zip(opened.ids, values, strict=True)]
    path.write_text("\n".join(["id,score", *lines, "", ""]))  # an empty last line is nothing
    return path


PROMISE = "--delta 1e-5 --noise-multiplier 1 --sampling full --steps 1"


def prepared(capsys, folder, *, kind="dirac --parameters 2000", canaries=600, promise=PROMISE):
    made = run(capsys, f"one-run prepare --kind {kind} --canaries {canaries} {promise} --out {folder}")
    assert made.code == 0, made.err
    return folder


def test_a_control_must_be_another_run_of_the_same_game(capsys, tmp_path, rows):
    audited, twin = prepared(capsys, tmp_path / "audited"), prepared(capsys, tmp_path / "twin")
    seen, blind = (scored(audited, tmp_path / f"{mu}.csv", apart=mu) for mu in (1.0, 0.0))
    caught = scored(twin, tmp_path / "caught.csv", apart=3.0)
    start = f"one-run judge --run {audited} --scores"
    for name, change in {
        "kind": {"kind": f"low-variance --data {rows}", "canaries": 400},
        "canaries": {"canaries": 500},
        "claim": {"promise": PROMISE.replace("1e-5", "1e-6")},
    }.items():
        other = prepared(capsys, tmp_path / name, **change)
        scores = scored(other, tmp_path / f"{name}.csv", apart=9.0)
        found = run(capsys, f"{start} {seen} --control-run {other} --control-scores {scores}")
        assert_refused(found, "control", name)
        assert '"judged": null' in (other / "seal.json").read_text()
    assert_refused(run(capsys, f"{start} {seen} --control-run {audited} --control-scores {seen}"), "itself")
    short, long = (
        prepared(capsys, tmp_path / f"of-{scale}", kind=f"low-variance --data {rows} --scale {scale}", canaries=40)
        for scale in (0.3, 10)
    )
    low, high = (scored(one, tmp_path / f"{one.name}.csv", apart=1.0) for one in (short, long))
    found = run(capsys, f"one-run judge --run {short} --scores {low} --control-run {long} --control-scores {high}")
    assert_refused(found, "control", "other canaries")
    lost = run(capsys, f"{start} {seen} --control-run {twin} --control-scores {seen}")
    assert_refused(lost, "control: ", "has that id")
    alone = tmp_path / "copy"
    shutil.copytree(audited, alone)
    nothing = run(
        capsys, f"one-run judge --run {alone} --scores {blind} --control-run {twin} --control-scores {caught}"
    )
    assert nothing.code == 3
    assert "whatever a control shows" in " ".join(nothing.out.split())
    found = run(capsys, f"{start} {seen} --control-run {twin} --control-scores {caught} --json")
    assert found.code == 0
    assert found.json["digest"] == run(capsys, f"{start} {seen} --json").json["digest"]
    assert found.json["run"] == json.loads((audited / "manifest.json").read_text())["run"]


def test_rows_of_a_training_without_noise_are_not_consistent(capsys, tmp_path, rows):
    folder = prepared(capsys, tmp_path / "run", kind=f"low-variance --data {rows}", canaries=400)
    found = run(capsys, f"one-run judge --run {folder} --scores {scored(folder, tmp_path / 's.csv', apart=1.0)}")
    assert found.code == 3
    words = " ".join(found.out.split())
    assert "need not be the noise" in words
    assert "--control-run" in words
    assert "one-run-dpsgd (if DP-SGD)" in words
    assert "manifest digest" in words


def test_prepare_says_what_cannot_be_refuted_and_what_helps(capsys, tmp_path):
    start = "one-run prepare --kind dirac --parameters 5000 --delta 1e-5"
    shown = run(capsys, f"{start} --canaries 1000 --epsilon 8 --runs 3 --out {tmp_path / 'a'}")
    words = " ".join(shown.out.split())
    assert "Warning: 3000 canaries are too few for this claim" in words
    assert "--noise-multiplier" in words
    assert "3 of them" in words
    assert "--scores SCORES-3.csv" in words
    made = run(
        capsys, f"{start} --canaries 100 --noise-multiplier 1 --sampling full --steps 1 --json --out {tmp_path / 'b'}"
    )
    assert "--canaries 2" in made.json["warning"]  # between 200 and 299 would do
    enough = run(
        capsys, f"{start} --canaries 600 --noise-multiplier 1 --sampling full --steps 1 --json --out {tmp_path / 'c'}"
    )
    assert enough.json["warning"] is None


@pytest.mark.parametrize("option", ["section", "figure", "report"])
def test_where_to_write_is_checked_before_the_seal_is_opened(capsys, tmp_path, option):
    folder = prepared(capsys, tmp_path / "run", canaries=100)
    scores = scored(folder, tmp_path / "s.csv", apart=1.0)
    for path in (tmp_path / "nowhere" / "out.svg", tmp_path):
        found = run(capsys, f"one-run judge --run {folder} --scores {scores} --{option} {path}")
        assert_refused(found, f"--{option}", "folder")
    if option == "figure":
        assert_refused(run(capsys, f"one-run judge --run {folder} --scores {scores} --figure x.bmp"), "--figure", "svg")
    assert not (tmp_path / "nowhere").exists()
    assert '"judged": null' in (folder / "seal.json").read_text()


def test_data_that_makes_no_canaries_is_refused(capsys, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 50)), np.arange(60) % 2
    bad = np.where(rng.random((60, 50)) < 0.1, np.nan, x)
    for number, (kind, fields, words) in enumerate(
        [
            ("low-variance", {"x": bad, "y": y}, "finite"),
            ("extreme", {"x": np.ones((60, 50)), "y": y}, "constant"),
            ("mislabeled", {"x": x, "y": y - 1}, "labels from -1 to 0"),
            ("blank", {"x": x, "y": 0 * y}, "two classes or more"),
        ]
    ):
        np.savez(tmp_path / f"{number}.npz", **fields)
        line = f"one-run prepare --kind {kind} --data {tmp_path / f'{number}.npz'} --canaries 40 {PROMISE}"
        assert_refused(run(capsys, f"{line} --out {tmp_path / 'x'}"), words)
    (tmp_path / "not.npz").write_text("not an archive")
    found = run(capsys, f"one-run prepare --kind blank --data {tmp_path / 'not.npz'} --canaries 40 {PROMISE} --out x")
    assert_refused(found, "expected an .npz file")
    assert "pickle" not in found.err


def test_messages_name_the_option_that_is_wrong(capsys, tmp_path):
    start = f"one-run prepare --kind dirac --parameters 500 --delta 1e-5 --out {tmp_path / 'x'}"
    assert_refused(run(capsys, f"{start} --canaries 40 --epsilon 1 --runs 0"), "--runs = 0")
    for few in (0, 1):
        assert_refused(run(capsys, f"{start} --canaries {few} --epsilon 1"), f"--canaries = {few}", "at least 2")
    assert_refused(run(capsys, f"{start} --canaries 40 --epsilon 1 --sampling foo"), "--sampling = 'foo'")
    shuffled = run(capsys, f"{start} --canaries 40 --noise-multiplier 1 --sample-rate 0.1 --steps 3 --sampling shuffle")
    assert_refused(shuffled, "--sampling = 'shuffle'")
    assert_refused(run(capsys, "plan --one-run --epsilon 1 --delta 1e-5 --sample-rate 0.1"), "--steps not given")
    folder = prepared(capsys, tmp_path / "run", canaries=100)
    (tmp_path / "ok.json").write_text(json.dumps([{"id": str(i), "score": i} for i in range(500)]))
    whole = run(capsys, f"one-run judge --run {folder} --scores {tmp_path / 'ok.json'}")
    assert_refused(whole, ".jsonl")
    assert len(whole.err) < 600


def test_plan_one_run(capsys):
    found = run(
        capsys,
        "plan --one-run --epsilon 4 --delta 1e-5 --sampling full --steps 1 --canaries 200 --canaries 1000 --json",
    )
    assert found.code == 0, found.err
    small, large = found.json["forecasts"]
    assert small["expected"] < large["expected"] < 4.0
    assert large["half"] > small["half"]
    assert 200 < found.json["least"] < 1000
    shown = run(capsys, "plan --one-run --epsilon 4 --delta 1e-5 --sampling full --steps 1 --canaries 200")
    assert "Half the claimed noise" in shown.out


def test_play(capsys):
    pytest.importorskip("sklearn")
    line = "one-run play --set data.name=digits --set training.steps=60 --set training.sample_rate=0.2 --canaries 600"
    honest = run(capsys, f"{line} --seed 1 --json")
    assert honest.code == 0, honest.out + honest.err
    assert honest.json["verdict"]["outcome"] == "consistent"
    assert 0.0 < honest.json["price"]["without"] <= 1.0
    broken = run(capsys, f"{line} --seed 1 --noise-factor 0.4 --no-control --no-price")
    assert broken.code == 1
    assert broken.out.startswith("Refuted (confidence")


def test_a_judged_run_is_kept_if_asked(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = prepared(capsys, tmp_path / "run", canaries=200)
    line = f"one-run judge --run {folder} --scores {scored(folder, tmp_path / 's.csv', apart=3.0)}"
    first = run(capsys, line)
    assert first.code == 1
    assert not list(tmp_path.glob("*.db"))
    assert "Stored:" in run(capsys, f"{line} --store kept.db --name canaries --tag nightly").out
    assert run(capsys, f"{line} --store kept.db --tag weekly --json").json["verdict"]["outcome"] == "refuted"
    [one] = run(capsys, "runs list --store kept.db --json").json["results"]  # the same result is kept once
    assert (one["kind"], one["name"], one["tags"], one["size"]) == ("one-run", "canaries", ["nightly", "weekly"], 200)
    whole = run(capsys, f"runs show {one['result'][:8]} --store kept.db --json").json["report"]
    assert len(whole["canaries"]["score"]) == 200
    assert whole["verdict"]["outcome"] == "refuted"
    assert run(capsys, f"report {one['result'][:8]} --store kept.db -o page.html").code == 0
    assert "Refuted at 95% confidence" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert_refused(run(capsys, f"{line} --tag nightly"), "without --store")


def test_in_python_a_judged_run_is_kept_too(capsys, tmp_path):
    from coalmine.one_run import judge_folder
    from coalmine.store import Store, results

    folder = prepared(capsys, tmp_path / "run", canaries=200)
    scores = scored(folder, tmp_path / "s.csv", apart=3.0)
    result = judge_folder(folder, scores=scores, store=tmp_path / "kept.db", name="canaries", tags=["nightly"])
    with Store.open(tmp_path / "kept.db") as store:
        [entry] = results.every(store)
    assert (entry.name, entry.tags, entry.summary["outcome"]) == ("canaries", ("nightly",), "refuted")
    assert entry.summary["epsilon"] == result.proved.epsilon  # nothing is assumed of it
    assert "dpsgd" not in result.proved.method
    assert entry.summary["subject"] == "dirac canaries"
