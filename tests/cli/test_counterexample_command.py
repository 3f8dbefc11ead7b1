"""``coalmine counterexample``."""

from __future__ import annotations

import pytest
from cli_runner import assert_refused, run

EXAMPLE = "counterexample --steps 3 --sample-rate 0.1 --noise-multiplier 1 --delta 1e-6"


@pytest.mark.parametrize(("regularizer", "expected"), [("0", 2.222411), ("1", 2.181694), ("0.5", 2.274875)])
def test_published_values(capsys: pytest.CaptureFixture[str], regularizer: str, expected: float) -> None:
    found = run(capsys, f"{EXAMPLE} --regularizer {regularizer} --json")
    assert found.code == 0
    assert found.json["epsilon"] == pytest.approx(expected, abs=1e-6)
    assert found.json["method"] == "exact"


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (f"{EXAMPLE} --regularizer 0.5", "too small, even at its largest"),
        (f"{EXAMPLE} --regularizer 1", "not exceeded"),
        (
            "counterexample --steps 100 --sample-rate 0.01 --noise-multiplier 0.5 --regularizer 1 --delta 1e-6",
            "at this number of steps is too small",
        ),
        (
            "counterexample --steps 40 --sample-rate 0.1 --noise-multiplier 1 --regularizer 0.5 --delta 1e-6",
            "upper bound",
        ),
    ],
)
def test_for_people(capsys: pytest.CaptureFixture[str], line: str, verdict: str) -> None:
    assert verdict in " ".join(run(capsys, line).out.split())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{EXAMPLE} --regularizer 1.1", ["--regularizer", "1.1", "0 to 1"]),
        (f"{EXAMPLE} --regularizer nan", ["--regularizer", "nan"]),
        ("counterexample --steps 3 --sample-rate 0.1 --noise-multiplier 1", ["--delta"]),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], line: str, words: list[str]) -> None:
    assert_refused(run(capsys, line), *words)
