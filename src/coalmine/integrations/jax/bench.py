"""A JAX step on the bench: run with these rows, these keys and this much noise, many runs in one call."""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from coalmine.errors import InvalidInputError
from coalmine.integrations.jax.replay import Replay
from coalmine.probing import rows
from coalmine.probing.private_step import PrivateStep

_ROWS_AT_MOST = 12
_WIDTH = 40
"""Runs in one call."""
_QUICKLY: Any = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""A step is run a few hundred times: compiling takes longer than running."""
Shown = dict[str, NDArray[np.float64]]
"""What runs released, by name: one row of numbers for each run."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One of several steps: what it shows without its noise and with it, and the keys it drew from by place."""

    silent: dict[str, NDArray[np.float64]]
    plain: dict[str, NDArray[np.float64]]
    keys: list[tuple[int | None, NDArray[np.uint32]]]


Keys = Callable[[int], Any] | Sequence[Any] | None


class Bench:
    """Runs a step as often as asked, always from the same state.

    Runs have numbers: number 0 takes the user's own keys, every other number takes new ones, the same each time.
    """

    def __init__(self, subject: PrivateStep, *, keys: Keys, seed: int) -> None:
        self.subject, self._keys, self._seed = subject, keys, seed
        self.takes_key = _takes_key(subject.step)
        batch = jax.tree.map(np.asarray, subject.batch)
        self.count = min(rows.check(batch), _ROWS_AT_MOST)
        self.base = rows.take(batch, range(self.count))
        self.runs = 0
        self._replays: dict[int, Replay] = {}
        self._compiled: dict[int, Any] = {}
        self.names, self.start, self._parts = self._read_outputs()
        self.grows = self._can_grow()

    @property
    def draws(self) -> list[Any]:
        """The places where the step draws noise."""
        return self._replay(self.base).draws

    def batch(self, *more: Any) -> Any:
        """The batch with more rows; where it cannot grow, in the place of its last ones."""
        if not self.grows:
            return self.replaced({self.count - 1 - number: row for number, row in enumerate(more)})
        return rows.join([self.base, *more])

    def replaced(self, changes: Mapping[int, Any]) -> Any:
        """The batch with other rows in the place of some of its own."""
        return rows.join([changes.get(slot, rows.take(self.base, [slot])) for slot in range(self.count)])

    def run(self, batches: Sequence[Any], numbers: Sequence[int], factors: Sequence[float]) -> Shown:
        """One run for each batch (all of one size), number of keys and factor of the noise."""
        count = max(len(self._replay(batches[0]).draws), 1)
        scales = np.repeat(np.asarray(factors, dtype=np.float32)[:, None], count, axis=1)
        return self._shown(self._ran(batches, numbers, scales)[0])

    def run_each_draw(self) -> list[dict[str, NDArray[np.float64]]]:
        """What the batch alone releases with the noise of one draw and no other, for every draw."""
        count = len(self.draws)
        if not count:
            return []
        shown = self._shown(self._ran([self.base] * count, [0] * count, np.eye(count, dtype=np.float32))[0])
        return [{name: value[number] for name, value in shown.items()} for number in range(count)]

    def walk(self, steps: int) -> list[Step]:
        """Consecutive steps with the keys that the user's loop gives: without noise, with it, and what was drawn."""
        count = max(len(self.draws), 1)
        scales = np.stack([np.zeros(count), np.ones(count)]).astype(np.float32)
        state, found = self.subject.state, []
        for number in range(steps):
            outputs, drawn = self._ran([self.base] * 2, [0, 0], scales, state=state, key=self._key(number))
            shown = self._shown(outputs)
            keys = [(draw, np.asarray(one[1])) for draw, one in drawn]
            found.append(Step({k: v[0] for k, v in shown.items()}, {k: v[1] for k, v in shown.items()}, keys))
            state = self._next_state([one[1] for one in outputs])
        return found

    def _ran(
        self, batches: Sequence[Any], numbers: Sequence[int], scales: Any, *, state: Any = None, key: Any = None
    ) -> tuple[list[Any], list[tuple[int | None, Any]]]:
        """Runs in calls of one size, so that each size of batch is compiled once."""
        self.runs += len(batches)
        replay, size = self._replay(batches[0]), rows.size(batches[0])
        if size not in self._compiled:
            self._compiled[size] = self._compile(replay)
        function, places = self._compiled[size]
        given = self.subject.state if state is None else state, self._key(0) if key is None else key
        parts = []
        for first in range(0, len(batches), _WIDTH):
            there = range(first, min(first + _WIDTH, len(batches)))
            wanted = [*there, *[there[-1]] * (_WIDTH - len(there))]
            stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(batches[one] for one in wanted))
            chosen = np.asarray([numbers[one] for one in wanted], dtype=np.uint32)
            outputs, keys = function(*given, stacked, chosen, np.asarray(scales)[wanted])
            parts.append([_on_host(one)[: len(there)] for one in (*outputs, *keys)])
        joined = [one[0] if len(one) == 1 else np.concatenate(one) for one in zip(*parts, strict=True)]
        cut = len(joined) - len(places)
        return joined[:cut], list(zip(places, joined[cut:], strict=True))

    def _compile(self, replay: Replay) -> tuple[Any, list[int | None]]:
        """The step as a function of state, key, batches, numbers of keys and factors of noise; and what it draws."""
        places: list[int | None] = []

        def step(state: Any, key: Any, batch: Any, number: Any, factors: Any) -> tuple[list[Any], list[Any]]:
            flat = [_renewed(one, number) for one in jax.tree.leaves(state)] + jax.tree.leaves(batch)
            outputs, drawn = replay.run([*flat, _renewed(key, number)] if self.takes_key else flat, factors)
            places[:] = [one.draw for one in drawn]
            return outputs, [one.keys for one in drawn]

        many = jax.vmap(step, in_axes=(None, None, 0, 0, 0))
        return jax.jit(many, compiler_options=_QUICKLY), places

    def _replay(self, batch: Any) -> Replay:
        size = rows.size(batch)
        if size not in self._replays:
            self._replays[size] = Replay(self._traced(batch)[0])
        return self._replays[size]

    def _traced(self, batch: Any) -> tuple[Any, Any]:
        given = (self.subject.state, batch, *((self._key(0),) if self.takes_key else ()))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # those of a user's step are for when it trains
                traced, shapes = jax.make_jaxpr(self.subject.step, return_shape=True)(*given)
        except Exception as error:  # noqa: BLE001  a user's step may raise anything
            said = str(error).partition("\n")[0]
            raise _NotTracedError(f"{type(error).__name__}: {said}") from None
        return traced, shapes

    def _can_grow(self) -> bool:
        try:
            self._traced(rows.join([self.base, rows.take(self.base, [0])]))
        except _NotTracedError:
            return False
        return True

    def failure(self, batch: Any) -> str:
        """Why a batch of this size cannot be run; empty where it can."""
        try:
            self._replay(batch)
        except _NotTracedError as error:
            return str(error)
        return ""

    def _read_outputs(self) -> tuple[list[str], Shown, list[tuple[int, str]]]:
        """The names of what is released, the values before the step, and which outputs they are."""
        try:
            traced, shapes = self._traced(self.base)
        except _NotTracedError as error:
            raise InvalidInputError(
                f"step cannot be traced by JAX as step(state, batch{', key' if self.takes_key else ''}): {error}"
            ) from None
        self._replays[self.count] = Replay(traced)
        self._shape = jax.tree.structure(shapes)
        state_shape = jax.tree.structure(self.subject.state)
        inner = shapes[0] if isinstance(shapes, tuple) and len(shapes) and self._shape != state_shape else shapes
        self._whole = self._shape == state_shape
        self._first = not self._whole and jax.tree.structure(inner) == state_shape
        before = jax.tree.leaves(self.subject.state)
        parts, names, start = [], [], {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(shapes)):
            in_state = number < len(before) and (self._whole or self._first)
            name = jax.tree_util.keystr(path[1:] if self._first and in_state else path) or "release"
            name = name if in_state or not (self._whole or self._first) else f"returned{name}"
            if jnp.issubdtype(leaf.dtype, jnp.floating) or jnp.issubdtype(leaf.dtype, jnp.complexfloating):
                if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.subject.kept):
                    continue
                parts.append((number, name))
                names.append(name)
                self.shapes[name] = tuple(leaf.shape)
                value = before[number] if in_state else np.zeros(leaf.shape)
                start[name] = np.asarray(value, dtype=np.float64).reshape(1, -1)
        return names, start, parts

    def _next_state(self, outputs: list[Any]) -> Any:
        """The state that a step leaves; the same one where it gives something else."""
        if not (self._whole or self._first):
            return self.subject.state
        before, shape = jax.tree.flatten(self.subject.state)
        return jax.tree.unflatten(shape, [_like(one, old) for one, old in zip(outputs, before, strict=False)])

    def _shown(self, outputs: Sequence[Any]) -> Shown:
        arrays = [np.asarray(outputs[number], dtype=np.float64) for number, _ in self._parts]
        return {name: one.reshape(len(one), -1) for name, one in zip(self.names, arrays, strict=True)}

    def _key(self, step: int) -> Any:
        """The key that the user's loop gives to a step."""
        if callable(self._keys):
            return self._keys(step)
        if self._keys is not None:
            return self._keys[step % len(self._keys)]
        return jax.random.fold_in(jax.random.key(self._seed), step)


