"""Bad input: every public function answers with a ValueError that names the argument."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coalmine import bounds
from coalmine.errors import CoalmineError
from coalmine.records import Counts, DpSgd, OneRunScores, Scores

MECHANISM = DpSgd(sample_rate=0.5, noise_multiplier=1.0, steps=2)
COUNTS = Counts(false_positives=3, negatives=40, false_negatives=5, positives=50)
SCORES = Scores([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
RUN = OneRunScores([0, 1, 1, 0], [0.0, 1.0, 2.0, 3.0])
GUESSES = bounds.Guesses(canaries=50, guesses=20, correct=15)
NOT_NUMBERS = [None, "1", True, float("nan"), float("inf"), -float("inf"), [0.5], 1j]
BAD = {
    "delta": [-1e-9, 1.0, 2, *NOT_NUMBERS],
    "confidence": [0.0, 1.0, -0.5, 95, *NOT_NUMBERS],
    "credibility": [0.0, 1.0, 95, *NOT_NUMBERS],
    "copies": [0, -1, 1.5, "2", True],
    "relation": ["neighbour", 3, None],
    "method": ["clopper", 7, None],
    "family": ["laplace", 7],
    "threshold": ["sup", 0.5, object()],
    "guess_numbers": [[], [(1,)], [3], [(10, 10), (10, 10)], [(0, 0)], [(3, 3)], [(-1, 2)], [(1.5, 1)]],
    "seed": [-1, 0.5, None],
    "claim": [-1.0, *NOT_NUMBERS],
    "power": [0.0, 1.0, 80, *NOT_NUMBERS],
    "attack_epsilon": [0.0, -1.0, 1.0, "2", float("nan")],
    "negatives": [0, -3, 1.5, "9", None],
    "positives": [0, -3, 1.5, "9", None],
    "mechanism": ["dpsgd", 7, None],
    "level": [0.0, 1.0, 5, None],
    "epsilon": [-1.0, None, float("nan")],
}
COMMON = {"delta": 1e-5, "confidence": 0.95}
CALLS = {
    "clopper_pearson": (
        bounds.clopper_pearson,
        SCORES,
        {**COMMON, "copies": 1, "relation": "add_remove", "threshold": None},
    ),
    "gdp": (bounds.gdp, SCORES, {**COMMON, "copies": 1, "relation": "add_remove", "threshold": None}),
    "dpsgd": (
        bounds.dpsgd,
        COUNTS,
        {**COMMON, "copies": 1, "mechanism": MECHANISM, "family": "last_iterate"},
    ),
    "lower_bound": (bounds.lower_bound, SCORES, {**COMMON, "copies": 1, "method": "gdp", "threshold": None}),
    "ceiling": (bounds.ceiling, 10, {**COMMON, "positives": 10, "copies": 1, "method": "gdp", "threshold": None}),
    "one_run": (bounds.one_run, RUN, {**COMMON, "guess_numbers": [(1, 1)], "seed": 0, "relation": "replace"}),
    "one_run_fdp": (
        bounds.one_run_fdp,
        RUN,
        {**COMMON, "guess_numbers": [(1, 1)], "seed": 0, "relation": "replace", "family": "gdp"},
    ),
    "bayesian": (bounds.bayesian, COUNTS, {"delta": 1e-5, "credibility": 0.9, "copies": 1, "relation": "replace"}),
    "anytime": (bounds.anytime, COUNTS, {**COMMON, "copies": 1, "method": "gdp", "relation": "replace"}),
    "plan": (bounds.plan, 1.0, {**COMMON, "method": "gdp", "power": 0.8, "copies": 1, "attack_epsilon": 2.0}),
    "p_value": (bounds.one_run.__globals__["p_value"], GUESSES, {"epsilon": 1.0, "delta": 1e-5}),
    "AnytimeAudit": (lambda _, **rest: bounds.AnytimeAudit(**rest), None, {**COMMON, "method": "gdp", "copies": 1}),
}


@pytest.mark.parametrize("name", CALLS)
def test_good_arguments_are_taken(name):
    function, evidence, arguments = CALLS[name]
    function(evidence, **arguments)


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        (name, argument, value)
        for name, (_, _, arguments) in CALLS.items()
        for argument in arguments
        for value in BAD[argument]
    ],
)
def test_every_bad_argument_is_named(name, argument, value):
    function, evidence, arguments = CALLS[name]
    shown = {"guess_numbers": "guess_", "family": "family|analysis"}.get(argument, argument)
    with pytest.raises(ValueError, match=shown) as caught:
        function(evidence, **{**arguments, argument: value})
    assert isinstance(caught.value, CoalmineError)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "AnytimeAudit"])
@pytest.mark.parametrize("evidence", [None, -3.5, "scores.csv", [1, 2], {"world0": [1]}])
def test_evidence_of_no_known_kind_is_refused(name, evidence):
    function, _, arguments = CALLS[name]
    with pytest.raises(ValueError, match=r"evidence|counts|guesses|claim|negatives"):
        function(evidence, **arguments)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: bounds.Given("high"), "threshold"),
        (lambda: bounds.Given(float("nan")), "threshold"),
        (lambda: bounds.HoldOut(fraction=1.0), "fraction"),
        (lambda: bounds.HoldOut(fraction=0.5, seed=-1), "seed"),
        (lambda: bounds.Bonferroni(()), "grid"),
        (lambda: bounds.Bonferroni((1.0, float("nan"))), "grid"),
        (lambda: bounds.Bonferroni((1.0, 1.0)), "grid"),
        (lambda: bounds.Sup(simulations=3), "simulations"),
        (lambda: bounds.Sup(seed=-2), "seed"),
        (lambda: bounds.Guesses(canaries=5, guesses=6, correct=1), "guesses"),
        (lambda: bounds.Guesses(canaries=5, guesses=4, correct=5), "correct"),
        (lambda: bounds.Guesses(canaries=0, guesses=0, correct=0), "canaries"),
        (lambda: Scores([1.0, float("nan")], [0.0]), r"world0\[1\]"),
        (lambda: Scores([], [0.0]), "world0"),
        (lambda: bounds.clopper_pearson(COUNTS, **COMMON, threshold=bounds.Sup()), "threshold"),
        (lambda: bounds.lower_bound(COUNTS, **COMMON, threshold=bounds.Optimistic()), "threshold"),
        (lambda: bounds.clopper_pearson(SCORES, **COMMON, threshold=bounds.Optimistic()), "Optimistic"),
        (lambda: bounds.clopper_pearson(SCORES, **COMMON, threshold=bounds.HoldOut(fraction=0.01)), "fraction"),
        (lambda: bounds.one_run(GUESSES, **COMMON, guess_numbers=[(1, 1)]), "guess_numbers"),
        (lambda: bounds.gdp(COUNTS, delta=0.0, confidence=0.9), "delta"),
        (lambda: bounds.lower_bound(COUNTS, **COMMON, method="gdp", mechanism=MECHANISM), "mechanism"),
        (lambda: bounds.plan(1e300, **COMMON), "claim"),
        (lambda: bounds.plan(1.0, **COMMON, attack_epsilon=1e300), "attack_epsilon"),
        (lambda: bounds.AnytimeAudit(**COMMON).bound(), "trials"),
        (lambda: bounds.AnytimeAudit(**COMMON).add(world=2, trials=1, wrong=0), "world"),
        (lambda: bounds.AnytimeAudit(**COMMON).add(world=0, trials=1, wrong=2), "wrong"),
        (lambda: bounds.refutes(GUESSES, bounds.Gdp(delta=0.1).curve(1.0), level=2.0), "level"),
        (lambda: bounds.count_guesses(RUN, guess_in=9, guess_out=0), "guess_in"),
        (lambda: bounds.bayesian(COUNTS, delta=0.1, copies=2), "copies"),
    ],
)
def test_other_bad_values(make, named):
    with pytest.raises(ValueError, match=named) as caught:
        make()
    assert isinstance(caught.value, CoalmineError)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=25),
    st.lists(st.integers(-3, 3), min_size=1, max_size=25),
    st.sampled_from(["clopper_pearson", "gdp"]),
    st.sampled_from([bounds.Sup(simulations=199), bounds.Bonferroni(), bounds.DKW(), bounds.Given(0.0)]),
    st.sampled_from([0.5, 0.9, 0.99]),
)
def test_any_small_scores_give_a_bound_between_zero_and_the_ceiling(zero, one, method, rule, confidence):
    found = bounds.lower_bound(
        Scores(zero, one), delta=1e-5, confidence=confidence, method=method, threshold=rule, copies=1
    )
    assert 0.0 <= found.epsilon <= found.ceiling + 1e-12
    assert np.isfinite(found.epsilon)
