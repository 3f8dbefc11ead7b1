"""``verify``: a bundle checked by somebody who trusts nobody but the judge and the trainer installed here."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coalmine import _validate, report
from coalmine.auditing.config import AuditConfig, FunctionConfig
from coalmine.auditing.facts import fingerprint
from coalmine.auditing.results import AuditResult
from coalmine.auditing.stored import AuditRecord, Member
from coalmine.errors import CoalmineError, InvalidInputError
from coalmine.evidence import again, archive
from coalmine.evidence.comparing import DIGITS, ROUNDING, differences
from coalmine.evidence.contents import DRAWN_BY, Contents, explained, made_here, members_of
from coalmine.evidence.verification import Check, Held, Sampled, Trained, Verification
from coalmine.game import coins_of, worlds_of
from coalmine.game.engines import LocalEngine
from coalmine.records import Outcome
from coalmine.report import summary

if TYPE_CHECKING:
    from coalmine.adversaries import Adversary
    from coalmine.auditing.setting import GivenData
    from coalmine.integrations.task import Score, Train
    from coalmine.integrations.worlds import GivenWorlds

_SHOWN = 20
"""Differences of one check that are listed."""
_LONG_NUMBER = re.compile(r"(-?\d+\.\d{6,}(?:e[-+]?\d+)?)")
_MATTER = ("coalmine", "python", "numpy", "scipy", "torch", "dp-accounting", "numba")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Code:
    """What the verifier hands over because a bundle does not hold it: functions, data, a model, adversaries."""

    train: Train | None = None
    score: Score | Mapping[str, Score] | None = None
    worlds: GivenWorlds | None = None
    control: Train | None = None
    depends_on: Mapping[str, Any] | None = None
    batched: int | None = None
    threads: int | None = None
    data: GivenData | None = None
    model: Any = None
    adversaries: Sequence[str | Adversary] | None = None
    data_dir: str | None = None


def verify(
    bundle: str | os.PathLike[str],
    *,
    sample: int = 32,
    seed: int | None = None,
    train: Train | None = None,
    score: Score | Mapping[str, Score] | None = None,
    worlds: GivenWorlds | None = None,
    control: Train | None = None,
    depends_on: Mapping[str, Any] | None = None,
    batched: int | None = None,
    threads: int | None = None,
    data: GivenData | None = None,
    model: Any = None,
    adversaries: Sequence[str | Adversary] | None = None,
    data_dir: str | None = None,
    workers: int = 1,
    page: str | os.PathLike[str] | None = None,
) -> Verification:
    """Check a bundle: its sums, its runs, every bound and the verdict from the scores, and a sample of trainings.

    Nothing in the bundle is executed. What it does not hold (a training of the user's own; data, a model or adversaries
    that were handed over in Python) must be handed over here too, and is known by its fingerprint.

    Args:
        bundle: the file that :func:`coalmine.bundle` wrote.
        sample: how many trainings are repeated, drawn from all; 0 for none.
        seed: of the drawing; a new one without it. It must not be known to whoever made the bundle.
        train: the user's own training, as in :func:`coalmine.audit_function`, like the next six.
        score: its score or scores.
        worlds: its worlds.
        control: its control, where one was played.
        depends_on: what else decides it.
        batched: the most seeds of one call, where it trains many.
        threads: the most threads.
        data: as in :func:`coalmine.audit`, like the next two.
        model: a model.
        adversaries: adversaries.
        data_dir: the folder of data files.
        workers: processes that train at once.
        page: where to write the report as it is made here, from the scores.

    Returns:
        Every check in words, and one outcome.

    """
    number = _validate.integer("sample", sample, at_least=0)
    drawing = secrets.randbits(32) if seed is None else _validate.integer("seed", seed, at_least=0)
    count = _validate.integer("workers", workers, at_least=1)
    if page is not None:
        report.check_packages()
        report.check_target(page, name="report")
    code = Code(
        train=train,
        score=score,
        worlds=worlds,
        control=control,
        depends_on=depends_on,
        batched=batched,
        threads=threads,
        data=data,
        model=model,
        adversaries=adversaries,
        data_dir=data_dir,
    )
    where = Path(bundle)
    files, manifest = archive.unpack(bundle)
    contents = Contents.from_files(files, where=where)
    said = archive.read_json(files[archive.RESULT], archive.RESULT, where)
    _check_code(code, contents.record)
    with explained("what it says cannot be judged"):
        result = contents.result()
    checks = [
        _files(files, manifest),
        _runs(contents),
        _worlds(contents),
        _bounds(said, result, contents),
        _report(files[archive.REPORT], result, contents),
        _versions(contents),
    ]
    if page is not None:
        with explained("no report can be made of it"):
            report.write_html(result, page)
    question, tasks, why = _question(contents, code)
    repeated, sampled = _again(
        contents, tasks, sample=number, seed=drawing, workers=count, alike=batched is None, why=why
    )
    trained = _trained(contents, tasks)
    with explained("its date is none"):
        unverified = _unverified(result, contents)
    return Verification(
        bundle=str(where),
        audit=contents.record.name,
        says=_said(said),
        checks=(*checks[:3], question, *checks[3:], repeated),
        sampled=sampled,
        audited=trained[0] if trained else None,
        control=trained[1] if len(trained) > 1 else None,
        unverified=unverified,
    )


def _trained(contents: Contents, tasks: _Tasks) -> list[Trained]:
    """Which code was audited, then which was its control; nothing for our own trainer, which the config names."""
    if not contents.record.subject.own:
        return []
    return [
        Trained(
            train=str(contents.runs[one.run].identity["adversary"]["train"]),
            code=fingerprint(contents.runs[one.run].identity["train"]),
            run=one.run,
            named=one.run in tasks,
        )
        for one in contents.record.members[0].with_control
    ]


def _unverified(result: AuditResult, contents: Contents) -> dict[str, str]:
    """What nobody but the maker can say, as the page says it."""
    seconds = {one.run: one.seconds for one in result.adversaries}
    devices = {origin.device for played in contents.runs.values() for origin in played.origins}
    here, said = made_here()["versions"], contents.made["versions"]
    found = {
        "name": result.name,
        "date": summary.date(result),
        "seconds": f"{sum(seconds.values()):,.0f}",
        "devices": "; ".join(sorted(devices)),
        "instruction set": contents.made["instruction_set"],
        "drawn by": ", ".join(
            f"{name} {said[name]}" for name in DRAWN_BY if name in said and said[name] != here.get(name)
        ),
    }
    return {name: words for name, words in found.items() if words}


def _said(result: Mapping[str, Any]) -> str:
    """The verdict that the bundle gives."""
    verdict = result.get("verdict")
    outcome = verdict.get("outcome") if isinstance(verdict, dict) else None
    return outcome if outcome in list(Outcome) else "no verdict"


def _ended(name: str, wrong: Sequence[str], *, passed: str, otherwise: str) -> Check:
    """A check that held where nothing is wrong."""
    if not wrong:
        return Check(name=name, held=Held.PASSED, words=passed)
    more = (f"and {len(wrong) - _SHOWN} more",) if len(wrong) > _SHOWN else ()
    return Check(name=name, held=Held.DIFFERS, words=otherwise, differences=(*wrong[:_SHOWN], *more))


def _files(files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> Check:
    """The sums of the manifest."""
    wrong = differences(manifest["files"], archive.sums(files), within=0.0)
    if files[archive.README] != archive.TEXT.encode():
        wrong.append(f"{archive.README}: not the text that Coalmine writes")
    return _ended(
        "files",
        wrong,
        passed=f"{len(files)} files have the sums of the manifest",
        otherwise="files are not what the manifest says",
    )


def _runs(contents: Contents) -> Check:
    """Each run's fingerprint, from which all its randomness comes, is that of what it says it is."""
    wrong = []
    for run, played in contents.runs.items():
        if fingerprint(played.identity) != run:
            wrong.append(f"runs.{run[:12]}: its identity has the fingerprint {fingerprint(played.identity)[:12]}")
        seed = contents.record.config.audit.seed
        if played.identity.get("seed") != seed:
            wrong.append(f"runs.{run[:12]}.seed: {played.identity.get('seed')} in the run, {seed} in the config")
    return _ended(
        "runs",
        wrong,
        passed=f"{len(contents.runs)} runs have the fingerprints of what they are",
        otherwise="runs are not what they say",
    )


