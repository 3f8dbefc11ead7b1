"""One stack of trainings from the first step to the last."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine import seeds
from coalmine.errors import InvalidInputError
from coalmine.records import Sampling
from coalmine.roles import Observer, View
from coalmine.training import compiled, networks, sampling
from coalmine.training.architectures import takes_tokens
from coalmine.training.batching import Batcher, FullBatcher, Table, width
from coalmine.training.canary import AdaptiveExample, AdaptiveGradient, GradientCanary, Neighbours
from coalmine.training.clipping import ClosedForm, Views, parameter_views
from coalmine.training.compiled import CompiledSums, CompiledTable
from coalmine.training.config import GivenWeights, TrainingConfig
from coalmine.training.data import AlikeRows, Dataset
from coalmine.training.layers import Run, Scratch
from coalmine.training.models import BlackBox, StackedModels, padded
from coalmine.training.modules import Opaque, PerExample
from coalmine.training.noise import gpu_noise, make_noise
from coalmine.training.optimisers import Update
from coalmine.training.pair import Pair, PairTerm

_TILE_BYTES = 2**19
"""Inputs of one tile: about half of a core's second-level cache."""
_SMALL = 4096
"""Up to this many parameters, a canary's gradient is added for the whole stack at once."""
_CHECKS = 16
"""How often in a training the models are checked for numbers that are not finite."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """What an observer sees of a step (:class:`coalmine.roles.Iterate`), and an adaptive canary before it."""

    trials: NDArray[np.int64]
    step: int
    previous: Any
    parameters: Any
    private_gradient: Any
    pair: Pair | None = None


@dataclasses.dataclass(frozen=True)
class StackResult:
    """What became of each trial: its score(s) if an observer gave any, and why it failed if it did."""

    scores: NDArray[np.float64] | None
    failures: dict[int, str]


def initial_parameters(
    network: networks.Network,
    config: TrainingConfig,
    *,
    fingerprint: str,
    trials: Sequence[int],
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Where each trial starts, ``[S, P]``: on one kind of device a function of (fingerprint, trial) alone.

    A GPU draws starts of its own (thousands at once would take longer on the processor than their training here).
    """
    start = config.initialisation
    if isinstance(start, GivenWeights) or start.fixed:
        if isinstance(start, GivenWeights):
            vector = start.values
        else:
            generator = seeds.generator(f"fixed start {start.seed}", purpose="initialisation", trial=0)
            vector = networks.glorot(network, scale=1.0, generator=generator)
        return torch.from_numpy(vector).to(device=device, dtype=dtype).expand(len(trials), -1)
    if device.type == "cuda":
        spread, mean = (
            torch.from_numpy(part).to(device=device, dtype=dtype)
            for part in networks.glorot_law(network, scale=start.scale)
        )
        drawn = torch.zeros((len(trials), spread.numel()), device=device, dtype=dtype)
        normals = gpu_noise(
            fingerprint, trials, size=spread.numel(), device=device, dtype=dtype, purpose="initialisation"
        )
        normals.add_to(drawn, scale=1.0)
        return drawn.mul_(spread).add_(mean)
    rows = [
        networks.glorot(
            network,
            scale=start.scale,
            generator=seeds.generator(fingerprint, purpose="initialisation", trial=trial),
        )
        for trial in trials
    ]
    return torch.from_numpy(np.stack(rows)).to(dtype)


@dataclasses.dataclass(frozen=True)
class Tile:
    """A few models of the stack that go through forward and backward together."""

    part: slice
    views: Views
    out: Views
    batcher: Batcher | FullBatcher
    width: int


def make_table(
    network: networks.Network, neighbours: Neighbours, config: TrainingConfig, *, device: torch.device
) -> Table | None:
    """The rows on the device; nothing where the data has no gradients."""
    if not isinstance(neighbours.base, Dataset):
        return None
    return Table(
        neighbours,
        classes=network.classes,
        tokens=takes_tokens(network),
        device=device,
        dtype=torch.float32 if config.dtype == "float32" else torch.float64,
    )


def shared_table(
    network: networks.Network, neighbours: Neighbours, config: TrainingConfig, *, device: torch.device, paired: bool
) -> Table | CompiledTable | None:
    """The rows for every stack of a training, as the kernels want them that will do the work."""
    dtype = torch.float32 if config.dtype == "float32" else torch.float64
    refused = compiled.refusal(network, neighbours=neighbours, paired=paired)
    if refused is None and compiled.usable(device=device, dtype=dtype):
        return CompiledTable(neighbours)
    return make_table(network, neighbours, config, device=device)


