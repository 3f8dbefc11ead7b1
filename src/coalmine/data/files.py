"""Where a data set's files are, whether they are the right ones, and how to get them.

Order of places: the folder given (``--data-dir``), else the one that the environment variable COALMINE_DATA names; then
the cache folder of the user. Within a place, each source of the data set in turn. A file's content is read once,
checked, and decoded from memory, so that what was checked is what is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coalmine.data.entry import Entry, File, Read, Source
from coalmine.data.loaded import Arrays
from coalmine.errors import DataError

ENVIRONMENT_VARIABLE = "COALMINE_DATA"
Progress = Callable[[str], object]
"""Told in a sentence what is being fetched, before it is."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A source of a data set whose files are all there."""

    folder: Path
    source: Source

    def path(self, file: File) -> Path:
        """Where that file lies."""
        return self.folder / self.source.folder / file.name


def cache_folder() -> Path:
    """The folder that downloads go to."""
    return Path(needed("pooch").os_cache("coalmine"))


def places(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """The folders to look in, in order."""
    if data_dir is not None:
        given = Path(data_dir)
        if not given.is_dir():
            raise DataError(f"data_dir = {str(given)!r} is not a folder: expected the folder that holds the data files")
        folders = [given]
    else:
        # A variable that names a folder which is not there counts as not set: it may be meant for another machine.
        variable = os.environ.get(ENVIRONMENT_VARIABLE, "")
        folders = [Path(variable)] if variable and Path(variable).is_dir() else []
    with contextlib.suppress(DataError):  # without pooch there is no cache
        folders.append(cache_folder())
    return folders


def locate(entry: Entry, data_dir: str | os.PathLike[str] | None) -> Place | None:
    """The first place where a source of the data set is complete, or None."""
    for folder in places(data_dir):
        for source in entry.sources:
            place = Place(folder, source)
            if all(place.path(file).is_file() for file in source.files):
                return place
    return None


def reader(entry: Entry, place: Place, *, check: bool) -> Read:
    """A function that gives the checked content of a file of that place by name."""
    files = {file.name: file for file in place.source.files}

    def read(name: str) -> bytes:
        file, path = files[name], place.path(files[name])
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"data set {entry.name}: cannot read {str(path)!r}: {error.strerror}") from None
        if check and (got := file.digest(content)) != file.checksum:
            raise DataError(
                f"data set {entry.name}: {str(path)!r} has the wrong checksum: expected {file.checksum}, got {got}; "
                f"the file is damaged or another version: delete it and get it again{_how(entry)}"
            )
        return content

    return read


def missing(entry: Entry, data_dir: str | os.PathLike[str] | None) -> DataError:
    """The error for a data set that is nowhere to be found: which files were looked for, where, and what to do."""
    looked = ", ".join(repr(str(folder)) for folder in places(data_dir)) or "no folder"
    files = " or ".join(
        " + ".join(str(Path(source.folder) / file.name) for file in source.files) for source in entry.sources
    )
    return DataError(
        f"data set {entry.name} is not here: looked for {files} in {looked}; get it{_how(entry)}, or put the files in "
        f"a folder and name it with --data-dir or {ENVIRONMENT_VARIABLE}{entry.instead and '; ' + entry.instead}"
    )


def _how(entry: Entry) -> str:
    """How to get the official files."""
    if any(source.can_be_fetched for source in entry.sources):
        return f" with 'coalmine data fetch {entry.name}'"
    return " from its official source"


def download(entry: Entry, folder: Path, *, progress: Progress | None = None) -> Place:
    """Fetch the official files into ``folder``; a file that is there with the right checksum is not fetched again."""
    source = next((source for source in entry.sources if source.can_be_fetched), None)
    if source is None:
        raise DataError(f"data set {entry.name} cannot be fetched: no file of it has an address")
    pooch = needed("pooch")
    pooch.get_logger().setLevel("WARNING")
    place = Place(folder, source)
    for file in source.files:
        path = place.path(file)
        if path.is_file() and file.digest(path.read_bytes()) == file.checksum:
            continue
        if progress is not None:
            progress(f"fetching {file.url}")
        try:
            _retrieve(pooch, entry, file, path)
        except (OSError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"data set {entry.name}: cannot fetch {file.url}: {_first_line(error)}; get the file by other means "
                f"and put it at {str(path)!r}, or in a folder that --data-dir or {ENVIRONMENT_VARIABLE} names"
                f"{entry.instead and ', or ' + entry.instead}"
            ) from None
    return place


def _retrieve(pooch: Any, entry: Entry, file: File, path: Path) -> None:
    """Fetch one file to a name of its own, check it, and only then move it to its place."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pooch.retrieve(url=file.url, known_hash=None, fname=fresh.name, path=fresh.parent)
        got = file.digest(fresh.read_bytes())
        if got != file.checksum:
            raise DataError(
                f"data set {entry.name}: {file.url} gave a file with the wrong checksum: expected {file.checksum}, "
                f"got {got}; nothing was kept: try again later, or get the file by other means"
                f"{entry.instead and ', or ' + entry.instead}"
            )
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _first_line(error: BaseException) -> str:
    """An error of another library in one line of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "Max retries exceeded" in text:
        return "no connection"
    return text if len(text) <= 200 else text[:197] + "..."


def decode(entry: Entry, place: Place, *, check: bool) -> Arrays:
    """The arrays of the data set at that place; a file that cannot be understood is a :class:`DataError`."""
    try:
        return place.source.decode(reader(entry, place, check=check))
    except DataError:
        raise
    except (ValueError, KeyError, IndexError, EOFError, OSError, zlib.error) as error:
        raise DataError(
            f"data set {entry.name}: the files in {str(place.folder / place.source.folder)!r} cannot be understood: "
            f"{_first_line(error)}; delete them and get them again{_how(entry)}"
        ) from None


def needed(module: str) -> Any:
    """Import a package that only the data sets need, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = {"sklearn": "scikit-learn", "PIL": "pillow"}.get(module.partition(".")[0], module)
        raise DataError(
            f"the package {package} is needed here and not installed: pip install 'coalmine[train]'"
        ) from None
