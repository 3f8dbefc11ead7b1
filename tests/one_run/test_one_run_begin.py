"""A run inside one program, and what canaries cost before one is begun."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import coalmine
from coalmine.cli import main
from coalmine.errors import InvalidInputError
from coalmine.one_run import RowCanaries, begin, canaries
from coalmine.records import DpSgd, EpsilonClaim, MechanismClaim, Outcome

CLAIM = EpsilonClaim(epsilon=0.5, delta=1e-5)
ROWS = np.random.default_rng(0).normal(size=(60, 30))
LABELS = np.arange(60) % 2
CHOSEN = canaries.extreme(ROWS, classes=2, canaries=200)


def remembered(run):
    """Scores of a model that keeps every row it was shown."""
    memory = {tuple(row) for row in run.x.tolist()}
    return [float(tuple(row) in memory) for row in run.canaries.x.tolist()]


def test_the_rows_to_train_on_are_the_users_and_the_canaries_that_the_coins_chose():
    run = begin(CHOSEN, claim=CLAIM, x=ROWS, y=LABELS, seed=1)
    scores = remembered(run)
    assert run.x.shape[0] == run.y.size == 60 + run.included.number == 60 + int(sum(scores))
    pairs = {(*row, label) for row, label in zip(run.x.tolist(), run.y.tolist(), strict=True)}
    assert {(*row, label) for row, label in zip(ROWS.tolist(), LABELS.tolist(), strict=True)} <= pairs
    assert not np.array_equal(run.x[:60], ROWS)  # shuffled: places say nothing
    assert run.judge(scores).verdict.outcome is Outcome.REFUTED


def test_scores_that_know_nothing_refute_nothing_and_other_scores_are_refused_afterwards():
    run = begin(CHOSEN, claim=CLAIM, x=ROWS, y=LABELS, seed=2)
    blind = np.random.default_rng(3).normal(size=200)
    found = run.judge(blind)
    assert found.verdict.outcome is not Outcome.REFUTED
    assert run.judge(blind).guesses == found.guesses
    with pytest.raises(InvalidInputError, match="judged before"):
        run.judge(remembered(run))


def test_a_result_is_short_to_print_and_says_more_in_words():
    found = begin(CHOSEN, claim=CLAIM, x=ROWS, y=LABELS, seed=1)
    result = found.judge(remembered(found))
    assert repr(result).startswith("OneRunResult(refuted, epsilon >= ")
    assert len(repr(result)) < 200
    assert "epsilon is at least" in result.in_words()
    assert result.canary_kind == "extreme"


def test_a_control_has_the_same_kind_of_canaries():
    run = begin(CHOSEN, claim=CLAIM, x=ROWS, y=LABELS, seed=1)
    other = begin(canaries.blank(ROWS, classes=2, canaries=200), claim=CLAIM, x=ROWS, y=LABELS, seed=2)
    with pytest.raises(InvalidInputError, match="control has blank canaries: expected extreme"):
        run.judge(remembered(run), control=other.judge(remembered(other)))


def test_a_control_has_the_very_same_canaries():
    def rows(length):
        return RowCanaries(kind="one feature each", x=length * np.eye(200), y=np.zeros(200, dtype=int))

    def played(length, **control):
        run = begin(rows(length), claim=CLAIM, x=np.zeros((9, 200)), y=np.zeros(9, dtype=int))
        return run.judge(remembered(run), **control)

    assert played(0.1, control=played(0.1)).verdict.outcome is Outcome.REFUTED
    with pytest.raises(InvalidInputError, match="control was played with other canaries"):
        played(0.1, control=played(10.0))


def test_coins_are_fresh_unless_a_seed_is_given():
    def chosen(seed):
        return begin(CHOSEN, claim=CLAIM, x=ROWS, y=LABELS, seed=seed).included.x

    assert np.array_equal(chosen(4), chosen(4))
    assert not np.array_equal(chosen(None), chosen(None))


def test_gradients_and_sequences_without_labels():
    gradients = begin(canaries.dirac(parameters=50, canaries=40), claim=CLAIM, seed=1)
    assert gradients.x is None
    assert 0 < gradients.included.number < 40
    tokens = canaries.random_tokens(vocabulary=9, length=5, canaries=30)
    run = begin(tokens, claim=CLAIM, x=np.zeros((4, 5), dtype=np.int64), seed=1)
    assert run.y is None
    assert run.x.shape == (4 + run.included.number, 5)


def test_fresh_canaries_prove_nothing_unless_scores_follow_the_coins_by_another_way():
    run = begin(CHOSEN, claim=CLAIM, x=ROWS, y=LABELS, seed=3)
    scores, blind = remembered(run), np.random.default_rng(4).normal(size=200)
    with pytest.raises(InvalidInputError, match="after the real ones"):
        run.judge_fresh(blind)
    assert run.judge(scores).epsilon > CLAIM.epsilon
    assert run.judge_fresh(blind).epsilon == 0.0  # seeds are fixed; with others once in twenty times more
    assert run.judge_fresh(scores).epsilon > CLAIM.epsilon  # of a scorer that was told, say by an order
    with pytest.raises(InvalidInputError, match=r"expected \(200,\)"):
        run.judge_fresh(blind[:9])


def test_new_tokens_are_in_no_other_row():
    found = canaries.new_tokens(vocabulary=9, length=5, canaries=30)
    assert found.x.shape == (30, 5)
    assert found.x[:, :-1].max() < 9
    assert np.array_equal(found.x[:, -1], 9 + np.arange(30))
    texts = canaries.new_tokens(vocabulary=9, length=3, canaries=4, prefixes=[[1, 2], [3, 4], [5, 6]])
    assert texts.x.tolist() == [[1, 2, 9], [3, 4, 10], [5, 6, 11], [1, 2, 12]]


@pytest.mark.parametrize(
    ("prefixes", "words"),
    [([[1]], "prefixes has shape"), ([[1.0, 2.0]], "prefixes has shape"), ([[1, 9]], "expected tokens 0 to 8")],
)
def test_bad_prefixes_are_refused(prefixes, words):
    with pytest.raises(InvalidInputError, match=words):
        canaries.new_tokens(vocabulary=9, length=3, canaries=4, prefixes=prefixes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": None}, "x is missing"),
        ({"x": ROWS[:, :3]}, "rows of shape"),
        ({"y": None}, "y does not fit"),
        ({"y": LABELS[:5]}, "a label for each"),
        ({"canaries": "rows"}, "canaries"),
        ({"claim": 3}, "claim"),
        ({"claim": DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=3)}, "expected MechanismClaim"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    given = {"canaries": CHOSEN, "claim": CLAIM, "x": ROWS, "y": LABELS, **change}
    with pytest.raises(InvalidInputError, match=words):
        begin(given.pop("canaries"), **given)


class Unreadable:
    """As a tensor that needs a gradient."""

    def __array__(self, *_, **__):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")


def test_wrong_scores_are_refused():
    run = begin(CHOSEN, claim=CLAIM, x=ROWS, y=LABELS, seed=1)
    for wrong in ([1j] * 200, ["1.0"] * 200, Unreadable()):
        with pytest.raises(InvalidInputError, match="expected real numbers"):
            run.judge(wrong)
    with pytest.raises(InvalidInputError, match="has a mask"):
        run.judge(np.ma.masked_array(np.zeros(200), mask=True))
    with pytest.raises(InvalidInputError, match="expected 200"):
        run.judge([1.0, 2.0])
    with pytest.raises(InvalidInputError):
        run.judge([np.nan] * 200)
    with pytest.raises(InvalidInputError, match="expected real numbers"):
        run.judge(["a"] * 200)
    with pytest.raises(InvalidInputError, match="a hook puts them"):
        begin(canaries.dirac(parameters=50, canaries=4), claim=CLAIM, x=ROWS)


def test_it_is_a_door_of_the_package_and_needs_no_torch():
    assert coalmine.one_run.begin is begin
    code = """
