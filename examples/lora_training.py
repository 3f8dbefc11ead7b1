"""Probe the private fine-tuning of a GPT-2 with LoRA adapters: Transformers, PEFT and Opacus, without a download.

    python examples/lora_training.py

or, from the command line:

    cd examples
    coalmine probe lora_training:make_step
"""

import warnings

import torch
from opacus import PrivacyEngine
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

import coalmine
from coalmine.integrations import opacus
from coalmine.integrations.transformers import IGNORED, row_losses

NOISE_MULTIPLIER, CLIP = 1.0, 0.1
VOCABULARY, LENGTH = 20, 6


def texts(seed=0, rows=24):
    """Texts of three to six tokens with padding, as a tokenizer and a collator give them; each has its position ids."""
    tokens = torch.randint(0, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))
    found = []
    for row, length in zip(tokens, 3 + torch.arange(rows) % 4, strict=True):
        there = torch.arange(LENGTH) < length
        labels = row.masked_fill(~there, IGNORED)
        positions = torch.arange(LENGTH)
        found.append({"input_ids": row, "labels": labels, "attention_mask": there.long(), "position_ids": positions})
    return found


def base(**options):
    """A tiny GPT-2 with random weights; a real one is GPT2LMHeadModel.from_pretrained(...)."""
    sizes = {"vocab_size": VOCABULARY, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    rest = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **rest, **options}))


def adapted(model, **options):
    """The model with adapters. They begin at random: from B = 0, as usual, no row reaches A in the first step."""
    adapters = {"r": 2, "lora_alpha": 16, "target_modules": ["c_attn"], "fan_in_fan_out": True}
    return get_peft_model(model, LoraConfig(**adapters, init_lora_weights=False, **options))


def private(model, dataset, *, parameters=None, **options):
    """What make_private gives: the private optimizer holds what is trained, and nothing else is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus: noise that is not cryptographic
        return PrivacyEngine().make_private(
            module=model.train(),
            optimizer=torch.optim.SGD(parameters or [p for p in model.parameters() if p.requires_grad], lr=0.1),
            data_loader=DataLoader(dataset, batch_size=6),
            **{"noise_multiplier": NOISE_MULTIPLIER, "max_grad_norm": CLIP, **options},
        )


def training_step(model, optimizer):
    """The step of the training loop, as a function of a batch."""

    def step(batch):
        optimizer.zero_grad()
        inputs = dict(batch)
        labels = inputs.pop("labels")
        if len(labels):
            row_losses(model(**inputs).logits, labels).mean().backward()
        else:  # Transformers' models fail on an empty batch, which Poisson sampling draws: it is noise alone
            for one in optimizer.params:
                one.grad_sample = one.new_zeros((0, *one.shape))
        optimizer.step()

    return step


def make_step(seed=0):
    """The step with its promise, which is read off Opacus's objects."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = adapted(base())
    model, optimizer, loader = private(model, texts(seed))
    return opacus.step(model, optimizer, own_step=training_step(model, optimizer), loader=loader)


if __name__ == "__main__":
    print(coalmine.probe(make_step()).in_words())
