"""``coalmine one-run``: prepare canaries under seal, judge their scores, or play the whole game on our own trainer."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalmine.cli._canaries import canaries_of
from coalmine.cli._kept import write_kept
from coalmine.cli._options import (
    CANARIES,
    Called,
    KeepIn,
    Preset,
    SamplingName,
    Tagged,
    beginning_with,
    check_kept,
    one_of,
    underscored,
)
from coalmine.cli._output import (
    Json,
    at_least,
    number,
    print_facts,
    print_json,
    print_lines,
    print_table,
    print_verdict,
)
from coalmine.cli._targets import Inputs, check_apart
from coalmine.errors import InvalidInputError

if TYPE_CHECKING:
    from coalmine.one_run import OneRunResult
    from coalmine.one_run.game import Played, Price
    from coalmine.records import Claim

one_run = typer.Typer(help="An audit that costs one training, with many canaries.")

_KINDS = ", ".join(CANARIES)

Confidence = Annotated[float, typer.Option("--confidence", help="Between 0 and 1.")]
Aim = Annotated[
    str,
    typer.Option(
        "--aim", help="Guesses that refute the smallest excess, or prove the largest ε.", **one_of("refute", "bound")
    ),
]
Method = Annotated[
    str | None,
    typer.Option("--method", help="The better one for the claim if left out.", **one_of("one-run", "one-run-fdp")),
]
GuessIn = Annotated[int | None, typer.Option("--guess-in", help="Highest scores guessed IN; chosen if left out.")]
GuessOut = Annotated[int | None, typer.Option("--guess-out", help="Lowest scores guessed OUT; chosen if left out.")]


@one_run.command("prepare", short_help="Write canaries, and their coins under seal.")
def prepare(
    kind: Annotated[
        str, typer.Option(help=f"What canaries are: {_KINDS}.", autocompletion=beginning_with(lambda: CANARIES))
    ],
    canaries: Annotated[int, typer.Option(help="m: canaries in each run.")],
    out: Annotated[Path, typer.Option(help="A new folder for all files.")],
    delta: Annotated[float, typer.Option(help="δ of the claim, between 0 and 1.")],
    epsilon: Annotated[float | None, typer.Option(help="The claim is this ε at δ.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="The claim is DP-SGD with this σ (sharper than ε alone).")
    ] = None,
    sample_rate: Annotated[float | None, typer.Option(help="q of the claimed DP-SGD.")] = None,
    steps: Annotated[int | None, typer.Option(help="T of the claimed DP-SGD.")] = None,
    sampling: SamplingName = "poisson",
    data: Annotated[
        Path | None, typer.Option(help="The user's rows, an .npz file with x and y (kinds that are rows).")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="How many classes; from y if left out.")] = None,
    scale: Annotated[float, typer.Option(help="low-variance: length of a canary's row.")] = 10.0,
    vocabulary: Annotated[int | None, typer.Option(help="Tokens: how many there are.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens: how many in a sequence.")] = None,
    parameters: Annotated[int | None, typer.Option(help="Gradients: parameters of the model.")] = None,
    per_coordinate: Annotated[int, typer.Option(help="dirac: canaries to a parameter.")] = 1,
    support: Annotated[int, typer.Option(help="random-directions: parameters in each.")] = 64,
    runs: Annotated[int, typer.Option(help="T trainings that are pooled, each with its own coins.")] = 1,
    confidence: Confidence = 0.95,
    guess_in: GuessIn = None,
    guess_out: GuessOut = None,
    method: Method = None,
    aim: Aim = "refute",
    attack_epsilon: Annotated[
        float | None, typer.Option(help="What the attack is expected to be worth: ε at δ.")
    ] = None,
    form: Annotated[str | None, typer.Option(help="By the kind if left out.", **one_of("npz", "csv", "jsonl"))] = None,
    seed: Annotated[int, typer.Option(help="Public: which canaries. Never decides a coin.")] = 0,
    as_json: Json = False,
) -> None:
    """Write canaries to include, canaries to score, and a sealed coin file; fix claim and guesses beforehand."""
    from coalmine import _validate
    from coalmine.one_run import GradientCanaries, advice, design, seal

    _validate.integer("canaries", canaries, at_least=2)
    _validate.integer("runs", runs, at_least=1)
    claim = claim_of(
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        steps=steps,
        sampling=sampling,
    )
    options = {
        "data": data,
        "classes": classes,
        "scale": scale,
        "vocabulary": vocabulary,
        "length": length,
        "parameters": parameters,
        "per_coordinate": per_coordinate,
        "support": support,
    }
    chosen = canaries_of(underscored(kind), canaries, seed, options)
    plan = design(
        claim,
        canaries=runs * canaries,
        confidence=confidence,
        guess_in=guess_in,
        guess_out=guess_out,
        method=None if method is None else underscored(method),
        aim=aim,
        attack=_attack_mu(attack_epsilon, delta=delta),
    )
    made = seal.prepare(chosen, design=plan, folder=out, runs=runs, form=form)
    choice, warning = plan.choice(), advice.too_few(plan)
    if as_json:
        print_json(
            {
                "folder": str(out),
                "digest": made.digest,
                "design": plan.to_dict(),
                "runs": runs,
                "critical": choice.critical,
                "warning": warning,
            }
        )
        return
    how = "add these rows to the data, as ordinary rows"
    if isinstance(chosen, GradientCanaries):
        how = "gradients, to be added to the private sum of every step (see docs/one-run.md, Gradient canaries)"
    each = "the training" if runs == 1 else f"the trainings: {runs} of them, each with the rows of one file"
    print_facts(
        f"{canaries:,} canaries ({chosen.note}) prepared in {out}",
        [
            ("train/", f"goes to {each}; {how}"),
            (
                "score/",
                "goes to whoever scores: one score for each id, larger for a canary that seems to be in"
                + ("" if runs == 1 else f"; {runs} files, one for each training"),
            ),
            ("manifest.json", "public; tell its digest, the last line below, to somebody else now"),
            ("seal.json", "secret: keep it away from the training until the scores are there"),
            (
                "guesses",
                f"{plan.guess_in:,} highest IN, {plan.guess_out:,} lowest OUT, by {plan.method.replace('_', '-')}",
            ),
            ("refuted from", f"{f'{choice.critical:,}' if choice.critical else 'no number of'} right guesses on"),
        ],
    )
    files = ["SCORES.csv"] if runs == 1 else [f"SCORES-{part}.csv" for part in range(1, runs + 1)]
    print_lines(
        [
            *([] if warning is None else [f"Warning: {warning}."]),
            f"Then: coalmine one-run judge --run {out} {' '.join(f'--scores {name}' for name in files)}",
            made.digest,
        ]
    )


@one_run.command("judge")
def judge(
    run: Annotated[Path, typer.Option(help="The folder that prepare wrote.")],
    scores: Annotated[
        list[Path], typer.Option(metavar="<path>", help="CSV, .npz or .jsonl with id and score; repeatable.")
    ],
    manifest: Annotated[Path | None, typer.Option(help="The manifest, if it lies elsewhere.")] = None,
    seal: Annotated[Path | None, typer.Option(help="The seal, if it lies elsewhere.")] = None,
    digest: Annotated[str | None, typer.Option(help="The manifest's digest as told beforehand.")] = None,
    control_run: Annotated[
        Path | None, typer.Option(help="Another prepared run: the same training with half of its noise.")
    ] = None,
    control_scores: Annotated[list[Path] | None, typer.Option(metavar="<path>", help="Its scores.")] = None,
    section: Annotated[Path | None, typer.Option(help="Write everything for a report, as JSON.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the scores: .svg, .png or .pdf.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report there: one HTML file.")] = None,
    store: KeepIn = None,
    name: Called = None,
    tag: Tagged = None,
    as_json: Json = False,
) -> int:
    """Open the seal and judge the scores. Exit code 0: consistent, 1: refuted, 2: bad input, 3: inconclusive."""
    from coalmine.one_run import judge_folder
    from coalmine.one_run.seal import judge_control

    read = [run, control_run, manifest, seal]  # of a folder every file
    files = [one for path in read if path is not None for one in (path.rglob("*") if path.is_dir() else [path])]
    scored = [*scores, *(control_scores or ())]
    inputs: Inputs = {"the store": store, "a file of the prepared run": files, "a file of scores": scored}
    _check_outputs(inputs, section=section, figure=figure, report=report)
    check_kept(store, name, tag)
    kept = (store, name, tag)
    if (control_run is None) != (control_scores is None):
        raise InvalidInputError("control_run and control_scores belong together: expected both or neither")
    control = None
    if control_run is not None and control_scores is not None:
        control = judge_control(control_run, scores=control_scores, audited=run, manifest=manifest)
    result = judge_folder(run, scores=scores, manifest=manifest, seal=seal, digest=digest, control=control)
    return _finish(result, None, section=section, figure=figure, report=report, kept=kept, as_json=as_json)


@one_run.command("play")
def play(
    config: Annotated[Path | None, typer.Option(help="What is trained, as for audit; TOML.")] = None,
    preset: Preset = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="<str>", help="Replace one value: section.key=value.")
    ] = None,
    kind: Annotated[
        str, typer.Option(help=f"What canaries are: {_KINDS}.", autocompletion=beginning_with(lambda: CANARIES))
    ] = "dirac",
    canaries: Annotated[int, typer.Option(help="m: canaries in each run.")] = 1000,
    per_coordinate: Annotated[int, typer.Option(help="dirac: canaries to a parameter.")] = 1,
    support: Annotated[int, typer.Option(help="random-directions: parameters in each.")] = 64,
    scale: Annotated[float, typer.Option(help="low-variance: length of a canary's row.")] = 10.0,
    runs: Annotated[int, typer.Option(help="Trainings that are pooled.")] = 1,
    references: Annotated[int, typer.Option(help="Rows: the attacker's own trainings, to compare with.")] = 0,
    knows_batches: Annotated[
        bool,
        typer.Option("--knows-batches/--sees-steps-alone", help="Gradients: the attacker knows the other rows drawn."),
    ] = True,
    noise_factor: Annotated[
        float, typer.Option(help="Train with this share of the claimed noise: a broken training.")
    ] = 1.0,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Play against half the noise too: it must be refuted.")
    ] = True,
    price: Annotated[
        bool, typer.Option("--price/--no-price", help="Train without canaries too, and compare the accuracy.")
    ] = True,
    confidence: Confidence = 0.95,
    guess_in: GuessIn = None,
    guess_out: GuessOut = None,
    aim: Aim = "refute",
    seed: Annotated[int | None, typer.Option(help="For a game that can be repeated; else fresh coins.")] = None,
    device: Annotated[str, typer.Option(help="Where to train.", **one_of("cpu", "cuda"))] = "cpu",
    data_dir: Annotated[str | None, typer.Option(help="Where data sets lie.")] = None,
    section: Annotated[Path | None, typer.Option(help="Write everything for a report, as JSON.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the scores: .svg, .png or .pdf.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report there: one HTML file.")] = None,
    store: KeepIn = None,
    name: Called = None,
    tag: Tagged = None,
    as_json: Json = False,
) -> int:
    """Train once with canaries on our own trainer, and judge its claim. Exit codes as for judge."""
    from coalmine.auditing import config as configs
    from coalmine.auditing import setting as settings
    from coalmine.one_run import GradientCanaries, design, game
    from coalmine.one_run import judge as judged
    from coalmine.records import MechanismClaim

    inputs: Inputs = {"the store": store, "the config": config}
    _check_outputs(inputs, section=section, figure=figure, report=report)
    check_kept(store, name, tag)
    kept = (store, name, tag)
    found = configs.load(config, preset=preset, overrides=list(set_ or []))
    setting = settings.prepare(found, data_dir=data_dir)
    mechanism = game.mechanism_of(setting.training, rows=setting.base.rows)
    pool, test = game.apart(underscored(kind), setting.test)
    chosen = game.make_canaries(
        underscored(kind),
        network=setting.network,
        base=setting.base,
        training=setting.training,
        number=canaries,
        held_out=pool,
        per_coordinate=per_coordinate,
        support=support,
        scale=scale,
    )
    plan = design(
        MechanismClaim(mechanism=mechanism, delta=found.audit.delta),
        canaries=runs * canaries,
        confidence=confidence,
        guess_in=guess_in,
        guess_out=guess_out,
        aim=aim,
        attack=game.expected_attack(chosen, mechanism=mechanism),
    )
    common: dict[str, Any] = {
        "base": setting.base,
        "training": setting.training,
        "canaries": chosen,
        "runs": runs,
        "references": references,
        "knows_batches": knows_batches,
        "seed": seed,
        "device": device,
    }
    played = game.play(setting.network, noise=noise_factor, test=test if price else None, **common)
    # Coins and noise of its own: with those of the audited training it would be that training where the noise agrees.
    other = {**common, "seed": None if seed is None else seed + 1}
    against = game.play(setting.network, noise=0.5, **other).scores if control else None
    result = judged(played.scores, design=plan, control=against, gradients=isinstance(chosen, GradientCanaries))
    result = dataclasses.replace(result, runs=runs, canary_kind=chosen.kind)
    return _finish(result, played, section=section, figure=figure, report=report, kept=kept, as_json=as_json)


def claim_of(
    *,
    epsilon: float | None,
    delta: float,
    noise_multiplier: float | None,
    sample_rate: float | None,
    steps: int | None,
    sampling: str,
) -> Claim:
    """The claim that these options state."""
    from coalmine.records import DpSgd, EpsilonClaim, MechanismClaim, Sampling

    kind = Sampling.parse(underscored(sampling))
    mechanism = {"noise_multiplier": noise_multiplier, "sample_rate": sample_rate, "steps": steps}
    given = [name for name, value in mechanism.items() if value is not None]
    if epsilon is not None:
        if given:
            raise InvalidInputError(f"{given[0]} is not allowed beside --epsilon: expected one claim")
        return EpsilonClaim(epsilon=epsilon, delta=delta)
    if kind is Sampling.SHUFFLE:
        raise InvalidInputError(
            "sampling = 'shuffle' is not allowed for one run: the curve of shuffled batches is not known; expected "
            "poisson or full, or --epsilon"
        )
    if kind is Sampling.FULL and sample_rate is None:
        mechanism["sample_rate"] = 1.0
    missing = [name for name, value in mechanism.items() if value is None]
    if missing:
        names = ", ".join("--" + name.replace("_", "-") for name in missing)
        raise InvalidInputError(f"{names} not given: expected --epsilon, or all numbers of a DP-SGD")
    return MechanismClaim(mechanism=DpSgd(**mechanism, sampling=kind), delta=delta)  # type: ignore[arg-type]


def _attack_mu(attack_epsilon: float | None, *, delta: float) -> float | None:
    """μ of an attack that is worth this ε at δ."""
    from coalmine import _validate
    from coalmine.theory.curves import gaussian_mu

    if attack_epsilon is None:
        return None
    return gaussian_mu(_validate.positive("attack_epsilon", attack_epsilon), delta=delta)


def _finish(
    result: OneRunResult,
    played: Played | None,
    *,
    section: Path | None,
    figure: Path | None,
    report: Path | None,
    kept: tuple[Path | None, str | None, list[str] | None],
    as_json: bool,
) -> int:
    """Print the result, write what was asked for, and give the exit code."""
    from json import dumps

    from coalmine import report as reports
    from coalmine.one_run import section as section_of

    price = None
    if played is not None and played.price is not None:
        price = {"with_canaries": played.price.with_canaries, "without": played.price.without}
    if section is not None or figure is not None or report is not None:
        tree = section_of(result, price=price)
        if section is not None:
            reports.write_text(
                dumps(tree, ensure_ascii=False, allow_nan=False) + "\n", section, name="section", kind="section"
            )
        if figure is not None or report is not None:
            from coalmine.report import one_run as pages
            from coalmine.report import render
        if figure is not None:
            reports.write_bytes(
                render.as_bytes(pages.scores(tree), figure.suffix[1:]), figure, name="figure", kind="figure"
            )
    store, name, tags = kept
    mark = None if store is None else result.keep(store, name=name, tags=tags or (), price=price)
    if report is not None and store is not None and mark is not None:
        write_kept(store, mark, report)
    elif report is not None:
        reports.write_text(pages.page(tree), report)
    if as_json:
        print_json({**result.to_dict(), "price": price})
    else:
        _show(result, price)
        print_lines(([f"Report: {report}"] if report else []) + ([f"Stored: {mark[:12]} in {store}"] if mark else []))
    return result.verdict.outcome.exit_code


def _check_outputs(inputs: Inputs, *, section: Path | None, figure: Path | None, report: Path | None) -> None:
    """Refuse what cannot be written, or would overwrite what is read, before a training or the opening of a seal."""
    from coalmine import report as reports

    check_apart({"section": section, "figure": figure, "report": report}, inputs)
    for name, path in (("section", section), ("report", report)):
        if path is not None:
            reports.check_target(path, name=name, kind=name)
    if figure is not None:
        reports.check_figure(figure)
    if report is not None:
        reports.check_packages()


def _show(result: OneRunResult, price: dict[str, float] | None) -> None:
    """A table of bounds, and sentences."""
    from coalmine.bounds import METHODS

    verdict, claim = result.verdict, result.design.claim
    print_verdict(f"{verdict.outcome.value.capitalize()} (confidence {100 * verdict.confidence:g}%)")
    print_lines(f"- {reason}" for reason in verdict.reasons)
    if result.run:
        print_lines([f"Run {result.run} ({result.canary_kind.replace('_', '-')}), manifest digest {result.digest}"])
    print_table(
        f"Proved by one run at δ = {claim.delta:g}; each bound holds at confidence {100 * verdict.confidence:g}%",
        ("method", "ε is at least", "ceiling", "decides"),
        [
            (
                bound.method.replace("_", "-")
                + ("" if METHODS[bound.method].decides else f" ({METHODS[bound.method].short})"),
                at_least(bound.epsilon),
                at_least(bound.ceiling) if bound.ceiling is not None else "–",
                "yes" if place == 0 else "",
            )
            for place, bound in enumerate(result.bounds)
        ],
    )
    lines = [f"The attack set the canaries apart like two Gaussians at distance {result.separation:.3g}."]
    if price is not None:
        lines.append(
            f"Price: accuracy {price['with_canaries']:.1%} with the canaries, {price['without']:.1%} without them."
        )
    print_lines([*lines, "Assumed:", *(f"- {words}" for words in result.bounds[0].assumptions)])


def _prices(
    priced: tuple[Path | None, str | None, str, str | None] | None, sizes: tuple[int, ...]
) -> list[Price | None]:
    """What each number of canaries costs in the setting of a config; nothing where there is none."""
    if priced is None:
        return [None] * len(sizes)
    from coalmine.auditing import config as configs
    from coalmine.auditing import setting as settings
    from coalmine.one_run import game

    path, preset, kind, data_dir = priced
    setting = settings.prepare(configs.load(path, preset=preset), data_dir=data_dir)
    if setting.test is None:
        raise InvalidInputError("this data has no test rows: expected data with some, for the accuracy")
    found = game.prices(
        setting.network, base=setting.base, training=setting.training, test=setting.test, kind=kind, sizes=sizes
    )
    return list(found)


def show_plan(
    claim: Claim,
    *,
    confidence: float,
    attack_epsilon: float | None,
    canaries: list[int] | None,
    priced: tuple[Path | None, str | None, str, str | None] | None,
    as_json: bool,
) -> None:
    """``coalmine plan --one-run``: what m canaries are worth for a claim."""
    from coalmine.one_run import forecasts, least_canaries, planning

    attack = _attack_mu(attack_epsilon, delta=claim.delta)
    sizes = tuple(canaries) if canaries else planning.SIZES
    prices = _prices(priced, sizes)
    found = forecasts(claim, sizes=sizes, confidence=confidence, attack=attack)
    least = least_canaries(claim, confidence=confidence, attack=attack)
    if as_json:
        rows = [
            {**each.to_dict(), "price": None if price is None else dataclasses.asdict(price)}
            for each, price in zip(found, prices, strict=True)
        ]
        print_json({"claim": claim.to_dict(), "confidence": confidence, "least": least, "forecasts": rows})
        return
    words = "the best attack there is" if attack_epsilon is None else f"an attack worth {attack_epsilon:g}"
    print_table(
        f"What one run proves at δ = {claim.delta:g}, confidence {100 * confidence:g}%, by {words}",
        (
            "canaries",
            "guesses IN / OUT",
            "expected ε",
            "ceiling",
            "refutes noise up to",
            "half the noise refuted",
            *(["accuracy with / without"] if priced else []),
        ),
        [
            (
                f"{each.canaries:,}",
                f"{each.guess_in:,} / {each.guess_out:,}",
                number(each.expected, 2),
                at_least(each.ceiling, 2),
                "–" if each.noise is None else f"{each.noise:.2f} of the claimed",
                f"{each.half:.0%}",
                *([] if price is None else [f"{price.with_canaries:.1%} / {price.without:.1%}"]),
            )
            for each, price in zip(found, prices, strict=True)
        ],
    )
    enough = "more than 200,000" if least is None else f"{least:,}"
    print_lines(
        [
            f"Half the claimed noise is refuted in 80% of audits by {enough} canaries.",
            "Computed for canaries that do not disturb each other; a real attack proves less."
            + ("" if priced else " With --config or --preset: what they cost in accuracy."),
        ]
    )
