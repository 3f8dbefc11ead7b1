"""What a bound is made with: a method by its name, and the mechanism that it assumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coalmine import _validate
from coalmine.cli._options import underscored
from coalmine.errors import InvalidInputError
from coalmine.records import DpSgd, Relation, Sampling

if TYPE_CHECKING:
    from coalmine.bounds import Method


def choose_method(name: str, family: str | None) -> Method:
    """The method that ``--method`` and ``--family`` name together."""
    from coalmine.bounds import METHODS

    wanted = underscored(name)
    named = [method for method in METHODS.values() if wanted in (method.name, method.base)]
    if not named:
        names = dict.fromkeys((method.base or method.name).replace("_", "-") for method in METHODS.values())
        raise InvalidInputError(f"method = {name!r} is not allowed: expected one of {', '.join(names)}")
    if family is None:
        return next((method for method in named if method.name == wanted), named[0])
    variants = {method.variant: method for method in named if method.variant}
    if not variants:
        raise InvalidInputError(f"family = {family!r} is not allowed with method {name}")
    return variants[_validate.choice("family", underscored(family), variants)]


def known_mechanism(
    method: Method, *, sample_rate: float | None, steps: int | None, sampling: str, relation: str
) -> DpSgd | None:
    """The mechanism that a method assumes, from its parts; its noise is what is looked for."""
    parts = {"sample_rate": sample_rate, "steps": steps}
    if not method.needs_mechanism:
        given = [f"{part} = {value}" for part, value in parts.items() if value is not None]
        if given:
            raise InvalidInputError(f"{given[0]} is not allowed with method {method.name}")
        return None
    missing = [part for part, value in parts.items() if value is None]
    if missing:
        raise InvalidInputError(f"{missing[0]} is missing: expected a value with method = {method.name!r}")
    assert sample_rate is not None
    assert steps is not None
    return DpSgd(
        sample_rate=sample_rate,
        noise_multiplier=1.0,
        steps=steps,
        sampling=Sampling.parse(underscored(sampling)),
        relation=Relation.parse(underscored(relation)),
    )
