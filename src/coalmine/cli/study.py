"""``coalmine study``: our numbers beside the papers'."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coalmine.cli._output import Json, number, print_json, print_lines, print_table

if TYPE_CHECKING:
    from coalmine.studies import CellResult, Study

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
    size = found.scale(scale)
    first = cells[0].configs(copies=size.copies, trials=size.trials)
    shared = (1.0 - first[0].audit.confidence) / (len(first) * len(cells))  # all that is shown holds together
    how = Execution(device=device, workers=workers, data_dir=data_dir)
    results: list[CellResult] = []
    with (
        Store.open(store) as opened,
        Watch(delta=first[0].audit.delta, confidence=1.0 - shared, shown=not json and sys.stderr.isatty()) as watch,
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
        show_results(found, results)
    return 1 if any(result.verdict == "INVALID" for result in results) else 0


def show_results(found: Study, results: Sequence[CellResult]) -> None:
    """Our values beside the paper's, then what the same trainings prove next to what theory says."""
    print_table(
        f"{found.title}: ε at δ = {found.delta:g}",
        ["cell", "published", "ours", "paid", "verdict"],
        [
            [
                one.cell,
                _number(one.published),
                f"{_number(one.ours)} (k = {one.best_copies})",
                _number(one.paid),
                one.verdict,
            ]
            for one in results
        ],
    )
    print_table(
        "The same trainings at the δ of the guarantee, for one row added or removed",
        ["cell", "proved", "if Gaussian", "heuristic", "guarantee"],
        [
            [
                one.cell,
                f"≥ {_number(one.paid_delta)}",
                f"≥ {_number(one.gaussian)}",
                f"≈ {_number(one.heuristic)}",
                f"≤ {_number(one.guarantee)}",
            ]
            for one in results
        ],
    )
    print_lines(
        [
            "ours: by the paper's rule (best k for free, threshold held out); paid: by a rule that pays for choosing k "
            "and threshold; if Gaussian: with the assumption that the trade-off curve is a Gaussian one.",
            found.citation,
            *found.notes,
        ]
    )


def _number(value: float | None) -> str:
    return "-" if value is None else number(value, 2)
