"""``coalmine probe``: one private step, recorded and replayed; each fault by its name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalmine import _validate
from coalmine.cli._kept import write_kept
from coalmine.cli._options import Called, KeepIn, Tagged, check_kept
from coalmine.cli._output import Json, print_json, print_lines, print_table, print_verdict
from coalmine.cli._targets import check_apart, modules
from coalmine.errors import CoalmineError, InvalidInputError

if TYPE_CHECKING:
    from coalmine.probing.findings import Measurement, ProbeReport


def probe(
    step: Annotated[
        str, typer.Argument(help="module:make_step, a function that gives a coalmine.PrivateStep.", show_default=False)
    ],
    loader: Annotated[
        str | None,
        typer.Option(help="module:make_loader, a function that gives the data loader: its sampler is tested too."),
    ] = None,
    sample_rate: Annotated[
        float | None, typer.Option(help="With --loader: the sampling rate that the accountant was told.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Ranks to take the step on, under torch.distributed (gloo).")] = 1,
    replays: Annotated[int, typer.Option(help="How often the step is taken with new noise.")] = 200,
    level: Annotated[
        float | None,
        typer.Option(
            help="The chance that a right step is refuted.", show_default="0.0001; with a loader or ranks 0.01"
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report there: one HTML file.")] = None,
    store: KeepIn = None,
    name: Called = None,
    tag: Tagged = None,
    messages: Annotated[
        bool, typer.Option("--messages", help="With --store: also keep values of rows and what exceptions say.")
    ] = False,
    json: Json = False,
) -> int:
    """Probe one private step: sensitivity, noise, sampling, and what else it releases.

    The step's randomness is recorded and replayed, and its state is put back: nothing is trained, nothing changed.
    Exit code 0: as promised; 1: a fault was found; 2: wrong input; 3: inconclusive.
    """
    from coalmine import report as reports
    from coalmine.integrations import load_function

    check_apart({"report": report}, {"the store": store})
    if report is not None:
        reports.check_packages()
        reports.check_target(report)
    check_kept(store, name, tag)
    processes = _validate.integer("processes", processes, at_least=1)
    make_step = load_function("step", step)
    make_loader = load_function("loader", loader) if loader is not None else None
    check_apart({"report": report}, {"the code of the step": modules()})
    if sample_rate is not None and loader is None:
        raise InvalidInputError("sample_rate is not allowed without loader: expected --loader module:make_loader too")
    if processes > 1:
        from coalmine.probing.processes import probe_processes

        found = probe_processes(
            make_step, processes=processes, make_loader=make_loader, sample_rate=sample_rate, **_level(level)
        )
    else:
        found = _one_process(make_step, make_loader, sample_rate=sample_rate, replays=replays, level=level)
    mark = None
    if store is not None:
        mark = found.keep(store, name=name, tags=tag or (), messages=messages)
    if report is not None and store is not None and mark is not None:
        write_kept(store, mark, report)
    elif report is not None:
        found.to_html(report)
    if json:
        print_json(found.to_dict())
    else:
        show(found)
        print_lines(([f"Report: {report}"] if report else []) + ([f"Stored: {mark[:12]} in {store}"] if mark else []))
    return int(found.verdict.outcome.exit_code)


def _one_process(
    make_step: object, make_loader: object, *, sample_rate: float | None, replays: int, level: float | None
) -> ProbeReport:
    """The step, and with a loader its sampler too; they share the level."""
    import coalmine

    made = _called("step", make_step)
    if not isinstance(made, coalmine.PrivateStep):
        raise InvalidInputError(
            f"step gave an object of type {type(made).__name__}: expected a coalmine.PrivateStep "
            "(coalmine.integrations.opacus.step makes one from Opacus's objects)"
        )
    share = _level(level if make_loader is None or level is None else level / 2.0)
    found = coalmine.probe(made, replays=replays, **share)
    if make_loader is None:
        return found
    sampled = coalmine.probe_sampler(_called("loader", make_loader), sample_rate=sample_rate, **share)
    return type(found).join([found, sampled], subject=found.subject)


def _called(name: str, make: Any) -> Any:
    """What a function of the user makes; where it fails, its own words."""
    try:
        return make()
    except (Exception, SystemExit) as error:
        if isinstance(error, CoalmineError):
            raise
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InvalidInputError(
            f"{name}: the function failed ({words}); expected one that is called without arguments and gives "
            + ("a coalmine.PrivateStep" if name == "step" else "a data loader")
        ) from None


def _level(level: float | None) -> dict[str, Any]:
    """The level as an argument, where one was given: each check has a level of its own."""
    return {} if level is None else {"level": level}


def show(report: ProbeReport) -> None:
    """The verdict, what was measured, and every finding with what to look at."""
    outcome = str(report.verdict)
    print_verdict(f"{outcome[0].upper()}{outcome[1:]}: {report.subject}, in {report.seconds:.1f} s.")
    print_lines([""])
    print_table(
        f"What was measured (a right step is refuted with probability at most {report.level:g})",
        ["measure", "result", "in words"],
        [[one.name, _status(one), one.blind or one.sentence] for one in report.measurements],
    )
    for one in report.findings:
        print_lines([f"{one.fault}: {one.sentence}"])
        if one.witness:
            print_lines([f"  witness: {one.witness}"])
        print_lines([f"  look at: {one.look_at}", ""])


def _status(one: Measurement) -> str:
    if one.findings:
        return "FAULT"
    return "not as promised" if one.because else "blind" if one.blind else "as promised"
