"""How to run an audit again: the very command where one says it all, otherwise what to save or to call."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import tomli_w

from coalmine.auditing import config
from coalmine.errors import CoalmineError
from coalmine.report import repeat_own

if TYPE_CHECKING:
    from coalmine.auditing.results import AuditResult

_LONGEST = 400
"""A command of more characters is better kept as a file."""


def command(result: AuditResult) -> str | None:
    """The command that plays this audit again, whatever the folder it is given in; None where no single one does."""
    if result.subject.given:
        return None
    if result.subject.own:
        return repeat_own.command(result)
    found = _options(result.config)
    line = "" if found is None else f"coalmine audit {found}".strip()
    return line if 0 < len(line) <= _LONGEST else None


def steps(result: AuditResult) -> list[dict[str, str]]:
    """What to do, one after the other: a text, and what to type or to save (may be empty)."""
    settings: Any = result.config
    found = command(result)
    if result.subject.own:
        if found is not None:
            return [{"text": repeat_own.about_command(result), "code": found}]
        return [{"text": repeat_own.about_call(result), "code": repeat_own.call(result)}]
    toml = tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True))
    if result.subject.given:
        given = ", ".join(result.subject.given)
        return [{"text": f"Call coalmine.audit with the same {given} and this config:", "code": toml}]
    return [
        {"text": "Save this as audit.toml:", "code": toml},
        {"text": "and run", "code": "coalmine audit audit.toml --report report.html"},
    ]


def _options(settings: config.AuditConfig | config.FunctionConfig) -> str | None:
    """Options of ``coalmine audit`` that give exactly this config, from the preset that needs the fewest."""
    found = []
    for preset in config.presets():
        base = config.load(preset=preset)
        overrides, adversaries = _differences(settings, base)
        try:
            if config.load(preset=preset, overrides=overrides, adversaries=adversaries) != settings:
                continue
        except CoalmineError:  # some combinations cannot be reached value by value
            continue
        named = [] if preset == "default" else ["--preset", preset]
        for override in overrides:
            key, _, value = override.partition("=")
            short = {"audit.trials": "--trials", "audit.claim_epsilon": "--claim-epsilon"}.get(key)
            named += [short, value] if short else ["--set", override]
        for one in adversaries or ():
            named += ["--adversary", one]
        found.append(" ".join(shlex.quote(word) for word in named))
    return min(found, key=len, default=None)


def _differences(
    settings: config.AuditConfig | config.FunctionConfig, base: config.AuditConfig
) -> tuple[list[str], list[str] | None]:
    """The values to set, and the adversaries to name, on the way from ``base`` to these settings."""
    wanted, usual = (one.model_dump(mode="json", exclude_none=True) for one in (settings, base))
    overrides = [
        f"{section}.{key}={_toml(value)}"
        for section in ("data", "model", "training", "audit")
        for key, value in wanted[section].items()
        if usual[section].get(key) != value
    ]
    if any(one.startswith("audit.trials=") for one in overrides):  # which drops the numbers of single adversaries
        usual["adversary"] = [{key: one[key] for key in one if key != "trials"} for one in usual["adversary"]]
    if wanted["adversary"] == usual["adversary"]:
        return overrides, None
    return overrides, [_adversary(one) for one in wanted["adversary"]]


def _adversary(tree: dict[str, Any]) -> str:
    """An adversary as the command line takes it: ``name:option=value,option=value``."""
    options = ",".join(f"{key}={_toml(value)}" for key, value in tree.items() if key != "name")
    return f"{tree['name']}:{options}" if options else str(tree["name"])


def _toml(value: Any) -> str:
    """A value in TOML, on one line; a plain word needs no quotes.

    >>> _toml([16, 8]), _toml("digits"), _toml(0.5)
    ('[16,8]', 'digits', '0.5')
    """
    if isinstance(value, str):
        return value if value.replace("-", "").replace("_", "").isalpha() else tomli_w.dumps({"v": value})[4:-1]
    if isinstance(value, list):
        return f"[{','.join(_toml(one) for one in value)}]"
    return tomli_w.dumps({"v": value})[4:-1]
