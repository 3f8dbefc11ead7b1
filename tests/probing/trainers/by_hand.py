"""DP-SGD written by hand in torch, as people write it: the right one, and the same with one bug at a time.

Every broken trainer overrides the one method that its bug is in. Its right twin is the class that it is made from.
"""

from __future__ import annotations

import secrets

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from coalmine.probing.private_step import PrivateStep

FEATURES, CLASSES, ROWS = 6, 3, 6


class Trainer:
    """Gradients of each row, clipped, added up, noised, divided; then an optimizer's step."""

    clip, sigma, expected, rate = 1.0, 1.0, 6.0, 0.1

    def __init__(self, seed):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = self.network()
            self.batch = self.rows()
        self.optimizer = self.make_optimizer()

    def network(self):
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def rows(self):
        return torch.randn(ROWS, FEATURES), torch.arange(ROWS) % CLASSES

    def make_optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=self.rate)

    def loss(self, parameters, x, y):
        return nn.functional.cross_entropy(functional_call(self.model, parameters, (x[None],)), y[None])

    def row_gradients(self, x, y):
        parameters = {name: one.detach() for name, one in self.model.named_parameters()}
        if len(x) == 0:
            return {name: one.new_zeros(0, *one.shape) for name, one in parameters.items()}
        return vmap(grad(self.loss), in_dims=(None, 0, 0), randomness="different")(parameters, x, y)

    def norms(self, gradients):
        return torch.stack([one.flatten(1).norm(dim=1) for one in gradients.values()]).norm(dim=0)

    def clipped(self, gradients):
        factor = (self.clip / self.norms(gradients).clamp(min=1e-9)).clamp(max=1.0)
        return {name: torch.einsum("i,i...->i...", factor, one) for name, one in gradients.items()}

    def summed(self, x, y):
        return {name: one.sum(dim=0) for name, one in self.clipped(self.row_gradients(x, y)).items()}

    def noise(self, name, like):
        return self.sigma * self.clip * torch.randn_like(like)

    def divisor(self, x):
        return self.expected

    def noised(self, total):
        return {name: one + self.noise(name, one) for name, one in total.items()}

    def move(self, gradients):
        for name, one in self.model.named_parameters():
            one.grad = gradients[name]
        self.optimizer.step()

    def step(self, batch):
        x, y = batch
        self.move({name: one / self.divisor(x) for name, one in self.noised(self.summed(x, y)).items()})

    def state(self):
        return [self.model, self.optimizer]

    def promise(self):
        return {"divisor": self.expected}

    def private_step(self):
        return PrivateStep(
            step=self.step,
            state=self.state(),
            batch=self.batch,
            clip_norm=self.clip,
            noise_multiplier=self.sigma,
            name=type(self).__name__,
            **self.promise(),
        )


# Noise.


class NoNoise(Trainer):
    def noise(self, name, like):
        return 0.0


class HalfTheNoise(Trainer):
    def noise(self, name, like):
        return 0.5 * super().noise(name, like)


class EightTenthsOfTheNoise(Trainer):
    def noise(self, name, like):
        return 0.8 * super().noise(name, like)


class NoiseDividedTwice(Trainer):
    """Meant for the mean, added to the sum."""

    def noise(self, name, like):
        return super().noise(name, like) / self.expected


class NoiseOnTheLastLayerOnly(Trainer):
    def noise(self, name, like):
        return super().noise(name, like) if name.startswith("2.") else 0.0


class LaplaceNoise(Trainer):
    """As large, but of another law."""

    def noise(self, name, like):
        return self.sigma * self.clip / 2**0.5 * torch.distributions.Laplace(0.0, 1.0).sample(like.shape)


class NoiseSeededInTheStep(Trainer):
    def step(self, batch):
        self.generator = torch.Generator().manual_seed(7)
        super().step(batch)

    def noise(self, name, like):
        return self.sigma * self.clip * torch.randn(like.shape, generator=self.generator)


class NoiseSeededAnew(NoiseSeededInTheStep):
    """The right twin: a seed of its own for each step, which nobody can foresee."""

    def step(self, batch):
        self.generator = torch.Generator().manual_seed(secrets.randbits(63))
        Trainer.step(self, batch)


class OneKeyForTwoTensors(Trainer):
    """The same key for every tensor: those of the same size get the same noise."""

    def network(self):
        return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES))

    def noised(self, total):
        key = int(torch.randint(0, 2**31, ()))
        found = {}
        for place, (name, one) in enumerate(total.items()):
            generator = torch.Generator().manual_seed(self.key(key, place))
            found[name] = one + self.sigma * self.clip * torch.randn(one.shape, generator=generator)
        return found

    def key(self, key, place):
        return key


