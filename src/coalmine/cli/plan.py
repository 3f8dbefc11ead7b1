"""``coalmine plan``: how many trials an audit needs before it can answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalmine.cli._options import (
    CANARIES,
    Preset,
    RelationName,
    SamplingName,
    beginning_with,
    one_of,
    relation_named,
    underscored,
)
from coalmine.cli._output import Json, at_least, print_json, print_lines, print_table
from coalmine.errors import InvalidInputError
from coalmine.records import Relation

if TYPE_CHECKING:
    from coalmine.bounds import Plan
    from coalmine.records import Claim


def plan(
    epsilon: Annotated[float, typer.Option(help="The claim to refute: ε, at least 0.")],
    delta: Annotated[float, typer.Option(help="δ, from 0 up to, not including, 1.")],
    confidence: Annotated[float, typer.Option(help="Between 0 and 1.")] = 0.95,
    attack_epsilon: Annotated[
        float | None, typer.Option(help="What the attack is worth: two Gaussians with this ε at δ.")
    ] = None,
    power: Annotated[
        float | None, typer.Option(help="With --attack-epsilon: wanted chance of refuting the claim (0.8).")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="All that apply if left out.", **one_of("clopper-pearson", "gdp", "dpsgd", "one-run", "one-run-fdp")
        ),
    ] = None,
    copies: Annotated[int, typer.Option(help="k: in how many rows the worlds differ.")] = 1,
    sample_rate: Annotated[float | None, typer.Option(help="q, for the method dpsgd.")] = None,
    steps: Annotated[int | None, typer.Option(help="T, for the method dpsgd.")] = None,
    family: Annotated[
        str | None, typer.Option(help="For dpsgd: standard is the default.", **one_of("standard", "last-iterate"))
    ] = None,
    sampling: SamplingName = "poisson",
    relation: RelationName = "add-remove",
    one_run: Annotated[
        bool, typer.Option("--one-run", help="One training: what m canaries prove and refute; see --canaries.")
    ] = False,
    canaries: Annotated[list[int] | None, typer.Option(metavar="<int>", help="With --one-run: m; repeatable.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="With --one-run: train this for each m, for what it costs in accuracy.")
    ] = None,
    preset: Preset = None,
    kind: Annotated[
        str,
        typer.Option(
            help="With --config or --preset: what canaries are.", autocompletion=beginning_with(lambda: CANARIES)
        ),
    ] = "dirac",
    data_dir: Annotated[str | None, typer.Option(help="Where data sets lie.")] = None,
    as_json: Json = False,
) -> None:
    """How many trials are needed to refute a claim of ε, so that nobody runs an audit that cannot answer.

    With --one-run: what m canaries in one training are expected to prove, and what they refute. The claim is ε at δ, or
    with --sample-rate and --steps the DP-SGD whose noise just keeps it. With --config or --preset it also trains that
    setting once for each m and once without canaries, and shows the accuracy side by side.
    """
    if one_run:
        left_out = {"method": method, "family": family, "power": power is not None, "copies": copies != 1}
        for name, given in left_out.items():
            if given:
                raise InvalidInputError(f"{name} is not allowed with one_run: expected it without --one-run")
        if relation_named(relation) is not Relation.ADD_REMOVE:
            raise InvalidInputError("relation is not allowed with one_run: canaries are added or left out")
        from coalmine.cli.one_run import show_plan

        show_plan(
            _one_run_claim(epsilon, delta, sample_rate, steps, sampling),
            confidence=confidence,
            attack_epsilon=attack_epsilon,
            canaries=canaries,
            priced=None if config is None and preset is None else (config, preset, underscored(kind), data_dir),
            as_json=as_json,
        )
        return
    for name, value in {"canaries": canaries, "config": config, "preset": preset}.items():
        if value:
            raise InvalidInputError(f"{name} is not allowed without one_run: expected --one-run too")
    from coalmine import _validate, bounds
    from coalmine.cli._evidence import choose_method, known_mechanism

    epsilon = _validate.non_negative("epsilon", epsilon)
    neighbours = relation_named(relation)
    if attack_epsilon is None and power is not None:
        raise InvalidInputError(f"power = {power} is not allowed without --attack-epsilon: expected both or neither")
    parts: dict[str, Any] = {"sample_rate": sample_rate, "steps": steps, "sampling": sampling, "relation": relation}
    if method is not None:
        methods = [choose_method(method, family)]
    else:
        known = sample_rate is not None or steps is not None
        names = ["clopper-pearson", *(["gdp"] if delta > 0.0 else []), *(["dpsgd"] if known else [])]
        if copies == 1 and neighbours is Relation.ADD_REMOVE:
            names += ["one-run", "one-run-fdp"] if delta > 0.0 else ["one-run"]
        methods = [choose_method(name, family if name == "dpsgd" else None) for name in names]
    plans: list[Plan] = []
    for each in methods:
        ignored = method is None and not each.needs_mechanism  # all that apply: the parts are for the others
        plans += [
            bounds.plan(
                epsilon,
                delta=delta,
                confidence=confidence,
                method=each.name,
                threshold=rule,
                attack_epsilon=attack_epsilon,
                power=0.8 if power is None else power,
                copies=copies,
                mechanism=None if ignored else known_mechanism(each, **parts),
                relation=neighbours,
            )
            for rule in ((None, bounds.Sup()) if each.evidence is bounds.Evidence.TRIALS else (None,))
        ]
    if as_json:
        print_json({"claim": epsilon, "plans": [each.to_dict() for each in plans]})
    else:
        _show(plans)


def _one_run_claim(epsilon: float, delta: float, sample_rate: float | None, steps: int | None, sampling: str) -> Claim:
    """What a plan of one run is held against: ε, or the DP-SGD whose noise just keeps it."""
    from coalmine.cli.one_run import claim_of

    sigma = None
    if underscored(sampling) == "full" and sample_rate is None and steps is not None:
        sample_rate = 1.0
    if (sample_rate is None) != (steps is None):
        missing, given = ("--steps", "--sample-rate") if steps is None else ("--sample-rate", "--steps")
        raise InvalidInputError(f"{missing} not given: expected it with {given}, for a claimed DP-SGD; or neither")
    if sample_rate is not None and steps is not None:
        from coalmine.accounting import calibrate
        from coalmine.records import Sampling

        sigma = calibrate.noise_multiplier(
            sample_rate=sample_rate,
            steps=steps,
            epsilon=epsilon,
            delta=delta,
            sampling=Sampling.parse(underscored(sampling)),
        ).noise_multiplier
    return claim_of(
        epsilon=epsilon if sigma is None else None,
        delta=delta,
        noise_multiplier=sigma,
        sample_rate=sample_rate,
        steps=steps,
        sampling=sampling,
    )


def _show(plans: list[Plan]) -> None:
    """A table and what it means."""
    from coalmine.bounds import Evidence, named

    first = plans[0]
    rows = []
    for each in plans:
        unit = "canaries" if named(each.method).evidence is Evidence.ONE_RUN else "per world"
        needed = f"{each.trials} {unit}" if each.trials is not None else f"more than {each.most} {unit}"
        top = at_least(each.ceiling, 2) if each.ceiling is not None else "–"
        rows.append((each.method.replace("_", "-"), each.threshold_rule, needed, top))
    if first.attack_epsilon is None:
        attack = "an attack that makes no error"
        meaning = (
            "With as many trials in each world an attack that makes no error refutes the claim by the method of its "
            "row; with fewer none does, however strong (by sup, whose simulations scatter, with one and a tenth "
            "fewer). A real attack needs more: say what it is worth with --attack-epsilon."
        )
    else:
        attack = f"an attack worth {first.attack_epsilon:g}, {100 * first.power:g}% of the time"
        worth = f"an attack whose scores are two Gaussians worth ε = {first.attack_epsilon:g}"
        meaning = f"With that many trials {worth} refutes the claim in about {100 * first.power:g}% of audits."
        if all(each.trials is None for each in plans):
            meaning = (
                f"None of the numbers of trials that were tried is enough: {worth} is too near to what is claimed."
            )
        elif any(each.trials is None for each in plans):
            meaning = f"Where a number of trials stands: {meaning[0].lower()}{meaning[1:]}"
    groups = []
    if first.copies > 1:
        attack += f", in worlds that differ in {first.copies} rows"
        groups.append(f"Every ε here is for one row; {first.copies} rows may leak {first.copies} times as much.")
        if any(each.trials is None for each in plans):
            groups.append("Where no number of trials is enough, fewer copies may do.")
    print_table(
        f"Trials to refute ε = {first.claim:g} at δ = {first.delta:g}, confidence {100 * first.confidence:g}%, by "
        f"{attack}",
        ("method", "threshold", "trials needed", "ceiling"),
        rows,
    )
    if first.relation is Relation.REPLACE:
        groups.append("Neighbours replace a row: one row of the training set is another.")
    print_lines(
        [
            meaning,
            *groups,
            "clopper-pearson and one-run assume nothing about the mechanism; gdp and one-run-fdp assume a Gaussian "
            "trade-off curve, dpsgd the stated DP-SGD. The ceiling is what an attack without error would prove with "
            "those trials.",
        ]
    )
