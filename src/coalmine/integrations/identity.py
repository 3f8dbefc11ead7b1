"""What a user's function is, as hashes: an edited function, or another value that it reads, never reuse old trials.

A function is known by the text of its module and of every other module of the user that this one imports, by the
versions of the packages behind them, and by every value that it can reach: bound arguments, defaults, enclosing
variables, module variables, the attributes of objects and classes among these, and the functions that they lead to.
What cannot be followed is refused, unless the user names it.
"""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import datetime
import decimal
import dis
import enum
import fractions
import functools
import importlib.machinery
import inspect
import logging
import re
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.errors import InvalidInputError
from coalmine.integrations.caches import CACHED, entry_name, is_own_cache, kept_results
from coalmine.integrations.content import SCALARS, NoContentError, content_hash, file_hash
from coalmine.integrations.sources import Texts, global_settings, is_own, own_file

_INTERACTIVE = "(typed in)"
_PLAIN = types.FunctionType
_SHOWN = (re.Pattern, range, slice, np.dtype, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal,
          fractions.Fraction, types.GenericAlias, types.UnionType, types.EllipsisType, typing.TypeVar)  # fmt: skip
"""What ``repr`` tells all of."""
_SILENT = (logging.Logger, logging.LoggerAdapter, type(threading.Lock()), type(threading.RLock()))
"""What no result depends on."""

main_name: str | None = None
"""In a worker: what the parent's ``__main__`` is called, because functions of it come without their module."""
main_file: Path | None = None
"""In a worker: the parent's script, because ``__main__`` is another one here."""


def layers(function: Any) -> list[Any]:
    """The object itself, and what is below it, the plain function last: under :func:`functools.partial` and decorators,
    behind a bound method, or behind an object that can be called.
    """
    found = [function]
    while True:
        last = found[-1]
        if isinstance(last, functools.partial):
            found.append(last.func)
        elif hasattr(last, "__wrapped__"):
            found.append(last.__wrapped__)
        elif isinstance(last, types.MethodType):
            found.append(last.__func__)
        elif not isinstance(last, (type, _PLAIN)) and isinstance(vars(type(last)).get("__call__"), _PLAIN):
            found.append(last.__call__)
        else:
            return found


def check_function(name: str, function: object) -> None:
    """Only what ends in a plain function has a source: functions, methods, objects with ``__call__``."""
    if not isinstance(layers(function)[-1], types.FunctionType):
        raise InvalidInputError(
            f"{name} = {function!r} is not allowed: expected a function (functools.partial binds its arguments)"
        )


def label(function: Callable[..., Any]) -> str:
    """``module:function``, the way the command line names it, with what is bound; a script has its file's name."""
    inner = layers(function)[-1]
    bound = [one for one in layers(function) if isinstance(one, functools.partial)]
    words = [_short(value) for one in bound for value in one.args]
    words += [f"{key}={_short(value)}" for one in bound for key, value in one.keywords.items()]
    return f"{_owner(inner)}:{inner.__qualname__}" + (f"({', '.join(words)})" if words else "")


def _short(value: object) -> str:
    """A bound argument for people."""
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else f"<{type(value).__name__}>"


def _owner(function: types.FunctionType) -> str:
    """The name of the module whose text holds the function."""
    module = str(function.__globals__.get("__name__", _INTERACTIVE))
    if module != "__main__":
        return module
    return main_name or name_of_main()


def name_of_main() -> str:
    """The name of the script that runs."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file).stem if file else _INTERACTIVE


def file_of_main() -> Path | None:
    """The script that runs, if it is a file of the user's."""
    file = own_file("__main__") if main_name is None else main_file
    return file if isinstance(file, Path) and file.is_file() else None


def named_parts(depends_on: Mapping[str, Any] | None) -> dict[str, str]:
    """What the user names as deciding a training, as hashes; a path stands for the content of its file or folder."""
    return {
        str(name): file_hash(value) if isinstance(value, Path) else content_hash(value)
        for name, value in (depends_on or {}).items()
    }


@dataclasses.dataclass(frozen=True)
class Followed:
    """A function's identity in plain JSON types, the values behind it by their places, the files it covers, and the
    environment variables that it reads. ``cached`` are the results that cached functions keep, where they were asked
    for, and ``held`` what these are kept under. They are no part of the identity: a worker begins without them.
    """

    identity: dict[str, Any]
    values: dict[str, str]
    files: set[Path]
    environment: frozenset[str] = frozenset()
    cached: dict[str, str] = dataclasses.field(default_factory=dict)
    held: list[Any] = dataclasses.field(default_factory=list)