class AKeyForEachTensor(OneKeyForTwoTensors):
    def key(self, key, place):
        return key + place


class NoiseBroadcast(Trainer):
    """One number for each row of a matrix."""

    def noise(self, name, like):
        return self.sigma * self.clip * torch.randn(like.shape[0], *[1] * (like.ndim - 1)).expand_as(like)


class NoiseInsideTheClipping(Trainer):
    """Noise on each row's gradient, then clipping."""

    def clipped(self, gradients):
        return super().clipped({name: one + self.sigma * torch.randn_like(one) for name, one in gradients.items()})

    def noise(self, name, like):
        return 0.0


class NoisedSumClipped(Trainer):
    """Raw gradients are added up and noised, and the whole is clipped."""

    def clipped(self, gradients):
        return gradients

    def noised(self, total):
        return self.bounded(super().noised(total))

    def bounded(self, noised):
        norm = torch.sqrt(sum(one.square().sum() for one in noised.values()))
        factor = min(1.0, float(self.clip / norm))
        return {name: factor * one for name, one in noised.items()}


class NoisedSumClippedAgain(Trainer):
    """The right twin: rows are clipped, and the noised sum is clipped once more, which costs no privacy."""

    def noised(self, total):
        return NoisedSumClipped.bounded(self, super().noised(total))


# Clipping.


class NoClipping(Trainer):
    def clipped(self, gradients):
        return gradients


class ClipsEachLayer(Trainer):
    def clipped(self, gradients):
        found = {}
        for name, one in gradients.items():
            factor = (self.clip / one.flatten(1).norm(dim=1).clamp(min=1e-9)).clamp(max=1.0)
            found[name] = torch.einsum("i,i...->i...", factor, one)
        return found


class ClipsEachLayerToItsShare(ClipsEachLayer):
    """The right twin: C/√L for each of L tensors."""

    def clipped(self, gradients):
        found = {}
        for name, one in gradients.items():
            share = self.clip / len(gradients) ** 0.5
            factor = (share / one.flatten(1).norm(dim=1).clamp(min=1e-9)).clamp(max=1.0)
            found[name] = torch.einsum("i,i...->i...", factor, one)
        return found


class ClipsTheMean(Trainer):
    """The batch's mean gradient is clipped to C, and its noise is that of a mean of clipped rows."""

    def clipped(self, gradients):
        count = max(len(next(iter(gradients.values()))), 1)
        mean = {name: one.sum(dim=0, keepdim=True) / count for name, one in gradients.items()}
        return {name: self.expected * one for name, one in super().clipped(mean).items()}


class ClipsPairs(Trainer):
    """Microbatches of two rows."""

    size = 2

    def clipped(self, gradients):
        groups = {name: list(one.split(self.size)) for name, one in gradients.items()}
        means = {name: [one.mean(dim=0) for one in several if len(one)] for name, several in groups.items()}
        if not any(means.values()):
            return gradients
        return super().clipped({name: torch.stack(several) for name, several in means.items()})


class ForgetsTheBias(Trainer):
    """The norm of a row leaves its biases out."""

    def norms(self, gradients):
        return super().norms({name: one for name, one in gradients.items() if "bias" not in name})


class RawGradientsMixedIn(Trainer):
    """backward() has left raw gradients, and the private ones are added to them."""

    def move(self, gradients):
        super().move({name: one + self.raw[name] for name, one in gradients.items()})

    def step(self, batch):
        x, y = batch
        self.raw = {name: one.sum(dim=0) / self.expected for name, one in self.row_gradients(x, y).items()}
        super().step(batch)


# Rows that reach each other.


class RealizedBatchSize(Trainer):
    def divisor(self, x):
        return max(len(x), 1)


class RealizedBatchSizeForTheSum(Trainer):
    """Noise is that of the expected size, but the sum is divided by the real one."""

    def summed(self, x, y):
        return {name: one * self.expected / max(len(x), 1) for name, one in super().summed(x, y).items()}


class Standardizes(Trainer):
    """Features are standardized with the batch's own mean and spread."""

    def row_gradients(self, x, y):
        if len(x) > 1:
            x = (x - x.mean(dim=0)) / (x.std(dim=0) + 1e-3)
        return super().row_gradients(x, y)


