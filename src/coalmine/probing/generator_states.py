"""Is the state of the generator that the noise comes from released? Whoever has it computes the noise and takes it off.

A checkpoint from which a training can go on holds such states. From the one before a draw that draw follows, and from
the one after it all that come later. So the step runs with its generators listened to, and what it releases is compared
with every state that they were in, however it is packed: bytes, words, or a library's own dict.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from coalmine.probing import faults
from coalmine.probing.bench import Bench
from coalmine.probing.carriers import Reading
from coalmine.probing.findings import Measurement
from coalmine.probing.snapshot import GENERATORS, state_of

_BYTES = len(torch.Generator().get_state())
"""Of a torch generator on a CPU: a Mersenne twister, its place, and what is left of the last draw."""
_WORDS = 624
"""Of 32 bits: the Mersenne twister of NumPy and of Python, which writes the place behind them."""
_SHORT = 16
"""Bytes of a torch generator on a GPU: seed and offset. Any sixteen bytes look like that, so only equality counts."""
_STEPS = 2
_LENGTHS = (_BYTES, _WORDS, _WORDS + 1, _SHORT)
NAME = "generators"


@dataclasses.dataclass
class _Seen:
    """What some steps released that is the state of a generator."""

    noise: set[bytes] = dataclasses.field(default_factory=set)
    """The states of generators that noise was drawn from, before and after each draw."""
    marks: list[dict[str, bytes]] = dataclasses.field(default_factory=list)
    """For each step, by name."""
    held: dict[str, set[bytes]] = dataclasses.field(default_factory=dict)
    """The states of the generators that stand in the state themselves, by name."""

    def hear(self, is_noise: bool, state: Any) -> None:
        """Take a state that a generator was in."""
        known = mark(state) if is_noise else None
        if known is not None:
            self.noise.add(known)

    def names(self) -> dict[str, bool]:
        """What is the state of a generator, and whether noise came from that one."""
        found = {}
        for name in sorted({name for one in self.marks for name in one}):
            here = [one[name] for one in self.marks if name in one]
            noise = any(one in self.noise for one in here)
            if len(here[0]) == _SHORT:
                noise = set(here) <= self.noise and len(set(here)) == len(self.marks) > 1
            if (noise or len(here[0]) > _SHORT) and not any(whole in found for whole in _wholes(name)):
                found[name] = noise
        return found


def measure(bench: Bench, reading: Reading) -> Measurement | None:
    """Compare what two steps release with the states of the generators that draw; None without noise."""
    if not reading.noise:
        return None
    seen = _Seen()
    for number in range(_STEPS + bench.behind):
        if not _took(bench, reading, seen, first=not number):
            break
    bench.put_back()
    names = {name: noise for name, noise in seen.names().items() if not _is_kept(bench, name)}
    held = [name for name, states in seen.held.items() if states & seen.noise and not _is_kept(bench, name)]
    return _measured(names, held)


def _took(bench: Bench, reading: Reading, seen: _Seen, *, first: bool) -> bool:
    """Take a step and look at what it releases; whether there is a reason to take another one."""
    released: dict[str, Any] = {}

    def look(returned: Any) -> None:
        released.update(bench.release.parts(returned, "returned"))

    shown = bench.run(reading.base.batch, bench.tape.follow(seen.hear), fresh=first, look=look)
    if shown.error:
        return False
    for name, value in bench.release.parts(bench.release.roots, "state").items():
        if isinstance(value, GENERATORS):
            if bench.subject.state is not None:  # else it is only what the step's function holds
                seen.held.setdefault(name, set()).add(mark(value) or b"")
        else:
            released[name] = value
    every = (*released.items(), *shown.released.items())  # a list of one has the name of that one
    seen.marks.append({name: known for name, value in every if (known := mark(value)) is not None})
    return bool(seen.marks[0] or seen.held)


def mark(value: Any) -> bytes | None:
    """What the state of a generator is known by, however it is packed; None for what looks like none.

    >>> drawn = np.random.default_rng(0)
    >>> mark(drawn) == mark(drawn.bit_generator.state), mark(torch.zeros(5056)), mark("a text")
    (True, None, None)
    """
    if isinstance(value, GENERATORS):
        return mark(state_of(value))
    if isinstance(value, np.random.BitGenerator):
        return mark(value.state)
    if isinstance(value, Mapping):
        return _of_words(_whole(value.get("state"))) if "bit_generator" in value else None
    if isinstance(value, tuple) and len(value) in (3, 5) and isinstance(value[0], (int, str)):
        return mark(value[1])  # of Python and of RandomState: a version or a name comes first
    if isinstance(value, (bytes, bytearray)):
        return _of_bytes(bytes(value))
    if isinstance(value, (list, tuple)):
        return _of_list(value) if len(value) in _LENGTHS and all(type(one) is int for one in value) else None
    if isinstance(value, (torch.Tensor, np.ndarray)) and value.shape in [(length,) for length in _LENGTHS]:
        return _of_list(value.tolist()) if not _floating(value) else None
    return None


def _floating(value: Any) -> bool:
    kind = value.dtype
    return kind.is_floating_point or kind.is_complex if isinstance(kind, torch.dtype) else kind.kind not in "iu"


def _of_list(words: Sequence[int]) -> bytes | None:
    """A list that is as long as a state."""
    if len(words) in (_BYTES, _SHORT):
        return _of_bytes(bytes(words)) if min(words) >= 0 and max(words) < 256 else None
    within = min(words) >= 0 and 2**31 <= max(words) < 2**32
    return _of_words(words[:_WORDS]) if within else None


def _of_bytes(held: bytes) -> bytes | None:
    """Bytes that a torch generator takes as its state."""
    if len(held) == _SHORT:
        return held
    if len(held) != _BYTES:
        return None
    try:
        torch.Generator().set_state(torch.tensor(list(held), dtype=torch.uint8))
    except RuntimeError:
        return None
    return hashlib.blake2b(held, digest_size=32).digest()


def _of_words(words: Sequence[int]) -> bytes | None:
    """Whole numbers; of a Mersenne twister without the place in them, which is one of a few hundred."""
    some = words[:_WORDS] if len(words) > _WORDS else words
    return hashlib.blake2b(repr([int(one) for one in some]).encode(), digest_size=32).digest() if words else None


def _whole(value: Any) -> list[int]:
    """Every whole number in a dict of numbers and arrays, in the order of its keys."""
    if isinstance(value, Mapping):
        return [one for key in sorted(value, key=str) for one in _whole(value[key])]
    if isinstance(value, (np.ndarray, torch.Tensor, list, tuple)):
        return [int(one) for one in (value if isinstance(value, (list, tuple)) else value.tolist())]
    return [int(value)] if isinstance(value, (int, np.integer)) else []


def _is_kept(bench: Bench, name: str) -> bool:
    """Whether a value, or what it is a part of, was said to be seen by nobody."""
    return any(bench.release.is_kept(one) for one in (name, *_wholes(name)))


def _wholes(name: str) -> list[str]:
    """What a value is a part of, by name."""
    return [name[:place] for place, sign in enumerate(name) if sign in ".["]


def _measured(names: Mapping[str, bool], held: Sequence[str]) -> Measurement:
    """What was found, in words."""
    known = [name for name, noise in names.items() if noise]
    others = [name for name, noise in names.items() if not noise]
    details = {"states": list(names), "noise": known}
    if known:
        name, more = known[0], f" (and {len(known) - 1} more)" if len(known) > 1 else ""
        found = faults.finding(
            faults.GENERATOR,
            f"The step releases {name}{more}, the state of a generator that its noise comes from: whoever has it "
            f'computes the noise and takes it off. If nobody outside sees it, say kept=("{name}",).',
            number=1.0,
            allowed=0.0,
            witness=name,
        )
        return Measurement(name=NAME, sentence=found.sentence, findings=(found,), details=details)
    blind = ""
    if others:
        blind = (
            f"{others[0]} is the state of a random generator; no noise of two steps came from it, but whoever has it "
            "knows what else is drawn from it (which rows a batch has, how they are changed), and sampling then hides "
            f'nobody; if nobody outside sees it, say kept=("{others[0]}",)'
        )
    elif held:
        blind = (
            f"{held[0]}, a generator that the noise comes from, is handed over as part of what is released; whoever "
            f'has its state computes the noise; if nobody sees it, leave it out of state, or say kept=("{held[0]}",)'
        )
    said = "The state of a generator is released." if blind else "No state of a generator is released."
    return Measurement(name=NAME, sentence=said, blind=blind, details=details)
