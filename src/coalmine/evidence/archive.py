"""The file itself: a zip of a few plain members, written with the same bytes each time, read as from an enemy.

Nothing is unpacked to the disk. A member that is not expected, is there twice, is larger than it may be or says another
size than it has is refused, and so are numbers that are none, keys that stand twice, and texts nested too deeply.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coalmine import _validate
from coalmine.errors import InvalidInputError

MANIFEST, AUDIT, RESULT, REPORT, README = "MANIFEST.json", "audit.json", "result.json", "report.html", "README.txt"
FORMAT = "coalmine evidence"
VERSION = 1
TEXT = """\
This is the evidence of an audit by Coalmine. To check it, install Coalmine and run

    coalmine verify THIS-FILE.zip

which computes every bound and the verdict again from the scores, and trains a sample of the trials again.

MANIFEST.json   SHA-256 of every file here
audit.json      what was asked, about what, with which versions; which runs answer it, and what each of them is
trials/         the world and the score of every trial, one table for each run
result.json     what the scores prove: bounds, verdict, and what they mean
report.html     the same for people

There are no rows of data in here. An empty score is a training that failed.
"""
_MOST_MEMBERS = 1000
_MOST_BYTES = {AUDIT: 2**27, RESULT: 2**27, REPORT: 2**28, MANIFEST: 2**20, README: 2**16}
_MOST_TABLE = 2**30
_MOST_TOGETHER = 2**32
_MOST_PACKED, _MOST_RATIO = 2**26, 100
"""What is larger than the first may not be packed more tightly than the second: scores are not, a bomb is."""
_PART = 2**16
"""Bytes of a member that are looked at together; packed as tightly as can be they are 64 MB."""
_DEEPEST = 40
_TABLE = re.compile(r"trials/[0-9a-f]{64}\.csv")
_WHEN = (1980, 1, 1, 0, 0, 0)
"""The oldest time that a zip can hold: when a file was written is no part of what it says."""
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError, ValueError, KeyError)
"""What Python's reader of zips raises for files that are damaged, encrypted, or no zips."""


def table_name(run: str) -> str:
    """The member with the trials of a run."""
    return f"trials/{run}.csv"


def sums(files: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of each file.

    >>> sums({"a": b""})["a"]["sha256"][:8]
    'e3b0c442'
    """
    return {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in sorted(files.items())
    }


def json_bytes(tree: Any) -> bytes:
    """JSON as it is written here: readable, and one text for one value."""
    return (json.dumps(tree, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def pack(files: Mapping[str, bytes]) -> bytes:
    """The zip of these files and of their manifest: the same bytes for the same files."""
    manifest = {"format": FORMAT, "version": VERSION, "files": sums(files)}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in [(MANIFEST, json_bytes(manifest)), *sorted(files.items())]:
            member = zipfile.ZipInfo(name, date_time=_WHEN)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.create_system = 3  # else it would say on which system it was written
            member.external_attr = 0o644 << 16
            archive.writestr(member, content, compresslevel=9)
    return target.getvalue()


def unpack(path: str | os.PathLike[str]) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of a bundle, and its manifest; an error for whatever no bundle can be."""
    _validate.instance("bundle", path, (str, os.PathLike))
    where = Path(path)
    try:
        if where.is_dir():
            raise refuse("this is a folder; expected the zip that coalmine bundle wrote", where)
        if not where.is_file():
            raise refuse("this is a device or a pipe" if where.exists() else "there is no such file", where)
        _check_ends(where)
        with zipfile.ZipFile(where) as archive:
            files = _read(archive, where)
            _check_between(archive, where)
    except _DAMAGE as error:
        if isinstance(error, InvalidInputError):
            raise
        raise refuse(f"it cannot be read ({error}); expected a zip that coalmine bundle wrote", where) from None
    manifest = read_json(files.pop(MANIFEST), MANIFEST, where)
    if manifest.get("format") != FORMAT:
        raise refuse(f"{MANIFEST} does not say {FORMAT!r}", where)
    if manifest.get("version") != VERSION:
        raise refuse(
            f"it has version {_validate.shown(manifest.get('version'))} of the format, and this Coalmine reads "
            f"{VERSION}: install the Coalmine that wrote it",
            where,
        )
    if not isinstance(manifest.get("files"), dict):
        raise refuse(f"{MANIFEST} lists no files", where)
    if more := sorted(set(manifest) - {"format", "version", "files"}):
        raise refuse(f"{MANIFEST} has the key {_validate.shown(more[0])}, which no bundle has", where)
    return files, manifest


def _check_ends(where: Path) -> None:
    """An error for bytes before or after the zip: Python passes over them, and a shell would not."""
    end = struct.Struct("<4s4H2LH")
    with where.open("rb") as stream:
        first = stream.read(4)
        length = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, length - end.size))
        last = stream.read()
    if first != b"PK\x03\x04" or len(last) != end.size:
        raise refuse("it cannot be read (it does not begin as a zip); expected a zip that coalmine bundle wrote", where)
    mark, *_, size, offset, comment = end.unpack(last)
    if mark != b"PK\x05\x06" or comment or offset + size + end.size != length:
        raise refuse(
            "it cannot be read (bytes before or after the zip); expected a zip that coalmine bundle wrote", where
        )


