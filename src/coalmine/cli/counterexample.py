"""``coalmine counterexample``: a training for which the last-iterate heuristic is too small."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from coalmine import _validate
from coalmine.cli._options import NoiseMultiplier, SampleRate, Steps
from coalmine.cli._output import Json, at_least, at_most, number, print_json, print_lines, print_table

if TYPE_CHECKING:
    from coalmine.accounting.counterexamples import Counterexample
    from coalmine.accounting.encoding import Encoded
    from coalmine.records import DpSgd

_EXAMPLES = ("regularizer", "zeroing", "one-bit", "linear")


def counterexample(
    sample_rate: SampleRate,
    noise_multiplier: NoiseMultiplier,
    steps: Steps,
    delta: Annotated[float, typer.Option(help="δ, between 0 and 1.")],
    regularizer: Annotated[
        float | None, typer.Option(help="λ: weight of the quadratic regularizer, 0 (none) to 1 (forget all); 0.5.")
    ] = None,
    example: Annotated[
        str,
        typer.Option(
            help="regularizer (Section 4.2), zeroing (4.1: the regularizer with λ = 1), or data that writes the whole "
            "training into the final model (4.4): linear, or one-bit as in the paper."
        ),
    ] = "regularizer",
    as_json: Json = False,
) -> None:
    """ε of a loss, or of data, that the last-iterate heuristic does not foresee, beside the heuristic."""
    from coalmine.accounting import counterexamples, encoding
    from coalmine.records import DpSgd

    mechanism = DpSgd(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps)
    _validate.choice("example", example, _EXAMPLES)
    if regularizer is not None and example != "regularizer":
        raise _validate.reject("regularizer", regularizer, f"none with example = {example!r}")
    found: Counterexample | Encoded
    if example in ("one-bit", "linear"):
        found = (encoding.one_bit if example == "one-bit" else encoding.linear)(mechanism, delta=delta)
    else:
        weight = 1.0 if example == "zeroing" else 0.5 if regularizer is None else regularizer
        found = counterexamples.regularized(mechanism, regularizer=weight, delta=delta)
    if as_json:
        print_json({**found.to_dict(), "example": example, "mechanism": dataclasses.asdict(mechanism)})
    elif isinstance(found, encoding.Encoded):
        _show_encoded(found)
    else:
        _show_regularized(found, mechanism, example)


def _show_regularized(example: Counterexample, mechanism: DpSgd, asked: str) -> None:
    """The loss with a regularizer, and what it says of the heuristic."""
    exact = example.method == "exact"
    forgets = ", which forgets all but the last step" if asked == "zeroing" else ""
    print_table(
        f"Linear loss with regularizer λ = {example.regularizer:g}{forgets}, at δ = {example.delta:g}",
        ("what", "ε"),
        [
            ("this example leaks", number(example.epsilon, 6))
            if exact
            else ("this example leaks at most", at_most(example.epsilon, 6)),
            ("the last-iterate heuristic says", number(example.heuristic, 6)),
            (f"… at its largest over t ≤ {mechanism.steps}", number(example.heuristic_worst, 6)),
        ],
    )
    if not exact:
        verdict = "Too many steps to enumerate: values were rounded up, so the first figure is an upper bound."
    elif example.refutes_worst:
        verdict = "Here the heuristic is too small, even at its largest over shorter trainings: it is not a guarantee."
    elif example.refutes_heuristic:
        verdict = "Here the heuristic at this number of steps is too small: it is not a guarantee."
    else:
        verdict = "Here the heuristic is not exceeded. Other regularizers or data may exceed it: it is not a guarantee."
    print_lines([verdict])


def _show_encoded(found: Encoded) -> None:
    """The encoding, and what it says of the heuristic."""
    kept = "values" if found.threshold is None else f"bits, by a test at {found.threshold:g}"
    print_table(
        f"Data that keeps every step in the final model ({kept}), at δ = {found.delta:g}",
        ("what", "ε"),
        [
            ("the final model leaks at least", at_least(found.epsilon, 6)),
            ("the last-iterate heuristic says", number(found.heuristic, 6)),
            ("the standard analysis promises at most", at_most(found.standard, 6)),
        ],
    )
    if found.refutes_heuristic:
        verdict = "Here the heuristic is too small: it does not hold for chosen data, and is not a guarantee."
    elif found.threshold is not None:
        verdict = (
            "Here the heuristic is not exceeded by one bit a step. The linear form leaks all that the steps do: "
            "--example linear."
        )
    else:
        verdict = (
            "Here such data is not shown to leak more than the heuristic says. It leaks all that the steps do, which "
            "is between the first figure and the last; the heuristic is not a guarantee."
        )
    print_lines([verdict])
