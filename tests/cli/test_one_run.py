"""The commands: prepare, a training elsewhere, judge; play; plan."""

from __future__ import annotations

import csv
import json
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
    assert "Verdict: " in again.out
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
    assert "Verdict: refuted" in broken.out
