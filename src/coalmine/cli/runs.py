"""``coalmine runs``: what the store holds."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalmine._validate import counted, reject
from coalmine.cli._options import Address, DeviceName, EngineName, WorkerCount, one_of
from coalmine.cli._output import Json, print_facts, print_json, print_lines, print_table
from coalmine.errors import UnsupportedError
from coalmine.store.results import faults_of, part, size_of

if TYPE_CHECKING:
    from coalmine.store import Store
    from coalmine.store.listing import AuditEntry
    from coalmine.store.results import Result, ResultEntry

runs = typer.Typer(help="List, show, resume or remove what a store holds.", no_args_is_help=False)

StorePath = Annotated[Path, typer.Option("--store", help="Where trials are kept.")]
RunName = Annotated[str, typer.Argument(help="The first characters of its fingerprint.")]
ResultName = Annotated[str, typer.Argument(help="The first characters of its fingerprint, or a result's name.")]


def _summary(run: Any, entry: AuditEntry | None = None) -> dict[str, Any]:
    """What is said of a run; ``entry`` is the last audit that it belongs to."""
    identity, attack = part(run.description, "identity"), part(run.description, "attack")
    adversary = {"name": attack.get("name"), **part(attack, "options")} if attack else part(identity, "adversary")
    train = part(identity, "train").get("function")
    ended = (entry.conclusion if entry else None) or {}
    return {
        "kind": "audit",
        "run": run.fingerprint,
        "audit": entry.fingerprint if entry else None,
        "name": entry.name if entry else "",
        "tags": list(entry.tags) if entry else [],
        "adversary": adversary if train is None else {**adversary, "train": train},
        "control": attack.get("control", 1.0) != 1.0,
        "data": part(identity, "data").get("name"),
        "trials": run.trials,
        "wanted": run.wanted,
        "failed_trials": run.failed_trials,
        "failed_blocks": run.failed_blocks,
        "epsilon_lower": part(ended, "runs").get(run.fingerprint),
        "verdict": None if attack.get("control", 1.0) != 1.0 else ended.get("outcome"),
        "seconds": run.elapsed,
        "devices": list(run.devices),
        "created": _when(run.created),
    }


def _entries(store: Store) -> dict[str, AuditEntry]:
    """The last audit used of every run; how it ended only where that is still so."""
    from coalmine.auditing.stored import is_current
    from coalmine.store.listing import audits, progress

    found = audits(store)
    far = progress(store, {run for entry in found for run in entry.members})
    entries: dict[str, AuditEntry] = {}
    for entry in reversed(found):
        there = {run: min(far[run].trials, wanted) for run, wanted in entry.members.items()}
        if entry.conclusion is not None and not is_current(entry.conclusion, there):
            entry = dataclasses.replace(entry, conclusion=None)
        entries |= dict.fromkeys(entry.members, entry)
    return entries


def _when(seconds: float) -> str:
    """A moment in words."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"


def _stored_result(entry: ResultEntry) -> dict[str, Any]:
    """What is said of a probe or of one training with canaries."""
    said = entry.summary
    return {
        "kind": entry.kind,
        "result": entry.fingerprint,
        "name": entry.name,
        "tags": list(entry.tags),
        **{key: said.get(key) for key in ("subject", "claim", "size", "faults")},
        "epsilon_lower": said.get("epsilon"),
        "verdict": said.get("outcome"),
        "versions": part(said, "versions"),
        "created": _when(entry.created),
    }


@runs.command("list", short_help="Every run, probe and one-run result, the oldest first.")
def list_(
    store: StorePath = Path("coalmine.db"),
    kind: Annotated[str | None, typer.Option(help="Only these.", **one_of("audit", "probe", "one-run"))] = None,
    json: Json = False,
) -> None:
    """Every run of an audit, every probe and every one-run result, the oldest first."""
    from coalmine import _validate
    from coalmine.store import Store, results

    if kind is not None:
        _validate.choice("kind", kind, ("audit", *results.KINDS))
    with Store.open(store, create=False, read_only=True) as opened:
        entries = _entries(opened)
        found = [_summary(run, entries.get(run.fingerprint)) for run in opened.runs()]
        kept = [entry for entry in reversed(results.every(opened)) if kind in (None, entry.kind)]
    found = found if kind in (None, "audit") else []
    others = [_stored_result(entry) for entry in kept]
    if json:
        print_json({"runs": found, "results": others})
        return
    if not found and not others:
        print_lines(
            [f"No runs in {store} yet: coalmine audit makes some, and coalmine probe --store keeps its results there."]
        )
        return
    rows = [
        (
            one["created"],
            one["run"][:12],
            _lines(f"audit: {_who(one)} on {one['data']}", one),
            _counted(one),
            _proved(one),
            "control" if one["control"] else str(one["verdict"] or "-"),
        )
        for one in found
    ]
    rows += [
        (
            one["created"],
            one["result"][:12],
            _lines(f"{one['kind']}: {one['subject']}", one),
            size_of(entry) or "-",
            ", ".join(faults_of(entry)) or "no fault" if entry.kind == "probe" else _proved(one),
            str(one["verdict"] or "-"),
        )
        for entry, one in zip(kept, others, strict=True)
    ]
    print_table(
        f"Runs and results in {store}",
        ["run", "what", "trials", "proved ε", "verdict"],
        [row[1:] for row in sorted(rows, key=lambda row: row[0])],
    )
    if any(one["verdict"] is None and not one["control"] for one in found):
        print_lines(
            [
                "-: not judged yet, or not what this version found for these trials. coalmine report RUN judges what "
                "is there, coalmine runs resume RUN plays on."
            ]
        )


