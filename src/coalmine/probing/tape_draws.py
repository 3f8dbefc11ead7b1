"""A draw: where a step asked for it, how it asked, and what is kept of it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import sys
from types import FrameType
from typing import Any, Protocol

import torch

Site = tuple[Any, ...]
"""A call site: the operation, and the chain of lines that asked for it."""
Key = tuple[Site, int]
"""A draw: its call site, and its number among the draws made there."""
Seeded = tuple[str, int]
"""A place that draws from a generator that was just seeded, in words, and the seed."""

_ROOM = __file__.rpartition("/")[0]


class Request(Protocol):
    """A draw that a step asks for, in the words of one library."""

    operation: str
    normal: tuple[Any, Any] | None
    """Mean and standard deviation, where the law is normal."""
    by_value: bool
    """Whether the result is replayed as it is; otherwise the same generator state is used again on new input."""

    def shape(self) -> tuple[int, ...] | None:
        """The shape of the result, where it is known before it is drawn."""

    def live(self) -> torch.Tensor:
        """Draw, as the step would without the tape."""

    def seeded(self, seed: int) -> torch.Tensor:
        """Draw from a generator with this seed, without touching the step's own."""

    def state(self) -> Any:
        """The state of the generator."""

    def again(self, state: Any) -> Any:
        """Draw from that state, and leave the generator as it was."""

    def seed(self) -> int | None:
        """What the generator was seeded with, where nothing was drawn since or the step itself did it."""


@dataclasses.dataclass(slots=True)
class Draw:
    """One recorded draw."""

    value: torch.Tensor
    normal: tuple[Any, Any] | None = None
    state: Any = None
    """Of the generator, where the draw is replayed by it; a whole number is a seed."""


def caller() -> FrameType | None:
    """The frame whose ``with`` statement started the tape, which asks: frames of its own file are passed over."""
    asks = sys._getframe(1)
    frame: FrameType | None = asks
    while frame is not None and frame.f_code.co_filename in (asks.f_code.co_filename, contextlib.__file__):
        frame = frame.f_back
    return frame


def call_site(operation: str, start: FrameType | None) -> Site:
    """The operation and the lines that led to it, from the ``with`` statement inwards."""
    lines: list[tuple[str, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not start:
        name = frame.f_code.co_filename
        if lines or not name.startswith(_ROOM):
            lines.append((name, frame.f_lineno))
        frame = frame.f_back
    return (operation, *reversed(lines))


def seed_of(site: Site, number: int, *more: int) -> int:
    """A seed for draws that are not on the tape: the same in every run of this program's text."""
    text = repr((site[0], list(site[1:]), number, *more)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big")
