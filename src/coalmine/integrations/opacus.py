"""Trainings with Opacus: a step to probe, which DP-SGD it was, and the released parameters as one vector."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import DpSgd, Sampling

if TYPE_CHECKING:
    from coalmine.probing.private_step import PrivateStep

_ROWS = 8
"""Rows that are taken from a loader's data set when no batch is given."""


def step(
    model: Any,
    optimizer: Any,
    loss: Callable[..., Any] | None = None,
    *,
    own_step: Callable[[Any], Any] | None = None,
    batch: Any = None,
    loader: Any = None,
    max_physical_batch_size: int | None = None,
    **promise: Any,
) -> PrivateStep:
    """One step of a training with Opacus, with the promise read off its objects, for :func:`coalmine.probe`.

    Clip norm, noise multiplier and divisor are the optimizer's. All ways to per-row gradients are taken: hooks,
    functorch, expanded weights and ghost clipping; so are per-layer and adaptive clipping and secure mode.

    Args:
        model: the module that make_private returned (or the module itself, with ``wrap_model=False``).
        optimizer: the optimizer that make_private returned.
        loss: called as ``loss(model(*inputs), target)`` for a batch ``(*inputs, target)``, and as
            ``loss(model(**inputs), labels)`` for a dict with ``labels``; with ghost clipping the one that make_private
            returned. None for a model that takes a dict and gives an object with a ``loss``.
        own_step: the training's own step, a function of a batch that does all from ``zero_grad`` to ``step``; what it
            returns counts as released. Without it forward pass, loss, backward pass and step as above.
        batch: rows to try the step with; the first rows of the loader's data set unless given.
        loader: the loader that make_private returned, or the one that BatchMemoryManager made of it; its sampling is
            part of the promise.
        max_physical_batch_size: split each batch as BatchMemoryManager does; read off its loader unless given.
        promise: more of what is promised; see :class:`coalmine.probing.private_step.PrivateStep`.

    Returns:
        the step, ready to be probed.
    """
    from coalmine.probing.private_step import PrivateStep

    _private(optimizer)
    check_promise(promise)
    if batch is None:
        if loader is None:
            raise InvalidInputError("batch = None is not allowed without a loader: expected a batch, or a loader")
        batch = first_rows(loader)
    sampler, split = _sampler(loader)
    if own_step is not None:
        if loss is not None or max_physical_batch_size is not None:
            raise InvalidInputError("own_step is not allowed with a loss or a max_physical_batch_size: it has its own")
    elif max_physical_batch_size is None:
        max_physical_batch_size = split
    else:
        _validate.integer("max_physical_batch_size", max_physical_batch_size, at_least=1)

    def backward(rows: Any) -> None:
        if isinstance(rows, Mapping):
            inputs = dict(rows)
            labels = (inputs.pop("labels"),) if loss is not None and "labels" in inputs else ()
            shown = model(**inputs)
            value = shown.loss if loss is None else loss(shown, *labels)
        else:
            *inputs, target = rows
            value = model(*inputs).loss if loss is None else loss(model(*inputs), target)
        value.backward()

    def private_step(rows: Any) -> Any:
        try:
            return run(rows)  # what a step of one's own returns is released
        except RuntimeError as error:
            why = _shared_by_rows(model, rows)
            if not why:
                raise
            raise RuntimeError(f"{error} ({why})") from error

    def whole_step(rows: Any) -> None:
        optimizer.zero_grad()
        if max_physical_batch_size is None:
            backward(rows)
            optimizer.step()
            return
        parts = _parts(rows, max_physical_batch_size)
        for number, part in enumerate(parts):
            optimizer.signal_skip_step(do_skip=number + 1 < len(parts))
            backward(part)
            optimizer.step()
            optimizer.zero_grad()

    run: Callable[[Any], Any] = whole_step if own_step is None else own_step
    given: dict[str, Any] = {
        "clip_norm": float(optimizer.max_grad_norm),
        "noise_multiplier": float(optimizer.noise_multiplier),
        "divisor": float(optimizer.expected_batch_size) if optimizer.loss_reduction == "mean" else 1.0,
        "name": _title(model, optimizer, max_physical_batch_size),
        "unclipped": lambda: _unclipped(model, optimizer),
    }
    if hasattr(optimizer, "target_unclipped_quantile"):
        # The clip norm of the next step follows from this one: it is released. Its logarithm is linear in the noise.
        given["released"] = lambda: {"log of the clip norm": math.log(float(optimizer.max_grad_norm))}
    rate = getattr(sampler, "sample_rate", None)
    if loader is not None:
        given["sampling"] = Sampling.SHUFFLE if rate is None else Sampling.POISSON
        given["sample_rate"] = rate
    return PrivateStep(step=private_step, batch=batch, **{"state": [model, optimizer], **given, **promise})


def check_promise(promise: Mapping[str, Any]) -> None:
    """An error for a name that is no part of a promise."""
    from coalmine.probing.private_step import PrivateStep

    known = {field.name for field in dataclasses.fields(PrivateStep)} - {"step", "batch"}
    for name in promise:
        if name not in known:
            raise _validate.reject("promise", name, "one of " + ", ".join(sorted(known)))


