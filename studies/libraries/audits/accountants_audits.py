"""Accountants: their ε for DP-SGD beside what is proved from below and from above for the same numbers.

An accountant promises an upper bound. One that gives less than the ε which is proved from below understates it.
"""

from __future__ import annotations

import functools

from cases import Report

import coalmine
from coalmine.accounting import standard

DELTA = 1e-5
SETTINGS = [
    coalmine.DpSgd(sample_rate=q, noise_multiplier=sigma, steps=steps)
    for q, sigma, steps in (
        (1.0, 4.0, 1),
        (1.0, 20.0, 100),
        (0.01, 1.1, 1000),
        (0.01, 0.7, 1000),
        (0.001, 0.8, 10_000),
        (0.1, 2.0, 500),
        (0.25, 5.0, 200),
    )
]


def dp_accounting_pld(setting):
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    gaussian = dp_accounting.GaussianDpEvent(setting.noise_multiplier)
    event = dp_accounting.PoissonSampledDpEvent(setting.sample_rate, gaussian)
    return PLDAccountant().compose(event, setting.steps).get_epsilon(DELTA)


def dp_accounting_rdp(setting):
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    gaussian = dp_accounting.GaussianDpEvent(setting.noise_multiplier)
    event = dp_accounting.PoissonSampledDpEvent(setting.sample_rate, gaussian)
    return RdpAccountant().compose(event, setting.steps).get_epsilon(DELTA)


def prv(setting, which):
    """prv_accountant gives three numbers: from below, its estimate, from above."""
    from prv_accountant.dpsgd import DPSGDAccountant

    found = DPSGDAccountant(
        noise_multiplier=setting.noise_multiplier,
        sampling_probability=setting.sample_rate,
        max_steps=setting.steps,
        eps_error=0.1,
        delta_error=DELTA / 1000.0,
    ).compute_epsilon(delta=DELTA, num_steps=setting.steps)
    return found[which]


def autodp_rdp(setting):
    from autodp.mechanism_zoo import GaussianMechanism
    from autodp.transformer_zoo import AmplificationBySampling, Composition

    mechanism = GaussianMechanism(sigma=setting.noise_multiplier)
    if setting.sample_rate < 1.0:
        mechanism.neighboring = "add_remove"
        mechanism = AmplificationBySampling(PoissonSampling=True)(
            mechanism, setting.sample_rate, improved_bound_flag=True
        )
    return float(Composition()([mechanism], [setting.steps]).get_approxDP(DELTA))


def beside(accountant):
    """How often an accountant is below what is proved, and how far above it otherwise."""
    understated, failed, excess = [], [], []
    for setting in SETTINGS:
        words = f"q = {setting.sample_rate:g}, σ = {setting.noise_multiplier:g}, T = {setting.steps}"
        try:
            epsilon = float(accountant(setting))
        except Exception as error:  # noqa: BLE001  a library may raise anything, and that it did is the result
            failed.append(f"{words}: {type(error).__name__}")
            continue
        report = coalmine.check_accountant(epsilon, delta=DELTA, ran=setting)
        understated += [f"{one.fault}: {epsilon:.3f} for {words}, proved {one.allowed:.3f}" for one in report.findings]
        excess.append(epsilon / standard.epsilon_at_least(setting, delta=DELTA) - 1.0)
    found = (
        [f"above what is proved from below by {100 * min(excess):.2f} % to {100 * max(excess):.2f} %"] if excess else []
    )
    found += [f"no answer for {one}" for one in failed]
    return {
        "game": f"accountant, {len(SETTINGS)} settings, δ = {DELTA:g}",
        "verdict": "refuted" if understated else "consistent" if excess else "inconclusive",
        "found": understated + found,
    }


CASES = [
    Report(name=name, run=functools.partial(beside, accountant))
    for name, accountant in (
        ("dp_accounting.pld.PLDAccountant 0.6.0", dp_accounting_pld),
        ("dp_accounting.rdp.RdpAccountant 0.6.0", dp_accounting_rdp),
        ("prv_accountant.dpsgd.DPSGDAccountant 0.2.0, its upper bound", functools.partial(prv, which=2)),
        ("prv_accountant.dpsgd.DPSGDAccountant 0.2.0, its estimate", functools.partial(prv, which=1)),
        ("autodp 0.2.3.1 AmplificationBySampling, Composition", autodp_rdp),
    )
]
