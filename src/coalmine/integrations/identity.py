"""What a user's function and data are, as hashes: an edited function or other data never reuse old trials.

A function is known by the text of its module and of every other module of the user that this one imports (installed
packages count with their versions), by its name, and by the values it carries or reads: arguments bound with
:func:`functools.partial`, defaults, enclosing variables, and the module variables that it names.
"""

from __future__ import annotations

import ast
import copyreg
import dataclasses
import enum
import functools
import hashlib
import importlib.machinery
import importlib.util
import inspect
import platform
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.errors import InvalidInputError

_INTERACTIVE = "(typed in)"
_PLAIN = types.FunctionType


class NoContentError(InvalidInputError):
    """A value whose content cannot be hashed."""


def content_hash(value: Any) -> str:
    """SHA-256 of a value's content: numbers, text, arrays, tensors, tensor data sets, and containers of these.

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


def _parts(value: Any) -> Iterator[bytes]:
    """The value as a sequence of byte strings that no other value gives."""
    torch = sys.modules.get("torch")
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, Path)):
        yield f"{type(value).__name__} {value!r}".encode()
    elif isinstance(value, enum.Enum):
        yield f"enum {type(value).__qualname__} {value.name}".encode()
    elif isinstance(value, (np.ndarray, np.generic)):
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject:
            raise NoContentError("an array of Python objects has no content hash")
        yield f"array {array.dtype.str} {np.shape(value)}".encode()
        yield array.tobytes()
    elif torch is not None and isinstance(value, torch.Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif torch is not None and isinstance(value, torch.utils.data.TensorDataset):
        yield b"tensor data set"
        yield from _parts(value.tensors)
    elif torch is not None and isinstance(value, torch.utils.data.Subset):
        yield b"subset"
        yield from _parts(list(value.indices))
        yield from _parts(value.dataset)
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
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file).stem if file else _INTERACTIVE


def function_identity(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """All that decides what the function does, as plain JSON types."""
    check_function(name, function)
    inner: types.FunctionType = layers(function)[-1]
    texts = _texts(name, inner)
    values = _Values(name, texts)
    values.note("itself", function, must=True)
    return {
        "function": label(function),
        "code": content_hash(list(_code(inner.__code__))),  # two lambdas of one module have one name and one source
        "source": content_hash(dict(sorted(texts.sources.items()))),
        "values": content_hash(dict(sorted(values.found.items()))),
        "packages": dict(sorted(texts.packages.items())),
    }


@dataclasses.dataclass
class _Texts:
    """The user's modules behind a function (name → text), and the installed packages (name → version)."""

    sources: dict[str, str]
    packages: dict[str, str]

    def follow(self, owner: str, file: Path, package: str) -> None:
        """Add a module of the user's, and all that it imports."""
        waiting = [(owner, file, package)]
        seen: set[str] = set()
        while waiting:
            owner, file, package = waiting.pop()
            self.sources[owner] = text = file.read_text(encoding="utf-8")
            for imported in _imports(ast.parse(text), package):
                if imported in seen:
                    continue
                seen.add(imported)
                found = _own_file(imported)
                if isinstance(found, Path):
                    inside = imported if found.name == "__init__.py" else imported.rpartition(".")[0]
                    waiting.append((imported, found, inside))
                elif found is not None:
                    self.packages.update(_versions(found))


def _texts(name: str, function: types.FunctionType) -> _Texts:
    """Follow the imports from the function's module through all modules that are not installed packages."""
    path = inspect.getsourcefile(function)
    texts = _Texts({}, {})
    if path is None or not Path(path).is_file():
        texts.sources[_owner(function)] = _typed_in(name, function)
        return texts
    module = sys.modules.get(function.__module__)
    _check_current(name, function, Path(path), module)
    texts.follow(_owner(function), Path(path), getattr(module, "__package__", None) or "")
    return texts


def _typed_in(name: str, function: types.FunctionType) -> str:
    """The text of a function of a notebook."""
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


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Every module that a text may import, inside functions too, with the packages around it."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                around = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*around, base] if base else around)
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for one in names:
            parts = one.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1) if parts[0])


@functools.cache
def _installed() -> tuple[str, ...]:
    """Folders of installed packages and of Python itself."""
    return tuple({str(Path(path).resolve()) for key, path in sysconfig.get_paths().items() if "lib" in key})


