"""Bad files: configs, evidence and stores."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import random
import sqlite3
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from fuzz_values import NUMBERS, TEXTS, TOML

from coalmine.adversaries import catalogue
from coalmine.auditing import config
from coalmine.store import BlockResult, Store

Section = tuple[str, dict[str, str]]

_BASE: tuple[Section, ...] = (
    ("[data]", {"name": '"synthetic"', "rows": "60"}),
    ("[model]", {"kind": '"logistic"'}),
    (
        "[training]",
        {"steps": "10", "sample_rate": "0.1", "noise_multiplier": "1.0", "learning_rate": "1.0", "clip": "1.0"},
    ),
    ("[audit]", {"delta": "1e-5", "confidence": "0.95", "trials": "64", "seed": "0"}),
)
_SECTIONS: dict[str, type[Any]] = {
    "[data]": config.DataSection,
    "[model]": config.ModelSection,
    "[training]": config.TrainingSection,
    "[audit]": config.AuditSection,
}
_KEYS = {name: list(section.model_fields) for name, section in _SECTIONS.items()}
_WORDS = {
    "[data]": ('"digits"', '"synthetic"', '"mnist"', '"adult"', '"purchase-like"'),
    "[model]": ('"mlp"', '"logistic"', '"cnn-nasr-2021"', '"cnn-bernau-2021"', '"tanh"'),
    "[training]": ('"full"', '"poisson"', '"shuffle"', '"last-iterate"', '"local"', '"float64"', '"bf16"'),
    "[audit]": ("4", "3", "1e-15", "0.999999999", "1e-300"),
}


def config_text(rng: random.Random) -> bytes:
    """A config with one to three faults (or none)."""
    sections: list[Section] = [(name, dict(keys)) for name, keys in _BASE]
    sections += [("[[adversary]]", _adversary(rng)) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        _break(rng, sections)
    lines = []
    for name, keys in sections:
        lines += [name, *(f"{key} = {value}" for key, value in keys.items()), ""]
    if rng.random() < 0.1:
        lines.insert(0, f"{rng.choice(('adversary', 'audit', 'training', 'x'))} = {rng.choice(TOML)}")
    return _spoil(rng, "\n".join(lines).encode("utf-8", "surrogateescape"))


def _adversary(rng: random.Random) -> dict[str, str]:
    """An adversary, often with options."""
    known = catalogue()
    name = rng.choice(list(known))
    keys = {"name": f'"{name}"'}
    options = [field.name for field in dataclasses.fields(known[name].kind)]
    if options and rng.random() < 0.5:
        keys[rng.choice(options)] = rng.choice(TOML)
    return keys


def _break(rng: random.Random, sections: list[Section]) -> None:
    """One fault of structure or value."""
    index = rng.randrange(len(sections))
    name, keys = sections[index]
    known = _KEYS.get(name, ["name", "trials"])
    fault = rng.randrange(13)
    if fault <= 5:
        keys[rng.choice(known)] = rng.choice(TOML + 3 * _WORDS.get(name, ('"api"',)))
    elif fault == 6:
        keys[rng.choice(("x", "stepz", "ε", '""', "a.b", "name.x", '"\\u0000"', "1"))] = rng.choice(TOML)
    elif fault == 7:
        keys.pop(rng.choice(list(keys)), None) if keys else None
    elif fault == 8:
        inner = name.strip("[]")
        shapes = (f"[{inner}]", f"[[{inner}]]", f"[{inner}.x]", f"[x.{inner}]", f"[[[{inner}]]]", "[]", f"[{inner}s]")
        sections[index] = (rng.choice(shapes), keys)
    elif fault == 9:
        sections.append((name, dict(keys)))
    elif fault == 10:
        sections.pop(index)
    elif fault == 11:
        sections.insert(0, ("", {rng.choice(("adversary", "audit", "data", "zzz")): rng.choice(TOML)}))
    else:
        depth = rng.choice((5, 100, 20_000))
        sections.append(("[" + ".".join("a" * depth) + "]", {"x": "1"}))


def _spoil(rng: random.Random, text: bytes) -> bytes:
    """Now and then the bytes themselves are wrong."""
    fault = rng.randrange(60)
    spoilt = {
        0: lambda: b"",
        1: lambda: b"\xff\xfe" + text.decode(errors="replace").encode("utf-16-le", "surrogatepass"),
        2: lambda: b"\xef\xbb\xbf" + text,
        3: lambda: text + b"\x00",
        4: lambda: text[: rng.randrange(len(text) + 1)],
        5: lambda: bytes(rng.randrange(256) for _ in range(200)),
        6: lambda: text.replace(b"\n", b"\r"),
        7: lambda: b"x = '" + b"a" * 3_000_000 + b"'",
        8: lambda: text.replace(b"=", b":"),
        9: lambda: json.dumps({"audit": {"trials": 10}}).encode(),
    }
    return spoilt[fault]() if fault in spoilt else text


def override(rng: random.Random) -> str:
    """A value for --set."""
    if rng.random() < 0.2:
        return rng.choice(("", "=", "a", "a=", "a=1", "audit.trials", ".=1", "a.b.c=1", "adversary.name=x", *TEXTS))
    name = rng.choice(list(_KEYS))
    return f"{name.strip('[]')}.{rng.choice(_KEYS[name])}={rng.choice(TOML)}"


# ---- evidence ----------------------------------------------------------------------------------------------------


def evidence(rng: random.Random, *, one_run: bool) -> tuple[str, bytes]:
    """A file of scores that is probably wrong, and its name."""
    names = ["id", "included", "score"] if one_run else ["world", "score"]
    kind = rng.choice(("csv", "csv", "npz", "parquet"))
    make = {"csv": _csv, "npz": _npz, "parquet": _parquet}[kind]
    content = make(rng, names)
    if rng.random() < 0.1:
        cut = rng.randrange(len(content) + 1)
        content = rng.choice(
            (content[:cut], content[:cut] + b"\x00\xff" + content[cut + 2 :], b"", b"PK\x03\x04", b"PAR1")
        )
    ending = kind if rng.random() < 0.9 else rng.choice(("txt", "npz", "parquet", "CSV", "pq"))
    return f"evidence.{ending}", content


def _cell(rng: random.Random, name: str, row: int) -> str:
    if name == "id":
        return str(row)
    return str(row % 2) if name in ("world", "included") else f"{row * 0.37 % 1:.3f}"


def _csv(rng: random.Random, names: list[str]) -> bytes:
    count = rng.choice((0, 1, 2, 3, 20, 200))
    rows = [[_cell(rng, name, row) for name in names] for row in range(count)]
    header = list(names)
    for _ in range(rng.choice((0, 1, 1, 2))):
        fault = rng.randrange(8)
        if fault <= 3 and rows:
            row = rng.choice([row for row in rows if row] or [[""]])
            row[rng.randrange(len(row))] = rng.choice(
                (*NUMBERS, *TEXTS, "9" * 140_000, '"' + "x" * 140_000 + '"', '"unclosed')
            )
        elif fault == 4:
            header[rng.randrange(len(header))] = rng.choice(("", "score", "World", "x" * 140_000, "ε"))
        elif fault == 5 and rows:
            rng.choice(rows).append("1")
        elif fault == 6 and rows:
            rng.choice(rows).clear()
        elif fault == 7:
            header = rng.choice(([], ["world"], [*header, "x"], header[::-1]))
    between = rng.choice((",", ",", ",", ",", ";", "\t"))
    text = rng.choice(("\n", "\n", "\n", "\r\n", "\r")).join(between.join(row) for row in [header, *rows])
    return text.encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig")), "surrogatepass")


def _npz(rng: random.Random, names: list[str]) -> bytes:
    count = rng.choice((0, 1, 2, 20))
    good: dict[str, Any] = {name: np.array([float(_cell(rng, name, row)) for row in range(count)]) for name in names}
    strange = (
        np.zeros(count, dtype=[("a", "f8"), ("b", "i4")]),
        np.array([{"a": 1}] * count, dtype=object),
        np.array(["a"] * count),
        np.array([b"a"] * count),
        np.array(["2020-01-01"] * count, dtype="M8[D]"),
        np.zeros((count, 2)),
        np.array(1.0),
        np.full(count, np.nan),
        np.full(count, np.inf),
        np.full(count, 1 + 1j),
        np.zeros(count + 1),
        np.zeros(count, dtype=bool),
        np.full(count, 2**63, dtype=np.uint64),
        np.zeros(count, dtype=np.longdouble),
        np.zeros(count, dtype="V8"),
        np.zeros(count, dtype=np.float16),
        np.zeros(count, dtype="m8[s]"),
    )
    if rng.random() < 0.85:
        good[rng.choice(names)] = rng.choice(strange)
    if rng.random() < 0.1:
        good.pop(rng.choice(names), None)
    buffer = io.BytesIO()
    np.savez(buffer, **good)
    if rng.random() < 0.1:  # an array that says it is huge
        head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
        array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head) + 1) + head + b"\n"
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in names:
                archive.writestr(f"{name}.npy", array)
    return buffer.getvalue()


def _parquet(rng: random.Random, names: list[str]) -> bytes:
    count = rng.choice((0, 1, 2, 20))
    columns: dict[str, Any] = {name: [float(_cell(rng, name, row)) for row in range(count)] for name in names}
    strange: tuple[Any, ...] = (
        [[1.0]] * count,
        [[1.0] * (row % 3) for row in range(count)],
        [{"a": 1}] * count,
        ["x"] * count,
        [None] * count,
        [None if row % 2 else 1.0 for row in range(count)],
        [True] * count,
        [b"x"] * count,
        [float("nan")] * count,
        [2**62] * count,
        pyarrow.array([1] * count, type=pyarrow.timestamp("s")),
        pyarrow.array([1] * count, type=pyarrow.decimal128(10, 2)),
        pyarrow.array(["a"] * count).dictionary_encode(),
        pyarrow.array([[("k", 1)]] * count, type=pyarrow.map_(pyarrow.string(), pyarrow.int32())),
        pyarrow.nulls(count),
    )
    if rng.random() < 0.85:
        columns[rng.choice(names)] = rng.choice(strange)
    if rng.random() < 0.1:
        columns.pop(rng.choice(names), None)
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


# ---- stores ------------------------------------------------------------------------------------------------------

RUN = "c0ffee00"
"""The fingerprint of the run in every store that is made here."""

_CONFIG: dict[str, Any] = {
    "data": {"name": "synthetic", "rows": 60},
    "model": {"kind": "logistic"},
    "training": {"steps": 5, "sample_rate": 0.1, "noise_multiplier": 1.0},
    "audit": {"trials": 16},
    "adversary": [{"name": "clipbkd"}],
}


@functools.cache
def _good_store() -> bytes:
    """A store with one run of one block."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with Store.open(path) as store:
            identity = {"adversary": {"name": "clipbkd"}, "data": {"name": "synthetic"}}
            store.register(RUN, {"identity": identity, "trials": 16, "config": _CONFIG, "versions": {}})
            trials = np.arange(16)
            block = BlockResult(trial=trials, world=trials % 2, score=trials * 0.1, elapsed=0.1, device="cpu float32")
            store.put(RUN, 0, block)
        return path.read_bytes()


