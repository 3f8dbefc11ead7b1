"""What the registry knows about a data set before it is loaded: its files, their checksums, and how to read them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable

from coalmine.data.loaded import Arrays

Read = Callable[[str], bytes]
"""Gives the content of one of a source's files, checked."""


@dataclasses.dataclass(frozen=True)
class File:
    """A file by name. ``checksum`` is "algorithm:hex digits"; the algorithm is sha256, md5 or git-blob."""

    name: str
    checksum: str
    url: str | None = None

    def digest(self, content: bytes) -> str:
        """The checksum of ``content`` by this file's algorithm."""
        algorithm = self.checksum.partition(":")[0]
        if algorithm == "git-blob":  # the only identity published for some files
            header = f"blob {len(content)}\0".encode()
            return "git-blob:" + hashlib.sha1(header + content, usedforsecurity=False).hexdigest()
        return f"{algorithm}:" + hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()


@dataclasses.dataclass(frozen=True)
class Source:
    """One way to have a data set: its files, and what turns their contents into arrays.

    The files lie in ``folder`` below the data folder ("" for the data folder itself).
    """

    files: tuple[File, ...]
    decode: Callable[[Read], Arrays]
    folder: str = ""

    @property
    def can_be_fetched(self) -> bool:
        """Whether every file has an address."""
        return all(file.url for file in self.files)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A data set in the registry: either ``sources`` (files) or ``generate`` (made on the spot, with options).

    ``train_rows`` and ``test_rows`` are what loading gives without options. ``content_hash`` is that of the result.
    """

    name: str
    citation: str
    licence: str
    train_rows: int
    test_rows: int
    features: int
    classes: int
    image_shape: tuple[int, int, int] | None = None
    sources: tuple[Source, ...] = ()
    generate: Callable[..., Arrays] | None = None
    content_hash: str | None = None
    note: str = ""
    stand_in_for: str | None = None
    instead: str = ""
    """What to use where the files are not to be had."""
