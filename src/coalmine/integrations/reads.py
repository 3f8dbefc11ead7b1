"""Which files a training reads: one that its identity does not know could change, and old trials would be reused; one
that an earlier training wrote makes trials depend on each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import sys
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from coalmine.integrations.sources import is_installed

_SYSTEM = ("/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sys", "/usr")
_SHARED_MEMORY = "/dev/shm/"
"""Files like any other, which trainings may leave there."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_EMPTIES = os.O_TRUNC | os.O_EXCL
_COARSE = 20_000_000
"""Clocks of file systems lag behind by so many nanoseconds at most."""
_lock = threading.Lock()
_hooked = False
_trial: _Trial | None = None
"""What is noted of the training that runs now."""
_written: set[str] = set()
"""What the trainings of this process have written."""
_last: dict[str, tuple[int, ...]] = {}
"""What compiled code has written for them, as far as it was read: as it was when the last of them ended."""


@dataclasses.dataclass
class Reads:
    """What a training has read.

    Attributes:
        left: files that an earlier training wrote, or that were changed since the game began.
        unknown: files that its identity does not know.
        made: files that it has made itself, or emptied first: nothing of before is in them.
    """

    left: list[Path] = dataclasses.field(default_factory=list)
    unknown: list[Path] = dataclasses.field(default_factory=list)
    made: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class _Trial:
    """One training while it runs: when it began, what it has made and written, and what it reads that was there before
    it, with the time of its last change.
    """

    began: int
    made: set[str]
    wrote: set[str] = dataclasses.field(default_factory=set)
    old: dict[str, int] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def watched(
    known: Collection[Path], *, named: Collection[Path] = (), since: int | None = None, made: Collection[str] = ()
) -> Iterator[Reads]:
    """Note what is read inside; complete when it ends.

    What it made itself, files of packages and of the system do not count. Seen is what Python opens; what a library
    opens in compiled code is not.

    Args:
        known: files and folders that may be read.
        named: those among them that the user named, which must not change during the game.
        since: when the game began, in nanoseconds of the clock.
        made: what was made for this training before: by the call that trained many.

    """
    global _trial, _hooked
    with _lock:
        if not _hooked:
            sys.addaudithook(_note)  # there is no way to take it off again, so it is put in once
            _hooked = True
    found = Reads()
    _trial = noted = _Trial(time.time_ns(), set(made))
    try:
        yield found
    finally:
        _trial = None
        found.made |= noted.made
        for name, last_change in sorted(noted.old.items()):
            path = Path(name)
            fine, changed = _is_known(path, known), since is not None and last_change > since
            compiled = path.suffix == ".pyc" and fine  # written when a module is imported for the first time
            if (name in _written and not compiled) or (changed and (not fine or _is_inside(path, named))):
                found.left.append(path)
            elif not fine:
                found.unknown.append(path)
        _written.update(noted.wrote)
        for name in (noted.made - noted.wrote) | _last.keys():
            if now := _state(name):
                _last[name] = now
            else:
                _last.pop(name, None)


def _note(event: str, arguments: tuple[object, ...]) -> None:
    """Called by Python for everything that it audits."""
    trial = _trial
    if trial is None or event not in ("open", "sqlite3.connect", "os.rename"):
        return
    path = arguments[1 if event == "os.rename" else 0]
    if not isinstance(path, (str, bytes, os.PathLike)):
        return  # a file that is open already
    name = os.path.realpath(os.fsdecode(path))
    if event == "os.rename":  # the file comes with what is in it: new only where that is
        source = arguments[0]
        moved = os.path.realpath(os.fsdecode(source)) if isinstance(source, (str, bytes, os.PathLike)) else ""
        trial.wrote.add(name)
        (trial.made.add if _is_new(moved, trial) else trial.made.discard)(name)
        return
    flags = arguments[2] if event == "open" else os.O_RDWR
    flags = flags if isinstance(flags, int) else 0
    there = _state(name)
    if there and not flags & _EMPTIES and flags & os.O_ACCMODE != os.O_WRONLY and not _is_new(name, trial):
        trial.old.setdefault(name, there[0])
    if flags & _WRITES:
        trial.wrote.add(name)
        if not there or flags & _EMPTIES:
            trial.made.add(name)


def _is_new(name: str, trial: _Trial) -> bool:
    """Whether all that is in a file is of this training. Compiled code may have written it, which is not seen: then it
    is not as the last training left it.
    """
    if name in trial.made:
        return True
    if name in _written or name in trial.wrote:
        return False
    now = _state(name)
    new = now != _last[name] if name in _last else bool(now) and now[0] >= trial.began - _COARSE
    if new:
        trial.made.add(name)
    return new


def _state(name: str) -> tuple[int, ...]:
    """What tells whether a file has been written since; nothing where there is no file."""
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino) if stat.S_ISREG(found.st_mode) else ()


def _is_inside(path: Path, folders: Collection[Path]) -> bool:
    return any(path == one or path.is_relative_to(one) for one in folders)


def _is_known(path: Path, known: Collection[Path]) -> bool:
    """Whether a file is accounted for."""
    if str(path).startswith(tuple(f"{folder}/" for folder in _SYSTEM)) and not str(path).startswith(_SHARED_MEMORY):
        return True
    if any(folder.suffix in (".egg-info", ".dist-info") for folder in path.parents):
        return True  # what the installer wrote: read where a library looks for its plugins
    resolved = path
    if path.suffix == ".pyc":
        resolved = path.parent.parent / f"{path.name.partition('.')[0]}.py"
    if _is_inside(resolved, known):
        return True
    ours = Path(__file__).resolve().parents[1]  # our own text is known by our version
    return is_installed(path) or _is_inside(resolved, (ours, Path(sys.prefix).resolve()))
