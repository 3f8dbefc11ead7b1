"""``coalmine runs``: what the store holds."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from coalmine.cli._options import Address, DeviceName, EngineName, WorkerCount
from coalmine.cli._output import Json, print_facts, print_json, print_lines, print_table
from coalmine.errors import UnsupportedError

runs = typer.Typer(help="List, show, resume or remove the runs in a store.", no_args_is_help=False)

StorePath = Annotated[Path, typer.Option("--store", help="Where trials are kept.")]
RunName = Annotated[str, typer.Argument(help="The first characters of the run's fingerprint.")]


def _summary(run: Any) -> dict[str, Any]:
    identity, attack = _part(run.description, "identity"), _part(run.description, "attack")
    adversary = {"name": attack.get("name"), **_part(attack, "options")} if attack else _part(identity, "adversary")
    return {
        "run": run.fingerprint,
        "adversary": adversary,
        "control": attack.get("control", 1.0) != 1.0,
        "data": _part(identity, "data").get("name"),
        "trials": run.trials,
        "wanted": run.wanted,
        "failed_trials": run.failed_trials,
        "failed_blocks": run.failed_blocks,
        "seconds": run.elapsed,
        "devices": list(run.devices),
        "created": _when(run.created),
    }


def _part(description: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A table of the description; what another program wrote there may be anything."""
    found = description.get(key)
    return found if isinstance(found, dict) else {}


def _when(seconds: float) -> str:
    """A moment in words."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"


@runs.command("list")
def list_(store: StorePath = Path("coalmine.db"), json: Json = False) -> None:
    """Every run, the oldest first."""
    from coalmine.store import Store

    with Store.open(store, create=False, read_only=True) as opened:
        found = [_summary(run) for run in opened.runs()]
    if json:
        print_json(found)
        return
    if not found:
        print_lines([f"No runs in {store} yet: coalmine audit makes some."])
        return
    print_table(
        f"Runs in {store}",
        ["run", "adversary", "trials", "training", "first stored (UTC)"],
        [
            [
                one["run"][:12],
                f"{_who(one)} on {one['data']}",
                f"{one['trials']} of {one['wanted']}"
                + (f"\n{one['failed_trials']} failed" if one["failed_trials"] else ""),
                f"{one['seconds']:.1f} s",
                one["created"][:16].replace("T", " "),
            ]
            for one in found
        ],
    )


def _who(summary: dict[str, Any]) -> str:
    """The adversary of a run with its options."""
    options = dict(summary["adversary"])
    name = options.pop("name", "?")
    words = ", ".join(f"{key}={value}" for key, value in options.items())
    label = f"{name} ({words})" if words else str(name)
    return f"control: {label}" if summary["control"] else label


@runs.command()
def show(run: RunName, store: StorePath = Path("coalmine.db"), json: Json = False) -> None:
    """One run: its identity, how far it is, and what went wrong."""
    from coalmine.store import Store

    with Store.open(store, create=False, read_only=True) as opened:
        found = opened.run(run)
        failures = opened.failures(found.fingerprint)
    payload = {
        **_summary(found),
        "identity": _part(found.description, "identity"),
        "versions": [{"versions": dict(versions), "blocks": blocks} for versions, blocks in found.made]
        or [{"versions": _part(found.description, "versions"), "blocks": found.blocks}],
        "failures": [{"block": one.block, "trial": one.trial, "reason": one.reason} for one in failures],
    }
    if json:
        print_json(payload)
        return
    facts = [
        ("adversary", _who(payload)),
        ("trials", f"{payload['trials']} of {payload['wanted']}, {payload['failed_trials']} failed"),
        ("failed blocks", str(payload["failed_blocks"])),
        ("training time", f"{payload['seconds']:.1f} s on {', '.join(payload['devices']) or 'nothing yet'}"),
        ("first stored", f"{payload['created']}"),
        *(("versions", f"{_pairs(one['versions'])} ({one['blocks']} blocks)") for one in payload["versions"]),
    ]
    for key, value in payload["identity"].items():
        if key != "adversary":
            facts.append((key, _pairs(value) if isinstance(value, dict) else str(value)))
    print_facts(f"Run {found.fingerprint}", facts)
    print_lines([f"block {one.block}, trial {one.trial}: {one.reason}" for one in failures[:20]])
    if len(failures) > 20:
        print_lines([f"... and {len(failures) - 20} more (see --json)."])


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)


@runs.command()
def resume(
    run: RunName,
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
    from coalmine.store import Store

    with Store.open(store, create=False) as opened:
        record = record_of(opened, run)
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
    )


@runs.command()
def remove(
    run: RunName,
    store: StorePath = Path("coalmine.db"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete one run and all its trials."""
    from coalmine.store import Store

    with Store.open(store, create=False) as opened:
        found = opened.run(run)
        if not yes:
            typer.confirm(f"Delete run {found.fingerprint[:12]} with {found.trials} trials?", abort=True)
        opened.remove(found.fingerprint)
    print_lines([f"Removed run {found.fingerprint[:12]} ({found.trials} trials)."])
