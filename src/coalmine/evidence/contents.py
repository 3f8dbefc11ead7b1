"""What a bundle says, as values: from a store, to and from its files, and to a result by the one judge.

Texts that may quote the data (what exceptions say, texts bound to a user's functions) are left out, also where the
store keeps them: a bundle is made to be given away.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import itertools
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.auditing.config import FunctionConfig
from coalmine.auditing.results import AuditResult
from coalmine.auditing.stored import AuditRecord, Member, conclude, record_of
from coalmine.errors import CoalmineError, StoreError, UnsupportedError
from coalmine.evidence import archive
from coalmine.evidence.archive import refuse
from coalmine.game import machine
from coalmine.store import BlockResult, Store, results
from coalmine.store.listing import AuditEntry, Origin, audit_called, audits, origins

FAILED = "why is no part of a bundle"
"""The reason of every failed training here: what a user's code says may quote the data."""
DRAWN_BY = ("altair", "vl-convert-python", "jinja2")
"""Packages that shape the bytes of a report."""
_LONGEST = 300
"""Characters of what is wrong with a bundle."""
_MALFORMED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError)
"""What the judge and the report may raise for values that no audit has."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Played:
    """The trials of one run, from 0 on without a gap (those that failed have the score NaN), and what the run is."""

    identity: Mapping[str, Any]
    origins: tuple[Origin, ...]
    world: NDArray[np.int8]
    score: NDArray[np.float64]
    columns: Mapping[str, NDArray[np.float64]]

    def origin(self, trial: int) -> Origin:
        """Where a trial comes from."""
        return next(one for one in self.origins if one.first <= trial < one.first + one.trials)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """An audit with all its trials. ``made`` says what wrote the bundle."""

    record: AuditRecord
    created: float
    name: str
    runs: Mapping[str, Played]
    made: Mapping[str, Any]

    @classmethod
    def of(cls, store: Store, audit: str) -> Contents:
        """An audit of a store: by its name, or by the beginning of its fingerprint or of that of one of its runs."""
        entry = _entry(store, audit)
        record = record_of(store, entry.fingerprint)
        runs = {}
        for run, wanted in wanted_of(record).items():
            trials = store.scores(run, below=wanted) if store.knows(run) else None
            if trials is None or not np.array_equal(trials.trial, np.arange(wanted)):
                there = 0 if trials is None else len(trials)
                raise StoreError(
                    f"audit {record.name[:12]} is not complete: run {run[:12]} has {there:,} of {wanted:,} trials, and "
                    "which ones are missing may depend on what they say; run the same audit again to finish it"
                )
            runs[run] = Played(
                identity=dict(store.run(run).description)["identity"],
                origins=_joined(origins(store, run, below=wanted), wanted=wanted),
                world=trials.world,
                score=trials.score,
                columns=dict(sorted(trials.columns.items())),
            )
        return cls(
            record=_without_texts(record, runs), created=entry.created, name=entry.name, runs=runs, made=made_here()
        )

    def result(self) -> AuditResult:
        """What these trials prove: the store's own way to a result, on a store of its own."""
        with tempfile.TemporaryDirectory(prefix="coalmine-") as folder:
            path = Path(folder) / "evidence.db"
            try:
                _fill(path, self.runs)
            except (StoreError, OSError):
                raise StoreError(
                    f"the trials are put together in {tempfile.gettempdir()!r}, which cannot hold them (is that disk "
                    "full, or the size of a file limited?): free some space there, or name another folder with TMPDIR"
                ) from None
            with Store.open(path) as store:
                found = conclude(store, self.record)
            return dataclasses.replace(found, created=self.created, name=self.name)

    def to_files(self) -> dict[str, bytes]:
        """The files that say it, without what follows from them."""
        tree = {
            "audit": self.record.to_dict(),
            "name": self.name,
            "created": self.created,
            "made": dict(self.made),
            "runs": {
                run: {
                    "identity": dict(one.identity),
                    "origins": [dataclasses.asdict(origin) for origin in one.origins],
                }
                for run, one in self.runs.items()
            },
        }
        tables = {archive.table_name(run): _table(one) for run, one in self.runs.items()}
        return {archive.AUDIT: archive.json_bytes(tree), **tables, archive.README: archive.TEXT.encode()}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], *, where: Path) -> Contents:
        """The same from the files of a bundle, which may come from anybody."""
        tree = archive.read_json(files[archive.AUDIT], archive.AUDIT, where)
        with explained(f"{archive.AUDIT} does not describe an audit"):
            record = AuditRecord.from_dict(tree["audit"])
            name = tree["name"] and _validate.label("name", tree["name"])
            created = _validate.non_negative("created", tree["created"])
            wanted = wanted_of(record)
            if record.to_dict() != tree["audit"]:
                raise refuse(f"{archive.AUDIT} holds what no audit has", where)
            _check_made(tree["made"])
            if set(tree) != {"audit", "name", "created", "made", "runs"} or set(tree["runs"]) != set(wanted):
                raise refuse(f"{archive.AUDIT} names other runs than its audit has", where)
            if {archive.table_name(run) for run in wanted} != {one for one in files if one.startswith("trials/")}:
                raise refuse("there are trials of other runs than the audit has", where)
        runs = {}
        for run, about in tree["runs"].items():
            with explained(f"{archive.AUDIT} cannot be read"):
                parts = _origins(about, wanted=wanted[run], place=f"runs.{run[:12]}")
            with explained(f"{archive.table_name(run)} cannot be read"):
                runs[run] = _played(about["identity"], parts, files[archive.table_name(run)], wanted=wanted[run])
        return cls(record=record, created=created, name=name, runs=runs, made=tree["made"])


