"""The trainer's engines, made comparable: what each can train, and the steps it took."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest
import torch
from recorders import Everything, Final
from torch import nn

from coalmine.training import (
    Activation,
    AdaptiveExample,
    AdaptiveGradient,
    BernauCnn,
    Conv2d,
    Dataset,
    Embedding,
    ExampleCanary,
    Flatten,
    FromModule,
    GradientCanary,
    GradientRows,
    Linear,
    LogisticRegression,
    MeanPositions,
    Mlp,
    NasrCnn,
    Neighbours,
    Pad2d,
    Pool2d,
    Sequential,
    TrainingConfig,
    fused,
    module,
    parameter_count,
    stages,
    train,
)
from coalmine.training.backends import SWITCH
from coalmine.training.device_draws import DeviceDraws
from coalmine.training.job import Job, Share
from coalmine.training.sampling import batches

TOKENS = 11
CUDA = torch.cuda.is_available()
INTERPRETED = fused.kernels is not None and os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's interpreter runs the fused kernels on a CPU: slow, and good enough to check what they compute."""


class Attention(nn.Module):
    """Something without a closed form here, with a weight used twice."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.mix = nn.Linear(4, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        h = self.norm(x)
        pairs = torch.softmax(self.mix(h) @ self.mix(x).transpose(1, 2), -1)
        return self.out((pairs @ h).mean(1))


def as_module(network):
    """The same network, through torch.func."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return FromModule(module(network), input_shape=network.input_shape, classes=network.classes)


def attention():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return FromModule(Attention(), input_shape=(5, 4), classes=3)


