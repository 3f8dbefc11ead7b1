"""The sentences of the report: signs by type, rounding to the safe side, and what a reader must be told."""

import dataclasses
import json
import math
import re
from decimal import Decimal

import pytest
import report_sample as sample
from hypothesis import given
from hypothesis import strategies as st

from coalmine.identifiability import belief
from coalmine.records import Estimate, Guarantee, Heuristic, LowerBound, Outcome, Relation
from coalmine.report import figures, one_person, rounding, words


@given(st.floats(0.0, 1e6), st.integers(0, 4))
def test_rounding_goes_to_the_safe_side(value, digits):
    low, high = (Decimal(how(value, digits).replace(",", "")) for how in (rounding.down, rounding.up))
    assert float(low) <= value <= float(high)
    assert high - low <= Decimal(1).scaleb(-digits)


@given(st.floats(1e-300, 0.5))
def test_small_probabilities_are_rounded_up(value):
    text = rounding.small_up(value).translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    power = re.fullmatch(r"(?:([0-9.]+)·)?10(-[0-9]+)", text)
    shown = Decimal(power[1] or 1).scaleb(int(power[2])) if power else Decimal(text)
    assert Decimal(value) <= shown * (1 + Decimal("1e-15"))
    assert shown <= Decimal(value) * Decimal("1.11")


def test_the_sign_follows_the_type():
    common = {"epsilon": 1.239, "delta": 1e-5, "relation": Relation.ADD_REMOVE, "assumptions": ()}
    bound = LowerBound(**common, confidence=0.99, method="gdp", threshold_rule="sup", trials=(10, 10), copies=1)
    assert words.epsilon(Guarantee(**common, analysis="pld")) == "ε ≤ 1.24"
    assert words.epsilon(Heuristic(**common, analysis="last_iterate")) == "ε ≈ 1.24"
    assert words.epsilon(bound) == "ε ≥ 1.23"
    assert words.epsilon(Estimate(**common, method="gdp", copies=1)) == "ε ≈ 1.24"


def test_several_rows_are_said():
    found = sample.result(sample.adversary("one"), sample.adversary("two", copies=2, seed=2))
    assert words.in_groups(found) == ["The worlds of two differ in 2 rows; the ε is for one row, by group privacy."]


def test_confidence_is_not_lost_to_rounding():
    assert rounding.confidence(1.0 - (1.0 - 0.99)) == "99%"
    assert rounding.confidence(0.95) == "95%"
    assert rounding.confidence(1.0 - 0.01 / 3.0) == "99.66%"


def test_verdict_says_what_was_tested_and_what_was_found():
    consistent = words.verdict(sample.standard_result())
    assert consistent.startswith("Consistent: ")
    assert "the guarantee ε ≤ 2.89" in consistent
    assert "99% confidence" in consistent
    refuted = words.verdict(sample.result(sample.adversary(mu=4.0), claim=0.5))
    assert refuted.startswith("Refuted at 99% confidence: the claim ε = 0.5 is false")
    assert "p = 0.0001" in refuted  # the reasons come along
    weak = words.verdict(sample.result(outcome=Outcome.INCONCLUSIVE))
    assert weak.startswith("Inconclusive: this audit says nothing about the guarantee ε ≤ 2.89")
    assert "about 300 trials would do" in weak


def test_in_words_a_verdict_says_what_it_is_worth():
    consistent = sample.standard_result().in_words()
    assert consistent.startswith(words.verdict(sample.standard_result()))
    assert "A training with half of this noise would have been refuted with probability 0.97." in consistent
    for outcome in (Outcome.REFUTED, Outcome.INCONCLUSIVE):
        assert "0.97" not in sample.result(sample.adversary(), outcome=outcome).in_words()


def test_caveats_name_stand_in_data_missing_trials_failures_and_power():
    short = sample.result(sample.adversary(trials=40, wanted=400, failed=(0, 3)), note="Stand-in data.", trials=400)
    text = " ".join(words.caveats(short))
    assert "About the data: Stand-in data." in text
    assert "not complete: 40 of 400 trainings" in text
    assert "3 trainings did not end with finite numbers (0 in world 0 and 3 in world 1)" in text
    assert "would have been refuted with probability 0.97" in " ".join(words.could_have_failed(short))
    assert "Consistent does not mean proved safe" in text
    complete = " ".join(words.caveats(sample.standard_result()))
    assert "not complete" not in complete
    assert "About the data" not in complete
    weak = " ".join(words.caveats(sample.result(outcome=Outcome.INCONCLUSIVE)))
    assert "Consistent" not in weak
    assert words.could_have_failed(sample.result(outcome=Outcome.INCONCLUSIVE)) == []


def test_adversaries_without_trials_are_counted():
    assert any("2 further adversaries" in line for line in words.caveats(sample.result(missing=2)))
    assert not any("further adversaries" in line for line in words.caveats(sample.standard_result()))


def test_meaning_separates_what_is_promised_from_what_was_shown():
    text = " ".join(one_person.meaning(sample.standard_result()))
    promised = 100.0 / (1.0 + math.exp(-sample.standard_result().guarantee.epsilon))
    assert f"at most {rounding.up(promised, 1)}% sure" in text
    chance = belief.exceedance(sample.MECHANISM, epsilon=sample.standard_result().guarantee.epsilon)
    assert 1e-5 < chance < 1e-3  # δ alone would understate it
    assert f"except with a probability of at most {rounding.small_up(chance)}" in text
    assert "right in at most 64.5% of cases" in text  # (1 + 0.29)/2
    nothing = " ".join(one_person.meaning(sample.result(sample.adversary(mu=0.0), noise=0.0)))
    assert "What is promised: nothing" in nothing
    assert "surer than 50%" in nothing