class StandardizesWithConstants(Trainer):
    def row_gradients(self, x, y):
        return super().row_gradients((x - 0.1) / 1.1, y)


class WeighsClasses(Trainer):
    """Rare classes weigh more, by their counts in this batch."""

    def row_gradients(self, x, y):
        found = super().row_gradients(x, y)
        weight = 1.0 / torch.bincount(y, minlength=CLASSES).clamp(min=1)[y]
        return {name: torch.einsum("i,i...->i...", weight, one) for name, one in found.items()}


class BatchNorm(Trainer):
    """Each row's loss is differentiated, but the forward pass mixes the rows."""

    def network(self):
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))

    def row_gradients(self, x, y):
        parameters = list(self.model.parameters())
        if len(x) < 2:
            return {name: one.new_zeros(len(x), *one.shape) for name, one in self.model.named_parameters()}
        losses = nn.functional.cross_entropy(self.model(x), y, reduction="none")
        rows = [torch.autograd.grad(one, parameters, retain_graph=True) for one in losses]
        names = [name for name, _ in self.model.named_parameters()]
        return {name: torch.stack([row[k] for row in rows]) for k, name in enumerate(names)}


class GroupNorm(Trainer):
    """The right twin of batch normalization."""

    def network(self):
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.GroupNorm(2, 8), nn.Tanh(), nn.Linear(8, CLASSES))


class SharedPositions(Trainer):
    """Tokens; every row's gradient of the position table is that of the whole batch: one row of ids for all."""

    merge = True

    def network(self):
        return TokenNetwork()

    def rows(self):
        return torch.randint(0, 7, (ROWS, 4)), torch.arange(ROWS) % CLASSES

    def row_gradients(self, x, y):
        found = super().row_gradients(x, y)
        if self.merge and len(x):
            merged = found["positions.weight"].sum(dim=0, keepdim=True)
            found["positions.weight"] = merged.expand(len(x), -1, -1)
        return found


class OwnPositions(SharedPositions):
    merge = False


class TokenNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(7, 5), nn.Embedding(4, 5)
        self.last = nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.last(torch.tanh(self.tokens(x) + self.positions(torch.arange(4))).mean(dim=1))


class TokenTrainer(Trainer):
    def network(self):
        return TokenNetwork()

    def rows(self):
        return torch.randint(0, 7, (ROWS, 4)), torch.arange(ROWS) % CLASSES


class NoiseOnSeenTokensOnly(TokenTrainer):
    """Noise is added only to those rows of the embedding that the batch uses."""

    def noised(self, total):
        noised = super().noised(total)
        used = total["tokens.weight"].abs().sum(dim=1, keepdim=True) > 0
        noised["tokens.weight"] = torch.where(used, noised["tokens.weight"], 0.0)
        return noised


# What is not covered by noise.


class EmbeddingOutside(TokenTrainer):
    """The embedding has an optimizer of its own, without noise."""

    def noise(self, name, like):
        return 0.0 if name == "tokens.weight" else super().noise(name, like)


