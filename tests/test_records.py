"""The nouns: what they check, that they do not change, and how they become JSON."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from coalmine.errors import InvalidInputError
from coalmine.records import (
    Counts,
    DpSgd,
    Estimate,
    Guarantee,
    Heuristic,
    LowerBound,
    OneRunScores,
    Relation,
    Sampling,
    Scores,
    plain,
)


def test_dp_sgd_takes_names_and_numpy_numbers() -> None:
    one = DpSgd(
        sample_rate=np.float64(0.5),
        noise_multiplier=1,
        steps=np.int64(3),  # type: ignore[arg-type]
        sampling="shuffle",  # type: ignore[arg-type]
        relation="replace",  # type: ignore[arg-type]
    )
    assert (one.sampling, one.relation) == (Sampling.SHUFFLE, Relation.REPLACE)
    assert (type(one.sample_rate), type(one.steps)) == (float, int)
    assert one.with_noise(2.0).noise_multiplier == 2.0
    assert one.with_steps(9).steps == 9
    assert hash(one) == hash(one.with_steps(3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.steps = 4  # type: ignore[misc]


def test_full_sampling_needs_rate_one() -> None:
    with pytest.raises(InvalidInputError, match=r"sample_rate = 0.5 .* 'full'"):
        DpSgd(sample_rate=0.5, noise_multiplier=1.0, steps=1, sampling=Sampling.FULL)


def test_the_error_of_a_wrong_name_lists_the_names() -> None:
    with pytest.raises(InvalidInputError, match="expected one of add_remove, replace"):
        Relation.parse("swap")
    with pytest.raises(InvalidInputError, match="expected one of poisson, shuffle, full"):
        Sampling.parse(3)


def test_no_type_passes_for_another() -> None:
    same = {"epsilon": 1.0, "delta": 1e-5, "analysis": "a", "relation": Relation.ADD_REMOVE, "assumptions": ()}
    guarantee, heuristic = Guarantee(**same), Heuristic(**same)
    assert guarantee != heuristic
    assert not isinstance(heuristic, Guarantee)
    assert (guarantee.to_dict()["kind"], heuristic.to_dict()["kind"]) == ("guarantee", "heuristic")


def test_counts() -> None:
    counts = Counts(false_positives=1, negatives=4, false_negatives=3, positives=4)
    assert (counts.false_positive_rate, counts.false_negative_rate) == (0.25, 0.75)
    for wrong in (
        {"false_positives": 5},
        {"false_positives": -1},
        {"negatives": 0},
        {"false_negatives": 1.0},
        {"positives": True},
    ):
        good = {"false_positives": 1, "negatives": 4, "false_negatives": 3, "positives": 4}
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            Counts(**{**good, **wrong})


def test_scores() -> None:
    scores = Scores([1, 2], np.array([3.0]))
    assert scores.world0.tolist() == [1.0, 2.0]
    with pytest.raises(InvalidInputError, match="world1 is empty"):
        Scores([1.0], [])
    with pytest.raises(InvalidInputError, match=r"world0\[0\] = nan"):
        Scores([math.nan], [1.0])


def test_one_run_scores() -> None:
    scores = OneRunScores([0, 1, 1], [0.1, 0.2, 0.3])
    assert scores.included.tolist() == [False, True, True]
    assert scores.ids.tolist() == [0, 1, 2]
    for included, score, ids, words in (
        ([0, 1], [0.1], None, "included has 2 entries"),
        ([0, 2], [0.1, 0.2], None, r"included\[1\] = 2"),
        (["a", "b"], [0.1, 0.2], None, "0 or 1"),
        ([0, 1], [0.1, 0.2], ["x", "x"], "id x occurs more than once"),
        ([0, 1], [0.1, 0.2], ["x"], "ids has 1 entries"),
        ([0, 1], [0.1, math.inf], None, r"score\[1\]"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            OneRunScores(included, score, ids)


def test_everything_becomes_json() -> None:
    bound = LowerBound(
        epsilon=math.inf,
        delta=0.0,
        confidence=0.95,
        method="cp",
        threshold_rule="fixed",
        trials=(10, 10),
        relation=Relation.REPLACE,
        copies=2,
        assumptions=("independent trials",),
        counts=Counts(false_positives=0, negatives=10, false_negatives=0, positives=10),
        details={"mu": np.float64(1.5), "grid": np.arange(2)},
    )
    text = json.loads(json.dumps(bound.to_dict(), allow_nan=False))
    assert text["kind"] == "lower_bound"
    assert text["epsilon"] == "infinity"
    assert text["relation"] == "replace"
    assert text["details"] == {"mu": 1.5, "grid": [0, 1]}
    guess = Estimate(epsilon=-math.inf, delta=0.1, method="m", relation=Relation.ADD_REMOVE, copies=1, assumptions=())
    assert guess.to_dict()["epsilon"] == "-infinity"
    assert plain({1: (np.bool_(True), None)}) == {"1": [True, None]}
