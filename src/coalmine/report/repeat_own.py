"""How to audit a training of the user's own again: the command, or a call from Python; and what cannot be told.

What is known of the functions are their names, and what is bound to them. They come from a store, which may be
anybody's: a name that is none is never printed as one.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coalmine.auditing import config

if TYPE_CHECKING:
    from coalmine.auditing.results import AuditResult
    from coalmine.records import DpSgd

_WORD = r"[^\W\d]\w*"
_DOTTED = rf"{_WORD}(?:\.{_WORD})*"
_LOADABLE = re.compile(rf"{_DOTTED}:{_DOTTED}")
"""A function by its module and name."""
_BOUND = re.compile(rf"({_DOTTED}):({_DOTTED})(?:\((.*)\))?", re.DOTALL)
"""The same with what is bound to it."""


def command(result: AuditResult) -> str | None:
    """The command that audits it; None where what was called has no name that can be loaded."""
    settings: Any = result.config
    names = _asked(result) or _named(result)
    if names is None:
        return None
    question, claimed, usual = settings.audit, settings.mechanism, config.AuditSection()
    given = [
        *((f"--{role.replace('_', '-')}", name) for role, name in names.items()),
        ("--claim-dpsgd", ",".join(str(value) for value in vars(claimed).values()))
        if claimed
        else ("--claim-epsilon", repr(question.claim_epsilon)),
        ("--trials", str(question.trials)),
        *(
            ("--set", f"audit.{name}={getattr(question, name)!r}")
            for name in ("delta", "confidence", "seed")
            if getattr(question, name) != getattr(usual, name)
        ),
        *((f"--{name}", repr(value)) for name, value in _numbers(result)),
    ]
    more = ["--messages"] if result.asked.get("messages") is True else []
    return " ".join(["coalmine audit", *(f"{name} {shlex.quote(value)}" for name, value in given), *more])


def about_command(result: AuditResult) -> str:
    """What belongs to the command."""
    parts = result.asked.get("depends_on")
    named = [one for one in parts if isinstance(one, str)] if isinstance(parts, list) else []
    more = f" and, for {', '.join(named)}, the same --depends-on as before" if named else ""
    return f"With the same code{more}, run"


def call(result: AuditResult) -> str:
    """The call from Python, with its imports."""
    settings: Any = result.config
    question, claimed = settings.audit, settings.mechanism
    found = _functions(result)
    known = [one for one in found.values() if one is not None]
    # Functions of one name in two modules are called by their modules.
    tops = {(one.module, one.top) for one in known}
    apart = len({top for _, top in tops}) == len(tops) and not {"coalmine", "functools"} & {top for _, top in tops}
    modules = sorted({one.module for one in known})
    imports = ["import functools"] if any(one.bound for one in known) else []
    if apart:
        lines = [f"from {one} import {', '.join(sorted(top for of, top in tops if of == one))}" for one in modules]
    else:
        lines = [f"import {one}" for one in modules]
    said = {role: role if one is None else one.text(apart=apart) for role, one in found.items()}
    claim = f"claim_dpsgd={_mechanism(claimed)}" if claimed else f"claim_epsilon={question.claim_epsilon!r}"
    score = said["score"]
    if several := _several(result):
        score = "{" + ", ".join(f"{name!r}: {said.get(f'score {name}', name)}" for name in several) + "}"
    arguments = [
        said["train"],
        score,
        f"worlds={said['worlds']}",
        *([f"control={said['control']}"] if "control" in said else []),
        claim,
        f"trials={question.trials}",
        f"delta={question.delta!r}",
        f"confidence={question.confidence!r}",
        f"seed={question.seed}",
    ]
    body = "\n".join(f"    {one}," for one in arguments)
    head = "\n".join([*imports, "import coalmine", *lines])
    return f"{head}\n\nresult = coalmine.audit_function(\n{body}\n)\nprint(result.verdict)"


def about_call(result: AuditResult) -> str:
    """What belongs to the call, and what of it cannot be told."""
    settings: Any = result.config
    words = ["With the same functions, call from Python."]
    untold = [role for role, one in _functions(result).items() if one is None]
    if untold:
        words.append(
            f"What {' and '.join(untold)} {'was' if len(untold) == 1 else 'were'} cannot be told by a name that can be "
            "imported: put in what you called it."
        )
    if not settings.worlds:
        words.append(
            "The worlds were given as a value, whose name is not kept: below it is assumed to be worlds, beside train."
        )
    words.append("The same functions and worlds have the same fingerprints of runs, which are below.")
    return " ".join(words)


@dataclasses.dataclass(frozen=True)
class _Function:
    """A function that can be imported: its module, its name there, and the arguments that are bound to it."""

    module: str
    name: str
    bound: str

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    def text(self, *, apart: bool) -> str:
        """As it is written in a program."""
        name = self.name if apart else f"{self.module}.{self.name}"
        return f"functools.partial({name}, {self.bound})" if self.bound else name


def _asked(result: AuditResult) -> dict[str, str] | None:
    """The names that a command was given, all of which must be names."""
    names = {role: result.asked.get(role) for role in ("train", "score", "worlds", "control_train")}
    if names["control_train"] is None:
        del names["control_train"]
        if "control" in result.subject.details:
            return None
    return names if all(_is_name(one) for one in names.values()) else None  # type: ignore[return-value]


def _named(result: AuditResult) -> dict[str, str] | None:
    """The same of an audit that was called from Python, where its functions are found by their own names."""
    settings: Any = result.config
    names = {"train": settings.train, "score": settings.score, "worlds": settings.worlds}
    if "control" in result.subject.details:
        names["control_train"] = str(result.subject.details["control"])
    return names if all(_is_name(one) for one in names.values()) else None


def _is_name(text: object) -> bool:
    return isinstance(text, str) and _LOADABLE.fullmatch(text) is not None


def _numbers(result: AuditResult) -> list[tuple[str, float]]:
    """Further options that a command was given."""
    found = [(name, result.asked.get(name)) for name in ("timeout", "batched", "threads")]
    return [(name, value) for name, value in found if isinstance(value, (int, float)) and not isinstance(value, bool)]


def _functions(result: AuditResult) -> dict[str, _Function | None]:
    """Every function of the audit by its role; None where it has no name that can be imported."""
    settings: Any = result.config
    several = _several(result)
    parts = settings.score.split(", ") if several else [settings.score]
    if len(parts) != max(1, len(several)):  # what is bound to one has a comma
        parts = [""] * len(several)
    found = {"train": _function(settings.train)}
    if several:
        found |= {f"score {name}": _function(part) for name, part in zip(several, parts, strict=True)}
        found["score"] = next(iter(found.values()))
    else:
        found["score"] = _function(settings.score)
    train = found["train"]
    if settings.worlds:
        found["worlds"] = _function(settings.worlds)
    elif train is not None:
        found["worlds"] = _Function(train.module, "worlds", "")
    else:
        found["worlds"] = None
    if "control" in result.subject.details:
        found["control"] = _function(str(result.subject.details["control"]))
    return found


def _function(name: str) -> _Function | None:
    """What a name in the config says, if all of it is plain.

    >>> _function("mytraining:train(sigma=0.3)").text(apart=True)
    'functools.partial(train, sigma=0.3)'
    >>> _function("mytraining:build.<locals>.train"), _function("mytraining:train(<ndarray>)")
    (None, None)
    """
    parts = _BOUND.fullmatch(name)
    if parts is None:
        return None
    module, called, bound = parts.groups()
    if not bound:
        return _Function(module, called, "")
    try:
        tree = ast.parse(f"f({bound})", mode="eval").body
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
            return None
        for value in (*tree.args, *(one.value for one in tree.keywords)):
            ast.literal_eval(value)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if any(one.arg is None for one in tree.keywords):
        return None
    return _Function(module, called, ast.unparse(tree)[2:-1])


def _several(result: AuditResult) -> Sequence[str]:
    """The names of the scores, where they have names."""
    return [str(one.attack.options["score"]) for one in result.adversaries if "score" in one.attack.options]


def _mechanism(claimed: DpSgd) -> str:
    """The claimed DP-SGD as it is written in a program; what is as usual is left out."""
    usual = {"sampling": "poisson", "relation": "add_remove"}
    values = {name: getattr(value, "value", value) for name, value in vars(claimed).items()}
    said = ", ".join(f"{name}={value!r}" for name, value in values.items() if usual.get(name) != value)
    return f"coalmine.DpSgd({said})"
