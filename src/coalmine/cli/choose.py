"""``coalmine choose``: from what a person tolerates to ε, to noise, and to what it costs in accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalmine import _validate
from coalmine.cli._options import DEVICES, Preset, one_of
from coalmine.cli._output import Json, at_most, print_json, print_lines, print_table
from coalmine.cli._targets import check_apart
from coalmine.errors import InvalidInputError

if TYPE_CHECKING:
    from coalmine.auditing.config import AuditConfig
    from coalmine.identifiability.choose import Choice, Sweep


def choose(
    delta: Annotated[float | None, typer.Option(help="δ, between 0 and 1. With --config that of the config.")] = None,
    belief: Annotated[
        float | None,
        typer.Option(help="How sure an adversary may become that a record was used, above 0.5 and below 1."),
    ] = None,
    advantage: Annotated[
        float | None, typer.Option(help="How much better than random guessing it may do, above 0 and below 1.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="T: number of training steps (1).")] = None,
    sample_rate: Annotated[float | None, typer.Option(help="q: probability that a row is in a batch (1).")] = None,
    config: Annotated[
        Path | None, typer.Option(help="An audit's TOML file: try the noise on its data and model, in a short sweep.")
    ] = None,
    preset: Preset = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="<str>", help="Replace one value of the config: section.key=value."),
    ] = None,
    trainings: Annotated[int | None, typer.Option(help="Trainings for each belief of the sweep (8).")] = None,
    device: Annotated[str | None, typer.Option(help="Where to train (cpu).", **one_of(*DEVICES))] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder with data files that are already there.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw belief against accuracy into this file (svg, png or pdf, by its ending).")
    ] = None,
    as_json: Json = False,
) -> None:
    """From a tolerated belief or advantage to ε and to the noise multiplier σ, by the classical and the exact way.

    With --config or --preset also to the accuracy that this noise leaves on that data and model.
    """
    from coalmine.identifiability import choose as choosing

    if trainings is not None:
        _validate.integer("trainings", trainings, at_least=2)
    if device is not None:
        _validate.choice("device", device, DEVICES)
    if (belief is None) == (advantage is None):
        given = "neither was given" if belief is None else "both were given"
        raise InvalidInputError(f"give exactly one of --belief and --advantage: {given}")
    if config is not None or preset is not None:
        for name, value in (("--steps", steps), ("--sample-rate", sample_rate)):
            if value is not None:
                raise InvalidInputError(f"{name} = {value} is not allowed with a config: it has its own")
        from coalmine.auditing.config import Execution, load

        check_apart({"figure": figure}, {"the config": config})
        overrides = [*(changes or []), *([] if delta is None else [f"audit.delta={delta}"])]
        _sweep(
            load(config, preset=preset, overrides=overrides),
            figure,
            as_json=as_json,
            belief=belief,
            advantage=advantage,
            trainings=8 if trainings is None else trainings,
            execution=Execution(device=device or "cpu", data_dir=data_dir),
        )
        return
    of_a_sweep = {"figure": figure, "set": changes, "trainings": trainings, "device": device, "data-dir": data_dir}
    for name, given_too in of_a_sweep.items():
        if given_too is not None and given_too != []:
            raise InvalidInputError(f"--{name} needs --config or --preset: without data and model there is no accuracy")
    if delta is None:
        raise InvalidInputError("--delta is missing: expected a number strictly between 0 and 1")
    common = {"delta": delta, "steps": 1 if steps is None else steps}
    rate = 1.0 if sample_rate is None else sample_rate
    if belief is not None:
        choice = choosing.from_belief(belief, sample_rate=rate, **common)  # type: ignore[arg-type]
    else:
        assert advantage is not None
        choice = choosing.from_advantage(advantage, sample_rate=rate, **common)  # type: ignore[arg-type]
    if as_json:
        print_json(choice.to_dict())
        return
    _show(choice)


def _sweep(config: AuditConfig, figure: Path | None, *, as_json: bool, **options: Any) -> None:
    """Train at several beliefs, then print and draw what each costs."""
    from coalmine import report as reports
    from coalmine.auditing import choosing

    target = None if figure is None else reports.check_figure(figure)
    progress = None if as_json else lambda line: typer.echo(line, err=True)
    found = choosing.sweep(config, progress=progress, **options)
    if as_json:
        print_json(found.to_dict())
    else:
        _show(found.choice)
        _show_sweep(found)
    if target is not None:
        from coalmine.report import price, render

        reports.write_bytes(
            render.as_bytes(price.figure(found), target.suffix[1:]), target, name="figure", kind="figure"
        )


def _show_sweep(found: Sweep) -> None:
    """What each belief costs."""
    print_table(
        f"What it costs on {found.subject} (exact calibration, {found.trainings} trainings each)",
        ("belief", "epsilon", "noise multiplier", "advantage", "accuracy", "standard error", ""),
        [
            (
                f"{100 * point.belief:.4g}%",
                at_most(point.epsilon),
                at_most(point.noise_multiplier),
                at_most(point.advantage),
                f"{100 * point.accuracy:.1f}%",
                f"{100 * point.standard_error:.2f}%",
                "your choice" if point is found.chosen else "",
            )
            for point in found.points
        ],
    )
    print_lines(
        [
            f"Without any noise the same training reaches {100 * found.without_noise:.1f}%.",
            "To audit this choice: coalmine audit with the same config, --set training.noise_multiplier="
            f"{found.chosen.noise_multiplier!r} and the adversary identifiability.",
        ]
    )


def _show(choice: Choice) -> None:
    """Both calibrations, and what they mean: each ε stands beside the noise that it holds for."""
    from coalmine.accounting.calibrate import SMALLEST
    from coalmine.report.one_person import for_one_person
    from coalmine.report.rounding import percent, up_percent
    from coalmine.report.words import RELATIONS

    # A belief of almost 1 is no certainty: as many digits as tell them apart.
    digits = next((count for count in range(2, 14) if float(up_percent(choice.belief, count)) < 100.0), 14)
    sure = f"{up_percent(choice.belief, digits)}%"
    print_table(
        f"What follows for {_validate.counted(choice.steps, 'step')}, sample rate {choice.sample_rate:g}, "
        f"δ = {choice.delta:g}, neighbours: {RELATIONS[choice.relation]}",
        ("calibration", "noise multiplier", "ε is at most", "advantage is at most", f"belief ends above {sure}"),
        [
            (
                name,
                at_most(sigma, 6),
                at_most(choice.actual_epsilon[name]),
                at_most(choice.actual_advantage[name]),
                f"in at most {percent(choice.belief_exceeded[name])} of all trainings",
            )
            if name in choice.actual_epsilon
            else (name, at_most(sigma, 6), "–", "–", "–")
            for name, sigma in choice.noise_multiplier.items()
        ],
    )
    exact = choice.actual_epsilon["exact"]
    enough = choice.noise_multiplier["exact"] <= SMALLEST * (1.0 + 1e-9)  # it comes back from its logarithm
    searched = choice.sample_rate < 1.0
    known = "classical" in choice.actual_epsilon
    stands = "What it keeps in this training stands in its row." if known else "What it keeps is not computed."
    print_lines(
        [
            *([f"Less noise would do: {SMALLEST:g} is the smallest that is looked at."] if enough and searched else []),
            f"With the exact noise ε is at most {at_most(exact)} at δ = {choice.delta:g}, even if every model along "
            "the way is seen.",
            for_one_person(
                advantage=choice.actual_advantage["exact"],
                belief=choice.belief,
                exceeded=choice.belief_exceeded["exact"],
                relation=choice.relation,
            ),
            f"The classical noise comes from the paper's ε = {choice.epsilon:.4f}, which is that of one release, "
            f"nothing sampled: there it goes with a belief of {100 * choice.belief:.{digits}f}% and an advantage of "
            f"{choice.advantage:.4f}. {stands}",
            *(f"  - {note}" for note in choice.assumptions),
        ]
    )