def test_a_limit_that_is_no_limit_is_said_in_plain_words():
    weak = sample.result(sample.adversary(mu=0.0), noise=0.1)
    assert weak.guarantee.epsilon > 7.0
    text = " ".join(one_person.meaning(weak))
    assert "hardly limits it" in text
    assert "may be more than 99.9% sure." in text
    assert "at most more than" not in text


def test_certainty_is_never_claimed_by_rounding():
    assert rounding.share(rounding.up(99.99, 1)) == "more than 99.9%"


def test_table_keeps_estimates_apart_from_bounds():
    table = sample.standard_result().table()
    kinds = {record["kind"] for record in table.records}
    assert kinds == {"lower_bound", "estimate"}
    for row, record in zip(table.rows, table.records, strict=True):
        assert ("≥" in row[2]) == (record["kind"] == "lower_bound")
        assert ("proves nothing" in row[3]) == (record["kind"] == "estimate")
        assert ("only if" in row[3]) == (record["method"] == "gdp")
    assert sum(record["headline"] for record in table.records) == 2
    assert str(table).splitlines()[0].startswith("adversary")


def test_notebook_table_is_escaped():
    one = sample.adversary("<b>&", trials=20)
    html = sample.result(one).table()._repr_html_()
    assert "&lt;b&gt;&amp;" in html
    assert "<b>" not in html


@pytest.mark.parametrize(("value", "text"), [(1e-5, "10⁻⁵"), (3e-12, "3·10⁻¹²"), (0.01, "0.01")])
def test_small_probabilities(value, text):
    assert rounding.small(value) == text


def both_questions(*, mine=1.0):
    drawn = sample.adversary("malicious-dataset", mu=2.0, trials=400, seed=1, trained=False, chosen_data=True)
    return sample.result(sample.adversary("crafted-row", mu=mine), sample.adversary("api", mu=0.0, seed=2), drawn)


def test_the_data_at_hand_and_the_worst_case_are_two_numbers():
    result = both_questions(mine=1.5)
    assert (result.on_data.label, result.on_chosen_data.label) == ("crafted-row", "malicious-dataset")
    assert 0.0 < result.on_data.bound.epsilon < result.on_chosen_data.bound.epsilon
    said = [words.epsilon(one.bound) for one in (result.on_data, result.on_chosen_data)]
    verdict = words.verdict(result)
    assert f"on your data crafted-row proves {said[0]}; on a data set that the attacker chose" in verdict
    assert f"malicious-dataset proves {said[1]}, both at 99% confidence" in verdict
    lines = dict(words.headline(result))
    assert lines["Your data"].startswith(f"{said[0]} is proved (crafted-row); ε ≥ ")
    assert lines["A data set that the attacker chose"].startswith(f"{said[1]} is proved (malicious-dataset); ε ≥ ")
    shown = one_person.meaning(result)[-1]
    for one in (result.on_data, result.on_chosen_data):
        assert f"{rounding.down(100 * belief.from_epsilon(one.bound.epsilon), 1)}%" in shown
    proved = result.to_dict()["proved"]
    assert proved["on_data"] == {"adversary": "crafted-row", "epsilon_lower": result.on_data.bound.epsilon}
    weak = both_questions(mine=0.0)
    assert "on your data no attack proves any leakage; on a data set that the attacker chose" in words.verdict(weak)
    assert dict(words.headline(weak))["Your data"].startswith("nothing is proved")


def test_chosen_data_that_proves_less_is_not_called_the_worst_case():
    """The worst case covers your data too: what is proved there is proved of it."""
    drawn = sample.adversary("malicious-dataset", mu=0.6, trials=400, seed=1, trained=False, chosen_data=True)
    result = sample.result(sample.adversary("crafted-row", mu=3.0), drawn)
    assert result.on_chosen_data.bound.epsilon < result.on_data.bound.epsilon
    assert [name for name, _ in words.headline(result)] == ["Your data", "A data set that the attacker chose"]
    for text in (words.verdict(result), str(words.headline(result)), figures.overview(result).title):
        assert "worst case" not in text.lower()


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [(0.4299, "ε ≥ 0.42"), (0.0031299, "ε ≥ 0.00312"), (3e-7, "nothing proved"), (0.0, "nothing proved")],
)
def test_what_is_next_to_nothing_is_not_said_to_be_proved(epsilon, text):
    bound = dataclasses.replace(sample.standard_result().strongest.bound, epsilon=epsilon)
    assert words.proved(bound) == text


def test_one_question_has_one_number():
    result = sample.standard_result()
    assert result.on_chosen_data is None
    assert words.headline(result) == []
    assert "the strongest attack, " in words.verdict(result)
    assert result.to_dict()["proved"]["on_chosen_data"] is None


def test_a_draw_is_not_called_a_training():
    result = both_questions()
    assert words.trials(result) == (
        "120 trainings for each adversary and 400 draws from the known law for malicious-dataset"
    )
    drawn = result.adversaries[-1]
    assert "Nothing is trained: its scores are drawn from their known law." in words.adversary(drawn)
    for figure in (figures.histograms(drawn), figures.trade_off(result, drawn), figures.growth(result, drawn)):
        shown = figure.title + figure.caption + json.dumps(figure.chart.to_dict(), ensure_ascii=False)
        assert "training" not in shown
        assert "draw" in shown
    trained = figures.growth(result, result.adversaries[0])
    assert "trainings" in trained.caption
