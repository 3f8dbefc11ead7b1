"""Batches: their law, their independence, and that both worlds are what the relation says."""

import threading

import numpy as np
import pytest
from recorders import Everything
from scipy import stats

from coalmine.training import (
    Dataset,
    ExampleCanary,
    GradientCanary,
    LogisticRegression,
    Neighbours,
    TrainingConfig,
    ZeroGradients,
    train,
)
from coalmine.training.batching import width
from coalmine.training.sampling import DrawnAhead, batches, slots

RARE = 1e-7  # a right program fails a test with this probability


def base(rows):
    return Dataset(np.zeros((rows, 2)), np.zeros(rows, dtype=int))


def config(**options):
    return TrainingConfig(**{"steps": 200, "clip": 1, "noise_multiplier": 1, "learning_rate": 0.1, **options})


def draw(neighbours, settings, *, world=1, trial=0, steps=None, fingerprint="s"):
    found = batches(neighbours, world=world, config=settings, fingerprint=fingerprint, trial=trial)
    return [next(found) for _ in range(steps or settings.steps)]


def inclusion(rows, count):
    """``[steps, rows]`` of 0 and 1; no row twice in a batch."""
    table = np.zeros((len(rows), count))
    for step, batch in enumerate(rows):
        assert np.unique(batch).size == batch.size
        table[step, batch] = 1
    return table


@pytest.mark.parametrize("rate", [0.001, 0.04, 0.3, 0.5, 0.95])
def test_poisson_draws_every_row_on_its_own(rate):
    rows, steps = 60, 20_000
    neighbours = Neighbours(base(rows), canary=ExampleCanary(np.zeros((3, 2)), [0, 0, 0]))
    table = inclusion(draw(neighbours, config(sample_rate=rate, steps=steps)), rows + 3)
    # Totals a row: each Binomial(steps, rate); 63 of them, so RARE/63 each.
    totals = table.sum(0).astype(int)
    p = [stats.binomtest(int(t), steps, rate).pvalue for t in totals]
    assert min(p) > RARE / len(p)
    # Batch sizes are Binomial(63, rate): chi-square over the sizes that occur.
    sizes = table.sum(1).astype(int)
    expected = stats.binom.pmf(np.arange(64), 63, rate) * steps
    keep = expected > 10
    seen = np.bincount(sizes, minlength=64)
    assert stats.chisquare(
        np.append(seen[keep], seen[~keep].sum() + 1e-9), np.append(expected[keep], expected[~keep].sum() + 1e-9),
    ).pvalue > RARE  # fmt: skip
    # Rows, and successive steps, are uncorrelated: 63·62/2 pairs and 63 lags at 7 standard errors.
    z = (table - rate) / (rate * (1 - rate)) ** 0.5
    pairs = z.T @ z / steps
    if rate >= 0.04:
        assert np.abs(pairs - np.diag(np.diag(pairs))).max() < 7 / steps**0.5
        assert abs((z[1:] * z[:-1]).mean()) < 7 / z.size**0.5


def test_trials_do_not_share_batches():
    neighbours = Neighbours(base(500))
    settings = config(sample_rate=0.2)
    tables = [inclusion(draw(neighbours, settings, world=0, trial=t), 500) - 0.2 for t in range(6)]
    flat = np.stack([t.ravel() for t in tables])
    correlation = np.corrcoef(flat) - np.eye(6)
    assert np.abs(correlation).max() < 7 / flat.shape[1] ** 0.5
    again = inclusion(draw(neighbours, settings, world=0, trial=3), 500) - 0.2
    assert (again == tables[3]).all()


def test_empty_batches_at_a_tiny_rate_are_steps_of_noise_alone():
    rng = np.random.default_rng(0)
    data = Dataset(rng.normal(size=(20, 2)), rng.integers(0, 2, size=20))
    seen = Everything()
    settings = config(sample_rate=1e-4, steps=50, noise_multiplier=0.0)
    result = train(
        LogisticRegression(2), neighbours=Neighbours(data), config=settings, fingerprint="e", trials=[0, 1],
        worlds=[0, 0], observer=seen,
    )  # fmt: skip
    assert result.succeeded.all()
    for trial in (0, 1):
        sizes = [b.size for b in draw(Neighbours(data), settings, world=0, trial=trial, fingerprint="e")]
        assert sizes.count(0) > 40
        for size, gradient in zip(sizes, seen.gradients[trial], strict=True):
            assert np.any(gradient) == (size > 0)


def test_rates_of_zero_and_one():
    neighbours = Neighbours(base(7), canary=ExampleCanary([0.0, 0.0], 0))
    assert all(b.size == 0 for b in draw(neighbours, config(sample_rate=0.0)))
    assert all(b.tolist() == list(range(8)) for b in draw(neighbours, config(sample_rate=1.0)))