TANH = Mlp(13, hidden=(7, 5), classes=3, activation="tanh")
SMALL = {
    "logistic": LogisticRegression(13, classes=3),
    "relu": Mlp(13, hidden=(9,), classes=3),
    "one tanh": Mlp(13, hidden=(16,), classes=3, activation="tanh"),
    "sigmoid": Mlp(13, hidden=(9,), classes=10, activation="sigmoid"),
}
PERCEPTRONS = {**SMALL, "tanh": TANH, "three": Mlp(13, hidden=(4, 5, 3), classes=2, activation="sigmoid")}
CLOSED = {
    **PERCEPTRONS,
    "wide": Mlp(784, hidden=(32,), classes=2),
    "nasr": NasrCnn(input_shape=(1, 16, 16), classes=3, activation="tanh"),
    "bernau": BernauCnn(input_shape=(1, 12, 12), classes=3, filters=(4, 8), groups=2),
    "tokens": Sequential((6,), 3, (Embedding(TOKENS, 5), MeanPositions(), Linear(5, 3))),
}
STAGES = {
    "nasr": CLOSED["nasr"],
    "bernau": CLOSED["bernau"],
    "nasr, colors": NasrCnn(input_shape=(3, 18, 18), classes=3),
    "picture": Sequential(
        (3, 11, 9),
        4,
        (
            Conv2d(3, 5, 3, padding=1),
            Activation("sigmoid"),
            Conv2d(5, 7, 3, stride=2, padding=1),
            Activation("relu"),
            Pool2d("max", 2),
            Pad2d(1, 0, 0, 2),
            Conv2d(7, 6, 2, bias=False),
            Activation("tanh"),
            Flatten(),
            Linear(48, 9),
            Activation("relu"),
            Linear(9, 4),
        ),
    ),
}
"""Convolution networks that are chains of stages: with sides, channels and classes that fill no tile."""
ODD = {
    "wide and odd": Mlp(50, hidden=(33, 17), classes=10, activation="tanh"),
    "many classes": Mlp(7, hidden=(130,), classes=65),
}
"""Sizes that fill no tile of the compiled kernels."""
MODULES = {"tanh": as_module(TANH), "attention": attention()}
SAMPLINGS = {"poisson": {"sample_rate": 0.3}, "shuffle": {"batch_size": 7}, "full": {}}
CANARIES = (
    *("example", "copies", "gradient", "gradient rows"),
    *("adaptive example", "memoryless example", "adaptive gradient"),
)


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of one trial: the parameters around it, the rows that were drawn, and the private gradient."""

    before: np.ndarray
    rows: np.ndarray
    after: np.ndarray
    gradient: np.ndarray


@dataclasses.dataclass(frozen=True)
class Engine:
    """An engine: where it runs, in which numbers, and what it can train."""

    networks: dict = dataclasses.field(repr=False)
    dtype: str = "float32"
    device: str = "cpu"
    kernels: str = "0"
    samplings: tuple[str, ...] = tuple(SAMPLINGS)
    canaries: tuple[str, ...] = CANARIES

    @property
    def main(self):
        """The network that every canary and relation is tried with."""
        return "tanh" if "tanh" in self.networks else "one tanh"

    @property
    def tolerance(self):
        return 1e-10 if self.dtype == "float64" else 1e-5

    def config(self, sampling="poisson", **changes):
        settings = {"steps": 3, "clip": 0.7, "noise_multiplier": 0.0, "learning_rate": 0.3}
        return TrainingConfig(
            **{**settings, "sampling": sampling, "dtype": self.dtype, **SAMPLINGS[sampling], **changes}
        )

    def need(self, monkeypatch):
        """Skip where it is not at hand; otherwise make it the one that trains."""
        if self.device == "cuda" and not CUDA:
            pytest.skip("needs a CUDA device")
        if self.kernels == "1":
            pytest.importorskip("numba", reason="needs numba")
        monkeypatch.setenv(SWITCH, self.kernels)

    def train(self, network, neighbours, config, trials, worlds, *, observer=None, stack=None, fingerprint="engine"):
        """As a user calls it; the observer (by default one of the final model) and the result."""
        seen = observer if observer is not None else Final()
        result = train(
            network, neighbours=neighbours, config=config, fingerprint=fingerprint, trials=trials, worlds=worlds,
            observer=seen, device=self.device, stack=stack,
        )  # fmt: skip
        return seen, result

    def trace(self, network, neighbours, config, trials, worlds):
        """The steps of each trial."""
        seen, _ = self.train(network, neighbours, config, trials, worlds, observer=Everything())
        job = Job(network, neighbours, config, "engine", torch.device(self.device))
        on_device = drawn_on_device(job, trials, worlds) if stages.draws_on_device(job) else {}
        found = {}
        for trial, world in zip(trials, worlds, strict=True):
            draws = on_device.get(trial) or batches(
                neighbours, world=world, config=config, fingerprint="engine", trial=trial
            )
            parts = zip(seen.before[trial], draws, seen.after[trial], seen.gradients[trial], strict=False)
            found[trial] = [Step(*part) for part in parts]
        return found


def drawn_on_device(job, trials, worlds):
    """The rows that a GPU draws for each trial, step by step."""
    draws = DeviceDraws(Share(job, trials, worlds), device=job.device)
    found = {trial: [] for trial in trials}
    for step in range(1, job.config.steps + 1):
        rows, counts = draws.drawn(step).index.cpu().numpy(), draws.count.tolist()
        for i, trial in enumerate(trials):
            own = job.rows + np.arange(draws.times[i].item())  # which copies of a gradient does not matter
            found[trial].append(np.concatenate([rows[i, : counts[i]], own]))
    draws.check()
    return found


def fused_stack(job, trials, worlds, start):
    """A stack of one job's trials, where their starts are."""
    return fused.FusedStack([fused.Part(Share(job, trials, worlds), start, fused.FusedRows(job, start.device))])


class Fused(Engine):
    """The fused kernels, which show no single steps: here they are taken one by one."""

    def need(self, monkeypatch):
        if not (CUDA or INTERPRETED):
            pytest.skip("needs a CUDA device")

    def stack(self, network, neighbours, config, trials, worlds):
        job = Job(network, neighbours, config, "engine", torch.device("cpu"))
        start = job.initial(trials).to("cuda" if CUDA else "cpu")
        return fused_stack(job, trials, worlds, start)

    def trace(self, network, neighbours, config, trials, worlds):
        stack = self.stack(network, neighbours, config, trials, worlds)
        found = {trial: [] for trial in trials}
        for number in range(1, config.steps + 1):
            before = stack.parameters().cpu().numpy()
            stack._step(number)
            after = stack.parameters().cpu().numpy()
            rows, counts = stack._draws.index.cpu().numpy().copy(), stack._draws.count.tolist()
            for i, trial in enumerate(trials):
                moved = (before[i].astype(np.float64) - after[i]) / config.learning_rate
                found[trial].append(Step(before[i], rows[i, : counts[i]], after[i], moved))
        return found


