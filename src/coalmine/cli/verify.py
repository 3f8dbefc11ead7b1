"""``coalmine verify``: check what coalmine bundle wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coalmine.cli._output import Json, print_facts, print_json, print_lines, print_verdict
from coalmine.cli._targets import check_apart, modules
from coalmine.errors import InvalidInputError


def verify(
    bundle: Annotated[Path, typer.Argument(help="The zip that coalmine bundle wrote.")],
    sample: Annotated[int, typer.Option(help="How many trainings to repeat, drawn at random; 0 for none.")] = 32,
    seed: Annotated[
        int | None, typer.Option(help="Draw the sample of an earlier check again; by default a new one.")
    ] = None,
    train: Annotated[
        str | None, typer.Option(help="The audited training, where it is one's own: module:function.")
    ] = None,
    score: Annotated[str | None, typer.Option(help="With --train: module:function of its score.")] = None,
    worlds: Annotated[
        str | None, typer.Option(help="With --train: module:name of both data sets (default: worlds).")
    ] = None,
    control_train: Annotated[
        str | None, typer.Option(help="With --train: module:function of its control, where one was played.")
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with data files that are already there (or set COALMINE_DATA).")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report there as it is made here.")] = None,
    json: Json = False,
) -> int:
    """Check the evidence of an audit without trusting whoever made it.

    The sums are checked, every bound and the verdict are computed again from the scores, and a random sample of the
    trainings is repeated: their scores must come back. Nothing in the file is executed. Exit code 0: all checks
    passed; 1: something differs; 2: no such bundle; 3: only a part could be checked.
    """
    from coalmine.evidence import verify as check
    from coalmine.integrations import load_function, load_worlds

    check_apart({"report": report}, {"the bundle": bundle})
    if train is None:
        for name, value in {"score": score, "worlds": worlds, "control_train": control_train}.items():
            if value is not None:
                raise InvalidInputError(f"{name} is not allowed without train: expected --train module:function too")
    elif score is None:
        raise InvalidInputError("score is missing: expected module:function")
    code: dict[str, Any] = {
        "train": None if train is None else load_function("train", train),
        "score": None if score is None else load_function("score", score),
        "worlds": None if train is None else load_worlds(worlds or f"{train.partition(':')[0]}:worlds"),
        "control": None if control_train is None else load_function("control_train", control_train),
    }
    if train is not None:
        check_apart({"report": report}, {"the code of the training": modules()})
    found = check(
        bundle,
        sample=sample,
        seed=seed,
        **code,
        data_dir=data_dir,
        page=report,
    )
    if json:
        print_json(found.to_dict())
        return found.exit_code
    print_verdict(found.in_words())
    stands = "" if found.exit_code != 1 else ", which is the bundle's own word and does not stand"
    print_lines([f"The audit {found.audit[:12]} says: {found.says}{stands}."])
    roles = {"Audited": found.audited, "Its control": found.control}
    print_lines([f"{role}: {one.in_words()}." for role, one in roles.items() if one is not None])
    words = ", ".join(f"{name} {text}" for name, text in found.unverified.items())
    print_lines([f"The maker's own words, unverified: {words}."])
    print_lines([*([f"Report: {report}"] if report else []), ""])
    print_facts("Checks", [(one.name, f"{one.held.value}: {one.words}") for one in found.checks])
    for one in found.checks:
        if one.differences:
            print_lines(["", f"What differs in {one.name}:", *(f"  {line}" for line in one.differences)])
    return found.exit_code
