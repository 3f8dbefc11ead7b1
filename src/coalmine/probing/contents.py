"""What a value of any type holds, as far as it can be looked at without running anything.

A loss in ``{"loss": loss}.items()``, in an ``array``, in slots, in a table or in what a function closes over is
released like one in a dict. Iterators and generators cannot be read without using them up, and a property runs code:
such a value is not read, and its type is said.
"""

from __future__ import annotations

import array
import collections.abc
import enum
import functools
import io
import re
import sys
import threading
import types
from typing import Any

import numpy as np
import torch

from coalmine.probing.own_code import data_of, is_library, own_classes

Parts = dict[str, Any]
WHOLE = ""
"""The name of the one part of a value that has the name of the whole."""
_VIEWS = (collections.abc.KeysView, collections.abc.ValuesView, collections.abc.ItemsView)
_NO_DATA = (
    types.ModuleType,
    re.Pattern,
    type(threading.Lock()),
    type(threading.RLock()),
    type(Ellipsis),
    type(NotImplemented),
    # Rows are input and stay what they are.
    torch.utils.data.Dataset,
    torch.utils.data.DataLoader,
)
_NAMES = (type, torch.dtype, torch.device, torch.layout, np.dtype)
"""Only their name says anything."""
_ITERATES = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, collections.abc.Iterator)


def data(value: Any) -> Parts | None:
    """What a container of numbers holds, by name; None for any other value. Nothing in it is code.

    >>> data({"loss": 0.5}.items()), data(range(3)), data(array.array("d", [0.5]))[WHOLE].tolist()
    ({'': [('loss', 0.5)]}, {'start': 0, 'stop': 3, 'step': 1}, [0.5])
    """
    if isinstance(value, _VIEWS):
        return {WHOLE: list(value)}
    if isinstance(value, (range, slice)):
        return {"start": value.start, "stop": value.stop, "step": value.step}
    if isinstance(value, array.array):
        return {WHOLE: np.array(value.tolist())}
    if isinstance(value, memoryview):
        return {WHOLE: value.tobytes()}
    if isinstance(value, (io.BytesIO, io.StringIO)):
        return {WHOLE: "" if value.closed else value.getvalue()}
    if isinstance(value, enum.Enum):
        return {WHOLE: value.name}
    if isinstance(value, np.ma.MaskedArray):
        return {WHOLE: np.asarray(value.data), "mask": np.asarray(value.mask)}
    if isinstance(value, (np.ndarray, np.generic)):
        return _fields(value)
    return _table(value) if is_library(type(value)) else None


def _fields(value: Any) -> Parts | None:
    """The fields of a structured array, and what NumPy holds beside numbers and texts."""
    if value.dtype.names:
        return {name: value[name] for name in value.dtype.names}
    if value.dtype.kind in "mM":
        return {WHOLE: np.asarray(value).astype(np.int64)}
    return {WHOLE: value.tobytes()} if value.dtype.kind == "V" else None


def _table(value: Any) -> Parts | None:
    """The numbers of a table or of a sparse matrix, whichever library it is of."""
    package = type(value).__module__.partition(".")[0]
    if package == "scipy" and callable(getattr(type(value), "tocoo", None)):
        found = value.tocoo()
        return {"data": found.data, "row": found.row, "column": found.col, "shape": found.shape}
    if package == "pandas" and "pandas" in sys.modules:
        pandas = sys.modules["pandas"]
        if isinstance(value, pandas.DataFrame):
            return {"index": value.index.to_numpy()} | {str(name): one.to_numpy() for name, one in value.items()}
        if isinstance(value, pandas.Series):
            return {"index": value.index.to_numpy(), WHOLE: value.to_numpy()}
        if value is pandas.NA or value is pandas.NaT:
            return {WHOLE: None}
    if callable(getattr(type(value), "__array__", None)):
        return {WHOLE: np.asarray(value)}
    return None


def slots(value: Any) -> Parts:
    """The attributes of an object that live in slots."""
    found = {}
    for one in type(value).__mro__:
        for name, member in vars(one).items():
            if isinstance(member, types.MemberDescriptorType) and not name.startswith("__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def returned(value: Any) -> Parts | None:
    """What a returned value of any other type holds, by name: nothing where it holds nothing, None where it cannot be
    read.

    >>> returned(functools.partial(print, 0.5))
    {'function': <built-in function print>, 'argument 0': 0.5}
    >>> returned(len), returned(iter([0.5])) is None
    ({}, True)
    """
    if isinstance(value, _NO_DATA):
        return {}
    if isinstance(value, _NAMES):
        return {WHOLE: str(value)}
    if isinstance(value, functools.partial):
        given = {f"argument {number}": one for number, one in enumerate(value.args)}
        return {"function": value.func, **given, **value.keywords}
    if isinstance(value, types.FunctionType):
        return _function(value)
    if isinstance(value, types.MethodType):
        return {"self": value.__self__, "function": value.__func__}
    if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return {} if isinstance(value.__self__, (types.ModuleType, type, type(None))) else {"self": value.__self__}
    if isinstance(value, (*_ITERATES, io.IOBase)) and is_library(type(value)):
        return None
    held = slots(value)
    attributes = getattr(value, "__dict__", None)
    held |= attributes if isinstance(attributes, dict) else {}
    if isinstance(value, BaseException):
        return {"args": value.args, **held}
    if held or type(value) is object:
        return held
    return _of_class(type(value))


def is_librarys(value: Any) -> bool:
    """Whether a value is an object of a library with attributes, behind which much of the library may hang."""
    if isinstance(value, (functools.partial, types.FunctionType, types.MethodType, BaseException, *_NAMES)):
        return False
    return is_library(type(value)) and bool(getattr(value, "__dict__", None))


def _function(function: types.FunctionType) -> Parts:
    """What a function closes over, its defaults and its attributes; not the globals that it reads."""
    found: Parts = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    for number, one in enumerate(function.__defaults__ or ()):
        found[f"default {number}"] = one
    return found | (function.__kwdefaults__ or {}) | vars(function)


def _of_class(kind: type) -> Parts | None:
    """What an object without attributes may have from its class; None where only its code could tell."""
    if is_library(kind) and kind.__module__ != "builtins":
        return None
    users = own_classes(kind)
    if not users:
        return None
    found: Parts = {}
    computes = False
    for one in users:
        found |= data_of(one)
        for name, member in vars(one).items():
            computes = computes or isinstance(member, property) or name in ("__getattr__", "__getattribute__")
            getter = getattr(member, "fget", getattr(member, "__func__", member))
            if isinstance(getter, types.FunctionType):
                found |= {f"{name}.{inner}": held for inner, held in _function(getter).items() if inner != "__class__"}
    return None if computes and not found else found