def followed(
    name: str, function: Callable[..., Any], *, depends_on: Mapping[str, Any] | None = None, caches: bool = False
) -> Followed:
    """Follow a function to all that decides what it does; with ``caches`` to what cached functions keep as well."""
    check_function(name, function)
    texts = Texts(name, named=tuple(depends_on or ()))
    values = _Values(texts)
    values.follow("itself", function)
    found = {
        "function": label(function),
        "source": content_hash(dict(sorted(texts.sources.items()))),
        "typed in": content_hash(dict(sorted(values.typed_in.items()))),
        "values": content_hash(dict(sorted(values.found.items()))),
        "packages": dict(sorted(texts.packages.items())),
        "environment": content_hash(dict(sorted(texts.environment.items()))),
        "settings": global_settings(texts.packages),
    }
    cached, held = values.cached() if caches else ({}, [])
    return Followed(found, values.found, texts.files, frozenset(texts.environment), cached, held)


class _Values:
    """Every value that a function can reach, as hashes by the place where it was found.

    With ``data_only`` functions and classes are known by their names, and not followed to what they read.
    """

    def __init__(self, texts: Texts, *, data_only: bool = False) -> None:
        self._texts = texts
        self._data_only = data_only
        self._caches: dict[str, Any] = {}
        self._seen: dict[int, tuple[int, Any]] = {}  # the value is held, so that its number stays its own
        self._read: set[tuple[str, str]] = set()
        self._set: dict[str, types.FunctionType] = {}
        self.found: dict[str, str] = {}
        self.typed_in: dict[str, str] = {}

    def follow(self, where: str, value: Any) -> None:
        """One value: data is hashed, functions, classes and objects are followed, anything else is refused."""
        if where in self._texts.named:
            return
        if isinstance(value, SCALARS):
            self.found[where] = content_hash(value)
            return
        if isinstance(value, (tuple, frozenset)):
            self._container(where, value)  # equal ones may be one in this process and two in another
            return
        if id(value) in self._seen:
            self.found[where] = f"value {self._seen[id(value)][0]}"
            return
        self._seen[id(value)] = len(self._seen), value
        below = layers(value)
        if isinstance(below[-1], _PLAIN):
            self._callable(where, below)
        elif isinstance(value, type):
            self._class(where, value)
        elif isinstance(value, types.ModuleType):
            self.found[where] = f"module {value.__name__}"
        elif isinstance(value, _SILENT):
            self.found[where] = type(value).__name__
        elif isinstance(value, _SHOWN) or type(value).__module__ == "typing" or _is_torch_word(value):
            self.found[where] = repr(value)
        elif isinstance(value, (Mapping, list, set)):
            self._container(where, value)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType, np.ufunc)) or _is_cython(value):
            self._built_in(where, value)
        else:
            self._object(where, value)

    def cached(self) -> tuple[dict[str, str], list[Any]]:
        """What cached functions keep, by the place of each and what it is kept under; and these keys themselves."""
        found, held = {}, []
        for where, function in self._caches.items():
            for key, result in [] if where in self._texts.named else kept_results(function):
                one = _Values(self._texts, data_only=True)
                with contextlib.suppress(InvalidInputError):  # a result without a content cannot be compared
                    one.follow("it", result)
                    found[f"{where} [{entry_name(key)}]"] = content_hash(dict(sorted(one.found.items())))
                    held.append(key)
        return found, held

    def _callable(self, where: str, below: list[Any]) -> None:
        """A function, with all that is bound to it on the way."""
        self.found[where] = label(below[0])
        for depth, layer in enumerate(below):
            if isinstance(layer, CACHED) and is_own_cache(layer, own=is_own(str(below[-1].__module__))):
                self._caches[f"{where} cached"] = layer
            if isinstance(layer, functools.partial):
                for key, value in [*enumerate(layer.args), *sorted(layer.keywords.items())]:
                    self.follow(f"{where} argument {depth} {key}", value)
            elif isinstance(layer, types.MethodType):
                # An object that can be called is behind its own method.
                inside = self._object if layer.__self__ is below[0] else self.follow
                inside(f"{where} object {depth}", layer.__self__)
            elif isinstance(layer, _PLAIN):
                self._function(f"{where} {depth}", layer, wrapper=layer is not below[-1])
            elif hasattr(layer, "__wrapped__") and (state := _state(layer)) is not None:
                self.follow(f"{where} class {depth}", type(layer))
                for key, value in sorted(state.items()):
                    if key != "__wrapped__":
                        self.follow(f"{where} {depth}.{key}", value)

    def _function(self, where: str, function: types.FunctionType, *, wrapper: bool = False) -> None:
        """A function's code and values; those of its module's variables only where the module is the user's."""
        own = is_own(str(function.__globals__.get("__name__", "")))
        if not own and wrapper:
            return  # a decorator of a package, which the text of the user's module shows
        carried = [(f"default {index}", value) for index, value in enumerate(function.__defaults__ or ())]
        carried += [(f"default {key}", value) for key, value in sorted((function.__kwdefaults__ or {}).items())]
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                carried.append((f"enclosing {variable}", cell.cell_contents))
            except ValueError:  # not set yet
                carried.append((f"enclosing {variable}", None))
        for key, value in carried:
            self.follow(f"{where} {key}", value)
        if own and not self._data_only:
            self._set_on(where, function)
            self.found[f"{where} code"] = content_hash(list(_code(function.__code__)))
            self._text(where, function)
            self._variables(function.__globals__, _owner(function), *_names(function.__code__))

    def _set_on(self, where: str, function: types.FunctionType) -> None:
        """What was set on a function, as in ``train.model = …``; what begins with ``__`` are notes of decorators."""
        for key, value in sorted(vars(function).items()):
            place = f"{_owner(function)}.{function.__qualname__}.{key}"
            if not key.startswith("__"):
                other = self._set.setdefault(place, function) is not function  # an inner function, made twice
                self.follow(f"{where} attribute {key}" if other else place, value)

    def _text(self, where: str, function: types.FunctionType) -> None:
        """The text of the module that a function stands in."""
        path = inspect.getsourcefile(function)
        if path is None or not Path(path).is_file():
            self.typed_in[where] = _typed_in(self._texts.name, function)
        elif _owner(function) not in self._texts.sources:
            _check_current(self._texts.name, function, Path(path), sys.modules.get(function.__module__))
            self._texts.follow(_owner(function), Path(path), function.__globals__.get("__package__") or "")

    def _variables(self, space: Mapping[str, Any], owner: str, names: set[str], inside: set[str]) -> None:
        """The variables of a module that are named, and of the modules among them those that ``inside`` names."""
        for variable in sorted(name for name in names & space.keys() if not name.startswith("__")):
            value = space[variable]
            if isinstance(value, types.ModuleType):
                self._module(value, inside)
            elif (owner, variable) not in self._read:
                self._read.add((owner, variable))
                self.follow(f"{owner}.{variable}", value)

    def _module(self, module: types.ModuleType, names: set[str]) -> None:
        """A module that a function names: the user's by its variables, a package by what the user has put into it."""
        if is_own(module.__name__):
            asked = ("", f"{module.__name__} {sorted(names)}")
            if asked not in self._read:
                self._read.add(asked)
                self._variables(vars(module), module.__name__, names, names)
            return
        if module is sys and "argv" in names:
            self.found["sys.argv"] = content_hash(sys.argv[1:])
        for name in sorted(names & vars(module).keys()):
            value = vars(module)[name]
            if isinstance(value, _PLAIN) and is_own(value.__module__):
                self.follow(f"{module.__name__}.{name}", value)

    def _class(self, where: str, kind: type) -> None:
        """A class of the user's by its attributes and methods and those of its bases; others by their name."""
        self.found[where] = f"{kind.__module__}.{kind.__qualname__}"
        if self._data_only:
            return
        if issubclass(kind, enum.Enum):
            self.found[where] += content_hash({one.name: repr(one.value) for one in kind})
            return
        for base in kind.__mro__[:-1]:
            if not is_own(base.__module__):
                self.found[f"{where} {base.__qualname__}"] = base.__module__
                continue
            file = file_of_main() if base.__module__ == "__main__" else own_file(base.__module__)
            if isinstance(file, Path):
                self._texts.follow(base.__module__, file, base.__module__.rpartition(".")[0])
            for key, item in sorted(vars(base).items()):
                self._attribute(f"{where} {base.__qualname__}.{key}", key, item)

    def _attribute(self, where: str, key: str, item: Any) -> None:
        """One attribute of a class."""
        inner = [item]
        if isinstance(item, (staticmethod, classmethod)):
            inner = [item.__func__]
        elif isinstance(item, property):
            inner = [one for one in (item.fget, item.fset, item.fdel) if one is not None]
        elif isinstance(item, functools.cached_property):
            inner = [item.func]
        for one in inner:
            if isinstance(one, CACHED):
                self._caches[f"{where} cached"] = one
            if isinstance(one, _PLAIN):
                made = one.__code__.co_filename == "<string>" or not is_own(str(one.__globals__.get("__name__")))
                if not (made and key.startswith("__")):  # those of a dataclass follow from its fields
                    self._function(where, one)
            elif hasattr(type(one), "__get__") and not is_own(type(one).__module__):
                self.found[where] = type(one).__name__  # a slot, a field of a named tuple
            elif not key.startswith(("__", "_abc_")):
                self.follow(where, one)

    def _container(self, where: str, value: Any) -> None:
        """A list, tuple, mapping or set, item by item."""
        self.found[where] = f"{type(value).__name__} {len(value)}"
        items = list(value.items()) if isinstance(value, Mapping) else list(enumerate(value))
        if isinstance(value, (set, frozenset)) or all(isinstance(one, SCALARS) for pair in items for one in pair):
            self.found[where] += self._content(where, value)
        else:
            for number, (key, item) in enumerate(items):
                self.follow(f"{where} [{number}] key", key)
                self.follow(f"{where} [{number}]", item)
        if is_own(type(value).__module__):
            self.follow(f"{where} class", type(value))
        for key, item in sorted(getattr(value, "__dict__", {}).items()):
            self.follow(f"{where}.{key}", item)

    def _built_in(self, where: str, value: Any) -> None:
        """A function of Python or of a compiled package."""
        module = getattr(value, "__module__", None)
        self.found[where] = f"{module}.{getattr(value, '__qualname__', value.__name__)}"
        holder = getattr(value, "__self__", None)
        if holder is not None and not isinstance(holder, types.ModuleType):
            self.follow(f"{where} object", holder)

    def _object(self, where: str, value: Any) -> None:
        """Data by its content; another object by its class and its attributes."""
        if not dataclasses.is_dataclass(value):  # whose class may be the user's
            with contextlib.suppress(NoContentError):
                self.found[where] = content_hash(value)
                return
        state = _state(value)
        if state is None:
            self.found[where] = self._content(where, value)
            return
        self.follow(f"{where} class", type(value))
        for key, item in sorted(state.items()):
            self.follow(f"{where}.{key}", item)

    def _content(self, where: str, value: Any) -> str:
        try:
            return content_hash(value)
        except NoContentError as error:
            raise InvalidInputError(
                f"{self._texts.name} depends on a value that cannot be told from others ({where}: {error}): use "
                "functions at the top of a module, with numbers, text or arrays bound by functools.partial, or name "
                f"what decides it, depends_on={{{where!r}: ...}}"
            ) from None


