"""What this machine and this installation are, where that may shape a score: versions, code, instruction set."""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
import sysconfig
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType

import coalmine

_PACKAGES = ("numpy", "scipy", "torch", "dp-accounting", "numba")
_SETS = ("avx512f", "avx2", "avx", "sve", "asimd")
"""Flags of a processor that choose other code in numerical libraries, the strongest first."""


def versions() -> dict[str, str]:
    """What computes a result; packages that are not installed are left out."""
    return {"coalmine": coalmine.__version__, "python": platform.python_version(), **_installed()}


@functools.cache
def _installed() -> Mapping[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def code() -> str:
    """A hash of Coalmine's own source: two machines may have one version and yet not one text."""
    digest = hashlib.sha256()
    root = Path(coalmine.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def own_modules() -> list[ModuleType]:
    """The loaded modules that are neither installed packages nor Python's own: other machines may not have them.

    Each once, though a module may be loaded under several names. A folder that pip has installed into
    (``pip install --target``) holds installed packages.
    """
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    found: dict[str, ModuleType] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or not file or module.__name__.partition(".")[0] in _NEVER_SENT:
            continue
        path = Path(file).resolve()
        if {"site-packages", "dist-packages"} & {*path.parts} or installed & {*path.parents}:
            continue
        above = module.__name__.count(".") + (path.stem == "__init__")
        if above < len(path.parents) and not _installed_into(path.parents[above]):
            found[module.__name__] = module
    return list(found.values())


_NEVER_SENT = ("coalmine", "__main__")


@functools.cache
def _installed_into(folder: Path) -> bool:
    return any(folder.glob("*.dist-info"))


@functools.cache
def instruction_set() -> str:
    """The processor's kind and the strongest instruction set that numerical libraries choose their code by.

    Another instruction set adds in another order and gives other bits.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine() or "unknown"
    flags = {word for line in lines if line.lower().startswith(("flags", "features")) for word in line.split()}
    return next((f"{platform.machine()} {name}" for name in _SETS if name in flags), platform.machine())
