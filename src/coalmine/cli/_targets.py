"""What a command writes is none of what it reads: found out before anything is trained."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from coalmine import _validate
from coalmine.errors import InvalidInputError

Inputs = Mapping[str, Path | str | Iterable[Path | str] | None]
"""Files that a command reads, or will write by itself (a store), by what they are called in a message."""


def check_apart(outputs: Mapping[str, Path | None], inputs: Inputs) -> None:
    """Refuse an output that is one of the command's inputs, under whatever name, or another of its outputs.

    What else must not be overwritten is told by what it holds: :func:`coalmine.report.check_target`.
    """
    wanted = {name: path for name, path in outputs.items() if path is not None}
    read = [(what, one) for what, given in inputs.items() for path in _listed(given) for one in _with_logs(what, path)]
    for place, (name, path) in enumerate(wanted.items()):
        for what, one in read:
            if _same(path, one):
                raise InvalidInputError(
                    f"{name} = {_validate.shown(str(path))} is not allowed: that is {what}, which would be "
                    "overwritten: give another name"
                )
        for other, one in list(wanted.items())[:place]:
            if _same(path, one):
                raise InvalidInputError(
                    f"{name} = {_validate.shown(str(path))} is not allowed: {other} is written there: give another name"
                )


def modules() -> list[Path]:
    """The files of the modules that are loaded and are the user's own: what a training is made of."""
    from coalmine.game.machine import own_modules

    return [Path(str(one.__file__)) for one in own_modules()]


def _listed(given: Path | str | Iterable[Path | str] | None) -> list[Path]:
    if given is None:
        return []
    return [Path(given)] if isinstance(given, (str, Path)) else [Path(one) for one in given]


def _with_logs(what: str, path: Path) -> list[Path]:
    """A store has files beside it that belong to it."""
    if what != "the store":
        return [path]
    return [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))]


def _same(one: Path, other: Path) -> bool:
    """Whether two paths are one file, through links of any kind, or will be."""
    try:
        if os.path.samefile(one, other):
            return True
    except (OSError, ValueError):  # one of them is not there, or no file can have such a name
        pass
    try:
        return one.resolve() == other.resolve()
    except (OSError, RuntimeError, ValueError):
        return False
