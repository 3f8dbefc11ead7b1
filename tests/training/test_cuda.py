"""The stacked torch path on a GPU: the same truths as on a CPU. Run with ``pytest tests/training -k cuda``."""

import numpy as np
import pytest
import reference
import torch
from recorders import Everything, Final, Total
from scipy import stats

from coalmine.training import (
    Adam,
    BernauCnn,
    Dataset,
    ExampleCanary,
    FromModule,
    GradientCanary,
    Mlp,
    NasrCnn,
    Neighbours,
    Sequential,
    TrainingConfig,
    Vector,
    ZeroGradients,
    alternating_worlds,
    module,
    parameter_count,
    train,
)
from coalmine.training.embedding import Embedding, MeanPositions
from coalmine.training.layers import Linear
from coalmine.training.networks import glorot_law
from coalmine.training.noise import make_noise
from coalmine.training.sampling import batches
from coalmine.training.stack import initial_parameters

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NETWORKS = {
    "two hidden layers": Mlp(13, hidden=(7, 5), classes=3, activation="tanh"),
    "nasr": NasrCnn(input_shape=(1, 16, 16), classes=3),
    "bernau": BernauCnn(input_shape=(1, 12, 12), classes=3, filters=(4, 8), groups=2),
    "tokens": Sequential((6,), 3, (Embedding(11, 5), MeanPositions(), Linear(5, 3))),
    "module": FromModule(module(Mlp(13, hidden=(7,), classes=3, activation="tanh")), input_shape=(13,), classes=3),
}


def data_for(network, rows=29):
    rng = np.random.default_rng(5)
    shape = (rows, *network.input_shape)
    x = rng.integers(0, 11, size=shape) if isinstance(network, Sequential) else rng.normal(size=shape)
    return Dataset(x, rng.integers(0, network.classes, size=rows))


@pytest.mark.parametrize(
    "sampling", [{"sample_rate": 0.4}, {"batch_size": 9, "sampling": "shuffle"}, {"sampling": "full"}]
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", NETWORKS)
def test_private_gradients_are_the_naive_clipped_sums(name, dtype, sampling):
    network = NETWORKS[name]
    base = data_for(network)
    neighbours = Neighbours(
        base, canary=ExampleCanary(base.x[:2], (base.y[:2] + 1) % 3), relation="replace", replaced=[3, 7]
    )
    config = TrainingConfig(steps=2, clip=0.5, noise_multiplier=0, learning_rate=0.2, dtype=dtype, **sampling)
    seen = Everything()
    train(
        network, neighbours=neighbours, config=config, fingerprint="g", trials=[0, 1, 2], worlds=[0, 1, 1],
        observer=seen, device="cuda",
    )  # fmt: skip
    for trial, world in ((0, 0), (1, 1), (2, 1)):
        draws = batches(neighbours, world=world, config=config, fingerprint="g", trial=trial)
        for step in range(2):
            expected = reference.clipped_sum(network, seen.before[trial][step], neighbours, next(draws), 0.5).numpy()
            expected /= config.expected_batch(base.rows)
            tolerance = 1e-10 if dtype == "float64" else 1e-5
            np.testing.assert_allclose(seen.gradients[trial][step], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", NETWORKS)
def test_company_changes_nothing(name):
    network = NETWORKS[name]
    base = data_for(network)
    neighbours = Neighbours(base, canary=ExampleCanary(base.x[:1], base.y[:1]))
    config = TrainingConfig(
        steps=3, clip=0.5, noise_multiplier=0.7, learning_rate=0.2, sample_rate=0.4, optimiser=Adam(), regulariser=0.1
    )

    def run(trials):
        seen = Final()
        train(
            network, neighbours=neighbours, config=config, fingerprint="g", trials=trials,
            worlds=alternating_worlds(trials), observer=seen, device="cuda",
        )  # fmt: skip
        return seen.parameters

    together, alone = run(np.arange(9)), run([4])
    assert together[4].tobytes() == alone[4].tobytes()
    backwards = run(np.arange(9)[::-1])
    assert all(together[t].tobytes() == backwards[t].tobytes() for t in range(9))
    assert len({v.tobytes() for v in together.values()}) == 9


def test_noise_and_canary_have_the_right_law():
    steps, rate, sigma, clip, rows = 25, 0.1, 0.6, 2.0, 500
    neighbours = Neighbours(ZeroGradients(rows=rows), canary=GradientCanary([0.0, 7.0, 0.0]))
    config = TrainingConfig(steps=steps, clip=clip, noise_multiplier=sigma, learning_rate=0.1, sample_rate=rate)
    trials = np.arange(2048)
    seen = Total()
    train(
        Vector(3), neighbours=neighbours, config=config, fingerprint="g", trials=trials,
        worlds=alternating_worlds(trials), observer=seen, device="cuda",
    )  # fmt: skip
    total = seen.total() * rows * rate / clip
    spread = sigma * steps**0.5
    k = np.arange(steps + 1)

    def mixture(x):
        return (stats.binom.pmf(k, steps, rate) * stats.norm.cdf((np.asarray(x)[:, None] - k) / spread)).sum(1)

    # Fixed seeds; a right program fails each of these with probability 1e-7.
    assert stats.kstest(total[0::2, 1], stats.norm(0, spread).cdf).pvalue > 1e-7
    assert stats.kstest(total[1::2, 1], mixture).pvalue > 1e-7
    assert stats.kstest(total[:, [0, 2]].ravel(), stats.norm(0, spread).cdf).pvalue > 1e-7
    assert stats.kstest(total[:, 0] * 1.5, stats.norm(0, spread).cdf).pvalue < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 7, 1030])
