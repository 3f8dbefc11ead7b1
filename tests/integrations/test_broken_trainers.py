"""Trainers with one bug each, and the verdict that is expected of us; the right trainer under the same attack passes.

Seeds are fixed (see ``fixed_seeds``): every verdict here is the same on every run.
"""

import functools

import broken_trainers as broken
import pytest

from coalmine import audit_function
from coalmine.auditing.config import Execution
from coalmine.records import DpSgd, Outcome, Relation

ONE_STEP = {"sigma": 1.0}
HALF = {"sigma": 1.0, "steps": 4, "rate": 0.5}
RARE = {"sigma": 0.6, "steps": 20, "rate": 0.05}


pytestmark = pytest.mark.usefixtures("fixed_seeds")


def play(tmp_path, *, bug, settings, worlds, score, claim=None, trials=300, control=None):
    claim = claim or DpSgd(
        sample_rate=settings.get("rate", 1.0), noise_multiplier=settings["sigma"], steps=settings.get("steps", 1)
    )
    train = functools.partial(broken.train, bug=bug, **settings)
    return audit_function(
        train, score, worlds=worlds, claim_dpsgd=claim, trials=trials, confidence=0.999, control=control,
        store=tmp_path / "trials.db", execution=Execution(engine="inline"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("bug", "settings", "worlds", "score"),
    [
        ("no noise", ONE_STEP, broken.flat_worlds, broken.mean_score),
        ("half the noise", ONE_STEP, broken.flat_worlds, broken.mean_score),
        ("noise before clipping", ONE_STEP, broken.lone_worlds, broken.mean_score),
        ("clipping disabled", ONE_STEP, broken.flat_worlds, broken.mean_score),
        ("noise on the last layer only", ONE_STEP, broken.flat_worlds, broken.mean_score),
        ("realised batch as the divisor", ONE_STEP, broken.wide_worlds, broken.size_score),
        ("NaN from the canary", ONE_STEP, broken.flat_worlds, broken.nan_score),
        ("two batches for one noise", ONE_STEP, broken.flat_worlds, broken.mean_score),
        ("fixed batches", RARE, broken.many_worlds, broken.first_step_score),
        ("the same noise every step", HALF, broken.flat_worlds, broken.spread_score),
    ],
)
def test_the_bug_is_refuted(tmp_path, bug, settings, worlds, score):
    result = play(tmp_path, bug=bug, settings=settings, worlds=worlds, score=score)
    assert result.verdict.outcome is Outcome.REFUTED
    judged = result.strongest.judgement
    assert judged.refuted
    assert judged.p_value <= judged.level == pytest.approx(0.001)
    print(f"{bug}: claim {result.claim_epsilon:.2f}, ε ≥ {result.strongest.bound.epsilon:.2f}; {result.in_words()}")


@pytest.mark.parametrize(
    ("settings", "worlds", "score"),
    [
        (ONE_STEP, broken.flat_worlds, broken.mean_score),
        (ONE_STEP, broken.lone_worlds, broken.mean_score),
    ],
)
def test_the_right_trainer_is_consistent(tmp_path, settings, worlds, score):
    half = functools.partial(broken.train, bug="half the noise", **settings)
    result = play(tmp_path, bug="", settings=settings, worlds=worlds, score=score, control=half)
    assert result.verdict.outcome is Outcome.CONSISTENT, result.in_words()
    assert not result.strongest.judgement.refuted


@pytest.mark.parametrize(
    ("made_for", "settings", "worlds", "score"),
    [
        ("realised batch as the divisor", ONE_STEP, broken.wide_worlds, broken.size_score),
        ("the same noise every step", HALF, broken.flat_worlds, broken.spread_score),
    ],
)
def test_a_score_made_for_one_bug_is_blind_to_the_right_trainer(tmp_path, made_for, settings, worlds, score):
    """Not even a control changes that where a right trainer moves next to nothing: one that ignores its rows looks so.

    The spread of the same noise in every step is d′ = 0.31 where 0.98 is expected.
    """
    audited = {"settings": settings, "worlds": worlds, "score": score}
    blind = play(tmp_path, bug="", **audited)
    assert blind.verdict.outcome is Outcome.INCONCLUSIVE
    assert blind.strongest.judgement.doubts
    bug = functools.partial(broken.train, bug=made_for, **settings)
    sharp = play(tmp_path, bug="", control=bug, **audited)
    assert sharp.verdict.outcome is Outcome.INCONCLUSIVE, sharp.in_words()
    assert abs(sharp.strongest.judgement.separation) < 0.4
    assert sharp.strongest.judgement.control is True


def test_a_score_made_for_one_bug_may_stand_beside_one_that_sees_the_canary(tmp_path):
    scores = {"mean": broken.mean_score, "size": broken.size_score}
    half = functools.partial(broken.train, bug="half the noise", **ONE_STEP)
    audited = {"settings": ONE_STEP, "worlds": broken.wide_worlds, "score": scores}
    result = play(tmp_path, bug="", control=half, **audited)
    assert result.verdict.outcome is Outcome.CONSISTENT, result.in_words()
    divided = play(tmp_path, bug="realised batch as the divisor", **audited)
    assert divided.verdict.outcome is Outcome.REFUTED


def test_sensitivity_under_replacement_accounted_as_that_of_addition(tmp_path):
    # Noise σ = 1 on a sum that a replaced row moves by 2C. Who takes that for C claims what noise 2σ would give.
    right = DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1, relation=Relation.REPLACE)
    audited = {"bug": "", "settings": ONE_STEP, "worlds": broken.replaced_worlds, "score": broken.mean_score}
    wrong = play(tmp_path, **audited, claim=right.with_noise(2.0))
    assert wrong.verdict.outcome is Outcome.REFUTED
    assert wrong.strongest.bound.relation is Relation.REPLACE
    print(f"2C as C: claim {wrong.claim_epsilon:.2f}, ε ≥ {wrong.strongest.bound.epsilon:.2f}; {wrong.in_words()}")
    half = functools.partial(broken.train, bug="half the noise", **ONE_STEP)
    assert play(tmp_path, **audited, claim=right, control=half).verdict.outcome is Outcome.CONSISTENT


def test_an_epsilon_alone_is_refuted_too(tmp_path):
    train = functools.partial(broken.train, sigma=1.0, bug="no noise")
    result = audit_function(
        train, broken.mean_score, worlds=broken.flat_worlds, claim_epsilon=3.0, trials=300,
        store=tmp_path / "trials.db", execution=Execution(engine="inline"),
    )  # fmt: skip
    assert result.verdict.outcome is Outcome.REFUTED
    assert result.strongest.bound.epsilon > 3.0
    assert any("same score" in note for note in result.strongest.notes)