def _fill(path: Path, runs: Mapping[str, Played]) -> None:
    """A store of these trials alone."""
    with Store.open(path) as store:
        for run, played in runs.items():
            store.register(run, {"identity": dict(played.identity)})
            for number, block in enumerate(_blocks(played)):
                store.put(run, number, block)


def wanted_of(record: AuditRecord) -> dict[str, int]:
    """Every run of an audit, controls included, with the trials that were asked for."""
    found: dict[str, int] = {}
    for one in members_of(record):
        if len(one.run) != 64:
            raise refuse(f"{_validate.shown(one.run)} is not the fingerprint of a run")
        found[one.run] = max(one.wanted, found.get(one.run, 0))
    return found


def members_of(record: AuditRecord) -> list[Member]:
    """The members of an audit, each followed by its control."""
    return [one for member in record.members for one in member.with_control]


def made_here() -> dict[str, Any]:
    """What computes bounds and pages on this machine, as far as it may shape their last digits or bytes."""
    versions = machine.versions()
    for name in DRAWN_BY:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"versions": versions, "code": machine.code(), "instruction_set": machine.instruction_set()}


def _entry(store: Store, audit: str) -> AuditEntry:
    """The audit that is meant."""
    _validate.instance("audit", audit, str)
    found = audit_called(store, audit)
    if found is None and (kept := results.called(store, audit)) is not None:
        raise UnsupportedError(
            f"{_validate.shown(audit)} is a {kept.kind} result, which has no trials of its own and cannot be bundled: "
            "coalmine report writes its page"
        )
    if found is None and re.fullmatch("[0-9a-f]+", audit):
        every = audits(store)
        meant = {one.fingerprint for one in every if one.fingerprint.startswith(audit)}
        runs = {run for one in every for run in one.members if run.startswith(audit)}
        if len(meant | runs) > 1:
            names = ", ".join(sorted(one[:12] for one in meant | runs))
            raise StoreError(f"{audit!r} stands for several audits or runs of store {str(store.path)!r}: {names}")
        found = next((one for one in every if one.fingerprint in meant or runs & {*one.members}), None)
    if found is None:
        raise StoreError(
            f"no audit is called {_validate.shown(audit)} in store {str(store.path)!r}: expected a name, or the "
            "beginning of a fingerprint (see coalmine runs list)"
        )
    return found


def _joined(blocks: tuple[Origin, ...], *, wanted: int) -> tuple[Origin, ...]:
    """Neighbouring blocks of one origin as one; trials beyond those wanted are left out."""
    found = []
    for _, some in itertools.groupby(blocks, key=lambda one: (one.device, sorted(one.versions.items()))):
        alike = list(some)
        end = min(wanted, alike[-1].first + alike[-1].trials)
        elapsed = float(sum(one.elapsed for one in alike))
        found.append(dataclasses.replace(alike[0], trials=end - alike[0].first, elapsed=elapsed))
    return tuple(found)


def _without_texts(record: AuditRecord, runs: Mapping[str, Played]) -> AuditRecord:
    """The record without texts that are bound to a user's functions; a run's identity never has them."""
    if not isinstance(record.config, FunctionConfig):
        return record
    first = record.members[0]
    said = {key: str(runs[first.run].identity["adversary"][key]) for key in ("train", "score")}
    worlds = str(runs[first.run].identity["data"]["name"]) if record.config.worlds else ""
    details = {**record.subject.details, **said}
    if first.control is not None:
        details["control"] = str(runs[first.control.run].identity["adversary"]["train"])
    return dataclasses.replace(
        record,
        config=record.config.model_copy(update={**said, "worlds": worlds}),
        subject=dataclasses.replace(record.subject, name=said["train"], details=details),
    )


def _blocks(played: Played) -> Iterator[BlockResult]:
    """The trials as a store takes them, each origin a block."""
    for one in played.origins:
        place = slice(one.first, one.first + one.trials)
        trials, scores = np.arange(one.first, one.first + one.trials), played.score[place]
        yield BlockResult(
            trial=trials,
            world=played.world[place],
            score=scores,
            elapsed=one.elapsed,
            device=one.device,
            columns={name: values[place] for name, values in played.columns.items()},
            failures=dict.fromkeys(trials[np.isnan(scores)].tolist(), FAILED),
        )


