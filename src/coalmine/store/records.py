"""What goes into the store and what comes out: frozen values, arrays of one length."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError


@dataclasses.dataclass(frozen=True, eq=False)
class BlockResult:
    """One trained block: for each trial its index in the run, its world (0 or 1) and its score.

    ``columns`` holds further numbers of each trial under names (other scores, losses). A trial that could not be scored
    has a NaN score and its reason in ``failures`` (trial index → reason); any other score must be finite.

    >>> BlockResult(trial=[0, 1], world=[0, 1], score=[0.25, 1.5], elapsed=0.1, device="cpu").score.tolist()
    [0.25, 1.5]
    """

    trial: NDArray[np.int64]
    world: NDArray[np.int8]
    score: NDArray[np.float64]
    elapsed: float
    device: str
    columns: Mapping[str, NDArray[np.float64]]
    failures: Mapping[int, str]

    def __init__(
        self,
        *,
        trial: ArrayLike,
        world: ArrayLike,
        score: ArrayLike,
        elapsed: float,
        device: str,
        columns: Mapping[str, ArrayLike] | None = None,
        failures: Mapping[int, str] | None = None,
    ) -> None:
        index = _integers("trial", trial, np.int64, "whole numbers of at least 0")
        if index.size == 0:
            raise InvalidInputError("trial is empty: expected at least one trial")
        if index.min() < 0:
            raise _validate.reject("trial", int(index.min()), "whole numbers of at least 0")
        # Questions of NumPy's set functions cost more than the rest of a small block: they come after quick ones.
        if not (index[1:] > index[:-1]).all() and np.unique(index).size != index.size:
            raise InvalidInputError("trial holds an index twice: expected each trial once")
        worlds = _integers("world", world, np.int8, "0 or 1 for each trial")
        if (worlds >> 1).any():
            raise _validate.reject("world", int(worlds[~np.isin(worlds, (0, 1))][0]), "0 or 1 for each trial")
        reasons = {_validate.integer("failures", int(at), at_least=0): str(why) for at, why in (failures or {}).items()}
        unknown = sorted(set(reasons) - set(index.tolist())) if reasons else []
        if unknown:
            raise InvalidInputError(f"failures names trial {unknown[0]}, which is not in this block")
        scores = _floats("score", score)
        extra = {str(name): _floats(f"columns[{name!r}]", values) for name, values in (columns or {}).items()}
        for name, array in {"world": worlds, "score": scores, **extra}.items():
            if array.shape != index.shape:
                raise InvalidInputError(f"{name} has shape {array.shape}: expected {index.shape}, one for each trial")
        failed = np.zeros(index.shape, dtype=np.bool_)
        if reasons:
            failed = np.isin(index, np.fromiter(reasons, dtype=np.int64, count=len(reasons)))
        finite = np.isfinite(scores)
        bad = np.flatnonzero(~finite & ~failed)
        if bad.size:
            raise InvalidInputError(
                f"score of trial {index[bad[0]]} = {scores[bad[0]]} is not allowed: expected a finite number, "
                f"or the trial named in failures with its reason"
            )
        if finite[failed].any():
            raise InvalidInputError("a trial named in failures has a score: expected NaN")
        elapsed = _validate.non_negative("elapsed", elapsed)
        _validate.instance("device", device, str)
        _validate.assign(self, trial=index, world=worlds, score=scores, elapsed=elapsed, device=device)
        _validate.assign(self, columns=extra, failures=reasons)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Trials:
    """Stored trials of one run in the order of their index, those that failed included (their score is NaN)."""

    trial: NDArray[np.int64]
    world: NDArray[np.int8]
    score: NDArray[np.float64]
    columns: Mapping[str, NDArray[np.float64]]
    devices: tuple[str, ...]
    elapsed: float

    def __len__(self) -> int:
        return int(self.trial.size)

    @property
    def failed(self) -> int:
        """How many of these trials have no score."""
        return int(np.isnan(self.score).sum())

    def take(self, kept: NDArray[Any] | slice) -> Trials:
        """Some of these trials."""
        return dataclasses.replace(
            self,
            trial=self.trial[kept],
            world=self.world[kept],
            score=self.score[kept],
            columns={name: values[kept] for name, values in self.columns.items()},
        )

    def with_score(self, column: str) -> Trials:
        """The same trials with a named column in the place of the score."""
        return dataclasses.replace(self, score=self.columns[_validate.choice("column", column, self.columns)])

    def in_world(self, world: int, *, column: str | None = None) -> NDArray[np.float64]:
        """The scores (or the numbers of a named column) of one world, in the order of the trial index."""
        values = self.score if column is None else self.columns[_validate.choice("column", column, self.columns)]
        chosen: NDArray[np.float64] = values[self.world == world]
        return chosen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What the store knows about a run: its identity, its description, and how far it is.

    ``made``: the versions that made its blocks, and how many blocks each set of versions made.
    """

    fingerprint: str
    description: Mapping[str, Any]
    created: float
    blocks: int
    trials: int
    wanted: int
    failed_blocks: int
    failed_trials: int
    elapsed: float
    devices: tuple[str, ...]
    made: tuple[tuple[Mapping[str, str], int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return dataclasses.asdict(self) | {"devices": list(self.devices)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A block that could not be trained (``trial`` is None), or one trial in a stored block that has no score."""

    block: int
    trial: int | None
    reason: str
    attempts: int


def description_text(description: Mapping[str, Any]) -> str:
    """The description as JSON text: no NaN, nothing that JSON cannot hold."""
    try:
        return json.dumps(dict(description), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"description is not allowed: expected plain JSON types ({error})") from None


def _integers(name: str, values: ArrayLike, dtype: type[np.integer[Any]], allowed: str) -> NDArray[Any]:
    """A list of whole numbers that fit into ``dtype``."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
        raise InvalidInputError(f"{name} is not allowed: expected a list of {allowed}")
    limits = np.iinfo(dtype)
    if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
        raise InvalidInputError(f"{name} is not allowed: expected a list of {allowed}")
    return array.astype(dtype)


def _floats(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """A list of numbers as float64 (NaN and infinities pass; who may have them is the caller's question)."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "fiu"):
        raise InvalidInputError(f"{name} is not allowed: expected a list of numbers")
    return array.astype(np.float64)
