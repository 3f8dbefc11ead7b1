"""``coalmine study``: our numbers beside the papers'."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalmine import _validate
from coalmine.cli._options import beginning_with, one_of, with_execution
from coalmine.cli._output import Json, number, print_json, print_lines, print_table
from coalmine.cli._targets import check_apart
from coalmine.errors import UnsupportedError

if TYPE_CHECKING:
    from coalmine.studies import CellResult, Study

study = typer.Typer(help="Measure a paper's tables and figures again, cell by cell.")


def _names() -> Iterable[str]:
    from coalmine.studies import names

    return names()


Name = Annotated[
    str,
    typer.Argument(help="The study, such as jagielski-2020/table-2.", autocompletion=beginning_with(_names)),
]


@study.command("list")
def list_(json: Json = False) -> None:
    """Every study."""
    from coalmine.studies import find, names

    studies = [find(name) for name in names()]
    if json:
        print_json(
            {
                "studies": [
                    {"study": one.name, "title": one.title, "cells": len(one.cells), "citation": one.citation}
                    for one in studies
                ]
            }
        )
        return
    print_table("Studies", ["study", "cells", "title"], [[one.name, str(len(one.cells)), one.title] for one in studies])


@study.command()
def show(name: Name, json: Json = False) -> None:
    """The cells of a study and what the paper printed."""
    from coalmine.studies import find

    found = find(name)
    quick = [cell.name for cell in found.chosen("quick")]
    cells = [{"cell": cell.name, "published": cell.published, "quick": cell.name in quick} for cell in found.cells]
    if json:
        print_json({"study": found.name, "cells": cells})
        return
    rows = [[str(one["cell"]), "-" if one["published"] is None else f"{one['published']:g}"] for one in cells]
    print_table(found.title, ["cell", "published"], rows)
    which = "every cell" if len(quick) == len(cells) else f"{len(quick)} of {len(cells)} cells ({'; '.join(quick)})"
    paper = len(found.chosen("paper"))
    whole = "all" if paper == len(cells) else f"{paper} of them"
    print_lines([f"--scale quick, the default, runs {which}; --scale paper {whole}.", found.citation, *found.notes])


@study.command(short_help="Play what is missing; our values beside the published.")
@with_execution
def run(
    name: Name,
    scale: Annotated[
        str, typer.Option(help="A few cells in minutes, or all of the paper's.", **one_of("quick", "paper"))
    ] = "quick",
    cell: Annotated[list[str] | None, typer.Option(help="This cell alone, by its name; several may be given.")] = None,
    trials: Annotated[
        int | None, typer.Option(help="Trials for each adversary, both worlds together, instead of the scale's.")
    ] = None,
    store: Annotated[Path, typer.Option(help="Where trials are kept.")] = Path("coalmine.db"),
    execution: Any = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder with data files that are already there.")] = None,
    train_only: Annotated[
        bool, typer.Option("--train-only", help="Train and store, and leave the bounds for later.")
    ] = False,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the study into this file (svg, png or pdf, by its ending).")
    ] = None,
    json: Json = False,
) -> int:
    """Train what is missing, then print our value beside the published one. Exit code 1 if a bound is INVALID."""
    from coalmine import report as reports
    from coalmine.auditing.engine import open_engine
    from coalmine.cli._watch import Watch
    from coalmine.store import Store
    from coalmine.studies import Bench, find, run_cells, train_cell
    from coalmine.studies.measures import find as find_measure

    found = find(name)
    # By name, so that one that is given twice is run once.
    cells = list({one: found.cell(one) for one in cell}.values()) if cell else list(found.chosen(scale))
    measure = find_measure(found.measure)
    size = found.scale(scale)
    if trials is not None:
        if "trials" not in size.options and not measure.audits(found, cells[0], size):
            raise UnsupportedError(f"study {found.name!r} plays no trials: leave --trials out")
        _validate.integer("trials", trials, at_least=2)
        size = size.with_trials(trials)
    if figure is not None and not found.figure:
        raise UnsupportedError(f"study {found.name!r} has no figure: its table says it all; leave --figure out")
    check_apart({"figure": figure}, {"the store": store})
    target = None if figure is None else reports.check_figure(figure)
    audits = measure.audits(found, cells[0], size)
    delta, level = (audits[0].audit.delta, 1.0 - audits[0].audit.confidence) if audits else (1e-5, 0.05)
    # All that is shown while it runs holds together.
    confidence = 1.0 - level / (len(cells) * max(1, sum(len(one.adversary) for one in audits)))
    results: list[CellResult] = []
    with (
        Store.open(store) as opened,
        Watch(delta=delta, confidence=confidence, quiet=json) as watch,
        open_engine(execution) as players,
    ):
        bench = Bench(store=opened, how=execution, watcher=watch, engine=players)
        if train_only:
            for one in cells:
                train_cell(found, cell=one, scale=size, bench=bench)
        else:
            results = run_cells(found, cells=cells, scale=size, bench=bench)
    if train_only:
        if json:
            print_json({"study": name, "scale": scale, "trained": [one.name for one in cells], "store": str(store)})
        else:
            print_lines([f"Trained {len(cells)} {'cell' if len(cells) == 1 else 'cells'} of {name} into {store}."])
        return 0
    if json:
        print_json({"study": name, "scale": scale, "results": [result.to_dict() for result in results]})
    else:
        show_results(found, results, scale=scale, explained=measure.columns)
    if target is not None:
        from coalmine.report import render
        from coalmine.studies.figure import draw

        reports.write_bytes(
            render.as_bytes(draw(found, results), target.suffix[1:]), target, name="figure", kind="figure"
        )
    return 1 if any(result.verdict == "INVALID" for result in results) else 0


def show_results(found: Study, results: Sequence[CellResult], *, scale: str, explained: Mapping[str, str]) -> None:
    """Our values beside the paper's, then the further columns of the measure, then what they mean."""
    first = ["cell", "published", "ours", "verdict"]
    print_table(
        f"{found.title}: {found.quantity}",
        first,
        [[one.cell, _number(one.published), _number(one.ours), one.verdict] for one in results],
    )
    columns = list(dict.fromkeys(name for one in results for name in one.columns))
    if any(one.guarantee is not None for one in results) and "guarantee" not in columns:
        columns.append("guarantee")
    if columns:
        print_table(
            "The same cells, further values",
            ["cell", *columns],
            [[one.cell, *(_number(one.row().get(name)) for name in columns)] for one in results],
        )
    seconds, trials = sum(one.seconds for one in results), sum(one.trials for one in results)
    spent = []
    if trials and seconds > 0.0:  # what is simulated has no time of its own
        speed = f"{trials / seconds:,.0f} trials a second of it"
        spent = [f"{trials:,} trials in all, {seconds:.0f} seconds of work (all cores together), {speed}."]
    legend = [f"{name}: {words}." for name, words in explained.items()]
    print_lines([how_much(results, scale=scale), *legend, *spent, found.citation, *found.notes])


