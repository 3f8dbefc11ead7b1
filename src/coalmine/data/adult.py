"""Adult, the census income data: 104 features as in bernau-2021 (Bernau et al., PVLDB 14(13), 2021, Section 6.1).

Rows with a missing value are removed. 6 columns are numbers (age, fnlwgt, education-num, capital-gain, capital-loss,
hours-per-week), scaled to [0, 1] by the least and greatest training value; a test value outside is cut off there. The
8 other columns become one feature for each value that the remaining training rows hold: workclass 7 ("Never-worked"
occurs only in rows with a missing value), education 16, marital-status 7, occupation 14, relationship 6, race 5, sex 2,
native-country 41: 98 + 6 = 104. The label is 1 for an income above 50K.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from coalmine.data.entry import Entry, File, Read, Source
from coalmine.data.loaded import Arrays

_NUMBERS = (0, 2, 4, 10, 11, 12)
_WORDS = (1, 3, 5, 6, 7, 8, 9, 13)
_INCOME = 14
_PACKED = {
    "adult.data.gz": "fb9b6b419c38dd70d75d31f014b7f0905bf76e9625473c593455e31679a93184",
    "adult.test.gz": "5dd8e51005f6a86e42f058d66a957721196362cf8e8dde3efc8508532af4a083",
}
_OFFICIAL = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
_BASE_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"


def _rows(text: str) -> list[list[str]]:
    """The complete rows: 15 columns, no "?". The test file has a comment line, and labels that end in a full stop."""
    rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if len(row) == 15]
    return [[*row[:_INCOME], row[_INCOME].rstrip(".")] for row in rows if "?" not in row]


def encode(train: list[list[str]], test: list[list[str]]) -> Arrays:
    """Numbers scaled, words as one feature for each value, in the order of the columns."""
    table, other = np.array(train), np.array(test)
    pairs = [
        _scaled(table[:, column], other[:, column])
        if column in _NUMBERS
        else _indicators(table[:, column], other[:, column])
        for column in sorted((*_NUMBERS, *_WORDS))
    ]
    return Arrays(
        np.concatenate([pair[0] for pair in pairs], axis=1),
        _labels(table[:, _INCOME]),
        np.concatenate([pair[1] for pair in pairs], axis=1),
        _labels(other[:, _INCOME]),
    )


def _scaled(train: NDArray[np.str_], test: NDArray[np.str_]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    numbers = train.astype(np.float64)
    low, high = numbers.min(), numbers.max()

    def scale(values: NDArray[np.float64]) -> NDArray[np.float32]:
        scaled: NDArray[np.float32] = ((values.clip(low, high) - low) / (high - low)).astype(np.float32)
        return scaled[:, None]

    return scale(numbers), scale(test.astype(np.float64))


def _indicators(train: NDArray[np.str_], test: NDArray[np.str_]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """One column for each training value in alphabetical order; a value seen only in test rows gives zeros."""
    values = np.unique(train)
    return (train[:, None] == values).astype(np.float32), (test[:, None] == values).astype(np.float32)


def _labels(column: Iterable[str]) -> NDArray[np.int64]:
    names = {"<=50K": 0, ">50K": 1}
    return np.array([names[value] for value in column], dtype=np.int64)


def _from_packed(read: Read) -> Arrays:
    return encode(*(_rows(gzip.decompress(read(name)).decode("ascii")) for name in _PACKED))


def _from_official(read: Read) -> Arrays:
    return encode(*(_rows(read(name).decode("ascii")) for name in _OFFICIAL))


ENTRY = Entry(
    name="adult",
    citation="Becker and Kohavi (1996), Adult, UCI Machine Learning Repository, doi:10.24432/C5XW20",
    licence="CC BY 4.0",
    train_rows=30_162,
    test_rows=15_060,
    features=104,
    classes=2,
    content_hash="58d5bf4d77603142e210f57c0cafd7d81706d13c2557f08b95e7bf7f9afd114a",
    sources=(
        Source(tuple(File(name, f"sha256:{digest}") for name, digest in _PACKED.items()), _from_packed),
        Source(
            tuple(File(name, f"sha256:{digest}", f"{_BASE_URL}{name}") for name, digest in _OFFICIAL.items()),
            _from_official,
            folder="adult",
        ),
    ),
)
