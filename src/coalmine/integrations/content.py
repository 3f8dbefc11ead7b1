"""The content of data as a hash: numbers, text, arrays of every library, data frames, data sets, containers of these.

No library is imported for this: a value of a library that is not loaded cannot be here.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.errors import InvalidInputError

SCALARS = (bool, int, float, complex, str, bytes, type(None))


class NoContentError(InvalidInputError):
    """A value whose content cannot be hashed."""


def content_hash(value: Any) -> str:
    """SHA-256 of a value's content: numbers, text, arrays, tensors, data frames, data sets, and containers of these.

    >>> content_hash([1, np.arange(3)]) == content_hash([1, np.arange(3)])
    True
    >>> content_hash(np.arange(3)) == content_hash(np.arange(3.0))
    False
    """
    digest = hashlib.sha256()
    for part in _parts(value):
        # Each part goes in with its length, so that no two different values give the same bytes.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file, or of every file of a folder with its name."""
    if path.is_dir():
        inside = sorted(one for one in path.rglob("*") if one.is_file())
        return content_hash([(one.relative_to(path).as_posix(), file_hash(one)) for one in inside])
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InvalidInputError(f"depends_on names {str(path)!r}, which cannot be read ({error.strerror})") from None


def library(name: str, value: Any, *kinds: str) -> bool:
    """Whether a value is of one of these classes of a library, which need not be installed.

    >>> library("numpy", np.zeros(2), "ndarray"), library("pandas", np.zeros(2), "DataFrame")
    (True, False)
    """
    loaded = sys.modules.get(name)
    classes = tuple(one for one in (getattr(loaded, kind, None) for kind in kinds) if isinstance(one, type))
    return bool(classes) and isinstance(value, classes)


def _parts(value: Any) -> Iterator[bytes]:
    """The value as a sequence of byte strings that no other value gives."""
    if isinstance(value, enum.Enum):
        yield f"enum {type(value).__qualname__} {value.name}".encode()
    elif isinstance(value, (*SCALARS, Path)):
        yield f"{type(value).__name__} {value!r}".encode()
    elif isinstance(value, (np.ndarray, np.generic)):
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject:
            raise NoContentError("an array of Python objects has no content hash")
        yield f"array {array.dtype.str} {np.shape(value)}".encode()
        yield array.tobytes()
    elif library("torch", value, "Tensor"):
        torch = sys.modules["torch"]
        yield f"tensor {value.dtype} {tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif library("jax", value, "Array"):
        yield from _jax_parts(value)
    elif library("pandas", value, "DataFrame", "Series") or library("polars", value, "DataFrame", "Series"):
        yield from _frame_parts(value)
    elif library("datasets", value, "Dataset"):
        yield f"rows {len(value)} {value.features!r}".encode()
        plain = value.with_format(None)
        for name in plain.column_names:
            yield from _parts([name, list(plain[name])])
    elif library("torch.utils.data", value, "Dataset"):
        yield from _data_set_parts(value)
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for key, item in value.items():
            yield from _parts(key)
            yield from _parts(item)
    elif isinstance(value, (list, tuple)):
        yield f"{type(value).__name__} {len(value)}".encode()
        for item in value:
            yield from _parts(item)
    elif isinstance(value, (set, frozenset)):
        yield f"set {len(value)}".encode()
        yield from sorted(content_hash(item).encode() for item in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield f"record {type(value).__module__}.{type(value).__qualname__}".encode()
        for field in dataclasses.fields(value):
            yield from _parts(field.name)
            yield from _parts(getattr(value, field.name))
    else:
        raise NoContentError(f"an object of type {type(value).__name__} has no content hash")


def _jax_parts(value: Any) -> Iterator[bytes]:
    """A JAX array; a key counts with the generator that it is for."""
    jax = sys.modules["jax"]
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        yield f"key {jax.random.key_impl(value)}".encode()
        value = jax.random.key_data(value)
    array = np.ascontiguousarray(value)
    yield f"jax array {value.dtype} {value.shape}".encode()
    yield array.tobytes()


def _frame_parts(frame: Any) -> Iterator[bytes]:
    """A data frame or a column of pandas or Polars, whose names for these agree."""
    yield f"frame {type(frame).__module__.partition('.')[0]} {type(frame).__name__} {len(frame)}".encode()
    if hasattr(frame, "index") and hasattr(frame.index, "to_numpy"):
        yield from _column_parts("index", frame.index)
    if getattr(frame, "attrs", None):  # what pandas keeps beside the columns, and a training may read
        yield from _parts(["attributes", dict(frame.attrs)])
    if hasattr(frame, "columns"):
        for name in frame.columns:
            yield from _column_parts(str(name), frame[name])
    else:
        yield from _column_parts(str(frame.name), frame)


def _column_parts(name: str, column: Any) -> Iterator[bytes]:
    values = column.to_numpy()
    yield f"column {name!r} {column.dtype}".encode()
    yield from _parts([_cell(one) for one in values.tolist()] if values.dtype.hasobject else values)


def _cell(value: Any) -> Any:
    """A cell of a column of objects; what is neither data nor a date has no content."""
    import datetime

    return repr(value) if isinstance(value, (datetime.date, datetime.time, datetime.timedelta)) else value


def _data_set_parts(value: Any) -> Iterator[bytes]:
    """A torch data set: its tensors, or every item that it gives."""
    data = sys.modules["torch.utils.data"]
    if isinstance(value, data.TensorDataset):
        yield b"tensor data set"
        yield from _parts(value.tensors)
    elif isinstance(value, data.Subset):
        yield b"subset"
        yield from _parts(list(value.indices))
        yield from _parts(value.dataset)
    elif not (hasattr(value, "__len__") and hasattr(type(value), "__getitem__")):
        raise NoContentError(f"a data set of type {type(value).__name__}, which has no length, has no content hash")
    else:
        yield f"items {type(value).__qualname__} {len(value)}".encode()
        for index in range(len(value)):
            yield from _parts(value[index])
