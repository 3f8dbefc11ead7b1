"""``coalmine choose`` on data and model, ``coalmine data neighbours``, and audits with beliefs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cli_runner import assert_refused, run
from scipy import stats

from coalmine.theory import curves

CONFIG = """
[data]
name = "synthetic"
rows = 60
[model]
kind = "logistic"
[training]
sampling = "full"
steps = 8
clip = 1.0
learning_rate = 1.0
noise_multiplier = 4.0
[audit]
delta = 0.01
trials = 64
confidence = 0.9
[[adversary]]
name = "identifiability"
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "audit.toml"
    path.write_text(CONFIG)
    return path


def test_a_sweep_says_what_each_belief_costs(capsys, config, tmp_path):
    figure = tmp_path / "price.svg"
    line = f"choose --belief 0.8 --config {config} --trainings 4 --figure {figure} --json"
    found = run(capsys, line)
    assert found.code == 0, found.err
    sweep = found.json["sweep"]
    assert [point["belief"] for point in sweep["points"]] == pytest.approx([0.52, 0.6, 0.75, 0.8, 0.9, 0.99])
    assert sweep["chosen"]["belief"] == pytest.approx(0.8)
    assert sweep["chosen"]["noise_multiplier"] == found.json["noise_multiplier"]["exact"]
    noises = [point["noise_multiplier"] for point in sweep["points"]]
    assert noises == sorted(noises, reverse=True)
    assert sweep["points"][-1]["accuracy"] > sweep["points"][0]["accuracy"]
    assert 0.5 < sweep["without_noise"] <= 1.0
    assert sweep["delta"] == 0.01
    assert sweep["steps"] == 8
    text = figure.read_text()
    assert "your choice" in text
    assert "tolerated belief" in text


def test_a_point_of_an_advantage_stands_at_the_belief_of_its_noise(capsys, config):
    found = run(capsys, f"choose --advantage 0.2 --config {config} --trainings 2 --json").json
    chosen = found["sweep"]["chosen"]
    mu = np.sqrt(8) / chosen["noise_multiplier"]
    assert 2 * stats.norm.cdf(mu / 2) - 1 == pytest.approx(0.2, abs=1e-9)
    epsilon = curves.gaussian_epsilon(mu, delta=0.01)
    assert chosen["belief"] == pytest.approx(1 / (1 + np.exp(-epsilon)), rel=1e-9)
    assert chosen["epsilon"] == pytest.approx(epsilon, rel=1e-9)


def test_an_advantage_and_words_for_people(capsys, config):
    found = run(capsys, f"choose --advantage 0.2 --config {config} --trainings 2 --set training.steps=4")
    text = " ".join(found.out.split())
    assert found.code == 0, found.err
    assert "your choice" in text
    assert "Without any noise the same training reaches" in text
    assert "training.noise_multiplier=" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("choose --belief 0.9 --config {config} --steps 3", ["--steps", "has its own"]),
        ("choose --belief 0.5 --config {config}", ["--belief", "0.5"]),
        ("choose --belief 1 --config {config}", ["--belief", "1.0"]),
        ("choose --belief 0.9 --figure x.svg --delta 0.1", ["--figure needs --config"]),
        ("choose --belief 0.9", ["--delta is missing"]),
        ("choose --belief 0.9 --config {config} --figure x.gif", ["x.gif", ".svg"]),
        ("choose --belief 0.9 --config {config} --set training.noise_scale=local", ["noise_scale"]),
        ("choose --belief 0.9 --config {config} --set training.target_belief=0.5", ["target_belief", "0.5"]),
        ("choose --belief 0.9 --config {config} --trainings 1", ["--trainings", "1"]),
    ],
)
def test_bad_choices_are_refused(capsys, config, line, words):
    assert_refused(run(capsys, line.format(config=config)), *words)


def test_neighbours_of_a_data_set(capsys):
    found = run(capsys, "data neighbours digits --rows 50 --json").json
    assert found["dissimilarity"] == "ssim"
    assert found["sensitivity"] == found["most"][0]["value"]
    values = [one["value"] for one in found["most"] + found["least"][::-1]]
    assert values == sorted(values, reverse=True)
    assert len({one["row"] for one in found["most"]}) == 3
    found = run(
        capsys, "data neighbours synthetic --rows 50 --relation replace --dissimilarity cosine --count 1 --json"
    )
    assert found.json["most"][0]["replacement"] is not None
    text = run(capsys, "data neighbours digits --rows 50 --dissimilarity euclidean").out
    assert "no guarantee" in text
    assert "most, number 2" in run(capsys, "data neighbours digits --rows 2").out  # three were not asked for
    assert_refused(run(capsys, "data neighbours digits --rows 2 --count 3"), "--count = 3", "at most 2")
    assert_refused(run(capsys, "data neighbours synthetic --dissimilarity ssim"), "ssim", "pictures")
    assert_refused(run(capsys, "data neighbours synthetic --dissimilarity hamming"), "hamming", "zeros and ones")
    assert_refused(run(capsys, "data neighbours synthetic --relation both"), "--relation", "both")


