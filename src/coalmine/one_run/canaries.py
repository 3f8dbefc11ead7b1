"""The canaries of one training: rows of the user's kind, or gradients. Made from public randomness; no coin is in here.

What a canary is changes how much is proved, never whether it holds: the coins alone carry the proof.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.one_run import files

Array = NDArray[np.float64]
_STREAM = 0xCA9A
_UNIQUE = 8
"""How many features of a blank row are lit."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RowCanaries:
    """Rows that go to the training like any other: ``x`` of shape ``(m, features...)``, with labels ``y`` where there
    are any.
    """

    kind: str
    x: NDArray[Any]
    y: NDArray[np.int64] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", np.asarray(self.x))
        if self.y is not None:
            object.__setattr__(self, "y", np.asarray(self.y))
        # None at all is what some coins leave of a few; a design wants at least one.
        if self.x.ndim < 2:
            raise InvalidInputError(f"x has shape {self.x.shape}: expected (canaries, features...)")
        if self.x.dtype.kind not in "biuf":
            raise InvalidInputError(f"x has type {self.x.dtype}: expected numbers (text as tokens)")
        if self.x.dtype.kind == "f" and not np.isfinite(self.x).all():
            raise InvalidInputError("x is not allowed: expected finite numbers")
        if self.y is not None and self.y.shape != self.x.shape[:1]:
            raise InvalidInputError(f"y has shape {self.y.shape}: expected {self.x.shape[0]} labels, one a canary")

    @property
    def number(self) -> int:
        """m: how many canaries."""
        return int(self.x.shape[0])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What goes into a file, by name."""
        return {"x": self.x} if self.y is None else {"x": self.x, "y": self.y}

    def take(self, chosen: NDArray[Any]) -> RowCanaries:
        """The chosen canaries alone."""
        return dataclasses.replace(self, x=self.x[chosen], y=None if self.y is None else self.y[chosen])


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GradientCanaries:
    """Rows given by their gradient: canary i has ``values[i, j]`` at parameter ``indices[i, j]``, zero elsewhere.

    Each has norm 1, in units of the clipping norm C: as large as any row's gradient can be after clipping.
    """

    kind: str
    indices: NDArray[np.int64]
    values: Array
    parameters: int
    note: str = ""

    def __post_init__(self) -> None:
        if self.indices.ndim != 2 or self.indices.shape != self.values.shape or not self.indices.shape[1]:
            raise InvalidInputError(
                f"indices has shape {self.indices.shape} and values {self.values.shape}: expected (canaries, entries)"
            )
        if not self.indices.size:
            return  # what some coins leave of a few canaries; a design wants at least one
        if self.indices.min() < 0 or self.indices.max() >= self.parameters:
            raise InvalidInputError(
                f"indices from {self.indices.min()} to {self.indices.max()} are not allowed: expected parameters 0 to "
                f"{self.parameters - 1}"
            )
        norms = np.linalg.norm(self.values, axis=1)
        if not np.allclose(norms, 1.0, atol=1e-6):
            raise InvalidInputError(f"values has rows of norm {norms.min():g} to {norms.max():g}: expected norm 1")

    @property
    def number(self) -> int:
        """m: how many canaries."""
        return int(self.indices.shape[0])

    @property
    def per_coordinate(self) -> int:
        """The largest number of canaries that share a parameter."""
        return int(np.unique(self.indices, return_counts=True)[1].max(initial=0))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What goes into a file, by name."""
        return {"indices": self.indices, "values": self.values, "parameters": np.array(self.parameters)}

    def take(self, chosen: NDArray[Any]) -> GradientCanaries:
        """The chosen canaries alone."""
        return dataclasses.replace(self, indices=self.indices[chosen], values=self.values[chosen])

    def check_part(self, included: GradientCanaries) -> None:
        """An error unless ``included`` are some of these."""
        strangers = Counter(included._each()) - Counter(self._each())
        if strangers:
            raise InvalidInputError(
                f"included has {strangers.total()} canaries that are not among those scored: expected a part of scored"
            )

    def _each(self) -> list[tuple[bytes, bytes]]:
        """Each canary as something that can be compared."""
        return [(places.tobytes(), values.tobytes()) for places, values in zip(self.indices, self.values, strict=True)]


