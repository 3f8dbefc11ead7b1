"""Batches of other sizes: few rows, padded batches, steps that are compiled for one number of rows."""

from __future__ import annotations

import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402
import small_steps as s  # noqa: E402
from jax import random  # noqa: E402

from coalmine.errors import InvalidInputError  # noqa: E402
from coalmine.integrations.jax.reading import largest_ratio  # noqa: E402

BATCH = 3.0 * random.normal(random.key(4), (8, 5))
PADDED = {"batch": (BATCH, jnp.ones(8)), "empty": (BATCH, jnp.zeros(8)), "state": jnp.zeros(5)}


def few(weight, batch, key, *, at=0, clip=1.0, noise=1.0, divisor=s.SIZE, padded=False, rows=None):
    """In batches of up to so many rows, something else is done with the sum, the noise or the divisor."""
    x, mask = batch if padded else (batch, jnp.ones(batch.shape[0]))
    assert rows in (None, x.shape[0]), "compiled for another number of rows"
    here = mask.sum() <= at
    factors = 1.0 / jnp.maximum(s.norms(x), 1.0)
    total = (mask[:, None] * x * jnp.where(here & (clip != 1.0), clip, factors)).sum(axis=0)
    noised = total + jnp.where(here, noise, 1.0) * s.noise(weight, key)
    by = jnp.maximum(mask.sum(), 1.0) if divisor is None else divisor
    return weight - s.RATE * noised / jnp.where(here, by, s.SIZE)