@pytest.mark.parametrize(("rows", "size"), [(24, 6), (25, 6), (5, 5), (7, 1)])
def test_shuffle_uses_every_row_once_an_epoch(rows, size):
    neighbours = Neighbours(base(rows), canary=ExampleCanary(np.zeros((2, 2)), [0, 0]))
    per_epoch = -(-rows // size)
    orders = []
    for world in (0, 1):
        found = draw(neighbours, config(batch_size=size, sampling="shuffle"), world=world, steps=4 * per_epoch)
        for epoch in range(4):
            parts = found[epoch * per_epoch : (epoch + 1) * per_epoch]
            assert sorted(np.concatenate(parts).tolist()) == list(range(rows + 2 * world))
            assert max(p.size for p in parts) - min(p.size for p in parts) <= 1
            orders.append(np.concatenate(parts).tolist())
    assert len({tuple(order) for order in orders}) == len(orders)


def test_worlds_differ_in_the_canary_alone():
    data = base(5)
    canary = ExampleCanary(np.zeros((2, 2)), [0, 0])
    added = Neighbours(data, canary=canary)
    swapped = Neighbours(data, canary=canary, relation="replace", replaced=[3, 1])
    assert slots(added, world=0).tolist() == slots(swapped, world=0).tolist() == [0, 1, 2, 3, 4]
    assert slots(added, world=1).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert slots(swapped, world=1).tolist() == [0, 6, 2, 5, 4]


def test_the_divisor_is_the_expected_batch_of_the_base_data():
    # Full batch of equal rows: the private gradient is rows/divisor times the row's own, whatever k is.
    data = Dataset(np.ones((8, 2)), np.zeros(8, dtype=int))
    for copies, world, factor in ((1, 0, 8), (1, 1, 9), (5, 0, 8), (5, 1, 13)):
        seen = Everything()
        train(
            LogisticRegression(2), neighbours=Neighbours(data, canary=ExampleCanary([1.0, 1.0], 0, copies=copies)),
            config=TrainingConfig(steps=1, clip=100, noise_multiplier=0, learning_rate=0, sampling="full",
                                  initialization=_zero(), dtype="float64"),
            fingerprint="d", trials=[0], worlds=[world], observer=seen,
        )  # fmt: skip
        # Zero weights: softmax − one-hot = (−1/2, 1/2).
        row = np.array([-0.5, -0.5, 0.5, 0.5, -0.5, 0.5])
        np.testing.assert_allclose(seen.gradients[0][0], row * factor / 8, atol=1e-15)
    assert config(sample_rate=0.25).expected_batch(1000) == 250
    assert config(batch_size=250).expected_batch(6000) == 250
    assert config(batch_size=7, sampling="shuffle").expected_batch(20) == 7
    assert config(sampling="full").expected_batch(20) == 20


def _zero():
    from coalmine.training import GivenWeights

    return GivenWeights(np.zeros(6))


def test_idle_base_rows_are_not_drawn_but_the_canary_is():
    neighbours = Neighbours(ZeroGradients(rows=10**6), canary=GradientCanary([1.0], copies=2))
    found = draw(neighbours, config(sample_rate=0.25, steps=40_000))
    assert all((b >= 10**6).all() for b in found)
    total = sum(b.size for b in found)
    assert stats.binomtest(total, 80_000, 0.25).pvalue > RARE
    assert all(b.size == 0 for b in draw(neighbours, config(sample_rate=0.25), world=0))
    dealt = draw(neighbours, config(batch_size=10**5, sampling="shuffle"), steps=20)
    assert sum(b.size for b in dealt[:10]) == sum(b.size for b in dealt[10:]) == 2


def test_width_is_rarely_exceeded_and_a_whole_number_of_vectors():
    for rows, rate in ((6000, 250 / 6000), (100, 0.5), (60_000, 256 / 60_000), (10, 0.01)):
        w = width(config(sample_rate=rate), rows=rows, example_floats=100)
        assert w % 32 == 0
        assert stats.binom.sf(w, rows, rate) < 1e-6


def test_rows_drawn_ahead_are_those_drawn_one_by_one():
    base = Neighbours(Dataset(np.zeros((300, 1)), np.zeros(300, dtype=int)))
    config = TrainingConfig(steps=150, batch_size=120, clip=1.0, noise_multiplier=1.0, learning_rate=0.1)

    def draws():
        return [batches(base, world=0, config=config, fingerprint="ahead", trial=t) for t in range(7)]

    plain = draws()
    with DrawnAhead(draws(), steps=config.steps) as ahead:
        for _ in range(config.steps):
            for mine, other in zip(ahead.step(), plain, strict=True):
                assert np.array_equal(mine, next(other))


def test_an_error_of_a_draw_comes_to_who_asks_and_leaves_no_thread():
    def broken():
        yield np.zeros(1)
        raise RuntimeError("no more rows")

    before = threading.active_count()
    with DrawnAhead([broken()], steps=3) as ahead:
        ahead.step()
        with pytest.raises(RuntimeError, match="no more rows"):
            ahead.step()
    assert threading.active_count() == before
