"""``coalmine choose``."""

from __future__ import annotations

import math

import pytest
from cli_runner import assert_refused, run


def test_a_belief(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "choose --belief 0.9 --delta 0.01 --json")
    assert found.code == 0
    assert found.json["epsilon"] == pytest.approx(2.197225, abs=1e-6)
    assert found.json["belief"] == pytest.approx(0.9)
    assert found.json["advantage"] == pytest.approx(0.28, abs=0.005)
    assert set(found.json["noise_multiplier"]) == {"classical", "exact"}


def test_an_advantage_with_steps_and_sampling(capsys: pytest.CaptureFixture[str]) -> None:
    line = "choose --advantage 0.23 --delta 0.001 --steps 10 --sample-rate 0.2 --json"
    found = run(capsys, line).json
    assert found["epsilon"] == pytest.approx(2.2083, abs=1e-4)
    assert 0.2299 <= found["actual_advantage"]["exact"] <= 0.23


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(run(capsys, "choose --belief 0.9 --delta 0.01").out.split())
    assert "classical" in text
    assert "exact" in text
    assert "at most 90.0% sure" in text
    assert "one row added or removed" in text
    assert "proved for epsilon up to 1 only" in text


@pytest.mark.parametrize(
    ("asked", "training"),
    [
        ("--advantage 0.5", "--delta 1e-5 --steps 100 --sample-rate 0.05"),
        ("--belief 0.9", "--delta 1e-3 --steps 20 --sample-rate 0.1"),
        ("--belief 0.55", "--delta 0.01 --steps 3"),
    ],
)
def test_every_epsilon_stands_beside_a_noise_that_keeps_it(
    capsys: pytest.CaptureFixture[str], asked: str, training: str
) -> None:
    """``account`` at the noise as it is printed has no larger ε, advantage or share of trainings beyond."""
    out = run(capsys, f"choose {asked} {training}").out
    exact = run(capsys, f"choose {asked} {training} --json").json
    assert exact["relation"] == "add_remove"
    rate = "" if "--sample-rate" in training else " --sample-rate 1 --sampling full"
    for row in out.splitlines():
        name, *cells = row.split() or [""]
        if name not in ("classical", "exact") or len(cells) < 4:
            continue
        sigma, epsilon, advantage = map(float, cells[:3])
        found = run(capsys, f"account {training}{rate} --noise-multiplier {sigma} --json").json
        assert found["standard"]["epsilon"] <= epsilon <= found["standard"]["epsilon"] * 1.001 + 1e-4
        assert found["advantage"] <= advantage <= found["advantage"] + 2e-4
        assert exact["noise_multiplier"][name] <= sigma
        assert exact["actual_epsilon"][name] <= epsilon
    text = " ".join(out.split())
    assert f"With the exact noise ε is at most {_up(exact['actual_epsilon']['exact'])} at" in text
    assert "nothing sampled" in text


def _up(value: float) -> str:
    return f"{math.ceil(value * 1e4) / 1e4:.4f}"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("choose --delta 0.01", ["--belief", "--advantage", "neither"]),
        ("choose --delta 0.01 --belief 0.9 --advantage 0.1", ["--belief", "--advantage", "both"]),
        ("choose --delta 0.01 --belief 0.4", ["--belief", "0.4", "0.5"]),
        ("choose --delta 0.01 --belief 0.5", ["--belief", "0.5", "strictly between 0.5 and 1"]),
        ("choose --delta 0.01 --belief 0.3", ["--belief", "0.3", "strictly between 0.5 and 1"]),
        ("choose --delta 0.01 --belief 1", ["--belief", "1.0", "strictly between 0.5 and 1"]),
        ("choose --delta 0.01 --belief nan", ["--belief", "nan", "strictly between 0.5 and 1"]),
        ("choose --delta 0.01 --belief 0.9 --device cpu", ["--device needs --config or --preset"]),
        ("choose --delta 0.01 --belief 0.9 --data-dir x", ["--data-dir needs --config or --preset"]),
        ("choose --delta 0.01 --belief 0.9 --trainings 8", ["--trainings needs --config or --preset"]),
        ("choose --delta 1e-5 --advantage 1e-5 --steps 1000000", ["--advantage = 1e-05", "at most 1e+06 keeps"]),
        ("choose --delta 0.01 --advantage 1", ["--advantage", "1.0"]),
        ("choose --delta 0 --advantage 0.5", ["--delta", "0.0"]),
        ("choose --delta 0.1 --advantage 0.5 --steps 0", ["--steps", "0"]),
        ("choose --delta 0.1 --advantage 0.5 --sample-rate 0", ["--sample-rate", "0"]),
        ("choose --belief 0.9", ["--delta"]),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], line: str, words: list[str]) -> None:
    assert_refused(run(capsys, line), *words)


def test_a_classical_noise_beyond_all_is_shown_beside_the_exact_one(capsys: pytest.CaptureFixture[str]) -> None:
    line = "choose --belief 0.501 --delta 1e-5 --steps 1000000"
    found = run(capsys, f"{line} --json").json
    assert found["noise_multiplier"]["classical"] > 1e6
    assert found["noise_multiplier"]["exact"] == pytest.approx(541_168, abs=1)
    assert list(found["actual_epsilon"]) == list(found["belief_exceeded"]) == ["exact"]
    text = " ".join(run(capsys, line).out.split())
    assert "the classical noise is beyond 1e+06, the largest looked at" in text
    assert "stands in its row" not in text


def test_the_smallest_noise_that_is_looked_at_is_not_called_the_smallest(capsys: pytest.CaptureFixture[str]) -> None:
    words = "Less noise would do: 0.01 is the smallest that is looked at."
    assert words in run(capsys, "choose --belief 0.9 --delta 0.5 --sample-rate 0.01").out
    assert words not in run(capsys, "choose --belief 0.9 --delta 0.01 --sample-rate 0.5").out


def test_a_belief_of_almost_one_is_not_called_certainty(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "choose --belief 0.9999999 --delta 1e-5").out
    assert "99.99999%" in text
    assert "100.00%" not in text