SMALL = {
    "no clipping of one or two rows": ({"at": 2, "clip": 1.01}, "sensitivity too large"),
    "no clipping of a row alone": ({"at": 1, "clip": 1.01}, "sensitivity too large"),
    "less noise for one or two rows": ({"at": 2, "noise": 0.3}, "noise depends on the data"),
    "no noise without rows": ({"at": 0, "noise": 0.0}, "empty batch"),
    "the number of rows as divisor, below six": ({"at": 5, "divisor": None}, "divisor depends on the data"),
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_what_a_step_does_with_few_rows_alone_is_found(name, padded):
    options, fault = SMALL[name]
    given = PADDED if padded else {"batch": BATCH, "state": jnp.zeros(5)}
    s.refuted(s.probed(functools.partial(few, padded=padded, **options), **given), fault)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_right_steps_are_right_in_batches_of_every_size(padded, seed):
    given = PADDED if padded else {"batch": BATCH, "state": jnp.zeros(5)}
    report = s.probed(functools.partial(few, padded=padded), seed=seed, **given)
    s.consistent(report)
    assert f"In batches of 1 to {7 if padded else 4} rows, a row adds the same" in report.in_words()


def test_noise_of_one_number_whose_key_follows_from_the_number_of_rows_is_right():
    def step(weight, batch, key):
        return s.right(weight, batch[:, :1], random.fold_in(key, batch.shape[0]))

    for seed in (0, 1, 2):
        s.consistent(s.probed(step, state=jnp.zeros(1), batch=BATCH, seed=seed))


def test_a_step_that_does_not_run_with_few_rows_asks_for_padding():
    def step(weight, batch, key):
        assert batch.shape[0] != 2
        return s.right(weight, batch, key)

    report = s.probed(step, state=jnp.zeros(5), batch=BATCH)
    assert str(report.verdict) == "inconclusive", report.in_words()
    assert "the step does not run with a batch of 2 rows" in report.in_words()


# ---- one number of rows -------------------------------------------------------------------------------------------


def one_sided(weight, batch, key, *, clip, padded, rows=8):
    """Gradients that are never negative: of two clipped rows, one in the place of the other moves at most √2·C."""
    x, mask = batch if padded else (batch, jnp.ones(batch.shape[0]))
    assert x.shape[0] == rows, "compiled for another number of rows"
    total = (mask[:, None] * x**2 * jnp.minimum(1.0, clip / s.norms(x**2))).sum(axis=0)
    return s.moved(weight, total + s.noise(weight, key))


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("clip", [1.0, 1.2, 1.4])
def test_rows_are_added_in_the_place_of_padding(clip, relative):
    given = PADDED | ({"divisor": None, "learning_rate": None} if relative else {})
    report = s.probed(functools.partial(one_sided, clip=clip, padded=True), **given)
    if clip == 1.0:
        s.consistent(report)
    elif not relative or clip > 1.3:  # the size of the noise is measured there, not known
        s.refuted(report, "sensitivity too large", "noise too small")


@pytest.mark.parametrize("clip", [1.0, 1.4])
@pytest.mark.parametrize("rows", [8, 16])
def test_rows_that_are_only_replaced_leave_adding_one_open(clip, rows):
    batch = jnp.concatenate([BATCH] * (rows // 8))
    step = functools.partial(one_sided, clip=clip, padded=False, rows=rows)
    report = s.probed(step, state=jnp.zeros(5), batch=batch)
    assert str(report.verdict) == "inconclusive", report.in_words()
    assert "hand over `empty`, as many rows as in `batch`, all padding" in report.in_words()
    assert "really has a noise multiplier" not in report.in_words()


@pytest.mark.parametrize("relative", [False, True])
def test_rows_that_are_replaced_and_count_as_such_are_consistent(relative):
    given = {"divisor": None, "learning_rate": None} if relative else {}

    def step(weight, batch, key):
        assert batch.shape[0] == 8
        return s.right(weight, batch, key)

    report = s.probed(step, state=jnp.zeros(5), batch=BATCH, relation="replace", sampling="full", **given)
    s.consistent(report)


@pytest.mark.parametrize("rows", [None, 8])
@pytest.mark.parametrize("marks", [[1.0] * 8, [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]])
def test_the_number_of_rows_of_a_padded_batch_is_a_constant(rows, marks):
    def step(weight, batch, key):
        assert rows in (None, batch[0].shape[0])
        total = (batch[1][:, None] * batch[0] / jnp.maximum(s.norms(batch[0]), 1.0)).sum(axis=0)
        return weight - s.RATE * (total + s.noise(weight, key)) / batch[0].shape[0]

    s.consistent(s.probed(step, **{**PADDED, "batch": (BATCH, jnp.asarray(marks))}))


def test_padding_of_another_size_says_nothing_of_a_constant():
    def step(weight, batch, key):
        total = (batch[1][:, None] * batch[0] / jnp.maximum(s.norms(batch[0]), 1.0)).sum(axis=0)
        return weight - s.RATE * (total + s.noise(weight, key)) / batch[0].shape[0]

    report = s.probed(step, **{**PADDED, "empty": (BATCH[:1], jnp.zeros(1))})
    s.refuted(report, "divisor depends on the data")


def test_padding_that_counts_as_rows_is_named():
    report = s.probed(s.right, batch=jnp.eye(3), empty=5.0 * jnp.eye(3))
    s.refuted(report, "sensitivity too large")
    assert "a row of `empty` itself moves it by 1, so `empty` is not all padding" in report.in_words()
    s.consistent(s.probed(s.right, batch=jnp.eye(3), empty=jnp.zeros((3, 3))))


@pytest.mark.parametrize(
    ("empty", "message"),
    [
        (jnp.zeros(2), r"empty has shape \(2,\): expected \(any number of rows, 3\), as batch has, all padding"),
        (jnp.zeros((3, 4)), r"empty has shape \(3, 4\): expected \(any number of rows, 3\)"),
        ((jnp.zeros((3, 3)),), "empty has the structure .* expected that of batch"),
    ],
)
def test_padding_of_another_shape_is_refused(empty, message):
    with pytest.raises(InvalidInputError, match=message):
        s.probed(s.right, empty=empty)


@pytest.mark.parametrize("numbers", [10, 30, 300])
def test_sizes_of_other_draws_are_apart_as_rarely_as_is_said(numbers):
    """Both ways, by simulation, within five standard errors; six standard deviations are 0.001 at ten numbers."""
    rng, chance = np.random.default_rng(numbers), 0.01
    one, other = (np.linalg.norm(rng.normal(size=(40_000, numbers)), axis=1) for _ in range(2))
    most = largest_ratio(numbers, chance=chance)
    for share in (np.mean(one / other > most), np.mean(one / other < 1.0 / most)):
        assert abs(share - chance) < 5.0 * np.sqrt(chance / 40_000)