Canaries: TypeAlias = RowCanaries | GradientCanaries


def content_of(canaries: Canaries) -> str:
    """A hash of what the canaries are, in their order: a run and its control must be played with the same ones.

    Numbers count by their value, whatever type they have.

    >>> rows = [RowCanaries(kind="mine", x=np.eye(2) * scale, y=np.zeros(2, dtype=int)) for scale in (10, 10.0, 0.1)]
    >>> [content_of(one) == content_of(rows[0]) for one in rows]
    [True, True, False]
    """
    parts = hashlib.sha256()
    for name, values in sorted(canaries.arrays().items()):
        # As float64 where they are numbers, and without -0.0, which is equal to 0.0.
        whole = np.ascontiguousarray(values, dtype=np.float64) + 0.0 if values.dtype.kind in "biuf" else values
        parts.update(f"{name} {whole.dtype.kind} {whole.shape}".encode())
        parts.update(whole.tobytes())
    return parts.hexdigest()


def load_gradients(path: Path | str, *, kind: str = "dirac") -> tuple[GradientCanaries, list[str]]:
    """Gradients from a file of ``coalmine one-run prepare``, and their ids if it has any (``score/`` has them).

    Args:
        path: ``train/run-1.npz`` or ``score/run-1.npz``.
        kind: What they are called.

    Returns:
        The canaries and the ids.
    """
    expected = "gradients that `one-run prepare` wrote"
    parts = files.read_npz(path, expected=expected, wanted=("indices", "values", "parameters"))
    canaries = GradientCanaries(
        kind=kind, indices=parts["indices"], values=parts["values"], parameters=int(parts["parameters"])
    )
    return canaries, [str(name) for name in parts.get("id", ())]


def _generator(seed: int, purpose: str) -> np.random.Generator:
    """Public randomness of one purpose."""
    return np.random.default_rng([_STREAM, _validate.integer("seed", seed, at_least=0), *purpose.encode()])


def _rows(x: ArrayLike) -> NDArray[Any]:
    """The user's rows."""
    rows = np.asarray(x)
    if rows.ndim < 2 or not rows.shape[0] or rows.dtype.kind not in "fiu":
        raise InvalidInputError(f"x has shape {rows.shape} ({rows.dtype}): expected rows of numbers")
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        raise InvalidInputError("x is not allowed: expected finite numbers, and it has NaN or infinite ones")
    return rows


def _labels(rng: np.random.Generator, classes: int, m: int) -> NDArray[np.int64]:
    """Any label, at random."""
    return rng.integers(0, _validate.integer("classes", classes, at_least=2), size=m)


def mislabeled(x: ArrayLike, y: ArrayLike, *, classes: int, canaries: int, seed: int = 0) -> RowCanaries:
    """Rows of the user's own data with a wrong label each, drawn without replacement.

    Args:
        x: Rows to choose from; best are rows that the training does not use otherwise.
        y: Their labels.
        classes: How many classes there are.
        canaries: m.
        seed: Public: it decides which rows and labels, never which of them are included.

    Returns:
        The canaries.

    >>> found = mislabeled([[0.0], [1.0], [2.0]], [0, 1, 1], classes=2, canaries=3)
    >>> sorted(zip(found.x[:, 0].tolist(), found.y.tolist()))
    [(0.0, 1), (1.0, 0), (2.0, 0)]
    """
    rows, labels = _rows(x), np.asarray(y)
    m = _validate.integer("canaries", canaries, at_least=1, at_most=int(rows.shape[0]))
    if labels.shape != rows.shape[:1] or labels.dtype.kind not in "iu":
        raise InvalidInputError(f"y has shape {labels.shape} ({labels.dtype}): expected a whole number for each row")
    if labels.min() < 0 or labels.max() >= _validate.integer("classes", classes, at_least=2):
        raise InvalidInputError(f"y has labels from {labels.min()} to {labels.max()}: expected 0 to {classes - 1}")
    rng = _generator(seed, "mislabeled")
    chosen = rng.choice(rows.shape[0], size=m, replace=False)
    wrong = rng.integers(1, classes, size=m)
    return RowCanaries(
        kind="mislabeled",
        x=rows[chosen],
        y=((labels[chosen] + wrong) % classes).astype(np.int64),
        note="rows of the data with a wrong label",
    )