def test_noise_is_standard_and_independent_over_places_steps_and_trials(size, dtype):
    trials, steps = 512, 40
    device = torch.device("cuda")
    noise = make_noise("law", range(trials), size=size, steps=steps, device=device, dtype=dtype)
    wide = torch.zeros((trials, size + 5), device=device, dtype=dtype)
    drawn = []
    for _ in range(steps):
        wide.zero_()
        noise.add_to(wide[:, :size], scale=2.0)
        assert not wide[:, size:].any()
        drawn.append((wide[:, :size] / 2.0).cpu().double().numpy())
    z = np.stack(drawn)  # [steps, trials, size]
    # Two million float32 values coincide here and there (about 2^26 of them share the mass); a repeated stream would
    # halve them.
    assert len(np.unique(z[:, :50])) > 0.95 * z[:, :50].size
    # Fixed seeds; a right program fails each of these with probability below 1e-7.
    assert stats.kstest(z.ravel()[:200_000], stats.norm.cdf).pvalue > 1e-7
    neighbours = [(z[1:], z[:-1]), (z[:, 1:], z[:, :-1])] + ([(z[..., 1:], z[..., :-1])] if size > 1 else [])
    quarter = -(-size // 4)
    if size > 4:
        neighbours.append((z[..., quarter:], z[..., :-quarter]))
    for a, b in neighbours:
        assert abs((a * b).mean()) < 5.5 / np.sqrt(a.size)
        assert abs(((a**2 - 1) * (b**2 - 1)).mean()) < 5.5 * 2.0 / np.sqrt(a.size) + 40.0 / a.size
    again = torch.zeros((3, size), device=device, dtype=dtype)
    make_noise("law", [7, 500, 2], size=size, steps=1, device=device, dtype=dtype).add_to(again, scale=1.0)
    np.testing.assert_array_equal(again.cpu().double().numpy(), z[0, [7, 500, 2]])


def test_starts_follow_glorot_and_are_what_the_observer_is_told():
    network, trials = Mlp(30, hidden=(20,), classes=5), range(400)
    config = TrainingConfig(steps=1, clip=1.0, noise_multiplier=1.0, learning_rate=0.0, sample_rate=0.5)
    device = torch.device("cuda")
    start = initial_parameters(network, config, fingerprint="s", trials=trials, device=device, dtype=torch.float32)
    spread, mean = glorot_law(network, scale=1.0)
    values = start.cpu().double().numpy()
    z = (values - mean)[:, spread > 0] / spread[spread > 0]
    # Fixed seeds; a right program fails each of these with probability below 1e-7.
    assert stats.kstest(z.ravel(), stats.norm.cdf).pvalue > 1e-7
    assert not values[:, spread == 0].any()
    noise = torch.zeros_like(start)
    make_noise("s", trials, size=start.shape[1], steps=1, device=device, dtype=torch.float32).add_to(noise, scale=1.0)
    shared = noise.cpu().double().numpy()[:, spread > 0]
    assert abs((z * shared).mean()) < 5.5 / np.sqrt(z.size)
    seen = Final()
    train(
        network, neighbours=Neighbours(data_for(network)), config=config, fingerprint="s", trials=[7, 3],
        worlds=[0, 0], observer=seen, device="cuda",
    )  # fmt: skip
    for trial in (3, 7):
        np.testing.assert_array_equal(seen.parameters[trial], values[trial].astype(np.float32))


def test_a_failure_is_named_and_disturbs_nobody():
    network = NETWORKS["two hidden layers"]
    base = data_for(network)

    class Bomb:
        copies = 1

        def start(self, trials):
            self.bad = torch.from_numpy(trials == 3)

        def gradients(self, state):
            vectors = torch.zeros_like(state.parameters)
            vectors[self.bad.to(vectors.device)] = float("nan")
            return vectors

    config = TrainingConfig(steps=6, clip=1.0, noise_multiplier=0.7, learning_rate=0.3, sample_rate=0.9)

    def run(canary):
        seen = Final()
        result = train(
            network, neighbours=Neighbours(base, canary=canary), config=config, fingerprint="b", trials=np.arange(6),
            worlds=np.ones(6, dtype=int), observer=seen, device="cuda",
        )  # fmt: skip
        return seen.parameters, result.failures

    hurt, failures = run(Bomb())
    calm, none = run(GradientCanary(np.zeros(parameter_count(network))))
    assert list(failures) == [3]
    assert not none
    assert all(hurt[t].tobytes() == calm[t].tobytes() for t in range(6) if t != 3)
