"""The report of a user's own training: what is tested is a claim, and is never called a guarantee."""

import html

import numpy as np
import pytest

from coalmine import cli, report
from coalmine.auditing.config import Execution
from coalmine.integrations import audit_function
from coalmine.records import DpSgd, EpsilonClaim, Outcome, Relation
from coalmine.report import repeat, series
from coalmine.store import Store

NOISE = 4.0


def worlds():
    """World 1 has one row more."""
    return np.zeros(3), np.array([0.0, 0.0, 0.0, 1.0])


def train(dataset, seed):
    """The Gaussian mechanism: a noisy sum."""
    return float(np.sum(dataset) + NOISE * np.random.default_rng(seed).normal())


def leaky(dataset, seed):
    """The same with far too little noise."""
    return float(np.sum(dataset) + 0.1 * np.random.default_rng(seed).normal())


def score(model):
    """A larger sum speaks for world 1."""
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("own")


def play(folder, function, **claim):
    options = {"store": folder / "own.db", "execution": Execution(engine="inline"), **claim}
    return audit_function(function, score, worlds=worlds, trials=64, **options)


def test_a_claim_is_not_called_a_guarantee(folder):
    result = play(folder, train, claim_epsilon=3.0)
    text = report.page(result).replace("\u00a0", " ")
    assert "the claim ε = 3 (δ = 10⁻⁵)" in text
    assert "is claimed: what is known about the privacy loss ε" in text
    assert "Claim: ε ≤ 3.00" in text
    assert "claimed, not proved here" in text
    assert "this is what the user claims; Coalmine has not proved it" in text
    assert "guaranteed" not in text
    assert "Guarantee" not in text
    assert "What is claimed: after seeing" in text


def test_a_refuted_claim(folder):
    result = play(folder, leaky, claim_epsilon=1.0)
    text = report.page(result).replace("\u00a0", " ")
    assert result.verdict.outcome is Outcome.REFUTED
    assert "Refuted at 99% confidence: the claim ε = 1 is false" in text
    assert html.escape(result.verdict.reasons[0][3:]) in text


def test_how_to_repeat_it(folder):
    text = report.page(play(folder, train, claim_epsilon=3.0)).replace("<span>", "").replace("</span>", "")
    assert (
        "coalmine audit --train test_report_own:train --score test_report_own:score --worlds test_report_own:worlds "
        "--claim-epsilon 3.0 --trials 64<"
    ) in text
    assert '<pre class="config">' not in text  # no config with empty fields
    other = play(folder, train, claim_epsilon=3.0, delta=1e-6, confidence=0.95, seed=5, control=leaky)
    command = repeat.command(other)
    assert command.endswith("--trials 64 --set audit.delta=1e-06 --set audit.confidence=0.95 --set audit.seed=5")
    assert "--control-train test_report_own:leaky" in command


def test_a_claim_given_as_a_value_is_drawn_and_told_with_its_own_delta(folder):
    result = play(folder, train, claim=EpsilonClaim(epsilon=3.0, delta=1e-3))
    assert (result.config.audit.delta, result.config.audit.claim_epsilon) == (1e-3, 3.0)
    ((kind, curve),) = series.promised_curves(result, result.adversaries[0])
    assert kind == "claim"
    assert curve([0.01])[0] == pytest.approx(1 - 1e-3 - np.exp(3.0) * 0.01)
    assert "the claim ε = 3 (δ = 0.001)" in report.page(result).replace("\u00a0", " ")


def test_a_claimed_mechanism_is_drawn_with_its_own_curve(folder):
    mechanism = DpSgd(sample_rate=1.0, noise_multiplier=NOISE, steps=1, relation=Relation.ADD_REMOVE)
    result = play(folder, train, claim_dpsgd=mechanism)
    ((kind, curve),) = series.promised_curves(result, result.adversaries[0])
    assert kind == "claim"
    assert curve([0.05])[0] == pytest.approx(0.9185, abs=2e-3)  # Φ(Φ⁻¹(0.95) − 1/4)
    text = report.page(result)
    assert "If it is DP-SGD and only its noise is unknown" in text
    assert "<span>--claim-dpsgd 1.0,4.0,1,poisson,add_remove</span> <span>--trials 64</span>" in text


def test_a_claimed_mechanism_that_is_refuted_by_its_curve(folder):
    result = play(folder, leaky, claim_dpsgd=DpSgd(sample_rate=1.0, noise_multiplier=0.5, steps=1))
    assert result.verdict.outcome is Outcome.REFUTED
    assert result.strongest.bound.epsilon < result.claim_epsilon  # so no sentence may say that ε alone contradicts it
    text = report.page(result).replace("\u00a0", " ")
    assert "Refuted at 99% confidence: the claim of DP-SGD" in text
    assert "is refuted by the attack" in text
    assert "although no more than" not in text


def test_the_command_needs_no_code_of_the_user(folder, monkeypatch):
    play(folder, train, claim_epsilon=3.0)

    def refuse(*_):
        raise AssertionError("a report must not train")

    monkeypatch.setattr("test_report_own.train", refuse)
    with Store.open(folder / "own.db") as store:
        run = store.runs()[0].fingerprint
    assert cli.main(["report", run[:10], "--store", str(folder / "own.db"), "-o", str(folder / "own.html")]) == 0
    assert (folder / "own.html").read_text().startswith("<!DOCTYPE html>")
