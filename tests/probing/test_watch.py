"""The monitor: bits untouched, valid at any moment, quick to see missing noise, and read off real optimizers."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from scipy import integrate, stats
from torch.utils.data import DataLoader, TensorDataset

from coalmine.accounting import standard
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.probing import forecasts
from coalmine.probing.watch import Watch, watch
from coalmine.records import DpSgd, Outcome


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0, 5.0, 12.0])
def test_the_best_payoff_is_the_integral_and_not_below(mu):
    exact, error = integrate.quad(
        lambda z: stats.norm.pdf(z) * math.tanh((mu * z + mu * mu / 2.0) / 2.0) ** 2,
        -14.0,
        14.0,
        limit=500,
        epsabs=1e-12,
    )
    assert exact - error <= forecasts.best_payoff(mu) <= exact + 1e-8


@pytest.mark.parametrize("claimed", [0.4, 1.0, 4.0])
@pytest.mark.parametrize("shape", ["gaussian", "shifted", "three-valued", "larger noise"])
def test_no_release_that_keeps_the_claim_pays(claimed, shape):
    # Each bet's factor has mean at most 1 under releases that are 1/σ-GDP, also strange ones. By numerical integration.
    z = np.linspace(-12.0, 12.0, 100_001)
    weight = np.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi) * (z[1] - z[0])
    release = {  # post-processings of (noise + coin) at the claimed noise
        "gaussian": lambda y: y,
        "shifted": lambda y: y + 0.7,
        "three-valued": lambda y: np.where(y > 1.0, 9.0, np.where(y < 0.0, -9.0, 0.5)),
        "larger noise": lambda y: 0.5 + (y - 0.5) * 3.0,
    }[shape]
    for fraction in forecasts.FRACTIONS:
        bet = forecasts.bet(claimed, fraction)
        means = [weight @ np.exp(bet.log_factors(release(claimed * z + s), np.full(z.size, s))) for s in (0.0, 1.0)]
        assert np.mean(means) <= 1.0 + 1e-7


def simulated(claimed, real, *, steps, runs, seed):
    """The step in which each of many simulated runs is refuted at level 0.01."""
    rng = np.random.default_rng(seed)
    coins = (rng.random((runs, steps)) < 0.5).astype(float)
    noise = real * rng.standard_normal((runs, steps))
    before = np.concatenate([np.full((runs, 1), np.nan), noise[:, :-1]], axis=1)
    wealth = np.cumsum(forecasts.log_factors(noise, before, coins, claimed=claimed), axis=1)
    reached = forecasts.log_evidence(wealth) >= math.log(100.0)
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, steps + 1)


def test_a_training_with_the_claimed_noise_is_rarely_ever_refuted():
    # Chance at most 0.01 each: of 400 runs more than 19 are refuted with a chance under 1e-6 (exact binomial).
    limit = int(stats.binom.isf(1e-6, 400, 0.01))
    assert (simulated(1.0, 1.0, steps=1500, runs=400, seed=1) <= 1500).sum() <= limit


@pytest.mark.parametrize(("real", "steps", "median"), [(0.5, 400, 70), (0.7, 1400, 350)])
def test_missing_noise_is_found_soon(real, steps, median):
    assert np.median(simulated(1.0, real, steps=steps, runs=100, seed=2)) <= 1.3 * median


def fed(noise, *, steps, claimed=1.0, known=True, **options):
    monitor = Watch(noise_multiplier=claimed, seed=3, **options)
    for step in range(steps):
        other = np.full(20, 0.3)
        monitor.step(other + noise(step), clipped_sum=other if known else None)
    return monitor


def fresh(scale, seed=0):
    rng = np.random.default_rng(seed)
    return lambda step: scale * rng.standard_normal(20)


def test_the_monitor_is_the_betting_process():
    # The same coins and scores through the class and through the arrays give the same evidence.
    monitor = Watch(noise_multiplier=1.0, seed=5)
    coins = np.random.default_rng(5)
    rng = np.random.default_rng(6)
    wealth, before = np.zeros(len(forecasts.FRACTIONS) + 1), np.array(np.nan)
    for _ in range(60):
        value = 0.8 * rng.standard_normal()
        monitor.observe({"one": value}, {"one": 0.0})
        coin = np.array(float(coins.random(1)[0] < 0.5))
        wealth += forecasts.log_factors(np.array(value), before, coin, claimed=1.0)
        before = np.array(value)
    assert monitor.log_e_value == pytest.approx(float(forecasts.log_evidence(wealth)), rel=1e-12)


def test_verdicts():
    right = fed(fresh(1.0), steps=400)
    assert right.verdict.outcome is Outcome.CONSISTENT, right.in_words()
    assert right.verdict.power.probability > 0.9
    half = fed(fresh(0.5), steps=400)
    assert half.verdict.outcome is Outcome.REFUTED
    assert half.refuted_at < 400
    assert "0.5" in half.in_words()
    early = fed(fresh(1.0), steps=10)
    assert early.verdict.outcome is Outcome.INCONCLUSIVE
    assert early.to_dict()["verdict"]["outcome"] == "inconclusive"


def test_noise_that_repeats_is_found_and_told():
    once = np.random.default_rng(1).standard_normal(20)
    monitor = fed(lambda step: once, steps=100)
    assert monitor.refuted_at < 60
    assert "not fresh" in monitor.in_words()


def test_without_the_other_rows_part_the_center_is_learned():
    assert fed(fresh(0.5), steps=400, known=False).verdict.outcome is Outcome.REFUTED
    assert fed(fresh(1.0), steps=400, known=False).verdict.outcome is Outcome.CONSISTENT


def test_one_tensor_without_noise_is_named():
    rng = np.random.default_rng(0)
    monitor = Watch(noise_multiplier=1.0, seed=1)
    for _ in range(80):
        gradients = {f"layer {k}": rng.standard_normal(30) * (k != 2) for k in range(5)}
        monitor.step(gradients, clipped_sum={name: np.zeros(30) for name in gradients})
    assert "'layer 2'" in monitor.in_words()
    assert monitor.refuted_at is not None


def test_the_bound_is_below_the_truth_and_above_the_claim_where_noise_is_missing():
    truth = DpSgd(sample_rate=0.1, noise_multiplier=0.5, steps=50)
    bound = fed(fresh(0.5), steps=1500).bound(delta=1e-5, sample_rate=0.1, steps=50)
    exact = standard.epsilon(truth, delta=1e-5).epsilon
    claimed = standard.epsilon(truth.with_noise(1.0), delta=1e-5).epsilon
    assert claimed < bound.epsilon < exact  # fails with a chance of at most 0.01 by law; the seed is fixed
    assert bound.details["noise_multiplier"] < 0.65
    assert fed(fresh(1e3), steps=30).bound().epsilon == 0.0


def private_training(*, watched, noise=1.0, steps=60, mode="hooks", clipping="flat", virtual=False, claimed=None):
    """A short Opacus training with all of its randomness, optionally watched; the parameters and the monitor."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    extra = {
        "adaptive": {
            "target_unclipped_quantile": 0.5,
            "clipbound_learning_rate": 0.2,
            "max_clipbound": 8.0,
            "min_clipbound": 0.1,
            "unclipped_num_std": 2.0,
        }
    }.get(clipping, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = PrivacyEngine()
        made = engine.make_private(
            module=model,
            optimizer=torch.optim.Adam(model.parameters(), lr=0.02),
            criterion=torch.nn.CrossEntropyLoss(),
            data_loader=DataLoader(data, batch_size=16),
            noise_multiplier=noise,
            max_grad_norm=[0.5] * 4 if clipping == "per_layer" else 1.0,
            grad_sample_mode=mode,
            clipping=clipping,
            **extra,
        )
        private, optimizer, loss = made[0], made[1], made[2] if mode == "ghost" else torch.nn.CrossEntropyLoss()
        monitor = watch(optimizer, model=model, seed=1, noise_multiplier=claimed) if watched else None
        batches = made[-1]
        done = 0
        while done < steps:
            for x, y in batches:
                if clipping == "adaptive" and len(x) == 0:
                    continue
                parts = [(x[:8], y[:8], True), (x[8:], y[8:], False)] if virtual else [(x, y, False)]
                for features, labels, skipped in parts:
                    if virtual:
                        optimizer.signal_skip_step(skipped)
                    loss(private(features), labels).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                done += 1
    state = torch.cat([one.detach().reshape(-1) for one in model.parameters()]), torch.get_rng_state()
    return *state, monitor, engine


@pytest.mark.parametrize(
    ("mode", "clipping", "virtual"),
    [
        ("hooks", "flat", False),
        ("ghost", "flat", False),
        ("hooks", "per_layer", False),
        ("hooks", "adaptive", False),
        ("hooks", "flat", True),
    ],
)
def test_a_watched_opacus_training_ends_with_the_same_bits(mode, clipping, virtual):
    alone = private_training(watched=False, mode=mode, clipping=clipping, virtual=virtual, steps=20)
    seen = private_training(watched=True, mode=mode, clipping=clipping, virtual=virtual, steps=20)
    assert torch.equal(alone[0], seen[0])
    assert torch.equal(alone[1], seen[1])
    assert seen[2].steps == 20
    assert sum(n for _, _, n in seen[3].accountant.history) == 20  # the accountant's hook is still called


def test_adaptive_clipping_is_read_with_the_norm_of_its_own_step():
    monitor = private_training(watched=True, clipping="adaptive", steps=150)[2]
    assert monitor.refuted_at is None
    assert math.exp(monitor.log_e_value) < 10.0


def test_missing_noise_is_found_in_a_real_training():
    assert private_training(watched=True, steps=200)[2].verdict.outcome is Outcome.CONSISTENT
    monitor = private_training(watched=True, steps=200, noise=0.5, claimed=1.0)[2]
    assert monitor.verdict.outcome is Outcome.REFUTED
    assert "weight" in monitor.in_words() or "bias" in monitor.in_words()  # the model's own names


def test_a_training_of_ones_own_is_watched_through_its_torch_optimizer():
    def trained(sigma):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        called = []
        with watch(
            optimizer,
            model=model,
            noise_multiplier=1.0,
            max_grad_norm=2.0,
            divisor=8.0,
            seed=0,
            when_refuted=called.append,
        ) as monitor:
            for _ in range(200):
                for one in model.parameters():
                    one.grad = (0.1 + 2.0 * sigma * torch.randn_like(one)) / 8.0
                optimizer.step()
        optimizer.step()  # no longer watched
        return monitor, called

    right, _ = trained(1.0)
    assert right.refuted_at is None
    assert right.steps == 200
    half, called = trained(0.5)
    assert half.refuted_at is not None
    assert called == [half]


def test_a_gradient_that_is_not_finite_does_not_stop_the_training():
    monitor = Watch(noise_multiplier=1.0, seed=0)
    monitor.step(np.array([np.nan, 1.0]))
    assert monitor.steps == 1
    assert monitor.e_value == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Watch(noise_multiplier=0.0), "noise_multiplier = 0.0"),
        (lambda: Watch(noise_multiplier=1.0, level=2.0), "level = 2.0"),
        (lambda: Watch(noise_multiplier=1.0).step(np.zeros(0)), "is empty"),
        (lambda: Watch(noise_multiplier=1.0).bound(), "nothing was watched"),
        (
            lambda: Watch(noise_multiplier=1.0).step({"a": np.ones(3)}, clipped_sum=np.ones(3)),
            "clipped_sum has tensors",
        ),
        (lambda: watch(object()), "a torch optimizer"),
        (lambda: watch(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)), "noise_multiplier is missing"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises((InvalidInputError, UnsupportedError), match=message):
        call()
