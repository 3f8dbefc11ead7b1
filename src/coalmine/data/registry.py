"""The data sets by name: list, load, fetch, verify."""

from __future__ import annotations

import dataclasses
import inspect
import os
from pathlib import Path
from typing import Any

from coalmine import _validate
from coalmine.data import (
    adult,
    cifar10,
    digits,
    files,
    housing_like,
    location30,
    mnist,
    purchase100,
    purchase_like,
    synthetic,
)
from coalmine.data.entry import Entry
from coalmine.data.loaded import Arrays, LoadedData
from coalmine.errors import DataError, InvalidInputError

_ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        *(digits.ENTRY, mnist.FASHION_MNIST, mnist.MNIST, cifar10.ENTRY, adult.ENTRY, location30.ENTRY),
        *(purchase100.ENTRY, purchase_like.ENTRY, housing_like.ENTRY, synthetic.ENTRY),
    )
}


def names() -> tuple[str, ...]:
    """Every name that :func:`load` knows.

    >>> names()[:3]
    ('digits', 'fashion-mnist', 'mnist')
    """
    return tuple(_ENTRIES)


def _entry(name: object) -> Entry:
    """The entry of that name; the error suggests the nearest one."""
    if isinstance(name, str) and name in _ENTRIES:
        return _ENTRIES[name]
    raise InvalidInputError(
        f"data set {_validate.shown(name)} is not known: {_validate.nearest(str(name), _ENTRIES)} "
        "(see coalmine data list)"
    )


def load(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    check: bool = True,
    download: bool = True,
    progress: files.Progress | None = None,
    **options: Any,
) -> LoadedData:
    """The data set of that name.

    Files are looked for in ``data_dir``, else in the folder that COALMINE_DATA names, then in the cache folder; their
    checksums are tested unless ``check`` is False. If they are in none of these and ``download`` is true, the official
    files are fetched into the cache; ``progress`` is then told each address. ``options`` are those of a
    generated data set: ``synthetic`` takes ``rows``, ``test_rows``, ``features``, ``classes``, ``separation`` and
    ``seed``; ``purchase-like`` takes ``rows``, ``test_rows`` and ``seed``.

    >>> load("synthetic", rows=100, features=5, classes=3).x_train.shape
    (100, 5)
    """
    entry = _entry(name)
    _check_options(entry, options)
    if entry.generate is not None:
        return _data_set(entry, entry.generate(**options))
    place = files.locate(entry, data_dir)
    if place is None:
        if not (download and any(source.can_be_fetched for source in entry.sources)):
            raise files.missing(entry, data_dir)
        place = files.download(entry, files.cache_folder(), progress=progress)
    arrays = files.decode(entry, place, check=check)
    try:
        return _data_set(entry, arrays)
    except InvalidInputError as error:
        raise DataError(f"data set {name}: the files in {str(place.folder)!r} do not fit together: {error}") from None


def _check_options(entry: Entry, options: dict[str, Any]) -> None:
    """Refuse an option that this data set does not have."""
    known = [] if entry.generate is None else list(inspect.signature(entry.generate).parameters)
    for option in options:
        if option not in known:
            raise InvalidInputError(
                f"{option} is not an option of data set {entry.name}: {_validate.nearest(option, known)}"
            )


def _data_set(entry: Entry, arrays: Arrays) -> LoadedData:
    """The arrays with what the registry knows about them."""
    known = ("name", "image_shape", "citation", "licence", "note", "stand_in_for")
    return LoadedData(
        **{name: getattr(entry, name) for name in known},
        **arrays._asdict(),
        # A made data set may have been asked for another number of classes.
        classes=entry.classes if entry.generate is None else int(arrays.y_train.max()) + 1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
    """A data set and whether it is at hand."""

    name: str
    train_rows: int
    test_rows: int
    features: int
    classes: int
    found: bool
    where: str
    licence: str
    note: str
    citation: str

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return dataclasses.asdict(self)


def status(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> Status:
    """What is known about a data set without loading it; ``where`` says where it is or how to get it."""
    entry = _entry(name)
    if entry.generate is not None:
        found, where = True, "built in" if entry.stand_in_for is None and name != "synthetic" else "generated"
    else:
        place = files.locate(entry, data_dir)
        found = place is not None
        where = str(place.folder / place.source.folder) if place else f"coalmine data fetch {name}"
    return Status(
        **{f.name: getattr(entry, f.name) for f in dataclasses.fields(Status) if f.name not in ("found", "where")},
        found=found,
        where=where,
    )


def fetch(
    name: str, *, data_dir: str | os.PathLike[str] | None = None, progress: files.Progress | None = None
) -> Path | None:
    """Get the official files into ``data_dir`` (the cache folder if None) and load them once; None if none are needed.

    What is already at hand with the right checksums is not fetched again.
    """
    entry = _entry(name)
    if entry.generate is not None:
        entry.generate()
        return None
    if data_dir is not None:
        try:
            Path(data_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInputError(
                f"data_dir = {str(data_dir)!r} cannot be made: {error.strerror}; expected a folder that can be written"
            ) from None
    place = files.locate(entry, data_dir)
    if place is None:
        folder = files.cache_folder() if data_dir is None else Path(data_dir)
        place = files.download(entry, folder, progress=progress)
    elif place.source.can_be_fetched:  # a damaged file is replaced, the others are left alone
        place = files.download(entry, place.folder, progress=progress)
    files.decode(entry, place, check=True)
    return place.folder / place.source.folder


def verify(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> LoadedData:
    """Load the data set from disk, test every checksum, the shape, and the hash of the content; nothing is fetched."""
    entry = _entry(name)
    data = load(name, data_dir=data_dir, check=True, download=False)
    shape = (len(data.y_train), len(data.y_test), data.features, data.classes)
    expected = (entry.train_rows, entry.test_rows, entry.features, entry.classes)
    if shape != expected:
        raise DataError(
            f"data set {name} has (training rows, test rows, features, classes) {shape}: expected {expected}"
        )
    if entry.content_hash not in (None, data.content_hash):
        raise DataError(
            f"data set {name} has the content hash {data.content_hash}: expected {entry.content_hash}; the files or "
            "the package that holds them are another version"
        )
    return data
