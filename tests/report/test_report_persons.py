"""What the trials mean for a person: the words and the picture of beliefs."""

import dataclasses
import math

import numpy as np
import pytest
import report_sample as sample

from coalmine import report
from coalmine.identifiability import estimates
from coalmine.records import Relation, Scores
from coalmine.report import figures, one_person
from coalmine.roles import View


def believer(*, promised=True, mu=0.55, trials=400):
    rng = np.random.default_rng(3)
    scores = Scores(rng.normal(-(mu**2) / 2, mu, trials // 2), rng.normal(mu**2 / 2, mu, trials // 2))
    beliefs = estimates.summary(
        scores, epsilon=2.2, delta=0.001, relation=Relation.ADD_REMOVE, promised=promised, expected=0.002,
        distances=np.full(trials, mu), losses=(rng.normal(size=200), rng.normal(size=200)),
    )  # fmt: skip
    one = sample.adversary("identifiability", trials=trials, view=View.ALL_ITERATES)
    return dataclasses.replace(one, scores=scores, beliefs=beliefs, others=(*one.others, *beliefs.estimates))


def test_the_section_says_what_happened_and_draws_the_limit():
    one = believer()
    page = report.page(sample.result(one, trials=400))
    assert "How sure identifiability became" in page
    assert "This was played 400 times" in page
    assert "The limit here is 90.1%" in page
    assert "limit 90.1%" in page  # in the picture too
    assert "no others" not in page
    for name in ("From the largest belief", "From how far the two gradients are apart", "From how often the guess"):
        assert name in page


def test_a_limit_for_two_data_sets_alone_is_not_sold_as_a_promise():
    lines = " ".join(one_person.certainty(believer(promised=False)))
    assert "for the two data sets that were compared and for no others" in lines
    assert "nothing is promised to that person" in lines


def test_numbers_in_the_words_are_those_of_the_beliefs():
    one = believer()
    right = 1 / (1 + np.exp(-np.concatenate([-one.scores.world0, one.scores.world1])))
    lines = " ".join(one_person.certainty(one))
    assert f"{100 * np.median(right):.1f}% sure" in lines
    assert f"right in {100 * (right > 0.5).mean():.1f}%" in lines
    assert "passed in none of them" in lines
    assert one_person.certainty(sample.adversary()) == []


def test_the_picture_is_among_the_figures():
    result = sample.result(believer(), trials=400)
    names = [figure.name for figure in figures.all_figures(result)]
    assert any(name.startswith("beliefs-identifiability") for name in names)
    spec = result.plot("beliefs").to_dict()
    values = [row for data in _values(spec) for row in data]
    bars = [row for row in values if "to" in row]
    assert sum(row["percent"] for row in bars) == pytest.approx(100.0)
    bound = 1 / (1 + math.exp(-2.2))
    assert any(row["from"] == pytest.approx(bound) for row in values if "text" in row)


def _values(tree):
    """Every list of plain rows in a specification."""
    if isinstance(tree, dict):
        for item in tree.values():
            yield from _values(item)
    elif isinstance(tree, list):
        if tree and all(isinstance(row, dict) and "percent" in row for row in tree):
            yield tree
        for item in tree:
            yield from _values(item)


def _bars(one):
    """The bars of the picture of beliefs."""
    datasets = report.persons.figure(one).chart.to_dict()["datasets"].values()
    return next(rows for rows in datasets if rows and "to" in rows[0])


def test_a_training_that_failed_is_drawn_and_told_as_knowing_nothing():
    """Three trainings of world 0 failed: their scores stand below all others, which as log-odds would be certainty."""
    whole = believer()
    world0 = whole.scores.world0.copy()
    world0[:3] = -50.0
    one = dataclasses.replace(whole, scores=Scores(world0, whole.scores.world1), failed=(3, 0))
    assert one.log_odds.world0[:3].tolist() == [0.0, 0.0, 0.0]
    assert one.log_odds.world0[3:].tolist() == world0[3:].tolist()
    assert "in the worst of all more than 99.9%" not in " ".join(one_person.certainty(one))
    unaware = dataclasses.replace(one, failed=(0, 0))
    assert "in the worst of all more than 99.9%" in " ".join(one_person.certainty(unaware))
    tops = [max(row["to"] for row in _bars(given)) for given in (one, unaware)]
    assert tops[0] < 0.9 < tops[1] == 1.0
    assert dataclasses.replace(one, beliefs=None).log_odds is None
