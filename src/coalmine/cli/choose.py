"""``coalmine choose``: from what a person tolerates to ε and to noise."""

from __future__ import annotations

from typing import Annotated

import typer

from coalmine.cli._output import Json, number, print_json, print_lines, print_table
from coalmine.errors import InvalidInputError


def choose(
    delta: Annotated[float, typer.Option("--delta", help="δ, between 0 and 1.")],
    belief: Annotated[
        float | None,
        typer.Option(
            "--belief", help="How sure an adversary may become that a record was used, above 0.5 and below 1."
        ),
    ] = None,
    advantage: Annotated[
        float | None,
        typer.Option("--advantage", help="How much better than a coin it may guess, above 0 and below 1."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="T: number of training steps.")] = 1,
    sample_rate: Annotated[float, typer.Option("--sample-rate", help="q: probability that a row is in a batch.")] = 1.0,
    as_json: Json = False,
) -> None:
    """From a tolerated belief or advantage to ε and to the noise multiplier σ, by the classical and the exact way."""
    from coalmine.identifiability import choose as choosing

    if (belief is None) == (advantage is None):
        given = "neither was given" if belief is None else "both were given"
        raise InvalidInputError(f"give exactly one of --belief and --advantage: {given}")
    if belief is not None:
        choice = choosing.from_belief(belief, delta=delta, steps=steps, sample_rate=sample_rate)
    else:
        assert advantage is not None
        choice = choosing.from_advantage(advantage, delta=delta, steps=steps, sample_rate=sample_rate)
    if as_json:
        print_json(choice.to_dict())
        return
    print_table(
        f"What follows for {choice.steps} step(s), sample rate {choice.sample_rate:g}, delta = {choice.delta:g}",
        ("calibration", "noise multiplier", "advantage at this noise", "belief goes above the bound"),
        [
            (
                name,
                number(sigma, 6),
                number(choice.actual_advantage[name]),
                f"in at most {choice.belief_exceeded[name]:.2g} of all trainings",
            )
            for name, sigma in choice.noise_multiplier.items()
        ],
    )
    print_lines(
        [
            f"Epsilon = {choice.epsilon:.4f}: starting at even odds, an adversary becomes at most "
            f"{100 * choice.belief:.2f} % sure that one person's record was used, rare outcomes aside.",
            f"The Gaussian mechanism with classical noise at this epsilon has an advantage of {choice.advantage:.4f}: "
            f"it lets an adversary guess right {100 * (1 + choice.advantage) / 2:.1f} % of the time (a coin: 50 %).",
            *(f"  - {note}" for note in choice.assumptions),
        ]
    )
