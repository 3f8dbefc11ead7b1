"""Guesses chosen for the claim, and a judge that cannot flatter."""

from __future__ import annotations

import collections
import json
import math

import numpy as np
import pytest
from scipy import stats

from coalmine import _validate
from coalmine.accounting.loss_law import loss_law
from coalmine.bounds.one_run import default_guess_numbers
from coalmine.bounds.one_run_dpsgd import one_run_dpsgd
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.one_run import Design, design, forecast, judge, laws, least_canaries, section
from coalmine.one_run import guesses as choosing
from coalmine.one_run.coverage import measure
from coalmine.one_run.judge import separation_of
from coalmine.records import DpSgd, EpsilonClaim, MechanismClaim, OneRunScores, Outcome
from coalmine.theory.curves import gaussian_mu

DELTA = 1e-5
ONE_STEP = MechanismClaim(mechanism=DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1), delta=DELTA)


def gaussian_run(mu, m, seed=0):
    rng = np.random.default_rng(seed)
    included = rng.random(m) < 0.5
    return OneRunScores(included, rng.normal(size=m) + mu * included)


def ratios(mu, m, seed=0):
    """Log-likelihood ratios of one step with σ = 1, of canaries that are really this far apart."""
    run = gaussian_run(mu, m, seed)
    return OneRunScores(run.included, run.score - 0.5)


# ---- what guesses are worth ----------------------------------------------------------------------------------------


def test_simulated_guesses_have_the_law_of_real_ones():
    law, m, k = laws.GaussianLaw(mu=1.2), 600, 40
    rng = np.random.default_rng(1)
    included = rng.random((1500, m)) < 0.5
    order = np.argsort(rng.normal(size=(1500, m)) + 1.2 * included, axis=1)
    sorted_coins = np.take_along_axis(included, order, axis=1)
    real = sorted_coins[:, -k:].sum(axis=1) + (~sorted_coins[:, :k]).sum(axis=1)
    simulated = choosing.simulate(law, canaries=m, guess_in=k, guess_out=k, repetitions=1500)
    # Means of 1500 each, standard deviation 2.2: 5.5 standard errors of the difference are passed once in 2·10⁷ tries.
    assert abs(real.mean() - simulated.mean()) < 5.5 * 2.2 * math.sqrt(2 / 1500)
    assert 0.8 < real.std() / simulated.std() < 1.25


def test_the_law_of_losses_is_that_of_simulated_steps():
    mechanism = DpSgd(sample_rate=0.1, noise_multiplier=0.9, steps=40)
    losses, inside, outside = loss_law(mechanism)
    q, sigma, n = 0.1, 0.9, 20_000
    rng = np.random.default_rng(2)
    for world, law in ((1, inside), (0, outside)):
        total = np.zeros(n)
        for _ in range(40):
            seen = sigma * rng.normal(size=n) + world * (rng.random(n) < q)
            total += np.logaddexp(math.log1p(-q), math.log(q) + (2 * seen - 1) / (2 * sigma**2))
        distance = stats.ks_1samp(total, lambda x, law=law: np.interp(x, losses, np.cumsum(law))).statistic
        # The Kolmogorov distance of 20,000 draws exceeds 0.02 with probability under 2·exp(−2·20,000·0.02²) = 2·10⁻⁷.
        assert distance < 0.02 + 0.005  # and losses are rounded up a little


def test_guesses_for_the_claim_refute_where_the_fixed_ones_cannot():
    claim = MechanismClaim(
        mechanism=DpSgd(sample_rate=1.0, noise_multiplier=1.0 / gaussian_mu(8.0, delta=DELTA), steps=1), delta=DELTA
    )
    chosen = choosing.choose(claim, canaries=5000, confidence=0.95)
    fixed = choosing.weigh(claim, 5000, default_guess_numbers(5000), method="one_run_fdp", level=0.05)
    assert fixed.critical is None  # not even a perfect attack would refute ε = 8 with 1.5·√m guesses a side
    assert chosen.noise is not None
    assert chosen.noise > 0.6


