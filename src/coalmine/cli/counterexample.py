"""``coalmine counterexample``: a training for which the last-iterate heuristic is too small."""

from __future__ import annotations

from typing import Annotated

import typer

from coalmine.cli._options import NoiseMultiplier, SampleRate, Steps
from coalmine.cli._output import Json, number, print_json, print_lines, print_table


def counterexample(
    sample_rate: SampleRate,
    noise_multiplier: NoiseMultiplier,
    steps: Steps,
    delta: Annotated[float, typer.Option("--delta", help="δ, between 0 and 1.")],
    regularizer: Annotated[
        float, typer.Option("--regularizer", help="λ: weight of the quadratic regulariser, 0 (none) to 1 (forget all).")
    ] = 0.5,
    as_json: Json = False,
) -> None:
    """ε of a linear loss with a quadratic regulariser, beside the heuristic that assumes there is none."""
    from coalmine.accounting import counterexamples
    from coalmine.records import DpSgd

    mechanism = DpSgd(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps)
    example = counterexamples.regularized(mechanism, regularizer=regularizer, delta=delta)
    if as_json:
        print_json(example.to_dict())
        return
    shown = "this example leaks" if example.method == "exact" else "this example leaks at most"
    print_table(
        f"Linear loss with regulariser λ = {regularizer:g}, at delta = {delta:g}",
        ("what", "epsilon"),
        [
            (shown, number(example.epsilon, 6)),
            ("the last-iterate heuristic says", number(example.heuristic, 6)),
            (f"… at its largest over t ≤ {steps}", number(example.heuristic_worst, 6)),
        ],
    )
    if example.method != "exact":
        verdict = "Too many steps to enumerate: values were rounded up, so the first figure is an upper bound."
    elif example.refutes_worst:
        verdict = "Here the heuristic is too small, even at its largest over shorter trainings: it is not a guarantee."
    elif example.refutes_heuristic:
        verdict = "Here the heuristic at this number of steps is too small: it is not a guarantee."
    else:
        verdict = "Here the heuristic is not exceeded. Other regularisers or data may exceed it: it is not a guarantee."
    print_lines([verdict])
