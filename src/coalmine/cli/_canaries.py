"""Canaries from the options of ``coalmine one-run prepare``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coalmine.errors import InvalidInputError

if TYPE_CHECKING:
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
    from coalmine.one_run.files import read_npz

    _validate.choice("kind", kind, tuple(KINDS))
    needed = _WANTED[kind]
    missing = [name for name in needed if options[name] is None]
    if missing:
        raise InvalidInputError(f"{missing[0]} is missing: kind {kind.replace('_', '-')} needs it")
    wanted: dict[str, Any] = {name: options[name] for name in needed if name != "data"}
    if "data" in needed:
        path, expected = options["data"], "an .npz file with plain arrays x and y, as numpy.savez writes it"
        rows = read_npz(path, expected=expected, wanted=("x", "y"), name=f"data = {str(path)!r}")
        wanted |= {"x": rows["x"], "classes": _class_count(rows["y"], options["classes"])}
        if kind == "mislabeled":
            wanted["y"] = rows["y"]
    elif kind == "random_tokens":
        wanted["classes"] = options["classes"]
    return KINDS[kind](canaries=number_of, seed=seed, **wanted)


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
