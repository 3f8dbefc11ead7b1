"""Noise that is rounded, bent or in few numbers; draws of one key; names that are kept; input that is no input."""

from __future__ import annotations

import functools

import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import small_steps as s  # noqa: E402
from jax import random  # noqa: E402

import coalmine  # noqa: E402
from coalmine.errors import InvalidInputError  # noqa: E402
from coalmine.integrations.jax import audit  # noqa: E402

BATCH = 2.0 * random.normal(random.key(4), (6, 5))

GRIDS = {
    "bfloat16": lambda one: one.astype(jnp.bfloat16).astype(jnp.float32),
    "half precision": lambda one: one.astype(jnp.float16).astype(jnp.float32),
    "eight bits": lambda one: jax.lax.reduce_precision(one, 4, 3),
    "thousandths": lambda one: jnp.round(one * 1000.0) / 1000.0,
}


@pytest.mark.parametrize(("name", "seed"), [*((name, 0) for name in GRIDS), ("bfloat16", 1), ("half precision", 2)])
def test_noise_on_a_coarse_grid_beside_an_exact_sum_is_inconclusive(name, seed):
    def step(weight, batch, key):
        return s.moved(weight, s.clipped(batch) + s.SIGMA * GRIDS[name](random.normal(key, weight.shape)))

    report = s.probed(step, state=jnp.zeros(5), batch=BATCH, seed=seed)
    assert str(report.verdict) == "inconclusive", report.in_words()
    # On the coarsest grids noise is not even roughly in proportion to its size, which is said first.
    assert name in ("eight bits", "thousandths") or "is rounded" in report.in_words()


def test_noise_in_the_precision_of_the_release_is_right():
    def low(weight, batch, key):  # all of it in low precision
        return s.right(weight, batch, key).astype(weight.dtype)

    for seed in (0, 1):
        s.consistent(s.probed(s.right, state=3.0 + jnp.zeros(5), batch=BATCH, seed=seed))
    s.consistent(s.probed(low, state=jnp.zeros(5, jnp.bfloat16), batch=BATCH.astype(jnp.bfloat16)))


# ---- few numbers --------------------------------------------------------------------------------------------------


def with_a_bias(state, batch, key, *, fixed=False):
    """A weight, and a bias of one number with noise of its own."""
    weight, bias = state
    first, second = random.split(key)
    rows = jnp.concatenate([batch, jnp.ones((batch.shape[0], 1))], axis=1)
    total = s.clipped(rows)
    noise = s.SIGMA * random.normal(random.wrap_key_data(jnp.zeros(2, jnp.uint32)) if fixed else second)
    return s.moved(weight, total[:-1] + s.noise(weight, first)), s.moved(bias, total[-1] + noise)


def test_noise_of_one_number_comes_close_by_chance_and_is_the_same_for_a_reason():
    given = {"state": (jnp.zeros(5), jnp.array(0.0)), "batch": BATCH, "replays": 50}
    for seed in (1, 18, 121):  # where two of eight steps have noise within 0.1 % of each other
        s.consistent(s.probed(with_a_bias, seed=seed, **given))
    s.refuted(s.probed(functools.partial(with_a_bias, fixed=True), **given), "same noise every step")


# ---- functions of what was noised ---------------------------------------------------------------------------------

BENT = {
    "a power": lambda count, before: before * jnp.exp(-0.05 * count),
    "a square": lambda count, _: count * count,
    "a curve": lambda count, _: jax.nn.sigmoid(count),
}


@pytest.mark.parametrize("name", BENT)
@pytest.mark.parametrize("noise", [5.0, 0.0])
def test_a_function_of_a_noised_count_is_not_called_unnoised(name, noise):
    """Adaptive clipping (Andrew et al. 2021): the count has noise, and what is released follows from it."""

    def step(state, batch, key):
        weight, norm = state
        first, second = random.split(key)
        count = (s.norms(batch) <= 1.0).sum() - 3.0 + noise * random.normal(second)
        return s.moved(weight, s.clipped(batch) + 1.01 * s.noise(weight, first)), BENT[name](count, norm)

    report = s.probed(step, state=(jnp.zeros(5), jnp.array(1.0)), batch=BATCH)
    if noise:
        assert str(report.verdict) == "inconclusive", report.in_words()
        assert "[1] depends on the rows and on noise, but not in proportion" in report.in_words()
    else:
        s.refuted(report, "unnoised tensor")


def test_rows_that_are_changed_at_random_are_no_noise():
    def step(weight, batch, key):
        rows, new = random.split(key)
        return s.right(weight, batch, new), (batch * (1.0 + 0.1 * random.uniform(rows, batch.shape))).sum()

    s.refuted(s.probed(step, state=jnp.zeros(5), batch=BATCH), "exact value returned")


