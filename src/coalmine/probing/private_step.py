"""What a user hands over: a private step, the state it changes, a batch, and what is promised."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

from coalmine import _validate
from coalmine.records import Relation, Sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateStep:
    """One step of a private training, and what is promised about it.

    The promise: the rows' gradients, each clipped to norm C (``clip_norm``), are added up, Gaussian noise of standard
    deviation σ·C (σ is ``noise_multiplier``) is added to the sum, and all that is released follows from the result.
    With ``sensitivity`` it takes the place of C, for the rows and for the noise.
    A step is what the accounting counts as one step: a batch that is split to fit into memory is one step.

    Args:
        step: a function of a batch.
        batch: rows to try it with, public or made up: a tensor or an array whose first axis counts rows, or a tuple,
            list or dict of them. A few rows are enough.
        clip_norm: C.
        noise_multiplier: σ.
        state: what the step changes and releases: modules, optimizers, objects with a ``state_dict``, tensors, arrays,
            and lists or dicts of them. Without it, the modules and optimizers that the function holds.
        divisor: what the sum of gradients is divided by before the optimizer takes it (the expected batch size, or 1).
            Without it noise and clipping are only compared with each other.
        learning_rate: for a step without a torch optimizer: the factor with which a gradient moves the parameters.
        sensitivity: how far one row may move the sum, as the accounting assumes; C unless given. The noise must be σ
            times as much. Where rows are replaced, it is how far replacing one may move the sum, and σ counts in clip
            norms, as it does in the accounting of replaced rows: the noise must be σ·C, or σ times half the sensitivity
            where that is more.
        relation: which data sets count as neighbors.
        sampling: how batches are drawn; Poisson sampling also draws empty ones.
        bounds: the least and the greatest value of a feature, where rows are checked; rows within are tried.
        nonfinite_rows: whether a row may hold NaN or infinity. If not, somebody must check the rows before the step.
        kept: names (with * and ?) of what the step changes or returns but nobody outside ever sees.
        released: more that is released, as a function that names and gives it after a step.
        unclipped: a context in which the step does not clip, for the positive control.
        sample_rate: q, where the step's builder sets it.
        build: makes such a step from a data set; then the probe also compares the steps of two neighboring data sets.
        dataset: the data set for ``build``.
        name: what the report calls the step.
    """

    step: Callable[[Any], Any]
    batch: Any
    clip_norm: float
    noise_multiplier: float
    state: Any = None
    divisor: float | None = None
    learning_rate: float | None = None
    sensitivity: float | None = None
    relation: Relation = Relation.ADD_REMOVE
    sampling: Sampling = Sampling.POISSON
    bounds: tuple[float, float] | None = None
    nonfinite_rows: bool = False
    kept: tuple[str, ...] = ()
    released: Callable[[], Mapping[str, Any]] | None = None
    unclipped: Callable[[], AbstractContextManager[Any]] | None = None
    sample_rate: float | None = None
    build: Callable[[Any], PrivateStep] | None = None
    dataset: Any = None
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.step):
            raise _validate.reject("step", self.step, "a function that takes a batch")
        called = self.step if inspect.isroutine(self.step) else type(self.step).__call__
        if inspect.isgeneratorfunction(called) or inspect.iscoroutinefunction(called):
            raise _validate.reject(
                "step", self.step, "a plain function: a generator or a coroutine does nothing when it is called"
            )
        if self.released is not None and not callable(self.released):
            raise _validate.reject("released", self.released, "a function that gives names and values after a step")
        checked: dict[str, Any] = {
            "clip_norm": _validate.positive("clip_norm", self.clip_norm),
            "noise_multiplier": _validate.positive("noise_multiplier", self.noise_multiplier),
            "relation": Relation.parse(self.relation),
            "sampling": Sampling.parse(self.sampling),
            "kept": _names(self.kept),
        }
        if self.sample_rate is not None:
            checked["sample_rate"] = _validate.unit("sample_rate", self.sample_rate)
        for name in ("divisor", "learning_rate", "sensitivity"):
            if getattr(self, name) is not None:
                checked[name] = _validate.positive(name, getattr(self, name))
        if self.bounds is not None:
            checked["bounds"] = _bounds(self.bounds)
        if (self.build is None) != (self.dataset is None):
            raise _validate.reject("build", self.build, "a function together with a dataset, or neither")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def allowed(self) -> float:
        """How far one row may move the sum."""
        return self.clip_norm if self.sensitivity is None else self.sensitivity

    @property
    def unit(self) -> float:
        """What σ is a multiple of: how far one row moves the sum when it is added, at most."""
        return max(self.clip_norm, self.allowed / 2.0) if self.relation is Relation.REPLACE else self.allowed

    @property
    def noise(self) -> float:
        """The standard deviation of the noise that is promised on the sum."""
        return self.noise_multiplier * self.unit

    @property
    def promise(self) -> dict[str, Any]:
        """What was promised, as plain JSON types."""
        return {
            "clip_norm": self.clip_norm,
            "noise_multiplier": self.noise_multiplier,
            "divisor": self.divisor,
            "sensitivity": self.allowed,
            "relation": self.relation.value,
            "sampling": self.sampling.value,
        }

    @property
    def title(self) -> str:
        """What the report calls the step."""
        return self.name or getattr(self.step, "__name__", type(self.step).__name__)


def _names(value: Any) -> tuple[str, ...]:
    """Names, or one of them."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Collection) or not all(isinstance(one, str) for one in value):
        raise _validate.reject("kept", value, 'names of values, such as ("returned.loss",)')
    return tuple(value)


def _bounds(value: Any) -> tuple[float, float]:
    allowed = "two finite numbers, the smaller first"
    try:
        low, high = (float(one) for one in value)
    except (TypeError, ValueError):
        raise _validate.reject("bounds", value, allowed) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise _validate.reject("bounds", value, allowed)
    return low, high
