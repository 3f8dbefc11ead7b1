"""Every adversary by name."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from coalmine.adversaries.api import Api
from coalmine.adversaries.attack import Adversary
from coalmine.adversaries.backdoor import Backdoor
from coalmine.adversaries.clipbkd import ClipBkd
from coalmine.adversaries.encoding import Encoding
from coalmine.adversaries.gradient import Gradient, MaliciousDataset
from coalmine.adversaries.hidden_state import HiddenState
from coalmine.adversaries.identifiability import Identifiability
from coalmine.adversaries.last_iterate import LastIterateGradient, LastIterateInput
from coalmine.adversaries.membership import Membership
from coalmine.adversaries.pathological import PathologicalRegularizer
from coalmine.adversaries.poison import AdaptivePoison, IntermediatePoison, StaticPoison
from coalmine.errors import InvalidInputError

CATALOGUE: Mapping[str, type[Any]] = {
    "membership": Membership,
    "backdoor": Backdoor,
    "clipbkd": ClipBkd,
    "identifiability": Identifiability,
    "api": Api,
    "static-poison": StaticPoison,
    "intermediate-poison": IntermediatePoison,
    "adaptive-poison": AdaptivePoison,
    "gradient": Gradient,
    "malicious-dataset": MaliciousDataset,
    "last-iterate-gradient": LastIterateGradient,
    "last-iterate-input": LastIterateInput,
    "hidden-state": HiddenState,
    "encoding": Encoding,
    "pathological-regularizer": PathologicalRegularizer,
}


def adversary(name: str, **options: Any) -> Adversary:
    """The adversary of that name with these options.

    >>> adversary("clipbkd", copies=4).copies
    4
    """
    if name not in CATALOGUE:
        raise InvalidInputError(f"adversary = {name!r} is not known: {nearest(name, CATALOGUE)}")
    kind = CATALOGUE[name]
    known = [field.name for field in dataclasses.fields(kind)]
    for option in options:
        if option not in known:
            there = nearest(option, known) if known else "it has none"
            raise InvalidInputError(f"{option} is not an option of adversary {name!r}: {there}")
    made: Adversary = kind(**options)
    return made


def nearest(word: str, known: Mapping[str, Any] | list[str]) -> str:
    """A suggestion for a misspelt word: the nearest known one, or all of them.

    >>> nearest("clipbdk", ["membership", "clipbkd"])
    "did you mean 'clipbkd'?"
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else "expected one of " + ", ".join(sorted(known))