def _on_host(value: Any) -> NDArray[Any]:
    """An output as an array of NumPy; a key by its numbers."""
    return np.asarray(jax.random.key_data(value) if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else value)


def _like(value: NDArray[Any], old: Any) -> Any:
    """A key again, where the state had one."""
    if isinstance(old, jax.Array) and jnp.issubdtype(old.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(value, impl=jax.random.key_impl(old))
    return value


class _NotTracedError(Exception):
    """A step that JAX cannot trace with such a batch."""


def _takes_key(step: Callable[..., Any]) -> bool:
    """Whether a step is called with a key of its own, beside state and batch."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [one for one in inspect.signature(step).parameters.values() if one.kind in kinds]
    needed = sum(one.default is inspect.Parameter.empty for one in parameters)
    if needed not in (2, 3):
        raise InvalidInputError(
            f"step takes {needed} arguments: expected step(state, batch, key) or step(state, batch)"
        )
    return needed == 3


def _renewed(leaf: Any, number: Any) -> Any:
    """A key folded with the number of a run; anything else as it is, and all of it where the number is 0."""
    value = jnp.asarray(leaf) if not isinstance(leaf, jax.Array) else leaf
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        raw = jax.random.key_data(value)
        new = jax.vmap(lambda one: jax.random.fold_in(one, number))(value.reshape(-1)).reshape(value.shape)
        mixed = jnp.where(number == 0, raw, jax.random.key_data(new))
        return jax.random.wrap_key_data(mixed, impl=jax.random.key_impl(value))
    if value.dtype == jnp.uint32 and value.ndim == 1 and value.shape == (2,):  # a key of the old kind
        return jnp.where(number == 0, value, jax.random.fold_in(value, number))
    return leaf