def blank(x: ArrayLike, *, classes: int, canaries: int, seed: int = 0) -> RowCanaries:
    """Rows at the smallest value of every feature, with eight features of each lit: no two canaries are alike.

    Args and Returns as in :func:`mislabeled`; the rows give the smallest and largest values alone.

    >>> int(blank([[0.0] * 9, [1.0] * 9], classes=2, canaries=5).x.sum())
    40
    """
    rows = _rows(x)
    m = _validate.integer("canaries", canaries, at_least=1)
    rng = _generator(seed, "blank")
    flat = np.repeat(rows.min(axis=0).ravel()[None], m, axis=0)
    high = rows.max(axis=0).ravel()
    usable = np.flatnonzero(high > flat[0])
    if usable.size == 0:
        raise InvalidInputError("x is not allowed: every feature is constant, so no blank row can be told from another")
    lit = np.argsort(rng.random((m, usable.size)), axis=1)[:, : min(_UNIQUE, usable.size)]
    places = usable[lit]
    np.put_along_axis(flat, places, high[places], axis=1)
    return RowCanaries(
        kind="blank",
        x=flat.reshape(m, *rows.shape[1:]),
        y=_labels(rng, classes, m),
        note=f"blank rows with {lit.shape[1]} features lit",
    )


def extreme(x: ArrayLike, *, classes: int, canaries: int, seed: int = 0) -> RowCanaries:
    """Corners of the data's box: every feature at its smallest or largest value, by chance.

    Args and Returns as in :func:`blank`.

    >>> sorted(set(extreme([[0.0, 2.0], [1.0, 5.0]], classes=2, canaries=50).x[:, 1].tolist()))
    [2.0, 5.0]
    """
    rows = _rows(x)
    m = _validate.integer("canaries", canaries, at_least=1)
    rng = _generator(seed, "extreme")
    sides = rng.random((m, *rows.shape[1:])) < 0.5
    low, high = rows.min(axis=0), rows.max(axis=0)
    if np.array_equal(low, high):
        raise InvalidInputError("x is not allowed: every feature is constant, so its box has a single corner")
    found = np.where(sides, low, high)
    return RowCanaries(
        kind="extreme",
        x=found.astype(rows.dtype),
        y=_labels(rng, classes, m),
        note="corners of the box that the data fills",
    )


