"""``coalmine audit``: play the privacy game against DP-SGD; theory, evidence and meaning side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalmine import _validate
from coalmine._validate import counted, rounded_up
from coalmine.cli._options import Preset, beginning_with, with_execution
from coalmine.cli._output import Json, print_json, print_lines, print_table, print_verdict, working
from coalmine.cli._targets import Inputs, check_apart, modules
from coalmine.cli.adversaries import names as adversary_names
from coalmine.errors import InvalidInputError

if TYPE_CHECKING:
    from coalmine.auditing.config import AuditConfig, Execution
    from coalmine.auditing.results import AuditResult
    from coalmine.auditing.stored import AuditRecord
    from coalmine.records import LowerBound


@with_execution
def audit(
    config: Annotated[
        Path | None, typer.Argument(help="What to audit, as TOML. Without it: the built-in example.")
    ] = None,
    preset: Preset = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="<str>", help="Replace one value: training.noise_multiplier=2 (repeatable)."),
    ] = None,
    adversary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<str>",
            help="Who attacks, instead of the config's: clipbkd, or with options "
            "one-run-white-box:canaries=5000,runs=2 (repeatable).",
            autocompletion=beginning_with(adversary_names),
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Trials for each adversary, both worlds together.")] = None,
    claim_epsilon: Annotated[float | None, typer.Option(help="Audit this claim instead of the guarantee.")] = None,
    control: Annotated[
        bool | None,
        typer.Option(
            "--control/--no-control",
            help="Also attack the training with half its noise, which must be refuted (default: where it is cheap).",
        ),
    ] = None,
    train: Annotated[
        str | None, typer.Option(help="Audit your own training: module:function, called as train(dataset, seed).")
    ] = None,
    score: Annotated[
        str | None, typer.Option(help="With --train: module:function, one number for a model, larger for world 1.")
    ] = None,
    worlds: Annotated[
        str | None,
        typer.Option(
            help="With --train: module:name of both data sets, or of a function that gives them (default: worlds)."
        ),
    ] = None,
    control_train: Annotated[
        str | None,
        typer.Option(help="With --train: module:function of a broken twin (half its noise, say) that must be refuted."),
    ] = None,
    claim_dpsgd: Annotated[
        str | None,
        typer.Option(
            help="With --train: the claim is DP-SGD with this sampling rate, noise multiplier and steps: q,σ,T (and "
            "where it differs the relation: q,σ,T,replace)."
        ),
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="With --train: the most seconds one training may take.")] = None,
    batched: Annotated[
        int | None,
        typer.Option(
            help="With --train: it trains many, called as train(dataset, seeds) with at most so many seeds, and gives "
            "as many models."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="With --train: the most threads of torch and BLAS in each process.")
    ] = None,
    depends_on: Annotated[
        list[str] | None,
        typer.Option(
            help="With --train: what else decides a training: name=path of a file or folder, or name=text:value "
            "(repeatable)."
        ),
    ] = None,
    messages: Annotated[
        bool,
        typer.Option(
            "--messages", help="With --train: also keep what exceptions say and bound texts (they may quote the data)."
        ),
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write the report there: one HTML file.")] = None,
    name: Annotated[str | None, typer.Option(help="What you call this audit (see coalmine view).")] = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="<str>", help="A word to find this audit by (repeatable).")
    ] = None,
    store: Annotated[Path, typer.Option(help="Where trials are kept.")] = Path("coalmine.db"),
    execution: Any = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with data files that are already there (or set COALMINE_DATA).")
    ] = None,
    json: Json = False,
) -> int:
    """Play the privacy game against DP-SGD and put theory, evidence and meaning side by side.

    Trials are stored as they are done: stop at any moment and run the same command again to resume. Exit code 0:
    consistent with the claim (or the guarantee); 1: refuted; 2: wrong input; 3: inconclusive; 4: an error of ours.
    """
    from coalmine.auditing import config as configs

    if name is not None:
        _validate.label("name", name)
    _validate.labels("tag", tag or ())
    asked = {"trials": trials, "claim_epsilon": claim_epsilon, "control": control}
    overrides = list(set_ or [])
    overrides += [f"audit.{key}={str(value).lower()}" for key, value in asked.items() if value is not None]
    own: dict[str, object] = {"timeout": timeout, "batched": batched, "threads": threads}
    if train is not None or score is not None:
        if config is not None or preset is not None:
            raise InvalidInputError("train is not allowed beside a config file or a preset: expected one of them")
        if adversary:
            raise InvalidInputError("adversary is not allowed with train: the score that you give is the adversary")
        if any(one.startswith("audit.control=") for one in overrides):
            raise InvalidInputError("control is not allowed with train: expected --control-train module:function")
        if data_dir is not None:
            raise InvalidInputError("data_dir is not allowed with train: your own functions read their own data")
        return run_own_training((train, score, worlds, control_train), overrides, claim_dpsgd, {
            **own, "depends_on": _depends_on(depends_on or ()), "messages": messages, "name": name, "tags": tag or (),
            "store": store, "execution": execution,
        }, json=json, report=report)  # fmt: skip
    only = {"worlds": worlds, "control_train": control_train, "claim_dpsgd": claim_dpsgd, **own}
    for option, value in {**only, "depends_on": depends_on or None, "messages": messages or None}.items():
        if value is not None:
            raise InvalidInputError(f"{option} is not allowed without train: expected --train module:function too")
    _check_report(report, {"the store": store, "the config": config})
    settings = configs.load(config, preset=preset, overrides=overrides, adversaries=adversary)
    return run_audit(settings, store=store, execution=execution, json=json, report=report, name=name, tags=tag or ())


def _depends_on(texts: Sequence[str]) -> dict[str, Path | str]:
    """What ``--depends-on`` names: files and folders that are there, or texts."""
    found: dict[str, Path | str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value or name in found:
            raise InvalidInputError(
                f"depends_on = {text!r} is not allowed: expected name=path or name=text:value, every name once"
            )
        if value.startswith("text:"):
            found[name] = value.removeprefix("text:")
        elif Path(value).exists():
            found[name] = Path(value)
        else:
            raise InvalidInputError(
                f"depends_on = {text!r} is not allowed: no such file or folder; expected a path, or name=text:value"
            )
    return found


def run_audit(
    settings: AuditConfig,
    *,
    store: Path,
    execution: Execution,
    json: bool,
    report: Path | None = None,
    name: str | None = None,
    tags: Sequence[str] = (),
    resumed: AuditRecord | None = None,
) -> int:
    """Run an audit, or go on with one, with its progress bar; print the result, and give the exit code."""
    from coalmine.auditing.run import audit as run
    from coalmine.auditing.run import resume
    from coalmine.cli._watch import Watch

    _check_report(report, {"the store": store, "a file with weights": _weights(settings)})
    section = settings.audit
    each = 1.0 - (1.0 - section.confidence) / len(settings.adversary)  # all the bounds that are shown hold together
    with Watch(delta=section.delta, confidence=each, quiet=json) as watch:
        if resumed is None:
            result = run(settings, store=store, execution=execution, watcher=watch, name=name, tags=tags)
        else:
            result = resume(resumed, store=store, execution=execution, watcher=watch)
    return finish(result, json=json, report=report, store=store)


def run_own_training(
    names: tuple[str | None, str | None, str | None, str | None],
    overrides: list[str],
    claim_dpsgd: str | None,
    options: dict[str, Any],
    *,
    json: bool,
    report: Path | None,
) -> int:
    """The same for a user's own training, scoring and worlds: these names are the only code that is ever loaded."""
    from coalmine.auditing import config as configs
    from coalmine.auditing.stored import keep_asked
    from coalmine.cli._watch import Watch
    from coalmine.integrations import audit_function, load_function, load_worlds, parse_dpsgd
    from coalmine.store import Store

    given = [one for one in options["depends_on"].values() if isinstance(one, Path)]
    _check_report(report, {"the store": options["store"], "what the training depends on": given})
    train, score, worlds, control = names
    if train is None or score is None:
        raise InvalidInputError(f"{'score' if train else 'train'} is missing: expected module:function")
    wrong = [one for one in overrides if not one.startswith("audit.")]
    if wrong:
        raise InvalidInputError(f"set = {wrong[0]!r} is not allowed with train: expected audit.key=value")
    question = configs.load(overrides=overrides).audit
    training, scoring = load_function("train", train), load_function("score", score)
    given_worlds = load_worlds(worlds or f"{train.partition(':')[0]}:worlds")
    broken = None if control is None else load_function("control_train", control)
    _check_report(report, {"the code of the training": modules()})
    with Watch(delta=question.delta, confidence=question.confidence, quiet=json) as watch:
        result = audit_function(
            training,
            scoring,
            worlds=given_worlds,
            control=broken,
            claim_dpsgd=None if claim_dpsgd is None else parse_dpsgd("claim_dpsgd", claim_dpsgd),
            watcher=watch,
            **question.model_dump(include={"claim_epsilon", "delta", "confidence", "trials", "seed"}),
            **options,
        )
    asked = {
        "train": train,
        "score": score,
        "worlds": worlds or f"{train.partition(':')[0]}:worlds",
        "control_train": control,
        "depends_on": list(options["depends_on"]),
        **{name: options[name] for name in ("timeout", "batched", "threads", "messages")},
    }
    with Store.open(options["store"], create=False) as opened:
        result = keep_asked(opened, result, {name: value for name, value in asked.items() if value})
    return finish(result, json=json, report=report, store=options["store"])