def store_bytes(rng: random.Random) -> bytes | None:
    """A store that is not one, is damaged, or says strange things (None: a folder)."""
    good = _good_store()
    fault = rng.randrange(9)
    if fault == 0:
        return rng.choice((b"", b"SQLite format 3\x00", b"no database", bytes(4096), None))
    if fault == 1:
        return good[: rng.randrange(len(good))]
    if fault == 2:
        torn = bytearray(good)
        for _ in range(rng.choice((1, 10, 1000))):
            torn[rng.randrange(len(torn))] = rng.randrange(256)
        return bytes(torn)
    if fault == 3:
        return _changed(good, "PRAGMA user_version = 99")
    if fault == 4:
        return _changed(good, "PRAGMA application_id = 7")
    if fault == 5:
        column, value = rng.choice(
            (("payload", b"x"), ("columns", "{"), ("columns", "5"), ("checksum", 0), ("trials", -1), ("failures", "[]"))
        )
        return _changed(good, f"UPDATE block SET {column} = ?", value)
    if fault == 6:
        return _changed(good, "UPDATE run SET created = ?", rng.choice((1e300, -1e300, float("inf"), -1.0)))
    if fault == 7:
        return good
    deep = "[" * 20_000 + "]" * 20_000
    texts = ("", "{", "[]", "5", "null", '"x"', "{}", deep, '{"identity": 5}', '{"config": []}', '{"config": {"x": 1}}')
    spoilt = dict(_CONFIG)
    spoilt[rng.choice(list(spoilt))] = rng.choice((None, 5, "x", [], {}, [5], {"name": 5}, {"trials": 1e300}))
    parts = {
        "identity": rng.choice(({}, [], 5, {"adversary": "api", "data": 5})),
        "trials": rng.choice((1, "x", 1e300)),
    }
    choices = (*texts, json.dumps({**parts, "config": spoilt}), json.dumps({"config": spoilt}))
    return _changed(good, "UPDATE run SET description = ?", rng.choice(choices))


def _changed(content: bytes, statement: str, *values: object) -> bytes:
    """The store after one statement of SQL."""
    database = sqlite3.connect(":memory:")
    try:
        # A file in memory can have no write-ahead log: bytes 18 and 19 say which kind it is.
        database.deserialize(content[:18] + b"\x01\x01" + content[20:])
        with database:
            database.execute(statement, values)
        return database.serialize()
    finally:
        database.close()