def first_rows(loader: Any) -> Any:
    """A batch of the first rows of a loader's data set; columns that its collate function gives as a list, as a tuple.

    A list of tensors of one shape could be rows as well. What a collate function has put together is columns, if each
    has as many rows as it was given.
    """
    from coalmine.probing import rows

    collate = getattr(loader, "collate_fn", None) or (lambda rows: rows)
    count = min(_ROWS, len(loader.dataset))
    batch = collate([loader.dataset[position] for position in range(count)])
    if isinstance(batch, list) and all(len(one) == count for one in rows.leaves(batch)):
        return _as_tuples(batch)
    return batch


def _as_tuples(batch: Any) -> Any:
    """A batch with a tuple in the place of each list of columns; texts and other values stay in theirs."""
    from coalmine.probing import rows

    if isinstance(batch, list) and rows.leaves(batch):
        return tuple(_as_tuples(one) for one in batch)
    return batch


def is_private(optimizer: Any) -> bool:
    """Whether this is an optimizer of Opacus."""
    return all(getattr(optimizer, name, None) is not None for name in ("noise_multiplier", "max_grad_norm"))


def _private(optimizer: Any) -> Any:
    """Opacus's optimizer; an error for any other."""
    if not is_private(optimizer):
        raise InvalidInputError(
            f"optimizer is of type {type(optimizer).__name__}: expected the DPOptimizer that make_private returned"
        )
    return optimizer


def _sampler(loader: Any) -> tuple[Any, int | None]:
    """What draws a loader's batches and, where BatchMemoryManager splits them, the size of the parts."""
    found: Any = getattr(loader, "batch_sampler", None)
    most = getattr(found, "max_batch_size", None)
    return (found, None) if most is None else (found.sampler, int(most))


def _parts(rows: Any, most: int) -> list[Any]:
    """A batch in parts of nearly the same size, as BatchMemoryManager splits it; an empty batch is one part."""
    from coalmine.probing import rows as batches

    count = batches.size(rows)
    if count == 0:
        return [rows]
    return [batches.take(rows, part.tolist()) for part in np.array_split(np.arange(count), math.ceil(count / most))]


def _title(model: Any, optimizer: Any, physical: int | None) -> str:
    """What the report calls the step: the kind of optimizer, of per-row gradients, and what else was recognized."""
    kinds = [type(model).__name__]
    if getattr(optimizer, "secure_mode", False):
        kinds.append("secure mode")
    if physical is not None:
        kinds.append(f"physical batches of {physical}")
    return f"{type(optimizer).__name__} ({', '.join(kinds)})"


def _shared_by_rows(model: Any, rows: Any) -> str:
    """Which parameter has per-row gradients for another number of rows than the batch has, where one does."""
    from coalmine.probing import rows as batches

    count = batches.size(rows)
    for name, one in model.named_parameters():
        # Over several backward passes it is a list, which has no shape.
        shape = getattr(getattr(one, "grad_sample", None), "shape", (count,))
        if count and shape[0] != count:
            return (
                f"{name} has per-row gradients for {shape[0]} of {count} rows: its layer was given one input "
                "for all of them, such as position ids of shape [1, T]; give each row its own"
            )
    return ""


@contextlib.contextmanager
def _unclipped(model: Any, optimizer: Any) -> Iterator[None]:
    """Opacus without clipping: with a clip norm that no row reaches."""
    far = 1e9
    places = [(optimizer, "max_grad_norm"), (optimizer, "max_grad_norms"), (model, "max_grad_norm")]
    before = [(owner, name, owner.__dict__[name]) for owner, name in places if name in owner.__dict__]
    try:
        for owner, name, value in before:
            setattr(owner, name, [far] * len(value) if isinstance(value, (list, tuple)) else far)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def mechanism(optimizer: Any, loader: Any, *, steps: int) -> DpSgd:
    """The DP-SGD that Opacus's optimiser and loader make up together after ``steps`` steps, for an exact accounting.

    The sampling rate is read from the loader itself, not from the accountant, and only Poisson sampling is taken: a
    loader that shuffles has another, larger privacy loss. The noise multiplier is that of the optimiser.
    """
    noise = _private(optimizer).noise_multiplier
    rate = getattr(_sampler(loader)[0], "sample_rate", None)
    if rate is None:
        raise UnsupportedError(
            f"loader is of type {type(loader).__name__} and does not sample by Poisson: its batches have another "
            "privacy loss than the one that is accounted for; use make_private(..., poisson_sampling=True)"
        )
    return DpSgd(
        sample_rate=float(rate),
        noise_multiplier=float(noise),
        steps=_validate.integer("steps", steps, at_least=1),
        sampling=Sampling.POISSON,
    )


def parameters(model: Any) -> NDArray[np.float64]:
    """All parameters of a torch module as one vector, in its own order."""
    return np.concatenate([one.detach().cpu().numpy().astype(np.float64).ravel() for one in model.parameters()])
