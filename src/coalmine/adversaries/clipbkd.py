"""`clipbkd`: poison that survives clipping (Algorithm 4 of jagielski-2020)."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special

from coalmine import _validate, seeds
from coalmine.adversaries.attack import Attack, Scene, ThreatModel
from coalmine.adversaries.crafters.differentiable import extent
from coalmine.adversaries.distinguishers.final import OutputShift
from coalmine.errors import InvalidInputError
from coalmine.records import Relation
from coalmine.training import Dataset, ExampleCanary, Neighbours, one_thread


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipBkd:
    """k copies of one point along the direction in which the data varies least, with its least likely label.

    ``norm`` is ‖x_p‖ (default: the mean norm of the rows). ``world0`` = "clean": world 1 has k rows more than world 0
    (add/remove, distance k), as in Algorithm 4. ``world0`` = "relabelled": world 0 holds the same k points with the
    second least likely label, so the worlds differ by k replacements: twice the signal, and another relation.
    """

    copies: int = 1
    norm: float | None = None
    world0: str = "clean"

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=OutputShift.view,
        access="output of the final model at two points",
        modification="adds k copies of one crafted point",
        dataset="not chosen",
        summary="Plants copies of a point along the data's least varying direction and looks for its mark.",
        paper="jagielski-2020, Algorithm 4",
    )

    def __post_init__(self) -> None:
        _validate.integer("copies", self.copies, at_least=1)
        if self.norm is not None:
            _validate.positive("norm", self.norm)
        _validate.choice("world0", self.world0, ("clean", "relabelled"))

    def craft(self, scene: Scene) -> Attack:
        """Find the direction and the label, then plant the copies."""
        base, norm = scene.base, self.norm
        if norm is None:
            norm = extent(base)[2]
        point, label, other = _poison(base, norm, scene.classes)
        x = point.reshape(base.shape).astype(base.x.dtype)
        notes = [f"x_p has norm {norm:.4g}, label {label}; {self.copies} copies"]
        if self.world0 == "clean":
            neighbours = Neighbours(base, canary=ExampleCanary(x, label, copies=self.copies))
        else:
            poison = np.repeat(x[None], self.copies, axis=0)
            both = Dataset(np.concatenate([base.x, poison]), np.append(base.y, np.full(self.copies, other)))
            neighbours = Neighbours(
                both,
                canary=ExampleCanary(x, label, copies=self.copies),
                relation=Relation.REPLACE,
                replaced=range(base.rows, base.rows + self.copies),
            )
            notes.append(f"world 0 holds the same points with label {other}: the worlds differ by replacements")
        return Attack(neighbours=neighbours, distinguisher=OutputShift(x, label), notes=tuple(notes))


@functools.lru_cache(maxsize=4)
def _poison(base: Dataset, norm: float, classes: int) -> tuple[NDArray[np.float64], int, int]:
    """x_p, its label, and the second least likely label."""
    flat = np.asarray(base.x, dtype=np.float64).reshape(base.rows, -1)
    point = norm * least_direction(flat)
    order = np.argsort(class_scores(flat, base.y, point, classes=classes), kind="stable")
    return point, int(order[0]), int(order[1])


def least_direction(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The right singular vector of the smallest singular value: the unit vector v that minimises ‖X·v‖.

    Where the data leaves a whole subspace untouched (pixels that are always 0), every v in it has ‖X·v‖ = 0; the one
    returned is then the part of a fixed vector that lies in it, and not what rounding happens to pick. The sign is
    such that the largest entry is positive.

    >>> least_direction(np.array([[3.0, 0.0], [0.0, 1.0]])).tolist()
    [0.0, 1.0]
    """
    free = least_directions(rows, count=1)
    v = free[-1]
    if len(free) > 1:
        v = free.T @ (free @ seeds.generator("clipbkd", purpose="untouched direction", trial=0).normal(size=len(v)))
        v = v / np.linalg.norm(v)
    return np.asarray(v * np.sign(v[np.argmax(np.abs(v))]) + 0.0)


def least_directions(rows: NDArray[np.float64], *, count: int) -> NDArray[np.float64]:
    """The right singular vectors of the ``count`` smallest singular values, or of all that are 0 where these are more.

    Only their span has a meaning where several have the same singular value.

    >>> least_directions(np.array([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), count=2).shape
    (2, 3)
    """
    n, d = rows.shape
    with one_thread():  # the order of sums, and so the last bits, must not depend on the number of threads
        triangle = torch.linalg.qr(torch.from_numpy(np.ascontiguousarray(rows)), mode="r").R
        _, sizes, right = (part.numpy() for part in torch.linalg.svd(triangle, full_matrices=True))
    sizes = np.append(sizes, np.zeros(d - sizes.size))
    untouched = int((sizes <= sizes[0] * max(n, d) * np.finfo(np.float64).eps).sum())
    return np.asarray(right[-max(untouched, min(count, d)) :])


def class_scores(
    rows: NDArray[np.float64], labels: NDArray[np.int64], point: NDArray[np.float64], *, classes: int
) -> NDArray[np.float64]:
    """Log-probabilities of each class at a point, or at a line of points, by softmax regression with a little ridge."""
    if classes < 2:
        raise InvalidInputError(f"the data has {classes} class: clipbkd needs at least 2")
    n, d = rows.shape
    x = np.concatenate([rows, np.ones((n, 1))], axis=1)
    onehot = np.zeros((n, classes))
    onehot[np.arange(n), labels] = 1.0

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        weights = flat.reshape(d + 1, classes)
        logits = x @ weights
        log_p = logits - special.logsumexp(logits, axis=1, keepdims=True)
        gradient = x.T @ (np.exp(log_p) - onehot) / n + 1e-3 * weights
        return float(-(log_p * onehot).sum() / n + 0.5e-3 * (weights**2).sum()), gradient.ravel()

    fit = optimize.minimize(
        objective, np.zeros((d + 1) * classes), jac=True, method="L-BFGS-B", options={"maxiter": 200}
    )
    weights = fit.x.reshape(d + 1, classes)
    logits = point @ weights[:-1] + weights[-1]
    return np.asarray(logits - special.logsumexp(logits, axis=-1, keepdims=True))
