"""The examples in JAX run as they stand, and give the verdicts that the documentation promises.

Seeds are fixed: every verdict here is the same on every run.
"""

import dataclasses
import functools
import importlib
import sys
from pathlib import Path

import pytest

from coalmine.integrations import identity

pytest.importorskip("jax", reason="needs the extra jax")
pytest.importorskip("optax")
pytest.importorskip("jax_privacy")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=["jax_optax_training", "jax_privacy_training"])
def example(request, monkeypatch, tmp_path):
    real = identity.followed

    def by_name(name, function, **options):
        found = real(name, function, **options)
        return dataclasses.replace(found, identity={"function": identity.label(function)})

    monkeypatch.setattr(identity, "followed", by_name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    return importlib.import_module(request.param)


@pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")
def test_its_training_is_consistent_and_half_the_noise_refuted(example):
    half = functools.partial(example.train, noise=0.5)
    options = {"worlds": example.worlds, "claim_dpsgd": example.claim, "trials": 1000}
    result = example.audit(example.train, example.score, control=half, **options)
    assert str(result.verdict) == "consistent", result.in_words()
    assert str(example.audit(half, example.score, **options).verdict) == "refuted"


def test_its_step_is_probed(example):
    report = example.probed()
    assert str(report.verdict) == "consistent", report.in_words()
    if "privacy" in example.__name__:
        assert [one.fault for one in example.probed(noise=0.5).findings] == ["noise too small"]
