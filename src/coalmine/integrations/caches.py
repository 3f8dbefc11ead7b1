"""What a function under :func:`functools.lru_cache` keeps: results that a later call is given again."""

from __future__ import annotations

import functools
import gc
from typing import Any

from coalmine.integrations.content import NoContentError, content_hash
from coalmine.integrations.travel import is_found_by_name

CACHED = functools._lru_cache_wrapper
"""The class of such functions."""


def kept_results(function: Any) -> list[tuple[Any, Any]]:
    """The results in a cache with what each is kept under. Python offers no way to ask but what the cache refers to.

    >>> double = functools.lru_cache(lambda number: 2 * number)
    >>> double(3), double(4), kept_results(double)
    (6, 8, [(3, 6), (4, 8)])
    """
    size = function.cache_parameters()["maxsize"]
    held = [one for one in gc.get_referents(function) if one is not type(function)]
    if size is None:
        cache = next((one for one in held if type(one) is dict), {})
        return list(cache.items())
    found = []
    # First come the entries: what it is kept under, the result, and the class of an entry.
    while size and len(held) > 2 and isinstance(held[2], type) and held[2].__name__ == "_lru_list_elem":
        found.append((held[0], held[1]))
        held = held[3:]
    return found


def is_own_cache(function: Any, *, own: bool) -> bool:
    """Whether a cache is the user's: around a function of theirs (``own``), or put by them around one of a package."""
    return own or not is_found_by_name(function)


def entry_name(key: Any) -> str:
    """What an entry is kept under, as a text; an object without a content has its own as long as it is held."""
    try:
        return content_hash(key)[:16]
    except NoContentError:
        parts = key if isinstance(key, (tuple, list)) else (key,)
        return " ".join(_part_name(one) for one in parts)


def _part_name(part: Any) -> str:
    try:
        return content_hash(part)[:16]
    except NoContentError:
        return f"{type(part).__qualname__} {id(part)}"