def test_rarely_drawn_canaries_are_guessed_on_one_side():
    claim = MechanismClaim(mechanism=DpSgd(sample_rate=0.01, noise_multiplier=0.6, steps=300), delta=DELTA)
    chosen = choosing.choose(claim, canaries=2000, confidence=0.95)
    assert chosen.guess_out == 0


def test_the_bound_for_dpsgd_is_valid_and_agrees_with_the_gaussian_without_sampling():
    run = gaussian_run(1.0, 2000)
    mechanism = DpSgd(sample_rate=1.0, noise_multiplier=3.0, steps=9)
    found = one_run_dpsgd(run, mechanism=mechanism, delta=DELTA, confidence=0.95, guess_numbers=[(100, 100)])
    from coalmine.bounds.one_run_fdp import one_run_fdp

    gdp = one_run_fdp(run, delta=DELTA, confidence=0.95, guess_numbers=[(100, 100)])
    assert found.epsilon == pytest.approx(gdp.epsilon, rel=0.005)
    assert found.details["noise_multiplier"] == pytest.approx(3.0 / gdp.details["mu"], rel=0.005)


def test_more_canaries_prove_more_and_half_the_noise_needs_few():
    small, large = (forecast(ONE_STEP, canaries=m) for m in (300, 3000))
    assert small.expected < large.expected < 4.377
    assert small.half < large.half
    least = least_canaries(ONE_STEP)
    assert least is not None
    assert 200 < least < 800
    assert forecast(ONE_STEP, canaries=2 * least).half > 0.8 > forecast(ONE_STEP, canaries=least // 2).half


# ---- the judge -----------------------------------------------------------------------------------------------------


def test_refuted_consistent_and_inconclusive():
    plan = design(ONE_STEP, canaries=2000)
    broken = judge(gaussian_run(2.5, 2000), design=plan)
    honest = judge(ratios(1.0, 2000), design=plan, gradients=True)
    weak = judge(gaussian_run(0.5, 2000), design=plan)
    assert [r.verdict.outcome for r in (broken, honest, weak)] == [
        Outcome.REFUTED,
        Outcome.CONSISTENT,
        Outcome.INCONCLUSIVE,
    ]
    assert [r.verdict.outcome.exit_code for r in (broken, honest, weak)] == [1, 0, 3]
    assert broken.p_value <= 0.05 < honest.p_value
    assert honest.verdict.power.probability >= 0.8
    assert "need not be the noise" in weak.verdict.reasons[-1]


@pytest.mark.parametrize("mu", [0.3, 0.6, 1.0, 1.2])
def test_rows_are_never_consistent_without_a_control(mu):
    # A training without any noise, whose rows disturb each other, gives scores like these: they say nothing of noise.
    found = judge(gaussian_run(mu, 2000), design=design(ONE_STEP, canaries=2000))
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert "need not be the noise" in found.verdict.reasons[-1]
    assert "--control-run" in found.verdict.reasons[-1]
    assert found.verdict.power is None


def test_rows_are_not_consistent_even_if_their_scores_are_scaled_to_look_like_ratios():
    # Scores of rows can be shifted and scaled at will: a training without noise passed for a right one.
    scores = ratios(1.0, 2000)
    plan = design(ONE_STEP, canaries=2000)
    assert judge(scores, design=plan, gradients=True).verdict.outcome is Outcome.CONSISTENT
    found = judge(scores, design=plan)
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert "canaries are rows" in found.verdict.reasons[-1]


def test_noise_that_is_not_the_claimed_one_does_not_pass_for_it():
    # No noise at all, but other rows that disturb half of the canaries much and the rest little (an attacker who sees
    # the steps alone): as far apart as in a right training, and not refuted by the guesses.
    rng = np.random.default_rng(0)
    included = rng.random(2000) < 0.5
    disturbed = np.where(rng.random(2000) < 0.5, 2.0, 0.2) * rng.normal(size=2000)
    scores = OneRunScores(included, included + disturbed - 0.5)
    found = judge(scores, design=design(ONE_STEP, canaries=2000), gradients=True)
    assert found.separation > 0.9
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert "of guesses about all canaries" in found.verdict.reasons[-1]


SUBSAMPLED = MechanismClaim(mechanism=DpSgd(sample_rate=0.1, noise_multiplier=0.95, steps=100), delta=DELTA)


def likelihoods(mechanism, m, *, noise=1.0, seed=0):
    """The game of the mechanism itself: the best score there is, for a training with this share of its noise."""
    claimed = mechanism.noise_multiplier
    rng = np.random.default_rng(seed)
    included = rng.random(m) < 0.5
    total = np.zeros(m)
    for _ in range(mechanism.steps):
        seen = noise * claimed * rng.normal(size=m) + included * (rng.random(m) < mechanism.sample_rate)
        q = mechanism.sample_rate
        total += np.logaddexp(math.log1p(-q), math.log(q) + (2 * seen - 1) / (2 * claimed**2))
    return OneRunScores(included, total)


def test_the_judge_and_the_plan_agree_on_half_the_noise():
    plan = design(SUBSAMPLED, canaries=1000)
    expected = forecast(SUBSAMPLED, canaries=1000)
    assert expected.half > 0.99
    for seed in range(3):
        honest = judge(likelihoods(SUBSAMPLED.mechanism, 1000, seed=seed), design=plan, gradients=True)
        assert honest.verdict.outcome is Outcome.CONSISTENT
        assert honest.verdict.power.probability == pytest.approx(expected.half, abs=0.02)
        broken = judge(likelihoods(SUBSAMPLED.mechanism, 1000, noise=0.5, seed=seed), design=plan)
        assert broken.verdict.outcome is Outcome.REFUTED


def test_the_separation_of_a_law_is_that_of_its_scores():
    law = laws.leaking(SUBSAMPLED)
    seen = separation_of(likelihoods(SUBSAMPLED.mechanism, 20_000))
    # The standard error of μ for 20,000 canaries is about 0.016; losses are rounded up a little.
    assert seen == pytest.approx(law.separation, abs=0.09)
    assert choosing.seen_noise(SUBSAMPLED, separation=law.separation) == pytest.approx(1.0, abs=0.01)
    half = laws.leaking(SUBSAMPLED, noise=0.5).separation
    assert half > 2.2 * law.separation  # rarely drawn: half the noise does more than double it
    assert choosing.seen_noise(SUBSAMPLED, separation=half) == pytest.approx(0.5, abs=0.01)


def test_inconclusive_when_nothing_could_have_refuted_it():
    plan = design(EpsilonClaim(epsilon=8.0, delta=DELTA), canaries=100)
    found = judge(gaussian_run(9.0, 100), design=plan)
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert "100 canaries are too few" in found.verdict.reasons[1]
    assert "--noise-multiplier" in found.verdict.reasons[1]
    assert "coalmine plan --one-run --epsilon 8 --delta 1e-05" in found.verdict.reasons[1]
    assert found.verdict.ceiling < 8.0


def test_too_few_canaries_and_a_weak_attack_are_told_apart():
    few = judge(ratios(1.0, 200), design=design(ONE_STEP, canaries=200))
    assert few.verdict.outcome is Outcome.INCONCLUSIVE
    assert "200 canaries are too few" in few.verdict.reasons[-1]
    assert "--canaries 2" in few.verdict.reasons[-1]  # between 200 and 299 would do
    weak = judge(gaussian_run(0.5, 2000), design=design(ONE_STEP, canaries=2000))
    assert "too few" not in " ".join(weak.verdict.reasons)


def test_scores_that_point_the_wrong_way_are_not_turned_round():
    plan = design(ONE_STEP, canaries=2000)
    run = gaussian_run(2.5, 2000)
    found = judge(OneRunScores(run.included, -run.score), design=plan)
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert "wrong way" in found.verdict.reasons[-1]
    assert found.epsilon == 0.0


def test_equal_scores_say_nothing():
    plan = design(ONE_STEP, canaries=200)
    found = judge(OneRunScores(np.arange(200) % 2, np.zeros(200)), design=plan)
    assert found.verdict.outcome is Outcome.INCONCLUSIVE


def test_a_positive_control_that_stays_green_makes_it_inconclusive():
    plan = design(ONE_STEP, canaries=2000)
    run = gaussian_run(1.0, 2000)
    assert judge(run, design=plan, control=gaussian_run(2.0, 2000, 5)).verdict.outcome is Outcome.CONSISTENT
    found = judge(run, design=plan, control=gaussian_run(0.5, 2000, 5))
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert "positive control" in found.verdict.reasons[-1]


def test_a_control_that_was_refuted_by_luck_does_not_make_it_consistent():
    """Half the noise in both trainings, refuted in half the games: one of each kind passed for consistent."""
    m, games = 120, 300
    plan = design(ONE_STEP, canaries=m)
    found = collections.Counter(
        judge(gaussian_run(2.0, m, 2 * seed), design=plan, control=gaussian_run(2.0, m, 2 * seed + 1)).verdict.outcome
        for seed in range(games)
    )
    refuted = found[Outcome.REFUTED] / games
    assert 0.1 < refuted < 0.8  # the game is too small for this claim
    assert found[Outcome.CONSISTENT] <= 0.03 * games  # a quarter of them when any refuted control was enough


def test_a_control_is_enough_where_it_would_be_refuted_nearly_always():
    plan = design(ONE_STEP, canaries=2000)
    found = judge(ratios(1.0, 2000), design=plan, control=gaussian_run(2.0, 2000, 5)).verdict
    assert found.outcome is Outcome.CONSISTENT
    assert found.power.probability > 0.9
    assert found.power.alternative == "a training as broken as the positive control"
    # A control whose right guesses are just enough says that such a training is often missed.
    needed = plan.choice().critical
    just = next(
        run
        for run in (gaussian_run(mu, 2000, 3) for mu in np.arange(1.0, 2.5, 0.01))
        if plan.count(run).correct >= needed
    )
    close = judge(ratios(1.0, 2000), design=plan, control=just).verdict
    assert close.outcome is Outcome.INCONCLUSIVE
    assert "only just" in close.reasons[-1]
    assert close.power.probability < 0.8


def test_scores_that_tell_nothing_are_never_consistent_whatever_the_control_says():
    plan = design(ONE_STEP, canaries=2000)
    blind, perfect = gaussian_run(0.0, 2000), gaussian_run(9.0, 2000, 5)
    found = judge(blind, design=plan, control=perfect)
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert "do not tell" in found.verdict.reasons[-1]
    other = judge(gaussian_run(0.25, 2000), design=plan, control=perfect)  # tells something, by another attack
    assert other.verdict.outcome is Outcome.INCONCLUSIVE
    assert "score both in the same way" in other.verdict.reasons[-1]


def test_a_control_of_another_game_is_refused():
    plan = design(ONE_STEP, canaries=2000)
    run, broken = gaussian_run(1.0, 2000), gaussian_run(2.0, 2000, 5)
    with pytest.raises(InvalidInputError, match="control is the audited run itself"):
        judge(run, design=plan, control=run)
    with pytest.raises(InvalidInputError, match="control has scores of 99 canaries"):
        judge(run, design=plan, control=gaussian_run(2.0, 99))
    with pytest.raises(InvalidInputError, match="control"):
        judge(run, design=plan, control="broken")
    assert judge(run, design=plan, control=judge(broken, design=plan)).verdict.outcome is Outcome.CONSISTENT
    for other in (SUBSAMPLED, EpsilonClaim(epsilon=1.0, delta=DELTA)):
        with pytest.raises(InvalidInputError, match="control was prepared with another claim"):
            judge(run, design=plan, control=judge(broken, design=design(other, canaries=2000)))


@pytest.mark.parametrize("method", ["one_run", "one_run_fdp"])
def test_the_method_that_decides_comes_first(method):
    plan = design(EpsilonClaim(epsilon=1.0, delta=DELTA), canaries=1000, method=method)
    found = judge(gaussian_run(3.0, 1000), design=plan)
    assert found.bounds[0].method.startswith(method)
    assert found.verdict.outcome is Outcome.REFUTED
    assert found.bounds[0].epsilon > 1.0


def test_the_verdict_and_the_bound_agree():
    plan = design(EpsilonClaim(epsilon=1.0, delta=DELTA), canaries=500)
    for mu in (0.5, 1.0, 1.5, 2.0, 3.0):
        found = judge(gaussian_run(mu, 500, seed=int(10 * mu)), design=plan)
        assert (found.verdict.outcome is Outcome.REFUTED) == (found.epsilon >= 1.0)


def test_separation():
    assert separation_of(gaussian_run(1.5, 40_000)) == pytest.approx(1.5, abs=0.07)
    assert separation_of(OneRunScores([1, 1], [0.0, 1.0])) == 0.0


def test_miss_rates_are_at_or_under_the_level():
    # 60 audits; 14 misses at a rate of 5 % have probability under 1e-6, and 18 × 3 cells are looked at.
    cells = measure(canaries=120, audits=60, runs=(1, 2))
    assert len(cells) == 108
    assert max(cell.misses for cell in cells) < 16


# ---- bad input -----------------------------------------------------------------------------------------------------


def test_replace_claims_are_refused():
    with pytest.raises(UnsupportedError, match="replace"):
        design(EpsilonClaim(epsilon=1.0, delta=DELTA, relation="replace"), canaries=100)


def test_a_design_that_cannot_be_is_refused():
    claim = EpsilonClaim(epsilon=1.0, delta=DELTA)
    for fields, words in (
        ({"guess_in": 60, "guess_out": 60}, "1 to 100 guesses"),
        ({"guess_in": 0, "guess_out": 0}, "1 to 100 guesses"),
        ({"guess_in": 5, "guess_out": 5, "method": "other"}, "one of one_run"),
        ({"guess_in": 5, "guess_out": 5, "confidence": 1.0}, "strictly between"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            Design(**{"claim": claim, "confidence": 0.95, "canaries": 100, "method": "one_run", **fields})
    with pytest.raises(InvalidInputError, match="one of one_run_fdp"):
        Design(claim=ONE_STEP, confidence=0.95, canaries=100, guess_in=5, guess_out=5, method="one_run")
    with pytest.raises(InvalidInputError, match="expected 100, one a canary"):
        judge(gaussian_run(1.0, 99), design=design(claim, canaries=100))


def test_a_design_survives_writing_it_down():
    for claim in (ONE_STEP, EpsilonClaim(epsilon=1.5, delta=DELTA)):
        plan = design(claim, canaries=100)
        assert Design.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    with pytest.raises(InvalidInputError, match="what `prepare` wrote"):
        Design.from_dict({"claim": {"kind": "epsilon", "epsilon": 1.0}, "confidence": 0.95})


# ---- the report ----------------------------------------------------------------------------------------------------


def test_the_section_holds_what_the_judge_saw():
    plan = design(ONE_STEP, canaries=400)
    run = gaussian_run(1.0, 400)
    found = judge(run, design=plan)
    tree = section(found, price={"with_canaries": 0.8, "without": 0.9})
    assert json.loads(json.dumps(tree)) == tree
    guess = np.array(tree["canaries"]["guess"])
    assert (guess == "in").sum() == plan.guess_in
    assert (guess == "out").sum() == plan.guess_out
    right = ((guess == "in") & run.included).sum() + ((guess == "out") & ~run.included).sum()
    assert right == found.guesses.correct
    assert run.score[guess == "in"].min() >= run.score[guess == ""].max()
    for point in tree["trade_off"]:
        assert 0.0 <= point["allowed"] <= 1.0


def test_the_figure_is_drawn():
    render = pytest.importorskip("coalmine.report.render", reason="needs altair and vl-convert")
    from coalmine.report import one_run as pictures

    tree = section(judge(gaussian_run(1.0, 400), design=design(ONE_STEP, canaries=400)))
    drawn = render.svg(pictures.scores(tree))
    assert drawn.startswith("<svg")
    assert "guessed in from here" in drawn
    page = pictures.page({**tree, "price": {"with_canaries": 0.9, "without": 0.91}})
    for words in ("were put into one training", "The price", "the claim of DP-SGD", "What is proved"):
        assert words in page


# ---- what a stranger could make it say -----------------------------------------------------------------------------


def test_coins_that_cannot_have_been_fair_are_refused():
    rng = np.random.default_rng(0)
    included = rng.random(1000) < 0.9
    plan = design(EpsilonClaim(epsilon=1.0, delta=DELTA), canaries=1000, guess_in=300, guess_out=0)
    with pytest.raises(InvalidInputError, match="were members: a fair coin for each gives that less than once"):
        judge(OneRunScores(included, rng.normal(size=1000)), design=plan)
    few = design(EpsilonClaim(epsilon=1.0, delta=DELTA), canaries=15)
    assert judge(OneRunScores(np.ones(15, dtype=bool), np.arange(15.0)), design=few).verdict


def test_what_is_proved_does_not_rest_on_the_claimed_mechanism():
    """Randomized response with ε = 1 is no DP-SGD: bounds for one may exceed 1, and ``epsilon`` is not one of them."""
    claim = MechanismClaim(mechanism=DpSgd(sample_rate=0.01, noise_multiplier=0.6, steps=2000), delta=DELTA)
    plan = design(claim, canaries=10_000, aim="bound")
    conditional, proved = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        included = rng.random(10_000) < 0.5
        answers = included ^ (rng.random(10_000) < 1.0 / (1.0 + math.e))
        found = judge(OneRunScores(included, answers.astype(float)), design=plan)
        conditional.append(found.bounds[0].epsilon)
        proved.append(found.epsilon)
        assert found.epsilon == found.proved.epsilon
        assert f"epsilon >= {_validate.rounded_down(found.epsilon, 4)}" in repr(found)
    assert max(conditional) > 1.0 > max(proved) > 0.8


def test_parameters_without_noise_are_not_consistent():
    plan = design(ONE_STEP, canaries=2000)
    run = gaussian_run(1.0, 2000, seed=5)
    right = judge(OneRunScores(run.included, run.score - 0.5), design=plan, gradients=True)
    assert right.verdict.outcome is Outcome.CONSISTENT
    assert "a few parameters without any" in right.verdict.reasons[-1]
    holes = np.where(np.arange(2000) % 20 == 0, run.included, run.score) - 0.5
    for control in (None, ratios(2.0, 2000, seed=6)):
        found = judge(OneRunScores(run.included, holes), design=plan, gradients=True, control=control)
        assert found.verdict.outcome is Outcome.INCONCLUSIVE
        assert "exactly the same score" in found.verdict.reasons[-1]


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_a_part_of_the_parameters_with_hardly_any_noise_is_not_consistent(share):
    """No two scores are equal, but in and out they lie close together in one place each."""
    plan = design(ONE_STEP, canaries=2000)
    rng = np.random.default_rng(8)
    included = rng.random(2000) < 0.5
    noise = rng.normal(size=2000) * np.where(rng.random(2000) < share, 1e-3, 1.0)
    found = judge(OneRunScores(included, included + noise - 0.5), design=plan, gradients=True)
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert "not the likelihood ratios that the claimed noise makes" in found.verdict.reasons[-1]


def test_next_to_no_noise_and_a_canary_that_is_hardly_ever_drawn():
    """No attack tells the worlds apart more often than the canary is drawn at all."""
    for rate, sigma, steps in ((1e-6, 0.005, 100), (1e-4, 0.005, 100), (1e-4, 0.03, 100), (0.01, 0.01, 10_000)):
        mechanism = DpSgd(sample_rate=rate, noise_multiplier=sigma, steps=steps)
        losses, inside, outside = loss_law(mechanism)
        drawn = -math.expm1(steps * math.log1p(-rate))
        assert 0.5 * np.abs(inside - outside).sum() == pytest.approx(drawn, rel=1e-3)
        assert np.all(np.diff(losses) > 0.0)
        if drawn < 0.5:  # a coarse grid tells a little more than there is
            most = 2.0 * math.sqrt(2.0) * float(stats.norm.ppf(0.5 + 0.5 * drawn))
            assert laws.loss_law(mechanism).separation <= most


# ---- canaries without noise ----------------------------------------------------------------------------------------

WEAK_STEP = MechanismClaim(mechanism=DpSgd(sample_rate=1.0, noise_multiplier=1.5, steps=1), delta=DELTA)


def partly_noisy(without, *, sigma=1.5, m=1000, seed=0, jitter=0.0):
    """One step of rows with a feature each, of which a share gets no noise, or next to none."""
    rng = np.random.default_rng([seed, int(1e6 * sigma)])
    included = rng.random(m) < 0.5
    noise = np.where(rng.random(m) < without, jitter, sigma) * rng.normal(size=m)
    return OneRunScores(included, included + noise)


@pytest.mark.parametrize("jitter", [0.0, 1e-6])
@pytest.mark.parametrize("without", [0.4, 0.6, 0.8, 0.9])
def test_rows_of_which_many_get_no_noise_are_not_consistent(without, jitter):
    plan = design(WEAK_STEP, canaries=1000)
    control = partly_noisy(0.0, sigma=0.75, seed=1)
    for seed in range(5):
        found = judge(partly_noisy(without, seed=seed, jitter=jitter), design=plan, control=control)
        assert found.verdict.outcome is not Outcome.CONSISTENT
        if found.verdict.outcome is Outcome.INCONCLUSIVE:
            said = "exactly the same score" if jitter == 0.0 else "of guesses about all canaries"
            assert said in found.verdict.reasons[-1]
            assert "coalmine probe" in found.verdict.reasons[-1]


def test_right_rows_are_as_consistent_as_before():
    plan = design(WEAK_STEP, canaries=1000)
    control = partly_noisy(0.0, sigma=0.75, seed=1)
    found = [judge(partly_noisy(0.0, seed=seed), design=plan, control=control).verdict for seed in range(40)]
    # All guesses are too good once in 10⁴ games; a game is refuted, or blind, far more rarely still.
    assert sum(one.outcome is Outcome.CONSISTENT for one in found) >= 39


def test_a_claimed_epsilon_allows_randomized_response_in_guesses_about_all():
    """The best attack on (ε, δ) is not that on a Gaussian: every answer is right with e^ε/(1 + e^ε)."""
    claim = EpsilonClaim(epsilon=1.0, delta=DELTA)
    plan, rng = design(claim, canaries=1000, guess_in=100, guess_out=100), np.random.default_rng(3)
    included = rng.random(1000) < 0.5
    right = rng.random(1000) < 1.0 / (1.0 + math.exp(-1.0))
    scores = OneRunScores(included, np.where(right == included, 1.0, 0.0) + 0.01 * rng.normal(size=1000))
    assert "of guesses about all" not in " ".join(judge(scores, design=plan).verdict.reasons)


def test_a_few_equal_scores_of_rows_are_rounding():
    plan, control = design(WEAK_STEP, canaries=1000), partly_noisy(0.0, sigma=0.75, seed=1)
    run = partly_noisy(0.0, seed=2)
    rounded = OneRunScores(run.included, run.score.round(3))
    assert judge(rounded, design=plan, control=control).verdict.outcome is Outcome.CONSISTENT
