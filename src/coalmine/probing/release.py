"""What a step releases: every number in the state that it was given, and everything that it returns.

Beside the release, the gradients that enter a torch optimizer are read at its door. They are not released, but there
the private sum is still linear, whatever the optimizer then does with it (Adam, momentum, weight decay).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import fnmatch
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from coalmine.probing import contents, text
from coalmine.probing.own_code import is_dead, is_library
from coalmine.probing.plain_tensors import plain
from coalmine.probing.snapshot import GENERATORS, Snapshot

_PARTS = (Mapping, list, tuple, bytes, bytearray, np.random.BitGenerator, *GENERATORS)
_ITEMS = 10_000
"""Items of an array of texts or objects that are looked at."""


@dataclasses.dataclass
class Observation:
    """What one run of a step showed."""

    gradients: dict[str, torch.Tensor]
    """At the optimizers' doors, by parameter."""
    released: dict[str, torch.Tensor]
    error: str = ""

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.gradients[name] if name in self.gradients else self.released[name]

    def __contains__(self, name: str) -> bool:
        return name in self.gradients or name in self.released

    def whole(self, reference: Observation) -> bool:
        """Whether it ran, and is finite wherever the reference is."""
        if self.error:
            return False
        for name in (*self.gradients, *self.released):
            bad = ~torch.isfinite(self[name])
            if bool(bad.any()):
                there = name in reference and reference[name].shape == self[name].shape
                if not there or bool((bad & torch.isfinite(reference[name])).any()):
                    return False
        return True


