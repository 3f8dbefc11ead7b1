"""Everything a step can change, copied once and put back in place before every run, bit for bit.

A state dict is not enough: private optimizers keep gradients, counters and clip norms in attributes. So the objects
themselves are followed, from what the user names as state and from what the step's function holds (its closure,
its bound object, the global names it reads). Containers keep their identity, tensors keep their storage, but for large
ones that nobody else holds (:class:`Lone`).
"""

from __future__ import annotations

import array
import collections
import enum
import functools
import io
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.probing import text
from coalmine.probing.own_code import data_of, is_dead, is_library, is_library_module, own_classes
from coalmine.probing.plain_tensors import kind_of

_ATOMS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    torch.dtype,
    torch.device,
    torch.Size,
    torch.layout,
    np.dtype,
)
# Rows are input and stay what they are: a data set is not copied, however the step can reach it.
_LEFT_ALONE = (torch.utils.data.Dataset, torch.autograd.graph.Node, enum.Enum)
_LEFT_ALONE_MODULES = {"logging", "threading", "_thread", "weakref", "typing", "re", "inspect", "abc"}
_HOLDS_NOTHING = (str, bytes, bool, int, float, complex, types.FunctionType, types.ModuleType, type)
_CANNOT_BE_COPIED = (types.GeneratorType, types.CoroutineType, io.IOBase)
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
CONSTRUCTORS: tuple[Any, ...] = (np.random.default_rng, np.random.RandomState, np.random.Generator, random.Random)
_STATE = (*_ATOMS, *GENERATORS, torch.Tensor, np.ndarray, set, frozenset, collections.deque)
_OBJECTS_AT_MOST = 500_000
_LARGE = 2**16
"""Bytes from which a tensor is worth a look at who holds it."""
_ONE_HOLDER = 2
"""A count of references where one holds it: the question itself holds it too."""


