"""The text behind a function: the modules of the user that it reaches, the packages they stand on, and what they read
from the environment.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from coalmine.errors import InvalidInputError
from coalmine.integrations.content import file_hash

_DEVELOPMENT = {"dev", "doc", "docs", "lint", "quality", "release", "test", "testing", "tests", "typing", "types"}
"""Words in the names of extras that are for those who write a package."""
_OUR_OWN = {"train", "fast"}
"""Our own extras that a score may go through unseen; who uses another one imports its library."""
_ENVIRONMENT = ("environ", "environb")


@dataclasses.dataclass
class Texts:
    """The user's modules behind a function, and what they stand on.

    Attributes:
        name: what the function is called in messages.
        named: the parts of ``depends_on`` by name.
        sources: module → its text as a syntax tree (comments and layout say nothing), or the hash of a compiled file.
        files: the files of these modules.
        packages: installed distributions behind them → version; those that these require too.
        environment: the variables that the texts read → their values.
    """

    name: str
    named: Collection[str] = ()
    sources: dict[str, str] = dataclasses.field(default_factory=dict)
    files: set[Path] = dataclasses.field(default_factory=set)
    packages: dict[str, str] = dataclasses.field(default_factory=dict)
    environment: dict[str, str | None] = dataclasses.field(default_factory=dict)

    def follow(self, owner: str, file: Path, package: str) -> None:
        """Add a module of the user's, and all that it imports."""
        waiting = [(owner, file, package)]
        while waiting:
            owner, file, package = waiting.pop()
            if owner in self.sources:
                continue
            self.files.add(file.resolve())
            if file.suffix != ".py":
                self.sources[owner] = file_hash(file)
                continue
            tree = ast.parse(file.read_text(encoding="utf-8"))
            self.sources[owner] = ast.dump(tree)
            self._read_environment(tree, file)
            for imported in self._imports(tree, package, file):
                found = own_file(imported)
                if isinstance(found, Path):
                    inside = imported if found.name == "__init__.py" else imported.rpartition(".")[0]
                    waiting.append((imported, found, inside))
                elif found is not None:
                    self.packages.update(_versions(found))

    def _imports(self, tree: ast.Module, package: str, file: Path) -> Iterator[str]:
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
            elif isinstance(node, ast.Call) and _last_name(node.func) in ("import_module", "__import__"):
                names = [self._constant(node.args[:1], "imports", "imports a module by a name that is computed", file)]
            for one in names:
                parts = one.split(".")
                yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1) if parts[0])

    def _read_environment(self, tree: ast.Module, file: Path) -> None:
        """The variables that a text reads by ``os.environ[...]``, ``os.environ.get(...)`` and ``os.getenv(...)``; as
        bytes too (``os.environb``).
        """
        inside: set[ast.AST] = set()
        for node in ast.walk(tree):
            key: list[ast.expr] | None = None
            if isinstance(node, ast.Subscript) and _last_name(node.value) in _ENVIRONMENT:
                inside.add(node.value)
                key = [node.slice] if isinstance(node.ctx, ast.Load) else None
            elif isinstance(node, ast.Call) and _last_name(node.func) in ("getenv", "getenvb"):
                key = node.args[:1]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if _last_name(node.func.value) in _ENVIRONMENT and node.func.attr in ("get", "setdefault", "pop"):
                    inside.add(node.func.value)
                    key = node.args[:1]
            elif (
                isinstance(node, (ast.Name, ast.Attribute)) and _last_name(node) in _ENVIRONMENT and node not in inside
            ):
                key = []
            if key is not None:
                words = "reads the environment by a name that is computed"
                variable = self._constant(key, "environment", words, file)
                if variable:
                    self.environment[variable] = os.environ.get(variable)

    def _constant(self, arguments: list[ast.expr], part: str, words: str, file: Path) -> str:
        """A text that stands in the source; another one must be named."""
        if arguments and isinstance(arguments[0], ast.Constant) and isinstance(arguments[0].value, (str, bytes)):
            return os.fsdecode(arguments[0].value)
        if part in self.named:
            return ""
        raise InvalidInputError(
            f"{self.name} cannot be told from others: {file.name} {words}; name what decides it, "
            f"depends_on={{{part!r}: ...}}"
        )


def _last_name(node: ast.expr) -> str:
    """``environ`` of ``os.environ`` and of ``environ``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@functools.cache
def installed_folders() -> tuple[Path, ...]:
    """Folders of installed packages and of Python itself."""
    return tuple({Path(path).resolve() for key, path in sysconfig.get_paths().items() if "lib" in key})


def is_installed(path: Path) -> bool:
    """Whether a file belongs to a package or to Python."""
    resolved = path.resolve()
    return any(resolved.is_relative_to(folder) for folder in installed_folders()) or bool(
        {"site-packages", "dist-packages"} & {*resolved.parts}
    )


def own_file(module: str) -> Path | str | None:
    """The file of a user's module, the top-level name of an installed package, or None (no module, or Python's own)."""
    top = module.partition(".")[0]
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
    if not origin or not Path(origin).is_file():  # a part of Python itself, or of a namespace
        return None
    path = Path(origin).resolve()
    if not is_installed(path):
        return path
    return None if top in sys.stdlib_module_names else top


def is_own(module: str) -> bool:
    """Whether a module is the user's: neither installed nor Python's nor ours. One that is nowhere is the user's."""
    if module == "__main__":
        return True
    found = own_file(module)
    if found is not None:
        return isinstance(found, Path)
    top = module.partition(".")[0]
    return top not in sys.stdlib_module_names and not isinstance(own_file(top), str)


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


@functools.cache
def _versions(top: str) -> dict[str, str]:
    """The versions of the distributions that a package comes from, and of all that these require and find.

    Of the package itself optional ones count too, because it may compute with them (transformers with torch). Of those
    behind it they do not: somewhere there every linter is an option.
    """
    found: dict[str, str] = {}
    of_itself = sorted(set(_distributions().get(top, [])))
    waiting = [*of_itself]
    for name in waiting:  # it grows
        known = re.sub(r"[-_.]+", "-", name).lower()
        distribution = None if known in found else _distribution(known)
        if distribution is None:
            continue
        found[known] = distribution.version
        for requirement in distribution.requires or []:
            extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", requirement)
            if extra is None or (name in of_itself and _computes(known, extra[1])):
                waiting.append(re.match(r"[\w.-]+", requirement)[0])  # type: ignore[index]
    return found


def _computes(name: str, extra: str) -> bool:
    """Whether a score may go through what an extra brings."""
    return extra in _OUR_OWN if name == "coalmine" else not _DEVELOPMENT & {*re.split("[-_]", extra)}


def _distribution(name: str) -> Any:
    """An installed distribution, or None. Not one that lies within a package: Ray puts its own copies on the path."""
    path = [folder for folder in sys.path if not {"site-packages", "dist-packages"} & {*Path(folder).parts[:-1]}]
    return next(iter(metadata.distributions(name=name, path=path)), None)


def global_settings(packages: Collection[str]) -> dict[str, str]:
    """Python, and switches of the libraries that change what the same text computes, where they are not as usual."""
    found = {"python": platform.python_version()}
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if "torch" in packages and torch is not None and torch.get_default_dtype() != torch.float32:
        found["torch default type"] = str(torch.get_default_dtype())
    if "jax" in packages and jax is not None:
        usual = {"jax_enable_x64": False, "jax_default_prng_impl": "threefry2x32", "jax_default_matmul_precision": None}
        found |= {key: str(value) for key in usual if (value := getattr(jax.config, key)) != usual[key]}
    return found
