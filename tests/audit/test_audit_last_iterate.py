"""The adversaries of the final model in a whole audit."""

import pytest

import coalmine
from coalmine import bounds
from coalmine.accounting import last_iterate
from coalmine.auditing.config import Execution
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import DpSgd, Outcome


def settings(*adversaries, **training):
    return {
        "data": {"name": "digits", "rows_per_class": 20},
        "model": {"kind": "logistic"},
        "training": {"steps": 12, "sample_rate": 0.1, "noise_multiplier": 0.8, **training},
        "audit": {"trials": 400, "delta": 1e-3, "confidence": 0.9},
        "adversary": list(adversaries),
    }


def test_bounds_read_each_score_as_what_it_is(tmp_path):
    result = coalmine.audit(
        settings(
            {"name": "encoding"},
            {"name": "last-iterate-gradient", "data": "zero-gradient"},
        ),
        store=tmp_path / "trials.db",
        execution=Execution(workers=1),
    )
    for one in result.adversaries:
        assert one.view == "final_model"
        assert one.failed == (0, 0)
        methods = {bound.method for bound in one.others}
        assert "dpsgd" in methods
        # A record of every step is no last iterate of a linear loss.
        assert ("dpsgd_last_iterate" in methods) == (one.name != "encoding")
    assert result.verdict.outcome is not Outcome.REFUTED
    encoding, gradient = result.adversaries[:2]
    known = [max(b.epsilon for b in one.others if b.method.startswith("dpsgd")) for one in (encoding, gradient)]
    assert known[0] > known[1]  # seed fixed


def last_iterate_bounds(one):
    return [b.epsilon for b in one.others if b.method == "dpsgd_last_iterate"]


@pytest.mark.parametrize("change", [{}, {"regularizer": 1.0}, {"momentum": 0.9}])
def test_steps_that_count_unequally_are_not_read_as_a_plain_sum(tmp_path, change):
    """With learning rate · regularizer = 1 only the last step is left, so ε is that of one step, exactly: 14.98.

    Read as the sum of four steps, its scores would prove more than is true.
    """
    numbers = {"steps": 4, "sample_rate": 0.1, "noise_multiplier": 0.3}
    made = settings({"name": "last-iterate-gradient", "data": "zero-gradient"}, learning_rate=1.0, **numbers, **change)
    made["audit"] = {"trials": 20_000, "delta": 1e-5, "confidence": 0.95}
    (one,) = coalmine.audit(made, store=tmp_path / "trials.db", execution=Execution(workers=1)).adversaries
    found = last_iterate_bounds(one)
    assert len(found) == (0 if change else 1)
    if found:
        assert found[0] < last_iterate.epsilon(DpSgd(**numbers), delta=1e-5).epsilon  # seed fixed
        return
    truth = last_iterate.epsilon(DpSgd(**{**numbers, "steps": 1}), delta=1e-5).epsilon
    wrong = bounds.dpsgd(
        one.scores, mechanism=DpSgd(**numbers), delta=1e-5, confidence=0.95, family="last_iterate"
    ).epsilon
    assert wrong > truth or "momentum" in change  # what would have been reported; with momentum the truth is another


@pytest.mark.parametrize(
    ("section", "training", "words"),
    [
        ({"name": "encoding"}, {"steps": 700}, "700 steps do not fit a model of 650 parameters"),
        ({"name": "encoding", "batch_size": 5.0, "form": "one-bit"}, {}, "would be clipped"),
        ({"name": "encoding"}, {"momentum": 0.9}, "plain SGD"),
    ],
)
def test_what_does_not_fit_is_found_before_any_training(tmp_path, section, training, words):
    with pytest.raises((InvalidInputError, UnsupportedError), match=words):
        coalmine.audit(settings(section, **training), store=tmp_path / "trials.db", execution=Execution(workers=1))
