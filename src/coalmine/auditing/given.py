"""Data and model that come from Python in the place of the config's, checked at the door."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from coalmine import _validate, data
from coalmine.errors import InvalidInputError
from coalmine.training import FromModule, Network

GivenData = data.LoadedData | Sequence[ArrayLike]
"""Data from Python: a data set, or arrays (x, y) or (x, y, x_test, y_test)."""
_NAMES = ("x", "y", "x_test", "y_test")
_MOST_CLASSES = 100_000
"""Classes are counted from the labels, and a network has an output for each: a number of a person is no class."""


def given_data(given: GivenData) -> data.LoadedData:
    """Arrays as a data set; every complaint names the array, and what it is in place of what is allowed."""
    if isinstance(given, data.LoadedData):
        return given
    if not isinstance(given, (tuple, list)) or len(given) not in (2, 4):
        raise InvalidInputError("data is not allowed: expected arrays (x, y) or (x, y, x_test, y_test), or a data set")
    x, y, *test = (_array(name, part) for name, part in zip(_NAMES, given, strict=False))
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or len(x) == 0:
        raise InvalidInputError(f"data has x and y of shapes {x.shape} and {y.shape}: expected (rows, ...) and (rows,)")
    x_test, y_test = test or (x[:0], y[:0])
    features = math.prod(x.shape[1:])
    fits = len(x_test) == 0 or (x_test.ndim >= 2 and math.prod(x_test.shape[1:]) == features)
    if not fits or y_test.ndim != 1 or len(x_test) != len(y_test):
        shape = ", ".join(["rows", *map(str, x.shape[1:])])
        raise InvalidInputError(
            f"data has x_test and y_test of shapes {x_test.shape} and {y_test.shape}: expected ({shape}) and (rows,), "
            "rows like those of x"
        )
    labels, test_labels = _labels("y", y), _labels("y_test", y_test)
    return data.LoadedData(
        name="given in Python",
        x_train=_inputs("x", x.reshape(len(x), -1)),
        y_train=labels,
        x_test=_inputs("x_test", x_test.reshape(len(x_test), features)),
        y_test=test_labels,
        classes=int(max(labels.max(), 1, *test_labels)) + 1,
        image_shape=(1, *x.shape[1:])[-3:] if x.ndim in (3, 4) else None,
        citation="",
        licence="",
    )


def given_network(given: Any, loaded: data.LoadedData) -> Network:
    """A network of ours as it is; a torch module as one that maps rows (pictures as pictures) to logits."""
    if isinstance(given, nn.Module):
        shape = loaded.image_shape or (loaded.features,)
        return FromModule(given, input_shape=shape, classes=loaded.classes)
    if not hasattr(given, "layers") or not hasattr(given, "input_shape"):
        raise InvalidInputError(
            f"model = {_validate.shown(given)} is not allowed: expected a network of coalmine.training or a torch "
            "module"
        )
    network: Network = given
    return network


def _array(name: str, part: ArrayLike) -> NDArray[Any]:
    """One of the arrays, of numbers."""
    try:
        array = np.asarray(part)
    except (TypeError, ValueError, RuntimeError) as error:  # lists of unequal length; a tensor that has a gradient
        raise InvalidInputError(
            f"{name} of data cannot be read as an array ({str(error).splitlines()[0]}): expected an array of numbers "
            "(of a tensor, tensor.detach().cpu())"
        ) from None
    if array.dtype.kind not in "biuf":
        raise InvalidInputError(
            f"{name} of data is not allowed: expected an array of numbers, and its element type is {array.dtype}"
        )
    return array


def _labels(name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    """Class labels; the message names the first that is none."""
    bad = np.flatnonzero(~((values >= 0) & (values < _MOST_CLASSES) & (np.floor(values) == values)))
    if bad.size:
        value = values[bad[0]].item()
        allowed = f"a class label, a whole number from 0 to {_MOST_CLASSES - 1}"
        if value > 0 and value == math.floor(value):
            allowed += " (there are as many classes as the largest label plus 1: number them 0, 1, ...)"
        raise _validate.reject(f"{name}[{bad[0]}] of data", value, allowed)
    return values.astype(np.int64)


def _inputs(name: str, values: NDArray[Any]) -> NDArray[np.float32]:
    """Rows in single precision; the message names the first number that is none, or too large for one."""
    with np.errstate(over="ignore"):
        rows = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(rows))
    if bad.size:
        place, value = ", ".join(str(i) for i in bad[0]), values[tuple(bad[0])].item()
        most = float(np.finfo(np.float32).max)
        raise _validate.reject(
            f"{name}[{place}] of data", value, f"a finite number of at most {most:.2g} ({len(bad)} such values)"
        )
    return rows
