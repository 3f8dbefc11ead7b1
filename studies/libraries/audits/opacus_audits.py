"""Opacus: its step, the step as a function of the data set, its data loader, its accountants, trainings, and one run.

Opacus states its ε for one row added or removed, with Poisson sampling.
"""

from __future__ import annotations

import functools
import warnings

import opacus_training as example
import torch
from cases import Report, Trainings, judged, probed
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coalmine
from coalmine.integrations import opacus as helper
from coalmine.one_run.hooks import OpacusCanaries

FEATURES = 6


def rows(number):
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(number, FEATURES, generator=generator), torch.arange(number, dtype=torch.int64) % 2
    )


def private(dataset, batch_size=4, **options):
    """A small network made private, as the tutorials do it."""
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, 2)
    return PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(dataset, batch_size=batch_size),
        **{"noise_multiplier": 1.0, "max_grad_norm": 1.0, **options},
    )


def build(dataset):
    model, optimizer, loader = private(dataset)
    return helper.step(model, optimizer, nn.CrossEntropyLoss(), loader=loader)


def one_step():
    return probed(coalmine.probe(build(rows(20))))


def from_the_data_set():
    found = build(rows(20))
    parts = {
        name: getattr(found, name) for name in ("step", "state", "clip_norm", "noise_multiplier", "divisor", "batch")
    }
    return probed(coalmine.probe(coalmine.PrivateStep(**parts, build=build, dataset=rows(20), name="make_private")))


def sampler():
    _, _, loader = private(rows(60), batch_size=6)
    return probed(coalmine.probe_sampler(loader)) | {"game": "data loader"}


def accountant(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = PrivacyEngine(accountant=name)
    said = [str(one.message) for one in caught if "accounting" in str(one.message)]
    settings = [(0.01, 1.1, 1000), (0.01, 0.7, 1000), (0.1, 2.0, 500), (1.0, 20.0, 100)]
    found = []
    for rate, sigma, steps in settings:
        engine.accountant.history = [(sigma, rate, steps)]
        ran = coalmine.DpSgd(sample_rate=rate, noise_multiplier=sigma, steps=steps)
        report = coalmine.check_accountant(engine.accountant, delta=1e-5, ran=ran)
        found += [f"{one.fault} (q = {rate:g}, σ = {sigma:g}, T = {steps})" for one in report.findings]
    verdict = "refuted" if found else "consistent"
    return {
        "game": f"accountant, {len(settings)} settings, δ = 1e-05",
        "verdict": verdict,
        "found": found,
        "warning": said,
    }


def one_run():
    """Gradient canaries of norm C on one parameter each, half of them in, half of the noise as the control."""
    mechanism = coalmine.DpSgd(sample_rate=0.1, noise_multiplier=0.95, steps=100)
    claim = coalmine.MechanismClaim(mechanism=mechanism, delta=1e-5)
    chosen = coalmine.one_run.canaries.dirac(parameters=802, canaries=800)

    def play(sigma, **control):
        torch.manual_seed(0)
        x, y = torch.randn(500, 400), torch.randint(0, 2, (500,))
        run = coalmine.one_run.begin(chosen, claim=claim)
        model = nn.Linear(400, 2)
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=50),
            noise_multiplier=sigma,
            max_grad_norm=1.0,
        )
        hook = OpacusCanaries(optimizer, included=run.included, scored=run.canaries, mechanism=mechanism)
        for _ in range(10):
            for features, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(features), labels).backward()
                optimizer.step()
        result = run.judge(hook.scores(), **control)
        hook.detach()
        return result

    return judged(play(0.95, control=play(0.475)), canaries=800)


warnings.simplefilter("ignore")

CASES = [
    Report(name="make_private: one step", run=one_step),
    Report(name="make_private of 20 rows in batches of 4, and of 21", run=from_the_data_set),
    Report(name="the loader of make_private", run=sampler),
    *(
        Report(name=f"PrivacyEngine(accountant='{name}')", run=functools.partial(accountant, name))
        for name in ("rdp", "prv", "gdp")
    ),
    Trainings(
        name="make_private: q = 0.5, σ = 1, T = 4",
        train=example.train,
        control=example.train_with_half_the_noise,
        score=example.score,
        worlds=example.worlds(),
        mechanism=coalmine.DpSgd(sample_rate=0.5, noise_multiplier=1.0, steps=4),
        delta=1e-5,
        trials=400,
    ),
    Report(name="make_private: q = 0.1, σ = 0.95, T = 100", run=one_run),
]
