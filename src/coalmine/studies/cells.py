"""Studies as data: TOML files in the folder of their paper, one for each table or figure, expanded into cells.

A study names a measure (:mod:`coalmine.studies.measures`), gives a config for it, and either axes to vary or a list of
cells, with what the paper printed for each. Nothing in it is executed.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from coalmine import _validate
from coalmine.auditing.config import ALTERNATIVES, AuditConfig, parse
from coalmine.errors import InvalidInputError

SCALES = ("quick", "paper")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One value of a table or one point of a figure.

    ``tree`` is the config that its measure takes, ``values`` are its places on the study's axes, ``published`` is what
    the paper printed (None where it printed no number).
    """

    name: str
    tree: Mapping[str, Any]
    published: float | None
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """How much of a study is run: which cells (all where None), and how much of each.

    ``config`` is laid over the config of every cell (a smaller network, other data), ``options`` are for the measure
    (how many trials, which copies). A smaller scale proves less by design, so it has a tolerance of its own: a
    difference, or a share of the published value where it is ``relative``. ``asked``: the number of trials is
    somebody's wish, which goes before those that single adversaries have of their own.
    """

    tolerance: float
    relative: bool = False
    cells: tuple[str, ...] | None = None
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    asked: bool = False

    def with_trials(self, trials: int) -> Scale:
        """The same scale with so many trials for each adversary, both worlds together."""
        return dataclasses.replace(self, options={**self.options, "trials": trials}, asked=True)

    def room(self, published: float) -> float:
        """How far ours may be from the published value and still match it."""
        return self.tolerance * abs(published) if self.relative else self.tolerance

    def audit(self, cell: Cell, *changes: Mapping[str, Any]) -> AuditConfig:
        """The cell's audit at this scale, with the scale's number of trials; further changes are laid over it."""
        tree = overlay(cell.tree, self.config, *changes)
        if "trials" in self.options:
            tree = overlay(tree, {"audit": {"trials": self.options["trials"]}})
        if self.asked:
            for one in tree.get("adversary", ()):
                one.pop("trials", None)
        return parse(tree)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A table or figure of a paper. ``quantity`` is what its values are, ``figure`` says how to draw them."""

    name: str
    title: str
    citation: str
    quantity: str
    measure: str
    notes: tuple[str, ...]
    cells: tuple[Cell, ...]
    scales: Mapping[str, Scale]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    figure: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def cell(self, name: str) -> Cell:
        """The cell of that name; the error suggests the nearest."""
        for cell in self.cells:
            if cell.name == name:
                return cell
        known = [cell.name for cell in self.cells]
        raise InvalidInputError(f"cell = {name!r} is not in study {self.name!r}: {_validate.nearest(name, known)}")

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
    return tuple(sorted(found, key=_in_order))


def find(name: str) -> Study:
    """The study of that name.

    >>> len(find("jagielski-2020/table-2").cells)
    72
    """
    known = names()
    if name not in known:
        raise InvalidInputError(f"study = {name!r} is not known: {_validate.nearest(name, known)}")
    paper, _, table = name.partition("/")
    text = (resources.files("coalmine.studies") / paper / f"{table}.toml").read_text(encoding="utf-8")
    return _parse(name, tomllib.loads(text))


def overlay(tree: Mapping[str, Any], *changes: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with the changes laid over it, table by table; lists and values are replaced.

    One of a pair of settings (steps or epochs, …) replaces the other.

    >>> overlay({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}})
    {'a': {'b': 1, 'c': 3}}
    """
    made = copy.deepcopy(dict(tree))
    for change in changes:
        for key, value in change.items():
            for pair in ALTERNATIVES:
                if key in pair:
                    for other in pair:
                        made.pop(other, None)
            old = made.get(key)
            both = isinstance(value, Mapping) and isinstance(old, Mapping)
            made[key] = overlay(old, value) if both else copy.deepcopy(value)  # type: ignore[arg-type]
    return made


def _parse(name: str, tree: Mapping[str, Any]) -> Study:
    scales = {}
    for scale, part in tree["scale"].items():
        rest = dict(part)
        cells = rest.pop("cells", None)
        scales[scale] = Scale(
            tolerance=float(rest.pop("tolerance")),
            relative=bool(rest.pop("relative", False)),
            cells=None if cells is None else tuple(cells),
            config=rest.pop("config", {}),
            options=rest,
        )
    return Study(
        name=name,
        title=tree["title"],
        citation=tree["citation"],
        quantity=tree["quantity"],
        measure=tree["measure"],
        notes=tuple(tree.get("notes", ())),
        cells=_listed(tree) if "cell" in tree else _crossed(tree),
        scales=scales,
        options=tree.get("options", {}),
        figure=tree.get("figure", {}),
    )


def _listed(tree: Mapping[str, Any]) -> tuple[Cell, ...]:
    """Cells written out: each a name, its values, changes to the config, and the published value."""
    return tuple(
        Cell(
            name=one["name"],
            tree=overlay(tree["config"], one.get("config", {})),
            published=_printed(one.get("published")),
            values=one.get("values", {}),
        )
        for one in tree["cell"]
    )


def _crossed(tree: Mapping[str, Any]) -> tuple[Cell, ...]:
    """Every combination of the axes; ``published`` is nested lists in the order of the axes.

    An axis has a name, the ``key`` of the config that it sets (dots lead inwards), and its values; a value that is a
    table is laid over the config instead and goes by its own ``label``.
    """
    axes = tree["axis"]
    cells = []
    for indices in itertools.product(*(range(len(axis["values"])) for axis in axes)):
        config: dict[str, Any] = copy.deepcopy(tree["config"])
        words, values = [], {}
        published: Any = tree.get("published")
        for axis, index in zip(axes, indices, strict=True):
            value = axis["values"][index]
            if "key" in axis:
                _set(config, axis["key"].split("."), value)
                label = value["name"] if isinstance(value, Mapping) else value
            else:
                config = overlay(config, {key: part for key, part in value.items() if key != "label"})
                label = value["label"]
            values[axis["name"]] = label
            words.append(f"{axis['name']}={label:g}" if isinstance(label, (int, float)) else str(label))
            published = published[index] if isinstance(published, list) else published
        cells.append(Cell(name=",".join(words), tree=config, published=_printed(published), values=values))
    return tuple(cells)


def _set(config: dict[str, Any], path: Sequence[str], value: Any) -> None:
    where: Any = config
    for key in path[:-1]:
        where = where[int(key)] if isinstance(where, list) else where.setdefault(key, {})
    if isinstance(where, list):
        where[int(path[-1])] = value
    else:
        where[path[-1]] = value


def _printed(value: Any) -> float | None:
    """A published number; "nan" stands for a place where the paper printed none."""
    return float(value) if isinstance(value, (int, float)) and value == value else None


def _in_order(name: str) -> list[tuple[int, str]]:
    """Figure 10 after figure 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.replace("/", "-").split("-")]
