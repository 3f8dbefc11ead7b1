"""`coalmine data`: which data sets there are, get one, check them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from coalmine import data
from coalmine.cli._output import Json, print_json, print_lines, print_table
from coalmine.cli.neighbours import neighbours
from coalmine.errors import DataError

app = typer.Typer(
    name="data",
    help="List, fetch and verify data sets.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder with data files. Default: the environment variable COALMINE_DATA, then the cache folder."
    ),
]


@app.callback()
def _group(context: typer.Context) -> None:
    """List, fetch and verify data sets."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", short_help="Every data set, where it is or how to get it.")
def show(data_dir: DataDir = None, json: Json = False) -> None:
    """Every data set: its size, where it is or how to get it, its licence."""
    states = [data.status(name, data_dir=data_dir) for name in data.names()]
    if json:
        print_json({"data_sets": [state.to_dict() for state in states]})
        return
    print_table(
        "Data sets",
        ("name", "rows", "features", "classes", "where", "licence"),
        [
            (
                *(state.name, f"{state.train_rows + state.test_rows:,}", f"{state.features:,}", f"{state.classes:,}"),
                *(state.where if state.found else "not here", re.split(" [(]|;", state.licence)[0]),
            )
            for state in states
        ],
    )
    print_lines([f"{state.name}: {state.note}" for state in states if state.note])
    if not all(state.found for state in states):
        print_lines(["What is not here: 'coalmine data fetch NAME', or --data-dir FOLDER if you have the files."])


app.command("neighbours", short_help="The neighbour that differs most, or least.")(neighbours)


@app.command(short_help="Get a data set from its official source and check it.")
def fetch(
    name: Annotated[str, typer.Argument(help="A name from 'coalmine data list'.")],
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder to put the files in. Default: the cache folder of the user.")
    ] = None,
    json: Json = False,
) -> None:
    """Get a data set from its official source and check it; what is at hand is not fetched again."""
    folder = data.fetch(name, data_dir=data_dir, progress=lambda line: typer.echo(line, err=True))
    if json:
        print_json({"name": name, "folder": None if folder is None else str(folder)})
    elif folder is None:
        print_lines([f"{name} is built in: nothing to fetch."])
    else:
        print_lines([f"{name} is in {folder}, its checksums are right."])


@app.command(short_help="Check data sets on disk.")
def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Names from 'coalmine data list'. Default: all.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Check data sets on disk: every checksum, the shape, the hash of the content. Exit code 2 if one is wrong."""
    found = []
    for name in names or data.names():
        is_here = data.status(name, data_dir=data_dir).found
        one: dict[str, str | None] = {"name": name, "state": "missing", "content_hash": None, "problem": None}
        if is_here or names:  # a missing one is a problem only if it was asked for
            try:
                one |= {"state": "right", "content_hash": data.verify(name, data_dir=data_dir).content_hash}
            except DataError as error:
                one |= {"state": "wrong" if is_here else "missing", "problem": str(error)}
        found.append(one)
    problems = [str(one["problem"]) for one in found if one["problem"]]
    if json:
        print_json({"data_sets": found})
        raise typer.Exit(2 if problems else 0)
    print_table(
        "Data sets on disk",
        ("name", "state", "SHA-256 of the content"),
        [(str(one["name"]), str(one["state"]), str(one["content_hash"] or "-")) for one in found],
    )
    if problems:
        raise DataError("; ".join(problems))
