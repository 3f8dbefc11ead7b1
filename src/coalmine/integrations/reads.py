"""Which files a training reads: one that its identity does not know could change, and old trials would be reused."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

from coalmine.integrations.sources import is_installed

_SYSTEM = ("/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sys", "/usr")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_lock = threading.Lock()
_watching = False
_hooked = False
_read: set[str] = set()
_written: set[str] = set()


@contextlib.contextmanager
def watched(known: Collection[Path]) -> Iterator[list[Path]]:
    """Note what is read inside: the list holds, afterwards, every file that is not in ``known`` (files and folders).

    Files that were written first, those of packages and of the system do not count. Seen is what Python opens; what a
    library opens in compiled code is not.
    """
    global _watching, _hooked
    with _lock:
        if not _hooked:
            sys.addaudithook(_note)  # there is no way to take it off again, so it is put in once
            _hooked = True
    found: list[Path] = []
    _read.clear()
    _watching = True
    try:
        yield found
    finally:
        _watching = False
        found += sorted(path for path in map(Path, _read) if not _is_known(path, known))


def _note(event: str, arguments: tuple[object, ...]) -> None:
    """Called by Python for everything that it audits."""
    if not _watching or event not in ("open", "sqlite3.connect"):
        return
    path = arguments[0]
    if not isinstance(path, (str, bytes, os.PathLike)):
        return  # a file that is open already
    name = os.path.abspath(os.fsdecode(path))
    flags = arguments[2] if event == "open" else 0
    if isinstance(flags, int) and flags & _WRITES:
        _written.add(name)
    elif name not in _written:
        _read.add(name)


def _is_known(path: Path, known: Collection[Path]) -> bool:
    """Whether a file is accounted for, or is none."""
    if not path.is_file() or str(path).startswith(tuple(f"{folder}/" for folder in _SYSTEM)):
        return True
    if any(folder.suffix in (".egg-info", ".dist-info") for folder in path.parents):
        return True  # what the installer wrote: read where a library looks for its plugins
    resolved = path.resolve()
    if path.suffix == ".pyc":
        resolved = resolved.parent.parent / f"{path.name.partition('.')[0]}.py"
    if any(resolved == one or resolved.is_relative_to(one) for one in known):
        return True
    ours = Path(__file__).resolve().parents[1]  # our own text is known by our version
    return is_installed(path) or any(resolved.is_relative_to(one) for one in (ours, Path(sys.prefix).resolve()))