def topped(weight, batch, key, *, noise=1.0):
    """The largest numbers of the noised sum."""
    noised = s.clipped(batch) + noise * s.noise(weight, key)
    return s.moved(weight, jnp.where(jnp.abs(noised) >= jnp.sort(jnp.abs(noised))[-3], noised, 0.0))


def test_the_largest_numbers_of_the_noised_sum_are_inconclusive():
    for seed in (0, 1, 2):
        report = s.probed(topped, state=jnp.zeros(9), batch=random.normal(random.key(1), (6, 9)), seed=seed)
        assert str(report.verdict) == "inconclusive", report.in_words()

    def one_of_two(state, batch, key):
        first, second = random.split(key)
        rows = batch / jnp.maximum(s.norms(batch), 1.0)
        return topped(state[0], rows[:, :9], first), s.moved(
            state[1], rows[:, 9:].sum(axis=0) + s.noise(state[1], second)
        )

    batch = random.normal(random.key(1), (6, 12))
    report = s.probed(one_of_two, state=(jnp.zeros(9), jnp.zeros(3)), batch=batch)
    assert str(report.verdict) == "inconclusive", report.in_words()


@pytest.mark.parametrize(("noise", "right"), [(5.0, True), (1.0, False)])
def test_tensors_count_in_units_of_their_own_noise(noise, right):
    """A count beside the sum: 1/σ² = 1/σ₁² + 1/σ₂² for noise σ₁ of the sum and σ₂ of what one row moves the count."""
    own = 2.0 * noise  # a row moves the count by a half
    first = (s.SIGMA**-2 - own**-2) ** -0.5 if right else s.SIGMA

    def step(state, batch, key):
        weight, norm = state
        a, b = random.split(key)
        count = ((s.norms(batch) <= 1.0) - 0.5).sum() + noise * random.normal(b)
        return s.moved(weight, s.clipped(batch) + first * random.normal(a, weight.shape)), norm - 0.5 * count / 8

    for seed in (0, 1) if right else (0,):
        report = s.probed(step, state=(jnp.zeros(5), jnp.array(1.0)), batch=BATCH, seed=seed)
        (s.consistent if right else s.refuted)(report, *([] if right else ["sensitivity too large", "noise too small"]))


# ---- keys ---------------------------------------------------------------------------------------------------------


def test_two_draws_of_one_key_are_one_noise_where_they_are_added_up():
    def halves(weight, batch, key):
        return s.moved(weight, s.clipped(batch) + 0.5 * s.noise(weight, key) + 0.5 * s.noise(weight, key))

    def beside(weight, batch, key):
        noise = [random.normal(key, (5,)), random.normal(key, (5,))]
        return s.moved(weight, s.clipped(batch) + s.SIGMA * jnp.concatenate(noise))

    s.consistent(s.probed(halves, state=jnp.zeros(5), batch=BATCH))
    batch = 2.0 * random.normal(random.key(4), (6, 10))
    s.refuted(s.probed(beside, state=jnp.zeros(10), batch=batch), "shared noise")


# ---- input --------------------------------------------------------------------------------------------------------


def returns(weight, batch, key):
    return s.right(weight, batch, key), (batch**2).sum()


@pytest.mark.parametrize("kept", ["returned[1]", ("returned[1]",), "returned*", "returned[?]", "returned[[]1]"])
def test_names_are_kept_as_the_report_prints_them(kept):
    s.refuted(s.probed(returns), "exact value returned")
    s.consistent(s.probed(returns, kept=kept))


def test_names_that_are_none_and_all_names_are_refused():
    with pytest.raises(InvalidInputError, match=r"kept = 'loss' is not allowed: .*: release, returned\[1\]"):
        s.probed(returns, kept="loss")
    with pytest.raises(InvalidInputError, match="not all: nothing is released"):
        s.probed(returns, kept="*")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": lambda: 1}, "keys = .* expected a function of the step's number that gives a key"),
        ({"keys": [1, 2]}, r"keys\[0\] = 1 is not allowed: expected one key"),
        ({"keys": lambda step: step}, r"keys\(0\) = 0 is not allowed: expected one key"),
        ({"keys": 3}, "keys = 3 is not allowed: expected a function"),
        ({"batch": "abc"}, "batch = 'abc' is not allowed: expected an array of numbers"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(InvalidInputError, match=message):
        s.probed(s.right, **options)


def test_a_step_that_gives_nothing_is_refused():
    with pytest.raises(InvalidInputError, match="step gives nothing: expected the next state"):
        s.probed(lambda weight, batch, key: None)


def test_a_score_that_is_no_number_is_named_before_any_training():
    worlds = coalmine.neighbours(np.zeros((4, 3), "f4"), np.ones(3, "f4"))
    claim = coalmine.DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1)
    with pytest.raises(InvalidInputError, match=r"^score gave an array of shape \(3,\): expected one number"):
        audit(
            lambda rows, key: s.right(jnp.zeros(3), rows, key), lambda model: model, worlds=worlds, claim_dpsgd=claim,
            trials=16,
        )  # fmt: skip
