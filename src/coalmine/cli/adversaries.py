"""``coalmine adversaries``: who there is, what they may see and do."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from coalmine.cli._output import Json, print_facts, print_json, print_lines

if TYPE_CHECKING:
    from coalmine.adversaries import Listed


def adversaries(json: Json = False) -> None:
    """List the adversaries with their threat model (as Table I of nasr-2021), those of other packages too."""
    from coalmine.adversaries import catalogue

    entries = [_entry(listed) for listed in catalogue().values()]
    if json:
        print_json(entries)
        return
    for one in entries:
        print_facts(one["name"], _facts(one))
        print_lines([""])
    print_lines(['An audit names them in its config file: [[adversary]] name = "clipbkd", copies = 4 (a line each).'])


def _entry(listed: Listed) -> dict[str, Any]:
    """One adversary as plain data."""
    entry: dict[str, Any] = {"name": listed.name, "package": listed.package, "version": listed.version}
    if listed.kind is None:
        return {**entry, "problem": listed.problem}
    defaults = {
        field.name: "required" if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(listed.kind)
    }
    threat = {key: str(value) for key, value in dataclasses.asdict(listed.kind.threat).items()}
    return {**entry, **threat, "options": defaults}


def _facts(one: dict[str, Any]) -> list[tuple[str, str]]:
    """What is printed about one adversary."""
    package = [] if one["package"] == "coalmine" else [("package", f"{one['package']} {one['version']}")]
    if "problem" in one:
        return [*package, ("cannot be used", one["problem"])]
    options = ", ".join(
        f"{name} = {'chosen for you' if value is None else value}" for name, value in one["options"].items()
    )
    return [
        ("what", one["summary"]),
        ("sees", _sees(one["view"].replace("_", " "), one["access"])),
        ("changes", one["modification"]),
        ("other rows", one["dataset"]),
        ("options", options or "none"),
        ("paper", one["paper"]),
        *package,
    ]


def _sees(view: str, access: str) -> str:
    """The view, and the paper's word for it where that says more."""
    return view if access == view else f"{view}: {access}"
