"""What a step changes outside its state: numbers in objects of the user that its function holds.

A loss that is kept in an attribute, a list that is logged to, a cache of rows: nobody said that they are released, nor
that they are not. So they are no findings, but where they show a row that noise hides from the private sum, the probe
says so. What a library keeps inside its own objects (gradients of single rows, for instance) is its own affair.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch

from coalmine.probing.release import Release, own
from coalmine.probing.snapshot import is_library, names_in


def held(function: Any, known: Set[int] = frozenset()) -> dict[str, Any]:
    """What a function of the user holds, by name: its object (unless known), its closure, and the globals it reads."""
    found: dict[str, Any] = {}
    if isinstance(function, functools.partial):
        return held(function.func, known)
    if isinstance(function, types.MethodType):
        if own(function.__self__) and id(function.__self__) not in known:
            found |= vars(function.__self__)
        function = function.__func__
    elif not isinstance(function, types.FunctionType):
        if not own(function):
            return found
        found |= {} if id(function) in known else vars(function)
        function = type(function).__dict__.get("__call__")
    if isinstance(function, types.FunctionType) and _followed(function):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not yet assigned
                continue
        space = {} if _ours(function) else function.__globals__
        found |= {name: space[name] for name in names_in(function.__code__) if name in space}
    return found


def _ours(function: types.FunctionType) -> bool:
    """A step that an integration made: the user's functions are in its closure."""
    return (function.__module__ or "").partition(".")[0] == "coalmine"


def _followed(function: types.FunctionType) -> bool:
    return _ours(function) or not is_library(function)


def read(step: Callable[..., Any], release: Release) -> dict[str, torch.Tensor]:
    """Every number in what the user's own function and objects hold, except in modules, optimizers and the state."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set(release.known())
    for name, value in held(step, seen).items():
        _collect(value, name, found, seen, release)
    return found


def state_of(step: Callable[..., Any]) -> Any:
    """What a step that holds no module and no optimizer may release: its object, or all that its function holds."""
    owner = getattr(step, "__self__", step)
    return owner if own(owner) else held(step)


def _collect(value: Any, name: str, found: dict[str, torch.Tensor], seen: set[int], release: Release) -> None:
    if isinstance(value, (types.ModuleType, type)) or id(value) in seen:
        return
    if isinstance(value, (types.FunctionType, types.MethodType)):
        seen.add(id(value))
        function = value if isinstance(value, types.FunctionType) else value.__func__
        if isinstance(function, types.FunctionType) and _followed(function):
            for inner, one in held(value, seen).items():
                _collect(one, inner, found, seen, release)
    elif isinstance(value, (torch.nn.Module, torch.optim.Optimizer, torch.nn.Parameter)):
        return
    elif isinstance(value, (Mapping, list, tuple)):
        seen.add(id(value))
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, one in list(items):
            _collect(one, f"{name}[{key!r}]", found, seen, release)
    elif own(value):
        seen.add(id(value))
        for inner, one in vars(value).items():
            _collect(one, f"{name}.{inner}", found, seen, release)
    else:
        found.update(release.numbers(value, name))
