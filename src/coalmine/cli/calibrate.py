"""``coalmine calibrate``: the smallest noise for a wanted ε."""

from __future__ import annotations

from typing import Annotated

import typer

from coalmine import _validate
from coalmine.cli._options import (
    RelationName,
    SampleRate,
    SamplingName,
    Steps,
    relation_named,
    sampling_named,
    underscored,
)
from coalmine.cli._output import Json, at_most, number, print_json, print_lines, print_table


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The ε that must not be exceeded, above 0.")],
    delta: Annotated[float, typer.Option(help="δ, between 0 and 1.")],
    sample_rate: SampleRate,
    steps: Steps,
    analysis: Annotated[
        str,
        typer.Option(help="Proved: standard, rdp. Predicted: last-iterate, last-iterate-worst, gdp-clt, full-batch."),
    ] = "standard",
    sampling: SamplingName = "poisson",
    relation: RelationName = "add-remove",
    as_json: Json = False,
) -> None:
    """The smallest noise multiplier σ for which an analysis gives at most the wanted ε at δ."""
    from coalmine.accounting import calibrate as calibration
    from coalmine.records import Guarantee

    _validate.choice("analysis", analysis.replace("_", "-"), [name.replace("_", "-") for name in calibration.ANALYSES])
    found = calibration.noise_multiplier(
        sample_rate=sample_rate,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        analysis=underscored(analysis),
        sampling=sampling_named(sampling),
        relation=relation_named(relation),
    )
    statement = found.statement.to_dict()
    if as_json:
        parts = {"sample_rate": sample_rate, "steps": steps, "sampling": sampling_named(sampling)}
        print_json({"noise_multiplier": found.noise_multiplier, "target": found.target, **parts, **statement})
        return
    shown = (at_most if isinstance(found.statement, Guarantee) else number)(found.statement.epsilon, 6)
    print_table(
        f"Smallest noise for ε ≤ {epsilon:g} at δ = {delta:g}, by the {analysis} analysis",
        ("noise multiplier", "ε it gives", "kind"),
        [(at_most(found.noise_multiplier, 6), shown, statement["kind"])],
    )
    if found.noise_multiplier <= calibration.SMALLEST * (1.0 + 1e-9):  # it comes back from its logarithm
        print_lines([f"Less noise would do: {calibration.SMALLEST:g} is the smallest that is looked at."])
    if isinstance(found.statement, Guarantee):
        print_lines(["With this much noise the ε is proved, under these assumptions:"])
    else:
        print_lines(["With this much noise the ε is predicted, not promised: the truth may be larger. It rests on:"])
    print_lines(f"  - {assumption}" for assumption in found.statement.assumptions)
