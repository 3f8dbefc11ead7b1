"""Private fine-tunings with Transformers, PEFT and Opacus: right ones pass, and each mistake is found by its name.

Seeds are fixed. At the level of these probes a right step is refuted with chance 1e-8, and none of the faults below is
inferred from noise: each is seen.
"""

from __future__ import annotations

import functools
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from coalmine.errors import InvalidInputError
from coalmine.integrations import opacus
from coalmine.integrations.transformers import canary_scores, row_losses
from coalmine.probing.probe import probe

pytest.importorskip("opacus", reason="needs the extra opacus")
pytest.importorskip("transformers", reason="needs the extra transformers")
pytest.importorskip("peft", reason="needs the extra transformers")
EXAMPLES = str(Path(__file__).parents[2] / "examples")
sys.path.insert(0, EXAMPLES)

import fine_tunings  # noqa: E402
import language_model_one_run  # noqa: E402
import lora_training  # noqa: E402

sys.path.remove(EXAMPLES)


def probed(build, *, tries=15):
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return probe(build(0), replays=20, tries=tries, level=1e-8)


@pytest.mark.parametrize(
    "build", [lora_training.make_step, fine_tunings.tied, fine_tunings.embedding_with_noise, fine_tunings.checkpointed]
)
def test_a_right_fine_tuning_passes(build):
    report = probed(build, tries=30)
    assert str(report.verdict) == "consistent", report.in_words()


@pytest.mark.parametrize(
    ("build", "faults", "where"),
    [
        (fine_tunings.base_not_frozen, {"unnoised tensor"}, "attn.c_proj.weight"),
        (fine_tunings.embedding_without_noise, {"unnoised tensor"}, "wte.modules_to_save.default.weight"),
        (fine_tunings.loss_of_the_model, {"rows interact", "empty batch"}, ""),
        (fine_tunings.one_row_of_positions_per_layer, {"rows interact"}, ""),
        (fine_tunings.one_row_of_positions_repeated, {"rows interact"}, ""),
    ],
)
def test_a_mistake_is_found(build, faults, where):
    report = probed(build)
    assert faults <= {one.fault for one in report.findings}, report.in_words()
    assert any(where in one.witness for one in report.findings)


def test_ghost_clipping_of_a_tied_embedding_does_not_bound_a_row():
    report = probed(functools.partial(fine_tunings.ghost_clipping_of_a_tied_embedding, guard=False))
    # Which of the two it is called depends on how far the rows that are tried get.
    assert {one.fault for one in report.findings} & {"sensitivity too large", "no clipping"}, report.in_words()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (fine_tunings.one_row_of_positions, "transformer.wpe.weight has per-row gradients for 1 of 8 rows"),
        (fine_tunings.ghost_clipping_of_a_tied_embedding, "Parameter tying is not supported with Ghost Clipping"),
        (functools.partial(fine_tunings.checkpointed, reentrant=False), "Per sample gradient is not initialized"),
    ],
)
def test_a_step_that_opacus_cannot_take_says_why(build, words):
    with pytest.raises(InvalidInputError, match=f"step fails on its own batch: .*{words}"):
        probed(build)


def test_the_step_and_its_promise_are_read_off():
    found = lora_training.make_step()
    assert (found.clip_norm, found.noise_multiplier, found.divisor, found.sample_rate) == (0.1, 1.0, 6.0, 0.25)
    model, optimizer, loader = lora_training.private(lora_training.adapted(lora_training.base()), lora_training.texts())
    with pytest.raises(InvalidInputError, match="own_step is not allowed with a loss"):
        opacus.step(model, optimizer, torch.nn.CrossEntropyLoss(), own_step=print, loader=loader)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")  # torch, of Opacus's hooks
def test_a_dict_with_labels_takes_a_loss():
    def moved(**options):
        torch.manual_seed(0)
        model, optimizer, loader = lora_training.private(
            lora_training.adapted(lora_training.base()), lora_training.texts()
        )
        step = options or {"own_step": lora_training.training_step(model, optimizer)}
        found = opacus.step(model, optimizer, loader=loader, **step)
        found.step(found.batch)
        return opacus.parameters(model)

    with torch.random.fork_rng():
        assert np.array_equal(moved(), moved(loss=lambda shown, labels: row_losses(shown.logits, labels).mean()))


def test_rows_have_losses_of_their_own():
    """Against the library's own loss, a row at a time."""
    model = lora_training.base().eval()
    for row in lora_training.texts(rows=4):
        batch = {name: value[None] for name, value in row.items()}
        labels = batch.pop("labels")
        shown = model(**batch, labels=labels)
        assert row_losses(shown.logits, labels).item() == pytest.approx(shown.loss.item(), rel=1e-6)


def test_scores_are_minus_the_losses():
    model = lora_training.base().train()
    tokens = np.arange(10).reshape(2, 5)
    given = torch.from_numpy(tokens)
    expected = [-model.eval()(input_ids=one[None], labels=one[None]).loss.item() for one in given]
    model.train()
    assert canary_scores(model, tokens, rows_at_once=1) == pytest.approx(expected, rel=1e-6)
    assert model.training
    chances = torch.log_softmax(model.eval()(input_ids=given).logits[:, -2], dim=1).detach()
    assert canary_scores(model, tokens, last=1) == pytest.approx(chances[[0, 1], given[:, -1]].numpy(), rel=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": [[1.0, 2.0]]}, "tokens has shape"),
        ({"tokens": [[1]]}, "two or more tokens"),
        ({"last": 5}, "last = 5"),
        ({"rows_at_once": 0}, "rows_at_once = 0"),
        ({"model": print}, "model"),
    ],
)
def test_bad_input_is_refused(change, words):
    options = {"model": torch.nn.Linear(1, 1), "tokens": [[1, 2, 3, 4, 5]], **change}
    with pytest.raises(InvalidInputError, match=words):
        canary_scores(options.pop("model"), options.pop("tokens"), **options)


def test_losses_of_other_shapes_are_refused():
    with pytest.raises(InvalidInputError, match="labels has shape"):
        row_losses(torch.zeros(2, 3, 8), torch.zeros(2, 4, dtype=torch.long))


def test_one_run_of_a_language_model():
    """Seeds are fixed. The claim is ε = 3.95; 200 canaries refute a quarter of the noise, fresh ones prove nothing."""
    claimed = language_model_one_run.CLAIM.noise_multiplier
    broken, beside = language_model_one_run.audit(noise_multiplier=claimed / 4, canaries=200, seed=1)
    assert str(broken.verdict) == "refuted"
    result, fresh = language_model_one_run.audit(canaries=200, control=broken.scores, seed=1)
    assert str(result.verdict) == "consistent", result.verdict.reasons
    assert 0.3 < result.separation < broken.separation
    assert fresh.epsilon == beside.epsilon == 0.0