def _worlds(contents: Contents) -> Check:
    """The world of every trial follows from the run's fingerprint and the trial's number; nobody can choose it."""
    wrong, count = [], 0
    for one in {one.run: one for one in members_of(contents.record)}.values():
        world = contents.runs[one.run].world
        count += world.size
        expected = _expected_worlds(one, world.size)
        if expected is None:
            wrong.append(f"run {one.run[:12]}: {world.size} canaries cannot be those of {one.attack.runs} trainings")
        else:
            wrong += [
                f"trial {at} of run {one.run[:12]}: it is in the other world"
                for at in np.flatnonzero(world != expected)
            ]
    return _ended(
        "worlds",
        wrong,
        passed=f"{count:,} trials are complete, each in the world that its number decides",
        otherwise="trials are in another world than their number decides",
    )


def _expected_worlds(member: Member, trials: int) -> Any:
    """The worlds of a run's trials; None where there is no such number of them."""
    trainings = member.attack.runs
    if (member.design is not None) != bool(trainings):
        return None
    if not trainings:
        return worlds_of(np.arange(trials))
    if trainings > trials or trials % trainings:
        return None
    canaries = trials // trainings
    coins = [coins_of(member.run, training=one, canaries=canaries) for one in range(trainings)]
    return np.concatenate(coins).astype(np.int8)