import sys
sys.modules["torch"] = None
import numpy as np, coalmine
rows = np.random.default_rng(0).normal(size=(50, 20))
chosen = coalmine.one_run.canaries.extreme(rows, classes=2, canaries=100)
claim = coalmine.EpsilonClaim(epsilon=0.5, delta=1e-5)
run = coalmine.one_run.begin(chosen, claim=claim, x=rows, y=np.zeros(50, dtype=int))
memory = {tuple(row) for row in run.x.tolist()}
print(run.judge([tuple(row) in memory for row in run.canaries.x.tolist()]).verdict)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "refuted"


def test_a_plan_with_its_price(capsys):
    pytest.importorskip("torch")
    arguments = ["plan", "--one-run", "--epsilon", "4", "--delta", "1e-5", "--canaries", "100", "--json"]
    arguments += ["--sample-rate", "0.1", "--steps", "100"]
    assert main([*arguments, "--preset", "default"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["forecasts"]
    assert 0.0 < row["expected"] < row["ceiling"]
    assert 0.5 < row["price"]["without"] <= 1.0
    assert abs(row["price"]["with_canaries"] - row["price"]["without"]) < 0.2
    assert main(["plan", "--epsilon", "4", "--delta", "1e-5", "--preset", "default"]) == 2
    assert "expected --one-run too" in capsys.readouterr().err


def test_few_canaries_whose_coins_all_fall_out():
    claim = MechanismClaim(mechanism=DpSgd(sample_rate=1.0, noise_multiplier=1.5, steps=1), delta=1e-5)
    rows = RowCanaries(kind="two", x=np.eye(50)[:2], y=np.zeros(2, dtype=int))
    seen = set()
    for seed in range(20):
        run = begin(rows, claim=claim, x=np.zeros((9, 50)), y=np.zeros(9, dtype=int), seed=seed)
        seen.add(len(run.x) - 9)
        begin(canaries.dirac(parameters=10, canaries=2), claim=claim, seed=seed)
    assert seen == {0, 1, 2}


def test_canaries_are_numbers_and_at_least_one():
    with pytest.raises(InvalidInputError, match="expected numbers"):
        RowCanaries(kind="words", x=np.array([["a", "b"]]))
    claim = MechanismClaim(mechanism=DpSgd(sample_rate=1.0, noise_multiplier=1.5, steps=1), delta=1e-5)
    none = RowCanaries(kind="none", x=np.zeros((0, 3)), y=np.zeros(0, dtype=int))
    with pytest.raises(InvalidInputError, match="canaries = 0"):
        begin(none, claim=claim, x=np.zeros((9, 3)), y=np.zeros(9, dtype=int))


@pytest.mark.parametrize(
    ("x", "y", "value", "label", "message"),
    [
        (
            np.zeros((2, 60), np.uint8),
            np.zeros(2, int),
            0.9,
            1,
            "x has type uint8, which cannot hold the canaries' 0.9",
        ),
        (np.zeros((2, 60), np.uint8), np.zeros(2, int), 300.0, 1, "cannot hold the canaries' 300.0"),
        (np.zeros((2, 60), np.float16), np.zeros(2, int), 1e6, 1, "x has type float16"),
        (np.zeros((2, 60)), np.zeros(2, bool), 0.9, 2, "y has type bool, which cannot hold the canaries' 2"),
        (np.zeros((2, 60)), np.array(["a", "b"]), 0.9, 2, "y has type <U1"),
        (np.full((2, 60), np.nan), np.zeros(2, int), 0.9, 1, "expected finite numbers"),
    ],
)
def test_data_that_cannot_hold_the_canaries_are_refused(x, y, value, label, message):
    """They would be trained as other rows than those that are scored."""
    canaries = RowCanaries(kind="mine", x=value * np.eye(60), y=np.full(60, label))
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        begin(canaries, claim=EpsilonClaim(epsilon=1.0, delta=1e-5), x=x, y=y, seed=1)


def test_canaries_may_be_lists_and_fit_into_shorter_floats():
    canaries = RowCanaries(kind="mine", x=(0.9 * np.eye(60)).tolist(), y=[1] * 60)
    rows = np.zeros((2, 60), dtype=np.float32)
    run = begin(canaries, claim=EpsilonClaim(epsilon=1.0, delta=1e-5), x=rows, y=np.zeros(2, dtype=np.int8), seed=1)
    assert run.x.dtype == np.float32
    assert run.x.max() == np.float32(0.9)
    with pytest.raises(InvalidInputError, match=re.escape("below 2**53")):
        run.judge([2**62 + i for i in range(60)])
