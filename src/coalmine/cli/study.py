"""``coalmine study``: our numbers beside the papers'."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalmine.cli._output import Json, number, print_json, print_lines, print_table

if TYPE_CHECKING:
    from coalmine.studies import CellResult

study = typer.Typer(help="Measure a paper's tables and figures again, cell by cell.")

Name = Annotated[str, typer.Argument(help="The study, such as jagielski-2020/table-2.")]
ScaleName = Annotated[str, typer.Option("--scale", help="quick (a few cells, minutes) or paper (all of it).")]
CellName = Annotated[str | None, typer.Option("--cell", help="One cell alone, by its name.")]


@study.command("list")
def list_(json: Json = False) -> None:
    """Every study."""
    from coalmine.studies import find, names

    studies = [find(name) for name in names()]
    if json:
        print_json(
            [
                {"study": one.name, "title": one.title, "cells": len(one.cells), "citation": one.citation}
                for one in studies
            ]
        )
        return
    print_table("Studies", ["study", "cells", "title"], [[one.name, str(len(one.cells)), one.title] for one in studies])


@study.command()
def show(name: Name, json: Json = False) -> None:
    """The cells of a study and what the paper printed."""
    from coalmine.studies import find

    found = find(name)
    cells = [{"cell": cell.name, "published": cell.published} for cell in found.cells]
    if json:
        print_json(cells)
        return
    rows = [[str(one["cell"]), "-" if one["published"] is None else f"{one['published']:g}"] for one in cells]
    print_table(found.title, ["cell", "published"], rows)
    print_lines([found.citation, *found.notes])


@study.command()
def run(
    name: Name,
    scale: ScaleName = "quick",
    cell: CellName = None,
    store: Annotated[Path, typer.Option(help="Where trials are kept.")] = Path("coalmine.db"),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    workers: Annotated[int, typer.Option(help="Processes that train at once; 0 means one for each core.")] = 0,
    data_dir: Annotated[str | None, typer.Option(help="Folder with data files that are already there.")] = None,
    train_only: Annotated[
        bool, typer.Option("--train-only", help="Train and store, and leave the bounds for later.")
    ] = False,
    json: Json = False,
) -> int:
    """Train what is missing, then print our value beside the published one. Exit code 1 if a bound is INVALID."""
    from coalmine.cli._watch import Watch
    from coalmine.config import Execution
    from coalmine.store import Store
    from coalmine.studies import find, run_cell
    from coalmine.studies.run import train_cell

    found = find(name)
    cells = [found.cell(cell)] if cell is not None else list(found.chosen(scale))
    if scale not in found.scales:
        found.chosen(scale)
    size = found.scales[scale]
    how = Execution(device=device, workers=workers, data_dir=data_dir)
    results: list[CellResult] = []
    with (
        Store.open(store) as opened,
        Watch(delta=1e-5, confidence=0.99, shown=not json and sys.stderr.isatty()) as watch,
    ):
        for one in cells:
            if train_only:
                train_cell(one, scale=size, store=opened, how=how, watcher=watch)
            else:
                results.append(run_cell(found, cell=one, scale=size, store=opened, how=how, watcher=watch))
    if train_only:
        print_lines([f"Trained {len(cells)} cells of {found.name} into {store}."])
        return 0
    if json:
        print_json([result.to_dict() for result in results])
    else:
        print_table(
            found.title,
            ["cell", "published", "ours", "k", "paid", "paid at δ", "if Gaussian", "heuristic", "guarantee", "verdict"],
            [_row(result) for result in results],
        )
        print_lines([found.citation, *found.notes])
    return 1 if any(result.verdict == "INVALID" for result in results) else 0


def _row(result: CellResult) -> list[str]:
    def show_number(value: Any) -> str:
        return "-" if value is None else number(float(value), 2)

    return [
        result.cell,
        show_number(result.published),
        show_number(result.ours),
        str(result.best_copies),
        *(show_number(value) for value in (result.paid, result.paid_delta, result.gaussian)),
        *(show_number(value) for value in (result.heuristic, result.guarantee)),
        result.verdict,
    ]
