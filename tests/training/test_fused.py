"""What is special about the fused GPU kernels: rounded products, batches of their own, room for a batch.

What every engine must do is in test_engines.py.
"""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import reference
import torch
from engines import CUDA, ENGINES, INTERPRETED, fused_stack, worlds_with
from recorders import Final
from scipy import stats

from coalmine.training import (
    Dataset,
    ExampleCanary,
    Glorot,
    LogisticRegression,
    Mlp,
    NasrCnn,
    Neighbours,
    TrainingConfig,
    at_once,
    backends,
    train,
)
from coalmine.training.device_draws import room_for_a_batch
from coalmine.training.fused import MAX_CLIP, FusedRows, FusedStack, Part, refusal, whole_unit
from coalmine.training.job import Job, Share
from coalmine.training.trainer import _Products, precision_name

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = torch.device("cuda")


def _data(rows: int = 90, features: int = 21, classes: int = 3) -> Dataset:
    rng = np.random.default_rng(1)
    return Dataset(rng.normal(size=(rows, features)).astype(np.float32), rng.integers(0, classes, size=rows))


def _job(network, config, neighbours, device="cpu"):
    return Job(network, neighbours, config, "a run", torch.device(device))


def _fused(network, config, neighbours, *, trials, worlds):
    start = _start(network, config, trials=trials).to(DEVICE)
    return fused_stack(_job(network, config, neighbours), trials, worlds, start)


def _start(network, config, *, trials):
    """Where trainings start on a CPU."""
    return _job(network, config, Neighbours(_data())).initial(trials)


NETWORKS = [
    LogisticRegression(21, classes=3),
    Mlp(21, hidden=(7,), classes=3),
    Mlp(21, hidden=(32,), classes=3, activation="tanh"),
    Mlp(21, hidden=(16,), classes=3, activation="sigmoid"),
]


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_rows_and_weights_begin_on_cache_lines_and_parameters_come_back_as_given(network):
    """Where numbers lie in the kernels' memory is theirs alone; nothing of a model is lost on the way in and out."""
    config = TrainingConfig(steps=1, batch_size=9, clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    trials = [0, 1, 2]
    start = _start(network, config, trials=trials)
    stack = fused_stack(_job(network, config, Neighbours(_data())), trials, [0, 1, 0], start)
    np.testing.assert_array_equal(stack.parameters().numpy(), start.numpy())
    held, units = stack._parameters, (network.hidden or (network.classes,))[0]
    weights, rest = stack._places(held, stack._wide)
    assert weights.shape == (3, units, 21)
    assert rest.shape == (3, start.shape[1] - 21 * units)
    strides = [4 * held.stride(0), 4 * weights.stride(1), 2 * stack._rows.stride, 2 * stack._w.stride(2)]
    assert [stride % 128 for stride in strides] == [0, 0, 0, 0]


@needs_gpu
@pytest.mark.parametrize(("products", "most"), [("tf32", 5e-3), ("bf16", 4e-2)])
def test_coarser_products_are_close_too_and_only_on_request(products, most):
    base, network = _data(), Mlp(21, hidden=(32,), classes=3)
    runs = []
    for one in ("float32", products):
        config = TrainingConfig(
            steps=3, clip=1.0, noise_multiplier=0.0, learning_rate=1.0, sampling="full", products=one
        )
        runs.append(_fused(network, config, Neighbours(base), trials=[0], worlds=[0]).run())
    difference = (runs[1] - runs[0]).abs().max().item()
    assert 0.0 < difference < most


@needs_gpu
@pytest.mark.parametrize("products", ["tf32", "bf16"])
@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: f"{type(n).__name__}-{getattr(n, 'activation', '')}")
def test_a_clipped_gradient_never_exceeds_the_clip_whatever_the_products(network, products):
    """One row, clipped hard: what it adds to the sum is at most C long, though its factors were rounded up."""
    rng = np.random.default_rng(2)
    lengths = []
    for seed in range(8):
        base = Dataset(rng.normal(size=(1, 21)).astype(np.float32) * 30, [0])
        config = TrainingConfig(
            steps=1, clip=0.5, noise_multiplier=0.0, learning_rate=1.0, sampling="full", products=products
        )
        start = _start(network, config, trials=[seed])
        moved = _fused(network, config, Neighbours(base), trials=[seed], worlds=[0]).run().double().cpu() - start
        lengths.append(float(moved.norm()))
    assert 0.49 < max(lengths) <= 0.5 * (1 + 1e-5)


