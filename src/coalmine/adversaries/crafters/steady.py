"""A row whose gradient keeps its direction during a training: for one who sees the final model alone.

The final model holds the sum of all steps. A canary that is drawn at some of the steps t adds its clipped gradients g_t
of those steps, and the noise of all T steps hides them. Where the g_t turn, less than their lengths adds up: with ḡ the
mean of g_t over a training, the row stands out by about q²T·ḡᵀ Σ⁻¹ ḡ. So rows are compared by the mean of ḡᵀ Σ⁻¹ ḡ over
shadow trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import seeds
from coalmine.adversaries.attack import Scene
from coalmine.adversaries.clipbkd import least_directions
from coalmine.adversaries.crafters.background import Row
from coalmine.adversaries.crafters.differentiable import extent
from coalmine.adversaries.crafters.rows import Found
from coalmine.training import Dataset, clipped_sums, one_thread

_DIRECTIONS = 8
"""Rows lie in the span of so many directions in which the inputs vary least: the other rows' gradients do not."""
_KEPT, _ROUNDS = 8, 4
"""Each round but the first tries rows near the best ones so far."""
_STEP = 0.5
_TINY = 1e-300


def steadiest(scene: Scene, *, found: Found, norms: Sequence[float], tried: int) -> Row:
    """The row with the largest mean of ḡᵀ Σ⁻¹ ḡ that a random search finds.

    It begins with the candidates and with random rows in the span of the directions in which the inputs vary least,
    with random labels; each further round moves the best of the rounds before a little.

    Args:
        scene: what the adversary knows.
        found: candidates, shadow models and the background there.
        norms: lengths to try, in units of the mean norm of a row.
        tried: how many rows are tried beside the candidates.

    Returns:
        The row; its strength is the mean that was compared.

    """
    base, models = scene.base, found.models
    looks, trainings = models.shape[:2]
    stream = seeds.generator(str(scene.seed), purpose="rows that keep their direction", trial=0)
    flat = np.asarray(base.x, dtype=np.float64).reshape(base.rows, -1)
    span = least_directions(flat, count=_DIRECTIONS)
    lengths = [norm * extent(base)[2] for norm in norms]

    def weigh(x: NDArray[Any], label: int) -> float:
        row = Dataset(x.reshape(1, *base.shape).astype(base.x.dtype), [label])
        gradients = clipped_sums(scene.network, models.flatten(0, 1), dataset=row, config=scene.training).double()
        return float(found.background.strengths(gradients.reshape(looks, trainings, -1).mean(0)).mean())

    def moved(point: NDArray[np.float64], *, step: float, length: float) -> NDArray[np.float64]:
        """A random step away, in the span: by a projection, so that no basis of the span matters."""
        noise = span.T @ (span @ stream.normal(size=flat.shape[1]))
        line = point / max(float(np.linalg.norm(point)), _TINY) + step * noise / max(
            float(np.linalg.norm(noise)), _TINY
        )
        return np.asarray(length * line / max(float(np.linalg.norm(line)), _TINY))

    with one_thread():
        best = [(weigh(row.x, row.y), np.asarray(row.x, dtype=np.float64).ravel(), row.y) for row in found.rows]
        each = -(-tried // _ROUNDS)
        for number in range(tried):
            past, place = divmod(number, each)
            if place == 0:
                best = sorted(best, key=lambda one: -one[0])[:_KEPT]
                starts = list(best)
            length = lengths[place % len(lengths)]
            if past == 0:
                x, label = moved(np.zeros(flat.shape[1]), step=1.0, length=length), int(stream.integers(scene.classes))
            else:
                _, point, label = starts[place % len(starts)]
                x = moved(point, step=_STEP / past, length=length)
            best.append((weigh(x, label), x, label))
    strength, x, label = max(best, key=lambda one: one[0])
    words = f"{np.linalg.norm(x):.3g} long and keeps its gradient's direction best"
    return Row(x.reshape(base.shape).astype(base.x.dtype), label, strength, words)
