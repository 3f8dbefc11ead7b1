"""``coalmine adversaries``: who there is, what they may see and do.

Coalmine's own are listed from a file that comes with it, because loading them loads torch, which takes seconds. A test
holds the file against the classes (``as_file``).
"""

from __future__ import annotations

import dataclasses
import json as _json
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any

from coalmine.cli._output import Json, print_facts, print_json, print_lines

if TYPE_CHECKING:
    from coalmine.adversaries import Listed

_FILE = resources.files("coalmine.cli") / "adversaries.json"
_GROUP = "coalmine.adversaries"


def adversaries(json: Json = False) -> None:
    """List the adversaries with their threat model (as Table I of nasr-2021), those of other packages too."""
    entries = listed() if metadata.entry_points(group=_GROUP) else own()
    if json:
        print_json({"adversaries": entries})
        return
    for one in entries:
        print_facts(one["name"], _facts(one))
        print_lines([""])
    print_lines(['An audit names them in its config file: [[adversary]] name = "clipbkd", copies = 4 (a line each).'])


def own() -> list[dict[str, Any]]:
    """Coalmine's own adversaries, from the file."""
    import coalmine

    found: list[dict[str, Any]] = _json.loads(_FILE.read_text(encoding="utf-8"))
    return [{"name": one.pop("name"), "package": "coalmine", "version": coalmine.__version__, **one} for one in found]


def listed() -> list[dict[str, Any]]:
    """Every adversary, from its class; this loads torch."""
    from coalmine.adversaries import catalogue

    return [_entry(one) for one in catalogue().values()]


def names() -> list[str]:
    """The names of all adversaries, for the shell."""
    return [one["name"] for one in own()] + sorted(metadata.entry_points(group=_GROUP).names)


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
    view = one["view"].replace("_", " ")
    sees = view if one["access"] == view else f"{view}: {one['access']}"  # the paper's word too, if it says more
    options = ", ".join(
        f"{name} = {'chosen for you' if value is None else value}" for name, value in one["options"].items()
    )
    return [
        ("what", one["summary"]),
        ("sees", sees),
        ("changes", one["modification"]),
        ("other rows", one["dataset"]),
        ("options", options or "none"),
        ("paper", one["paper"]),
        *package,
    ]


def as_file() -> str:
    """What the file must hold, from the classes."""
    mine = [one for one in listed() if one["package"] == "coalmine"]
    kept = [{key: value for key, value in one.items() if key not in ("package", "version")} for one in mine]
    return _json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
