"""Trainings with Opacus 1.6: unmodified, and with the mistakes that its users and its own history have made."""

from __future__ import annotations

import warnings

import torch
from opacus import PrivacyEngine
from opacus.grad_sample import register_norm_sampler
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coalmine.integrations import opacus
from coalmine.probing.private_step import PrivateStep

FEATURES, CLASSES, CLIP, SIGMA = 6, 3, 1.0, 1.0


def rows(seed, count=24):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, FEATURES, generator=generator), torch.arange(count) % CLASSES)


def network():
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def private(seed, *, model=None, dataset=None, optimizer=None, batch_size=6, **options):
    """Everything that make_private gives, with quiet warnings: model, optimizer, loss, loader."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        model = (model or network)()
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=(optimizer or plain_sgd)(model.parameters()),
            criterion=nn.CrossEntropyLoss(),
            data_loader=DataLoader(dataset or rows(seed), batch_size=batch_size),
            **{"noise_multiplier": SIGMA, "max_grad_norm": CLIP, **options},
        )
    if options.get("grad_sample_mode") == "ghost":
        return made
    return (*made[:2], nn.CrossEntropyLoss(), made[2])


def plain_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def step(seed, **options):
    model, optimizer, loss, loader = private(seed, **options)
    return opacus.step(model, optimizer, loss, loader=loader)


# Right ones.


def hooks(seed):
    return step(seed)


def functorch(seed):
    return step(seed, grad_sample_mode="functorch")


def expanded_weights(seed):
    return step(seed, grad_sample_mode="ew")


def ghost(seed):
    return step(seed, grad_sample_mode="ghost")


def small_clip_ghost(seed):
    return step(seed, grad_sample_mode="ghost", max_grad_norm=0.5)


def per_layer(seed):
    return step(seed, clipping="per_layer", max_grad_norm=[CLIP / 2.0] * 4)


def split_batches(seed):
    model, optimizer, loss, loader = private(seed)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as split:
        return opacus.step(model, optimizer, loss, loader=split)


def adam(seed):
    return step(seed, optimizer=torch.optim.Adam)


def momentum(seed):
    return step(seed, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01))


def secure(seed):
    model, optimizer, loss, loader = private(seed)
    optimizer.secure_mode = True
    return opacus.step(model, optimizer, loss, loader=loader)


# Broken ones.


def adaptive(seed):
    """Unmodified: the next clip norm follows the unclipped part of the rows, over their real number."""
    return step(
        seed,
        clipping="adaptive",
        target_unclipped_quantile=0.5,
        clipbound_learning_rate=0.2,
        max_clipbound=8.0,
        min_clipbound=0.1,
        unclipped_num_std=2.0,
    )


def ghost_with_another_clip_norm(seed):
    """Ghost clipping clips to the module's own norm, which nobody set (before opacus PR 664)."""
    model, optimizer, loss, loader = private(seed, grad_sample_mode="ghost", max_grad_norm=0.5)
    model.max_grad_norm = 1.0
    return opacus.step(model, optimizer, loss, loader=loader)


class LinearWithWrongNorm(nn.Linear):
    pass


@register_norm_sampler(LinearWithWrongNorm)
def norms_without_bias(layer, activations, backprops):
    """The bias's share of the norm is far too small (before opacus PR 751)."""
    size = backprops.norm(dim=1)
    return {layer.weight: size * activations[0].norm(dim=1), layer.bias: 0.01 * size}


def ghost_with_wrong_bias_norm(seed):
    return step(
        seed,
        grad_sample_mode="ghost",
        model=lambda: nn.Sequential(LinearWithWrongNorm(FEATURES, 8), nn.Tanh(), LinearWithWrongNorm(8, CLASSES)),
    )


def steps_the_other_optimizer(seed):
    """The private optimizer is made, and the ordinary one is stepped (opacus issue 313)."""
    model, optimizer, loss, loader = private(seed)
    private_one = opacus.step(model, optimizer, loss, loader=loader)
    ordinary = optimizer.original_optimizer

    def unprivate(batch):
        x, y = batch
        ordinary.zero_grad()
        loss(model(x), y).backward()
        for one in model.parameters():
            one.grad_sample = None
        ordinary.step()

    return PrivateStep(
        step=unprivate,
        state=[model, ordinary],
        batch=private_one.batch,
        clip_norm=CLIP,
        noise_multiplier=SIGMA,
        divisor=private_one.divisor,
        name="steps the other optimizer",
    )


def noise_forgotten(seed):
    """An optimizer whose noise multiplier was set to zero after it was made."""
    model, optimizer, loss, loader = private(seed)
    found = opacus.step(model, optimizer, loss, loader=loader)
    optimizer.noise_multiplier = 0.0
    return found


def seeded_generator(seed):
    """A noise generator that is made anew, with the same seed, before each step."""
    model, optimizer, loss, loader = private(seed)
    right = opacus.step(model, optimizer, loss, loader=loader)

    def again(batch):
        optimizer.generator = torch.Generator().manual_seed(3)
        right.step(batch)

    return PrivateStep(
        step=again,
        state=right.state,
        batch=right.batch,
        clip_norm=CLIP,
        noise_multiplier=SIGMA,
        divisor=right.divisor,
        name="seeded generator",
    )


def from_data_set(seed, *, count=20, expected=None, batch_size=4):
    """The step as a function of its data set: what make_private computes from it shows."""

    def build(dataset):
        model, optimizer, loss, loader = private(0, dataset=dataset, batch_size=batch_size)
        if expected is not None:
            optimizer.expected_batch_size = expected
            loader.batch_sampler.sample_rate = 0.2
        return opacus.step(model, optimizer, loss, loader=loader)

    dataset = rows(seed, count)
    found = build(dataset)
    return PrivateStep(
        **{
            **{name: getattr(found, name) for name in ("step", "state", "clip_norm", "noise_multiplier", "divisor")},
            "batch": found.batch,
            "build": build,
            "dataset": dataset,
            "name": f"Opacus from {count} rows",
        }
    )


def fixed_divisor(seed):
    """The right twin: divisor and sampling rate are constants."""
    return from_data_set(seed, expected=4)


def standardized(seed, spread_of):
    """Features are divided by their spread, which is known before the first step."""

    def build(dataset):
        x, y = dataset.tensors
        spread = spread_of(x)
        model, optimizer, loss, _ = private(0, dataset=dataset)
        optimizer.expected_batch_size = 6
        found = opacus.step(model, optimizer, loss, batch=(x[:6], y[:6]))

        def step(batch):
            found.step((batch[0] / spread, batch[1]))

        return PrivateStep(
            step=step,
            state=found.state,
            batch=found.batch,
            clip_norm=CLIP,
            noise_multiplier=SIGMA,
            divisor=found.divisor,
            build=build,
            dataset=dataset,
            name="standardized",
        )

    return build(rows(seed))


def standardized_from_data_set(seed):
    return standardized(seed, lambda x: x.std(dim=0))


def standardized_with_constants(seed):
    return standardized(seed, lambda x: torch.ones(FEATURES))
