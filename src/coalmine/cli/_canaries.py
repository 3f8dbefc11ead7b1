"""Canaries from the options of ``coalmine one-run prepare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coalmine.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from coalmine.one_run import Canaries

_WANTED = {
    "mislabeled": ("data",),
    "blank": ("data",),
    "extreme": ("data",),
    "low_variance": ("data", "scale"),
    "random_tokens": ("vocabulary", "length"),
    "new_tokens": ("vocabulary", "length"),
    "dirac": ("parameters", "per_coordinate"),
    "random_directions": ("parameters", "support"),
}


def canaries_of(kind: str, number_of: int, seed: int, options: dict[str, Any]) -> Canaries:
    """Canaries of this kind, from the options that it needs."""
    from coalmine import _validate
    from coalmine.one_run.canaries import KINDS

    _validate.choice("kind", kind, tuple(KINDS))
    needed = _WANTED[kind]
    missing = [name for name in needed if options[name] is None]
    if missing:
        raise InvalidInputError(f"{missing[0]} is missing: kind {kind.replace('_', '-')} needs it")
    wanted: dict[str, Any] = {name: options[name] for name in needed if name != "data"}
    if "data" in needed:
        x, y = _rows(options["data"])
        wanted |= {"x": x, "classes": _class_count(y, options["classes"])}
        if kind == "mislabeled":
            wanted["y"] = y
    elif kind == "random_tokens":
        wanted["classes"] = options["classes"]
    return KINDS[kind](canaries=number_of, seed=seed, **wanted)


def _rows(path: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """x and y of an .npz file; pickled objects are never loaded."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as archive:
            return archive["x"], archive["y"]
    except KeyError:
        raise InvalidInputError(
            f"data = {str(path)!r} is not allowed: expected an .npz file with arrays x and y"
        ) from None
    except Exception as error:  # noqa: BLE001 - NumPy and zipfile raise many kinds for what is no .npz file
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise InvalidInputError(
            f"data = {str(path)!r} cannot be read{why}: expected an .npz file with plain arrays x and y, as "
            "numpy.savez writes it"
        ) from None


def _class_count(y: NDArray[Any], given: int | None) -> int:
    """How many classes there are: as given, or from the labels."""
    if y.dtype.kind not in "iu" or not y.size:
        raise InvalidInputError("y has no whole numbers: expected class labels")
    low, high = int(y.min()), int(y.max())
    if low < 0 or (given is not None and high >= given):
        raise InvalidInputError(
            f"y has labels from {low} to {high}: expected 0 to {'the number of classes' if given is None else given} "
            "− 1"
        )
    if given is None and low == high:
        raise InvalidInputError(f"y has the label {low} alone: expected two classes or more, or --classes")
    return given or high + 1
