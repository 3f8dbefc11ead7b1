"""Own trainings as pure functions of a key, many of them in one call: ``vmap`` over the keys of the trials."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.auditing.config import Execution
from coalmine.auditing.results import AuditResult
from coalmine.errors import InvalidInputError
from coalmine.integrations.functions import audit_function
from coalmine.integrations.task import build, wants_canary
from coalmine.integrations.worlds import GivenWorlds, Worlds

Train = Callable[[Any, jax.Array], Any]
Score = Callable[..., Any]
TOGETHER = 256
"""Trainings in one call: enough to keep a GPU busy, few enough for their memory."""
_ON_ONE_CORE = 64
"""On processors a call is divided into parts of at most so many, of a size that does not depend on the machine."""


def audit(
    train: Train,
    score: Score | Mapping[str, Score],
    *,
    worlds: GivenWorlds,
    control: Train | None = None,
    together: int = TOGETHER,
    **options: Any,
) -> AuditResult:
    """:func:`coalmine.audit_function` for trainings in JAX: one compiled call trains and scores many trials.

    Args:
        train: a pure function ``train(dataset, key)``; the data set is a tree of arrays.
        score: ``score(model)`` or ``score(model, canary)`` in JAX gives one number, larger for world 1; several by name
            share the level.
        worlds: as for :func:`coalmine.audit_function`.
        control: a broken twin of ``train``.
        together: trainings in one call. Each keeps the parameters of a model, and the memory must hold all of them.
        options: what :func:`coalmine.audit_function` takes besides: the claim, trials, confidence, seed, store, ...

    Returns:
        What was proved, and the verdict on the claim.
    """
    together = _validate.integer("together", together, at_least=1)
    scoring = dict(score) if isinstance(score, Mapping) else {"score": score}
    built = build(worlds)
    canary = _as_arrays(built) if any(wants_canary(one) for one in scoring.values()) else None

    def many(function: Train) -> Many:
        return Many(function, scoring, canary=canary, together=together)

    _check_scores(many(train), built.world0)
    if not {"workers", "timeout", "execution"} & options.keys():
        # One compiled call fills the machine by itself, and what was compiled stays in this process.
        options["execution"] = Execution(engine="inline")
    picks: dict[str, Score] = {name: _Pick(one, number) for number, (name, one) in enumerate(scoring.items())}
    return audit_function(
        many(train),
        picks if isinstance(score, Mapping) else picks["score"],
        worlds=worlds,
        control=None if control is None else many(control),
        batched=together,
        **options,
    )


def _as_arrays(worlds: Worlds) -> Any:
    """The canary in arrays of the data set's types; as it is where the data set does not say."""
    try:
        return jax.tree.map(lambda data, one: jnp.asarray(one, dtype=data.dtype), worlds.world0, worlds.canary)
    except (TypeError, ValueError, AttributeError):
        return worlds.canary


def _check_scores(many: Many, dataset: Any) -> None:
    """An error where a score gives no single number; what else fails is for the game, which says in which trial."""
    try:
        jax.eval_shape(many.one, dataset, jax.ShapeDtypeStruct((), np.uint32))
    except InvalidInputError:
        raise
    except Exception:  # noqa: BLE001  a user's training may raise anything
        pass


class Many:
    """``train`` and every score for many keys at once: ``many(dataset, seeds)`` gives a row of scores for each seed.

    The number of trainings in a call is always the same (seeds are repeated where some are missing), so that it is
    compiled once for each world. By ``vmap`` each model follows from its own seed alone, whatever ``train`` does.

    >>> many = Many(lambda rows, key: rows.sum(), {"score": lambda model: 2 * model}, canary=None, together=8)
    >>> [float(one[0]) for one in many(jnp.ones(3), [5, 6])]
    [6.0, 6.0]
    """

    by_seed = True
    """Nothing that is random is shared by the models of a call, so no game needs to look for it."""

    def __init__(self, train: Train, scores: Mapping[str, Score], *, canary: Any, together: int) -> None:
        self.__wrapped__ = train
        self.scores, self.canary, self.together = dict(scores), canary, together
        self._compiled: Any = None
        self._known: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_compiled": None, "_known": set()}  # compiled code stays where it was made

    def __call__(self, dataset: Any, seeds: Any) -> list[Any]:
        """The scores of one training for each seed."""
        if self._compiled is None:
            self._compiled = jax.jit(jax.vmap(self.one, in_axes=(None, 0)))
        given = np.asarray(seeds, dtype=np.uint32)
        on_cpu = jax.default_backend() == "cpu"
        size = min(self.together, _ON_ONE_CORE) if on_cpu else self.together
        parts = [given[first : first + size] for first in range(0, len(given), size)]

        def scores(part: NDArray[np.uint32]) -> NDArray[np.float64]:
            found = np.asarray(self._compiled(dataset, np.resize(part, size)), dtype=np.float64)
            return found[: len(part)]

        shapes = str(jax.tree.map(jnp.shape, dataset))
        first = [] if shapes in self._known else [scores(parts.pop(0))]  # compiled once, not by every thread
        self._known.add(shapes)
        # XLA plays a loop of small operations on one core, whatever it has: a thread for each core fills them.
        with ThreadPoolExecutor(_cores() if on_cpu else 1) as threads:
            return list(np.concatenate([*first, *threads.map(scores, parts)]))

    def one(self, dataset: Any, seed: jax.Array) -> jax.Array:
        """One training and its scores."""
        model = self.__wrapped__(dataset, jax.random.key(seed))
        return jnp.stack([self._score(name, one, model) for name, one in self.scores.items()])

    def _score(self, name: str, score: Score, model: Any) -> jax.Array:
        value = jnp.asarray(score(model, self.canary) if wants_canary(score) else score(model))
        if value.size != 1:
            raise InvalidInputError(f"{name} gave an array of shape {value.shape}: expected one number")
        return value.reshape(()).astype(float)


def _cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Pick:
    """One of the scores that were taken with the training."""

    def __init__(self, score: Score, number: int) -> None:
        self.__wrapped__, self.number = score, number

    def __call__(self, scores: Any, *_: Any) -> float:
        """The number itself."""
        return float(scores[self.number])
