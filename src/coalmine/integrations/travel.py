"""How a user's functions go to another process: as cloudpickle sends them, and what it cannot send of a script too.

Functions and classes of a script, a notebook or another function travel by value. A function under
:func:`functools.lru_cache` is no function to cloudpickle: it would be looked up by its name, in a script that a worker
does not have. Here it goes by value as well, and begins with an empty cache, as one that is imported does.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Mapping
from typing import Any

import cloudpickle

from coalmine.errors import GameStoppedError

Sealed = tuple[bytes, list[pickle.PickleBuffer]]
"""A value on its way, and the arrays in it, which are not copied."""


def sealed(value: Any) -> Sealed:
    """A value as another process can open it.

    >>> opened(sealed({"rows": [1, 2]}))
    {'rows': [1, 2]}
    """
    target, arrays = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(target, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=arrays.append).dump(value)
    return target.getvalue(), arrays


def opened(given: Sealed) -> Any:
    """The value again. What cannot be made here stops the game: no training can be played without it."""
    content, arrays = given
    try:
        return pickle.loads(content, buffers=arrays)  # noqa: S301  from the process that started this one
    except Exception as error:  # noqa: BLE001  a user's object may raise anything
        raise GameStoppedError(
            f"train, score or worlds cannot be made again in a worker process ({type(error).__name__}: {error}): put "
            "them into a module of their own and import it, or play in this process (Execution(engine='inline'))",
            kept=f"train, score or worlds cannot be made again in a worker process ({type(error).__name__})",
        ) from None


def is_found_by_name(value: Any) -> bool:
    """Whether another process finds a function under its name, because it stands at the top of a module.

    >>> is_found_by_name(functools.lru_cache(len)), is_found_by_name(functools.reduce)
    (False, True)
    """
    name = getattr(value, "__module__", None)
    if name == "__main__" or name not in sys.modules:
        return False
    found: Any = sys.modules[name]
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        """The parts of a script that cloudpickle does not know: cached functions and cached properties."""
        if isinstance(value, functools._lru_cache_wrapper) and not _goes_by_name(value):
            size = value.cache_parameters()
            state = {key: one for key, one in vars(value).items() if key != "cache_parameters"}
            return _empty, (size["maxsize"], size["typed"]), state, None, None, _fill
        if type(value) is functools.cached_property:  # whose lock Python 3.11 cannot send
            return _cached_property, (value.func, value.attrname)
        return super().reducer_override(value)


def _goes_by_name(value: Any) -> bool:
    """Unless its module is one that is sent along (:func:`cloudpickle.register_pickle_by_value`)."""
    parts = str(value.__module__).split(".")
    around = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return is_found_by_name(value) and not around & set(cloudpickle.list_registry_pickle_by_value())


class _Later:
    """Stands for a function that comes afterwards, because it may name the cached function itself."""

    function: Any

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.function(*arguments, **options)


def _empty(size: int | None, typed: bool) -> Any:
    """A cached function without its function."""
    return functools.lru_cache(size, typed)(_Later())


def _fill(cached: Any, state: Mapping[str, Any]) -> None:
    """Give it its function and its names."""
    cached.__wrapped__.function = state["__wrapped__"]
    vars(cached).update(state)


def _cached_property(function: Any, name: str | None) -> functools.cached_property[Any]:
    made = functools.cached_property(function)
    if name is not None:
        made.attrname = name
    return made
