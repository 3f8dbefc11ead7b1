"""A JAX step on the bench: run with these rows, these keys and this much noise, many runs in one call."""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from coalmine.errors import InvalidInputError
from coalmine.integrations.jax.replay import Drawn, Replay
from coalmine.probing import rows
from coalmine.probing.private_step import PrivateStep

_ROWS_AT_MOST = 12
Shown = dict[str, NDArray[np.float64]]
"""What runs released, by name: one row of numbers for each run."""
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

    def batch(self, extra: Sequence[Any] = (), *, keep: int | None = None) -> Any:
        """The batch (or its first rows) with more rows; where it cannot grow, in the place of its last ones."""
        there = self.count if keep is None else keep
        if not self.grows and extra:
            there = self.count - len(extra)
        return rows.join([rows.take(self.base, range(there)), *extra])

    def run(self, batches: Sequence[Any], numbers: Sequence[int], factors: Sequence[float]) -> Shown:
        """One run for each batch (all of one size), number of keys and factor of the noise."""
        self.runs += len(batches)
        size = rows.size(batches[0])
        replay = self._replay(batches[0])
        if size not in self._compiled:
            step = lambda *given: self._outputs(replay.run(self._inputs(*given[:2]), given[2]))  # noqa: E731
            self._compiled[size] = jax.jit(jax.vmap(step))
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
        scales = np.repeat(np.asarray(factors, dtype=np.float32)[:, None], max(len(replay.draws), 1), axis=1)
        return self._shown(self._compiled[size](stacked, np.asarray(numbers, dtype=np.uint32), scales), len(batches))

    def run_each_draw(self) -> list[Shown]:
        """The batch with the noise of one draw alone, for every draw."""
        replay = self._replay(self.base)
        step = jax.jit(lambda *given: self._outputs(replay.run(self._inputs(*given[:2]), given[2])))
        found = []
        for number in range(len(replay.draws)):
            alone = np.zeros(len(replay.draws), dtype=np.float32)
            alone[number] = 1.0
            outputs = step(self.base, np.uint32(0), alone)
            found.append(self._shown([one[None] for one in outputs], 1))
        return found

    def two_steps(self) -> tuple[list[Drawn], list[Drawn]]:
        """What is drawn in two steps, one after the other, with the keys that the user's loop would give."""
        replay = self._replay(self.base)
        outputs, first = replay.keys(self._inputs(self.base, np.uint32(0)))
        state = self._next_state(outputs)
        flat = jax.tree.leaves((state, self.base)) + ([self._key(1)] if self.takes_key else [])
        _, second = replay.keys(flat)
        return first, second

    def walk(self, steps: int) -> list[tuple[Shown, Shown]]:
        """Consecutive steps, each without its noise and with it."""
        replay = self._replay(self.base)
        none, all_of_it = np.zeros(max(len(replay.draws), 1)), np.ones(max(len(replay.draws), 1))
        state, found = self.subject.state, []
        run = jax.jit(replay.run)
        for number in range(steps):
            flat = jax.tree.leaves((state, self.base)) + ([self._key(number)] if self.takes_key else [])
            silent, plain = run(flat, none), run(flat, all_of_it)
            found.append(
                (
                    self._shown([one[None] for one in self._outputs(silent)], 1),
                    self._shown([one[None] for one in self._outputs(plain)], 1),
                )
            )
            state = self._next_state(plain)
        return found

    def _replay(self, batch: Any) -> Replay:
        size = rows.size(batch)
        if size not in self._replays:
            self._replays[size] = Replay(self._traced(batch)[0])
        return self._replays[size]

    def _traced(self, batch: Any) -> tuple[Any, Any]:
        given = (self.subject.state, batch, *((self._key(0),) if self.takes_key else ()))
        try:
            return jax.make_jaxpr(self.subject.step, return_shape=True)(*given)  # type: ignore[return-value]
        except Exception as error:  # noqa: BLE001  a user's step may raise anything
            raise _NotTracedError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None

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
        tree = jax.tree.unflatten(self._shape, outputs)
        return tree if self._whole else (tree[0] if self._first else self.subject.state)

    def _outputs(self, outputs: list[Any]) -> list[Any]:
        return [outputs[number] for number, _ in self._parts]

    def _shown(self, outputs: Sequence[Any], runs: int) -> Shown:
        arrays = [np.asarray(one, dtype=np.float64).reshape(runs, -1) for one in outputs]
        return dict(zip(self.names, arrays, strict=True))

    def _inputs(self, batch: Any, number: Any) -> list[Any]:
        """The step's inputs with the keys of this number."""
        state = [_renewed(one, number) for one in jax.tree.leaves(self.subject.state)]
        flat = [*state, *jax.tree.leaves(batch)]
        return [*flat, _renewed(self._key(0), number)] if self.takes_key else flat

    def _key(self, step: int) -> Any:
        """The key that the user's loop gives to a step."""
        if callable(self._keys):
            return self._keys(step)
        if self._keys is not None:
            return self._keys[step % len(self._keys)]
        return jax.random.fold_in(jax.random.key(self._seed), step)


class _NotTracedError(Exception):
    """A step that JAX cannot trace with such a batch."""


def _takes_key(step: Callable[..., Any]) -> bool:
    """Whether a step is called with a key of its own, beside state and batch."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [one for one in inspect.signature(step).parameters.values() if one.kind in kinds]
    needed = sum(one.default is inspect.Parameter.empty for one in parameters)
    if needed not in (2, 3):
        raise InvalidInputError(f"step takes {needed} arguments: expected step(state, batch, key) or step(state, batch)")
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