_LONGEST_WORD = 26
"""In a list: a longer one would leave no room for the other columns. coalmine runs show and --json have all of it."""


def _lines(what: str, summary: dict[str, Any]) -> str:
    """What it is; its name and tags, where it has some; its audit, by which a report or a bundle is asked for; when."""
    called = " ".join([summary["name"], *_tags(summary)]).strip()
    audit = summary.get("audit")
    stored = f"{summary['created'][:10]}{f', audit {audit[:12]}' if audit else ''}"
    return "\n".join(_short(line) for line in (what, called, stored) if line)


def _tags(summary: dict[str, Any]) -> list[str]:
    return [f"[{tag}]" for tag in summary["tags"]]


def _short(text: str) -> str:
    """The text with long words cut.

    >>> _short("before " + 130 * "x")
    'before xxxxxxxxxxxxxxxxxxxxxxxxx…'
    """
    return " ".join(one if len(one) <= _LONGEST_WORD else one[: _LONGEST_WORD - 1] + "…" for one in text.split(" "))


def _counted(summary: dict[str, Any]) -> str:
    """How many trials there are."""
    done = f"{summary['trials']:,}"
    if summary["trials"] != summary["wanted"]:
        done += f" of {summary['wanted']:,}"
    return done + (f"\n{summary['failed_trials']:,} failed" if summary["failed_trials"] else "")


def _proved(summary: dict[str, Any]) -> str:
    """The ε that the run proved, in the audit that used it last."""
    from coalmine.report.rounding import down

    found = summary["epsilon_lower"]
    if not isinstance(found, float):
        return "-"
    return f"≥ {down(found)}" if found > 0.0 else "nothing"


def _who(summary: dict[str, Any]) -> str:
    """The adversary of a run with its options; for a training of the user's own, its function."""
    options = dict(summary["adversary"])
    name = options.pop("name", "?")
    words = ", ".join(f"{key}={value}" for key, value in options.items())
    label = f"{name} ({words})" if words else str(name)
    if "train" in summary["adversary"]:
        label = str(summary["adversary"]["train"])
    return f"control: {label}" if summary["control"] else label


@runs.command(short_help="One run or result: what it is, how far, what went wrong.")
def show(run: ResultName, store: StorePath = Path("coalmine.db"), json: Json = False) -> None:
    """One run: its identity, how far it is, and what went wrong; or one result of a probe or of one training."""
    from coalmine.store import Store, results
    from coalmine.store.listing import audit_called

    with Store.open(store, create=False, read_only=True) as opened:
        result = results.called(opened, run)
        if result is not None:
            _show_result(results.read(opened, result.fingerprint), json=json)
            return
        audit = audit_called(opened, run)
        if audit is not None and len(audit.members) != 1:
            names = ", ".join(one[:12] for one in audit.members)
            raise reject("run", run, f"one run of this audit: {names}")
        found = opened.run(run if audit is None else next(iter(audit.members)))
        failures = opened.failures(found.fingerprint)
        entry = _entries(opened).get(found.fingerprint)
    payload = {
        **_summary(found, entry),
        "identity": part(found.description, "identity"),
        "versions": [{"versions": dict(versions), "blocks": blocks} for versions, blocks in found.made]
        or [{"versions": part(found.description, "versions"), "blocks": found.blocks}],
        "failures": [{"block": one.block, "trial": one.trial, "reason": one.reason} for one in failures],
    }
    if json:
        print_json(payload)
        return
    facts = [
        ("adversary", f"{_who(payload)} on {payload['data']}"),
        ("trials", f"{payload['trials']:,} of {payload['wanted']:,}, {payload['failed_trials']:,} failed"),
        ("proved ε", _proved(payload)),
        ("verdict", str(payload["verdict"] or "not judged yet")),
        ("audit", " ".join([str(payload["audit"] or "none")[:12], payload["name"], *_tags(payload)]).strip()),
        ("training time", f"{payload['seconds']:,.1f} s on {', '.join(payload['devices']) or 'nothing yet'}"),
        ("first stored", f"{payload['created'][:19].replace('T', ' ')} UTC"),
        *([("failed blocks", f"{payload['failed_blocks']:,}")] if payload["failed_blocks"] else []),
        *(
            ("versions", f"{_pairs(one['versions'])} ({counted(one['blocks'], 'block')})")
            for one in payload["versions"]
        ),
    ]
    print_facts(f"Run {found.fingerprint}", facts)
    print_lines(["", "What shapes its scores:"])
    parts = {key: value for key, value in payload["identity"].items() if key != "adversary"}
    for key, value in parts.items():
        if isinstance(value, dict):
            print_facts(key, _flat(value))
    single = {key: value for key, value in parts.items() if not isinstance(value, dict)}
    if single:
        print_facts("also", _flat(single))
    print_lines([f"block {one.block}, trial {one.trial}: {one.reason}" for one in failures[:20]])
    if len(failures) > 20:
        print_lines([f"... and {len(failures) - 20:,} more (see --json)."])


