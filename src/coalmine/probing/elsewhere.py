"""What a step changes outside its state: numbers in objects of the user that its function holds.

A loss that is kept in an attribute, a list that is logged to, a cache of rows: nobody said that they are released, nor
that they are not. So they are no findings, but where they show a row that noise hides from the private sum, the probe
says so. They may hang on a module or an optimizer that is in the state, on a function or a class, or be the default of
an argument. What a library keeps inside its own objects (gradients of single rows, for instance) is its own affair.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch

from coalmine.probing.own_code import (
    data_of,
    hung_on,
    hung_on_tensor,
    is_library,
    is_library_module,
    is_ours,
    own_classes,
)
from coalmine.probing.release import Release, own
from coalmine.probing.snapshot import defaults, names_in


def held(function: Any, known: Set[int] = frozenset()) -> dict[str, Any]:
    """What a function of the user holds, by name: its object (unless known), its closure, and the globals it reads.

    With them go its defaults, its attributes, and those of the modules of the user that it reads.
    """
    found: dict[str, Any] = {}
    if isinstance(function, functools.partial):
        given = {f"argument {number}": one for number, one in enumerate(function.args)} | function.keywords
        return held(function.func, known) | given
    if isinstance(function, types.MethodType):
        if own(function.__self__) and id(function.__self__) not in known:
            found |= vars(function.__self__)
        function = function.__func__
    elif not isinstance(function, types.FunctionType):
        if not own(function):
            return found
        found |= {} if id(function) in known else vars(function)
        function = type(function).__dict__.get("__call__")
    if isinstance(function, types.FunctionType) and not _followed(function):
        return found | held(getattr(function, "__wrapped__", None), known)  # a library's decorator
    if isinstance(function, types.FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not yet assigned
                continue
        found |= defaults(function)
        found |= {f"{function.__name__}.{name}": one for name, one in vars(function).items()}
        names, space = names_in(function.__code__), {} if is_ours(function) else function.__globals__
        found |= {name: space[name] for name in names if name in space}
        for name, module in [(name, space[name]) for name in names if isinstance(space.get(name), types.ModuleType)]:
            if not is_library_module(module):
                found |= {f"{name}.{one}": vars(module)[one] for one in names if one in vars(module)}
    return found


def _followed(function: types.FunctionType) -> bool:
    return is_ours(function) or not is_library(function)


def read(step: Callable[..., Any], release: Release) -> dict[str, torch.Tensor]:
    """Every number in what the user's own function and objects hold, except in the state."""
    walk = _Walk(release)
    walk.seen.add(id(getattr(step, "__func__", step)))
    for name, value in held(step, walk.seen - {id(step)}).items():
        walk.collect(value, name)
    owner = getattr(step, "__self__", step)
    if own(owner):
        walk.classes(type(owner))
    walk.beside(release.roots, "state")
    return walk.found


def state_of(step: Callable[..., Any]) -> Any:
    """What a step that holds no module and no optimizer may release: its object, or all that its function holds."""
    owner = getattr(step, "__self__", step)
    return owner if own(owner) else held(step)


class _Walk:
    """The way through what a step holds."""

    def __init__(self, release: Release) -> None:
        self.found: dict[str, torch.Tensor] = {}
        self.seen: set[int] = set(release.known())
        self._release = release
        self._beside: set[int] = set()

    def collect(self, value: Any, name: str) -> None:
        """Every number under a value that is not in the state."""
        if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
            self.beside(value, name)
        if isinstance(value, type):
            self.classes(value)
        if isinstance(value, (types.ModuleType, type)) or id(value) in self.seen:
            return
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self.seen.add(id(value))
            for inner, one in held(value, self.seen).items():
                self.collect(one, inner)
        elif isinstance(value, (torch.nn.Module, torch.optim.Optimizer, torch.nn.Parameter)):
            return
        elif isinstance(value, (Mapping, list, tuple)):
            self.seen.add(id(value))
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, one in list(items):
                self.collect(one, f"{name}[{key!r}]")
        elif own(value):
            self.seen.add(id(value))
            self.classes(type(value))
            for inner, one in list(vars(value).items()):
                self.collect(one, f"{name}.{inner}")
        else:
            self._add(self._release.numbers(value, name))

    def _add(self, numbers: Mapping[str, torch.Tensor]) -> None:
        """Two places may have one name: neither hides the other."""
        for name, one in numbers.items():
            key, number = name, 2
            while key in self.found:
                key, number = f"{name}, place {number}", number + 1
            self.found[key] = one

    def classes(self, kind: type) -> None:
        """What classes of the user hold for all their objects, and what their methods hold."""
        for one in own_classes(kind):
            if id(one) in self.seen:
                continue
            self.seen.add(id(one))
            for name, value in data_of(one).items():
                self.collect(value, f"{one.__name__}.{name}")
            for value in list(vars(one).values()):
                function = getattr(value, "__func__", value)
                if isinstance(function, types.FunctionType):
                    self.collect(function, one.__name__)

    def beside(self, value: Any, name: str) -> None:
        """What hangs on modules and optimizers beside their parameters and buffers, in the state or out of it."""
        if id(value) in self._beside:
            return
        self._beside.add(id(value))
        if isinstance(value, torch.nn.Module):
            for inner, part in value.named_modules():
                self._beside.add(id(part))
                self.classes(type(part))
                for attribute, one in hung_on(part).items():
                    self.collect(one, f"{name}.{inner}.{attribute}" if inner else f"{name}.{attribute}")
            for inner, tensor in (*value.named_parameters(), *value.named_buffers()):
                self._on_tensor(tensor, f"{name}.{inner}", value)
        elif isinstance(value, torch.optim.Optimizer):
            for group, given in enumerate(value.param_groups):
                for position, tensor in enumerate(given["params"]):
                    self._on_tensor(tensor, f"{name}: parameter {position} of group {group}", value)
            for attribute, one in hung_on(value).items():
                self.collect(one, f"{name}.{attribute}")
            held_for: Mapping[Any, Any] = value.state
            for key, one in list(held_for.items()):
                if not isinstance(key, torch.Tensor):
                    self.collect(one, f"{name}.state[{key!r}]")
        elif isinstance(value, torch.Tensor):
            self._beside.discard(id(value))
            self._on_tensor(value, name)
        elif isinstance(value, (Mapping, list, tuple)):
            for key, one in list(value.items() if isinstance(value, Mapping) else enumerate(value)):
                self.beside(one, f"{name}[{key!r}]")
        elif own(value):
            self.classes(type(value))
            for attribute, one in list(vars(value).items()):
                self.beside(one, f"{name}.{attribute}")

    def _on_tensor(self, tensor: torch.Tensor, name: str, owner: Any = None) -> None:
        """What the user hangs on a tensor: on a parameter, a buffer, or a tensor that is the state."""
        if id(tensor) not in self._beside:
            self._beside.add(id(tensor))
            for attribute, one in hung_on_tensor(tensor, owner).items():
                self.collect(one, f"{name}.{attribute}")
