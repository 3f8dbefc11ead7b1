"""Audit a training with torch without inventing an attack: ready canaries, ready scores, one level for all of them.

    python examples/ready_parts.py

The private steps of both trainings are right. The second one has batch normalization and releases its running
statistics, which no noise hides: the score ``buffers`` tells it.
"""

import functools

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import coalmine
from coalmine.integrations import ready

STEPS, SIGMA, RATE = 2, 1.0, 0.1
CLAIM = coalmine.DpSgd(sample_rate=1.0, noise_multiplier=SIGMA, steps=STEPS)


def rows():
    """Thirty rows of two classes."""
    made = torch.Generator().manual_seed(0)
    return torch.randn(30, 5, generator=made), torch.arange(30) % 2


def make_model(normalized=False):
    """The network as it is before training, the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.BatchNorm1d(5, affine=False) if normalized else nn.Identity(), nn.Linear(5, 2))


def train(dataset, seed, build=make_model):
    """Full-batch DP-SGD: the gradient of each row is clipped to norm 1, and the sum gets noise of σ."""
    model, noise = build(), torch.Generator().manual_seed(seed)
    x, y = dataset
    for _ in range(STEPS):
        model.train()(x)  # running statistics, where there are any
        model.eval()
        parameters = {name: one.detach() for name, one in model.named_parameters()}
        state = dict(model.named_buffers())

        def loss(values, a, b, state=state):
            return nn.functional.cross_entropy(functional_call(model, {**values, **state}, (a[None],)), b[None])

        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
        norms = torch.cat([one.flatten(1) for one in gradients.values()], dim=1).norm(dim=1)
        factor = 1.0 / norms.clamp(min=1.0)
        with torch.no_grad():
            for name, one in model.named_parameters():
                total = torch.einsum("i,i...->...", factor, gradients[name])
                one -= RATE * (total + SIGMA * torch.randn(total.shape, generator=noise))
    return model


make_normalized = functools.partial(make_model, normalized=True)
train_normalized = functools.partial(train, build=make_normalized)


def audit(training, build, *, canary="far", trials=200, store="trials.db"):
    """All ready scores of one ready canary."""
    canaries = ready.canaries(rows(), make_model=build)
    return coalmine.audit_function(
        functools.partial(ready.guarded, training),  # a training that fails is a result too
        ready.named_scores(make_model=build),  # several scores, which share the level
        worlds=coalmine.neighbours(rows(), canaries[canary]),
        claim_dpsgd=CLAIM,
        trials=trials,
        store=store,
    )


if __name__ == "__main__":
    print("canaries:", ", ".join(ready.canaries(rows(), make_model=make_model)))
    for name, training, build in (
        ("plain network", train, make_model),
        ("batch normalization", train_normalized, make_normalized),
    ):
        print(f"{name}: {audit(training, build).in_words()}")