@pytest.mark.skipif(not (CUDA or INTERPRETED), reason="needs a CUDA device")
@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("network", NETWORKS[:2], ids=str)
def test_rows_of_pictures_and_a_canary_that_is_none(network, relation):
    """Bytes divided by 255 need one half a number, the canary's rows two; the update is the same to 1e-6."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, size=(90, 21)).astype(np.float32) / np.float32(255)
    neighbours = worlds_with(network, "example", relation, base=Dataset(x, rng.integers(0, 3, size=90)))
    config = TrainingConfig(steps=2, sample_rate=0.8, clip=0.7, noise_multiplier=0.0, learning_rate=0.3)
    engine = ENGINES["fused cuda"]
    assert engine.stack(network, neighbours, config, [0], [0])._rows.whole
    seen = 0
    for steps in engine.trace(network, neighbours, config, [3, 5], [1, 1]).values():
        for step in steps:
            expected = reference.private_gradient(network, torch.from_numpy(step.before), neighbours, step.rows, config)
            np.testing.assert_allclose(step.gradient, expected, rtol=0, atol=1e-6)
            seen += int((step.rows >= 90).sum())
    assert seen > 1


REFERENCE_JOB = Mlp(784, hidden=(32,), classes=2)
FAR = 1e5
"""A learning rate after which the start is nothing beside the update, so that their difference keeps all its digits."""


@pytest.mark.skipif(not (CUDA or INTERPRETED), reason="needs a CUDA device")
@pytest.mark.parametrize("pictures", [False, True], ids=["any rows", "pictures"])
def test_the_update_of_the_reference_job_is_that_of_the_reference_to_1e_6(pictures):
    """784-32-2, batches of 250: the whole update against per-example autograd in float64, relative to its length."""
    rng = np.random.default_rng(6)
    x = rng.integers(0, 256, size=(500, 784)).astype(np.float32) / np.float32(255)
    base = Dataset(x if pictures else rng.normal(size=(500, 784)).astype(np.float32), rng.integers(0, 2, size=500))
    neighbours = worlds_with(REFERENCE_JOB, "example", "add_remove", base=base)
    config = TrainingConfig(steps=1, sample_rate=0.5, clip=1.0, noise_multiplier=0.0, learning_rate=FAR)
    found = ENGINES["fused cuda"].trace(REFERENCE_JOB, neighbours, config, [3, 4, 5], [0, 1, 1])
    for (step,) in found.values():
        before = torch.from_numpy(step.before).double()
        expected = reference.private_gradient(REFERENCE_JOB, before, neighbours, step.rows, config)
        assert step.rows.size > 200
        assert np.linalg.norm(step.gradient - expected) < 1e-6 * np.linalg.norm(expected)


@pytest.mark.skipif(not (CUDA or INTERPRETED), reason="needs a CUDA device")
@pytest.mark.parametrize("network", [NETWORKS[0], NETWORKS[1]], ids=str)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_largest_clipping_norm_keeps_its_digits(network, size):
    """Errors in units of 16 bits must neither overflow at C = 64 nor lose rows whose gradients are small."""
    rng = np.random.default_rng(7)
    x = (size * rng.normal(size=(90, 21))).astype(np.float32)
    neighbours = Neighbours(Dataset(x, rng.integers(0, 3, size=90)))
    config = TrainingConfig(steps=1, clip=MAX_CLIP, noise_multiplier=0.0, learning_rate=FAR, sampling="full")
    ((step,),) = ENGINES["fused cuda"].trace(network, neighbours, config, [2], [0]).values()
    before = torch.from_numpy(step.before).double()
    expected = reference.private_gradient(network, before, neighbours, step.rows, config)
    assert np.linalg.norm(step.gradient - expected) < 2e-6 * np.linalg.norm(expected)


@needs_gpu
@pytest.mark.parametrize("products", ["float32", "tf32", "bf16"])
def test_at_the_largest_clipping_norm_a_row_adds_at_most_that(products):
    """One row whose gradient is far longer than C = 64."""
    base = Dataset(np.full((1, 21), 1e4, dtype=np.float32), [0])
    config = TrainingConfig(
        steps=1, clip=MAX_CLIP, noise_multiplier=0.0, learning_rate=FAR, sampling="full", products=products
    )
    lengths = []
    for seed in range(8):
        start = _start(NETWORKS[0], config, trials=[seed])
        moved = _fused(NETWORKS[0], config, Neighbours(base), trials=[seed], worlds=[0]).run().double().cpu() - start
        lengths.append(float(moved.norm()) / FAR)
    assert 0.9 * MAX_CLIP < max(lengths) <= MAX_CLIP * (1 + 1e-5)


@pytest.mark.parametrize("levels", [1, 16, 255])
def test_small_multiples_of_one_number_are_known(levels):
    rng = np.random.default_rng(4)
    times = rng.integers(-levels, levels + 1, size=1000)
    x = torch.from_numpy(times.astype(np.float32) / np.float32(levels))
    unit = whole_unit(x)
    assert unit == pytest.approx(1 / levels, rel=1e-12)
    assert (x.double() / unit).round().tolist() == times.tolist()


@pytest.mark.parametrize("x", [[0.0, 0.0], [1.0, 1e-4], [0.3, 0.5], [0.25, 0.5001]])
def test_other_numbers_are_not(x):
    assert whole_unit(torch.tensor(x)) is None


@needs_gpu
def test_batches_are_poisson_samples():
    base = _data(rows=400)
    canary = ExampleCanary(np.ones(21, dtype=np.float32), 0, copies=3)
    config = TrainingConfig(steps=1, sample_rate=0.1, clip=1.0, noise_multiplier=1.0, learning_rate=0.0)
    stack = _fused(LogisticRegression(21, classes=3), config, Neighbours(base, canary=canary), trials=list(range(4096)),
                   worlds=[t % 2 for t in range(4096)])  # fmt: skip
    drawn = np.zeros((2, 403))
    sizes: list[list[int]] = [[], []]
    for step in range(1, 6):
        stack._step(step)
        counts, index = stack._draws.count.cpu().numpy(), stack._draws.index.cpu().numpy()
        for world in (0, 1):
            sizes[world] += counts[world::2].tolist()
            for m in range(world, 4096, 2):
                rows = index[m, : counts[m]]
                assert np.unique(rows).size == rows.size
                drawn[world][rows] += 1
    n = 2048 * 5
    assert drawn[0, 400:].sum() == 0
    for world, rows in ((0, 400), (1, 403)):
        z = (drawn[world, :rows] - n * 0.1) / np.sqrt(n * 0.1 * 0.9)
        assert np.abs(z).max() < 7.0
        mean, spread = np.mean(sizes[world]), np.var(sizes[world])
        assert abs(mean - rows * 0.1) < 7.0 * np.sqrt(rows * 0.09 / n)
        assert abs(spread / (rows * 0.09) - 1.0) < 7.0 * np.sqrt(2.0 / n)


def test_room_for_a_batch_is_enough_but_not_wasteful():
    for rows, rate in [(6000, 250 / 6000), (1000, 0.5), (100, 1.0), (50, 0.001), (100_000, 0.001)]:
        config = TrainingConfig(steps=1, sample_rate=rate, clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
        neighbours = Neighbours(Dataset(np.zeros((rows, 1)), np.zeros(rows, dtype=np.int64)))
        room = room_for_a_batch(_job(LogisticRegression(1), config, neighbours))
        assert stats.binom.logsf(room, rows, rate) < np.log(1e-18)
        assert room == 64 or stats.binom.logsf(room // 4, rows, rate) > np.log(1e-18)


@pytest.mark.parametrize(
    ("by", "products", "expected"),
    [("fused", "float32", "float32 fused"), ("stages", "tf32", "tf32 stages"), ("", "float32", "float32")],
)
def test_trials_of_other_kernels_go_by_another_name(by, products, expected, monkeypatch):
    """The streams of a GPU changed once: a store must not take such trials for the same ones, nor for a contradiction.

    Before they had names, trials of the fused kernels and of torch's operations were both ``float32``.
    """
    config = TrainingConfig(
        steps=1, clip=1.0, noise_multiplier=1.0, learning_rate=0.1, sampling="full", products=products
    )
    job = _job(NETWORKS[0], config, Neighbours(_data()), device="cuda")
    name = precision_name(job, by=by)
    assert name == f"{expected} v{backends.GPU_VERSION}"
    assert name not in ("float32", "tf32", "float32 stages", "tf32 stages")
    monkeypatch.setattr(backends, "GPU_VERSION", backends.GPU_VERSION + 1)
    assert precision_name(job, by=by) != name


def test_threads_that_train_at_once_share_the_setting_of_products():
    """The first to end must not take TF32 from the other, and one who wants none waits until both have ended."""
    made = {
        products: TrainingConfig(
            steps=1, clip=1.0, noise_multiplier=1.0, learning_rate=0.1, sampling="full", products=products
        )
        for products in ("tf32", "float32")
    }
    before, setting = torch.get_float32_matmul_precision(), _Products()
    told: list[str] = []

    def exact() -> None:
        with setting(made["float32"], DEVICE):
            told.append(torch.get_float32_matmul_precision())

    third = threading.Thread(target=exact)
    with setting(made["tf32"], DEVICE):
        with setting(made["tf32"], DEVICE):
            third.start()
        third.join(timeout=0.2)
        assert torch.get_float32_matmul_precision() == "high"
        assert told == []
    third.join(timeout=10)
    assert told == ["highest"]
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(("gigabytes", "large", "small"), [(16, 1, 1), (80, 2, 8)])
def test_several_trainings_at_once_need_room(gigabytes, large, small, monkeypatch):
    """Two that cannot share a launch, more that can."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gigabytes * 10**9))
    for network, expected in ((NasrCnn(), large), (Mlp(21, hidden=(7, 5)), large), (NETWORKS[0], small)):
        assert at_once("cuda", network) == at_once("cuda:0", network) == expected
        assert at_once("cpu", network) == 1