def test_an_audit_with_beliefs(capsys, config, tmp_path):
    line = f"audit {config} --store {tmp_path / 'runs.db'} --workers 1"
    found = run(capsys, f"{line} --json")
    assert found.code == 0, found.err
    one = found.json["adversaries"][0]
    beliefs = one["beliefs"]
    assert beliefs["promised"] is True
    assert beliefs["epsilon"] == pytest.approx(found.json["guarantee"]["epsilon"])
    assert beliefs["bound"] == pytest.approx(1 / (1 + np.exp(-beliefs["epsilon"])))
    assert {other["method"] for other in one["others"]} >= {"sensitivities", "largest belief", "advantage"}
    kinds = {other["method"]: other["kind"] for other in one["others"]}
    assert kinds["sensitivities"] == "estimate"
    text = " ".join(run(capsys, f"{line} --report {tmp_path / 'r.html'}").out.split())  # from the store
    assert "How sure identifiability became" in text
    assert "This was played 64 times" in text
    assert "How sure identifiability became" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("neighbours", ["unbounded", "bounded"])
def test_noise_scaled_to_the_local_sensitivity_promises_nothing(capsys, config, tmp_path, neighbours):
    config.write_text(CONFIG + f'neighbours = "{neighbours}"\n')
    line = f"audit {config} --store {tmp_path / 'runs.db'} --workers 1 --set training.noise_scale=local"
    found = run(capsys, f"{line} --json").json
    assert found["guarantee"]["epsilon"] == "infinity"
    assert "local sensitivity" in found["guarantee"]["assumptions"][0]
    assert found["heuristic"]["kind"] == "heuristic"
    relation = "replace" if neighbours == "bounded" else "add_remove"
    assert found["heuristic"]["relation"] == relation
    one = found["adversaries"][0]
    assert (one["epsilon_lower_relation"], one["epsilon_lower_copies"]) == (relation, 1)
    assert found["belief"]["guarantee"] == 1.0
    assert found["advantage"]["guarantee"] == 1.0
    beliefs = found["adversaries"][0]["beliefs"]
    assert beliefs["promised"] is False
    # Every step has the ratio 1/σ, so RDP gives the ε of the noise itself.
    mu = np.sqrt(8) / 4.0
    assert beliefs["estimates"][0]["details"]["mu"] == pytest.approx(mu, rel=1e-6)
    assert beliefs["estimates"][0]["epsilon"] == pytest.approx(mu**2 / 2 + mu * np.sqrt(2 * np.log(100)), rel=1e-6)
    text = " ".join(run(capsys, line).out.split())
    assert "Inconclusive: with noise scaled to the local sensitivity, nothing is promised" in text
    assert "for these neighbours of this data set only" in text
    assert f"for one row {'replaced' if neighbours == 'bounded' else 'added or removed'}, from" in text
    assert "guarantees" not in text
    assert "dpsgd" not in json.dumps(found["adversaries"][0]["others"])


def test_the_json_says_for_which_neighbours_a_bound_holds(capsys, config, tmp_path):
    """The attack replaces a row; the claim, and so the bound, is about a row added or removed: two such steps."""
    config.write_text(CONFIG + 'neighbours = "bounded"\n')
    one = run(capsys, f"audit {config} --store {tmp_path / 'runs.db'} --workers 1 --json").json["adversaries"][0]
    assert (one["relation"], one["copies"]) == ("replace", 1)
    assert (one["epsilon_lower_relation"], one["epsilon_lower_copies"]) == ("add_remove", 2)
    assert (one["bound"]["relation"], one["bound"]["copies"]) == ("add_remove", 2)
    assert one["epsilon_lower"] == one["bound"]["epsilon"]


def test_local_noise_needs_worlds_that_differ_in_one_row(capsys, config, tmp_path):
    config.write_text(CONFIG.replace('name = "identifiability"', 'name = "clipbkd"\ncopies = 2'))
    line = f"audit {config} --store {tmp_path / 'runs.db'} --set training.noise_scale=local"
    assert_refused(run(capsys, line), "differ in 2 rows", "one row")


def test_a_tolerated_belief_sets_the_noise(capsys, config, tmp_path):
    line = f"audit {config} --store {tmp_path / 'runs.db'} --workers 1 --set training.target_belief=0.9 --json"
    found = run(capsys, line).json
    assert found["guarantee"]["epsilon"] == pytest.approx(np.log(9.0), rel=1e-6)
    assert found["guarantee"]["epsilon"] <= np.log(9.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("training.noise_multiplier=0", ["noise_multiplier = 0", "belief is 0 or 1"]),
        ("training.target_belief=1.0", ["target_belief"]),
        ("training.noise_scale=global", ["noise_scale"]),
        ("training.sampling=poisson", ["sample_rate"]),
    ],
)
def test_audits_that_cannot_be(capsys, config, tmp_path, change, words):
    assert_refused(run(capsys, f"audit {config} --store {tmp_path / 'runs.db'} --set {change}"), *words)
