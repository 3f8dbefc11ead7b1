"""Private fine-tunings with Transformers, PEFT and Opacus: the right ones pass, and each mistake is found by its name.

Seeds are fixed. A right step is refuted with chance 1e-8 here; every fault below but one in the noise is seen, not inferred.
"""
from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch

pytest.importorskip("opacus", reason="needs the extra opacus")
pytest.importorskip("transformers", reason="needs the extra transformers")
pytest.importorskip("peft", reason="needs the extra transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import fine_tunings  # noqa: E402
import lora_training  # noqa: E402

from coalmine.errors import InvalidInputError  # noqa: E402
from coalmine.probing.probe import probe  # noqa: E402


def probed(build, seed=0, **options):
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        return probe(build(seed), replays=20, tries=options.pop("tries", 30), level=1e-8, **options)


@pytest.mark.parametrize(
    "build", [lora_training.make_step, fine_tunings.tied, fine_tunings.embedding_with_noise, fine_tunings.checkpointed]
)
def test_a_right_fine_tuning_passes(build):
    report = probed(build)
    assert str(report.verdict) != "refuted", report.in_words()
    assert not report.findings