def _show_result(found: Result, *, json: bool) -> None:
    """A probe or one training with canaries: all of it as JSON, the verdict and why for people."""
    payload = {**_stored_result(found), "report": dict(found.report)}
    if json:
        print_json(payload)
        return
    verdict = part(found.report, "verdict")
    facts = [
        ("verdict", str(payload["verdict"])),
        ("subject", str(payload["subject"])),
        ("found", ", ".join(faults_of(found)) or "no fault")
        if found.kind == "probe"
        else ("proved ε", _proved(payload)),
        ("size", size_of(found) or "-"),
        ("name", " ".join([str(found.name or "none"), *_tags(payload)])),
        ("stored", f"{payload['created'][:19].replace('T', ' ')} UTC"),
        ("versions", _pairs(payload["versions"])),
    ]
    print_facts(f"{'Probe' if found.kind == 'probe' else 'One run'} {found.fingerprint}", facts)
    reasons = verdict.get("reasons")
    print_lines(["", "Why:", *(f"- {reason}" for reason in (reasons if isinstance(reasons, list) else []))])
    print_lines(["All of it: coalmine view, coalmine report, or --json."])


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)


def _flat(value: Any, *, under: str = "") -> list[tuple[str, str]]:
    """Nested values as lines, a name each; a long hash is cut to the characters that tell it apart.

    >>> _flat({"optimizer": {"momentum": 0.5}, "content": "ab" * 32})
    [('optimizer momentum', '0.5'), ('content', 'abababababab')]
    """
    if isinstance(value, dict):
        return [line for key, item in value.items() for line in _flat(item, under=f"{under} {key}".strip())]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [(under, "; ".join(_pairs(item) if isinstance(item, dict) else str(item) for item in value))]
    texts = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    shown = [text[:12] if len(text) == 64 and text.isalnum() else text for text in texts]
    return [(under, ", ".join(shown))] if value is not None else []


@runs.command()
def resume(
    run: Annotated[str, typer.Argument(help="The first characters of its fingerprint, or an audit's name.")],
    store: StorePath = Path("coalmine.db"),
    device: DeviceName = "cpu",
    workers: WorkerCount = 0,
    engine: EngineName = "local",
    address: Address = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder with data files that are already there.")] = None,
    json: Json = False,
) -> int:
    """Resume the audit that this run belongs to."""
    from coalmine.auditing import config as configs
    from coalmine.auditing.stored import record_of
    from coalmine.cli.audit import run_audit
    from coalmine.store import Store, results
    from coalmine.store.listing import audit_called

    with Store.open(store, create=False) as opened:
        if results.find(opened, run) is not None:
            raise UnsupportedError(f"run {run!r} is a result that is complete: there is nothing to resume")
        audit = audit_called(opened, run)
        record = record_of(opened, run if audit is None else audit.fingerprint)
    if not isinstance(record.config, configs.AuditConfig):
        raise UnsupportedError(
            f"run {run!r} is of a training of your own ({record.subject.name}): run the same coalmine audit --train "
            "command or the same Python again; it goes on from what is stored"
        )
    if record.subject.given:
        raise UnsupportedError(
            f"run {run!r} was audited from Python with {', '.join(record.subject.given)} of its own: call "
            "coalmine.audit with the same again; it goes on from what is stored"
        )
    return run_audit(
        record.config,
        store=store,
        execution=configs.Execution(device=device, workers=workers, data_dir=data_dir, engine=engine, address=address),
        json=json,
        resumed=record,
    )


@runs.command()
def remove(
    run: RunName,
    store: StorePath = Path("coalmine.db"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete one run and all its trials, or one result."""
    from coalmine.store import Store, results

    with Store.open(store, create=False) as opened:
        entry = results.find(opened, run)
        if entry is not None:
            if not yes:
                typer.confirm(f"Delete {entry.kind} result {entry.fingerprint[:12]}?", abort=True)
            results.remove(opened, entry.fingerprint)
            print_lines([f"Removed {entry.kind} result {entry.fingerprint[:12]}."])
            return
        found = opened.run(run)
        if not yes:
            typer.confirm(f"Delete run {found.fingerprint[:12]} with {counted(found.trials, 'trial')}?", abort=True)
        opened.remove(found.fingerprint)
    print_lines([f"Removed run {found.fingerprint[:12]} ({counted(found.trials, 'trial')})."])
