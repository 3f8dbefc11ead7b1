"""``coalmine data neighbours``: the neighbouring data set that differs most, or least."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coalmine.cli._options import one_of, relation_named
from coalmine.cli._output import Json, print_json, print_lines, print_table

_FEW = 3
"""How many are shown unless another number is asked for."""


def neighbours(
    name: Annotated[str, typer.Argument(help="A name from 'coalmine data list'.")],
    relation: Annotated[
        str,
        typer.Option(help="A row is left out, or a test row stands in its place.", **one_of("add-remove", "replace")),
    ] = "add-remove",
    dissimilarity: Annotated[
        str | None, typer.Option(help="ssim, euclidean, manhattan, hamming or cosine. Default: what fits the data.")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Use only the first N rows.")] = None,
    count: Annotated[
        int | None, typer.Option(help="How many of the most and of the least dissimilar (3, or all there are).")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with data files.")] = None,
    json: Json = False,
) -> None:
    """The data-set sensitivity of bernau-2021 (Definition 6): the most and the least dissimilar neighbours."""
    from coalmine import _validate, data
    from coalmine.identifiability import sensitivity
    from coalmine.records import Relation

    kind = relation_named(relation)
    if count is not None:
        _validate.integer("count", count, at_least=1)
    loaded = data.load(name, data_dir=data_dir)
    if rows is not None:
        loaded = data.subset(loaded, rows=rows)
    base, held = (part.reshape(len(part), -1) for part in (loaded.x_train, loaded.x_test))
    measure = dissimilarity or sensitivity.suggest(base, picture=loaded.image_shape)
    if count is None:
        count = min(_FEW, len(base) * (1 if kind is Relation.ADD_REMOVE else len(held)))
    found = {
        which: sensitivity.neighbours(
            base,
            held_out=None if kind is Relation.ADD_REMOVE else held,
            measure=measure,
            picture=loaded.image_shape,
            most=which == "most",
            count=count,
        )
        for which in ("most", "least")
    }
    if json:
        print_json(
            {
                "data": name,
                "rows": len(base),
                "relation": kind.value,
                "dissimilarity": measure,
                "sensitivity": found["most"][0].value,
                **{which: [one.to_dict() for one in many] for which, many in found.items()},
            }
        )
        return
    print_table(
        f"Neighbours of {name} ({len(base)} rows) by {measure}",
        ("", "row", "test row in its place", "dissimilarity"),
        [
            (
                f"{which}, number {i}",
                str(one.row),
                "-" if one.replacement is None else str(one.replacement),
                f"{one.value:.6g}",
            )
            for which, many in found.items()
            for i, one in enumerate(many, 1)
        ],
    )
    what = "sum over all other rows, eq. (9)" if kind is Relation.ADD_REMOVE else "of the two rows, eq. (11)"
    print_lines(
        [f"Data-set sensitivity: {found['most'][0].value:.6g} ({what} of bernau-2021). A heuristic: no guarantee."]
    )