class Adapter(nn.Module):
    """A base that should be frozen, and a low-rank adapter beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(FEATURES, CLASSES)
        self.down, self.up = nn.Linear(FEATURES, 2, bias=False), nn.Linear(2, CLASSES, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class AdapterTrainer(Trainer):
    """Trains the adapter; the base stays as it is."""

    def network(self):
        return Adapter()

    def make_optimizer(self):
        return torch.optim.SGD([*self.model.down.parameters(), *self.model.up.parameters()], lr=self.rate)

    def row_gradients(self, x, y):
        found = super().row_gradients(x, y)
        return {name: one if "base" not in name else torch.zeros_like(one) for name, one in found.items()}

    def move(self, gradients):
        super().move({name: one if "base" not in name else torch.zeros_like(one) for name, one in gradients.items()})


class BaseNotFrozen(AdapterTrainer):
    """The base has an ordinary optimizer that nobody took away."""

    def __init__(self, seed):
        super().__init__(seed)
        self.other = torch.optim.SGD(self.model.base.parameters(), lr=self.rate)

    def step(self, batch):
        self.train_base(*batch)
        super().step(batch)

    def train_base(self, x, y):
        self.other.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y, reduction="sum")
        for one, gradient in zip(
            self.model.base.parameters(), torch.autograd.grad(loss, list(self.model.base.parameters())), strict=True
        ):
            one.grad = gradient / self.expected
        self.other.step()

    def state(self):
        return [self.model, self.optimizer, self.other]


class BaseTrainedAfterwards(BaseNotFrozen):
    """The same, but its gradient is that of the model after the private step, so some noise reaches it."""

    def step(self, batch):
        AdapterTrainer.step(self, batch)
        self.train_base(*batch)


class Momentum(Trainer):
    def make_optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=self.rate, momentum=0.9)


class MomentumBeforeNoise(Trainer):
    """Momentum gathers clipped gradients without noise; only what moves the parameters is noised."""

    shown = True

    def __init__(self, seed):
        super().__init__(seed)
        self.momentum = {name: torch.zeros_like(one) for name, one in self.model.named_parameters()}

    def noised(self, total):
        for name, one in total.items():
            self.momentum[name].mul_(0.9).add_(one.detach())
        return super().noised({name: one.clone() for name, one in self.momentum.items()})

    def state(self):
        return [*super().state(), {"momentum": self.momentum}] if self.shown else super().state()


class HiddenMomentumBeforeNoise(MomentumBeforeNoise):
    """The same, where nobody hands the momentum over."""

    shown = False


class AdamByHand(Trainer):
    """Adam of noised gradients."""

    before_noise = False

    def __init__(self, seed):
        super().__init__(seed)
        self.first = {name: torch.zeros_like(one) for name, one in self.model.named_parameters()}
        self.second = {name: torch.zeros_like(one) for name, one in self.model.named_parameters()}

    def step(self, batch):
        x, y = batch
        total = self.summed(x, y)
        seen = total if self.before_noise else None
        noised = {name: one / self.expected for name, one in self.noised(total).items()}
        for name, one in self.model.named_parameters():
            raw = seen[name] / self.expected if seen is not None else noised[name]
            self.first[name].mul_(0.9).add_(0.1 * noised[name])
            self.second[name].mul_(0.99).add_(0.01 * raw.square())
            one.data.sub_(self.rate * self.first[name] / (self.second[name].sqrt() + 1e-2))

    def state(self):
        return [self.model, {"first moment": self.first, "second moment": self.second}]


class AdamStateBeforeNoise(AdamByHand):
    """The second moment is that of gradients without noise."""

    before_noise = True


# Over several steps.


class TwoBatchesOneNoise(Trainer):
    """Every second call adds noise to the gradients of two batches and steps."""

    def __init__(self, seed):
        super().__init__(seed)
        self.calls, self.gathered = 0, {}

    def step(self, batch):
        x, y = batch
        total = self.summed(x, y)
        self.calls += 1
        if self.calls % 2:
            self.gathered = total
            return
        both = {name: one + self.gathered[name] for name, one in total.items()}
        self.move({name: one / self.divisor(x) for name, one in self.noised(both).items()})


class NeverZeroed(Trainer):
    """Clipped gradients pile up from step to step."""

    def __init__(self, seed):
        super().__init__(seed)
        self.pile = {name: torch.zeros_like(one) for name, one in self.model.named_parameters()}

    def summed(self, x, y):
        for name, one in super().summed(x, y).items():
            self.pile[name] += one
        return {name: one.clone() for name, one in self.pile.items()}


# What else is released.


class ReturnsTheLoss(Trainer):
    def step(self, batch):
        super().step(batch)
        x, y = batch
        return {"loss": float(nn.functional.cross_entropy(self.model(x), y)) if len(x) else 0.0}


class ReturnsNoNumberOfTheRows(Trainer):
    """The right twin: what it returns does not depend on the rows."""

    def step(self, batch):
        super().step(batch)
        return {"learning rate": self.rate}


class PlateauSchedule(Trainer):
    """The learning rate follows the training loss."""

    def __init__(self, seed):
        super().__init__(seed)
        self.schedule = self.make_schedule()

    def make_schedule(self):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=2)

    def step(self, batch):
        super().step(batch)
        self.schedule_step(*batch)

    def schedule_step(self, x, y):
        with torch.no_grad():
            self.schedule.step(nn.functional.cross_entropy(self.model(x), y) if len(x) else torch.tensor(0.0))

    def state(self):
        return [*super().state(), self.schedule]


class StepSchedule(PlateauSchedule):
    def make_schedule(self):
        return torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2)

    def schedule_step(self, x, y):
        self.schedule.step()


# Rows and batches at the edge.


class FailsOnEmptyBatch(Trainer):
    """Stacks the rows' gradients, of which there are none."""

    def row_gradients(self, x, y):
        parameters = {name: one.detach() for name, one in self.model.named_parameters()}
        rows = [grad(self.loss)(parameters, a, b) for a, b in zip(x, y, strict=True)]
        return {name: torch.stack([row[name] for row in rows]) for name in parameters}


