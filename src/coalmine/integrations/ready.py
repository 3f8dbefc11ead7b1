"""Ready parts for audits of whole trainings with torch: canaries and scores, so that nobody must invent an attack.

::

    rows = ready.canaries((features, labels), make_model=make_model)
    coalmine.audit_function(
        functools.partial(ready.guarded, my_train),    # a training that fails is a result too
        ready.named_scores(make_model=make_model),     # several scores by name, which share the level
        worlds=coalmine.neighbours((features, labels), rows["far"]),
        claim_epsilon=3.0,
    )

A canary is a row that no other row is like, chosen to be extreme in one way. A score turns what a training released
into one number that is larger when the canary was in. Which of them finds a fault depends on the fault: read several,
and share the level among them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.integrations.fitting import MissesCanaryError

if TYPE_CHECKING:
    import torch

Row = tuple[Any, ...]
"""One row of a data set: its features and its label, as the data set holds them."""
SCORES = ("along", "loss", "norm", "trajectory", "buffers", "failed")
"""The names of all scores."""

_FAR = 10.0
_LOWEST = -1e300
_CANDIDATES = 64
_WIDEST = 2048
"""With more features the direction of least variance takes long to find."""


@dataclasses.dataclass(frozen=True)
class Failed:
    """What :func:`guarded` gives for a training that raised: the reason."""

    reason: str


def canaries(
    dataset: Any,
    *,
    make_model: Callable[[], Any] | None = None,
    loss: Callable[..., Any] | None = None,
    far: float = _FAR,
    seed: int = 0,
) -> dict[str, Row]:
    """Rows to audit with, by name; none of them is in the data set, and no two are alike.

    ``far`` and ``far, negative`` are at ``far`` times the largest feature. ``blank`` is all zeros with the rarest
    label. ``rare direction`` lies along the direction in which the data vary least (ClipBKD of jagielski-2020).
    ``mislabeled`` is an ordinary row with a label that its likes do not have. With ``make_model`` there is one for each
    layer (``layer NAME``): of many candidates the one whose gradient at the model's start is most in that layer.

    >>> found = canaries((np.eye(4), np.array([0, 1, 0, 1])))
    >>> sorted(found), float(np.abs(found["far"][0]).max())
    (['blank', 'far', 'far, negative', 'mislabeled', 'rare direction'], 10.0)

    Args:
        dataset: A pair (features, labels) of arrays or tensors, or a ``TensorDataset`` of two. Labels are whole numbers
            for classification, and any numbers for regression.
        make_model: Builds the network as it is before training.
        loss: ``loss(model(features), labels)``. Default: cross entropy for whole numbers, else squared error.
        far: How far away extreme rows are.
        seed: Of the candidates.

    Returns:
        Rows in the form of the data set, for :func:`coalmine.neighbours`.
    """
    features, labels = _pair(dataset)
    far = _validate.positive("far", far)
    x, y = np.asarray(features, dtype=np.float64), np.asarray(labels)
    values, counts = np.unique(y, return_counts=True)
    rare, common = values[np.argmin(counts)], values[np.argmax(counts)]
    flat = x.reshape(len(x), -1)
    size = far * max(float(np.abs(flat).max()), 1e-12)
    signs = np.where(np.random.default_rng(seed).random(flat.shape[1]) < 0.5, -1.0, 1.0)
    direction = np.linalg.eigh(np.cov(flat, rowvar=False))[1][:, 0] if 1 < flat.shape[1] <= _WIDEST else signs
    found: dict[str, tuple[Any, Any]] = {
        "far": (size * signs, rare),
        "far, negative": (-size * signs, common),
        "blank": (np.zeros(flat.shape[1]), rare),
        "rare direction": (size * direction / np.abs(direction).max(), rare),
    }
    ordinary = int(np.argmin(((flat - flat.mean(axis=0)) ** 2).sum(axis=1)))
    other = values[(int(np.flatnonzero(values == y[ordinary])[0]) + 1) % len(values)]
    if other == y[ordinary] or y.dtype.kind == "f":
        other = y[ordinary] + (far * max(float(np.abs(y).max()), 1.0) if y.dtype.kind == "f" else 1)
    found["mislabeled"] = (flat[ordinary], other)
    rows = {name: _row(one, features, labels, x.shape[1:]) for name, one in found.items()}
    if make_model is not None:
        rng = np.random.default_rng(seed + 1)
        picked = flat[rng.integers(0, len(flat), _CANDIDATES)]
        pool = [one for one, _ in found.values()]
        pool += list(picked * rng.choice([0.0, 0.1, 1.0, far], size=(_CANDIDATES, 1)))
        pool += list(size * rng.choice([-1.0, 0.0, 1.0], size=(_CANDIDATES, flat.shape[1])))
        candidates = [_row((one, label), features, labels, x.shape[1:]) for one in pool for label in values[:10]]
        rows |= _for_each_layer(candidates, make_model, loss)
    taken = {np.concatenate([one, [float(label)]]).tobytes() for one, label in zip(flat, y, strict=True)}
    return _distinct(rows, taken)


def scores(
    released: Any,
    canary: Row,
    *,
    make_model: Callable[[], Any],
    loss: Callable[..., Any] | None = None,
    only: str | None = None,
) -> Any:
    """What a training released, as numbers that are larger when the canary was in.

    ========== =================================================================================================
    along      how far the parameters moved against the canary's gradient at the start, over its length
    loss       minus the canary's loss in the final model
    norm       how far the parameters moved in all
    trajectory the sum over steps of the move against the canary's gradient there, if all iterates are released
    buffers    how far the buffers moved (running statistics carry no noise)
    failed     1 if the training failed or its numbers are not finite, else 0
    ========== =================================================================================================

    Args:
        released: What ``train`` gave: a module, its ``state_dict``, a list of them (every iterate), or
            :class:`Failed`.
        canary: The row that is in world 1.
        make_model: Builds the network as it is before training, the same each time.
        loss: As in :func:`canaries`.
        only: The name of one score, to get that number alone.

    Returns:
        A dict of finite numbers by name, in which a score that cannot be computed is missing; or one number, which is
        then the lowest (−1e300): nothing was seen of the canary.
    """
    if only is not None:
        _validate.choice("only", only, SCORES)
    found = _scored(released, canary, make_model, loss)
    if only is None:
        return found
    return found.get(only, _LOWEST)


def named_scores(
    *, make_model: Callable[[], Any], loss: Callable[..., Any] | None = None, iterates: bool = False
) -> dict[str, Callable[..., Any]]:
    """The scores that fit a training, as functions by name, for :func:`coalmine.audit_function`.

    Args:
        make_model: Builds the network as it is before training; with buffers in it, they are scored too.
        loss: As in :func:`canaries`.
        iterates: Whether ``train`` releases every iterate, as a list.

    Returns:
        ``score(released, canary)`` by name. Each one that is added costs a share of the level.
    """
    buffers = any(one.is_floating_point() for one in make_model().buffers())
    wanted = [name for name in SCORES if (name != "trajectory" or iterates) and (name != "buffers" or buffers)]
    return {name: functools.partial(scores, make_model=make_model, loss=loss, only=name) for name in wanted}


def guarded(train: Callable[[Any, int], Any], dataset: Any, seed: int) -> Any:
    """``train(dataset, seed)``, or :class:`Failed` where it raises: that it fails may itself tell the worlds apart."""
    try:
        return train(dataset, seed)
    except (MemoryError, OSError, ImportError, MissesCanaryError):
        raise  # the machine or the data set, not the training
    except Exception as error:  # noqa: BLE001  a user's training may raise anything
        return Failed(f"{type(error).__name__}: {error}")


def _scored(
    released: Any, canary: Row, make_model: Callable[[], Any], loss: Callable[..., Any] | None
) -> dict[str, float]:
    """All scores that can be computed."""
    import torch

    if isinstance(released, Failed):
        return {"failed": 1.0}
    model = make_model()
    states = [_state(one) for one in released] if _is_list(released) else [_state(released)]
    start = {name: value.detach().clone() for name, value in model.state_dict().items()}
    if any(not bool(torch.isfinite(value).all()) for state in states for value in state.values()):
        return {"failed": 1.0}
    names = [name for name, _ in model.named_parameters()]
    missing = [name for name in names if name not in states[-1]]
    if missing:
        raise InvalidInputError(f"released has no parameter {missing[0]!r}: expected those of make_model()")
    final = states[-1]
    moved = _vector(final, names) - _vector(start, names)
    found = {"failed": 0.0, "norm": float(moved.norm())}
    gradient = _gradient(model, start, canary, loss)
    found["along"] = -float(moved @ gradient) / max(float(gradient.norm()), 1e-30)
    model.load_state_dict(final, strict=False)
    model.eval()
    with torch.no_grad():
        found["loss"] = -float(_loss(model, canary, loss))
    buffers = [name for name, value in model.named_buffers() if name in final and value.is_floating_point()]
    if buffers:
        found["buffers"] = float((_vector(final, buffers) - _vector(start, buffers)).norm())
    if len(states) > 1:
        total = 0.0
        for before, after in zip([start, *states[:-1]], states, strict=True):
            at = _gradient(model, before, canary, loss)
            step = _vector(after, names) - _vector(before, names)
            total -= float(step @ at) / max(float(at.norm()), 1e-30)
        found["trajectory"] = total
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _for_each_layer(
    candidates: list[Row], make_model: Callable[[], Any], loss: Callable[..., Any] | None
) -> dict[str, Row]:
    """For each layer the candidate whose gradient is most in it: after clipping, its share of the norm counts."""
    model = make_model()
    start = {name: value.detach().clone() for name, value in model.state_dict().items()}
    layers: dict[str, list[str]] = {}
    for name, _ in model.named_parameters():
        layers.setdefault(name.rpartition(".")[0] or name, []).append(name)
    best: dict[str, tuple[float, Row]] = {}
    for row in candidates:
        _gradient(model, start, row, loss)
        squares = {name: float((one.grad**2).sum()) for name, one in model.named_parameters() if one.grad is not None}
        total = sum(squares.values())
        if not (math.isfinite(total) and total > 0.0):
            continue
        for layer, names in layers.items():
            share = sum(squares.get(name, 0.0) for name in names) / total
            if share > best.get(layer, (0.0,))[0]:
                best[layer] = share, row
    return {f"layer {layer}": row for layer, (_, row) in best.items()}


def _distinct(rows: dict[str, Row], taken: set[bytes]) -> dict[str, Row]:
    """No row of the data set, and no row twice: one that is gets a last bit of its own."""
    found: dict[str, Row] = {}
    for name, (features, label) in rows.items():
        values = np.asarray(features, dtype=np.float64).ravel().copy()
        nudge = 1e-3 * max(float(np.abs(values).max()), 1.0)
        while np.concatenate([values, [float(label)]]).tobytes() in taken:
            values[0] += nudge
        taken.add(np.concatenate([values, [float(label)]]).tobytes())
        found[name] = _row((values, label), features, label, np.shape(features))
    return found


def _pair(dataset: Any) -> tuple[Any, Any]:
    """Features and labels."""
    parts = getattr(dataset, "tensors", dataset)
    if (
        not isinstance(parts, (tuple, list))
        or len(parts) != 2
        or len(parts[0]) != len(parts[1])
        or len(parts[0]) < 2
        or np.ndim(parts[1]) != 1
    ):
        raise InvalidInputError(
            "dataset is not allowed: expected a pair (features, labels) or a TensorDataset, with one label for each of "
            "at least two rows"
        )
    return parts[0], parts[1]


def _row(one: tuple[Any, Any], features: Any, labels: Any, shape: tuple[int, ...]) -> Row:
    """A row in the types of the data set."""
    values, label = np.asarray(one[0], dtype=np.float64).reshape(shape), one[1]
    if hasattr(features, "detach"):
        import torch

        tensor = torch.as_tensor(values, dtype=features.dtype, device=features.device)
        return tensor, torch.as_tensor(label, dtype=labels.dtype, device=labels.device)
    return values.astype(np.asarray(features).dtype), np.asarray(label, dtype=np.asarray(labels).dtype)[()]


def _loss(model: Any, row: Row, loss: Callable[..., Any] | None) -> torch.Tensor:
    """The loss of one row."""
    import torch

    kind = next(model.parameters()).dtype
    x = torch.as_tensor(np.asarray(row[0]) if not hasattr(row[0], "detach") else row[0]).to(kind)[None]
    y = torch.as_tensor(np.asarray(row[1]) if not hasattr(row[1], "detach") else row[1]).reshape(1)
    shown = model(x)
    if loss is not None:
        value = loss(shown, y)
    elif y.is_floating_point():
        value = torch.nn.functional.mse_loss(shown.reshape(y.shape), y.to(kind))
    else:
        value = torch.nn.functional.cross_entropy(shown, y)
    return torch.as_tensor(value).sum()


def _gradient(model: Any, state: Mapping[str, Any], row: Row, loss: Callable[..., Any] | None) -> torch.Tensor:
    """The canary's gradient at these parameters, in the model's own mode of evaluation."""
    import torch

    model.load_state_dict(state, strict=False)
    training = model.training
    model.eval()  # a batch of one row has no statistics of its own
    model.zero_grad()
    with torch.enable_grad():
        _loss(model, row, loss).backward()  # type: ignore[no-untyped-call]
    model.train(training)
    return torch.cat(
        [
            (torch.zeros_like(one) if one.grad is None else one.grad).detach().double().reshape(-1).cpu()
            for _, one in model.named_parameters()
        ]
    )


def _is_list(released: Any) -> bool:
    """Whether every iterate was released."""
    return isinstance(released, Sequence) and not isinstance(released, (str, bytes)) and len(released) > 0


def _state(released: Any) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, past the wrapper of Opacus."""
    given = released.state_dict() if hasattr(released, "state_dict") else released
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            f"released is of type {type(released).__name__}: expected a module, a state_dict, or a list of them"
        )
    return {str(name).removeprefix("_module."): value for name, value in given.items() if hasattr(value, "detach")}


def _vector(state: Mapping[str, Any], names: Sequence[str]) -> torch.Tensor:
    """Tensors in a row."""
    import torch

    return torch.cat([state[name].detach().double().reshape(-1).cpu() for name in names])