ENGINES = {
    "closed64": Engine(CLOSED, "float64"),
    "closed32": Engine(CLOSED),
    "compiled": Engine({**PERCEPTRONS, **ODD, **STAGES, "wide": CLOSED["wide"]}, kernels="1"),
    "module64": Engine(MODULES, "float64"),
    "module32": Engine(MODULES),
    "closed64 cuda": Engine(CLOSED, "float64", "cuda"),
    "closed32 cuda": Engine(CLOSED, "float32", "cuda"),
    "module64 cuda": Engine(MODULES, "float64", "cuda"),
    "module32 cuda": Engine(MODULES, "float32", "cuda"),
    "fused cuda": Fused(SMALL, "float32", "cuda", samplings=("poisson", "full"), canaries=("example", "copies")),
}


def data_for(network, rows=23, *, tokens=TOKENS, seed=5):
    """Rows that the network takes."""
    rng = np.random.default_rng(seed)
    shape = (rows, *network.input_shape)
    whole = isinstance(network, Sequential) and isinstance(network.chain[0], Embedding)
    x = rng.integers(0, tokens, size=shape) if whole else rng.normal(size=shape).astype(np.float32)
    return Dataset(x, rng.integers(0, network.classes, size=rows))


class Moving:
    """The canary's two rows depend on the step, the trial and the current model."""

    copies = 2

    def __init__(self, network):
        self.shape, self.size, self.classes = network.input_shape, int(np.prod(network.input_shape)), network.classes

    def chosen(self, vector, trial, step):
        """What it gives for one model."""
        vector = torch.as_tensor(vector)
        x = [vector[: self.size] * step, vector[self.size : 2 * self.size] + trial]
        return [(part.view(self.shape), (step + trial + i) % self.classes) for i, part in enumerate(x)]


class MovingExample(Moving, AdaptiveExample):
    def examples(self, state):
        assert (state.step == 1) == (state.private_gradient is None)
        found = [self.chosen(p, t, state.step) for t, p in zip(state.trials.tolist(), state.parameters, strict=True)]
        x = torch.stack([torch.stack([part for part, _ in one]) for one in found])
        return x, torch.tensor([[label for _, label in one] for one in found])


class MemorylessExample(MovingExample):
    memoryless = True


class MovingGradient(Moving, AdaptiveGradient):
    """Too long, so it must be clipped."""

    def chosen(self, vector, trial, step):
        return [50 * torch.as_tensor(vector) + step] * 2

    def gradients(self, state):
        return 50 * state.parameters + state.step


def worlds_with(network, canary, relation="add_remove", *, base=None):
    """The two worlds with a canary of that kind, of two rows."""
    base = base if base is not None else data_for(network)
    rng = np.random.default_rng(1)
    made = {
        "none": lambda: None,
        "example": lambda: ExampleCanary(data_for(network, 2, seed=9).x, [0, 1]),
        "copies": lambda: ExampleCanary(data_for(network, 1, seed=9).x[0], 1, copies=2),
        "gradient": lambda: GradientCanary(rng.normal(size=parameter_count(network)), copies=2),
        "gradient rows": lambda: GradientRows([[0, 2], [2, 5]], [[5.0, -1.0], [0.25, 0.1]]),
        "adaptive example": lambda: MovingExample(network),
        "memoryless example": lambda: MemorylessExample(network),
        "adaptive gradient": lambda: MovingGradient(network),
    }[canary]()
    replaced = (3, 11) if relation == "replace" and made is not None else ()
    return Neighbours(base, canary=made, relation=relation, replaced=replaced)