_PLAYED = {
    "audits": "audits",
    "draws": "draws in each world",
    "canaries": "canaries",
    "trials": "trials (both worlds together)",
}
"""What can be played, in words and in the order in which they are said."""


def how_much(results: Sequence[CellResult], *, scale: str) -> str:
    """How much evidence stands behind the values of a study: "Scale quick, each cell: 1,000 draws in each world, …"."""

    def said(values: Iterable[float | None], *, form: str) -> str | None:
        known = sorted({value for value in values if value is not None})
        return " to ".join(format(value, form) for value in dict.fromkeys((known[0], known[-1]))) if known else None

    counts = [
        f"{count} {words}"
        for key, words in _PLAYED.items()
        if (count := said((one.played.get(key) for one in results), form=",")) is not None
    ]
    parts = [" of ".join(counts) if counts else "theory alone, nothing is played"]
    if (sure := said((one.confidence and 100.0 * one.confidence for one in results), form="g")) is not None:
        parts.append(f"confidence {sure} %")
    return f"Scale {scale}{', each cell' if counts else ''}: {', '.join(parts)}."


def _number(value: object) -> str:
    if isinstance(value, (int, float)):
        return str(value) if isinstance(value, int) else number(value, 2 if abs(value) >= 0.1 or value == 0 else 4)
    return "-" if value is None else str(value)