class Release:
    """Reads what a step releases."""

    def __init__(self, state: Any, snapshot: Snapshot, *, kept: Sequence[str] = ()) -> None:
        self._kept = kept
        self._roots = state if state is not None else _found(snapshot)
        self._copies: Mapping[int, torch.Tensor] = {}
        self._parts: dict[str, Any] | None = None
        self._returned = self._aside = False
        self._alive: list[Any] = []  # what was made to read from, so that no id is used twice
        self.unread: dict[str, str] = {}
        """What the step returned and nobody could read: the type of each, by name."""
        self.names = _parameter_names(self._roots)

    @property
    def roots(self) -> Any:
        """The objects of the state."""
        return self._roots

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read."""
        return not self.read(None)

    def read(self, returned: Any, more: Mapping[str, Any] | None = None) -> dict[str, torch.Tensor]:
        """Everything released now, by name, copied."""
        found: dict[str, torch.Tensor] = {}
        self._alive.clear()
        self._flatten(self._roots, "", found, set())
        if returned is not None:
            self._returned = True
            try:
                self._flatten(returned, "returned", found, set())
            finally:
                self._returned = False
        for name, value in (more or {}).items():
            self._flatten(value, name, found, set())
        return {name: one for name, one in found.items() if not self.is_kept(name)}

    def at_first(self, snapshot: Snapshot, more: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Everything released now, just after a copy of it was made: what that holds is not copied again."""
        self._copies = snapshot.copies
        try:
            return self.read(None, more)
        finally:
            self._copies = {}

    def _tensor(self, tensor: torch.Tensor, name: str, found: dict[str, torch.Tensor]) -> None:
        """A copy of a tensor in ordinary numbers, whatever kind it is of; nothing of one that nobody outside sees."""
        copy = self._copies.get(id(tensor))
        parts = [] if self.is_kept(name) else plain(tensor.detach().clone() if copy is None else copy, name)
        for position, one in enumerate(parts):
            found[name if len(parts) == 1 else f"{name}[{position}]"] = one

    def numbers(self, value: Any, name: str) -> dict[str, torch.Tensor]:
        """Every number under a value, by name, unless nobody outside sees it."""
        found: dict[str, torch.Tensor] = {}
        self._flatten(value, name, found, set())
        return {one: number for one, number in found.items() if not self.is_kept(one)}

    def parts(self, value: Any, name: str) -> dict[str, Any]:
        """What a value is made of, as it is: every dict, list, generator and text of bytes in it, by name.

        A generator that an object keeps for its own use is left out: its owner is released, not that.
        """
        self._parts, self._returned = {}, value is not self._roots
        try:
            self._flatten(value, "" if value is self._roots else name, {}, set())
            return {one or name: part for one, part in self._parts.items()}
        finally:
            self._parts, self._returned = None, False

    def is_kept(self, name: str) -> bool:
        """Whether it was said that nobody outside sees this."""
        name = name.removesuffix(text.MARK)
        # Brackets stand for themselves, as in the names of the report: cache[3] is no class of characters.
        return any(name == kept or fnmatch.fnmatchcase(name, kept.replace("[", "[[]")) for kept in self._kept)

    def known(self) -> set[int]:
        """The objects in the state, by id."""
        seen: set[int] = set()
        self._flatten(self._roots, "", {}, seen)
        return seen

    @contextlib.contextmanager
    def door(self) -> Iterator[dict[str, torch.Tensor]]:
        """The gradients that enter any torch optimizer meanwhile, by parameter; a second visit has its own name."""
        seen: dict[str, torch.Tensor] = {}

        def hook(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            for number, group in enumerate(optimizer.param_groups):
                for position, parameter in enumerate(group["params"]):
                    if parameter.grad is None:
                        continue
                    own = f"parameter {position} of group {number} of {type(optimizer).__name__}"
                    name = f"gradient of {self.names.get(id(parameter), own)}"
                    visit = 1
                    while (name if visit == 1 else f"{name}, visit {visit}") in seen:
                        visit += 1
                    grad = parameter.grad.detach()
                    seen[name if visit == 1 else f"{name}, visit {visit}"] = (
                        grad.to_dense() if grad.is_sparse else grad
                    ).clone()

        handle = register_optimizer_step_pre_hook(hook)
        try:
            yield seen
        finally:
            handle.remove()

    def _flatten(self, value: Any, prefix: str, found: dict[str, torch.Tensor], seen: set[int]) -> None:
        """Every number under ``value``, by name."""
        if is_dead(value):
            return
        if self._parts is not None and isinstance(value, _PARTS):
            self._parts.setdefault(prefix, value)
        if isinstance(value, torch.Tensor):
            seen.add(id(value))
            whole: dict[str, torch.Tensor] = {}
            self._tensor(value, prefix or "tensor", whole)
            for name, one in whole.items():
                found[name] = torch.view_as_real(one.resolve_conj()) if one.is_complex() else one
        elif isinstance(value, (np.ndarray, np.generic)):
            seen.add(id(value))
            held = contents.data(value)
            if held is not None:
                self._members(value, held, prefix, found, seen)
            elif value.dtype.kind in "fiub":
                found[prefix or "array"] = torch.from_numpy(np.array(value))
            elif value.dtype.kind == "c":
                found[prefix or "array"] = torch.view_as_real(torch.from_numpy(np.array(value, dtype=np.complex128)))
            elif value.dtype.kind in "USO" and value.size <= _ITEMS:
                self._flatten(value.tolist(), prefix or "array", found, seen)
        elif isinstance(value, (bool, int, float)):
            found[prefix or "number"] = torch.tensor(_finite(value), dtype=torch.float64)
        elif isinstance(value, complex):
            found[prefix or "number"] = torch.tensor([value.real, value.imag], dtype=torch.float64)
        elif text.is_plain(value):
            found[f"{prefix or type(value).__name__}{text.MARK}"] = text.numbers_of(value)
        elif (isinstance(value, type) and not self._returned) or id(value) in seen:
            return
        elif (held := contents.data(value)) is not None:
            self._members(value, held, prefix, found, seen)
        else:
            seen.add(id(value))
            dot = f"{prefix}." if prefix else ""
            if isinstance(value, torch.nn.Module):
                for name, one in (*value.named_parameters(), *value.named_buffers()):
                    self._tensor(one, f"{dot}{_plain(name)}", found)
            elif isinstance(value, torch.optim.Optimizer):
                self._optimizer(value, dot, found)
            elif isinstance(value, Mapping):
                for key, one in value.items():
                    self._flatten(one, f"{dot}{key}", found, seen)
            elif isinstance(value, (list, tuple, collections.deque, set, frozenset)):
                several = len(value) > 1
                items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
                for position, one in enumerate(items):
                    self._flatten(one, f"{prefix}[{position}]" if several and _numeric(one) else prefix, found, seen)
            elif dataclasses.is_dataclass(value) and not isinstance(value, type):
                for field in dataclasses.fields(value):
                    self._attribute(getattr(value, field.name), f"{dot}{field.name}", found, seen)
            elif callable(getattr(value, "state_dict", None)):
                self._flatten(value.state_dict(), prefix or type(value).__name__, found, seen)
            elif own(value) or isinstance(value, (types.SimpleNamespace, argparse.Namespace)):
                held = contents.returned(value) if self._returned else contents.slots(value) | vars(value)
                self._members(value, held, prefix, found, seen)
            elif self._returned:
                if not isinstance(value, _PARTS):
                    self._members(value, contents.returned(value), prefix, found, seen)
            elif not is_library(type(value)):
                self._members(value, contents.slots(value), prefix, found, seen)

    def _members(
        self,
        value: Any,
        held: Mapping[str, Any] | None,
        prefix: str,
        found: dict[str, torch.Tensor],
        seen: set[int],
    ) -> None:
        """What a value of some other type holds, or that it could not be read.

        What else a library keeps behind the attributes of its own objects is its own affair.
        """
        if held is None:
            if not self.is_kept(prefix) and not self._aside:
                self.unread[prefix] = type(value).__name__
            return
        seen.add(id(value))
        inner = contents.is_librarys(value)
        if inner and self._aside:
            return
        self._alive.append(held)
        before, dot = self._aside, f"{prefix}." if prefix else ""
        self._aside = before or inner
        try:
            for name, one in held.items():
                self._attribute(one, prefix if name == contents.WHOLE else f"{dot}{name}", found, seen)
        finally:
            self._aside = before

    def _attribute(self, value: Any, name: str, found: dict[str, torch.Tensor], seen: set[int]) -> None:
        """What an object of the user holds; a generator there is its tool, and holds no number that is released."""
        if not isinstance(value, GENERATORS):
            self._flatten(value, name, found, seen)

    def _optimizer(self, optimizer: torch.optim.Optimizer, dot: str, found: dict[str, torch.Tensor]) -> None:
        """The state of each parameter, and the numbers of each group (a learning rate may follow the data)."""
        for number, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    found[f"{dot}{key} of group {number}"] = torch.tensor(float(value), dtype=torch.float64)
            for position, parameter in enumerate(group["params"]):
                name = self.names.get(id(parameter), f"parameter {position} of group {number}")
                for key, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor):
                        self._tensor(value, f"{dot}{key} of {name}", found)
                    elif isinstance(value, (int, float)) and not isinstance(value, bool):
                        found[f"{dot}{key} of {name}"] = torch.tensor(float(value), dtype=torch.float64)


