"""``coalmine account``: what theory promises, before any training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalmine.cli._options import (
    NoiseMultiplier,
    RelationName,
    SampleRate,
    SamplingName,
    Steps,
    relation_named,
    sampling_named,
)
from coalmine.cli._output import Json, at_least, at_most, number, print_json, print_lines, print_table
from coalmine.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from coalmine.records import DpSgd, Guarantee, Heuristic

_HOW = {
    "pld": "PLD",
    "rdp": "by RDP, for this δ is too small for PLD",
    "no_amplification": "as without sampling, for this δ is too small for PLD",
    "shuffle_no_amplification": "each row once an epoch, and nothing gained from sampling",
}
"""By which analysis the standard figure was proved."""
_WORDS = {
    "standard": "proved, every model along the way may be seen ({how})",
    "rdp": "proved too, by an older and looser method",
    "gdp_clt": "approximate, can be below the truth",
    "last_iterate": "prediction if only the last model is released",
    "last_iterate_worst": "the same, largest over all shorter trainings",
    "full_batch": "comparison: full batches, same noise per gradient",
}


_QUICK_STEPS = 12
"""Up to this many steps the regularized example is enumerated in no time."""


def account(
    sample_rate: SampleRate,
    noise_multiplier: NoiseMultiplier,
    steps: Steps,
    delta: Annotated[float | None, typer.Option(help="δ, between 0 and 1; gives ε.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε, at least 0; gives δ instead.")] = None,
    sampling: SamplingName = "poisson",
    relation: RelationName = "add-remove",
    as_json: Json = False,
) -> None:
    """What theory promises for DP-SGD: ε at a δ (or δ at an ε) by every analysis, and what it means for one person."""
    from coalmine.identifiability import advantage, belief
    from coalmine.records import DpSgd, Sampling

    if (delta is None) == (epsilon is None):
        given = "neither was given" if delta is None else "both were given"
        raise InvalidInputError(f"give exactly one of --delta and --epsilon: {given}")
    mechanism = DpSgd(
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        steps=steps,
        sampling=sampling_named(sampling),
        relation=relation_named(relation),
    )
    analyses = _analyses(delta, epsilon)
    if mechanism.sampling is Sampling.SHUFFLE:  # what holds for them has a function of its own
        analyses |= {"standard": _shuffled(delta, epsilon)}
    entries = {name: _entry(analysis, mechanism) for name, analysis in analyses.items()}
    if mechanism.sampling is Sampling.SHUFFLE:
        entries["rdp"]["reason"] = "sampling = 'shuffle' has no analysis that gains from sampling"
    proved = entries["standard"]
    if proved["kind"] == "unsupported":  # what all else here rests on
        raise UnsupportedError(proved["reason"])
    counter = _counterexamples(mechanism, delta) if entries["last_iterate"]["kind"] == "heuristic" else {}
    bound = proved["epsilon"]
    risk = {
        "advantage": advantage.of_mechanism(mechanism),
        "belief": belief.from_epsilon(bound),
        "belief_exceeded": belief.exceedance(mechanism, epsilon=bound) if bound < math.inf else 0.0,
    }
    if as_json:
        shown = {"mechanism": dataclasses.asdict(mechanism), **({"counterexamples": counter} if counter else {})}
        print_json({**entries, **risk, **shown})
    else:
        _show(mechanism, entries, "epsilon" if epsilon is None else "delta", counter=counter, **risk)


def _analyses(delta: float | None, epsilon: float | None) -> dict[str, Callable[[DpSgd], Guarantee | Heuristic]]:
    """Every analysis, as a function of the mechanism alone."""
    from coalmine.accounting import full_batch, last_iterate, standard

    pairs: dict[str, tuple[Callable[..., Guarantee | Heuristic], Callable[..., Guarantee | Heuristic]]] = {
        "standard": (standard.epsilon, standard.delta),
        "rdp": (partial(standard.epsilon, analysis="rdp"), partial(standard.delta, analysis="rdp")),
        "gdp_clt": (standard.gdp_clt, standard.gdp_clt_delta),
        "last_iterate": (last_iterate.epsilon, last_iterate.delta),
        "last_iterate_worst": (last_iterate.worst, last_iterate.worst_delta),
        "full_batch": (full_batch.epsilon, full_batch.delta),
    }
    if delta is not None:
        return {name: partial(of_delta, delta=delta) for name, (of_delta, _) in pairs.items()}
    return {name: partial(of_epsilon, epsilon=epsilon) for name, (_, of_epsilon) in pairs.items()}


def _shuffled(delta: float | None, epsilon: float | None) -> Callable[[DpSgd], Guarantee]:
    """What is proved for shuffled batches, as a function of the mechanism alone."""
    from coalmine.accounting import standard

    if delta is not None:
        return partial(standard.shuffle_epsilon, delta=delta)
    assert epsilon is not None
    return partial(standard.shuffle_delta, epsilon=epsilon)


def _entry(analysis: Callable[[DpSgd], Guarantee | Heuristic], mechanism: DpSgd) -> dict[str, Any]:
    """One analysis as plain data; one that does not cover this relation or sampling says why instead."""
    try:
        return analysis(mechanism).to_dict()
    except UnsupportedError as error:
        return {"kind": "unsupported", "reason": str(error)}


def _show(
    mechanism: DpSgd,
    entries: dict[str, dict[str, Any]],
    wanted: str,
    *,
    counter: dict[str, dict[str, Any]],
    advantage: float,
    belief: float,
    belief_exceeded: float,
) -> None:
    """A table and a few sentences for people."""
    from coalmine import _validate

    signs = {"epsilon": "ε", "delta": "δ"}
    other, sign = "delta" if wanted == "epsilon" else "epsilon", signs[wanted]
    at = f"{signs[other]} = {entries['standard'][other]:g}"
    how = _HOW[entries["standard"]["analysis"]] if mechanism.sample_rate < 1.0 else "exact: nothing is sampled"
    rows = [
        (
            name.replace("_", "-"),
            entry["kind"],
            _figure(entry, wanted) if wanted in entry else "–",
            _WORDS[name].format(how=how),
        )
        for name, entry in entries.items()
    ]
    title = (
        f"DP-SGD, sample rate {mechanism.sample_rate:g}, noise {mechanism.noise_multiplier:g}, "
        f"{_validate.counted(mechanism.steps, 'step')}, {mechanism.sampling.value} batches, "
        f"{mechanism.relation.value.replace('_', '-')} neighbours"
    )
    print_table(title, ("analysis", "kind", f"{sign} at {at}", "what it is"), rows)
    from coalmine.report.one_person import for_one_person

    proved, predicted = entries["standard"], entries["last_iterate"]
    lines = [
        f"Proved: {sign} is at most {_figure(proved, wanted)} at {at}, even if every model along the way is seen.",
        for_one_person(advantage=advantage, belief=belief, exceeded=belief_exceeded, relation=mechanism.relation),
    ]
    if mechanism.sampling.value == "shuffle":  # other assumptions than everywhere else here
        lines += ["That is proved under these assumptions:", *(f"  - {one}" for one in proved["assumptions"])]
    if wanted in predicted:
        lines.append(
            f"Predicted, not promised: with only the last model released, {sign} is usually near "
            f"{_figure(predicted, wanted)}. Never report it as a guarantee."
        )
        lines += _distrust(counter)
    lines += [
        f"{name.replace('_', '-')}: {entry['reason']}"
        for name, entry in entries.items()
        if entry["kind"] == "unsupported"
    ]
    print_lines(lines)


def _counterexamples(mechanism: DpSgd, delta: float | None) -> dict[str, dict[str, Any]]:
    """The examples that can be computed at once for these very numbers: a regularizer, and data that is chosen."""
    from coalmine.accounting import counterexamples, encoding
    from coalmine.records import Relation, Sampling

    if delta is None or mechanism.sampling is not Sampling.POISSON or mechanism.relation is not Relation.ADD_REMOVE:
        return {}
    found = [("regularizer 1", counterexamples.zeroing(mechanism, delta=delta))]
    if mechanism.steps <= _QUICK_STEPS:
        found.append(("regularizer 0.5", counterexamples.regularized(mechanism, regularizer=0.5, delta=delta)))
    worst = max(found, key=lambda one: one[1].epsilon)
    return {
        "regularizer": {"example": worst[0], **worst[1].to_dict()},
        "adversarial_data": {"example": "linear", **encoding.linear(mechanism, delta=delta).to_dict()},
    }


def _distrust(counter: dict[str, dict[str, Any]]) -> list[str]:
    """When the heuristic is not to be trusted, with the example that shows it."""
    if not counter:
        return [
            "Do not trust it where the training has a regularizer (weight decay too), or where others may choose part "
            "of the data: 'coalmine counterexample' shows such cases."
        ]
    loss, chosen = counter["regularizer"], counter["adversarial_data"]
    option = "zeroing" if loss["regularizer"] == 1.0 else "regularizer"
    leaks = f"a linear loss with regularizer λ = {loss['regularizer']:g} leaks {number(loss['epsilon'])}"
    return [
        "Do not trust it where the training has a regularizer, weight decay included: "
        + (
            f"{leaks}, more than it says ('coalmine counterexample --example {option}')."
            if loss["refutes_heuristic"]
            else f"here {leaks}, which it covers, but other regularizers leak up to what is proved (last-iterate-2024, "
            "Section 4.3; adversary pathological-regularizer)."
        ),
        "Do not trust it where others may choose part of the data: data that writes every step into the final model "
        f"leaks all that the steps do, ε of at least {at_least(chosen['epsilon'])}"
        + (", more than it says" if chosen["refutes_heuristic"] else " and at most what is proved")
        + " ('coalmine counterexample --example linear'; adversary encoding).",
    ]


def _figure(entry: dict[str, Any], wanted: str) -> str:
    """ε with four decimals ("infinity" is ∞), δ with four digits; what is guaranteed is rounded up."""
    from coalmine import _validate

    value, proved = float(entry[wanted]), entry["kind"] == "guarantee"
    if wanted == "epsilon":
        return (at_most if proved else number)(value)
    return _validate.rounded_up(value, 4) if proved else f"{value:.4g}"