def check(state: Any, path: str = "state") -> None:
    """State that can be copied and put back, or an error that names what cannot."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            check(value, f"{path}[{key!r}]")
    elif isinstance(state, (list, tuple)):
        for position, value in enumerate(state):
            check(value, f"{path}[{position}]")
    elif path == "state" and isinstance(state, _HOLDS_NOTHING):
        raise InvalidInputError(
            f"{path} is of type {type(state).__name__}, which holds nothing that a step changes: expected modules, "
            "optimizers, objects with a state_dict, tensors, arrays, and lists or dicts of them"
        )
    elif not (isinstance(state, _STATE) or text.is_plain(state) or hasattr(state, "__dict__")) or (
        isinstance(state, _CANNOT_BE_COPIED)
    ):
        raise UnsupportedError(
            f"{path} is of type {type(state).__name__}, which cannot be copied and put back: expected modules, "
            "optimizers, objects with a state_dict, tensors, arrays, and lists or dicts of them"
        )


class Reference:
    """A place that holds a generator of NumPy or Python, or a method or constructor of one: the tape swaps it."""

    __slots__ = ("key", "owner", "value")

    def __init__(self, owner: Any, key: Any, value: Any) -> None:
        self.owner, self.key, self.value = owner, key, value

    def put(self, value: Any) -> None:
        """Let the place hold another value."""
        if isinstance(self.owner, types.CellType):
            self.owner.cell_contents = value
        else:
            self.owner[self.key] = value


class Snapshot:
    """A copy of all that is reachable from ``state`` and from ``step``."""

    def __init__(self, state: Any, step: Callable[..., Any]) -> None:
        self._seen: dict[int, Any] = {}  # keeps visited objects alive, so that no id is used twice
        self._restorers: list[Callable[[], None]] = []
        self.generators: list[Any] = []
        self.references: list[Reference] = []
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.copies: dict[int, torch.Tensor] = {}
        """What tensors were, by their id."""
        check(state)
        self._visit(state, "state")
        self._visit(step, getattr(step, "__name__", "step"))
        self._library_states = library_generators()
        self._generator_states = [state_of(one) for one in self.generators]

    def restore(self, *, generators: bool = True) -> None:
        """Put everything back; without ``generators`` random numbers go on from where they are."""
        with torch.no_grad():
            for put_back in self._restorers:
                put_back()
        if generators:
            for library, state in self._library_states:
                library(state)
            for one, state in zip(self.generators, self._generator_states, strict=True):
                _set_state(one, state)

    def _visit(self, value: Any, path: str) -> None:
        """Copy ``value`` and follow what it holds."""
        if (isinstance(value, _ATOMS) and not isinstance(value, type)) or id(value) in self._seen or is_dead(value):
            return
        self._seen[id(value)] = value
        if isinstance(value, type):
            self._classes(value)
            return
        if len(self._seen) > _OBJECTS_AT_MOST:
            raise UnsupportedError(
                f"{path}: the step can reach more than {_OBJECTS_AT_MOST} objects; hand over a function that holds "
                "only the model, the optimizer and what it needs"
            )
        if isinstance(value, GENERATORS):
            self.generators.append(value)
        elif isinstance(value, _LEFT_ALONE) or type(value).__module__.partition(".")[0] in _LEFT_ALONE_MODULES:
            return
        elif isinstance(value, torch.Tensor):
            self._tensor(value, path)
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif isinstance(value, (array.array, bytearray)):
            self._restorers.append(functools.partial(_put_buffer, value, value[:]))
        elif isinstance(value, (io.BytesIO, io.StringIO)):
            if not value.closed:
                self._restorers.append(functools.partial(_put_stream, value, value.getvalue(), value.tell()))
        elif isinstance(value, dict):
            self._dict(value, path)
        elif isinstance(value, (list, collections.deque)):
            self._restorers.append(functools.partial(_put_sequence, value, list(value)))
            if value and not isinstance(value[0], (int, float, str)):
                self._members(value, enumerate(value), path)
        elif isinstance(value, set):
            self._restorers.append(functools.partial(_put_set, value, set(value)))
            for member in value:
                self._visit(member, path)
        elif isinstance(value, (tuple, frozenset)):
            for position, member in enumerate(value):
                self._visit(member, f"{path}[{position}]")
        elif isinstance(value, Mapping):
            for key, member in value.items():
                self._visit(member, f"{path}[{key!r}]")
        else:
            self._object(value, path)

    def _object(self, value: Any, path: str) -> None:
        """Functions and instances of classes."""
        if isinstance(value, types.MethodType):
            self._visit(value.__self__, path)
            self._visit(value.__func__, path)
            return
        if isinstance(value, functools.partial):
            self._visit(value.func, path)
            self._visit(value.args, path)
            self._visit(value.keywords, path)
            return
        if isinstance(value, types.FunctionType):
            self._function(value, path)
            return
        if isinstance(value, torch.nn.Module):
            self.modules[path] = value
        if isinstance(value, torch.optim.Optimizer):
            self.optimizers[path] = value
        self._visit(type(value), path)
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._dict(attributes, path, dotted=True)
        saved = {name: getattr(value, name) for name in _slots(type(value)) if hasattr(value, name)}
        if saved:
            self._restorers.append(functools.partial(_put_attributes, value, saved))
            for name, member in saved.items():
                self._visit(member, f"{path}.{name}")
        call = type(value).__dict__.get("__call__")
        if isinstance(call, types.FunctionType) and not isinstance(value, torch.nn.Module):
            self._function(call, path)

    def _function(self, function: types.FunctionType, path: str) -> None:
        """What a function holds: its closure, its defaults and, if it is the user's own, the globals that it reads."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._cell(cell, name)
        self._visit(function.__defaults__, path)
        self._visit(function.__kwdefaults__, path)
        if is_library(function):
            return
        self._dict(function.__dict__, function.__name__, dotted=True)
        names = names_in(function.__code__)
        space = function.__globals__
        read = {name: space[name] for name in names if name in space}
        written = {name: value for name, value in read.items() if isinstance(value, (int, float, str, type(None)))}
        if written:
            self._restorers.append(functools.partial(_put_some, space, written))
        for name, value in read.items():
            if isinstance(value, types.ModuleType):
                self._read_from(value, name, names)
            elif not isinstance(value, types.FunctionType) or not is_library(value):
                self._refer(space, name, value)
                self._visit(value, name)

    def _read_from(self, module: types.ModuleType, path: str, names: set[str]) -> None:
        """What a function reads from a module: functions of the user and, from a module of the user's own, all else."""
        here = {name: vars(module)[name] for name in names if name in vars(module)}
        own = not is_library_module(module)
        if own:
            self._restorers.append(functools.partial(_put_some, vars(module), here))
        for name, member in here.items():
            functions = isinstance(member, types.FunctionType) and not is_library(member)
            if functions or (own and not isinstance(member, (types.FunctionType, types.ModuleType))):
                self._visit(member, f"{path}.{name}")

    def _classes(self, kind: type) -> None:
        """What classes of the user hold, and what their methods do."""
        for one in own_classes(kind):
            self._seen[id(one)] = one
            saved = data_of(one)
            self._restorers.append(functools.partial(_put_class, one, saved))
            for name, member in saved.items():
                self._visit(member, f"{one.__name__}.{name}")
            for member in list(vars(one).values()):
                function = getattr(member, "__func__", member)
                if isinstance(function, types.FunctionType):
                    self._visit(function, one.__name__)

    def _cell(self, cell: types.CellType, name: str) -> None:
        if id(cell) in self._seen:
            return
        self._seen[id(cell)] = cell
        try:
            value = cell.cell_contents
        except ValueError:  # not yet assigned
            return
        self._restorers.append(functools.partial(_put_cell, cell, value))
        if name != "__class__":  # through which a generator's own methods ask the class above theirs
            self._refer(cell, None, value)
        self._visit(value, name)

    def _refer(self, owner: Any, key: Any, value: Any) -> None:
        """Note a place that holds a generator, or something that makes or asks one, so that the tape can listen."""
        if isinstance(value, torch.nn.Module):
            return
        kinds = (np.random.Generator, np.random.RandomState, random.Random)
        if (
            isinstance(value, kinds)
            or any(value is one for one in CONSTRUCTORS)
            or isinstance(getattr(value, "__self__", None), kinds)
        ):
            self.references.append(Reference(owner, key, value))

    def _members(self, owner: Any, items: Iterable[tuple[Any, Any]], path: str, *, dotted: bool = False) -> None:
        for key, member in items:
            if isinstance(member, _ATOMS) and not isinstance(member, (types.BuiltinFunctionType, type)):
                continue
            self._refer(owner, key, member)
            self._visit(member, f"{path}.{key}" if dotted else f"{path}[{key!r}]")

    def _dict(self, value: dict[Any, Any], path: str, *, dotted: bool = False) -> None:
        self._seen[id(value)] = value
        saved = {key: Lone(value[key]) if held_once(value, key) else value[key] for key in value}
        self._restorers.append(functools.partial(_put_dict, value, saved))
        self._members(value, [(key, one) for key, one in saved.items() if type(one) is not Lone], path, dotted=dotted)

    def _tensor(self, value: torch.Tensor, path: str) -> None:
        alias = value.data
        copy = _each_once(alias).clone()
        self._restorers.append(functools.partial(_put_tensor, value, alias, copy))
        if kind_of(value) or copy.shape == value.shape:
            self.copies[id(value)] = copy
        if value.is_leaf:
            grad = value.grad
            self._restorers.append(functools.partial(_put_grad, value, grad, value.requires_grad))
            self._visit(grad, f"{path}.grad")
        if value.__dict__:
            self._dict(value.__dict__, path, dotted=True)
        else:
            self._restorers.append(functools.partial(_put_dict, value.__dict__, {}))

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        if value.flags.writeable:
            self._restorers.append(functools.partial(np.copyto, value, value.copy()))