def own(value: Any) -> bool:
    """Whether an object is of a class that the user wrote, whose attributes are its state; rows are none."""
    return (
        isinstance(getattr(value, "__dict__", None), dict)
        and not isinstance(value, (types.FunctionType, types.MethodType, types.ModuleType, type))
        and not isinstance(value, (torch.utils.data.Dataset, torch.utils.data.DataLoader))
        and not is_library(type(value))
    )


def _plain(name: str) -> str:
    """A parameter's name without the wrappers that private libraries and parallel training put around a module."""
    return name.removeprefix("_module.").removeprefix("module.")


def _numeric(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray, np.generic, int, float, complex)) or text.is_plain(value)


def _finite(value: float) -> float:
    """As a float; whole numbers beyond it are infinite."""
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _found(snapshot: Snapshot) -> list[Any]:
    """The modules and optimizers that a step's function holds, each once."""
    modules = list(snapshot.modules.values())
    inner = {id(part) for one in modules for part in one.modules() if part is not one}
    optimizers: dict[int, Any] = {}
    for one in snapshot.optimizers.values():
        optimizers.setdefault(id(one.state), one)
    return [*(one for one in modules if id(one) not in inner), *optimizers.values()]


def _parameter_names(roots: Any, prefix: str = "", seen: set[int] | None = None) -> dict[int, str]:
    """The name of each parameter that a module in ``roots`` has."""
    found: dict[int, str] = {}
    seen = set() if seen is None else seen
    if isinstance(roots, torch.nn.Module):
        dot = f"{prefix}." if prefix else ""
        for name, parameter in roots.named_parameters():
            found[id(parameter)] = f"{dot}{_plain(name)}"
    elif isinstance(roots, Mapping):
        for key, value in roots.items():
            found |= _parameter_names(value, f"{prefix}.{key}" if prefix else str(key), seen)
    elif isinstance(roots, (list, tuple)):
        for value in roots:
            found |= _parameter_names(value, prefix, seen)
    elif isinstance(roots, torch.Tensor) and prefix:
        found[id(roots)] = prefix
    elif own(roots) and not isinstance(roots, torch.optim.Optimizer) and id(roots) not in seen:
        seen.add(id(roots))
        for name, value in vars(roots).items():
            found = _parameter_names(value, f"{prefix}.{name}" if prefix else name, seen) | found
    return found
