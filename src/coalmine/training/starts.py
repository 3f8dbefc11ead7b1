"""Where every training starts: weights from a file, or found by plain SGD on rows that are not audited.

A start that everybody knows takes nothing from a guarantee, which holds for each start. It can make an attack much
stronger: a model that fits the other rows already leaves the canary's gradient alone with the noise (Annamalai and De
Cristofaro 2024, arXiv 2405.14106).
"""

from __future__ import annotations

import functools
import math
import os
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch.nn import functional

from coalmine import _validate, seeds
from coalmine.errors import InvalidInputError
from coalmine.training.config import GivenWeights
from coalmine.training.data import Dataset
from coalmine.training.networks import Network, check_layers, glorot, module, parameter_count
from coalmine.training.trainer import one_thread

_LARGEST = float(np.finfo(np.float32).max)
"""The largest weight: trainings are in float32 unless asked otherwise."""
_EXPECTED = "a .npy or .npz file of numbers, as np.save and np.savez write it"
_BROKEN = (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What the reader of archives raises where bytes are not what they should be."""


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
    size = parameter_count(network)
    shapes = [shape for layer in network.layers() for shape in layer.shapes()]
    where = Path(path).absolute()
    try:
        arrays = _arrays(where, most=size)
    except InvalidInputError as error:
        raise _refused(path, str(error)) from None
    except OSError as error:
        raise _refused(path, f"it cannot be read: {error.strerror or error} (looked for {where})") from None
    if len(arrays) > 1 and [array.shape for array in arrays] != shapes:
        raise _refused(path, f"its arrays have the shapes {[array.shape for array in arrays]}: expected {shapes}")
    values = np.concatenate([array.astype(np.float64).ravel() for array in arrays])
    if values.size != size:
        raise _refused(path, f"it has {values.size} numbers: expected {size}, the parameters of the network")
    wrong = np.flatnonzero(~(np.abs(values) <= _LARGEST))
    if wrong.size:
        raise _refused(
            path,
            f"{wrong.size} of its {size} numbers cannot be weights, the first at position {wrong[0]} (from 0): "
            f"{values[wrong[0]]:g}; expected finite numbers, of size up to {_LARGEST:.3g} (float32)",
        )
    return GivenWeights(values)


def _refused(path: str | os.PathLike[str], why: str) -> InvalidInputError:
    """The error for a file that is no start."""
    return InvalidInputError(f"training.initialization: file = {_validate.shown(str(path))} is not allowed: {why}")


def _arrays(path: Path, *, most: int) -> list[NDArray[np.generic]]:
    """The arrays of a file, in its order, with at most this many numbers together; sizes are read before numbers."""
    if not path.exists():
        raise FileNotFoundError(2, "there is no such file")
    if not path.is_file():
        raise InvalidInputError(f"it is not a plain file (looked at {path})")
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            return [_array(file, held=path.stat().st_size, most=most)]
        try:
            with zipfile.ZipFile(file) as archive:
                return _members(archive, most=most)
        except InvalidInputError:
            raise
        except _BROKEN as error:
            raise InvalidInputError(f"it is a broken archive ({error}): expected {_EXPECTED}") from None


def _members(archive: zipfile.ZipFile, *, most: int) -> list[NDArray[np.generic]]:
    """The arrays of an ``.npz``."""
    found = list[NDArray[np.generic]]()
    for member in archive.infolist():
        if not member.filename.endswith(".npy"):
            raise InvalidInputError(
                f"its member {_validate.shown(member.filename)} is no array: expected members that end in .npy"
            )
        with archive.open(member) as file:
            found.append(_array(file, held=member.file_size, most=most - sum(array.size for array in found)))
    if not found:
        raise InvalidInputError(f"it is an archive without arrays: expected {_EXPECTED}")
    return found


def _array(file: IO[bytes], *, held: int, most: int) -> NDArray[np.generic]:
    """One array in the format of numpy: its header first, which may not claim more than there is or may be."""
    file.seek(0)
    try:
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
        shape, _, dtype = read(file)
    except (ValueError, KeyError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError):
        raise InvalidInputError(f"it is not in the format of numpy: expected {_EXPECTED}") from None
    if dtype.kind not in "fiu":
        pickled = " (pickled, and nothing is unpickled)" if dtype.hasobject else ""
        raise InvalidInputError(f"it holds values of dtype {dtype}{pickled}: expected floating-point or whole numbers")
    count = math.prod(shape)
    if min(shape, default=1) < 0 or count > most:
        raise InvalidInputError(
            f"it claims an array of shape {shape}: expected {most} numbers or fewer, what is left of the network's "
            "parameters"
        )
    if file.tell() + count * dtype.itemsize != held:
        raise InvalidInputError(
            f"its header claims {count * dtype.itemsize} bytes of numbers: the file has {held - file.tell()}"
        )
    file.seek(0)
    return np.asarray(npy.read_array(file, allow_pickle=False))


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