def _own_file(module: str) -> Path | str | None:
    """The file of a user's module, the top-level name of an installed package, or None (no module, or Python's own)."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return None
    if top == "coalmine":
        return top
    loaded = sys.modules.get(module)
    origin = getattr(loaded, "__file__", None)
    if loaded is None:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, AttributeError, ValueError):
            return None
        origin = spec.origin if spec else None
    if not origin:
        return None
    path = Path(origin).resolve()
    if any(path.is_relative_to(folder) for folder in _installed()) or {"site-packages", "dist-packages"} & {
        *path.parts
    }:
        return top
    return path if path.suffix == ".py" else top


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _versions(top: str) -> dict[str, str]:
    """The versions of the distributions that a package comes from."""
    return {one: metadata.version(one) for one in sorted(set(_distributions().get(top, [])))}


class _Values:
    """The values that a function carries or reads: bound arguments, defaults, enclosing variables, module variables."""

    def __init__(self, name: str, texts: _Texts) -> None:
        self._name, self._texts = name, texts
        self._seen: set[int] = set()
        self.found: dict[str, str] = {}

    def note(self, where: str, value: Any, *, must: bool = False) -> None:
        """One value: a function of the user is followed, data is hashed, for anything else its module's text speaks."""
        below = layers(value)
        if isinstance(below[-1], types.FunctionType):
            for depth, layer in enumerate(below):
                if isinstance(layer, functools.partial):
                    self._bound(f"{where} arguments {depth}", layer, must=must)
                elif isinstance(layer, types.MethodType):
                    self._object(f"{where} object {depth}", layer.__self__, must=must)
                elif isinstance(layer, types.FunctionType):
                    self._function(layer, must=must and layer is below[-1])
        elif not isinstance(value, (types.ModuleType, types.BuiltinFunctionType, type)):
            try:
                self.found[where] = content_hash(value)
            except NoContentError as error:
                if must:
                    raise InvalidInputError(
                        f"{self._name} depends on a value that cannot be told from others ({where}: {error}): use "
                        "functions at the top of a module, with numbers, text or arrays bound by functools.partial"
                    ) from None

    def _bound(self, where: str, partial: functools.partial[Any], *, must: bool) -> None:
        """Bound arguments: functions among them are followed, all else is one content."""
        named = [*enumerate(partial.args), *sorted(partial.keywords.items())]
        functions = [key for key, value in named if isinstance(layers(value)[-1], types.FunctionType)]
        for key, value in named:
            if key in functions:
                inner: types.FunctionType = layers(value)[-1]
                behind = _texts(self._name, inner)
                self._texts.sources.update(behind.sources)
                self._texts.packages.update(behind.packages)
                self.found[f"{where} {key}"] = content_hash([label(value), *_code(inner.__code__)])
                self.note(f"{where} {key}", value, must=must)
        rest = {key: value for key, value in partial.keywords.items() if key not in functions}
        data = [value for key, value in enumerate(partial.args) if key not in functions]
        self.note(where, [tuple(data), dict(sorted(rest.items()))], must=must)

    def _object(self, where: str, value: Any, *, must: bool) -> None:
        """The object behind a method: its attributes, objects among them too, and the text of its class."""
        if isinstance(value, (types.ModuleType, type)) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if not _is_plain(value):
            self.note(where, value, must=must)
            return
        for kind in type(value).__mro__[:-1]:
            file = _own_file(kind.__module__)
            if isinstance(file, Path) and kind.__module__ not in (*self._texts.sources, "__main__"):
                self._texts.follow(kind.__module__, file, kind.__module__.rpartition(".")[0])
            for method in vars(kind).values():
                if isinstance(method, types.FunctionType):
                    self._function(method, must=False)
        self.found[f"{where} class"] = f"{type(value).__module__}.{type(value).__qualname__}"
        for key, item in sorted(vars(value).items()):
            inside = self._object if _is_plain(item) else self.note
            inside(f"{where} {key}", item, must=must)

    def _function(self, function: types.FunctionType, *, must: bool) -> None:
        """A function's values; those of its module's variables only where the module is the user's."""
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        where = f"{_owner(function)}:{function.__qualname__}"
        for index, default in enumerate(function.__defaults__ or ()):
            self.note(f"{where} default {index}", default, must=must)
        for key, default in sorted((function.__kwdefaults__ or {}).items()):
            self.note(f"{where} default {key}", default, must=must)
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.note(f"{where} enclosing {variable}", cell.cell_contents, must=must)
        if _owner(function) == _INTERACTIVE:
            self._texts.sources[where] = _typed_in(self._name, function)
        elif _owner(function) not in self._texts.sources:
            return
        names = _names(function.__code__)
        for variable in sorted(names & function.__globals__.keys()):
            value = function.__globals__[variable]
            if not isinstance(value, types.ModuleType):
                self.note(f"{_owner(function)}.{variable}", value)
            elif value.__name__ in self._texts.sources:
                for inner in sorted(names & vars(value).keys()):
                    self.note(f"{value.__name__}.{inner}", getattr(value, inner))


def _is_plain(value: Any) -> bool:
    """Whether all that an object is stands in its ``__dict__``: no slots, no state in C, no own way to be copied.

    >>> _is_plain(functools.partial(len)), _is_plain(np.arange(2)), _is_plain(_Texts({}, {}))
    (False, False, True)
    """
    kind: Any = type(value)
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        return False
    try:
        made, given, state, *rest = value.__reduce_ex__(2)
    except TypeError:
        return False
    whole = state is None or state == vars(value)
    return made is getattr(copyreg, "__newobj__", None) and given == (kind,) and whole and not any(rest)


def _code(code: types.CodeType) -> Iterator[Any]:
    """What a function's compiled code says, with that of the functions inside it."""
    yield platform.python_version()
    yield from (code.co_code, code.co_names, code.co_varnames, code.co_freevars)
    for constant in code.co_consts:
        yield list(_code(constant)) if isinstance(constant, types.CodeType) else repr(constant)


def _names(code: types.CodeType) -> set[str]:
    """Every name that a function and the functions inside it look up in its module."""
    found = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found |= _names(inner)
    return found
