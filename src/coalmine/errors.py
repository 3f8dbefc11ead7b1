"""Errors that a user can act on: what was given, and what is allowed.

Every error that bad input can cause is a subclass of both :class:`CoalmineError` and :class:`ValueError`, so
Python callers may catch either; a game that stops half-way raises a :class:`CoalmineError` too. The command line
prints the message as one line and exits with code 2.
"""

from __future__ import annotations


class CoalmineError(Exception):
    """Base of every error that Coalmine raises on purpose."""


class InvalidInputError(CoalmineError, ValueError):
    """A value outside what is allowed; the message names the option, the value given and the allowed range."""


class UnsupportedError(CoalmineError, ValueError):
    """A combination for which no valid answer exists here; the message says why and what to use instead."""


class StoreError(CoalmineError, ValueError):
    """A store of trials that cannot be read or written as asked; the message says which file, why and what to do."""


class GameStoppedError(CoalmineError):
    """Going on with a game is of no use; the message says why. What is stored stays.

    ``kept`` is what may be stored of it: the message may quote what a user's code said, which may quote the data.
    """

    def __init__(self, message: str, *, kept: str | None = None) -> None:
        super().__init__(message)
        self.kept = message if kept is None else kept


class WorkersDiedError(GameStoppedError):
    """A worker process ended without a word; what was stored stays, and the next run tries the rest again."""


class BlocksFailedError(CoalmineError):
    """Some blocks could not be trained; everything else is stored, and the next run tries them again."""


class DataError(CoalmineError, ValueError):
    """A data set that is missing, damaged or not readable; the message names the file and what to do."""
