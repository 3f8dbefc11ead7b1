"""``coalmine bundle``: an audit as one file that others can check."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from coalmine.cli._output import Json, print_json, print_lines
from coalmine.cli._targets import check_apart


def bundle(
    audit: Annotated[
        str,
        typer.Argument(help="Its name, or the beginning of its fingerprint or of a run's (see coalmine runs list)."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The zip to write; by default coalmine-AUDIT.zip.")
    ] = None,
    store: Annotated[Path, typer.Option(help="Where trials are kept.")] = Path("coalmine.db"),
    json: Json = False,
) -> None:
    """Write an audit as one zip: config, claim, versions, scores, what they prove, the report, and checksums.

    It holds no rows of data, no texts of exceptions and none that are bound to functions. Others check it with
    coalmine verify.
    """
    from coalmine.evidence import bundle as write

    check_apart({"output": output}, {"the store": store})
    target = write(audit, store=store, output=output)
    if json:
        digest = hashlib.sha256(target.read_bytes()).hexdigest()
        print_json({"bundle": str(target), "bytes": target.stat().st_size, "sha256": digest})
        return
    print_lines(
        [f"Bundle: {target} ({target.stat().st_size:,} bytes)", f"Others check it with: coalmine verify {target}"]
    )
