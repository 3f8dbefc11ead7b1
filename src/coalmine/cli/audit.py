"""``coalmine audit``: play the privacy game against DP-SGD; theory, evidence and meaning side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coalmine.cli._output import Json, number, print_json, print_lines, print_table

if TYPE_CHECKING:
    from coalmine.config import AuditConfig, Execution
    from coalmine.results import AuditResult


def audit(
    config: Annotated[
        Path | None, typer.Argument(help="What to audit, as TOML. Without it: the built-in example.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A setting that comes with Coalmine, instead of a file.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Replace one value: training.noise_multiplier=2 (repeatable).")
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Trials for each adversary, both worlds together.")] = None,
    claim_epsilon: Annotated[float | None, typer.Option(help="Audit this claim instead of the guarantee.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report there: one HTML file.")] = None,
    store: Annotated[Path, typer.Option(help="Where trials are kept.")] = Path("coalmine.db"),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    workers: Annotated[int, typer.Option(help="Processes that train at once; 0 means one for each core.")] = 0,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with data files that are already there (or set COALMINE_DATA).")
    ] = None,
    json: Json = False,
) -> int:
    """Play the privacy game against DP-SGD and put theory, evidence and meaning side by side.

    Trials are stored as they are done: stop at any moment and run the same command again to go on. Exit code 0: the
    evidence is consistent with the claim (or the guarantee); 1: refuted at the stated confidence; 2: bad usage.
    """
    from coalmine import config as configs

    overrides = list(set_ or [])
    if trials is not None:
        overrides.append(f"audit.trials={trials}")
    if claim_epsilon is not None:
        overrides.append(f"audit.claim_epsilon={claim_epsilon}")
    settings = configs.load(config, preset=preset, overrides=overrides)
    execution = configs.Execution(device=device, workers=workers, data_dir=data_dir)
    return run_audit(settings, store=store, execution=execution, json=json, report=report)


def run_audit(
    settings: AuditConfig, *, store: Path, execution: Execution, json: bool, report: Path | None = None
) -> int:
    """Run an audit with its progress bar, print the result, and give the exit code."""
    from coalmine import report as reports
    from coalmine.audit import audit as run
    from coalmine.cli._watch import Watch

    if report is not None:  # found out now, not after hours of training
        reports.check_packages()
        reports.check_target(report)
    section = settings.audit
    with Watch(delta=section.delta, confidence=section.confidence, shown=not json and sys.stderr.isatty()) as watch:
        result = run(settings, store=store, execution=execution, watcher=watch)
    if json:
        print_json(result.to_dict())
    else:
        show(result)
    if report is not None:
        result.to_html(report)
    return 1 if result.verdict == "refuted" else 0


def show(result: AuditResult) -> None:
    """The table and the sentences of an audit."""
    section, mechanism = result.config.audit, result.mechanism
    print_lines(
        [
            f"DP-SGD on {result.config.data.name} ({mechanism['rows']} rows, {mechanism['parameters']} parameters): "
            f"{mechanism['steps']} steps at sampling rate {mechanism['sample_rate']:.4g}, "
            f"noise multiplier {mechanism['noise_multiplier']:.4g}, clipping norm {mechanism['clip']:g}."
        ]
        + ([result.data_note] if result.data_note else [])
    )
    heuristic = number(result.heuristic.epsilon, 2) if result.heuristic else "-"
    print_table(
        f"ε at δ = {section.delta:g} for one row added or removed; the bounds hold jointly at {section.confidence:.4g}",
        ["adversary", "sees", "trials", "proved ε ≥", "if Gaussian ε ≥", "heuristic ε ≈", "guarantee ε ≤"],
        [
            [
                one.label,
                one.view.value.replace("_", " "),
                str(sum(one.bound.trials)),
                number(one.bound.epsilon, 2),
                number(one.gaussian.epsilon, 2),
                heuristic,
                number(result.guarantee.epsilon, 2),
            ]
            for one in result.adversaries
        ],
    )
    print_lines(sentences(result))


def sentences(result: AuditResult) -> list[str]:
    """What it means, in plain words."""
    belief, advantage, strongest = result.belief, result.advantage, result.strongest
    delta, confidence = result.config.audit.delta, result.config.audit.confidence
    lines = [
        f"For one person: whoever starts undecided about whether a given row was used becomes at most "
        f"{belief['guarantee']:.1%} sure of it (except with probability about {delta:g}), and guesses better than a "
        f"coin by at most {advantage['guarantee']:.1%} (guarantee).",
        f"The strongest attack here shows that becoming {belief['evidence']:.1%} sure does happen "
        f"({strongest.label}, confidence {confidence:.4g}).",
    ]
    claimed = result.config.audit.claim_epsilon
    what = f"the claim ε = {claimed:g}" if claimed else f"the guarantee ε = {number(result.guarantee.epsilon, 2)}"
    if result.verdict == "refuted":
        lines.append(f"REFUTED: the evidence contradicts {what} at confidence {confidence:.4g}.")
    else:
        best = max(one.bound.ceiling or 0.0 for one in result.adversaries)
        lines.append(f"Consistent: the evidence does not contradict {what}.")
        if best < result.claim:
            lines.append(
                f"With these trials even a perfect attack could prove no more than ε ≥ {best:.2f}: a larger claim "
                "cannot be refuted without more trials (see coalmine plan)."
            )
    failed = sum(one.failed for one in result.adversaries)
    if failed:
        lines.append(f"{failed} trainings did not end with finite numbers; they count with the lowest score.")
    return lines
