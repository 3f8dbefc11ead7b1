"""Every adversary by name: Coalmine's own, and those that other packages bring.

A package brings an adversary by an entry point of the group ``coalmine.adversaries``: a name, and where its class is.
Only what is asked for is imported.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

import coalmine
from coalmine import _validate
from coalmine.adversaries.api import Api
from coalmine.adversaries.attack import LATER, Adversary, ThreatModel
from coalmine.adversaries.backdoor import Backdoor
from coalmine.adversaries.blank_row import BlankRow
from coalmine.adversaries.clipbkd import ClipBkd
from coalmine.adversaries.crafted import AdaptiveRow, CraftedGradient, CraftedRow, CraftedRowSteps
from coalmine.adversaries.encoding import Encoding
from coalmine.adversaries.gradient import Gradient, MaliciousDataset
from coalmine.adversaries.hidden_state import HiddenState
from coalmine.adversaries.identifiability import Identifiability
from coalmine.adversaries.last_iterate import LastIterateGradient, LastIterateInput
from coalmine.adversaries.membership import Membership
from coalmine.adversaries.pathological import PathologicalRegularizer
from coalmine.adversaries.poison import AdaptivePoison, IntermediatePoison, StaticPoison
from coalmine.errors import InvalidInputError
from coalmine.records import content_hash, plain
from coalmine.training import class_identity

GROUP = "coalmine.adversaries"
"""The group of entry points."""
_OWN: Mapping[str, type[Any]] = {
    "membership": Membership,
    "backdoor": Backdoor,
    "clipbkd": ClipBkd,
    "identifiability": Identifiability,
    "api": Api,
    "static-poison": StaticPoison,
    "intermediate-poison": IntermediatePoison,
    "adaptive-poison": AdaptivePoison,
    "blank-row": BlankRow,
    "crafted-row": CraftedRow,
    "crafted-row-steps": CraftedRowSteps,
    "adaptive-row": AdaptiveRow,
    "crafted-gradient": CraftedGradient,
    "gradient": Gradient,
    "malicious-dataset": MaliciousDataset,
    "last-iterate-gradient": LastIterateGradient,
    "last-iterate-input": LastIterateInput,
    "hidden-state": HiddenState,
    "encoding": Encoding,
    "pathological-regularizer": PathologicalRegularizer,
}
_ROOMS: Mapping[str, str] = {
    "one-run-black-box": "coalmine.one_run.adversaries:OneRunBlackBox",
    "one-run-white-box": "coalmine.one_run.adversaries:OneRunWhiteBox",
}
"""Adversaries that another room of Coalmine brings, and where: like those of other packages, loaded when asked for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listed:
    """An adversary of the catalogue, the package that brings it, and why it cannot be used if it cannot."""

    name: str
    package: str
    version: str
    kind: type[Any] | None
    problem: str = ""


def catalogue() -> dict[str, Listed]:
    """Every adversary by name, Coalmine's own first. Classes of other packages are imported for this.

    >>> catalogue()["clipbkd"].package
    'coalmine'
    """
    return {name: _listed(name) for name in _names()}


def _names() -> list[str]:
    """Every name, known without an import."""
    return list(dict.fromkeys((*_OWN, *_ROOMS, *sorted(_points(tuple(sys.path)).names))))


@functools.lru_cache(maxsize=4)
def _points(path: tuple[str, ...]) -> metadata.EntryPoints:
    """What the packages on this path bring: every game asks, and looking through all of them takes a while."""
    return metadata.entry_points(group=GROUP)


def _listed(name: str) -> Listed:
    """One name of the catalogue."""
    points = list(_points(tuple(sys.path)).select(name=name))
    if name in _OWN or name in _ROOMS:
        kind = _OWN.get(name) or metadata.EntryPoint(name=name, value=_ROOMS[name], group=GROUP).load()
        problem = f"{_packages(points)} brings another of that name" if points else ""
        package, version = "coalmine", coalmine.__version__
    else:
        kind, problem = _loaded(points)
        dist = points[0].dist
        package, version = (dist.name, dist.version) if dist else ("?", "?")
    return Listed(name=name, package=package, version=version, kind=None if problem else kind, problem=problem)


