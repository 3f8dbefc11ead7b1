"""Keys of streams: the hash that was written down, one at a time and many at once."""

import hashlib

import numpy as np

from coalmine import seeds


def test_a_key_is_the_hash_of_its_three_parts():
    parts = [part.encode() for part in ("fingerprint", "noise", "12345")]
    message = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    digest = hashlib.blake2b(message, digest_size=16, person=b"coalmine seeds 1").digest()
    assert seeds.key("fingerprint", purpose="noise", trial=12345) == int.from_bytes(digest, "little")


def test_many_keys_are_those_of_one_at_a_time():
    trials = [0, 7, 10, 10**12]
    words = seeds.keys("ab" * 32, purpose="noise", trials=trials)
    assert words.dtype == np.uint64
    single = [seeds.key("ab" * 32, purpose="noise", trial=trial) for trial in trials]
    assert [(low, high) for low, high in words.tolist()] == [(key % 2**64, key >> 64) for key in single]
    assert len(set(single) | set(seeds.keys("ab" * 32, purpose="start", trials=trials)[:, 0].tolist())) == 8
    assert seeds.keys("ab" * 32, purpose="noise", trials=[]).shape == (0, 2)
