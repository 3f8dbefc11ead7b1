"""``coalmine adversaries``: who there is, what they may see and do."""

from __future__ import annotations

import dataclasses
from typing import Any

from coalmine.cli._output import Json, print_facts, print_json, print_lines


def adversaries(json: Json = False) -> None:
    """List the adversaries with their threat model (as Table I of nasr-2021)."""
    from coalmine.adversaries import CATALOGUE

    entries: list[dict[str, Any]] = [
        {
            "name": name,
            **{key: str(value) for key, value in dataclasses.asdict(kind.threat).items()},
            "options": {field.name: field.default for field in dataclasses.fields(kind)},
        }
        for name, kind in CATALOGUE.items()
    ]
    if json:
        print_json(entries)
        return
    for one in entries:
        options = ", ".join(
            f"{name} = {'chosen for you' if value is None else value}" for name, value in one["options"].items()
        )
        print_facts(
            one["name"],
            [
                ("what", one["summary"]),
                ("sees", _sees(one["view"].replace("_", " "), one["access"])),
                ("changes", one["modification"]),
                ("other rows", one["dataset"]),
                ("options", options or "none"),
                ("paper", one["paper"]),
            ],
        )
        print_lines([""])
    print_lines(['An audit names them in its config file: [[adversary]] name = "clipbkd", copies = 4 (a line each).'])


def _sees(view: str, access: str) -> str:
    """The view, and the paper's word for it where that says more."""
    return view if access == view else f"{view}: {access}"
