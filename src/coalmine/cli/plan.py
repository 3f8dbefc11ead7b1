"""``coalmine plan``: how many trials an audit needs before it can answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalmine.cli._options import RelationName, SamplingName, underscored
from coalmine.cli._output import Json, number, print_json, print_lines, print_table

if TYPE_CHECKING:
    from coalmine.bounds import Plan


def plan(
    epsilon: Annotated[float, typer.Option("--epsilon", help="The claim to refute: ε, at least 0.")],
    delta: Annotated[float, typer.Option("--delta", help="δ, from 0 up to, not including, 1.")],
    confidence: Annotated[float, typer.Option("--confidence", help="Between 0 and 1.")] = 0.95,
    attack_epsilon: Annotated[
        float | None,
        typer.Option("--attack-epsilon", help="What the attack is worth: two Gaussians with this ε at δ."),
    ] = None,
    power: Annotated[
        float, typer.Option("--power", help="With --attack-epsilon: wanted chance of refuting the claim.")
    ] = 0.8,
    method: Annotated[
        str | None,
        typer.Option(
            "--method", help="clopper-pearson, gdp, dpsgd, one-run or one-run-fdp; all that apply if left out."
        ),
    ] = None,
    copies: Annotated[int, typer.Option("--copies", help="k: in how many rows the worlds differ.")] = 1,
    sample_rate: Annotated[float | None, typer.Option("--sample-rate", help="q, for the method dpsgd.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="T, for the method dpsgd.")] = None,
    family: Annotated[str, typer.Option("--family", help="dpsgd: standard or last-iterate.")] = "standard",
    sampling: SamplingName = "poisson",
    relation: RelationName = "add_remove",
    as_json: Json = False,
) -> None:
    """How many trials are needed to refute a claim of ε, so that nobody runs an audit that cannot answer."""
    from coalmine import _validate, bounds
    from coalmine.bounds.methods import METHODS
    from coalmine.bounds.plan import PLANNABLE

    epsilon = _validate.non_negative("epsilon", epsilon)
    if method is not None:
        methods = [underscored(method)]
    else:
        methods = ["clopper_pearson"]
        if delta > 0.0:
            methods.append("gdp")
        if sample_rate is not None or steps is not None:
            methods.append("dpsgd")
        if copies == 1:
            methods += ["one_run", "one_run_fdp"] if delta > 0.0 else ["one_run"]
    plans: list[Plan] = []
    for name in methods:
        common: dict[str, Any] = {
            "delta": delta,
            "confidence": confidence,
            "method": name,
            "attack_epsilon": attack_epsilon,
            "power": power,
            "copies": copies,
        }
        if name == "dpsgd" or (method is not None and name in PLANNABLE):
            common |= {
                "sample_rate": sample_rate,
                "steps": steps,
                "family": underscored(family),
                "sampling": underscored(sampling),
                "relation": underscored(relation),
            }
        rules = (None, bounds.Sup()) if name in METHODS else (None,)
        plans += [bounds.plan(epsilon, threshold=rule, **common) for rule in rules]
    if as_json:
        print_json({"claim": epsilon, "plans": [each.to_dict() for each in plans]})
    else:
        _show(plans)


def _show(plans: list[Plan]) -> None:
    """A table and what it means."""
    first = plans[0]
    rows = []
    for each in plans:
        unit = "canaries" if each.method.startswith("one_run") else "a world"
        needed = f"{each.trials} {unit}" if each.trials is not None else f"more than {each.most} {unit}"
        top = number(each.ceiling, 2) if each.ceiling is not None else "–"
        rows.append((each.method.replace("_", "-"), each.threshold_rule, needed, top))
    if first.attack_epsilon is None:
        attack = "an attack that makes no error"
        meaning = (
            "No audit with fewer trials can refute the claim, however strong the attack. A real attack needs more: say "
            "what it is worth with --attack-epsilon."
        )
    else:
        attack = f"an attack worth {first.attack_epsilon:g}, {100 * first.power:g} % of the time"
        meaning = (
            f"With that many trials an attack whose scores are two Gaussians worth epsilon = {first.attack_epsilon:g} "
            f"refutes the claim in about {100 * first.power:g} % of audits."
        )
    print_table(
        f"Trials to refute epsilon = {first.claim:g} at delta = {first.delta:g}, confidence {100 * first.confidence:g} "
        f"%, by {attack}",
        ("method", "threshold", "trials needed", "ceiling"),
        rows,
    )
    print_lines(
        [
            meaning,
            "clopper-pearson and one-run assume nothing about the mechanism; gdp and one-run-fdp assume a Gaussian "
            "trade-off curve, dpsgd the stated DP-SGD. The ceiling is what an attack without error would prove with "
            "those trials.",
        ]
    )