def _slots(kind: type) -> list[str]:
    """The attributes of a class that live in slots."""
    found: list[str] = []
    for one in kind.__mro__:
        named = one.__dict__.get("__slots__", ())
        found += [named] if isinstance(named, str) else list(named)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def defaults(function: types.FunctionType) -> dict[str, Any]:
    """The defaults of a function's arguments, by name."""
    code, given = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
    return dict(zip(names, given, strict=True)) | (function.__kwdefaults__ or {})


def names_in(code: types.CodeType) -> set[str]:
    """The global names that a function reads, with those of the functions inside it."""
    inner = (names_in(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return set(code.co_names).union(*inner)


class Lone:
    """A copy of a large tensor that a single dict holds, such as the gradients of each row that a step leaves behind.

    Nobody can tell another tensor with the same numbers from it, so it is not kept: a step that replaces it frees it,
    and is given a new one when it starts again. That saves a third of the memory that a probe takes.
    """

    __slots__ = ("_attributes", "_copy", "_given")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._copy, self._attributes = tensor.clone(), dict(tensor.__dict__)
        self._given = weakref.ref(tensor)

    def put(self, holder: dict[Any, Any], key: Any) -> torch.Tensor:
        """The tensor as it was: the one that the dict holds, if it is still that, or a new one."""
        given: torch.Tensor | None = self._given()
        if given is not None and id(holder.get(key)) == id(given) and _plain_like(given, self._copy):
            given.copy_(self._copy)
        else:
            holder.pop(key, None)  # what the step left there goes before a new one comes
            given = self._copy.clone()
            self._given = weakref.ref(given)
        if given.__dict__ != self._attributes:
            given.__dict__.clear()
            given.__dict__.update(self._attributes)
        return given


def _plain_like(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    """Whether a tensor's numbers and plain attributes are all there is to put back to make it the copy again."""
    same = tensor.shape == copy.shape and tensor.stride() == copy.stride() and tensor.dtype == copy.dtype
    alone = tensor.is_leaf and not tensor.requires_grad and tensor.grad is None
    return same and alone and tensor.device == copy.device and all(isinstance(x, _ATOMS) for x in vars(tensor).values())


def held_once(holder: dict[Any, Any], key: Any) -> bool:
    """Whether a large plain tensor is in this dict and nowhere else: no name, view or graph holds it or its memory."""
    if type(holder[key]) is not torch.Tensor or sys.getrefcount(holder[key]) != _ONE_HOLDER:
        return False
    tensor: Any = holder[key]
    plain = not kind_of(tensor) and tensor.is_contiguous() and _plain_like(tensor, tensor)
    if not plain or tensor.nbytes < _LARGE:
        return False
    storage = tensor.untyped_storage()
    counts = getattr(tensor, "_use_count", None), getattr(torch._C, "_storage_Use_Count", None)
    if any(one is None for one in counts) or not storage.resizable() or storage.nbytes() != tensor.nbytes:
        return False
    return bool(tensor._use_count() == 1 and torch._C._storage_Use_Count(storage._cdata) == _ONE_HOLDER)


def _put_dict(target: dict[Any, Any], saved: dict[Any, Any]) -> None:
    """Only what has changed is touched; where the order of keys has changed, everything is."""
    saved = {key: old.put(target, key) if type(old) is Lone else old for key, old in saved.items()}
    if len(target) == len(saved):
        for (key, value), (old_key, old) in zip(target.items(), saved.items(), strict=True):
            if key is not old_key and (isinstance(key, torch.Tensor) or key != old_key):
                break
            if value is not old:
                break
        else:
            return
    target.clear()
    target.update(saved)


def _put_some(target: dict[str, Any], saved: dict[str, Any]) -> None:
    for name, value in saved.items():
        if target.get(name) is not value:
            target[name] = value


def _put_sequence(target: Any, saved: list[Any]) -> None:
    if len(target) != len(saved) or any(a is not b for a, b in zip(target, saved, strict=True)):
        target.clear()
        target.extend(saved)


def _put_buffer(target: Any, saved: Any) -> None:
    if target != saved:
        target[:] = saved


def _put_stream(target: Any, saved: Any, place: int) -> None:
    if not target.closed and target.getvalue() != saved:
        target.seek(0)
        target.truncate()
        target.write(saved)
    if not target.closed:
        target.seek(place)


def _put_set(target: set[Any], saved: set[Any]) -> None:
    if target != saved:
        target.clear()
        target.update(saved)


def _put_attributes(target: Any, saved: dict[str, Any]) -> None:
    for name, value in saved.items():
        if getattr(target, name, None) is not value:
            object.__setattr__(target, name, value)


def _put_class(target: type, saved: dict[str, Any]) -> None:
    for name in set(data_of(target)) - set(saved):
        delattr(target, name)
    for name, value in saved.items():
        if target.__dict__.get(name) is not value:
            setattr(target, name, value)


def _put_cell(cell: types.CellType, value: Any) -> None:
    cell.cell_contents = value


def _each_once(tensor: torch.Tensor) -> torch.Tensor:
    """A view of an expanded tensor that holds each of its numbers once: only such a one can be written."""
    for axis, step in enumerate(() if kind_of(tensor) else tensor.stride()):
        if step == 0:
            tensor = tensor.narrow(axis, 0, min(1, tensor.shape[axis]))
    return tensor


def _put_tensor(target: torch.Tensor, alias: torch.Tensor, copy: torch.Tensor) -> None:
    """``.data`` is written, so that graphs of the user that hold this tensor stay valid."""
    _each_once(alias).copy_(copy)
    # What is not one block of memory cannot be told from another by where it begins.
    if (
        kind_of(alias)
        or target.data_ptr() != alias.data_ptr()
        or target.shape != alias.shape
        or target.stride() != alias.stride()
    ):
        target.data = alias


def _put_grad(target: torch.Tensor, grad: torch.Tensor | None, requires_grad: bool) -> None:
    if target.grad is not grad:
        target.grad = grad
    if target.requires_grad != requires_grad:
        target.requires_grad_(requires_grad)


def library_generators() -> list[tuple[Callable[[Any], None], Any]]:
    """The generators that every program shares, each as what sets it and its present state."""
    found: list[tuple[Callable[[Any], None], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (np.random.set_state, np.random.get_state()),  # noqa: NPY002  # the user's code may use it
        (random.setstate, random.getstate()),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return found


def state_of(generator: Any) -> Any:
    """The state of a generator; None where it has none that can be had."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state()
    try:
        return generator.getstate()
    except NotImplementedError:  # the operating system's generator has none
        return None


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, (torch.Generator, np.random.RandomState)):
        generator.set_state(state)
    elif state is not None:
        generator.setstate(state)
