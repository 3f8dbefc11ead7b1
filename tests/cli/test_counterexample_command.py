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


def test_the_other_examples(capsys: pytest.CaptureFixture[str]) -> None:
    line = "counterexample --sample-rate 0.1 --noise-multiplier 0.612 --steps 10 --delta 1e-5"
    one_bit = run(capsys, f"{line} --example one-bit --json").json
    assert one_bit["epsilon"] == pytest.approx(6.464, abs=0.005)
    assert one_bit["threshold"] == 2.5
    assert one_bit["refutes_heuristic"]
    linear = run(capsys, f"{line} --example linear --json").json
    assert linear["standard"] > linear["epsilon"] > one_bit["epsilon"]
    assert linear["epsilon"] == pytest.approx(linear["standard"], rel=1e-3)
    assert "does not hold for chosen data" in " ".join(run(capsys, f"{line} --example linear").out.split())
    zeroing = run(capsys, f"{line} --example zeroing --json").json
    assert zeroing == {**run(capsys, f"{line} --regularizer 1 --json").json, "example": "zeroing"}
    assert "forgets all but the last step" in " ".join(run(capsys, f"{line} --example zeroing").out.split())
    assert (one_bit["example"], linear["example"]) == ("one-bit", "linear")
    # Where one bit is too little: q = 0.1, 100 steps, noise for ε = 8.
    many = "counterexample --sample-rate 0.1 --noise-multiplier 0.936 --steps 100 --delta 1e-5 --example one-bit"
    assert "not exceeded by one bit a step" in " ".join(run(capsys, many).out.split())


@pytest.mark.parametrize(
    "line",
    [
        "--steps 1 --sample-rate 0.1 --noise-multiplier 10 --delta 1e-15",  # one step: the heuristic is exact
        "--steps 10000000 --sample-rate 0.001 --noise-multiplier 100000 --delta 1e-8",
    ],
)
def test_an_upper_bound_is_not_called_a_leak(capsys: pytest.CaptureFixture[str], line: str) -> None:
    text = " ".join(run(capsys, f"counterexample --example linear {line}").out.split())
    assert "leaks at least" in text
    assert "promises at most" in text
    assert "not shown to leak more" in text
    assert "one bit a step" not in text
    assert "more than it says (" not in " ".join(run(capsys, f"account {line}").out.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--regularizer 1.5", "--regularizer = 1.5 is not allowed: expected a number from 0 to 1"),
        ("--regularizer -0.1", "--regularizer = -0.1"),
        ("--example best", "--example = 'best'"),
        ("--example linear --regularizer 0.5", "--regularizer = 0.5"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], options: str, words: str) -> None:
    found = run(capsys, f"counterexample --sample-rate 0.1 --noise-multiplier 1 --steps 3 --delta 1e-6 {options}")
    assert found.code == 2
    assert words in found.err
    assert len(found.err.strip().splitlines()) == 1


def test_a_search_that_takes_long_names_options_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    line = "counterexample --example one-bit --sample-rate 0.1 --noise-multiplier 100 --steps 3000000 --delta 1e-5"
    found = run(capsys, line)
    assert found.code == 2
    assert "expected fewer steps or less noise, or the form that keeps the values, linear" in found.err
    assert "larger step" not in found.err
