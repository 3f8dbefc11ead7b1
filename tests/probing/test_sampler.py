"""The sampler check: right samplers pass at the stated level, wrong ones are named, the data stays untouched."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import wrap_data_loader
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from scipy import stats
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.probing.batches import Draws
from coalmine.probing.sampler import probe_draws, probe_sampler
from coalmine.records import Outcome

ROWS = 1000


class Stream:
    """Batches by a function of the step, ``steps`` an epoch."""

    def __init__(self, draw, steps=50):
        self.draw, self.steps = draw, steps

    def __iter__(self):
        return (self.draw(s) for s in range(self.steps))


class Untouchable(Dataset):
    """Rows that nobody may load."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        raise AssertionError("a row was loaded")


def bernoulli(rates, seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    return Stream(lambda _: np.flatnonzero(rng.random(rows) < rates))


def fixed_size(size):
    rng = np.random.default_rng(2)
    return Stream(lambda _: rng.choice(ROWS, size, replace=False))


def blocks(width):
    rng = np.random.default_rng(0)
    return Stream(
        lambda _: (np.flatnonzero(rng.random(ROWS // width) < 0.02)[:, None] * width + np.arange(width)).ravel()
    )


def loader(**options):
    return DataLoader(Untouchable(), **options)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def half_and_half(first, second):
    return np.where(np.arange(ROWS) < ROWS // 2, first, second)


def one_row(rate):
    rates = np.full(ROWS, 0.02)
    rates[7] = rate
    return rates


def faults(report):
    return [one.fault for one in report.findings]


def test_a_right_poisson_sampler_is_consistent():
    report = probe_sampler(UniformWithReplacementSampler(num_samples=ROWS, sample_rate=0.02, generator=seeded(4)))
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    assert report.level == 0.01


def test_false_alarms_stay_under_the_level():
    # Level 0.05: of 300 right samplers 38 or more are refuted with a chance under 1e-6 (exact binomial).
    limit = int(stats.binom.isf(1e-6, 300, 0.05))
    rng = np.random.default_rng(11)
    wrong = 0
    for _ in range(300):
        epochs = tuple(tuple(np.flatnonzero(rng.random(60) < 0.1) for _ in range(10)) for _ in range(4))
        wrong += bool(probe_draws(Draws(rows=60, ranks=(epochs,)), sample_rate=0.1, level=0.05).findings)
    assert wrong <= limit


CASES = {
    "shuffle": (lambda: loader(batch_size=20, shuffle=True), "shuffled batches accounted as Poisson"),
    "shuffle with a smaller last batch": (
        lambda: loader(batch_size=21, shuffle=True),
        "shuffled batches accounted as Poisson",
    ),
    "in order": (lambda: loader(batch_size=20), "batches in a fixed order accounted as Poisson"),
    "weights, with replacement": (
        lambda: loader(batch_size=20, sampler=WeightedRandomSampler(half_and_half(2.0, 1.0).tolist(), ROWS)),
        "weighted sampler",
    ),
    "weights, Poisson": (lambda: bernoulli(half_and_half(0.08 / 3, 0.04 / 3)), "weighted sampler"),
    "with replacement": (
        lambda: loader(batch_size=20, sampler=RandomSampler(range(ROWS), replacement=True)),
        "rows drawn with replacement",
    ),
    "another rate": (lambda: bernoulli(0.022), "wrong sample rate"),
    "fixed size": (lambda: fixed_size(20), "fixed-size batches accounted as Poisson"),
    "one row left out": (lambda: bernoulli(one_row(0.0)), "a row of its own rate"),
    "one row ten times": (lambda: bernoulli(one_row(0.2)), "a row of its own rate"),
    "blocks of four": (lambda: blocks(4), "rows drawn in blocks"),
    "seeded anew in each epoch": (
        lambda: Stream(lambda s: np.flatnonzero(np.random.default_rng(s).random(ROWS) < 0.02)),
        "batches repeat",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_way_of_drawing_is_named(name):
    # Seeds are fixed; with these numbers of draws each is missed or misnamed far less often than once in a million.
    torch.manual_seed(1)
    make, fault = CASES[name]
    rate = 1 / 48 if "smaller" in name else 0.02
    report = probe_sampler(make(), sample_rate=rate, rows=ROWS)
    assert faults(report) == [fault], report.in_words()
    assert report.verdict.outcome is Outcome.REFUTED


def test_left_out_empty_batches_are_named():
    rng = np.random.default_rng(3)

    def never_empty(_):
        while True:
            batch = np.flatnonzero(rng.random(ROWS) < 0.002)
            if batch.size:
                return batch

    report = probe_sampler(Stream(never_empty, 500), rows=ROWS, sample_rate=0.002, epochs=4)
    assert faults(report) == ["empty batches are left out"]


def opacus_ranks(rows, rate, seeds):
    made = []
    for rank, seed in enumerate(seeds):
        with (
            mock.patch("torch.distributed.get_world_size", return_value=len(seeds)),
            mock.patch("torch.distributed.get_rank", return_value=rank),
        ):
            made.append(
                DistributedUniformWithReplacementSampler(total_size=rows, sample_rate=rate, generator=seeded(seed))
            )
    return made


def test_ranks_together():
    assert not probe_sampler(opacus_ranks(ROWS, 0.02, (1, 2))).findings
    assert faults(probe_sampler(opacus_ranks(ROWS, 0.02, (1, 1)))) == ["ranks draw with equal seeds"]
    assert faults(probe_sampler(opacus_ranks(100, 0.02, (1, 2)))) == ["ranks differ in steps"]
    everything = [
        UniformWithReplacementSampler(num_samples=ROWS, sample_rate=0.01, generator=seeded(s)) for s in (1, 2, 1)
    ]
    report = probe_sampler(everything[:2], sample_rate=0.02)
    assert faults(report) == ["ranks overlap"]
    assert "on ranks 0 and 1" in report.findings[0].witness
    assert report.findings[0].level == 0.0
    assert faults(probe_sampler(everything[::2], sample_rate=0.02)) == ["ranks draw the same rows"]


def test_shuffling_that_was_promised_is_tested_as_such():
    torch.manual_seed(0)
    data = TensorDataset(torch.zeros(ROWS, 1))
    ranks = [DataLoader(data, batch_size=10, sampler=DistributedSampler(data, 2, r)) for r in range(2)]
    assert not probe_sampler(loader(batch_size=10, shuffle=True), promised="shuffle").findings
    assert not probe_sampler(loader(batch_size=30, shuffle=True, drop_last=True), promised="shuffle").findings
    assert not probe_sampler(ranks, promised="shuffle").findings
    assert faults(probe_sampler(loader(batch_size=10), promised="shuffle")) == ["rows are not shuffled"]
    again = RandomSampler(range(ROWS), replacement=True)
    assert faults(probe_sampler(loader(batch_size=10, sampler=again), promised="shuffle"))[0] == (
        "rows drawn with replacement"
    )

    class Forgetful(DistributedSampler):
        def set_epoch(self, epoch):
            pass

    stuck = DataLoader(data, batch_size=10, sampler=Forgetful(data, 1, 0))
    assert faults(probe_sampler(stuck, promised="shuffle")) == ["the same order in every epoch"]


def test_fixed_sizes_that_were_promised_are_tested_as_such():
    torch.manual_seed(0)
    assert not probe_sampler(fixed_size(20), promised="fixed", rows=ROWS, batch_size=20).findings
    shuffled = probe_sampler(loader(batch_size=20, shuffle=True), promised="fixed")
    assert faults(shuffled) == ["shuffled batches, not drawn anew"]


def test_virtual_steps_are_read_as_the_batches_they_come_from():
    optimizer = mock.Mock()
    inner = loader(batch_sampler=UniformWithReplacementSampler(num_samples=ROWS, sample_rate=0.05, generator=seeded(0)))
    split = wrap_data_loader(data_loader=inner, max_batch_size=8, optimizer=optimizer)
    assert not probe_sampler(split).findings
    optimizer.signal_skip_step.assert_not_called()


def test_generators_are_put_back():
    own = seeded(9)
    sampler = UniformWithReplacementSampler(num_samples=ROWS, sample_rate=0.02, generator=own)
    torch.manual_seed(5)
    before = torch.get_rng_state(), own.get_state()
    probe_sampler(sampler)
    probe_sampler(loader(batch_size=20, shuffle=True), sample_rate=0.02)
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], own.get_state())


def test_rows_of_names_the_rows_of_batches_of_data():
    class Numbers(IterableDataset):
        def __iter__(self):
            rng = np.random.default_rng(1)
            return (torch.from_numpy(np.flatnonzero(rng.random(ROWS) < 0.02)) * 2.0 for _ in range(50))

    report = probe_sampler(
        DataLoader(Numbers(), batch_size=None), rows=ROWS, sample_rate=0.02, rows_of=lambda batch: (batch / 2).long()
    )
    assert "batches repeat" in faults(report)  # the generator is seeded anew in each pass


def test_recorded_batches_are_read_once():
    batches = [batch.tolist() for _ in range(8) for batch in bernoulli(0.02, seed=7)]
    assert len(batches) == 400
    assert not probe_sampler(batches[:50], rows=ROWS, sample_rate=0.02).findings


def test_a_list_of_batches_is_read_whole():
    rng = np.random.default_rng(0)
    rates = np.where(np.arange(1000) < 10, 0.04, 0.02)  # ten rows of their own rate, which 800 steps do not show
    batches = [np.flatnonzero(rng.random(1000) < rates).tolist() for _ in range(1500)]
    report = probe_sampler(batches, rows=1000, sample_rate=0.02)
    assert "1,500 steps" in report.subject
    assert str(report.verdict) == "refuted"


def test_too_few_draws_are_inconclusive():
    report = probe_sampler(bernoulli(0.02), rows=ROWS, sample_rate=0.02, steps=1)
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert "read more steps" in report.verdict.reasons[0]


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (bernoulli(0.02), {}, "rows is missing"),
        (bernoulli(0.02), {"rows": ROWS}, "sample_rate is missing"),
        (bernoulli(0.02), {"rows": ROWS, "sample_rate": 1.0}, "sample_rate = 1.0"),
        (bernoulli(0.02), {"rows": 10, "sample_rate": 0.02}, "expected 0 to 9"),
        (bernoulli(0.02), {"rows": ROWS, "promised": "shuffle"}, "batch_size is missing"),
        (bernoulli(0.02), {"rows": ROWS, "promised": "sorted"}, "one of poisson, shuffle, fixed"),
        (RandomSampler(range(ROWS)), {"sample_rate": 0.02}, "give the batch sampler"),
        (Stream(lambda _: ["a"]), {"rows": ROWS, "sample_rate": 0.02}, "give rows_of"),
        (Stream(lambda _: []), {"rows": ROWS, "sample_rate": 0.02}, "without a row"),
        (3, {"rows": ROWS, "sample_rate": 0.02}, "batches of row numbers"),
        ([], {"rows": ROWS, "sample_rate": 0.02}, "empty list"),
    ],
)
def test_bad_input_is_refused_with_what_is_allowed(given, options, message):
    with pytest.raises((InvalidInputError, UnsupportedError), match=message):
        probe_sampler(given, **options)


def test_what_a_fault_explains_is_not_called_as_promised():
    report = probe_sampler(DataLoader(Untouchable(), batch_size=20, shuffle=True), sample_rate=0.02)
    (fault,) = {one.fault for one in report.findings}
    results = {one.name: one.result for one in report.measurements}
    assert results["batch sizes"] == f"not as promised: {fault}"
    assert results["sample rate"] == "as promised"
