"""Records of others: laws of scores against their formulas, and cells that say what the papers did."""

import math

import numpy as np
import pytest

from coalmine.accounting import standard
from coalmine.records import DpSgd, Relation
from coalmine.studies import find, measures, run_cell
from coalmine.studies.measures.known_laws import opposite_steps, opposite_sums

FULL = DpSgd(sample_rate=1.0, noise_multiplier=5.0, steps=20)
SAMPLED = DpSgd(sample_rate=0.3, noise_multiplier=2.0, steps=10)
N = 200_000


def test_the_last_model_shows_the_law_of_the_paper():
    """±Binomial(T, q) + N(0, Tσ²): mean ±Tq and variance Tq(1 − q) + Tσ²; five standard errors of a fixed draw."""
    scores = opposite_sums(SAMPLED, trials=N, rng=np.random.default_rng(1))
    variance = 10 * 0.3 * 0.7 + 10 * 4.0
    for world, mean in ((scores.world0, -3.0), (scores.world1, 3.0)):
        assert abs(world.mean() - mean) < 5 * math.sqrt(variance / N)
        assert abs(world.var() / variance - 1.0) < 5 * math.sqrt(2.0 / N)


def test_every_step_is_scored_by_the_likelihood_ratio():
    """E₁[e^−score] = 1 and E₀[e^score] = 1 for a log-likelihood ratio, and only for one of the right scale."""
    scores = opposite_steps(SAMPLED, trials=N, rng=np.random.default_rng(2))
    for weights in (np.exp(-scores.world1), np.exp(scores.world0)):
        assert abs(weights.mean() - 1.0) < 5 * weights.std() / math.sqrt(N)
        assert weights.std() / math.sqrt(N) < 0.02


def test_without_sampling_the_last_model_shows_all():
    """Then the ratio is 2/σ² times the sum: mean ±2T/σ², variance 4T/σ²."""
    scores = opposite_steps(FULL, trials=N, rng=np.random.default_rng(3))
    assert abs(scores.world1.mean() - 1.6) < 5 * math.sqrt(3.2 / N)
    assert abs(scores.world0.var() / 3.2 - 1.0) < 5 * math.sqrt(2.0 / N)


def test_a_replaced_row_proves_more_than_an_added_one_is_promised():
    study = find("pradhan-2026/s1")
    found = run_cell(study, cell=study.cell("q=0.25,epsilon=4"), scale=study.scale("quick"), bench=None)
    other = DpSgd(sample_rate=0.25, noise_multiplier=found.columns["σ"], steps=500, relation=Relation.REPLACE)
    assert found.guarantee == standard.epsilon(other, delta=1e-5).epsilon
    assert found.columns["add/remove ε"] == pytest.approx(4.0, abs=0.01)
    assert 1.4 * 4.0 < found.ours < found.guarantee
    assert found.verdict == "no published value"
    assert (found.delta, found.confidence, found.played) == (1e-5, 0.99, {"draws": 1000})


def test_a_canary_each_step_bounds_the_noise_of_a_step():
    study = find("nasr-2023/canary-each-step")
    found = run_cell(study, cell=study.cell("draws=1,sigma=1.6"), scale=study.scale("quick"), bench=None)
    assert found.columns["ε"] == pytest.approx(15.6, abs=0.1)
    assert 0.6 < found.ours < 1.0
    assert found.columns["too high"] == 0.0
    assert (found.delta, found.confidence, found.played) == (1e-5, 0.95, {"audits": 3, "draws": 2500})


def test_the_black_box_cells_sum_gradients_as_the_paper_does():
    """Our divisor is the number of rows, so our learning rate is the paper's times it."""
    study = find("annamalai-2024/black-box")
    rates = {"MNIST-1k": 1.33e-4, "MNIST": 1.33e-4, "CIFAR-1k": 4e-5, "CIFAR-10": 4e-5}
    for cell in study.cells:
        (made,) = measures.find(study.measure).audits(study, cell, study.scale("paper"))
        assert made.training.learning_rate == pytest.approx(rates[cell.name.partition(",")[0]] * made.data.rows)
        assert (made.training.sampling, made.training.clip) == ("full", 1.0)
        assert made.audit.trials == 2000


@pytest.mark.parametrize("name", ["cebere-2025/housing", "nasr-2021/figure-8"])
def test_a_note_gives_a_number_of_trials_only_with_its_scale(name):
    """Both have other numbers at the quick scale, where the same notes are printed."""
    study = find(name)
    paper, quick = (study.scale(scale).audit(study.cells[0]).audit.trials for scale in ("paper", "quick"))
    assert paper != quick
    assert not any("(here " in note or str(paper) in note for note in study.notes)
    assert all("paper scale" in note for note in study.notes if "trials in each world" in note)
