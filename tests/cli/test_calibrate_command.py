"""``coalmine calibrate``."""

from __future__ import annotations

import pytest
from cli_runner import assert_refused, run

EXAMPLE = "calibrate --epsilon 2 --delta 1e-5 --sample-rate 0.1 --steps 20"


def test_the_smallest_noise_that_is_looked_at_is_not_called_the_smallest(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "calibrate --epsilon 1e6 --delta 1e-5 --sample-rate 0.5 --steps 100")
    assert found.code == 0
    assert "Less noise would do: 0.01 is the smallest that is looked at." in found.out


@pytest.mark.parametrize("analysis", ["standard", "last-iterate", "last_iterate", "last-iterate-worst", "full-batch"])
def test_epsilon_is_met_and_not_exceeded(capsys: pytest.CaptureFixture[str], analysis: str) -> None:
    found = run(capsys, f"{EXAMPLE} --analysis {analysis} --json")
    assert found.code == 0
    assert 1.9999 <= found.json["epsilon"] <= 2.0
    assert found.json["kind"] == ("guarantee" if analysis == "standard" else "heuristic")
    sigma = found.json["noise_multiplier"]
    again = run(capsys, f"account --sample-rate 0.1 --steps 20 --delta 1e-5 --noise-multiplier {sigma} --json").json
    assert again[analysis.replace("-", "_")]["epsilon"] == found.json["epsilon"]


@pytest.mark.parametrize("epsilon", ["2", "0.7", "8"])
def test_the_noise_as_printed_keeps_epsilon(capsys: pytest.CaptureFixture[str], epsilon: str) -> None:
    for rate in ("0.1", "1"):
        line = f"--delta 1e-5 --sample-rate {rate} --steps 20"
        rows = run(capsys, f"calibrate --epsilon {epsilon} {line}").out.splitlines()
        sigma = next(row.split()[0] for row in rows if "guarantee" in row)
        found = run(capsys, f"account {line} --noise-multiplier {sigma} --json").json
        assert float(epsilon) * 0.9999 <= found["standard"]["epsilon"] <= float(epsilon)


def test_a_name_that_is_none_is_answered_with_the_names_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(run(capsys, f"{EXAMPLE} --analysis pld"), "--analysis = 'pld'", "gdp-clt, last-iterate")


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(run(capsys, f"{EXAMPLE} --analysis last-iterate").out.split())
    assert "predicted, not promised" in text
    text = " ".join(run(capsys, "calibrate --epsilon 2 --delta 1e-5 --sample-rate 1 --steps 20").out.split())
    assert "proved" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{EXAMPLE} --analysis guess", ["--analysis", "guess", "last-iterate"]),
        ("calibrate --epsilon 0 --delta 1e-5 --sample-rate 0.1 --steps 20", ["--epsilon", "0.0", "above 0"]),
        ("calibrate --epsilon 1 --delta 1e-5 --sample-rate 0.1", ["--steps"]),
        (
            "calibrate --epsilon 1e-9 --delta 1e-15 --sample-rate 0.5 --steps 100000 --analysis last-iterate",
            ["--epsilon", "1e-09", "expected at least 0.00"],
        ),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], line: str, words: list[str]) -> None:
    assert_refused(run(capsys, line), *words)