def _filled(rows: Tensor, models: int) -> Tensor:
    """Repeat the last row until there is one for every model, idle ones included."""
    if rows.shape[0] == models:
        return rows
    return torch.cat([rows, rows[-1:].expand(models - rows.shape[0], *rows.shape[1:])])


def make_engine(network: networks.Network, *, device: torch.device, dtype: torch.dtype) -> ClosedForm | PerExample:
    """What computes clipped sums for this network: closed forms where every layer has one."""
    first = network.layers()[0]
    return PerExample(first, device=device, dtype=dtype) if isinstance(first, Opaque) else ClosedForm(network)


def _adaptive(canary: object, method: str) -> bool:
    """Whether a canary chooses its ``examples`` or ``gradients`` anew each step."""
    return hasattr(canary, method) and hasattr(canary, "start")


class Stack:
    """S trainings side by side."""

    def __init__(
        self,
        network: networks.Network,
        neighbours: Neighbours,
        config: TrainingConfig,
        *,
        fingerprint: str,
        trials: NDArray[np.int64],
        worlds: NDArray[np.int64],
        device: torch.device,
        table: Table | CompiledTable | None = None,
        room: int = 0,
        paired: bool = False,
    ) -> None:
        """``table``: the rows, if they are on the device already. ``room``: on a GPU, stacks are filled up to this
        many models, so that every stack has the same shapes. ``paired``: keep what the two worlds differ in apart.
        """
        self.network, self.neighbours, self.config = network, neighbours, config
        self.fingerprint, self.trials, self.device = fingerprint, trials, device
        idle = max(0, room - trials.size)
        self.worlds = np.concatenate([worlds, np.repeat(worlds[-1:], idle)])
        numbers = [*trials.tolist(), *[int(trials[-1])] * idle]
        self.dtype = torch.float32 if config.dtype == "float32" else torch.float64
        self.size = networks.parameter_count(network)
        stack = len(numbers)
        # Every model's vector starts on a cache line and takes up whole vectors of the processor, so that neither
        # alignment nor the end of a buffer sets one model apart from another.
        stride = padded(self.size)
        self.parameters = torch.zeros((stack, stride), dtype=self.dtype, device=device)[:, : self.size]
        self.gradient = torch.zeros((stack, stride), dtype=self.dtype, device=device)[:, : self.size]
        self.parameters.copy_(self._initial(numbers))
        self._shown, self._shown_gradient = self.parameters[: trials.size], self.gradient[: trials.size]
        self.batch = config.expected_batch(neighbours.base.rows)
        self.engine = make_engine(network, device=device, dtype=self.dtype)
        self._scratch = Scratch(device=device, dtype=self.dtype)
        self._noise = (
            make_noise(fingerprint, numbers, size=self.size, steps=config.steps, device=device, dtype=self.dtype)
            if config.noise_multiplier
            else None
        )
        self._noise_scale = config.noise_multiplier * config.clip / self.batch
        self._update = Update(config, self.parameters)
        self._alike = neighbours.base if isinstance(neighbours.base, AlikeRows) else None
        draw: Callable[..., Iterator[Any]] = sampling.batches if self._alike is None else sampling.counts
        self._draws = [
            draw(neighbours, world=int(w), config=config, fingerprint=fingerprint, trial=int(t))
            for t, w in zip(numbers, self.worlds, strict=True)
        ]
        table = table or shared_table(network, neighbours, config, device=device, paired=paired)
        self._pair = (
            PairTerm(neighbours, config, engine=self.engine, table=table, parameters=self.parameters)
            if paired and isinstance(table, Table)
            else None
        )
        self._sums = self._make_sums(table) if isinstance(table, CompiledTable) else None
        self._tiles = self._make_tiles(table) if isinstance(table, Table) else []
        self._has_rows = table is not None
        canary = neighbours.canary
        self._examples: AdaptiveExample | None = canary if _adaptive(canary, "examples") else None  # type: ignore[assignment]
        self._gradients: AdaptiveGradient | None = canary if _adaptive(canary, "gradients") else None  # type: ignore[assignment]
        self._fixed_gradient = self._clipped(canary.gradient) if isinstance(canary, GradientCanary) else None

    def _initial(self, trials: Sequence[int]) -> Tensor:
        return initial_parameters(
            self.network,
            self.config,
            fingerprint=self.fingerprint,
            trials=trials,
            device=self.device,
            dtype=self.dtype,
        )

    def _make_sums(self, table: CompiledTable) -> CompiledSums:
        """What computes the clipped sums of the whole stack in one call."""
        rows = self.neighbours.base.rows
        return CompiledSums(
            self.engine.layers,
            table,
            models=self.worlds.size,
            width=width(self.config, rows=rows, example_floats=networks.example_floats(self.network)),
            clip=self.config.clip,
            divisor=self.batch,
        )

    def _make_tiles(self, table: Table) -> list[Tile]:
        """The stack cut into tiles whose buffers stay in the processor's cache (one tile on a GPU)."""
        base, config = self.neighbours.base, self.config
        assert isinstance(base, Dataset)
        stack = self.worlds.size
        rows = width(config, rows=base.rows, example_floats=networks.example_floats(self.network))
        size = stack
        if self.device.type == "cpu":
            size = max(1, _TILE_BYTES // (rows * math.prod(base.shape) * self.parameters.element_size()))
        batcher, exact = None, False
        if config.sampling is not Sampling.FULL:
            # A tile that holds one model whatever the stack needs no padding to be the same in every stack.
            exact = size == 1 and self.device.type == "cpu" and self.engine.takes_matrices
            batcher = Batcher(table, models=min(size, stack), width=rows, exact=exact, divisor=self.batch)
        tiles = []
        for start in range(0, stack, size):
            part = slice(start, min(start + size, stack))
            views = parameter_views(self.parameters[part], self.engine.layers)
            out = parameter_views(self.gradient[part], self.engine.layers)
            if exact:
                views, out = ([[p[0] for p in layer] for layer in side] for side in (views, out))
            mine = batcher or FullBatcher(
                table,
                Neighbours(base) if self._pair else self.neighbours,
                worlds=self.worlds[part].tolist(),
                width=rows,
                divisor=self.batch,
            )
            tiles.append(Tile(part, views, out, mine, rows if exact else 0))
        return tiles

    def _clipped(self, gradients: Any) -> Tensor:
        """Canary gradients ``[S, P]`` (or one for all), clipped to C and divided by the expected batch size."""
        tensor = torch.as_tensor(gradients).to(device=self.device, dtype=self.dtype)
        tensor = _filled(tensor.expand(self.trials.size, self.size), self.worlds.size)
        norms = torch.linalg.vector_norm(tensor, dim=1, keepdim=True)
        clipped: Tensor = tensor / (norms / self.config.clip).clamp(min=1.0) / self.batch
        return clipped

    def train(self, observer: Observer | None) -> StackResult:
        """All steps, then the observer's scores."""
        if self._examples is not None:
            self._examples.start(self.trials)
        if self._gradients is not None:
            self._gradients.start(self.trials)
        if observer is not None:
            observer.start(self.trials)
        watching = observer is not None and observer.view == View.ALL_ITERATES
        previous = torch.zeros_like(self._shown) if watching else None
        failed_at: dict[int, int] = {}
        check = max(1, self.config.steps // _CHECKS)
        for step in range(1, self.config.steps + 1):
            if previous is not None:
                previous.copy_(self._shown)
            self._step(step)
            if observer is not None and previous is not None:
                pair = self._pair.shown(self.trials.size) if self._pair is not None else None
                observer.observe(Seen(self.trials, step, previous, self._shown, self._shown_gradient, pair))
            if step % check == 0 or step == self.config.steps:
                self._check(step, failed_at)
        return self._finish(observer, failed_at)

    def _step(self, step: int) -> None:
        """One step of DP-SGD for every model."""
        if self._pair is not None:
            self._paired_gradient(self._pair)
            self._update(self.gradient)
            return
        self._add_batches(step)
        if self._noise is not None and not (self._tiles and self._noise.one_at_a_time):
            self._noise.add_to(self.gradient, scale=self._noise_scale)
        self._update(self.gradient)

    def _paired_gradient(self, pair: PairTerm) -> None:
        """The private gradient of a step whose two worlds are kept apart until the noise is added."""
        drawn, times = pair.split([next(draw) for draw in self._draws], self.worlds)
        with torch.inference_mode(isinstance(self.engine, ClosedForm)):
            self._add_tiles(drawn, None)
            pair.compute(self._scratch)
        pair.join(self.gradient, times)
        if self._noise is None:
            return
        if self.config.noise_scale == "clip":
            self._noise.add_to(self.gradient, scale=self._noise_scale)
        else:
            noise = torch.zeros_like(self.gradient)
            self._noise.add_to(noise, scale=self.config.noise_multiplier)
            self.gradient.add_(noise.mul_(pair.sensitivity()[:, None]))

    def _add_batches(self, step: int) -> None:
        """The sum of clipped gradients over the expected batch size, canary and all, into ``gradient``."""
        drawn = [next(draw) for draw in self._draws]
        state = Seen(self.trials, step, None, self._shown, self._shown_gradient if step > 1 else None)
        vectors = self._fixed_gradient
        if self._gradients is not None:
            vectors = self._clipped(self._shaped("canary", self._gradients.gradients(state)))
        if self._alike is not None:
            shared = self._clipped(self._shaped("base data", self._alike.gradient(self._shown, step)))
            counts = torch.as_tensor(drawn).to(shared)
            torch.mul(shared, counts[:, :1], out=self.gradient)
            if vectors is not None:
                self.gradient.add_(vectors * counts[:, 1:])
            return
        examples = self._adaptive_examples(state, drawn)
        rows = self.neighbours.base.rows
        times: NDArray[np.int64] | None = None
        if vectors is not None:
            if not self._has_rows:
                times = np.asarray([row.size for row in drawn])
            else:
                times = np.asarray([int((row >= rows).sum()) for row in drawn])
                drawn = [row[row < rows] for row in drawn]
        if not self._has_rows:
            self.gradient.zero_()
        elif self._sums is not None:
            self._sums(self.parameters, self.gradient, drawn)
        # Inference mode spares each call some bookkeeping; torch.func cannot work within it.
        with torch.inference_mode(isinstance(self.engine, ClosedForm)):
            self._add_tiles(drawn, examples)
        if vectors is not None and times is not None and times.any():
            if self.size <= _SMALL:
                self.gradient.add_(vectors * torch.from_numpy(times).to(vectors)[:, None])
            else:
                for position in np.flatnonzero(times).tolist():
                    self.gradient[position].add_(vectors[position] * float(times[position]))

    def _shaped(self, whose: str, gradients: Any) -> Tensor:
        """Gradients that were chosen for this step, one a model."""
        tensor = torch.as_tensor(gradients)
        if tuple(tensor.shape) != (self.trials.size, self.size):
            raise InvalidInputError(
                f"the {whose} gave gradients of shape {tuple(tensor.shape)}: expected ({self.trials.size}, {self.size})"
            )
        return tensor

    def _add_tiles(self, drawn: list[NDArray[np.int64]], examples: tuple[Tensor, Tensor] | None) -> None:
        """The drawn rows' clipped gradients, tile by tile; a large model's noise too, while its row is in the cache."""
        for tile in self._tiles:
            mine = None if examples is None else (examples[0][tile.part], examples[1][tile.part])
            passes = (
                tile.batcher.passes(examples=mine)
                if isinstance(tile.batcher, FullBatcher)
                else tile.batcher.passes(drawn[tile.part], examples=mine)
            )
            for number, batch in enumerate(passes):
                self.engine.clipped_sums(
                    tile.views,
                    tile.out,
                    x=batch.x,
                    targets=batch.targets,
                    weights=batch.weights,
                    clip=self.config.kernel_clip(self.device.type),
                    run=Run(self._scratch, batch.counts, width=tile.width, input_squares=batch.squares),
                    accumulate=number > 0,
                )
            if self._noise is not None and self._noise.one_at_a_time and self._pair is None:
                self._noise.add_to(self.gradient, scale=self._noise_scale, part=tile.part)

    def _adaptive_examples(self, state: Seen, drawn: list[NDArray[np.int64]]) -> tuple[Tensor, Tensor] | None:
        """An adaptive canary's inputs and one-hot labels, for the whole stack.

        A canary without memory gives a model the same examples whether or not others are asked beside it, so on a CPU,
        where models take turns anyway, only those are asked for whose batch holds the canary.
        """
        if self._examples is None:
            return None
        if self.device.type != "cpu" or not getattr(self._examples, "memoryless", False):
            inputs, onehot = self._checked_examples(self._examples, state)
            return _filled(inputs, self.worlds.size), _filled(onehot, self.worlds.size)
        shape = (self.trials.size, self.neighbours.copies)
        whole = torch.zeros((*shape, *self.network.input_shape), dtype=self.dtype)
        targets = torch.zeros((*shape, self.network.classes), dtype=self.dtype)
        rows = self.neighbours.base.rows
        needed = [position for position, batch in enumerate(drawn) if batch.size and int(batch.max()) >= rows]
        if needed:
            gradient = None if state.private_gradient is None else state.private_gradient[needed]
            part = Seen(self.trials[needed], state.step, None, state.parameters[needed], gradient)
            whole[needed], targets[needed] = self._checked_examples(self._examples, part)
        return whole, targets

    def _checked_examples(self, canary: AdaptiveExample, state: Seen) -> tuple[Tensor, Tensor]:
        """What an adaptive canary gives for these models, checked."""
        x, y = canary.examples(state)
        inputs, labels = torch.as_tensor(x), torch.as_tensor(y)
        expected = (state.trials.size, self.neighbours.copies)
        shape = (*expected, *self.network.input_shape)
        if tuple(inputs.shape) != shape or tuple(labels.shape) != expected:
            raise InvalidInputError(
                f"the canary gave inputs of shape {tuple(inputs.shape)} and labels of shape {tuple(labels.shape)}: "
                f"expected {shape} and {expected}"
            )
        if not ((labels >= 0) & (labels < self.network.classes)).all():
            raise InvalidInputError(
                f"the canary gave labels from {labels.min()} to {labels.max()}: expected 0 to "
                f"{self.network.classes - 1}"
            )
        onehot = torch.nn.functional.one_hot(labels.long(), self.network.classes)
        inputs = inputs.to(device=self.device, dtype=torch.int64 if takes_tokens(self.network) else self.dtype)
        onehot = onehot.to(device=self.device, dtype=self.dtype)
        return inputs, onehot

    def _check(self, step: int, failed_at: dict[int, int]) -> None:
        """Note which models hold numbers that are not finite. Such a number never becomes finite again."""
        # Summing |m|·0 keeps NaN and turns infinities into NaN: one pass, no mask.
        bad = torch.isnan((self._shown * 0.0).sum(1)).cpu().numpy()
        for position in np.flatnonzero(bad).tolist():
            failed_at.setdefault(position, step)

    def _finish(self, observer: Observer | None, failed_at: dict[int, int]) -> StackResult:
        return finish(
            self.network,
            self.config,
            engine=self.engine,
            parameters=self._shown,
            fingerprint=self.fingerprint,
            trials=self.trials,
            observer=observer,
            failed_at=failed_at,
        )


def finish(
    network: networks.Network,
    config: TrainingConfig,
    *,
    engine: Any,
    parameters: Tensor,
    fingerprint: str,
    trials: NDArray[np.int64],
    observer: Observer | None,
    failed_at: dict[int, int],
) -> StackResult:
    """Show the trained models to the observer, within its view, and gather scores and failures."""
    failures = {
        int(trials[position]): f"the model's parameters were not finite at step {step}"
        for position, step in failed_at.items()
    }
    if observer is None:
        return StackResult(None, failures)

    def initial() -> Tensor:
        return initial_parameters(
            network,
            config,
            fingerprint=fingerprint,
            trials=trials.tolist(),
            device=parameters.device,
            dtype=parameters.dtype,
        )

    shown: BlackBox
    if observer.view == View.BLACK_BOX:
        shown = BlackBox(engine, parameters, trials, network)
    else:
        shown = StackedModels(engine, parameters, trials, network, initial)
    scores = observer.finish(shown)
    if scores is None:
        return StackResult(None, failures)
    scores = np.array(scores, dtype=np.float64)
    if scores.ndim == 0 or scores.shape[0] != trials.size:
        raise InvalidInputError(f"the observer gave scores of shape {scores.shape}: expected {trials.size} rows")
    finite = np.isfinite(scores.reshape(scores.shape[0], -1)).all(axis=1)
    for position in np.flatnonzero(~finite).tolist():
        failures.setdefault(int(trials[position]), "the score was not finite")
    for position, trial in enumerate(trials.tolist()):
        if trial in failures:
            scores[position] = math.nan
    return StackResult(scores, failures)
