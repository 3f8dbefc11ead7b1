"""``coalmine adversaries``: who there is, what they may see and do."""

from __future__ import annotations

import dataclasses
from typing import Any

from coalmine.cli._output import Json, print_json, print_table


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
    print_table(
        "Adversaries, from the weakest view to the strongest",
        ["name", "sees", "access", "modification", "data set", "options (default)", "paper"],
        [
            [
                str(one["name"]), str(one["view"]).replace("_", " "), str(one["access"]), str(one["modification"]),
                str(one["dataset"]), ", ".join(f"{k} ({v})" for k, v in one["options"].items()), str(one["paper"]),
            ]
            for one in entries
        ],
    )  # fmt: skip
