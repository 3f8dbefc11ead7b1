"""Studies as data: TOML files beside this module, one for each table or figure, expanded into cells.

A study gives a config, axes to vary, and the published value for each combination. Nothing in it is executed.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import itertools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from coalmine import _validate
from coalmine.config import AuditConfig, parse
from coalmine.errors import InvalidInputError

SCALES = ("quick", "paper")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One value of a table: how to measure it, and what the paper printed (None where it printed no number)."""

    name: str
    tree: Mapping[str, Any]
    published: float | None

    def configs(self, *, copies: tuple[int, ...], trials: int) -> tuple[AuditConfig, ...]:
        """The audits that measure it, one for each number of copies; one in all if the adversary plants no copies."""
        who = self.tree["adversary"][0]
        if who["name"] == "membership":
            copies = ()
        return tuple(
            parse(
                {
                    **self.tree,
                    "adversary": [{**who, **choice}],
                    "audit": {**self.tree["audit"], "trials": trials},
                }
            )
            for choice in ([{"copies": k} for k in copies] or [{}])
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of a study is run: which cells (all where None), how many trials, which numbers of copies.

    A smaller scale proves less by design, so it has a tolerance of its own.
    """

    cells: tuple[str, ...] | None
    trials: int
    copies: tuple[int, ...]
    tolerance: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A table or figure of a paper."""

    name: str
    title: str
    citation: str
    notes: tuple[str, ...]
    delta: float
    cells: tuple[Cell, ...]
    scales: Mapping[str, Scale]

    def cell(self, name: str) -> Cell:
        """The cell of that name; the error suggests the nearest."""
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise InvalidInputError(
            f"cell = {name!r} is not in study {self.name!r}: {_nearest(name, [cell.name for cell in self.cells])}"
        )

    def scale(self, name: str) -> Scale:
        """The scale of that name."""
        return self.scales[_validate.choice("scale", name, SCALES)]

    def chosen(self, scale: str) -> tuple[Cell, ...]:
        """The cells of a scale."""
        wanted = self.scale(scale).cells
        return self.cells if wanted is None else tuple(self.cell(name) for name in wanted)


def names() -> tuple[str, ...]:
    """Every study, as paper/table.

    >>> "jagielski-2020/table-2" in names()
    True
    """
    found = []
    for paper in resources.files("coalmine.studies").iterdir():
        if paper.is_dir():
            found += [f"{paper.name}/{f.name[:-5]}" for f in paper.iterdir() if f.name.endswith(".toml")]
    return tuple(sorted(found))


def find(name: str) -> Study:
    """The study of that name.

    >>> len(find("jagielski-2020/table-2").cells)
    72
    """
    known = names()
    if name not in known:
        raise InvalidInputError(f"study = {name!r} is not known: {_nearest(name, list(known))}")
    paper, _, table = name.partition("/")
    text = (resources.files("coalmine.studies") / paper / f"{table}.toml").read_text(encoding="utf-8")
    return _parse(name, tomllib.loads(text))


def _parse(name: str, tree: Mapping[str, Any]) -> Study:
    axes = [(axis["name"], axis["key"].split("."), axis["values"]) for axis in tree["axis"]]
    cells = []
    for indices in itertools.product(*(range(len(values)) for _, _, values in axes)):
        config = copy.deepcopy(tree["config"])
        words = []
        published: Any = tree.get("published")
        for (label, path, values), index in zip(axes, indices, strict=True):
            where = config
            for key in path[:-1]:
                where = where.setdefault(key, {})
            value = values[index]
            if isinstance(where, list):
                where[int(path[-1])] = value
            else:
                where[path[-1]] = value
            words.append(f"{label}={value:g}" if isinstance(value, (int, float)) else _word(value))
            published = published[index] if isinstance(published, list) else published
        printed = float(published) if isinstance(published, (int, float)) and published >= 0 else None
        cells.append(Cell(name=",".join(words), tree=config, published=printed))
    return Study(
        name=name,
        title=tree["title"],
        citation=tree["citation"],
        notes=tuple(tree.get("notes", ())),
        delta=float(tree["delta"]),
        cells=tuple(cells),
        scales={
            scale: Scale(
                cells=tuple(part["cells"]) if "cells" in part else None,
                trials=int(part["trials"]),
                copies=tuple(part["copies"]),
                tolerance=float(part["tolerance"]),
            )
            for scale, part in tree["scale"].items()
        },
    )


def _word(value: Any) -> str:
    """A value of an axis in a cell's name: a table goes by its own name."""
    return str(value["name"]) if isinstance(value, dict) else str(value)


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.4)
    return "did you mean " + " or ".join(repr(one) for one in close) + "?" if close else f"there is {', '.join(known)}"
