"""Randomness as a function of (fingerprint, purpose, trial): no global state, nothing to carry, nothing shared.

Each stream is a Philox counter generator whose 128-bit key is a BLAKE2b hash of the run's fingerprint, what the
stream is for, and the trial's number. So a trial draws the same numbers whatever ran before, beside or after it,
and two trials (or two purposes) share a stream only if two 128-bit hashes collide.
"""

from __future__ import annotations

import hashlib

import numpy as np

from coalmine import _validate

_PERSON = b"coalmine seeds 1"


def key(fingerprint: str, *, purpose: str, trial: int) -> int:
    """The 128-bit key of one stream.

    >>> key("a run", purpose="noise", trial=0) % 1000
    319
    """
    _validate.instance("fingerprint", fingerprint, str)
    trial = _validate.integer("trial", trial, at_least=0)
    parts = [part.encode() for part in (fingerprint, purpose, str(trial))]
    # Each part goes in with its length, so that no two different triples give the same bytes.
    message = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return int.from_bytes(hashlib.blake2b(message, digest_size=16, person=_PERSON).digest(), "little")


def generator(fingerprint: str, *, purpose: str, trial: int) -> np.random.Generator:
    """A NumPy generator over the stream of (fingerprint, purpose, trial).

    >>> round(float(generator("a run", purpose="noise", trial=0).random()), 6)
    0.13387
    """
    return np.random.Generator(np.random.Philox(key=key(fingerprint, purpose=purpose, trial=trial)))
