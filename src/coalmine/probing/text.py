"""Values that are no numbers, as numbers: a text, bytes, a date, None.

Each becomes the numbers that are written in it and, first of all, one that stands for the rest of it. So the loss in a
line of a log is found like one that is returned, and a number that is written with few digits is compared as a number.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch

MARK = " (text)"
"""Ends the name of such a value: it is compared, but no private sum is read from it."""
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_LONGEST = 100_000
_LETTERS = 2**40


def is_plain(value: Any) -> bool:
    """Whether a value is one of these: a text, None, or a value of a library that is compared by what it says."""
    if value is None or isinstance(value, (str, bytes, bytearray)):
        return True
    return type(value).__module__.partition(".")[0] in _LIBRARIES and not isinstance(value, type)


_LIBRARIES = ("decimal", "fractions", "datetime", "uuid", "pathlib", "ipaddress", "_decimal", "_datetime")


def numbers_of(value: Any) -> torch.Tensor:
    """One number for the words, then the numbers in the text.

    >>> numbers_of("loss 0.25 after 3 steps").tolist()[1:], len(numbers_of(None))
    ([0.25, 3.0], 1)
    """
    if isinstance(value, (bytes, bytearray)):
        value = value.decode("latin-1")
    text = value if isinstance(value, str) else repr(value) if value is None else str(value)
    found = _NUMBER.findall(text) if len(text) <= _LONGEST else []
    words = _NUMBER.sub("#", text) if found else text
    digest = hashlib.blake2b(f"{type(value).__name__}:{words}".encode(errors="replace"), digest_size=8).digest()
    numbers = [float(one) for one in found]
    rest = int.from_bytes(digest, "big") % _LETTERS / _LETTERS
    return torch.tensor([rest, *numbers], dtype=torch.float64).nan_to_num()
