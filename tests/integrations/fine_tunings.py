"""Private fine-tunings of a GPT-2, each with one mistake, made from the parts of the example, which has none."""

from __future__ import annotations

import torch
from lora_training import CLIP, adapted, base, private, texts, training_step
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

from coalmine.integrations import opacus
from coalmine.integrations.transformers import row_losses


def _probed(model, dataset, *, also=(), **options):
    """The example's step on this model; ``also`` are ordinary optimizers that are stepped beside the private one."""
    model, optimizer, loader = private(model, dataset, **options)
    right = training_step(model, optimizer)

    def step(batch):
        for one in also:
            one.zero_grad()
        right(batch)
        for one in also:
            one.step()

    return opacus.step(model, optimizer, own_step=step, loader=loader)


def _embeddings(**options):
    """A base whose embeddings alone are trained: of tokens, which may be the last layer too, and of positions."""
    model = base(**options)
    for name, one in model.named_parameters():
        one.requires_grad_("wte" in name or "wpe" in name)
    return model


def _without_positions(seed):
    return [{name: value for name, value in row.items() if name != "position_ids"} for row in texts(seed)]


# Right ones.


def tied(seed):
    return _probed(_embeddings(), texts(seed))


def embedding_with_noise(seed):
    return _probed(adapted(base(tie_word_embeddings=False), modules_to_save=["wte"]), texts(seed))


def checkpointed(seed, *, reentrant=True):
    model = base()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model = adapted(model)
    model.enable_input_require_grads()
    return _probed(model, texts(seed))


# Broken ones.


def base_not_frozen(seed):
    """The private optimizer holds the adapters; an ordinary one trains a part of the base beside it."""
    model = adapted(base())
    adapters = [one for one in model.parameters() if one.requires_grad]
    weights = [one.requires_grad_() for name, one in model.named_parameters() if "attn.c_proj.weight" in name]
    return _probed(model, texts(seed), parameters=adapters, also=[torch.optim.SGD(weights, lr=0.1)])


def embedding_without_noise(seed):
    """PEFT trains a copy of the embedding, which the private optimizer does not hold."""
    model = adapted(base(tie_word_embeddings=False), modules_to_save=["wte"])
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    embedding = [one for name, one in trained.items() if "wte" in name]
    adapters = [one for name, one in trained.items() if "wte" not in name]
    return _probed(model, texts(seed), parameters=adapters, also=[torch.optim.SGD(embedding, lr=0.1)])


def loss_of_the_model(seed):
    """As most people write it: the loss that the model gives, a mean over the tokens of all rows."""
    model, optimizer, loader = private(adapted(base()), texts(seed))
    return opacus.step(model, optimizer, loader=loader)


def one_row_of_positions(seed):
    """Without position ids GPT-2 makes one row of them for all: Opacus has one gradient for the batch, and fails."""
    return _probed(_embeddings(), _without_positions(seed))


def one_row_of_positions_per_layer(seed):
    """With clipping per layer Opacus does not fail: the gradient of the whole batch is clipped as that of one row."""
    return _probed(_embeddings(), _without_positions(seed), clipping="per_layer", max_grad_norm=[CLIP / 2**0.5] * 2)


def one_row_of_positions_repeated(seed):
    """A wrong repair: the gradient of the batch stands for that of each row."""
    model, optimizer, loader = private(_embeddings(), _without_positions(seed))
    positions, right = model._module.transformer.wpe.weight, training_step(model, optimizer)
    plain = optimizer.pre_step

    def pre_step(*args):
        if len(positions.grad_sample):
            rows = len(optimizer.params[0].grad_sample)
            positions.grad_sample = positions.grad_sample.expand(rows, -1, -1)
        return plain(*args)

    optimizer.pre_step = pre_step
    return opacus.step(model, optimizer, own_step=right, loader=loader)


def ghost_clipping_of_a_tied_embedding(seed, *, guard=True):
    """Ghost clipping of a weight in two layers: the norm of the one replaces that of the other. Opacus refuses it."""
    dataset = texts(seed)
    model, optimizer, _, loader = private(
        _embeddings(), dataset, grad_sample_mode="ghost", criterion=torch.nn.CrossEntropyLoss()
    )
    loss = DPLossFastGradientClipping(model, optimizer, _rows_of, "mean")
    if not guard:
        last = model._module.lm_head

        def forget(*_):
            last.weight._forward_counter = 0

        last.register_forward_pre_hook(forget)

    def step(batch):
        optimizer.zero_grad()
        inputs = dict(batch)
        labels = inputs.pop("labels")
        loss(model(**inputs).logits, labels).backward()
        optimizer.step()

    return opacus.step(model, optimizer, own_step=step, loader=loader)


class _Rows(torch.nn.Module):
    """Opacus asks a loss for its reduction."""

    reduction = "mean"

    def forward(self, logits, labels):
        return row_losses(logits, labels)


_rows_of = _Rows()