class SkipsEmptyBatch(Trainer):
    def step(self, batch):
        if len(batch[0]):
            super().step(batch)


class SetsBrokenRowsToZero(Trainer):
    """The right twin where rows may hold NaN."""

    def promise(self):
        return {**super().promise(), "nonfinite_rows": True}

    def row_gradients(self, x, y):
        return {name: one.nan_to_num(0.0, 0.0, 0.0) for name, one in super().row_gradients(x, y).items()}


class NaNSpreads(SetsBrokenRowsToZero):
    def row_gradients(self, x, y):
        return Trainer.row_gradients(self, x, y)


class ScaledLoss(Trainer):
    """A loss scale for half precision; overflow is seen for each row, and such a row counts as nothing."""

    def network(self):
        return nn.Sequential(nn.Linear(FEATURES, CLASSES))

    def row_gradients(self, x, y):
        found = super().row_gradients(x, y)
        return {name: (one.half() * 512.0).float().nan_to_num(0.0, 0.0, 0.0) / 512.0 for name, one in found.items()}


class GradScalerSkips(Trainer):
    """torch's GradScaler leaves out the step when any gradient overflows."""

    def network(self):
        return nn.Sequential(nn.Linear(FEATURES, CLASSES))

    def __init__(self, seed):
        super().__init__(seed)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=10_000)

    def row_gradients(self, x, y):
        found = super().row_gradients(x, y)
        return {name: (one.half() * 512.0).float() for name, one in found.items()}

    def clipped(self, gradients):
        return {
            name: one * 512.0 for name, one in super().clipped({n: g / 512.0 for n, g in gradients.items()}).items()
        }

    def noise(self, name, like):
        return 512.0 * super().noise(name, like)

    def move(self, gradients):
        for name, one in self.model.named_parameters():
            one.grad = gradients[name]
        self.scaler.scale(torch.ones(()))
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state(self):
        return [*super().state(), self.scaler]


class ReplacedRows(Trainer):
    """Accounted for replaced rows, with the sensitivity of an added one."""

    def promise(self):
        return {**super().promise(), "relation": "replace"}


class ReplacedRowsCountedTwice(Trainer):
    def promise(self):
        return {**super().promise(), "relation": "replace", "sensitivity": 2.0 * self.clip}


# Right ones of other kinds.


class Dropout(Trainer):
    """Randomness for each row, inside vmap."""

    def network(self):
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, CLASSES))


class LoopsOverRows(Trainer):
    """Row by row, with dropout: the draws of a step are as many as its rows."""

    def network(self):
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, CLASSES))

    def row_gradients(self, x, y):
        parameters = list(self.model.parameters())
        names = [name for name, _ in self.model.named_parameters()]
        rows = [
            torch.autograd.grad(nn.functional.cross_entropy(self.model(a[None]), b[None]), parameters)
            for a, b in zip(x, y, strict=True)
        ]
        if not rows:
            return {name: one.new_zeros(0, *one.shape) for name, one in self.model.named_parameters()}
        return {name: torch.stack([row[k] for row in rows]) for k, name in enumerate(names)}


class NumpyLoop:
    """Logistic regression with NumPy alone."""

    def __init__(self, seed, noise=1.0):
        import numpy as np

        self.rng = np.random.default_rng(seed)
        self.weights = np.zeros(FEATURES)
        x = self.rng.normal(size=(ROWS, FEATURES))
        self.batch = {"x": x, "y": (np.arange(ROWS) % 2).astype(float)}
        self.factor = noise

    def step(self, batch):
        import numpy as np

        x, y = batch["x"], batch["y"]
        error = 1.0 / (1.0 + np.exp(-np.clip(x @ self.weights, -30, 30))) - y
        gradients = error[:, None] * x
        norms = np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1e-9)
        total = (gradients * np.minimum(1.0, 1.0 / norms)).sum(axis=0)
        self.weights -= 0.1 * (total + self.factor * self.rng.normal(0.0, 1.0, FEATURES)) / 6.0

    def private_step(self):
        return PrivateStep(
            step=self.step,
            state={"weights": self.weights},
            batch=self.batch,
            clip_norm=1.0,
            noise_multiplier=1.0,
            divisor=6.0,
            learning_rate=0.1,
            name="NumpyLoop",
        )
