"""One stack of trainings from the first step to the last."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.roles import Distinguisher, Iterate, View
from coalmine.training import backends, compiled, compiled_stages, networks, sampling, stages
from coalmine.training.batching import Table
from coalmine.training.canary import AdaptiveExample, AdaptiveGradient, GradientCanary, GradientRows, StackState
from coalmine.training.compiled import CompiledSums, CompiledTable
from coalmine.training.compiled_stages import CompiledStages
from coalmine.training.data import AlikeRows, Dataset
from coalmine.training.device_draws import DeviceDraws
from coalmine.training.engines import make_engine
from coalmine.training.job import Job, Share
from coalmine.training.models import BlackBox, Engine, StackedModels
from coalmine.training.noise import ALL, make_noise
from coalmine.training.optimizers import Update
from coalmine.training.pair import PairedSums
from coalmine.training.products import padded
from coalmine.training.stages import StageSums, StageTable
from coalmine.training.sums import AlikeSums, CanaryGradient, CanaryRows, CanaryTerm, Sums, TiledSums, Vectors

_CHECKS = 16
"""How often in a training the models are checked for numbers that are not finite."""


@dataclasses.dataclass(frozen=True)
class StackResult:
    """What became of each trial: its score(s) if an observer gave any, and why it failed if it did."""

    scores: NDArray[np.float64] | None
    failures: dict[int, str]


RowTable = Table | CompiledTable | StageTable


def make_table(job: Job) -> RowTable | None:
    """The rows of a data set for every stack of a training, as the kernels want them that will do the work."""
    if not isinstance(job.neighbours.base, Dataset):
        return None
    if compiled.fits(job) and backends.compiled(device=job.device, dtype=job.dtype):
        return CompiledTable(job.neighbours)
    if stages.fits(job) or compiled_stages.fits(job):
        return StageTable(job)
    return Table(
        job.neighbours,
        classes=job.network.classes,
        tokens=networks.takes_tokens(job.network),
        device=job.device,
        dtype=job.dtype,
    )


class Stack:
    """S trainings side by side: sums of clipped gradients, noise, an update, step after step."""

    def __init__(
        self,
        job: Job,
        *,
        trials: NDArray[np.int64],
        worlds: NDArray[np.int64],
        table: RowTable | None,
        room: int = 0,
    ) -> None:
        """``room``: on a GPU, stacks are filled up to this many models, so that every stack has the same shapes."""
        config, canary = job.config, job.neighbours.canary
        self._job, self._trials = job, trials
        idle = max(0, room - trials.size)
        worlds = np.concatenate([worlds, np.repeat(worlds[-1:], idle)])
        numbers = [*trials.tolist(), *[int(trials[-1])] * idle]
        size = networks.parameter_count(job.network)
        # Every model's vector starts on a cache line and takes up whole vectors of the processor, so that neither
        # alignment nor the end of a buffer sets one model apart from another.
        room_for = functools.partial(torch.zeros, (len(numbers), padded(size)), dtype=job.dtype, device=job.device)
        vectors = Vectors(room_for()[:, :size], room_for()[:, :size], worlds, trials.size)
        vectors.parameters.copy_(job.initial(numbers))
        self._vectors = vectors
        self._noise = None
        if config.noise_multiplier:
            self._noise = make_noise(
                job.fingerprint, numbers, size=size, steps=config.steps, device=job.device, dtype=job.dtype
            )
        self._noise_scale = config.noise_multiplier * config.clip / job.batch
        self._update = Update(config, vectors.parameters)
        draw: Callable[..., Iterator[Any]] = sampling.batches
        if isinstance(job.neighbours.base, AlikeRows):
            draw = sampling.counts
        self._draws: list[Iterator[Any]] | DeviceDraws
        if isinstance(table, StageTable) and stages.draws_on_device(job):
            self._draws = DeviceDraws(Share(job, numbers, worlds.tolist()), device=job.device)
        else:
            self._draws = [
                draw(job.neighbours, world=int(w), config=config, fingerprint=job.fingerprint, trial=int(t))
                for t, w in zip(numbers, worlds, strict=True)
            ]
        self._engine = make_engine(job.network, device=job.device, dtype=job.dtype)
        self._noise_in_tiles = False
        self._sums = self._make_sums(table)
        self._canary: CanaryTerm | None = None
        if isinstance(canary, GradientCanary | AdaptiveGradient):
            self._canary = CanaryGradient(job, vectors, canary)
        elif isinstance(canary, GradientRows):
            self._canary = CanaryRows(job, vectors, canary)

    def _make_sums(self, table: RowTable | None) -> Sums:
        """What sums up the clipped gradients of the rows that a step draws."""
        job, vectors, base = self._job, self._vectors, self._job.neighbours.base
        if isinstance(base, AlikeRows):
            return AlikeSums(job, base, vectors)
        if table is None:
            return lambda drawn, state: vectors.gradient.zero_()  # base data without gradients
        if isinstance(table, CompiledTable):
            return CompiledSums(job, vectors, table)
        if isinstance(table, StageTable):
            return (StageSums if stages.fits(job) else CompiledStages)(job, vectors, table)
        if job.paired:
            return PairedSums(job, vectors, table, self._engine)
        # A large model's noise is added while its gradient is in the cache, unless the sum is to be seen without it.
        seen = isinstance(job.neighbours.canary, GradientRows)
        self._noise_in_tiles = self._noise is not None and self._noise.one_at_a_time and not seen
        then = self._add_noise if self._noise_in_tiles else None
        return TiledSums(job, vectors, table, self._engine, then=then)

    def _add_noise(self, part: slice = ALL) -> None:
        if self._noise is None:
            return
        gradient = self._vectors.gradient
        if self._job.config.noise_scale == "local":
            assert isinstance(self._sums, PairedSums)
            noise = torch.zeros_like(gradient)
            self._noise.add_to(noise, scale=self._job.config.noise_multiplier)
            gradient.add_(noise.mul_(self._sums.sensitivity()[:, None]))
        else:
            self._noise.add_to(gradient, scale=self._noise_scale, part=part)

    def train(self) -> StackResult:
        """All steps, then the observer's scores."""
        job, observer, canary, used = self._job, self._job.observer, self._job.neighbours.canary, self._vectors.used
        if isinstance(canary, AdaptiveExample | AdaptiveGradient):
            canary.start(self._trials)
        if observer is not None:
            observer.start(self._trials)
        parameters, gradient = self._vectors.parameters[:used], self._vectors.gradient[:used]
        previous = torch.zeros_like(parameters) if job.watched else None
        failed_at: dict[int, int] = {}
        check = max(1, job.config.steps // _CHECKS)
        with self._drawing() as draw:
            for step in range(1, job.config.steps + 1):
                if previous is not None:
                    previous.copy_(parameters)
                self._step(draw(step), StackState(self._trials, step, parameters, gradient if step > 1 else None))
                if observer is not None and previous is not None:
                    pair = self._sums.shown() if isinstance(self._sums, PairedSums) else None
                    shared = None if self._canary is None or self._canary.shared is None else self._canary.shared[:used]
                    observer.observe(Iterate(self._trials, step, previous, parameters, gradient, pair, shared))
                if step % check == 0 or step == job.config.steps:
                    for position in not_finite(parameters):
                        failed_at.setdefault(position, step)
        return finish(job, self._engine, parameters, trials=self._trials, failed_at=failed_at)

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[Callable[[int], Any]]:
        """What gives the rows of each step: the GPU, or other threads beside it while this one starts kernels."""
        draws = self._draws
        if isinstance(draws, DeviceDraws):
            yield draws.drawn
            draws.check()
        elif self._job.device.type == "cpu":
            yield lambda step: [next(draw) for draw in draws]
        else:
            with sampling.DrawnAhead(draws, steps=self._job.config.steps) as ahead:
                yield lambda step: ahead.step()

    def _step(self, drawn: Any, state: StackState) -> None:
        """One step of DP-SGD for every model, on the rows that each of them drew."""
        if self._canary is None:
            self._sums(drawn, state)
        else:
            if isinstance(self._canary, CanaryGradient):
                self._canary.look(state)
            drawn, own = self._canary.split(drawn)
            self._sums(drawn, state)
            self._canary.add(own)
        if not self._noise_in_tiles:
            self._add_noise()
        self._update(self._vectors.gradient)


def not_finite(parameters: Tensor) -> list[int]:
    """Which models hold numbers that are not finite. Such a number never becomes finite again."""
    # Summing m·0 keeps NaN and turns infinities into NaN: one pass, no mask.
    bad = torch.isnan((parameters * 0.0).sum(1)).cpu().numpy()
    found: list[int] = np.flatnonzero(bad).tolist()
    return found


def as_scores(found: object, *, who: object, trials: int) -> NDArray[np.float64]:
    """What an observer gave in the end, as numbers of its own: one row a trial.

    >>> as_scores([1, 0], who=object(), trials=2)
    array([1., 0.])
    """
    wrong = f"{type(who).__name__}.finish gave {{}}: expected one number for each of the {trials} trials"
    try:
        given = np.asarray(found)
        if found is None or given.dtype.kind not in "biufO":  # texts might be read, and complex numbers lose a part
            raise TypeError
        scores = np.array(given, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInputError(wrong.format(_validate.shown(found))) from None
    if scores.ndim == 0 or scores.shape[0] != trials:
        raise InvalidInputError(wrong.format(f"scores of shape {scores.shape}"))
    return scores


def finish(
    job: Job, engine: Engine, parameters: Tensor, *, trials: NDArray[np.int64], failed_at: dict[int, int]
) -> StackResult:
    """Show the trained models to the observer, within its view, and gather scores and failures."""
    observer = job.observer
    failures = {
        int(trials[position]): f"the model's parameters were not finite at step {step}"
        for position, step in failed_at.items()
    }
    if observer is None:
        return StackResult(None, failures)
    shown = BlackBox(engine, parameters, trials, job.network)
    if observer.view != View.BLACK_BOX:
        shown = StackedModels(engine, parameters, trials, job.network, lambda: job.initial(trials.tolist()))
    scores = observer.finish(shown)
    if scores is None and not isinstance(observer, Distinguisher):
        return StackResult(None, failures)
    scores = as_scores(scores, who=observer, trials=trials.size)
    finite = np.isfinite(scores.reshape(scores.shape[0], -1)).all(axis=1)
    for position in np.flatnonzero(~finite).tolist():
        failures.setdefault(int(trials[position]), "the score was not finite")
    for position, trial in enumerate(trials.tolist()):
        if trial in failures:
            scores[position] = math.nan
    return StackResult(scores, failures)
