"""Where something is written: found out before any work is done, and nothing is lost that was not written here.

A file that is there is replaced only by one of its own kind. A store, a program, a config or somebody's scores in its
place are somebody's work, and one wrong word on a command line must not end it.
"""

from __future__ import annotations

import os
from pathlib import Path

from coalmine import _validate
from coalmine.errors import InvalidInputError

_FIRST = 4096
"""Bytes by which a file's kind is told."""
_SECTION = b'"kind": "one_run"'


def check_target(path: str | os.PathLike[str], *, name: str = "report", kind: str = "report") -> Path:
    """The path of what ``name`` says that can be written, tested before any work is done.

    A file that is there must be empty, or of the ``kind`` that replaces it: report, figure, section or bundle.
    """
    target = Path(path)
    try:
        if target.is_dir():
            raise _validate.reject(name, str(target), "the name of a file; this is a folder")
        if not target.parent.is_dir():
            raise _validate.reject(name, str(target), f"a folder that is there; {str(target.parent)!r} is not")
        there = target.exists()
        if there and not target.is_file():
            raise _validate.reject(name, str(target), "the name of a file; this is a device or a pipe")
        if not os.access(target if there else target.parent, os.W_OK):
            raise _validate.reject(name, str(target), "a place that can be written")
        if there and not _is(kind, target):
            what = {"report": "a report", "figure": "a figure", "section": "a section", "bundle": "a bundle"}[kind]
            raise InvalidInputError(
                f"{name} = {_validate.shown(str(target))} is not allowed: the file that is there is not {what} and "
                "would be lost: give another name, or move that file away first"
            )
    except OSError as error:
        raise InvalidInputError(f"{name} = {str(target)!r} cannot be written: {error.strerror}") from None
    return target


def _is(kind: str, target: Path) -> bool:
    """Whether a file is of a kind, by its first bytes; an empty one is of any, unless its name is that of a program."""
    if target.resolve().suffix in (".py", ".toml"):
        return False
    with target.open("rb") as stream:
        first = stream.read(_FIRST)
    if not first:
        return True
    start = first.lstrip()
    if kind == "figure":
        return start.startswith((b"<svg", b"<?xml", b"\x89PNG", b"%PDF"))
    if kind == "section":
        return start.startswith(b"{") and _SECTION in first
    if kind == "bundle":
        return first.startswith(b"PK\x03\x04") and b"MANIFEST.json" in first[:64]
    return start[:9].lower() == b"<!doctype" or start[:5].lower() == b"<html"


def write_bytes(content: bytes, path: str | os.PathLike[str], *, name: str, kind: str = "report") -> Path:
    """Write what ``name`` says; a file that is there is replaced only once the new one is complete."""
    target = check_target(path, name=name, kind=kind)
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(content)
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InvalidInputError(f"{name} = {str(target)!r} cannot be written: {error.strerror}") from None
    return target
