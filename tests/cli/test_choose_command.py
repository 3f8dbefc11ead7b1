"""``coalmine choose``."""

from __future__ import annotations

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
    assert "90.00% sure" in text
    assert "proved for epsilon up to 1 only" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("choose --delta 0.01", ["--belief", "--advantage", "neither"]),
        ("choose --delta 0.01 --belief 0.9 --advantage 0.1", ["--belief", "--advantage", "both"]),
        ("choose --delta 0.01 --belief 0.4", ["--belief", "0.4", "0.5"]),
        ("choose --delta 0.01 --advantage 1", ["--advantage", "1.0"]),
        ("choose --delta 0 --advantage 0.5", ["--delta", "0.0"]),
        ("choose --delta 0.1 --advantage 0.5 --steps 0", ["--steps", "0"]),
        ("choose --delta 0.1 --advantage 0.5 --sample-rate 0", ["--sample-rate", "0"]),
        ("choose --belief 0.9", ["--delta"]),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], line: str, words: list[str]) -> None:
    assert_refused(run(capsys, line), *words)
