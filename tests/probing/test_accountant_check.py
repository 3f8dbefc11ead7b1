"""The accountant check: right accountants agree with ours, wrong ones are named, and the user's is not touched."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from coalmine.accounting import sequence, standard
from coalmine.errors import InvalidInputError
from coalmine.probing.accountant import check_accountant
from coalmine.records import DpSgd, Outcome, Sampling

RAN = DpSgd(sample_rate=0.5, noise_multiplier=1.0, steps=4)


def opacus(kind, *history):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "GDP accounting is experimental"
        made = kind()
    made.history = list(history)
    return made


def faults(report):
    return [one.fault for one in report.findings]


@pytest.mark.parametrize("kind", [PRVAccountant, RDPAccountant])
@pytest.mark.parametrize("history", [[(1.0, 0.5, 4)], [(1.1, 0.01, 500)], [(0.7, 0.01, 100), (2.0, 0.1, 50)]])
def test_right_accountants_agree_with_ours(kind, history):
    ran = [DpSgd(sample_rate=rate, noise_multiplier=sigma, steps=steps) for sigma, rate, steps in history]
    report = check_accountant(opacus(kind, *history), delta=1e-5, ran=ran)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    assert report.level == 0.0


def test_without_anything_that_ran_it_is_inconclusive():
    report = check_accountant(opacus(PRVAccountant, (1.0, 0.5, 4)), delta=1e-5)
    assert report.findings == ()
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert "only the accountant's own history is known" in report.in_words()


def test_the_central_limit_understates_and_is_named():
    report = check_accountant(opacus(GaussianAccountant, (1.0, 0.5, 4)), delta=1e-5)
    (found,) = report.findings
    assert found.fault == "epsilon understated"
    assert found.number == pytest.approx(6.007, abs=1e-3)
    assert "6.677" in found.sentence
    assert "central limit" in found.look_at


def test_a_number_and_a_function_are_taken():
    truth = standard.epsilon(RAN, delta=1e-5).epsilon
    assert not check_accountant(truth, delta=1e-5, ran=RAN).findings
    assert faults(check_accountant(0.97 * truth, delta=1e-5, ran=RAN)) == ["epsilon understated"]
    assert not check_accountant(lambda delta: standard.epsilon(RAN, delta=delta).epsilon, delta=1e-6, ran=RAN).findings


def test_dp_accounting_is_taken():
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    made = PLDAccountant()
    made.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.5, GaussianDpEvent(1.0)), 4))
    assert not check_accountant(made, delta=1e-5, ran=RAN).findings


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ((1.0, 0.25, 4), "wrong sample rate"),
        ((1.3, 0.5, 4), "wrong noise multiplier"),
        ((1.0, 0.5, 3), "wrong number of steps"),
        ((1.0, 0.5, 16), "virtual steps counted as steps"),
    ],
)
def test_what_was_told_is_held_against_what_ran(told, fault):
    report = check_accountant(opacus(RDPAccountant, told), delta=1e-5, ran=RAN)
    assert fault in faults(report), report.in_words()


class Reading:
    """An accountant that takes a step when it is asked."""

    def __init__(self, change):
        self.history, self.change = [(1.0, 0.5, 4)], change

    def get_epsilon(self, delta):
        (sigma, rate, steps), value = self.history[0], standard.epsilon(RAN, delta=delta).epsilon
        self.history = [(sigma, rate, steps + self.change)]
        return value


def test_an_accountant_that_changes_when_read_is_named_and_left_alone():
    given = Reading(1)
    assert faults(check_accountant(given, delta=1e-5)) == ["the accountant changes when it is read"]
    assert given.history == [(1.0, 0.5, 4)]
    assert not check_accountant(Reading(0), delta=1e-5).findings


def test_negative_epsilon_is_named():
    report = check_accountant(lambda delta: -0.3, delta=1e-5, ran=RAN)
    assert faults(report) == ["negative epsilon", "epsilon understated"]
    assert "not a number" in faults(check_accountant(lambda delta: float("nan"), delta=1e-5, ran=RAN))[0]


def test_an_accountant_that_raises_is_inconclusive():
    report = check_accountant(opacus(GaussianAccountant), delta=1e-5, ran=RAN)
    assert "wrong" not in report.in_words() or report.verdict.outcome is Outcome.REFUTED
    assert any("IndexError" in one.blind for one in report.measurements)


def test_noise_searched_by_the_central_limit_misses_its_target():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        short = get_noise_multiplier(target_epsilon=6.0, target_delta=1e-5, sample_rate=0.5, steps=4, accountant="gdp")
    report = check_accountant(6.0, delta=1e-5, ran=RAN.with_noise(short), target_epsilon=6.0)
    assert "the target epsilon is exceeded" in faults(report)
    assert not check_accountant(6.7, delta=1e-5, ran=RAN, target_epsilon=6.7).findings


def trained(*, poisson=True, sampler=None, virtual=0, steps=6):
    """A short Opacus training; everything that took part in it."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(60, 3), torch.zeros(60, dtype=torch.long))
    model = torch.nn.Linear(3, 2)
    loader = DataLoader(data, batch_size=10, shuffle=sampler is None, sampler=sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns of its random generator
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=poisson,
        )
        done = 0
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=virtual or 100, optimizer=optimizer
        ) as batches:
            for x, y in batches:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                done += 1
    return engine, optimizer, loader, done


