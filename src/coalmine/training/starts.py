"""Where every training starts: weights from a file, or found by plain SGD on rows that are not audited.

A start that everybody knows takes nothing from a guarantee, which holds for each start. It can make an attack much
stronger: a model that fits the other rows already leaves the canary's gradient alone with the noise (Annamalai and De
Cristofaro 2024, arXiv 2405.14106).
"""

from __future__ import annotations

import functools
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from coalmine import _validate, seeds
from coalmine.errors import InvalidInputError
from coalmine.training.config import GivenWeights
from coalmine.training.data import Dataset
from coalmine.training.networks import Network, check_layers, glorot, module, parameter_count
from coalmine.training.trainer import one_thread

_ROOM = 2**16
"""Bytes of a file beside its numbers."""


def load_weights(path: str | os.PathLike[str], *, network: Network) -> GivenWeights:
    """Weights of this network from a ``.npy`` or ``.npz`` file; nothing is unpickled.

    Args:
        path: one array with all parameters (in the order of ``module().parameters()``), or an ``.npz`` with an array
            for each of them, in that order and of their shapes, whatever their names: what
            ``np.savez(path, *(p.detach().numpy() for p in model.parameters()))`` writes.
        network: whose parameters they are.

    Returns:
        The start of every training.

    >>> import tempfile
    >>> from coalmine.training import LogisticRegression
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/start.npy", np.arange(6.0))
    ...     load_weights(f"{folder}/start.npy", network=LogisticRegression(2)).values.tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

    """
    name = f"initial weights {_validate.shown(str(path))}"
    size = parameter_count(network)
    shapes = [shape for layer in network.layers() for shape in layer.shapes()]
    try:
        arrays = _arrays(Path(path), most=16 * size + _ROOM * (len(shapes) + 1))
    except OSError as error:
        raise InvalidInputError(f"{name} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise InvalidInputError(f"{name} cannot be read: {error}; expected a .npy or .npz file of numbers") from None
    if any(array.dtype.kind not in "fiu" for array in arrays):
        raise InvalidInputError(f"{name} is not allowed: expected numbers")
    if len(arrays) > 1 and [array.shape for array in arrays] != shapes:
        raise InvalidInputError(
            f"{name} has arrays of shapes {[array.shape for array in arrays]}: the network has {shapes}"
        )
    total = sum(array.size for array in arrays)
    if total != size:
        raise InvalidInputError(f"{name} has {total} numbers: the network has {size}")
    values = np.concatenate([array.astype(np.float64).ravel() for array in arrays])
    if not np.isfinite(values).all():
        raise InvalidInputError(f"{name} is not allowed: expected numbers that are finite")
    return GivenWeights(values)


def _arrays(path: Path, *, most: int) -> list[NDArray[np.generic]]:
    """The arrays of a file, in its order; a file that is no plain file or would need more room is refused."""
    if not path.is_file():
        raise FileNotFoundError(2, "there is no such file")
    with path.open("rb") as file:
        size = path.stat().st_size
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                size = sum(member.file_size for member in archive.infolist())
        if size > most:
            raise ValueError(f"it has {size} bytes, more than the network's parameters need")
        file.seek(0)
        found = np.load(file, allow_pickle=False)
        return [found] if isinstance(found, np.ndarray) else [found[key] for key in found.files]


def pretrained(
    network: Network, *, rows: Dataset, epochs: int, learning_rate: float, batch_size: int, seed: int = 0
) -> GivenWeights:
    """Weights after plain SGD, without noise and clipping, on rows that are not audited.

    m ← m − η·(mean of ∇ℓ over a batch), from Glorot weights, each epoch in an order of its own. It is computed in
    float64 and its weights are rounded to 11 significant bits, far coarser than what processors differ by: the same
    start, and so the same identity of trials, on every machine.

    Args:
        network: what is trained.
        rows: the rows.
        epochs: how often each row is used.
        learning_rate: η.
        batch_size: rows in a batch; the last one of an epoch may be smaller.
        seed: of the first weights and of the orders.

    Returns:
        The start of every training.

    >>> from coalmine.training import LogisticRegression
    >>> rows = Dataset([[0.0, 1.0], [1.0, 0.0]], [0, 1])
    >>> start = pretrained(LogisticRegression(2), rows=rows, epochs=50, learning_rate=1.0, batch_size=2)
    >>> bool(start.values[1] > 1.0 > start.values[0])
    True

    """
    check_layers(network)
    _validate.integer("epochs", epochs, at_least=1)
    _validate.positive("learning_rate", learning_rate)
    _validate.integer("batch_size", batch_size, at_least=1, at_most=rows.rows)
    hashable: Any = network  # a frozen dataclass
    return _pretrained(hashable, rows, epochs, learning_rate, batch_size, seed)


@functools.lru_cache(maxsize=4)
def _pretrained(
    network: Network, rows: Dataset, epochs: int, learning_rate: float, batch_size: int, seed: int
) -> GivenWeights:
    """The same for everybody who asks again."""
    stream = seeds.generator(str(seed), purpose="pretrained start", trial=0)
    body = module(network).double().eval()
    weights = [p for p in body.parameters() if p.requires_grad]
    first = torch.from_numpy(glorot(network, scale=1.0, generator=stream))
    torch.nn.utils.vector_to_parameters(first, weights)
    x, y = torch.from_numpy(np.array(rows.x)), torch.from_numpy(np.array(rows.y))
    x = x.double() if x.is_floating_point() else x
    stepper = torch.optim.SGD(weights, lr=learning_rate)
    with one_thread(), torch.enable_grad():
        for _ in range(epochs):
            for batch in np.array_split(stream.permutation(rows.rows), math.ceil(rows.rows / batch_size)):
                stepper.zero_grad()
                functional.cross_entropy(body(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
                stepper.step()
    found = torch.nn.utils.parameters_to_vector(weights).detach().numpy()
    if not np.isfinite(found).all():
        raise _validate.reject("learning_rate", learning_rate, "one with which SGD on the held-out rows stays finite")
    mantissa, exponent = np.frexp(found)
    return GivenWeights(np.ldexp(np.round(mantissa * 2.0**11), exponent - 11))
