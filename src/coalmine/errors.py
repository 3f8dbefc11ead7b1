"""Errors that a user can act on: what was given, and what is allowed.

Every error that bad input can cause is a subclass of both :class:`CoalmineError` and :class:`ValueError`, so
Python callers may catch either. The command line prints the message as one line and exits with code 2.
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


class DataError(CoalmineError, ValueError):
    """A data set that is missing, damaged or not readable; the message names the file and what to do."""
