"""How much one row can matter: global and local sensitivity, and the neighbour that differs most (bernau-2021, 5.1).

The data-set sensitivity of Definition 6 looks at rows instead of gradients: the neighbour that is most dissimilar is
taken for the one whose gradients differ most. With ``add_remove`` that is the row with the largest sum of
dissimilarities to all others (eq. 9), with ``replace`` the pair of a row and a row held out that differ most (eq. 11).

Everything goes through in blocks: no n × n matrix is ever held. Sums of Manhattan, Hamming and cosine dissimilarities
have closed forms that look at each feature once and at no pair; Euclidean distances and SSIM are matrix products.

**Which SSIM**: the structural similarity index of Wang et al. (2004, eq. 13) with one window, the whole picture (all
channels together), population moments, C₁ = (0.01·L)² and C₂ = (0.03·L)² for values in a range of L = 1. It is a
function of means, variances and one inner product, and so a matrix product too; a sliding window would cost as much
for every place of the window. The dissimilarity is 1 − SSIM.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import distance

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.records import Record, Relation

DISSIMILARITIES = ("ssim", "euclidean", "manhattan", "hamming", "cosine")
_BLOCK = 1024
"""Rows of a block: two blocks and their table of pairs stay within some 30 MB."""
_C1, _C2 = 0.01**2, 0.03**2

Matrix = NDArray[np.float64]


def global_sensitivity(clip: float, *, relation: Relation | str) -> float:
    """GS of a sum of gradients clipped to C: C if a row is added or removed, 2·C if one is replaced (Section 5.1).

    >>> global_sensitivity(3.0, relation="add_remove"), global_sensitivity(3.0, relation="replace")
    (3.0, 6.0)
    """
    clip = _validate.positive("clip", clip)
    return clip if Relation.parse(relation) is Relation.ADD_REMOVE else 2.0 * clip


def local_sensitivity(gradient: ArrayLike, *, clip: float, replaced: ArrayLike | None = None) -> float:
    """LS of a clipped sum for these two worlds: ‖ḡ(x̂)‖ (eq. 10), or ‖ḡ(x̂) − ḡ(x̂′)‖ for a replaced row (eq. 12).

    ``gradient`` is that of the row, not clipped yet; ``replaced`` that of the row in its place.

    >>> local_sensitivity([3.0, 4.0], clip=1.0), local_sensitivity([0.3, 0.4], clip=1.0, replaced=[3.0, 4.0])
    (1.0, 0.5)
    """
    clip = _validate.positive("clip", clip)
    first = _clipped("gradient", gradient, clip)
    if replaced is None:
        return float(np.linalg.norm(first))
    second = _clipped("replaced", replaced, clip)
    if first.shape != second.shape:
        raise InvalidInputError(f"replaced has {second.size} entries: expected {first.size}, as the gradient has")
    return float(np.linalg.norm(first - second))


def _clipped(name: str, gradient: ArrayLike, clip: float) -> Matrix:
    """A gradient clipped to C."""
    vector = _validate.finite_vector(name, gradient)
    return np.asarray(vector / max(1.0, float(np.linalg.norm(vector)) / clip))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Neighbour(Record):
    """A neighbouring data set: without ``row``, or with ``replacement`` (a row held out) in its place.

    ``value`` is the dissimilarity that was searched for: with ``replacement`` that of the two rows (eq. 11), without it
    the sum over all other rows (eq. 9). For the most dissimilar one, that is the data-set sensitivity DS.
    """

    row: int
    value: float
    measure: str
    replacement: int | None = None

    def words(self, *, rank: int, most: bool) -> str:
        """How it was chosen, for a note.

        >>> Neighbour(row=3, value=0.25, measure="ssim").words(rank=2, most=True)
        'number 2 of the most dissimilar by ssim (sum of dissimilarities 0.25)'
        """
        which = ("most" if most else "least") + " dissimilar"
        first = f"the {which}" if rank == 1 else f"number {rank} of the {which}"
        what = "sum of dissimilarities" if self.replacement is None else "dissimilarity"
        return f"{first} by {self.measure} ({what} {self.value:.6g})"


def suggest(rows: ArrayLike, *, picture: tuple[int, ...] | None = None) -> str:
    """The dissimilarity that bernau-2021 found best for such data: ssim for pictures, hamming for zeros and ones,
    manhattan otherwise (Section 6.1).

    >>> suggest([[0, 1], [1, 1]]), suggest([[0.5, 1.0], [0.0, 1.0]])
    ('hamming', 'manhattan')
    """
    if picture is not None:
        return "ssim"
    return "hamming" if _binary(_validate.numeric_array("rows", rows)) else "manhattan"


def neighbour(
    rows: ArrayLike, *, measure: str, picture: tuple[int, ...] | None = None, most: bool = True, rank: int = 1
) -> Neighbour:
    """The row whose removal gives the most (or least) dissimilar neighbour: eq. (9). ``rank`` 2 is the next of them.

    Of equal ones the first comes first.

    >>> neighbour([[0.0, 0.0], [0.0, 1.0], [5.0, 5.0]], measure="manhattan")
    Neighbour(row=2, value=19.0, measure='manhattan', replacement=None)
    """
    x = _table("rows", rows)
    rank = _validate.integer("rank", rank, at_least=1, at_most=len(x))
    return neighbours(x, measure=measure, picture=picture, most=most, count=rank)[-1]


def replacement(
    rows: ArrayLike,
    held_out: ArrayLike,
    *,
    measure: str,
    picture: tuple[int, ...] | None = None,
    most: bool = True,
    rank: int = 1,
) -> Neighbour:
    """The row, and the row held out that is to stand in its place, that differ most (or least): eq. (11).

    ``rank`` 2 is the next pair. Of equal pairs the smallest row, then the smallest replacement, comes first.

    >>> replacement([[0.0, 0.0], [0.0, 1.0]], [[3.0, 0.0], [0.0, 2.0]], measure="manhattan")
    Neighbour(row=1, value=4.0, measure='manhattan', replacement=0)
    """
    x, y = _table("rows", rows), _table("held_out", held_out)
    if x.shape[1] != y.shape[1]:
        raise InvalidInputError(f"held_out has rows of {y.shape[1]} features: expected {x.shape[1]}, as the data has")
    rank = _validate.integer("rank", rank, at_least=1, at_most=len(x) * len(y))
    return neighbours(x, held_out=y, measure=measure, picture=picture, most=most, count=rank)[-1]


def neighbours(
    rows: ArrayLike,
    *,
    measure: str,
    held_out: ArrayLike | None = None,
    picture: tuple[int, ...] | None = None,
    most: bool = True,
    count: int = 1,
) -> tuple[Neighbour, ...]:
    """The first ``count`` of the most (or least) dissimilar neighbours; with ``held_out`` those of :func:`replacement`.

    >>> [one.row for one in neighbours([[0.0, 0.0], [0.0, 1.0], [5.0, 5.0]], measure="manhattan", count=2)]
    [2, 0]
    """
    x = _table("rows", rows)
    _check(x, measure, picture)
    if held_out is not None:
        y = _table("held_out", held_out)
        _check(y, measure, picture)
        count = _validate.integer("count", count, at_least=1, at_most=len(x) * len(y))
        best = _Search(x, y, measure=measure, most=most, rank=count).run()
        return tuple(
            Neighbour(row=int(row), value=float(value), measure=measure, replacement=int(other))
            for value, row, other in best
        )
    count = _validate.integer("count", count, at_least=1, at_most=len(x))
    totals = dissimilarity_sums(x, measure=measure, picture=picture)
    # Equal rows must not be told apart by the rounding of their sums.
    rounded = np.round(totals / max(float(totals.max()), 1e-300), 11)
    order = np.argsort(-rounded if most else rounded, kind="stable")[:count]
    return tuple(Neighbour(row=int(row), value=float(totals[row]), measure=measure) for row in order)


def dissimilarity_sums(rows: ArrayLike, *, measure: str, picture: tuple[int, ...] | None = None) -> Matrix:
    """Σ_j d(x_i, x_j) for every row: what eq. (9) maximises.

    >>> dissimilarity_sums([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]], measure="hamming").tolist()
    [1.5, 1.0, 1.5]
    """
    x = _table("rows", rows)
    _check(x, measure, picture)
    if measure == "cosine":  # Σ_j (1 − ⟨u_i, u_j⟩) = n − ⟨u_i, Σ_j u_j⟩
        units = x / np.linalg.norm(x, axis=1, keepdims=True)
        return np.asarray(np.maximum(len(x) - units @ units.sum(axis=0), 0.0))
    if measure in ("manhattan", "hamming"):
        totals = np.zeros(len(x))
        for column in x.T:
            totals += _absolute_sums(column)
        return totals / x.shape[1] if measure == "hamming" else totals
    totals = np.zeros(len(x))
    ready = _prepare(x, measure)
    for i in _blocks(len(x)):
        for j in _blocks(len(x)):
            if j.start < i.start:
                continue  # d is symmetric: each pair of blocks is looked at once
            table = _products(ready, ready, i, j, measure)
            if i == j:
                np.fill_diagonal(table, 0.0)
            else:
                totals[j] += table.sum(axis=0)
            totals[i] += table.sum(axis=1)
    return totals


def dissimilarity(x: ArrayLike, y: ArrayLike, *, measure: str) -> float:
    """d of two rows. Hamming is the share of features that differ, as in SciPy.

    >>> dissimilarity([0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], measure="hamming")
    0.5
    """
    _validate.choice("measure", measure, DISSIMILARITIES)
    a, b = _validate.finite_vector("x", x), _validate.finite_vector("y", y)
    if a.shape != b.shape:
        raise InvalidInputError(f"y has {b.size} entries: expected {a.size}, as x has")
    return float(_exact(a[None], b[None], measure)[0])


def _absolute_sums(column: Matrix) -> Matrix:
    """Σ_j |c_i − c_j| for every entry of a column, by sorting it: of n values in order, the i-th has i below it."""
    order = np.argsort(column, kind="stable")
    ordered = column[order] - column[order[0]]  # so that large offsets do not cancel
    n = ordered.size
    before = np.concatenate([[0.0], np.cumsum(ordered)[:-1]])
    places = np.arange(n)
    sums = np.empty(n)
    sums[order] = ordered * places - before + (ordered.sum() - before - ordered) - ordered * (n - 1 - places)
    return sums


@dataclasses.dataclass(frozen=True)
class _Ready:
    """Rows with what their pairs need: squared norms and, for ssim, means."""

    rows: Matrix
    squares: Matrix
    means: Matrix


def _prepare(x: Matrix, measure: str) -> _Ready:
    """Rows made ready for matrix products."""
    means = x.mean(axis=1)
    if measure == "cosine":
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    elif measure == "ssim":
        x = (x - means[:, None]) / math.sqrt(x.shape[1])  # inner products are covariances, squares are variances
    return _Ready(x, np.einsum("ij,ij->i", x, x), means)


def _products(left: _Ready, right: _Ready, i: slice, j: slice, measure: str) -> Matrix:
    """The table of dissimilarities of two blocks, from one matrix product."""
    table = left.rows[i] @ right.rows[j].T
    if measure == "cosine":
        return np.asarray(np.subtract(1.0, table, out=table))
    if measure == "euclidean":
        table *= -2.0
        table += left.squares[i, None]
        table += right.squares[None, j]
        return np.asarray(np.sqrt(np.maximum(table, 0.0, out=table), out=table))
    table *= 2.0
    table += _C2
    table /= (left.squares[i, None] + _C2) + right.squares[None, j]
    mine, other = left.means[i], right.means[j]
    table *= np.multiply.outer(2.0 * mine, other) + _C1
    table /= (mine**2 + _C1)[:, None] + other**2
    return np.asarray(np.subtract(1.0, table, out=table))


def _exact(x: Matrix, y: Matrix, measure: str) -> Matrix:
    """d of each row of x with the same row of y, by the definition."""
    if measure == "euclidean":
        return np.asarray(np.sqrt(((x - y) ** 2).sum(axis=1)))
    if measure == "manhattan":
        return np.asarray(np.abs(x - y).sum(axis=1))
    if measure == "hamming":
        return np.asarray((x != y).mean(axis=1))
    if measure == "cosine":
        lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        return np.asarray(1.0 - (x * y).sum(axis=1) / lengths)
    a, b = x.mean(axis=1), y.mean(axis=1)
    covariance = ((x - a[:, None]) * (y - b[:, None])).mean(axis=1)
    similarity = (2 * a * b + _C1) * (2 * covariance + _C2)
    return np.asarray(1.0 - similarity / ((a**2 + b**2 + _C1) * (x.var(axis=1) + y.var(axis=1) + _C2)))


class _Search:
    """The pair of a row and a row held out with the largest (or smallest) dissimilarity, block by block.

    Euclidean, Manhattan and Hamming distances obey the triangle inequality: |d(x, c) − d(y, c)| ≤ d(x, y) ≤ d(x, c) +
    d(y, c) for a centre c. Rows are sorted by their distance to it, and a block that cannot hold a better pair is not
    looked at. What matrix products find within their rounding of the best is computed again by definition.
    """

    def __init__(self, x: Matrix, y: Matrix, *, measure: str, most: bool, rank: int) -> None:
        self._measure, self._most, self._rank = measure, most, rank
        self._centred = measure in ("euclidean", "manhattan", "hamming")
        self._order = (np.arange(len(x)), np.arange(len(y)))
        self._reach = (np.zeros(len(x)), np.zeros(len(y)))
        if self._centred:
            centre = np.median(x, axis=0) if measure != "euclidean" else x.mean(axis=0)
            far = [_to_point(part, centre, measure) for part in (x, y)]
            self._order = (np.argsort(-far[0], kind="stable"), np.argsort(-far[1], kind="stable"))
            self._reach = (far[0][self._order[0]], far[1][self._order[1]])
        self._x, self._y = x[self._order[0]], y[self._order[1]]
        self._ready: tuple[_Ready, _Ready] | None = None
        self._slack = 0.0
        if measure in ("euclidean", "ssim", "cosine"):
            self._ready = (_prepare(self._x, measure), _prepare(self._y, measure))
            # By how much matrix products of such rows are rounded.
            self._slack = 1e-7 * max(1.0, float(np.sqrt(max(part.squares.max() for part in self._ready))))
        self._best = np.zeros((0, 3))  # value, row, replacement; the best first

    def run(self) -> Matrix:
        """Dissimilarity, row and replacement of the best pairs, the best first."""
        for i in _blocks(len(self._x)):
            for j in _blocks(len(self._y)):
                if self._may_hold_better(i, j):
                    self._look(i, j)
        return self._best

    def _may_hold_better(self, i: slice, j: slice) -> bool:
        if len(self._best) < self._rank or not self._centred:
            return True
        worst = self._best[-1, 0]
        a, b = self._reach[0][i], self._reach[1][j]  # in falling order
        if self._most:
            return bool(a[0] + b[0] >= worst * (1.0 - 1e-12))
        return bool(max(a[-1] - b[0], b[-1] - a[0]) <= worst * (1.0 + 1e-12))

    def _look(self, i: slice, j: slice) -> None:
        """Keep the best pairs of two blocks."""
        if self._ready is not None:
            table = _products(*self._ready, i, j, self._measure)
        else:
            metric = "cityblock" if self._measure == "manhattan" else "hamming"
            table = distance.cdist(self._x[i], self._y[j], metric)
        flat = (-table if self._most else table).ravel()
        count = min(self._rank, flat.size)
        edge = float(np.partition(flat, count - 1)[count - 1])
        if len(self._best) >= self._rank:
            worst = float(self._best[-1, 0])
            edge = min(edge, -worst if self._most else worst)
        places = np.flatnonzero(flat <= edge + self._slack)
        rows, others = places // table.shape[1] + i.start, places % table.shape[1] + j.start
        for start in range(0, places.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            values = _exact(self._x[rows[part]], self._y[others[part]], self._measure)
            found = np.column_stack([values, self._order[0][rows[part]], self._order[1][others[part]]])
            every = np.concatenate([self._best, found])
            order = np.lexsort((every[:, 2], every[:, 1], -every[:, 0] if self._most else every[:, 0]))
            self._best = every[order[: self._rank]]


def _to_point(x: Matrix, centre: Matrix, measure: str) -> Matrix:
    """d of every row to one point, in blocks."""
    parts = [_exact(x[i], np.broadcast_to(centre, x[i].shape), measure) for i in _blocks(len(x))]
    return np.concatenate(parts)


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, rows)) for start in range(0, rows, _BLOCK))


def _table(name: str, rows: ArrayLike) -> Matrix:
    """Rows of features as float64, finite."""
    table = _validate.numeric_array(name, rows)
    if table.ndim < 2 or table.shape[0] < 1:
        raise InvalidInputError(f"{name} has shape {table.shape}: expected (rows, features...)")
    table = table.reshape(len(table), -1)
    if not np.isfinite(table).all():
        raise InvalidInputError(f"{name} holds numbers that are not finite: expected finite features")
    return table


def _binary(rows: NDArray[Any]) -> bool:
    return bool(((rows == 0) | (rows == 1)).all())


def _check(x: Matrix, measure: str, picture: tuple[int, ...] | None) -> None:
    """A dissimilarity must fit the data's type."""
    _validate.choice("dissimilarity", measure, DISSIMILARITIES)
    if measure == "ssim":
        if picture is None:
            raise _validate.reject(
                "dissimilarity", measure, "another one: ssim compares pictures, and the rows are none"
            )
        if math.prod(picture) != x.shape[1]:
            raise InvalidInputError(f"picture = {picture!r} does not fit rows of {x.shape[1]} features")
        if x.min() < 0.0 or x.max() > 1.0:
            raise _validate.reject("dissimilarity", measure, "another one: ssim needs pictures with values from 0 to 1")
    if measure == "hamming" and not _binary(x):
        raise _validate.reject(
            "dissimilarity", measure, "another one, such as manhattan: hamming needs rows of zeros and ones"
        )
    if measure == "cosine" and not np.einsum("ij,ij->i", x, x).all():
        raise _validate.reject("dissimilarity", measure, "another one: cosine is not defined for a row of zeros")