OTHERS = {
    "another run": {},
    "noise": {"noise_multiplier": 2.5},
    "clipping norm": {"clip": 3.0},
    "learning rate and decay": {"learning_rate": 0.05, "regularizer": 0.1},
    "sampling rate": {"sample_rate": 0.2},
    "starts": {"initialization": Glorot(scale=0)},
}


def _parts(network, *, products="float32", canaries=("example", "copies", "none")):
    """Trainings of one network on the same rows that differ in all that they may, three trials each."""
    device, base = torch.device("cuda" if CUDA else "cpu"), _data()
    parts = []
    for number, (name, change) in enumerate(OTHERS.items()):
        options = {"sample_rate": 0.5, "clip": 0.7, "noise_multiplier": 1.1, "learning_rate": 0.3, **change}
        config = TrainingConfig(steps=3, products=products, **options)
        relation = "replace" if number % 2 else "add_remove"
        neighbours = worlds_with(network, canaries[number % len(canaries)], relation, base=base)
        job = Job(network, neighbours, config, name, torch.device("cpu"))
        trials = [number, 7, 8]
        part = Part(Share(job, trials, [1, 0, 1]), job.initial(trials).to(device), FusedRows(job, device))
        parts.append(part)
    return parts


@pytest.mark.skipif(not (CUDA or INTERPRETED), reason="needs a CUDA device")
@pytest.mark.parametrize("products", ["float32", "tf32"])
@pytest.mark.parametrize("network", NETWORKS[:2], ids=str)
def test_jobs_that_share_a_launch_have_the_bits_that_each_has_alone(network, products):
    parts = _parts(network, products=products)
    assert len({part.rows.kind(part.share.job) for part in parts}) == 1
    alone = [FusedStack([part]).run() for part in parts]
    for order in ([0, 1, 2, 3, 4, 5], [5, 2, 0]):
        found = FusedStack([parts[i] for i in order]).each()
        for i, parameters in zip(order, found, strict=True):
            assert torch.equal(parameters, alone[i])
    assert not torch.equal(alone[0], alone[1])


