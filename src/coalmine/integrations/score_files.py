"""Scores from files: ``world,score`` of trials, ``id,included,score`` of one run. Every error names the row."""

from __future__ import annotations

import contextlib
import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.records import OneRunScores, Scores

Columns = dict[str, NDArray[Any]]


def read_scores(path: Path) -> Scores:
    """``world,score`` from a CSV, JSON, Parquet or .npz file."""
    columns, first = _read(path, ("world", "score"))
    worlds = _zeros_and_ones(path, "world", columns["world"], first)
    scores = numbers(path, "score", columns["score"], first)
    for world in (0, 1):
        if not np.any(worlds == world):
            raise InvalidInputError(f"{path}: no row has world = {world}: expected scores of both worlds")
    return Scores(scores[worlds == 0], scores[worlds == 1])


def read_canaries(path: Path) -> OneRunScores:
    """``id,included,score`` from a CSV, JSON, Parquet or .npz file."""
    columns, first = _read(path, ("id", "included", "score"))
    included = _zeros_and_ones(path, "included", columns["included"], first)
    scores = numbers(path, "score", columns["score"], first)
    names = np.array([str(name) for name in columns["id"]])
    _, where, counts = np.unique(names, return_index=True, return_counts=True)
    if np.any(counts > 1):
        name = names[where[counts > 1][0]]
        rows = np.flatnonzero(names == name)[:2] + first
        raise InvalidInputError(
            f"{path}: id {str(name)!r} occurs in row {rows[0]} and again in row {rows[1]}: expected one row for each "
            "canary"
        )
    return OneRunScores(included.astype(np.int64), scores, names)


def _zeros_and_ones(path: Path, name: str, column: NDArray[Any], first: int) -> NDArray[np.float64]:
    """A column of worlds or coins."""
    values = numbers(path, name, column, first)
    bad = np.flatnonzero((values != 0) & (values != 1))
    if bad.size:
        raise InvalidInputError(
            f"{path}: row {bad[0] + first}: {name} = {values[bad[0]]:g} is not allowed: expected 0 or 1"
        )
    return values


def _read(path: Path, wanted: tuple[str, ...]) -> tuple[Columns, int]:
    """The wanted columns, all of one length, and the number of the first data row as a person would count it."""
    columns, first = read_arrays(path, wanted)
    sizes = {name: column.shape for name, column in columns.items()}
    if any(len(shape) != 1 for shape in sizes.values()) or len(set(sizes.values())) != 1:
        shown = ", ".join(f"{name} {shape}" for name, shape in sizes.items())
        raise InvalidInputError(f"{path}: the arrays {shown} do not match: expected plain lists of one length")
    return columns, first


def array_names(path: Path) -> list[str]:
    """What the columns or arrays of a file are called; none for a file without names."""
    with _reading(path, ()):
        match _kind(path):
            case "npz":
                with _archive(path) as archive:
                    return list(archive.files)
            case "json":
                return list(_json(path))
            case "parquet":
                return _schema(path)
            case _:
                with path.open(newline="", encoding="utf-8-sig") as file:
                    return [name.strip() for name in next(csv.reader(file), [])]


def read_arrays(path: Path, wanted: tuple[str, ...]) -> tuple[Columns, int]:
    """The wanted columns or arrays, and the number of the first row as a person would count it."""
    with _reading(path, wanted):
        match _kind(path):
            case "npz":
                with _archive(path) as archive:
                    _require(path, list(archive.files), wanted)
                    return {name: archive[name] for name in wanted}, 0
            case "json":
                content = _json(path)
                _require(path, list(content), wanted)
                return {name: _listed(path, name, content[name]) for name in wanted}, 0
            case "parquet":
                return _parquet(path, wanted), 1
            case _:
                return _csv(path, wanted), 2


def _kind(path: Path) -> str:
    """The format, by the ending of the name; anything unknown is taken for CSV."""
    return {".npz": "npz", ".json": "json", ".parquet": "parquet", ".pq": "parquet"}.get(path.suffix.lower(), "csv")


@contextlib.contextmanager
def _reading(path: Path, wanted: tuple[str, ...]) -> Iterator[None]:
    """What goes wrong with the file itself, in one line."""
    if not path.is_file():
        names = f" with {','.join(wanted)}" if wanted else ""
        what = "is a folder" if path.is_dir() else "no such file"
        raise InvalidInputError(f"{path}: {what}: expected a CSV, .npz, .json or .parquet file{names}")
    try:
        yield
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InvalidInputError(f"{path}: cannot be read: {reason}") from None


def _require(path: Path, given: list[str], wanted: tuple[str, ...]) -> None:
    """All wanted columns are there, once."""
    missing = [name for name in wanted if name not in given]
    if missing:
        hint = ""
        if wanted == ("world", "score") and "included" in given:
            hint = " (id,included,score is evidence of one run: add --one-run)"
        elif "included" in wanted and "world" in given:
            hint = " (world,score is evidence of independent trials: leave --one-run out)"
        raise InvalidInputError(
            f"{path}: no column {', '.join(missing)}: expected the columns {','.join(wanted)}, found "
            f"{','.join(given) or 'none'}{hint}"
        )
    twice = [name for name in wanted if given.count(name) > 1]
    if twice:
        raise InvalidInputError(f"{path}: column {twice[0]} occurs more than once")