def test_an_opacus_training_is_read_off():
    engine, optimizer, loader, _ = trained()
    report = check_accountant(engine, delta=1e-5, optimizer=optimizer, loader=loader, steps=6)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    assert engine.accountant.history == [(1.0, 1 / 6, 6)]


def test_opacus_does_not_count_virtual_steps_and_one_that_does_is_named():
    engine, optimizer, loader, parts = trained(virtual=3)
    assert parts > 6
    assert not check_accountant(engine, delta=1e-5, optimizer=optimizer, loader=loader, steps=6).findings
    counted = copy.deepcopy(engine.accountant)
    counted.history = [(1.0, 1 / 6, 18)]
    assert faults(check_accountant(counted, delta=1e-5, optimizer=optimizer, loader=loader, steps=6)) == [
        "virtual steps counted as steps"
    ]


def test_a_loader_that_shuffles_is_not_poisson():
    engine, optimizer, loader, _ = trained(poisson=False)
    report = check_accountant(engine, delta=1e-5, optimizer=optimizer, loader=loader, steps=6)
    assert faults(report) == ["shuffled batches accounted as Poisson"]
    shuffled = DpSgd(sample_rate=1 / 6, noise_multiplier=1.0, steps=6, sampling=Sampling.SHUFFLE)
    assert report.findings[0].number == pytest.approx(standard.shuffle_epsilon(shuffled, delta=1e-5).epsilon)
    assert faults(check_accountant(engine, delta=1e-5, ran=shuffled)) == ["shuffled batches accounted as Poisson"]


def test_a_weighted_loader_has_a_larger_rate_for_some_rows():
    sampler = WeightedRandomSampler([2.0] * 30 + [1.0] * 30, 60)
    engine, optimizer, loader, _ = trained(poisson=False, sampler=sampler)
    report = check_accountant(engine, delta=1e-5, optimizer=optimizer, loader=loader, steps=6)
    assert faults(report) == ["weighted sampler accounted as uniform"]
    assert report.findings[0].number == pytest.approx(1.0 - (1.0 - 2.0 / 90.0) ** 10)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("three", {"ran": RAN}, "an accountant, a function of delta, or a number"),
        (3.0, {}, "ran is missing"),
        (3.0, {"ran": RAN, "target_epsilon": -1.0}, "target_epsilon = -1.0"),
        (3.0, {"optimizer": object(), "steps": 3}, "no noise_multiplier"),
        (3.0, {"ran": [3]}, "DpSgd"),
    ],
)
def test_bad_input_is_refused(given, options, message):
    with pytest.raises(InvalidInputError, match=message):
        check_accountant(given, delta=1e-5, **options)


def test_a_sequence_in_two_parts_is_the_whole():
    # Two kinds that differ by a hair are accounted on one grid; both ways are upper bounds of nearly the same number.
    for mechanism in (DpSgd(sample_rate=0.05, noise_multiplier=1.1, steps=100), RAN.with_steps(6)):
        half = mechanism.with_steps(mechanism.steps // 2)
        parts = [half, half.with_noise(half.noise_multiplier * (1.0 + 1e-9))]
        whole = standard.epsilon(mechanism, delta=1e-5).epsilon
        assert sequence.epsilon(parts, delta=1e-5).epsilon == pytest.approx(whole, rel=2e-3)


def test_a_sequence_of_two_gaussians_is_one_gaussian():
    # Without sampling the truth is known: μ² adds up.
    parts = [DpSgd(sample_rate=1.0, noise_multiplier=s, steps=n) for s, n in ((5.0, 10), (8.0, 20))]
    mu = (10 / 5.0**2 + 20 / 8.0**2) ** 0.5
    exact = standard.epsilon(DpSgd(sample_rate=1.0, noise_multiplier=1.0 / mu, steps=1), delta=1e-5).epsilon
    value = sequence.epsilon(parts, delta=1e-5).epsilon
    assert exact <= value <= 1.005 * exact