def test_only_jobs_of_one_network_on_the_same_rows_share_a_launch():
    part = _parts(NETWORKS[1])[0]
    job = part.share.job
    base = job.neighbours.base
    same = Neighbours(Dataset(base.x.copy(), base.y.copy()))
    others = [
        dataclasses.replace(job, network=NETWORKS[0]),
        dataclasses.replace(job, neighbours=Neighbours(base.without(3))),
        dataclasses.replace(job, neighbours=Neighbours(base, canary=ExampleCanary(1000 * np.ones(21), 0))),
        dataclasses.replace(job, config=dataclasses.replace(job.config, steps=4)),
        dataclasses.replace(job, config=dataclasses.replace(job.config, products="tf32")),
    ]
    kinds = [FusedRows(one, torch.device("cpu")).kind(one) for one in (job, *others)]
    assert len(set(kinds)) == len(kinds)
    again = dataclasses.replace(job, neighbours=same)
    assert FusedRows(again, torch.device("cpu")).kind(again) == kinds[0]


@needs_gpu
def test_threads_that_train_at_once_get_what_each_gets_alone():
    """Eight threads with trainings of their own: those that wait for the device are launched together."""
    base, network = _data(), NETWORKS[1]

    def training(number):
        config = TrainingConfig(
            steps=40, sample_rate=0.5, clip=1.0, noise_multiplier=0.5 + number, learning_rate=0.1 * (1 + number)
        )
        canary = ExampleCanary(np.full(21, number, dtype=np.float32), 0, copies=1 + number)
        seen = Final()
        train(network, neighbours=Neighbours(base, canary=canary), config=config, fingerprint=f"run {number}",
              trials=range(50), worlds=np.arange(50) % 2, observer=seen, device="cuda")  # fmt: skip
        return np.stack([seen.parameters[trial] for trial in range(50)])

    alone = [training(number) for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(4):
            for expected, found in zip(alone, threads.map(training, range(8)), strict=True):
                np.testing.assert_array_equal(found, expected)


@needs_gpu
@pytest.mark.parametrize(("network", "by"), [(NETWORKS[1], "fused"), (Mlp(21, hidden=(7, 5), classes=3), "stages")])
def test_a_result_says_which_kernels_computed_it(network, by):
    config = TrainingConfig(steps=1, clip=1.0, noise_multiplier=1.0, learning_rate=0.1, sampling="full")
    found = train(network, neighbours=Neighbours(_data()), config=config, fingerprint="f", trials=[0], worlds=[0],
                  device="cuda")  # fmt: skip
    assert found.precision == f"float32 {by} v{backends.GPU_VERSION}"


def test_it_says_why_it_cannot_train_something():
    config = TrainingConfig(steps=1, sample_rate=0.1, clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    words = refusal(_job(Mlp(21, hidden=(8,)), config, Neighbours(_data())))
    assert words is not None
    assert "CUDA" in words