def _csv(path: Path, wanted: tuple[str, ...]) -> Columns:
    """CSV with a header line; quick for clean files, line by line to name the row that is not."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        _require(path, header, wanted)
        places = [header.index(name) for name in wanted]
        rows: list[list[str]] = []
        for row in reader:
            if len(row) != len(header):
                if not row:
                    raise InvalidInputError(f"{path}: row {reader.line_num} is empty: expected {len(header)} cells")
                raise InvalidInputError(
                    f"{path}: row {reader.line_num} has {len(row)} cells: expected {len(header)}, as in the header"
                )
            rows.append([row[place] for place in places])
    if not rows:
        raise InvalidInputError(f"{path}: no rows below the header: expected at least one score in each world")
    return {name: np.array([row[i] for row in rows]) for i, name in enumerate(wanted)}


@contextlib.contextmanager
def _archive(path: Path) -> Iterator[Any]:
    """An .npz file of arrays; pickled objects are never loaded."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not hasattr(archive, "files"):
                raise InvalidInputError(f"{path}: not an .npz file: expected named arrays, as numpy.savez writes them")
            yield archive
    except (ValueError, KeyError, EOFError) as error:
        if isinstance(error, InvalidInputError):
            raise
        # NumPy takes what is no archive for a pickle and advises to load it all the same: nobody should.
        why = "pickled objects are never loaded" if "pickle" in str(error) else error
        raise InvalidInputError(f"{path}: not a plain .npz file of number arrays: {why}") from None
    except Exception as error:  # noqa: BLE001 - zipfile raises its own kinds for damaged archives
        raise InvalidInputError(f"{path}: not a .npz file: {error}") from None


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_validate.once)
    except UnicodeDecodeError:
        raise  # told with the other errors of a file
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path}: not a JSON file: {error}") from None


def _json(path: Path) -> dict[str, Any]:
    """A JSON object of named lists."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise InvalidInputError(f"{path}: expected one JSON object of named lists, found {type(content).__name__}")
    return content


def _listed(path: Path, name: str, values: object) -> NDArray[Any]:
    """A list in a JSON file as cells."""
    if not isinstance(values, list):
        raise InvalidInputError(
            f"{path}: {name} = {_validate.shown(values)} is not allowed: expected a list of numbers"
        )
    return np.fromiter(values, dtype=object, count=len(values))


def _schema(path: Path) -> list[str]:
    """The names of the columns of a Parquet file."""
    arrow, parquet = _arrow(path)
    try:
        return list(parquet.read_schema(path).names)
    except arrow.ArrowException as error:
        raise InvalidInputError(f"{path}: not a Parquet file: {error}") from None


def _arrow(path: Path) -> tuple[Any, Any]:
    """pyarrow, which is an extra."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InvalidInputError(
            f"{path}: Parquet files need the package pyarrow, which is not installed: install it, or use CSV or .npz"
        ) from None
    return arrow, parquet


def _parquet(path: Path, wanted: tuple[str, ...]) -> Columns:
    """Columns of a Parquet file."""
    arrow, parquet = _arrow(path)
    try:
        schema = parquet.read_schema(path)
        _require(path, list(schema.names), wanted)
        for name in wanted:
            if arrow.types.is_nested(schema.field(name).type):
                kind = schema.field(name).type
                raise InvalidInputError(f"{path}: column {name} has entries of type {kind}: expected plain numbers")
        table = parquet.read_table(path, columns=list(wanted), use_threads=False)
    except arrow.ArrowException as error:
        raise InvalidInputError(f"{path}: not a Parquet file: {error}") from None
    return {name: np.asarray(table.column(name).to_pylist()) for name in wanted}


def numbers(path: Path, name: str, column: NDArray[Any], first: int) -> NDArray[np.float64]:
    """A column as finite numbers; the error names the row."""
    if column.dtype.kind not in "biufUSO":
        raise InvalidInputError(f"{path}: {name} has entries of type {column.dtype}: expected plain numbers")
    try:
        values = np.asarray(column, dtype=np.float64) if column.dtype.kind != "O" else None
    except ValueError:
        values = None
    if values is None:
        cells = []
        for index, cell in enumerate(column.tolist()):
            try:
                cells.append(float(cell))
            except (TypeError, ValueError, OverflowError):
                raise InvalidInputError(
                    f"{path}: row {index + first}: {name} = {_validate.shown(cell)} is not allowed: expected a number"
                ) from None
        values = np.array(cells)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        value = values[bad[0]]
        shown = "nan" if math.isnan(value) else f"{value}"
        raise InvalidInputError(
            f"{path}: row {bad[0] + first}: {name} = {shown} is not allowed: expected a finite number"
            + (f" ({bad.size} such rows)" if bad.size > 1 else "")
        )
    return values
