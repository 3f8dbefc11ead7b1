"""Randomness as a function of (fingerprint, purpose, trial): no global state, nothing to carry, nothing shared.

Each stream is a Philox counter generator whose 128-bit key is a BLAKE2b hash of the run's fingerprint, what the
stream is for, and the trial's number. So a trial draws the same numbers whatever ran before, beside or after it,
and two trials (or two purposes) share a stream only if two 128-bit hashes collide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate

_PERSON = b"coalmine seeds 1"
_DIGITS = 64
"""More than any trial's number has."""


def key(fingerprint: str, *, purpose: str, trial: int) -> int:
    """The 128-bit key of one stream.

    >>> key("a run", purpose="noise", trial=0) % 1000
    319
    """
    low, high = keys(fingerprint, purpose=purpose, trials=[_validate.integer("trial", trial, at_least=0)])[0]
    return int(low) | int(high) << 64


def keys(fingerprint: str, *, purpose: str, trials: Iterable[int]) -> NDArray[np.uint64]:
    """The keys of many streams of one purpose, ``[n, 2]``: the low word and the high word of each.

    >>> keys("a run", purpose="noise", trials=[0, 1]).shape
    (2, 2)
    """
    _validate.instance("fingerprint", fingerprint, str)
    # Each part goes in with its length, so that no two different triples give the same bytes.
    begun = hashlib.blake2b(_part(fingerprint) + _part(purpose), digest_size=16, person=_PERSON)
    digests = []
    copy, lengths = begun.copy, [size.to_bytes(8, "little") for size in range(_DIGITS)]
    for trial in trials:
        text = b"%d" % trial
        one = copy()
        one.update(lengths[len(text)] + text)  # _part(str(trial)), thousands of times
        digests.append(one.digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64).reshape(-1, 2)


def _part(text: str) -> bytes:
    """One part of what is hashed: its length, then its bytes."""
    data = text.encode()
    return len(data).to_bytes(8, "little") + data


def generator(fingerprint: str, *, purpose: str, trial: int) -> np.random.Generator:
    """A NumPy generator over the stream of (fingerprint, purpose, trial).

    >>> round(float(generator("a run", purpose="noise", trial=0).random()), 6)
    0.13387
    """
    return np.random.Generator(np.random.Philox(key=key(fingerprint, purpose=purpose, trial=trial)))
