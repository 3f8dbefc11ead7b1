"""A JAX step on the bench: run with these rows, these keys and this much noise, many runs in one call."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.integrations.jax import padding
from coalmine.integrations.jax.replay import Replay
from coalmine.probing import rows
from coalmine.probing.private_step import PrivateStep

_ROWS_AT_MOST = 12
STEPS, KEYS = 8, 1000
"""Steps that are walked, and steps whose keys are compared where the loop's keys are given as a function."""
_PLACES = 64
"""Places of a padded batch in which rows are looked for that are no padding."""
_WIDTH, _ROWS_AT_ONCE = 40, 640
"""Runs in one call, and rows in all of them together."""
_QUICKLY: Any = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""A step is run a few hundred times: compiling takes longer than running."""
Shown = dict[str, NDArray[np.float64]]
"""What runs released, by name: one row of numbers for each run."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One of several steps: the state it began with, what two runs of it show, and the keys it drew from by place.

    ``silent`` is without noise, or with the noise of another key where it cannot be silenced.
    """

    state: Any
    silent: dict[str, NDArray[np.float64]]
    plain: dict[str, NDArray[np.float64]]
    keys: list[tuple[int | None, NDArray[np.uint32]]]


Keys = Callable[[int], Any] | Sequence[Any] | None


class Bench:
    """Runs a step as often as asked, always from the same state.

    Runs have numbers: number 0 takes the user's own keys, every other number takes new ones, the same each time.
    """

    def __init__(self, subject: PrivateStep, *, keys: Keys, seed: int, empty: Any = None) -> None:
        self.subject, self._keys, self._seed = subject, keys, seed
        self.takes_key = _takes_key(subject.step)
        batch = jax.tree.map(np.asarray, subject.batch)
        _check_numbers(batch)
        self._dtypes = jax.tree.map(lambda one: one.dtype, batch)
        batch = jax.tree.map(_crafted_as, batch)
        self.count = min(rows.check(batch), _ROWS_AT_MOST)
        self.whole_batch = batch
        _check_finite(batch)
        self.base = rows.take(batch, range(self.count))
        self.empty = self._given_empty(empty)
        """What the step is given when no row was drawn."""
        self.padding: Any = None
        """Rows that fill up a batch, as many as it has in all, where that number is always the same."""
        self.runs = 0
        self._replays: dict[int, Replay] = {}
        self._compiled: dict[int, Any] = {}
        self.names: list[str] = []
        """What is released in numbers that noise may hide."""
        self.exact: list[str] = []
        """What is released in whole numbers and truth values."""
        self.start: dict[str, NDArray[np.float64]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.spacing: dict[str, float] = {}
        """The relative spacing of the numbers of each."""
        self.kept: list[tuple[int, str]] = []
        """Leaves of the state that nobody outside sees: which of them, and their names."""
        self.no_noise: list[int] = []
        """Draws that are never scaled: by their number."""
        self._parts: list[tuple[int, str]] = []
        self.padding = self._choose_size()
        self._read_outputs()
        if self.padding is not None:
            self._pad()
        self.grows = self.padding is not None or self._can_grow()
        """Whether a row can be added: by another number of rows, or in the place of padding."""

    @property
    def draws(self) -> list[Any]:
        """The places where the step draws noise."""
        return self._replay(self.base).draws

    def batch(self, *more: Any) -> Any:
        """The batch with more rows, in the place of padding; where it cannot grow, in the place of its last ones."""
        return self.smaller(self.count, *more)

    def smaller(self, count: int, *more: Any) -> Any:
        """So many rows of the batch, and more."""
        if self.padding is None and self.grows:
            return rows.join([rows.take(self.base, range(count)), *more])
        last = rows.size(self.base) - 1
        base = self.base if count == self.count else self.filled(rows.take(self.base, range(count)))
        return self.replaced({last - number: row for number, row in enumerate(more)}, base)

    def filled(self, some: Any) -> Any:
        """These rows, with padding where batches are padded."""
        return some if self.padding is None else padding.filled(some, self.padding)

    def replaced(self, changes: Mapping[int, Any], base: Any = None) -> Any:
        """The batch, or another one, with other rows in the place of some of its own."""
        base = self.base if base is None else base
        return rows.join([changes.get(slot, rows.take(base, [slot])) for slot in range(rows.size(base))])

    def run(
        self,
        batches: Sequence[Any],
        numbers: Sequence[int],
        factors: Sequence[float],
        *,
        state: Any = None,
        step: int = 0,
    ) -> Shown:
        """One run for each batch (all of one size), number of keys and factor of the noise.

        Args:
            batches: rows for each run.
            numbers: which keys each run has.
            factors: of the noise in each run.
            state: what they all begin with; the user's unless given.
            step: whose key of the loop they have.
        """
        return self.shown(self.outputs(batches, numbers, factors, state=state, step=step))

    def outputs(
        self,
        batches: Sequence[Any],
        numbers: Sequence[int],
        factors: Sequence[float],
        *,
        state: Any = None,
        step: int = 0,
    ) -> list[NDArray[Any]]:
        """The same, as everything that the step gives: one array for each leaf, one row for each run."""
        return self._ran(batches, numbers, self._scales(batches[0], factors), state=state, key=self.key(step))[0]

    def _scales(self, batch: Any, factors: Sequence[float]) -> NDArray[np.float32]:
        count = max(len(self._replay(batch).draws), 1)
        scales = np.repeat(np.asarray(factors, dtype=np.float32)[:, None], count, axis=1)
        scales[:, [one for one in self.no_noise if one < count]] = 1.0
        return scales

    def run_scaled(self, scales: NDArray[np.float32]) -> Shown:
        """Runs of the batch alone, each with a factor for every draw."""
        count = len(scales)
        return self.shown(self._ran([self.base] * count, [0] * count, scales)[0])

    def run_each_draw(self) -> list[dict[str, NDArray[np.float64]]]:
        """What the batch alone releases with the noise of one draw and no other, for every draw."""
        count = len(self.draws)
        if not count:
            return []
        scales = np.eye(count, dtype=np.float32)
        scales[:, self.no_noise] = 1.0
        shown = self.run_scaled(scales)
        return [{name: value[number] for name, value in shown.items()} for number in range(count)]

    @property
    def steps(self) -> int:
        """How many steps can be walked: as many as there are keys, but not more than the first few."""
        return min(STEPS, len(self.loop_keys)) if self._keys is not None else STEPS

    @functools.cached_property
    def loop_keys(self) -> list[Any]:
        """The keys of the user's loop, as far as they are known, up to the first that comes from behind its end.

        A function that takes them from an array of JAX gives the last one again for every later step.
        """
        if self._keys is None:
            return []
        if not callable(self._keys):
            return [_checked_key(f"keys[{step}]", self._keys[step]) for step in range(_length(self._keys))]
        found: list[Any] = []
        try:
            inspect.signature(self._keys).bind(0)
        except ValueError:  # a built-in function that does not say what it takes
            pass
        except TypeError:
            raise _validate.reject("keys", self._keys, _KEYS_ALLOWED) from None
        for step in range(KEYS):
            try:
                found.append(_checked_key(f"keys({step})", self._keys(step)))
            except (IndexError, KeyError, StopIteration):
                break
        if not found:
            raise InvalidInputError("keys gives no key for step 0: expected a function of the step's number, or a list")
        data = [_key_numbers(one) for one in found]
        end = next((step for step in range(len(data) - 1, 0, -1) if data[step - 1] != data[step]), 0)
        self.stuck = end if 0 < end < len(found) - 1 else None
        return found if self.stuck is None else found[: end + 1]

    @property
    def key_numbers(self) -> list[bytes]:
        """The numbers of each of the loop's keys."""
        return [_key_numbers(one) for one in self.loop_keys]

    stuck: int | None = None
    """From which step on the loop's function gives one and the same key."""

    def walk(self, quiet: tuple[int, float], number: int = 0) -> list[Step]:
        """The first steps with the keys that the user's loop gives: beside another run, with noise, and what was drawn.

        Args:
            quiet: the number of keys and the factor of the noise of the other run.
            number: which keys the steps have: 0 for those of the loop.
        """
        state, found = self.subject.state, []
        scales = self._scales(self.base, [quiet[1], 1.0])
        for step in range(self.steps):
            outputs, drawn = self._ran([self.base] * 2, [quiet[0], number], scales, state=state, key=self.key(step))
            shown = self.shown(outputs)
            keys = [(None if draw in self.no_noise else draw, np.asarray(one[1])) for draw, one in drawn]
            silent, plain = ({name: value[one] for name, value in shown.items()} for one in (0, 1))
            found.append(Step(state, silent, plain, keys))
            state = self.next_state([one[1] for one in outputs])
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
        given = self.subject.state if state is None else state, self.key(0) if key is None else key
        parts, width = [], min(_WIDTH, max(2, _ROWS_AT_ONCE // max(size, 1)))
        for first in range(0, len(batches), width):
            there = range(first, min(first + width, len(batches)))
            wanted = [*there, *[there[-1]] * (width - len(there))]
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

        def in_turn(state: Any, key: Any, *runs: Any) -> Any:
            return jax.lax.map(lambda one: step(state, key, *one), runs)

        many = jax.vmap(step, in_axes=(None, None, 0, 0, 0)) if self._by_key_alone() else in_turn
        return jax.jit(many, compiler_options=_QUICKLY), places

    def _by_key_alone(self) -> bool:
        """Whether draws follow from their key alone; with rbg, also from the place among runs that are vectorized."""
        leaves = [one for one in jax.tree.leaves((self.subject.state, self.key(0))) if _is_key(one)]
        return all(str(jax.random.key_impl(one)) in ("fry", "threefry2x32") for one in leaves)

    def _replay(self, batch: Any) -> Replay:
        size = rows.size(batch)
        if size not in self._replays:
            self._replays[size] = Replay(self._traced(batch)[0])
        return self._replays[size]

    def _traced(self, batch: Any) -> tuple[Any, Any]:
        given = (self.subject.state, batch, *((self.key(0),) if self.takes_key else ()))

        @functools.wraps(self.subject.step)
        def step(state: Any, batch: Any, *key: Any) -> Any:
            taken: Callable[..., Any] = self.subject.step
            return taken(state, jax.tree.map(_as_given, batch, self._dtypes), *key)

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # those of a user's step are for when it trains
                traced, shapes = jax.make_jaxpr(step, return_shape=True)(*given)
        except Exception as error:  # noqa: BLE001  a user's step may raise anything
            said = str(error).partition("\n")[0]
            raise _NotTracedError(f"{type(error).__name__}: {said}") from None
        return traced, shapes

    def _given_empty(self, empty: Any) -> Any:
        if empty is None:
            return rows.take(self.base, [])
        return padding.checked(empty, self.whole_batch)

    def _choose_size(self) -> Any:
        """The first rows of the batch, or all where the step runs with no other number; the padding, where there is."""
        given, fills = rows.size(self.whole_batch), rows.size(self.empty)
        fixed = False
        if fills != given and self.failure(self.base):
            fixed = not self.failure(self.whole_batch)
        elif 0 < fills != given:
            fixed = not self._can_grow()
        if fixed or fills == given:
            self.base, self.count = self.whole_batch, given
        if fills and (fixed or fills == given):
            return padding.of_width(self.empty, given)
        return None

    def _pad(self) -> None:
        """A batch of some rows that move the release, with padding in all other places, and at least in one."""
        slots = range(min(self.count, _PLACES))
        batches = [self.base, *(self.replaced({slot: rows.take(self.padding, [slot])}) for slot in slots)]
        outputs = self.outputs(batches, [0] * len(batches), [0.0] * len(batches))
        apart = np.zeros(len(batches), dtype=bool)
        for shown in (numbers(one) for one in outputs):
            apart |= ~((shown == shown[:1]) | (np.isnan(shown) & np.isnan(shown[:1]))).all(axis=1)
        real = [slot for slot in slots if apart[1 + slot]] or list(slots)
        self.empty = self.padding
        real = real[: min(_ROWS_AT_MOST, self.count - 1)]
        self.base, self.count = self.filled(rows.take(self.whole_batch, real)), len(real)

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

    def _read_outputs(self) -> None:
        """The names of what is released, the values before the step, and which outputs they are."""
        try:
            traced, shapes = self._traced(self.base)
        except _NotTracedError as error:
            raise InvalidInputError(
                f"step cannot be traced by JAX as step(state, batch{', key' if self.takes_key else ''}): {error}"
            ) from None
        self._replays[self.count] = Replay(traced)
        shape, state_shape = jax.tree.structure(shapes), jax.tree.structure(self.subject.state)
        inner = shapes[0] if isinstance(shapes, tuple) and len(shapes) and shape != state_shape else shapes
        whole = shape == state_shape
        first = not whole and jax.tree.structure(inner) == state_shape
        self._gives_state = whole or first
        before, named = jax.tree.leaves(self.subject.state), []
        for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(shapes)):
            in_state = number < len(before) and self._gives_state
            name = jax.tree_util.keystr(path[1:] if first and in_state else path) or "release"
            name = name if in_state or not self._gives_state else f"returned{name}"
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                continue
            named.append(name)
            if any(matches(name, pattern) for pattern in self.subject.kept):
                if in_state:
                    self.kept.append((number, name))
                continue
            noised = jnp.issubdtype(leaf.dtype, jnp.inexact)
            (self.names if noised else self.exact).append(name)
            self._parts.append((number, name))
            self.shapes[name] = tuple(leaf.shape)
            self.spacing[name] = float(jnp.finfo(leaf.dtype).eps) if noised else 0.0
            value = before[number] if in_state else np.zeros(leaf.shape)
            self.start[name] = numbers(np.asarray(value)[None])[0]
        self._check_released(named)

    def _check_released(self, named: Sequence[str]) -> None:
        """An error where nothing is left that could be released, or a name in ``kept`` is none."""
        if not named:
            raise InvalidInputError(
                f"step gives nothing: expected the next state, or gradients; it is called as step(state, batch"
                f"{', key' if self.takes_key else ''}), and what it changes in place does not count in JAX"
            )
        for pattern in self.subject.kept:
            if not any(matches(name, pattern) for name in named):
                raise _validate.reject(
                    "kept", pattern, f"a name (with * and ?) of what the step gives: {_listed(named)}"
                )
        if not self._parts:
            raise _validate.reject("kept", self.subject.kept, f"some of {_listed(named)}, not all: nothing is released")

    def next_state(self, outputs: Sequence[Any]) -> Any:
        """The state that a step leaves; the same one where it gives something else."""
        if not self._gives_state:
            return self.subject.state
        before, shape = jax.tree.flatten(self.subject.state)
        return jax.tree.unflatten(shape, [_like(one, old) for one, old in zip(outputs, before, strict=False)])

    def with_first_keys(self, state: Any) -> Any:
        """A later state with the keys of the first one, so that the same noise is drawn."""
        before, shape = jax.tree.flatten(self.subject.state)
        after = jax.tree.leaves(state)
        return jax.tree.unflatten(shape, [old if _is_key(old) else new for old, new in zip(before, after, strict=True)])

    def shown(self, outputs: Sequence[Any]) -> Shown:
        """What is released of what the step gives, by name."""
        return {name: numbers(outputs[number]) for number, name in self._parts}

    def key(self, step: int) -> Any:
        """The key that the user's loop gives to a step."""
        if self._keys is None:
            return jax.random.fold_in(jax.random.key(self._seed), step)
        return self.loop_keys[step]


def matches(name: str, pattern: str) -> bool:
    """Whether a name is meant: as it stands, or by * and ?; brackets are part of names.

    >>> matches("returned[1]", "returned[1]"), matches("['m']['w']", "['m']*"), matches("[0].mu", "[1]*")
    (True, True, False)
    """
    literal = pattern.replace("[", "[[]")
    return any(fnmatch.fnmatchcase(name, one) for one in (literal, pattern))


def _listed(names: Sequence[str]) -> str:
    most = 12
    return ", ".join(names[:most]) + (f", and {len(names) - most} more" if len(names) > most else "")


def numbers(outputs: Any) -> NDArray[np.float64]:
    """An output of several runs as one row of numbers for each; a complex number is two."""
    array = np.asarray(outputs)
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    return np.asarray(array, dtype=np.float64).reshape(len(array), -1)


def _crafted_as(leaf: NDArray[Any]) -> NDArray[Any]:
    """Rows are made in a type that NumPy knows, which bfloat16 is not."""
    return leaf.astype(np.float32) if leaf.dtype.kind == "V" and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def _as_given(leaf: Any, dtype: Any) -> Any:
    """The type of the user's rows."""
    return leaf.astype(dtype) if leaf.dtype == np.float32 and jnp.issubdtype(dtype, jnp.floating) else leaf


def _check_numbers(batch: Any) -> None:
    """An error where a part of the batch is no array of numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if leaf.dtype.kind in "OUSMm":
            part, allowed = f"batch{jax.tree_util.keystr(path)}", "an array of numbers, with rows along the first axis"
            raise _validate.reject(part, leaf.tolist(), allowed)


def _check_finite(batch: Any) -> None:
    """An error where rows are not finite: nothing could be compared."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            part = f"batch{jax.tree_util.keystr(path)}"
            raise InvalidInputError(f"{part} holds NaN or infinity: expected finite rows, public or made up")


def _is_key(value: Any) -> bool:
    """Whether a leaf is a key, of the new kind or of the old."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return False
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key)) or (dtype == np.uint32 and value.shape == (2,))


_KEYS_ALLOWED = "a function of the step's number that gives a key, such as lambda step: jax.random.fold_in(key, step)"


def _length(keys: Any) -> int:
    try:
        return len(keys)
    except TypeError:
        raise _validate.reject("keys", keys, f"{_KEYS_ALLOWED}, or a list or an array of keys") from None


def _checked_key(name: str, key: Any) -> Any:
    if not _is_key(key):
        raise _validate.reject(name, key, "one key, as jax.random.key or jax.random.split gives it")
    return key


def _key_numbers(key: Any) -> bytes:
    """The numbers of a key."""
    return _on_host(jnp.asarray(key)).tobytes()


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
