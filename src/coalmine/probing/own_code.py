"""What is the user's and what is a library's: attributes of classes and objects that only the user's code sets.

A library keeps much in its own objects (activations, gradients of single rows, counters), which is its own affair. What
a user hangs on such an object is not. Which is which shows in the code: names that the library stores are in it.
"""

from __future__ import annotations

import dis
import enum
import functools
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

_STDLIB = sysconfig.get_paths()["stdlib"]
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MODULES_AT_MOST = 200
"""Of a package that are looked at as a whole; of a larger one only those of the classes and hooks themselves."""


def is_library(value: types.FunctionType | type) -> bool:
    """Whether a function or a class is a library's, and not the user's own."""
    if isinstance(value, types.FunctionType):
        name = value.__code__.co_filename
    else:
        module = sys.modules.get(value.__module__)
        name = getattr(module, "__file__", None) or ("" if value.__module__ == "__main__" else "<frozen")
    return is_ours(value) or _installed(name)


def _installed(path: str) -> bool:
    return "site-packages" in path or path.startswith((_STDLIB, "<frozen"))


def is_library_module(module: types.ModuleType) -> bool:
    """Whether a module is a library's, and not the user's own."""
    ours = module.__name__.partition(".")[0] == "coalmine"
    return ours or _installed(getattr(module, "__file__", None) or "<frozen")


def is_ours(kind: Any) -> bool:
    """Whether a function or a class belongs to this package."""
    return (getattr(kind, "__module__", "") or "").partition(".")[0] == "coalmine"


def data_of(kind: type) -> dict[str, Any]:
    """The attributes of a class that are data, and may hold what a step logs."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith(("__", "_abc_"))
        and not isinstance(value, (types.FunctionType, type, types.MemberDescriptorType))
        and not hasattr(type(value), "__get__")
    }


def own_classes(kind: type) -> list[type]:
    """The classes of the user that a class is made of."""
    return [one for one in kind.__mro__ if not is_library(one) and not issubclass(one, enum.Enum)]


def hung_on(value: torch.nn.Module | torch.optim.Optimizer) -> dict[str, Any]:
    """What the user's code, and no library's, has set as attributes of a module or an optimizer."""
    users = own_classes(type(value))
    theirs = _names(one.__module__ for one in type(value).__mro__ if one not in users)
    theirs |= _names(_hooking(value))
    mine = {name for one in users for part in vars(one).values() for name in _stored(part)}
    return {name: one for name, one in vars(value).items() if name in mine or name not in theirs}


def hung_on_tensor(tensor: torch.Tensor, owner: Any = None) -> dict[str, Any]:
    """What the user's code has set as attributes of a tensor, of a parameter or a buffer say.

    Args:
        tensor: which may have a gradient; that is no attribute.
        owner: the module or the optimizer that holds it. What its library, or one that has hooked onto it, stores
            (gradients of single rows, for instance) is that library's own affair.
    """
    attributes = vars(tensor)
    if not attributes or owner is None:
        return dict(attributes)
    parts = list(owner.modules()) if isinstance(owner, torch.nn.Module) else [owner]
    modules = {one.__module__ for part in parts for one in type(part).__mro__ if is_library(one)}
    modules |= {name for part in parts for name in _hooking(part)}
    packages = {name.partition(".")[0] for name in modules} - {"torch", "builtins"}
    for package in packages:
        inside = [name for name in list(sys.modules) if name == package or name.startswith(f"{package}.")]
        modules |= set(inside if len(inside) <= _MODULES_AT_MOST else ())
    theirs = _names(modules)
    return {name: one for name, one in attributes.items() if name not in theirs}


def _hooking(value: Any) -> Iterator[str]:
    """The modules of the functions that a library has hooked onto a module."""
    for name in _HOOKS:
        for hook in (vars(value).get(name) or {}).values():
            function = getattr(hook, "func", hook)
            yield getattr(function, "__module__", None) or type(function).__module__


def _names(modules: Iterable[str]) -> set[str]:
    return {name for one in set(modules) for name in _stored_in(one)}


@functools.cache
def _stored_in(module: str) -> frozenset[str]:
    """The names of attributes that the code of a module stores."""
    found: set[str] = set()
    for value in list(vars(sys.modules[module]).values()) if module in sys.modules else ():
        if getattr(value, "__module__", None) == module:
            for one in vars(value).values() if isinstance(value, type) else (value,):
                found |= _stored(one)
    return frozenset(found)


def _stored(value: Any) -> set[str]:
    """The names of attributes that a function stores, with those of the functions inside it."""
    value = getattr(value, "__func__", getattr(value, "fget", value))
    value = getattr(value, "__wrapped__", value)
    return _stored_by(value.__code__) if isinstance(value, types.FunctionType) else set()


def _stored_by(code: types.CodeType) -> set[str]:
    found = {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_ATTR"}
    return found.union(*(_stored_by(one) for one in code.co_consts if isinstance(one, types.CodeType)))


def is_dead(value: Any) -> bool:
    """Whether a tensor was left behind by ``vmap`` or ``grad`` after their end: nobody can read it any more."""
    wrapped = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", None)
    return isinstance(value, torch.Tensor) and wrapped is not None and bool(wrapped(value))