def _is_cython(value: Any) -> bool:
    """A function that Cython has compiled, such as ``numpy.random.default_rng``."""
    return type(value).__name__ == "cython_function_or_method" and not is_own(value.__module__)


def _is_torch_word(value: Any) -> bool:
    """Types, devices and layouts of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, (torch.dtype, torch.device, torch.layout))


def _state(value: Any) -> dict[str, Any] | None:
    """The attributes of an object, if they are all that it is: no state in C, no own way to be copied.

    >>> _state(functools.partial(len)), _state(np.arange(2)), _state(Texts("train"))["name"]
    (None, None, 'train')
    """
    kind: Any = type(value)
    if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        return None
    try:
        made, given, state, *rest = value.__reduce_ex__(2)
    except Exception:  # noqa: BLE001  a user's object may raise anything
        return None
    if made is not getattr(copyreg, "__newobj__", None) or given != (kind,) or any(rest):
        return None
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if not all(isinstance(one, (dict, types.NoneType)) for one in parts):
        return None
    # An object of a package may keep more than Python can see; one with attributes keeps it there.
    if not hasattr(value, "__dict__") and parts[1] is None and not is_own(kind.__module__):
        return None
    return {str(key): item for one in parts for key, item in (one or {}).items()}


def _typed_in(name: str, function: types.FunctionType) -> str:
    """The text of a function of a notebook."""
    if main_name is not None:
        return ""  # a worker has been given the code itself, and has no text
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        raise InvalidInputError(
            f"{name} = {function.__qualname__} has no source text that can be read, so its trials could not be told "
            "from those of another function: put it into a file and import it"
        ) from None


def _check_current(name: str, function: types.FunctionType, path: Path, module: types.ModuleType | None) -> None:
    """Refuse a function whose file was edited after it was imported: the text would not be what is run."""
    if type(getattr(module, "__loader__", None)) is not importlib.machinery.SourceFileLoader:
        return
    waiting = [compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        if code == function.__code__:
            return
        waiting += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    raise InvalidInputError(
        f"{name} = {label(function)} is not what its file says: {path.name} was edited after it was imported; "
        "start Python anew, or reload the module"
    )


def _code(code: types.CodeType) -> Iterator[Any]:
    """What a function's compiled code says, with that of the functions inside it."""
    yield from (code.co_code, code.co_names, code.co_varnames, code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield list(_code(constant))
        else:  # the items of a set have no order, and another one in each process
            yield content_hash(constant) if isinstance(constant, frozenset) else repr(constant)


def _names(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Every name that a function and the functions inside it look up: in its module, and anywhere; by a text too."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    mine = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    anywhere = set(code.co_names)
    texts = {one for one in code.co_consts if isinstance(one, str) and one.isidentifier()}
    if "globals" in mine:
        mine |= texts
    if {"globals", "getattr", "vars", "__dict__"} & anywhere:
        anywhere |= texts
    for one in inner:
        theirs, others = _names(one)
        mine, anywhere = mine | theirs, anywhere | others
    return mine, anywhere