def _check_report(report: Path | None, inputs: Inputs) -> None:
    """Whether the report can be written is found out now, not after hours of training."""
    from coalmine import report as reports

    if report is not None:
        check_apart({"report": report}, inputs)
        reports.check_packages()
        reports.check_target(report)


def _weights(settings: AuditConfig) -> str | None:
    """The file that trainings start from."""
    start = settings.training.model_dump(mode="json")["initialization"]
    return start.get("file") if isinstance(start, dict) else None


def finish(result: AuditResult, *, json: bool, report: Path | None, store: Path) -> int:
    """Write the report, print the verdict, where all is kept and the result, and give the exit code."""
    if report is not None:
        with working("writing the report", shown=not json):
            result.to_html(report)
    if json:
        print_json(result.to_dict())
    else:
        show(result, where=([] if report is None else [f"Report: {report}"]) + [f"Store: {store}"])
    return result.verdict.outcome.exit_code


_CHANGES = {"add_remove": "added or removed", "replace": "replaced"}


def show(result: AuditResult, *, where: Sequence[str] = ()) -> None:
    """The verdict, where report and store are, then the table and the sentences of an audit."""
    from coalmine import bounds
    from coalmine.report import rounding, words

    section, subject = result.config.audit, result.subject
    print_verdict(words.verdict(result))
    print_lines([*words.could_have_failed(result), *(f"{name}: {text}" for name, text in words.headline(result))])
    print_lines([*where, ""])
    known = subject.details
    if subject.own:
        line = f"Your own training {known['train']}, scored by {known['score']}."
    else:
        line = (
            f"DP-SGD on {subject.name} ({known['rows']:,} rows, {known['parameters']:,} parameters): "
            f"{counted(known['steps'], 'step')} at sampling rate {known['sampling rate']:.4g}, "
            f"noise multiplier {rounded_up(known['noise multiplier'])}, clipping norm {known['clipping norm']:g}"
            + (f", started from {known['start']}." if "start" in known else ".")
        )
    if result.accuracy is not None:
        line += f" Mean test accuracy {result.accuracy:.1%}."
    print_lines([line])
    assumed = result.strongest.assumed
    assumption = bounds.named(assumed.method).short if assumed else "assumed"
    print_table(
        f"ε at δ = {rounding.small(section.delta)} for one row {_CHANGES[result.strongest.bound.relation]}, from "
        f"{words.trials(result)}; each column by itself holds at {rounding.confidence(section.confidence)} confidence",
        ["adversary", "sees", "proved", assumption, "heuristic", "claim" if subject.own else "guarantee"],
        [
            [
                one.label,
                one.view.value.replace("_", " "),
                _at_least(one.bound),
                _at_least(one.assumed) if one.assumed else "-",
                f"≈ {rounding.near(result.heuristic.epsilon)}" if result.heuristic else "-",
                f"≤ {rounding.up(result.promised)}",
            ]
            for one in result.ranked
        ],
    )
    print_lines(sentences(result))


def _at_least(bound: LowerBound) -> str:
    """What is proved, in a cell of a table."""
    from coalmine.report import words

    return words.proved(bound).removeprefix("ε ").removesuffix(" proved")


def sentences(result: AuditResult) -> list[str]:
    """What it means, in the report's own words."""
    from coalmine.report import one_person, words

    lines = ["For one person:", *one_person.meaning(result), ""]
    for one in result.adversaries:
        if one.beliefs is not None:
            lines += [f"How sure {one.label} became:", *one_person.certainty(one), ""]
    if not result.subject.own:
        lines.append(
            "'Proved' assumes nothing about the algorithm; 'if DP-SGD' assumes that this is DP-SGD with this sampling "
            "rate and number of steps, 'if Gaussian' a Gaussian trade-off curve; the heuristic "
            + (
                "holds between the two data sets of an attack alone."
                if result.subject.local
                else "is a prediction for one who sees the last model alone."
            )
        )
    lines += words.in_groups(result)
    lines += words.caveats(result)
    if result.subject.own:
        lines += result.strongest.notes
    return lines