def low_variance(x: ArrayLike, *, classes: int, canaries: int, scale: float = 10.0, seed: int = 0) -> RowCanaries:
    """±scale·v for the directions v in which the data varies least: one canary for each end of a direction.

    A row along a direction in which no other row lies has a gradient that no other row undoes (ClipBKD, jagielski-2020,
    Section 4.2); here each canary has such a direction, or one end of it, for itself. At most two a feature.

    Args:
        x: The training rows.
        classes: How many classes there are.
        canaries: m, at most twice the number of features.
        scale: The length of a canary's row.
        seed: Public; decides the labels and which end comes first.

    Returns:
        The canaries, those with the least variance first.

    >>> rows = np.random.default_rng(0).normal(size=(100, 3)) * [5.0, 1.0, 0.1]
    >>> np.abs(low_variance(rows, classes=2, canaries=2).x).round(0).tolist()
    [[0.0, 0.0, 10.0], [0.0, 0.0, 10.0]]
    """
    rows = _rows(x)
    flat = rows.reshape(rows.shape[0], -1).astype(np.float64)
    m = _validate.integer("canaries", canaries, at_least=1, at_most=2 * flat.shape[1])
    length = _validate.positive("scale", scale)
    rng = _generator(seed, "low variance")
    _, directions = np.linalg.eigh(flat.T @ flat / flat.shape[0])
    wanted = directions.T[: -(-m // 2)]
    found = np.stack([wanted, -wanted], axis=1).reshape(-1, flat.shape[1])[:m] * length
    return RowCanaries(
        kind="low_variance",
        x=found.reshape(m, *rows.shape[1:]).astype(np.float32),
        y=_labels(rng, classes, m),
        note=f"both ends of the {wanted.shape[0]} directions in which the data varies least, length {length:g}",
    )


def random_tokens(
    *, vocabulary: int, length: int, canaries: int, classes: int | None = None, seed: int = 0
) -> RowCanaries:
    """Sequences of tokens drawn uniformly from the vocabulary: no text looks like them.

    Args:
        vocabulary: How many tokens there are.
        length: Tokens in a sequence.
        canaries: m.
        classes: For a classifier, how many classes there are; left out, the sequences have no label.
        seed: Public.

    Returns:
        The canaries, all different.

    >>> random_tokens(vocabulary=50, length=4, canaries=3).x.shape
    (3, 4)
    """
    tokens = _validate.integer("vocabulary", vocabulary, at_least=2)
    size = _validate.integer("length", length, at_least=1)
    m = _validate.integer("canaries", canaries, at_least=1)
    rng = _generator(seed, "tokens")
    found = np.unique(rng.integers(0, tokens, size=(2 * m + 16, size)), axis=0)
    if found.shape[0] < m:
        raise InvalidInputError(
            f"canaries = {m} is not allowed: expected fewer; {tokens} tokens make too few different sequences of "
            f"length {size}"
        )
    return RowCanaries(
        kind="random_tokens",
        x=found[rng.permutation(found.shape[0])[:m]],
        y=None if classes is None else _labels(rng, classes, m),
        note=f"random sequences of {size} tokens out of {tokens}",
    )


def new_tokens(
    *, vocabulary: int, length: int, canaries: int, prefixes: ArrayLike | None = None, seed: int = 0
) -> RowCanaries:
    """Sequences that each end in a token of their own, which is in no other row: canary i in ``vocabulary + i``.

    No other row moves what the model says about that token (Panda et al. 2025), so score a canary by the loss on it
    alone. The model needs ``vocabulary + canaries`` tokens.

    Args:
        vocabulary: How many tokens there are without the new ones.
        length: Tokens in a sequence, with the new one.
        canaries: m.
        prefixes: What comes before the new token, ``(rows, length - 1)``: the beginnings of public text, say. They are
            used in turn; drawn uniformly from the vocabulary if left out.
        seed: Public.

    Returns:
        The canaries.

    >>> new_tokens(vocabulary=50, length=4, canaries=3).x[:, -1].tolist()
    [50, 51, 52]
    """
    tokens = _validate.integer("vocabulary", vocabulary, at_least=2)
    size = _validate.integer("length", length, at_least=2)
    m = _validate.integer("canaries", canaries, at_least=1)
    if prefixes is None:
        first = _generator(seed, "new tokens").integers(0, tokens, size=(m, size - 1))
    else:
        given = np.asarray(prefixes)
        if given.ndim != 2 or given.shape[1] != size - 1 or not given.size or given.dtype.kind not in "iu":
            raise InvalidInputError(
                f"prefixes has shape {given.shape} ({given.dtype}): expected tokens, (rows, {size - 1})"
            )
        if given.min() < 0 or given.max() >= tokens:
            raise InvalidInputError(
                f"prefixes from {given.min()} to {given.max()} are not allowed: expected tokens 0 to {tokens - 1}"
            )
        first = given[np.arange(m) % given.shape[0]].astype(np.int64)
    return RowCanaries(
        kind="new_tokens",
        x=np.concatenate([first, tokens + np.arange(m)[:, None]], axis=1),
        note=f"sequences of {size} tokens that each end in a token of their own, {tokens} to {tokens + m - 1}",
    )


def dirac(
    *, parameters: int, canaries: int, per_coordinate: int = 1, coordinates: ArrayLike | None = None, seed: int = 0
) -> GradientCanaries:
    """One parameter each, with the whole clipping norm on it; ``per_coordinate`` canaries may share a parameter.

    Several to a parameter make more canaries of few parameters (Keinan, Shenfeld and Ligett 2025).

    Args:
        parameters: P of the network.
        canaries: m.
        per_coordinate: How many canaries share a parameter.
        coordinates: The parameters to use, the best first; drawn at random if left out. They may be chosen from the
            data (those that move least), never from the coins.
        seed: Public.

    Returns:
        The canaries.

    >>> dirac(parameters=10, canaries=6, per_coordinate=2).per_coordinate
    2
    """
    size = _validate.integer("parameters", parameters, at_least=1)
    m = _validate.integer("canaries", canaries, at_least=1)
    share = _validate.integer("per_coordinate", per_coordinate, at_least=1)
    needed = -(-m // share)
    if coordinates is None:
        if needed > size:
            raise InvalidInputError(
                f"canaries = {m} is not allowed: expected at most {size * share}, {share} for each of {size} parameters"
            )
        places = _generator(seed, "dirac").choice(size, size=needed, replace=False)
    else:
        given = np.asarray(coordinates)
        if given.ndim != 1 or given.dtype.kind not in "iu" or np.unique(given).size != given.size:
            raise InvalidInputError("coordinates is not allowed: expected different parameter numbers")
        if given.size < needed:
            raise InvalidInputError(f"coordinates has {given.size} entries: expected at least {needed}")
        places = given[:needed].astype(np.int64)
    indices = np.repeat(places, share)[:m, None]
    return GradientCanaries(
        kind="dirac",
        indices=indices,
        values=np.ones((m, 1)),
        parameters=size,
        note=f"the clipping norm on one parameter each, {share} to a parameter",
    )


def random_directions(*, parameters: int, canaries: int, support: int = 64, seed: int = 0) -> GradientCanaries:
    """±1/√k on k = ``support`` parameters drawn at random for each canary (all parameters if there are no more).

    Args:
        parameters: P of the network.
        canaries: m.
        support: k.
        seed: Public.

    Returns:
        The canaries; two of them overlap by about √(k/P) at most.

    >>> random_directions(parameters=100, canaries=3, support=4).values.shape
    (3, 4)
    """
    size = _validate.integer("parameters", parameters, at_least=1)
    m = _validate.integer("canaries", canaries, at_least=1)
    k = min(_validate.integer("support", support, at_least=1), size)
    rng = _generator(seed, "directions")
    indices = np.stack([rng.choice(size, size=k, replace=False, shuffle=False) for _ in range(m)])
    return GradientCanaries(
        kind="random_directions",
        indices=indices.astype(np.int64),
        values=rng.choice([-1.0, 1.0], size=(m, k)) / np.sqrt(k),
        parameters=size,
        note=f"random directions on {k} parameters each",
    )


def kind_named(name: str) -> str:
    """The kind of that name: ``low-variance`` and ``low_variance`` are the same.

    >>> kind_named("low-variance")
    'low_variance'
    """
    wanted = name.replace("-", "_") if isinstance(name, str) else name
    return _validate.choice("kind", wanted, tuple(KINDS))


KINDS: dict[str, Callable[..., Canaries]] = {
    "mislabeled": mislabeled,
    "blank": blank,
    "extreme": extreme,
    "low_variance": low_variance,
    "random_tokens": random_tokens,
    "new_tokens": new_tokens,
    "dirac": dirac,
    "random_directions": random_directions,
}
"""Every kind by name."""