def _table(played: Played) -> bytes:
    """Trials as CSV: a number is written so that it can be read back to the bit; an empty field is no number."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(["trial", "world", "score", *played.columns])
    columns = [_texts(one) for one in (played.score, *played.columns.values())]
    writer.writerows(zip(range(played.world.size), played.world.tolist(), *columns, strict=True))
    return target.getvalue().encode()


def _texts(values: NDArray[np.float64]) -> list[str]:
    return ["" if one != one else repr(one) for one in values.tolist()]


def _check_made(made: object) -> None:
    """What wrote the bundle, in the form in which it is said: no text of anybody's choice stands there."""
    _only("made", made, ("versions", "code", "instruction_set"))
    assert isinstance(made, dict)
    _check_versions("made.versions", made["versions"])
    for key in ("code", "instruction_set"):
        if not isinstance(made[key], str) or not _PLAIN.fullmatch(made[key]):
            raise _validate.reject(f"made.{key}", made[key], "a plain word or two")


_PLAIN = re.compile(r"[\w.-]{1,40}(?: [\w.-]{1,40})?")
_VERSION = re.compile(r"[\w.+!-]{1,60}")
_LONGEST_DEVICE = 120


def _check_versions(place: str, versions: object) -> None:
    _validate.instance(place, versions, dict)
    assert isinstance(versions, dict)
    for name, version in versions.items():
        if not isinstance(version, str) or not _VERSION.fullmatch(version) or not _VERSION.fullmatch(name):
            raise _validate.reject(f"{place}.{name}", version, "a package and its version")


def _only(place: str, tree: object, keys: Collection[str]) -> None:
    """A table with these keys and no other."""
    if not isinstance(tree, dict):
        raise ValueError(f"{place} is {_validate.shown(tree)}: expected a table with {', '.join(keys)}")
    more, missing = sorted(set(tree) - {*keys}), [key for key in keys if key not in tree]
    if more:
        raise ValueError(f"{place} has the key {_validate.shown(more[0])}, which no bundle has")
    if missing:
        raise ValueError(f"{place}.{missing[0]} is missing")


def _origins(about: object, *, wanted: int, place: str) -> tuple[Origin, ...]:
    """Where the trials of a run come from, all of them in their order."""
    _only(place, about, ("identity", "origins"))
    assert isinstance(about, dict)
    if not isinstance(about["identity"], dict) or not isinstance(about["origins"], list):
        raise ValueError(f"{place} does not say what the run is and where its trials come from")
    end, parts = 0, []
    for number, tree in enumerate(about["origins"]):
        here = f"{place}.origins[{number}]"
        _only(here, tree, [field.name for field in dataclasses.fields(Origin)])
        one = Origin(**tree)
        if one.first != end or _validate.integer(f"{here}.trials", one.trials, at_least=1) > wanted - end:
            raise ValueError(f"{here}: the origins of its trials leave a gap, or overlap")
        device = one.device
        if not isinstance(device, str) or not device.isprintable() or len(device) > _LONGEST_DEVICE:
            raise _validate.reject(
                f"{here}.device", device, f"at most {_LONGEST_DEVICE} characters that can be printed"
            )
        _check_versions(f"{here}.versions", one.versions)
        end += one.trials
        parts.append(one)
    if end != wanted:
        raise ValueError(f"{place}: the origins of its trials are not those of all")
    return tuple(parts)


def _played(identity: Mapping[str, Any], parts: tuple[Origin, ...], content: bytes, *, wanted: int) -> Played:
    """The trials of a run from its table; each number stands in the one way in which it is written."""
    rows = csv.reader(io.StringIO(content.decode("utf-8"), newline=""), strict=True)
    try:
        header = next(rows, [])
        if header[:3] != ["trial", "world", "score"] or sorted(set(header[3:])) != header[3:]:
            raise ValueError("the first line names other columns")
        worlds, numbers = [], []
        for index, row in enumerate(rows):
            if len(row) != len(header) or row[0] != str(index) or row[1] not in ("0", "1") or index >= wanted:
                raise ValueError(f"line {index + 2} is not that of trial {index}, of {wanted}")
            worlds.append(row[1] == "1")
            numbers.append([_number(text) for text in row[2:]])
    except csv.Error as error:
        raise ValueError(str(error)) from None
    if len(worlds) != wanted:
        raise ValueError(f"there are {len(worlds)} trials, of {wanted}")
    values = np.array(numbers, dtype=np.float64)
    if np.isinf(values[:, 0]).any():
        raise ValueError("a score is infinite")
    return Played(
        identity=identity,
        origins=parts,
        world=np.array(worlds, dtype=np.int8),
        score=values[:, 0],
        columns={name: values[:, at + 1] for at, name in enumerate(header[3:])},
    )


def _number(text: str) -> float:
    if not text:
        return float("nan")
    number = float(text)
    if repr(number) != text or text == "nan":
        raise ValueError(f"{_validate.shown(text)} is not how a number is written there")
    return number


@contextlib.contextmanager
def explained(words: str) -> Iterator[None]:
    """Within it, what only values that no audit has can raise is an error of the input."""
    try:
        yield
    except CoalmineError as error:
        raise error if str(error).startswith("bundle") else refuse(f"{words}: {error}") from None
    except _MALFORMED as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise refuse(f"{words} ({kind}{str(error)[:_LONGEST]})") from error