_RESULT_AND_TRIALS = (f"in {archive.RESULT}", f"from {archive.AUDIT} and the trials")
"""Both are the bundle's: which of them was changed cannot be told."""


def _bounds(said: Mapping[str, Any], result: AuditResult, contents: Contents) -> Check:
    """Every bound, the verdict and all that the result says, from the scores, by the judge that is installed here."""
    here = made_here()
    alike = _alike(contents.made, here) and contents.made.get("instruction_set") == here["instruction_set"]
    within = ROUNDING if alike else DIGITS
    found = json.loads(archive.json_bytes(result.to_dict()))
    bounds = sum(1 + len(one.others) for one in result.adversaries)
    how = f"to {within:g}" + ("" if alike else " (other versions or another instruction set here)")
    return _ended(
        "bounds and verdict",
        differences(said, found, within=within, who=_RESULT_AND_TRIALS),
        passed=f"{bounds} bounds and the verdict ({result.verdict.outcome.value}) follow from the scores, {how}",
        otherwise="the scores prove something else than the bundle says"
        + ("" if _alike(contents.made, here) else "; it was made by other versions, which may be why"),
    )


def _alike(made: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Whether the same packages, and the same text of Coalmine, computed the bundle's numbers."""
    versions = made.get("versions")
    if not isinstance(versions, dict) or made.get("code") != here["code"]:
        return False
    return all(versions.get(name) == here["versions"].get(name) for name in _MATTER)


def _report(page: bytes, result: AuditResult, contents: Contents) -> Check:
    """The page, word by word."""
    name = "report"
    try:
        report.check_packages()
    except CoalmineError as error:
        return Check(name=name, held=Held.UNCHECKED, words=str(error))
    with explained("no report can be made of it"):
        found = report.page(result).encode()
    if page != found and contents.made != made_here():
        words = (
            "the page cannot be compared: other versions drew it, and figures differ in their bytes; "
            "--report FILE writes the page that the scores give"
        )
        return Check(name=name, held=Held.UNCHECKED, words=words)
    return _ended(
        name,
        _page_differences(page.decode(errors="replace"), found.decode()),
        passed="the page is the one that the scores give",
        otherwise="the page is not the one that the scores give",
    )


def _page_differences(said: str, found: str) -> list[str]:
    """Where the texts of two pages differ first; long numbers may differ by their rounding."""
    ours = _LONG_NUMBER.split(found)
    theirs = _LONG_NUMBER.split(said)
    for at, (one, other) in enumerate(zip_longest(theirs, ours, fillvalue="")):
        if one == other or (at % 2 and _close(one, other)):
            continue
        same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
        start = max(0, same - 20)
        shown = [_validate.shown(text[start : same + 40]) for text in (one, other)]
        return [f"{archive.REPORT}: {shown[0]} in the bundle, {shown[1]} here"]
    return []


def _close(one: str, other: str) -> bool:
    return bool(one and other) and math.isclose(float(one), float(other), rel_tol=ROUNDING, abs_tol=1e-9)


def _versions(contents: Contents) -> Check:
    """What computed the evidence, and what checks it."""
    here = made_here()
    mine = {name: here["versions"].get(name) for name in _MATTER}
    claimed = [("audit", contents.record.versions), ("bundle", contents.made.get("versions", {}))]
    claimed += [("trials", one.versions) for played in contents.runs.values() for one in played.origins]
    other = {
        f"{name} {versions.get(name) or 'none'} ({mine.get(name) or 'none'} here)"
        for _, versions in claimed
        if isinstance(versions, dict)
        for name in {*_MATTER, *versions} - set(DRAWN_BY)  # words that are no package of ours stand on the page too
        if versions.get(name) != mine.get(name)
    }
    if not other and contents.made.get("code") != here["code"]:
        other = {f"another text of coalmine {mine['coalmine']}"}
    if other:
        words = f"made with {', '.join(sorted(other))}: install the same to check to the bit"
        return Check(name="versions", held=Held.UNCHECKED, words=words)
    return Check(name="versions", held=Held.PASSED, words="made with the versions that are installed here")


_Tasks = Mapping[str, again.Repeatable]


def _question(contents: Contents, code: Code) -> tuple[Check, _Tasks, str]:
    """Whether claim, promise and attacks follow from the config; what trains each run again; why not all of them."""
    config = contents.record.config
    if isinstance(config, FunctionConfig):
        return _own_question(contents, code)
    check, tasks = _built_in(contents, code, config)
    return check, tasks, check.words


def _built_in(contents: Contents, code: Code, config: AuditConfig) -> tuple[Check, _Tasks]:
    """The audit that this config asks for, built here from nothing else."""
    name, record = "config and claim", contents.record
    missing = [one for one in record.subject.given if getattr(code, one, None) is None]
    if missing:
        words = f"the audit was given {' and '.join(missing)} in Python: hand the same over to coalmine.verify"
        return Check(name=name, held=Held.UNCHECKED, words=words), {}
    try:
        from coalmine.evidence.built_in import games_again
    except ModuleNotFoundError as error:
        words = f"this needs {error.name}: install it with pip install 'coalmine[train]'"
        return Check(name=name, held=Held.UNCHECKED, words=words), {}
    try:
        found, tasks, exact = games_again(contents, code, config)
    except CoalmineError as error:
        return Check(name=name, held=Held.UNCHECKED, words=f"the audit cannot be built here: {error}"), {}
    same = {**found.to_dict(), "versions": dict(record.versions)}
    wrong = differences(record.to_dict(), same, within=ROUNDING if exact else DIGITS)
    check = _ended(
        name,
        wrong,
        passed="data, promise, claim, attacks and fingerprints are those that the config asks for",
        otherwise="the config asks for another audit than the bundle says",
    )
    return check, {run: task for run, task in tasks.items() if run in contents.runs}


def _own_question(contents: Contents, code: Code) -> tuple[Check, _Tasks, str]:
    """The user's own training: all that is said of it against config and runs, and the named code against its role."""
    from coalmine.evidence.own import record_again, roles

    record = contents.record
    with explained("it does not describe the audit of an own training"):
        found, wrong = record_again(contents)
    wrong += differences(record.to_dict(), {**found.to_dict(), "versions": dict(record.versions)}, within=0.0)
    tasks: _Tasks = {}
    why = "a bundle holds no code; name what was audited with --train module:function --score module:function"
    if code.train is not None:
        named = roles(contents, code)
        tasks, why = named.tasks, named.why
        wrong += named.wrong
    check = _ended(
        "config and claim",
        wrong,
        passed="claim, facts and runs are those that the config asks for",
        otherwise="the config, or the code that is named here, is of another audit than the bundle says",
    )
    return check, tasks, why


def _check_code(code: Code, record: AuditRecord) -> None:
    """Refuse what this audit has no use for."""
    own = {"train": code.train, "score": code.score, "worlds": code.worlds, "control": code.control}
    for name, value in {"data": code.data, "model": code.model, "adversaries": code.adversaries}.items():
        if value is not None and name not in record.subject.given:
            raise InvalidInputError(f"{name} is not allowed: this audit was given none in Python, it speaks of another")
    if record.subject.own:
        if code.train is not None:
            for name in ("score", "worlds"):
                if own[name] is None:
                    raise InvalidInputError(f"{name} is missing: expected it beside train")
        elif any(value is not None for value in own.values()):
            raise InvalidInputError("train is missing: expected it beside score, worlds and control")
        return
    for name, value in own.items():
        if value is not None:
            raise InvalidInputError(f"{name} is not allowed: this audit is of Coalmine's own trainer, which needs none")


def _again(
    contents: Contents, tasks: _Tasks, *, sample: int, seed: int, workers: int, alike: bool, why: str
) -> tuple[Check, Sampled | None]:
    """A sample of trainings, repeated."""
    name = "trained again"
    if sample == 0:
        return Check(name=name, held=Held.UNCHECKED, words="no training was repeated, as asked (sample = 0)"), None
    known = again.trainings(contents)
    total = sum(count for _, count in known.values())
    if set(known) - set(tasks):
        return Check(name=name, held=Held.UNCHECKED, words=f"no training was repeated: {why}"), None
    chosen = again.drawn(contents, sample=sample, seed=seed)
    with LocalEngine(workers) as engine:
        found = again.compare(chosen, contents, tasks, engine=engine, alike=alike)
    back = [f"{found.exactly:,} to the bit"] if found.exactly else []
    if found.nearly:
        back.append(f"{found.nearly:,} but for rounding, in the same place among the scores of the other world")
    drawn = f"{len(chosen):,} of {total:,} trainings, drawn with seed {seed}"
    sampled = Sampled(
        seed=seed,
        trained=found.exactly + found.nearly + found.lost + len(found.unsure),
        trainings=total,
        told=not found.unsure and not found.untried,
        places=bool(found.nearly),
    )
    if found.differences or sampled.told:
        return (
            _ended(
                name,
                found.differences,
                passed=f"{drawn}, came back: {', '.join(back)}; {sampled.words()}",
                otherwise=f"of {drawn}, {found.lost:,} did not come back",
            ),
            sampled,
        )
    words = f"of {drawn}, {len(found.untried):,} could not be compared"
    if not found.untried:
        words = (
            f"of {drawn}, {len(found.unsure):,} came back with other digits, by no more than rounding on another "
            "machine may do, but by so much that scores may have changed their order: verify on the kind of machine "
            "that played the audit"
        )
    return Check(name=name, held=Held.UNCHECKED, words=f"{words} ({(*found.untried, *found.unsure)[0]})"), sampled