def _check_between(archive: zipfile.ZipFile, where: Path) -> None:
    """An error for bytes that belong to no member: between two, before the list of all, or after the end of one."""
    local = struct.Struct("<4s5H3L2H")
    at = 0
    with where.open("rb") as stream:
        for member in sorted(archive.infolist(), key=lambda one: one.header_offset):
            stream.seek(at)
            mark, *_, name, extra = local.unpack(stream.read(local.size))
            if member.header_offset != at or mark != b"PK\x03\x04" or extra or name != len(member.orig_filename):
                raise refuse(f"there are bytes before {member.orig_filename} that belong to no file", where)
            stream.seek(name, os.SEEK_CUR)
            reader, left = zlib.decompressobj(-zlib.MAX_WBITS), member.compress_size
            while left:
                part = stream.read(min(left, _PART))
                left -= len(part)
                reader.decompress(part)
                if (reader.eof and (reader.unused_data or left)) or not part:
                    raise refuse(f"{member.orig_filename} has bytes after its end", where)
            at = stream.tell()
    if at != archive.start_dir:
        raise refuse("there are bytes after the last file that belong to none", where)


def _read(archive: zipfile.ZipFile, where: Path) -> dict[str, bytes]:
    """Every member, after its name and its size have been checked."""
    members = archive.infolist()
    if len(members) > _MOST_MEMBERS:
        raise refuse(f"it has {len(members)} members: expected at most {_MOST_MEMBERS}", where)
    files: dict[str, bytes] = {}
    together = 0
    for member in members:
        # Python cuts a name at a zero byte; what the file itself says is looked at.
        name = member.orig_filename
        if name not in _MOST_BYTES and not _TABLE.fullmatch(name):
            raise refuse(f"{_validate.shown(name)} does not belong into a bundle", where)
        if name in files:
            raise refuse(f"{name} is there twice", where)
        if member.flag_bits & 0x1:
            raise refuse(f"{name} is encrypted", where)
        if member.comment or member.extra:
            raise refuse(f"{name} has a comment or further fields, which no bundle has", where)
        if member.compress_type != zipfile.ZIP_DEFLATED:
            raise refuse(f"{name} is not compressed as a bundle is (deflate)", where)
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):  # a link or a device, for whoever unpacks it with another program
            raise refuse(f"{name} is not a plain file", where)
        most = min(_MOST_BYTES.get(name, _MOST_TABLE), _MOST_TOGETHER - together)
        most = min(most, max(_MOST_PACKED, _MOST_RATIO * member.compress_size))
        with archive.open(member) as stream:
            content = stream.read(most + 1)
        if len(content) > most:
            raise refuse(f"{name} is too large: expected at most {most:,} bytes", where)
        files[name] = content
        together += len(content)
    missing = [name for name in _MOST_BYTES if name not in files]
    if missing:
        raise refuse(f"{missing[0]} is missing", where)
    return files


def read_json(content: bytes, name: str, where: Path) -> dict[str, Any]:
    """An object of JSON; an error for anything that a bundle never says."""
    try:
        found = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_validate.once,
            parse_constant=_no_number,
            parse_float=_finite,
            parse_int=_whole,
        )
        too_deep = _is_deeper(found, _DEEPEST)
    except RecursionError:
        too_deep = True
    except ValueError as error:  # no UTF-8, no JSON, or a number that is none
        raise refuse(f"{name} cannot be read: {error}", where) from None
    if too_deep:
        raise refuse(f"{name} is nested too deeply: expected at most {_DEEPEST} levels", where)
    if not isinstance(found, dict):
        raise refuse(f"{name} is not an object of JSON", where)
    return found


def refuse(reason: str, where: object = None) -> InvalidInputError:
    """The error for a bundle that is none (returned, so that the caller's ``raise`` is visible)."""
    name = "" if where is None else f" {_validate.shown(str(where))}"
    return InvalidInputError(f"bundle{name}: {reason}")


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{_validate.shown(text)} is too large for a number")
    return number


def _whole(text: str) -> int:
    if len(text) > 20 or abs(int(text)) >= 2**63:
        raise ValueError(f"{_validate.shown(text)} is too large for a number")
    return int(text)


def _is_deeper(tree: object, most: int) -> bool:
    layer = [tree]
    for _ in range(most):
        layer = [
            item
            for one in layer
            if isinstance(one, (dict, list))
            for item in (one.values() if isinstance(one, dict) else one)
        ]
    return bool(layer)