def _loaded(points: Sequence[metadata.EntryPoint]) -> tuple[type[Any] | None, str]:
    """The class that another package brings, or why it cannot be used."""
    if len(points) > 1:
        return None, f"{_packages(points)} each bring one of that name"
    try:
        kind = points[0].load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - another package's code may raise anything
        return None, f"{points[0].value} cannot be imported ({type(error).__name__}: {error})"
    if _is_adversary(kind):
        return kind, ""
    expected = "expected a dataclass with a ThreatModel, threat, and craft(scene)"
    return None, f"{points[0].value} is no adversary: {expected}"


def _packages(points: Collection[metadata.EntryPoint]) -> str:
    """The packages of entry points, for a message."""
    return " and ".join(f"package {point.dist.name if point.dist else '?'}" for point in points)


def _is_adversary(kind: object) -> bool:
    """A dataclass that does what :class:`Adversary` asks for."""
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return False
    threat, craft = getattr(kind, "threat", None), getattr(kind, "craft", None)
    return isinstance(threat, ThreatModel) and callable(craft)


def adversary(name: str, **options: Any) -> Adversary:
    """The adversary of that name with these options.

    >>> adversary("clipbkd", copies=4).copies
    4
    """
    if name not in (known := _names()):
        raise InvalidInputError(f"adversary = {name!r} is not known: {_validate.nearest(name, known)}")
    kind = (listed := _listed(name)).kind
    if kind is None:
        raise InvalidInputError(f"adversary = {name!r} of package {listed.package} cannot be used: {listed.problem}")
    fields = [field.name for field in dataclasses.fields(kind)]
    for option in options:
        if option not in fields:
            there = _validate.nearest(option, fields) if fields else "it has none"
            raise InvalidInputError(f"{option!r} is not an option of adversary {name!r}: {there}")
    try:
        made: Adversary = kind(**options)
    except TypeError as error:  # an option without a default is missing
        raise InvalidInputError(f"adversary {name!r}: {error}") from None
    return made


def resolve(adversary_or_name: str | Adversary, **options: Any) -> Adversary:
    """An adversary from its name and options, or as it is given.

    Args:
        adversary_or_name: a name of the catalogue, or an adversary.
        options: with a name, its options; an adversary has its own.

    Returns:
        The adversary.

    >>> resolve(adversary("api")) == resolve("api")
    True
    """
    given = adversary_or_name
    if isinstance(given, str):
        return adversary(given, **options)
    if isinstance(given, type) or not _is_adversary(type(given)):
        raise InvalidInputError(
            f"adversary = {given!r} is not allowed: expected a name, or an instance of a dataclass with a ThreatModel, "
            "threat, and craft(scene)"
        )
    if options:
        raise InvalidInputError(f"{next(iter(options))} is not allowed beside an adversary that is given as an object")
    return given


def identity_of(adversary: Adversary) -> dict[str, Any]:
    """All that decides what an adversary does, as plain JSON types: its name, and every option with its value (but for
    one that came later and does what was done before, so that trials of before are found again).

    One of another package has that package's name and version beside it; one that no catalogue lists has the place and
    the source of its class instead.

    >>> identity_of(resolve("backdoor", copies=2))
    {'name': 'backdoor', 'options': {'copies': 2, 'target': 0, 'square': 5}}
    """
    kind = type(adversary)
    fields = dataclasses.fields(adversary)  # type: ignore[arg-type]
    values = {field.name: getattr(adversary, field.name) for field in fields}
    later = [one for one in fields if one.metadata.items() >= LATER.items()]
    unset = {one.name for one in later if values[one.name] in (one.default, one.metadata.get("before", one.default))}
    options = {name: _value(name, value) for name, value in values.items() if name not in unset}
    own = {one: name for name, one in _OWN.items()}
    if kind in own:
        return {"name": own[kind], "options": options}
    place = f"{kind.__module__}:{kind.__qualname__}"
    for name, where in _ROOMS.items():
        if where == place:
            return {"name": name, "options": options}
    for listed in catalogue().values():
        if listed.kind is kind:
            package = {"package": listed.package, "version": listed.version}
            return {"name": listed.name, "options": options, **package}
    return {"name": kind.__qualname__, "options": options, **class_identity(kind)}


def _value(name: str, value: Any) -> Any:
    """An option as plain JSON types; arrays by their content."""
    if isinstance(value, np.ndarray):
        return {"sha256": content_hash({name: value})}
    if isinstance(value, (list, tuple)):
        return [_value(name, item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _value(name, item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return plain(value)
    raise InvalidInputError(
        f"{name} = {value!r} cannot identify an adversary: expected numbers, text, arrays, or lists and tables of these"
    )
