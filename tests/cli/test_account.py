"""``coalmine account`` as a user meets it."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys

import pytest
from cli_runner import assert_refused, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

EXAMPLE = "account --sample-rate 0.01 --noise-multiplier 1.1 --steps 10000"
SMALL = "account --sample-rate 0.1 --noise-multiplier 1 --steps 5"
ANALYSES = ["standard", "rdp", "gdp_clt", "last_iterate", "last_iterate_worst", "full_batch"]


@pytest.mark.parametrize("sigma", [0.001, 0.01, 0.05, 0.1])
def test_little_noise_has_an_epsilon_although_the_central_limit_has_none(
    capsys: pytest.CaptureFixture[str], sigma: float
) -> None:
    found = run(capsys, f"account --sample-rate 0.01 --steps 100 --delta 1e-5 --noise-multiplier {sigma}")
    assert (found.code, found.err) == (0, "")
    assert "∞" in next(line for line in found.out.splitlines() if "gdp-clt" in line)
    assert "Proved: ε is at most" in found.out


def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, f"{EXAMPLE} --delta 1e-5 --json")
    assert (found.code, found.err) == (0, "")
    assert list(found.json) == [*ANALYSES, "advantage", "belief", "belief_exceeded", "mechanism", "counterexamples"]
    assert found.json["standard"]["epsilon"] == pytest.approx(5.1926, abs=0.005)
    assert found.json["last_iterate"]["epsilon"] == pytest.approx(4.000528, abs=1e-6)
    assert found.json["last_iterate_worst"]["epsilon"] >= found.json["last_iterate"]["epsilon"]
    assert found.json["standard"]["kind"] == "guarantee"
    assert found.json["last_iterate"]["kind"] == "heuristic"
    assert 0 < found.json["advantage"] < found.json["belief"] < 1
    assert 1e-5 < found.json["belief_exceeded"] < 1e-3


def test_how_often_an_adversary_becomes_surer_than_epsilon_allows(capsys: pytest.CaptureFixture[str]) -> None:
    """For one Gaussian step Φ(μ/2 − ε/μ), which is not δ: with δ = 0.3 most trainings are beyond."""
    line = "account --sample-rate 1 --noise-multiplier 1 --steps 1 --delta 0.3"
    found = run(capsys, f"{line} --json").json
    expected = float(stats.norm.cdf(0.5 - found["standard"]["epsilon"]))
    assert found["belief_exceeded"] == pytest.approx(expected, rel=1e-9)
    assert "except in at most 59% of all trainings with it" in " ".join(run(capsys, line).out.split())


def test_delta_at_an_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, f"{SMALL} --epsilon 1 --json").json
    assert all(0 < found[name]["delta"] < 1 for name in ANALYSES)
    back = run(capsys, f"{SMALL} --delta {found['standard']['delta']} --json").json
    assert back["standard"]["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert found["belief"] == pytest.approx(0.731059, abs=1e-6)


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, f"{SMALL} --delta 1e-5")
    text = " ".join(found.out.split())
    assert found.code == 0
    assert "Proved: ε is at most" in text
    assert "For one person" in text
    assert "Never report it as a guarantee" in text
    assert "coalmine counterexample" in text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        # Section 4.2: the half-forgetting regularizer beats the heuristic at its largest.
        ("--sample-rate 0.1 --noise-multiplier 1 --steps 3 --delta 1e-6", "λ = 0.5 leaks 2.2749, more than it says"),
        # Section 4.1: fewer steps leak more, so a regularizer that forgets all but the last refutes it.
        ("--sample-rate 0.01 --noise-multiplier 0.5 --steps 100 --delta 1e-6", "λ = 1 leaks 4.2854, more than it says"),
        ("--sample-rate 0.1 --noise-multiplier 3 --steps 1000 --delta 1e-5", "adversary pathological-regularizer"),
    ],
)
def test_it_says_when_not_to_trust_the_heuristic(capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    text = " ".join(run(capsys, f"account {line}").out.split())
    assert words in text
    assert "Do not trust it where the training has a regularizer" in text
    assert "Do not trust it where others may choose part of the data" in text
    found = run(capsys, f"account {line} --json").json["counterexamples"]
    assert found["adversarial_data"]["refutes_heuristic"]
    assert found["regularizer"]["refutes_heuristic"] == ("more than it says" in words)


def test_without_an_example_it_still_warns(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Do not trust it where" in " ".join(run(capsys, f"{SMALL} --epsilon 1").out.split())


def test_replace_says_what_is_not_covered(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, f"{SMALL} --delta 1e-5 --relation replace --json")
    assert found.code == 0
    assert found.json["standard"]["kind"] == "guarantee"
    assert found.json["last_iterate"]["kind"] == "unsupported"
    assert "add_remove" in found.json["last_iterate"]["reason"]
    assert "no RDP analysis" in " ".join(run(capsys, f"{SMALL} --delta 1e-5 --relation replace").out.split())


def test_full_batches(capsys: pytest.CaptureFixture[str]) -> None:
    line = "account --sample-rate 1 --noise-multiplier 4 --steps 16 --delta 1e-5 --sampling full --json"
    found = run(capsys, line).json
    for name in ANALYSES:
        if name != "rdp":
            assert found[name]["epsilon"] == pytest.approx(4.377178, abs=1e-6)


def test_shuffled_batches_have_the_guarantee_without_amplification(capsys: pytest.CaptureFixture[str]) -> None:
    line = "account --sample-rate 0.01 --noise-multiplier 4 --steps 1600 --sampling shuffle"
    found = run(capsys, f"{line} --delta 1e-5 --json")
    assert found.code == 0
    proved = found.json["standard"]
    assert (proved["kind"], proved["analysis"]) == ("guarantee", "shuffle_no_amplification")
    assert proved["epsilon"] == pytest.approx(4.377178, abs=1e-6)
    assert {found.json[name]["kind"] for name in ANALYSES if name != "standard"} == {"unsupported"}
    text = " ".join(run(capsys, f"{line} --delta 1e-5").out.split())
    assert "Proved: ε is at most 4.3772" in text
    assert "each row once an epoch; no amplification by sampling" in text
    other = run(capsys, f"{line} --epsilon 4.3771775 --relation replace --json").json["standard"]
    assert other["delta"] > 1e-5
    assert "one row replaced" in " ".join(other["assumptions"])


def test_a_tiny_delta_is_no_larger_than_that_of_the_looser_analysis(capsys: pytest.CaptureFixture[str]) -> None:
    line = "account --sample-rate 0.01 --noise-multiplier 1 --steps 1000 --epsilon 5.5"
    found = run(capsys, f"{line} --json").json
    assert found["standard"]["delta"] <= found["rdp"]["delta"] < 2e-16
    assert found["standard"]["analysis"] == "rdp"
    assert "by RDP, for this δ is too small for PLD" in " ".join(run(capsys, line).out.split())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (SMALL, ["--delta", "--epsilon", "neither"]),
        (f"{SMALL} --delta 1e-5 --epsilon 1", ["--delta", "--epsilon", "both"]),
        (f"{SMALL} --delta 1", ["--delta", "1.0", "between 0 and 1"]),
        (f"{SMALL} --delta nan", ["--delta", "nan"]),
        (f"{SMALL} --epsilon -1", ["--epsilon", "-1.0", "at least 0"]),
        ("account --sample-rate 1.5 --noise-multiplier 1 --steps 5 --delta 0.1", ["--sample-rate", "1.5", "0 to 1"]),
        ("account --sample-rate 0.1 --noise-multiplier 0 --steps 5 --delta 0.1", ["--noise-multiplier", "above 0"]),
        ("account --sample-rate 0.1 --noise-multiplier 1e-6 --steps 5 --delta 0.1", ["--noise-multiplier = 1e-06"]),
        ("account --sample-rate 0.1 --noise-multiplier inf --steps 5 --delta 0.1", ["--noise-multiplier", "inf"]),
        ("account --sample-rate 0.1 --noise-multiplier 1 --steps 0 --delta 0.1", ["--steps", "0", "at least 1"]),
        ("account --sample-rate 0.1 --noise-multiplier 1 --steps 2.5 --delta 0.1", ["--steps = '2.5'", "whole number"]),
        ("account --sample-rate=abc --noise-multiplier 1 --steps 5 --delta 0.1", ["--sample-rate = 'abc'", "a number"]),
        ("account --sample-rate 0.1 --steps 5 --delta 0.1", ["--noise-multiplier"]),
        (f"{SMALL} --delta 0.1 --relation swap", ["--relation", "swap", "add_remove"]),
        (f"{SMALL} --delta 0.1 --sampling full", ["--sample-rate", "0.1", "full"]),
        (f"{SMALL} --delta 0.1 --nonsense 3", ["--nonsense"]),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], line: str, words: list[str]) -> None:
    assert_refused(run(capsys, line), *words)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    option=st.sampled_from(["--sample-rate", "--noise-multiplier", "--steps", "--delta"]),
    value=st.sampled_from(["nan", "inf", "-inf", "-1", "x", "1e400", "-0.5", "[]", "None", "2,5"]),
)
def test_bad_values_never_end_in_a_traceback(capsys: pytest.CaptureFixture[str], option: str, value: str) -> None:
    options = {"--sample-rate": "0.1", "--noise-multiplier": "1", "--steps": "5", "--delta": "1e-5", option: value}
    line = "account " + " ".join(f"{name}={given_value}" for name, given_value in options.items())
    assert_refused(run(capsys, line), option)


def test_as_a_real_program() -> None:
    """Exit code, streams and the absence of a traceback in a process of its own."""
    command = [sys.executable, "-m", "coalmine", *f"{SMALL} --delta 1e-5 --json".split()]
    good = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["standard"]["epsilon"] > 0
    command[command.index("0.1")] = "7"
    bad = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "coalmine account: --sample-rate = 7.0 is not allowed: expected a number from 0 to 1\n"


def test_help_loads_nothing_heavy() -> None:
    program = "import sys; from coalmine.cli import main; main(['--help']); print(sorted(set(sys.modules) & HEAVY))"
    program = program.replace("HEAVY", "{'dp_accounting', 'torch', 'scipy'}")
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


def test_certainty_is_never_called_a_limit(capsys):
    """A belief that rounds to 100 % is none that is kept."""
    text = " ".join(
        run(capsys, "account --sample-rate 0.01 --noise-multiplier 0.3 --steps 1000 --delta 1e-5").out.split()
    )
    assert "they may be more than 99.9% sure that it was." in text
    assert "at most 100" not in text


def test_a_share_of_trainings_belongs_to_the_limit_that_is_shown(capsys):
    """Ten Gaussian steps, σ = 1.1: Φ(μ/2 − ln(999)/μ) = 16.7 % of trainings end above 99.9 %, not the 2.6e-5 of ε."""
    line = "account --sample-rate 1 --sampling full --noise-multiplier 1.1 --steps 10 --delta 1e-5"
    text = " ".join(run(capsys, line).out.split())
    mu = math.sqrt(10) / 1.1
    assert stats.norm.cdf(mu / 2 - math.log(999) / mu) == pytest.approx(0.167, abs=0.001)
    assert "What is proved hardly limits how sure they become: they may be more than 99.9% sure that it was." in text
    assert "of all trainings" not in text
    nothing = " ".join(run(capsys, f"{SMALL} --epsilon 0").out.split())
    assert "not limited by this ε" in nothing
    assert "of all trainings" not in nothing


@pytest.mark.parametrize(
    ("line", "epsilon"),
    [
        ("--sample-rate 1 --sampling full --noise-multiplier 1.1 --steps 10 --delta 1e-5", 15.7827195),
        ("--sample-rate 0.01 --noise-multiplier 4 --steps 100 --delta 1e-5", None),
        ("--sample-rate 0.1 --noise-multiplier 1 --steps 7 --delta 1e-3", None),
    ],
)
def test_what_is_proved_is_never_printed_smaller_than_it_is(capsys, line, epsilon):
    exact = run(capsys, f"account {line} --json").json
    if epsilon is not None:
        assert exact["standard"]["epsilon"] == pytest.approx(epsilon, abs=1e-7)
    text = run(capsys, f"account {line}").out
    rows = {row.split()[0]: float(row.split()[2]) for row in text.splitlines() if " guarantee " in row}
    assert set(rows) == {"standard", "rdp"}
    for name, shown in rows.items():
        assert exact[name]["epsilon"] <= shown <= exact[name]["epsilon"] + 1.0001e-4
    sentence = re.search(r"Proved: ε is at most ([\d.]+) at", " ".join(text.split()))
    assert float(sentence.group(1)) == rows["standard"]


def test_it_says_by_which_analysis_it_is_proved(capsys):
    """A million steps at δ = 1e-10: rounding drowns the PLD, and RDP is what holds."""
    line = "account --sample-rate 0.01 --noise-multiplier 4 --steps 1000000 --delta 1e-10"
    found = run(capsys, f"{line} --json").json
    assert found["standard"]["analysis"] == "rdp"
    assert found["standard"]["epsilon"] == found["rdp"]["epsilon"]
    assert "by RDP, for this δ is too small for PLD" in " ".join(run(capsys, line).out.split())
    assert run(capsys, f"{SMALL} --delta 1e-5 --json").json["standard"]["analysis"] == "pld"
    assert "(PLD)" in run(capsys, f"{SMALL} --delta 1e-5").out


def test_much_noise_is_not_no_leak_and_nothing_is_written_to_stderr(capsys):
    line = "account --sample-rate 0.001 --noise-multiplier 1000000 --steps 10000000 --delta 1e-8 --json"
    shown = subprocess.run(
        [sys.executable, "-m", "coalmine", *line.split()], capture_output=True, text=True, check=True
    )
    assert shown.stderr == ""
    found = json.loads(shown.stdout)
    least = found["last_iterate"]["epsilon"]  # exact for linear losses: a true lower bound on ε of all iterates
    assert 7e-6 < least <= found["rdp"]["epsilon"] <= 2 * least
    assert least <= found["standard"]["epsilon"] <= 2 * least
    assert not found["counterexamples"]["adversarial_data"]["refutes_heuristic"]
