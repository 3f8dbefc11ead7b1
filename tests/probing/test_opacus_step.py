"""What is read off Opacus's objects: every way to clip and to split, and the faults that Opacus 1.6 has unmodified."""

from __future__ import annotations

import warnings

import pytest
import torch
from trainers import with_opacus

from coalmine.errors import InvalidInputError
from coalmine.integrations import opacus
from coalmine.probing.probe import probe
from coalmine.records import Sampling


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (with_opacus.hooks, "DPOptimizer (GradSampleModule)"),
        (with_opacus.functorch, "DPOptimizer (GradSampleModule)"),
        (with_opacus.expanded_weights, "DPOptimizer (GradSampleModuleExpandedWeights)"),
        (with_opacus.ghost, "DPOptimizerFastGradientClipping (GradSampleModuleFastGradientClipping)"),
        (with_opacus.per_layer, "DPPerLayerOptimizer (GradSampleModule)"),
        (with_opacus.split_batches, "DPOptimizer (GradSampleModule, physical batches of 2)"),
        (with_opacus.adaptive, "AdaClipDPOptimizer (GradSampleModule)"),
        (with_opacus.secure, "DPOptimizer (GradSampleModule, secure mode)"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_the_promise_is_read_off(build, name):
    found = build(0)
    assert found.title == name
    assert found.clip_norm == pytest.approx(with_opacus.CLIP)
    assert found.noise_multiplier == with_opacus.SIGMA
    assert (found.divisor, found.sample_rate, found.sampling) == (6.0, 0.25, Sampling.POISSON)
    assert (found.released is not None) == (build is with_opacus.adaptive)  # the next clip norm
    assert len(found.batch[0]) == 8
    assert found.unclipped is not None


def probed(build, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = probe(build(0), replays=40, tries=30, **options)
    return {one.fault: one for one in report.findings}


def test_the_divisor_follows_the_data_set():
    """20 rows in batches of 4 are five batches, and 21 rows six: make_private divides by 4 and by 3."""
    found = probed(with_opacus.from_data_set)
    assert set(found) == {"divisor depends on the data", "setup depends on the data"}
    assert found["divisor depends on the data"].number == pytest.approx(4 / 3)
    assert "(divisor 4 and 3)" in found["divisor depends on the data"].sentence
    assert "sampling rate is 0.1667 and not 0.2" in found["setup depends on the data"].sentence


def test_adaptive_clipping_divides_by_the_real_number_of_rows():
    found = probed(with_opacus.adaptive)
    assert set(found) == {"divisor depends on the data", "empty batch"}
    assert found["divisor depends on the data"].number == pytest.approx(8 / 9, rel=1e-4)
    assert found["divisor depends on the data"].witness.startswith("log of the clip norm")


def test_expanded_weights_fail_on_an_empty_batch():
    assert set(probed(with_opacus.expanded_weights)) == {"empty batch"}


def own_step(returns):
    """The training's own step on Opacus's objects, which returns something of its loss."""

    def build(seed):
        model, optimizer, loss, loader = with_opacus.private(seed)

        def one(batch):
            *inputs, target = batch
            optimizer.zero_grad()
            value = loss(model(*inputs), target)
            value.backward()
            optimizer.step()
            return returns(value)

        return opacus.step(model, optimizer, own_step=one, loader=loader)

    return build


def test_what_an_own_step_returns_is_released():
    assert probed(own_step(lambda _: None)) == {}
    found = probed(own_step(lambda value: {"loss": value.nan_to_num().item()}))
    assert set(found) == {"exact value returned"}
    assert "returned.loss" in found["exact value returned"].witness
    assert probed(own_step(lambda value: {"loss": value.nan_to_num().item()}), kept="returned.loss") == {}


def test_bad_input_is_refused():
    model, optimizer, loss, loader = with_opacus.private(0)
    with pytest.raises(InvalidInputError, match="batch = None is not allowed without a loader"):
        opacus.step(model, optimizer, loss)
    with pytest.raises(InvalidInputError, match="max_physical_batch_size = 0"):
        opacus.step(model, optimizer, loss, loader=loader, max_physical_batch_size=0)
    with pytest.raises(InvalidInputError, match="expected the DPOptimizer that make_private returned"):
        opacus.step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, loader=loader)
