"""Files of a prepared run: written whole or not at all, secrets for their owner alone; errors name the row."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError

FORMS = ("npz", "csv", "jsonl")
_TELLTALE = ("included", "is_included", "coin", "coins", "world", "member", "is_member", "in", "is_in", "in_train")


def write(path: Path, content: bytes, *, secret: bool = False) -> None:
    """The whole file or nothing, whatever happens meanwhile: a new file is written, flushed and put in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    with contextlib.suppress(OSError):  # some systems cannot flush a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the system lets go of the lock when a process dies."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInputError(f"{path}: another process is judging this run: wait until it is done") from None
        yield


def digest(content: bytes) -> str:
    """SHA-256, as text."""
    return hashlib.sha256(content).hexdigest()


def canonical(tree: Mapping[str, Any]) -> bytes:
    """One text for one tree: sorted keys, no blanks, numbers as Python writes them."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def read_json(path: Path, *, what: str) -> dict[str, Any]:
    """One JSON object; a damaged file is named."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be read ({error.strerror}): expected {what}") from None
    except RecursionError:
        raise InvalidInputError(f"{path}: damaged, not {what}: it is nested too deeply") from None
    except ValueError as error:
        raise InvalidInputError(f"{path}: damaged, not {what}: {error}") from None
    if not isinstance(tree, dict):
        raise InvalidInputError(f"{path}: damaged, not {what}: expected a JSON object")
    return tree


def encode(arrays: Mapping[str, NDArray[Any]], *, form: str, ids: NDArray[np.str_] | None = None) -> bytes:
    """Rows as a file: ``.npz`` with arrays of those names, a CSV table, or one JSON object a line."""
    form = _validate.choice("form", form, FORMS)
    columns = dict(arrays) if ids is None else {"id": ids, **arrays}
    if form == "npz":
        packed = io.BytesIO()
        np.savez(packed, **columns)  # type: ignore[arg-type]  # NumPy's stub takes the names for its own options
        return packed.getvalue()
    rows = {name: column for name, column in columns.items() if column.ndim}
    if form == "jsonl":
        names = {"x": "tokens"} if "x" in rows and rows["x"].dtype.kind in "iu" else {}
        lines = zip(*(column.tolist() for column in rows.values()), strict=True)
        keys = [names.get(name, name) for name in rows]
        return b"".join(canonical(dict(zip(keys, line, strict=True))) + b"\n" for line in lines)
    return _table(rows)


def _table(rows: Mapping[str, NDArray[Any]]) -> bytes:
    """A CSV file: one column for each number of a row."""
    header: list[str] = []
    blocks: list[list[list[Any]]] = []
    for name, column in rows.items():
        flat = column.reshape(column.shape[0], -1)
        header += [name] if column.ndim == 1 else [f"{name}{i}" for i in range(flat.shape[1])]
        blocks.append(flat.tolist())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([cell for part in line for cell in part] for line in zip(*blocks, strict=True))
    return text.getvalue().encode()


def read_scores(path: Path) -> tuple[list[str], NDArray[np.float64]]:
    """``id`` and ``score`` of every canary, from CSV, .npz or one JSON object a line; in the file's order.

    A column that tells the coins (``included``, ``world``, …) is refused: whoever made the scores must not know them.
    """
    if path.is_dir():
        raise InvalidInputError(f"{path}: a folder: expected a .csv, .npz or .jsonl file with id and score")
    if not path.is_file():
        raise InvalidInputError(f"{path}: no such file: expected a .csv, .npz or .jsonl file with id and score")
    try:
        if path.suffix == ".npz":
            arrays = read_npz(path, expected="an .npz file of plain arrays, as numpy.savez writes it")
            columns = {name: np.atleast_1d(column).tolist() for name, column in arrays.items()}
        elif path.suffix in (".jsonl", ".ndjson"):
            columns = _json_lines(path)
        else:
            columns = _csv(path)
    except UnicodeDecodeError:
        raise InvalidInputError(f"{path}: not UTF-8: expected a .csv, .npz or .jsonl file with id and score") from None
    except (OSError, csv.Error) as error:
        raise InvalidInputError(f"{path}: cannot be read: {error}") from None
    except RecursionError:
        raise InvalidInputError(f"{path}: cannot be read: it is nested too deeply") from None
    told = [name for name in _TELLTALE if name in columns]
    if told:
        raise InvalidInputError(
            f"{path}: column {told[0]} tells which canaries were included: the scores must be made without that "
            "knowledge; expected id and score alone"
        )
    missing = [name for name in ("id", "score") if name not in columns]
    if missing:
        raise InvalidInputError(
            f"{path}: no column {', '.join(missing)}: expected id and score in a .csv, .npz or .jsonl file, found "
            f"{_validate.shown(', '.join(columns)) if columns else 'none'}"
        )
    ids = [str(name) for name in columns["id"]]
    return ids, _numbers(path, ids, columns["score"])


def _numbers(path: Path, ids: list[str], cells: list[Any]) -> NDArray[np.float64]:
    """The scores as finite numbers; the error names the canary."""
    if len(ids) != len(cells):
        raise InvalidInputError(f"{path}: {len(ids)} ids and {len(cells)} scores: expected one score for each id")
    values = np.empty(len(cells))
    for place, (name, cell) in enumerate(zip(ids, cells, strict=True)):
        try:
            value = math.nan if isinstance(cell, bool) else float(cell)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise InvalidInputError(f"{path}: score of {name} = {cell!r} is not allowed: expected a finite number")
        values[place] = value
    return values


def _csv(path: Path) -> dict[str, list[Any]]:
    """A table with a header line."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        columns: dict[str, list[Any]] = {name: [] for name in header}
        if len(columns) != len(header):
            names = _validate.shown(",".join(header))
            raise InvalidInputError(f"{path}: a column name occurs more than once in {names}")
        for row in reader:
            if not row:  # an empty line, most often the last
                continue
            if len(row) != len(header):
                raise InvalidInputError(
                    f"{path}: row {reader.line_num} has {len(row)} cells: expected {len(header)}, as in the header"
                )
            for name, cell in zip(header, row, strict=True):
                columns[name].append(cell)
    return columns


def read_npz(path: Path | str, *, expected: str, wanted: Sequence[str] = (), name: str = "") -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file, with those that are ``wanted`` among them; pickled objects are never loaded."""
    where = name or str(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {one: archive[one] for one in archive.files}
    except Exception as error:  # noqa: BLE001 - NumPy and zipfile raise many kinds for what is no .npz file
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise InvalidInputError(f"{where}: cannot be read{why}: expected {expected}") from None
    missing = [one for one in wanted if one not in found]
    if missing:
        raise InvalidInputError(f"{where}: no array {missing[0]}: expected {expected}")
    return found


def _json_lines(path: Path) -> dict[str, list[Any]]:
    """One object a line, all with the same names."""
    columns: dict[str, list[Any]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InvalidInputError(f"{path}: line {number} is no JSON object: {error}") from None
        if not isinstance(row, dict):
            raise InvalidInputError(f"{path}: line {number} is no JSON object: expected id and score by name")
        if columns and set(row) != set(columns):
            raise InvalidInputError(f"{path}: line {number} has other names than the first: expected id and score")
        for name, cell in row.items():
            columns.setdefault(name, []).append(cell)
    return columns
