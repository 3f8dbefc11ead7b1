"""What a bound is made from: a method by its name, and evidence from files. Every error names the option or the row."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.cli._options import underscored
from coalmine.errors import InvalidInputError
from coalmine.records import DpSgd, OneRunScores, Relation, Sampling, Scores

if TYPE_CHECKING:
    from coalmine.bounds import Method

Columns = dict[str, NDArray[Any]]


def choose_method(name: str, family: str | None) -> Method:
    """The method that ``--method`` and ``--family`` name together."""
    from coalmine.bounds import METHODS

    wanted = underscored(name)
    named = [method for method in METHODS.values() if wanted in (method.name, method.base)]
    if not named:
        names = dict.fromkeys((method.base or method.name).replace("_", "-") for method in METHODS.values())
        raise InvalidInputError(f"method = {name!r} is not allowed: expected one of {', '.join(names)}")
    if family is None:
        return next((method for method in named if method.name == wanted), named[0])
    variants = {method.variant: method for method in named if method.variant}
    if not variants:
        raise InvalidInputError(f"family = {family!r} is not allowed with method {name}")
    return variants[_validate.choice("family", underscored(family), variants)]


def known_mechanism(
    method: Method, *, sample_rate: float | None, steps: int | None, sampling: str, relation: str
) -> DpSgd | None:
    """The mechanism that a method assumes, from its parts; its noise is what is looked for."""
    parts = {"sample_rate": sample_rate, "steps": steps}
    if not method.needs_mechanism:
        given = [f"{part} = {value}" for part, value in parts.items() if value is not None]
        if given:
            raise InvalidInputError(f"{given[0]} is not allowed with method {method.name}")
        return None
    missing = [part for part, value in parts.items() if value is None]
    if missing:
        raise InvalidInputError(f"{missing[0]} is missing: expected a value with method = {method.name!r}")
    assert sample_rate is not None
    assert steps is not None
    return DpSgd(
        sample_rate=sample_rate,
        noise_multiplier=1.0,
        steps=steps,
        sampling=Sampling.parse(underscored(sampling)),
        relation=Relation.parse(underscored(relation)),
    )


def read_scores(path: Path) -> Scores:
    """``world,score`` from a CSV, Parquet or .npz file."""
    columns, first = _read(path, ("world", "score"))
    worlds = _numbers(path, "world", columns["world"], first)
    scores = _numbers(path, "score", columns["score"], first)
    bad = np.flatnonzero((worlds != 0) & (worlds != 1))
    if bad.size:
        raise InvalidInputError(
            f"{path}: row {bad[0] + first}: world = {worlds[bad[0]]:g} is not allowed: expected 0 or 1"
        )
    for world in (0, 1):
        if not np.any(worlds == world):
            raise InvalidInputError(f"{path}: no row has world = {world}: expected scores of both worlds")
    return Scores(scores[worlds == 0], scores[worlds == 1])


def read_canaries(path: Path) -> OneRunScores:
    """``id,included,score`` from a CSV, Parquet or .npz file."""
    columns, first = _read(path, ("id", "included", "score"))
    included = _numbers(path, "included", columns["included"], first)
    scores = _numbers(path, "score", columns["score"], first)
    bad = np.flatnonzero((included != 0) & (included != 1))
    if bad.size:
        raise InvalidInputError(
            f"{path}: row {bad[0] + first}: included = {included[bad[0]]:g} is not allowed: expected 0 or 1"
        )
    names = np.array([str(name) for name in columns["id"]])
    _, where, counts = np.unique(names, return_index=True, return_counts=True)
    if np.any(counts > 1):
        name = names[where[counts > 1][0]]
        rows = np.flatnonzero(names == name)[:2] + first
        raise InvalidInputError(
            f"{path}: id {name!r} occurs in row {rows[0]} and again in row {rows[1]}: expected one row for each canary"
        )
    return OneRunScores(included.astype(np.int64), scores, names)


def _read(path: Path, wanted: tuple[str, ...]) -> tuple[Columns, int]:
    """The wanted columns, and the number of the first data row as a person would count it."""
    kind = path.suffix.lower()
    try:
        if not path.is_file():
            names = ",".join(wanted)
            raise InvalidInputError(f"{path}: no such file: expected a CSV, .npz or .parquet file with {names}")
        if kind == ".npz":
            return _read_npz(path, wanted), 0
        if kind in (".parquet", ".pq"):
            return _read_parquet(path, wanted), 1
        return _read_csv(path, wanted), 2
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


def _read_csv(path: Path, wanted: tuple[str, ...]) -> Columns:
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


def _read_npz(path: Path, wanted: tuple[str, ...]) -> Columns:
    """Arrays of those names; pickled objects are never loaded."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            _require(path, list(archive.files), wanted)
            columns = {name: archive[name] for name in wanted}
    except (ValueError, KeyError, EOFError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"{path}: not a plain .npz file of number arrays: {error}") from None
    except Exception as error:  # noqa: BLE001 - zipfile raises its own kinds for damaged archives
        raise InvalidInputError(f"{path}: not a .npz file: {error}") from None
    sizes = {name: column.shape for name, column in columns.items()}
    if any(len(shape) != 1 for shape in sizes.values()) or len(set(sizes.values())) != 1:
        shown = ", ".join(f"{name} {shape}" for name, shape in sizes.items())
        raise InvalidInputError(f"{path}: the arrays {shown} do not match: expected plain lists of one length")
    return columns


def _read_parquet(path: Path, wanted: tuple[str, ...]) -> Columns:
    """Parquet through pyarrow, which is an extra."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InvalidInputError(
            f"{path}: Parquet files need the package pyarrow, which is not installed: install it, or use CSV or .npz"
        ) from None
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


def _numbers(path: Path, name: str, column: NDArray[Any], first: int) -> NDArray[np.float64]:
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
