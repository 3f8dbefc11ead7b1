"""A training with Lightning: the step that it really takes is probed, with the optimizer that it really steps.

Seeds are fixed. A right step is refuted with chance 1e-8 at the level of these probes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.integrations.lightning import probe

pytest.importorskip("opacus", reason="needs the extra opacus")
lightning = pytest.importorskip("lightning", reason="needs the extra lightning")
EXAMPLES = str(Path(__file__).parents[2] / "examples")
sys.path.insert(0, EXAMPLES)

import lightning_training  # noqa: E402

sys.path.remove(EXAMPLES)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning"),  # by Opacus, and meant here
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec"),  # by Lightning, of itself
]
QUICK = {"replays": 20, "tries": 20, "level": 1e-8}


class Manual(lightning_training.Private):
    """The same with manual optimization; ``half`` steps with half the noise."""

    def __init__(self, half=False):
        super().__init__()
        self.automatic_optimization = False
        self.half = half

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        if self.half:
            optimizer.noise_multiplier /= 2
        return optimizer

    def training_step(self, batch):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch))
        optimizer.step()


def faults(report):
    return {one.fault for one in report.findings}


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def test_a_right_training_passes():
    report = lightning_training.probed(lightning_training.Private(), **QUICK)
    assert str(report.verdict) == "consistent", report.in_words()
    assert report.subject == "DPOptimizer, as Lightning steps it"


def test_what_is_promised_is_read_off_a_private_optimizer_alone():
    report = probe(_trainer(), Manual(), **QUICK)
    assert str(report.verdict) == "consistent", report.in_words()
    assert report.details["promise"]["divisor"] == 16
    with pytest.raises(InvalidInputError, match="clip_norm is missing: Lightning steps SGD, which is not private"):
        probe(_trainer(), lightning_training.OrdinaryOptimizer())


def test_the_optimizer_that_is_stepped_is_not_the_private_one():
    report = lightning_training.probed(lightning_training.OrdinaryOptimizer(), **QUICK)
    assert "no noise" in faults(report), report.in_words()
    assert report.subject == "SGD, as Lightning steps it"


def test_a_private_optimizer_with_less_noise_than_promised():
    assert faults(lightning_training.probed(Manual(half=True), **QUICK)) == {"noise too small"}


def _trainer(**options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(accelerator="cpu", max_epochs=1, **quiet, **options)


def test_what_cannot_be_probed_is_refused():
    with pytest.raises(UnsupportedError, match="accumulate_grad_batches = 2"):
        probe(_trainer(accumulate_grad_batches=2), lightning_training.Private())
    with pytest.raises(InvalidInputError, match="expected a Trainer of Lightning"):
        probe(object(), lightning_training.Private())
