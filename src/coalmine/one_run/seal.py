"""Coins under seal: what goes to the training, what goes to whoever scores, what the judge keeps.

:func:`prepare` writes a folder:

===================  ===========================================================================================
``train/``           for each run, the canaries that were chosen by their coins: goes to the training; no ids
``score/``           for each run, every canary with its id: goes to whoever computes the scores; no coins
``manifest.json``    public: the claim, the numbers of guesses, hashes of all files, the commitment to the coins
``seal.json``        secret (mode 0600): the seed of the coins; stays with the judge
===================  ===========================================================================================

The commitment is a hash over the secret and everything in the manifest. So neither the coins nor what was fixed
beforehand can change later without the judge noticing, as long as somebody else has seen the manifest (or its digest).
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coalmine import __version__, _validate
from coalmine.errors import InvalidInputError
from coalmine.one_run import files
from coalmine.one_run.canaries import Canaries, GradientCanaries, RowCanaries, content_of
from coalmine.one_run.design import Design
from coalmine.one_run.judge import OneRunResult, check_control, check_same_canaries, judge
from coalmine.records import OneRunScores

if TYPE_CHECKING:
    from coalmine.store import Store

MANIFEST, SEAL = "manifest.json", "seal.json"
_MANIFEST_FORM, _SEAL_FORM = "coalmine one-run manifest 1", "coalmine one-run seal 1"
_PERSON = b"coalmine coins 1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A prepared run: its folder, its design, and the digest of the manifest, to be told to somebody else."""

    folder: Path
    design: Design
    canaries: int
    runs: int
    digest: str

    @property
    def manifest(self) -> Path:
        """The public file."""
        return self.folder / MANIFEST

    @property
    def seal(self) -> Path:
        """The secret file."""
        return self.folder / SEAL


def coins(secret: bytes, ids: Sequence[str]) -> NDArray[np.bool_]:
    """One fair coin for each id: the lowest bit of a keyed hash of it. Who does not know the secret can only guess.

    >>> int(coins(bytes(32), [str(i) for i in range(1000)]).sum())
    500
    """
    flips = (hashlib.blake2b(name.encode(), key=secret, digest_size=1, person=_PERSON).digest() for name in ids)
    return np.asarray(np.frombuffer(b"".join(flips), dtype=np.uint8) % 2 == 1)


def new_secret() -> bytes:
    """256 bits of the system's randomness."""
    return secrets.token_bytes(32)


def derived(seed: int) -> bytes:
    """A secret from a seed, for runs that must be repeatable: whoever knows the seed knows the coins.

    >>> derived(0) == derived(0) != derived(1)
    True
    """
    return hashlib.sha256(f"coalmine one run {seed}".encode()).digest()


def make_ids(run: str, *, canaries: int, part: int) -> list[str]:
    """The ids of the canaries of one run: they name the run, so that scores of another one are noticed.

    >>> make_ids("5f3a", canaries=2, part=1)
    ['5f3a-1-1', '5f3a-1-2']
    """
    return [f"{run}-{part}-{number}" for number in range(1, canaries + 1)]


def prepare(canaries: Canaries, *, design: Design, folder: Path, runs: int = 1, form: str | None = None) -> Prepared:
    """Flip a coin for every canary, and write what the training, the scorer and the judge need.

    Args:
        canaries: What may be included; the same for every run.
        design: What is fixed beforehand; its number of canaries is that of all runs together.
        folder: Where to; must not exist yet, or be empty.
        runs: T trainings, pooled: each has coins of its own.
        form: "npz", "csv" or "jsonl"; by the kind of canaries if left out.

    Returns:
        Where everything is. Tell the digest to somebody else before the training begins.

    >>> import tempfile
    >>> from coalmine.one_run.canaries import extreme
    >>> from coalmine.one_run.design import design
    >>> from coalmine.records import EpsilonClaim
    >>> chosen = extreme(np.eye(3), classes=2, canaries=40)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     plan = design(EpsilonClaim(epsilon=1.0, delta=1e-5), canaries=40)
    ...     made = prepare(chosen, design=plan, folder=Path(place) / "run")
    ...     sorted(path.name for path in made.folder.iterdir())
    ['manifest.json', 'score', 'seal.json', 'train']
    """
    _validate.instance("canaries", canaries, (RowCanaries, GradientCanaries))
    _validate.instance("design", design, Design)
    times = _validate.integer("runs", runs, at_least=1)
    if design.canaries != times * canaries.number:
        raise InvalidInputError(
            f"canaries = {design.canaries} of the design is not allowed: expected {times * canaries.number}, "
            f"{canaries.number} in each of {times} runs"
        )
    form = form or ("jsonl" if canaries.kind in ("random_tokens", "new_tokens") else "npz")
    if form != "npz" and isinstance(canaries, GradientCanaries):
        raise _validate.reject("form", form, "'npz' for gradients")
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInputError(f"folder = {str(folder)!r} is not empty: expected a new one for each run")
    secret, run = new_secret(), secrets.token_hex(4)
    contents: dict[str, bytes] = {}
    for part in range(1, times + 1):
        ids = make_ids(run, canaries=canaries.number, part=part)
        included = np.flatnonzero(coins(secret, ids))
        # In an order of their own, so that places say nothing about the canaries that were left out.
        order = np.random.default_rng([*secret, part]).permutation(included)
        contents[f"train/run-{part}.{form}"] = files.encode(canaries.take(order).arrays(), form=form)
        contents[f"score/run-{part}.{form}"] = files.encode(canaries.arrays(), form=form, ids=np.array(ids))
    tree: dict[str, Any] = {
        "format": _MANIFEST_FORM,
        "coalmine": __version__,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "run": run,
        "kind": canaries.kind,
        "gradients": isinstance(canaries, GradientCanaries),
        "note": canaries.note,
        "canaries": canaries.number,
        "content": content_of(canaries),
        "runs": times,
        "design": design.to_dict(),
        "files": {name: files.digest(content) for name, content in contents.items()},
    }
    tree["commitment"] = _commitment(tree, secret)
    seal = {"format": _SEAL_FORM, "run": run, "secret": secret.hex(), "judged": None}
    # The seal first and the manifest last: a manifest that is there is complete.
    files.write(folder / SEAL, _pretty(seal), secret=True)
    for name, content in contents.items():
        files.write(folder / name, content)
    files.write(folder / MANIFEST, _pretty(tree))
    return Prepared(
        folder=folder,
        design=design,
        canaries=canaries.number,
        runs=times,
        digest=files.digest(files.canonical(tree)),
    )


def _pretty(tree: dict[str, Any]) -> bytes:

    return (json.dumps(tree, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _commitment(tree: dict[str, Any], secret: bytes) -> str:
    """A hash over the secret and all of the manifest but the commitment itself."""
    rest = {name: value for name, value in tree.items() if name != "commitment"}
    return hmac.new(secret, files.canonical(rest), hashlib.sha256).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened:
    """A seal that fits its manifest: the design, every id, and its coin."""

    design: Design
    ids: tuple[str, ...]
    included: NDArray[np.bool_]
    judged: dict[str, Any] | None
    tree: dict[str, Any]
    secret: dict[str, Any]

    @property
    def gradients(self) -> bool:
        """Whether the canaries are gradients; manifests that do not say so are from before it mattered."""
        return self.tree.get("gradients", self.tree["kind"] in ("dirac", "random_directions")) is True

    def join(self, ids: Sequence[str], scores: NDArray[np.float64]) -> OneRunScores:
        """Scores and coins by id, whatever their order; every canary exactly once."""
        places = {name: place for place, name in enumerate(self.ids)}
        seen: dict[str, int] = {}
        for row, name in enumerate(ids):
            if name not in places:
                raise InvalidInputError(
                    f"score of {name!r} is not allowed: no canary of this run has that id (run {self.tree['run']})"
                )
            if name in seen:
                raise InvalidInputError(f"id {name!r} occurs twice: expected one score for each canary")
            seen[name] = row
        missing = [name for name in self.ids if name not in seen]
        if missing:
            raise InvalidInputError(
                f"no score for {missing[0]!r} ({len(missing)} of {len(self.ids)} canaries are missing): expected one "
                "for each canary, included or not"
            )
        return OneRunScores(self.included, scores[[seen[name] for name in self.ids]], np.array(self.ids))


def open_seal(
    folder: Path, *, manifest: Path | None = None, seal: Path | None = None, digest: str | None = None
) -> Opened:
    """Check that seal, manifest and files belong together and are unchanged, and give the coins.

    ``manifest`` and ``seal`` are given where they lie elsewhere; ``digest`` is the manifest's, as told beforehand.
    """
    folder = Path(folder)
    public, private = manifest or folder / MANIFEST, seal or folder / SEAL
    tree = files.read_json(public, what="the manifest that `one-run prepare` wrote")
    secret = files.read_json(private, what="the seal that `one-run prepare` wrote")
    _check_forms(public, tree, private, secret)
    if digest is not None and not hmac.compare_digest(digest.lower(), files.digest(files.canonical(tree))):
        raise InvalidInputError(f"{public}: not the manifest whose digest was told beforehand ({digest})")
    if tree["run"] != secret["run"]:
        raise InvalidInputError(
            f"{public}: the manifest is of run {tree['run']}, the seal of run {secret['run']}: they do not belong "
            "together"
        )
    if private.stat().st_mode & 0o077:
        raise InvalidInputError(
            f"{private}: others may read the seal (mode {private.stat().st_mode & 0o777:o}): whoever read it knows the "
            "coins; if nobody did, make it yours alone (chmod 600)"
        )
    key = bytes.fromhex(secret["secret"])
    if not hmac.compare_digest(str(tree["commitment"]), _commitment(tree, key)):
        raise InvalidInputError(
            f"{public}: does not fit the seal: the claim, the numbers of guesses, another entry or the seal itself was "
            "changed after `one-run prepare`"
        )
    for name, expected in tree["files"].items():
        path = folder / name
        if path.exists() and files.digest(path.read_bytes()) != expected:
            raise InvalidInputError(f"{path}: changed after `one-run prepare`: expected the file whose hash was sealed")
    ids = [
        name
        for part in range(1, int(tree["runs"]) + 1)
        for name in make_ids(tree["run"], canaries=int(tree["canaries"]), part=part)
    ]
    return Opened(
        design=Design.from_dict(tree["design"]),
        ids=tuple(ids),
        included=coins(key, ids),
        judged=secret["judged"],
        tree=tree,
        secret=secret,
    )


def _check_forms(public: Path, tree: dict[str, Any], private: Path, secret: dict[str, Any]) -> None:
    """Both files are what they say, with every entry."""
    for path, content, form, names in (
        (public, tree, _MANIFEST_FORM, ("run", "kind", "canaries", "runs", "design", "files", "commitment")),
        (private, secret, _SEAL_FORM, ("run", "secret", "judged")),
    ):
        if content.get("format") != form:
            raise InvalidInputError(f"{path}: format = {content.get('format')!r} is not allowed: expected {form!r}")
        missing = [name for name in names if name not in content]
        if missing:
            raise InvalidInputError(f"{path}: damaged: no entry {missing[0]!r}")
    if not isinstance(secret["judged"], dict | None):
        raise InvalidInputError(f"{private}: damaged: judged = {_validate.shown(secret['judged'])}")
    text = secret["secret"]
    if not isinstance(text, str) or len(text) != 64 or not all(letter in "0123456789abcdef" for letter in text):
        raise InvalidInputError(f"{private}: damaged: the secret is not 64 hexadecimal digits")


def judge_folder(
    folder: Path,
    *,
    scores: Path | Sequence[Path],
    manifest: Path | None = None,
    seal: Path | None = None,
    digest: str | None = None,
    control: OneRunResult | OneRunScores | None = None,
    store: Store | str | os.PathLike[str] | None = None,
    name: str | None = None,
    tags: Iterable[str] = (),
) -> OneRunResult:
    """Open the seal and judge the scores; the seal is marked, and other scores are refused from then on.

    Args:
        folder: What :func:`prepare` wrote.
        scores: One file, or several with the canaries of all runs between them.
        manifest: As in :func:`open_seal`.
        seal: As in :func:`open_seal`.
        digest: As in :func:`open_seal`.
        control: As in :func:`coalmine.one_run.judge`; :func:`judge_control` makes it.
        store: Keep the result there too; see :meth:`coalmine.one_run.OneRunResult.keep`.
        name: What people call it in the store.
        tags: Words to find it by in the store.

    Returns:
        The result. The same scores may be judged again and give the same result.
    """
    folder = Path(folder)
    private = seal or folder / SEAL
    if not private.is_file():
        raise InvalidInputError(f"{private}: no such file: expected the seal that `one-run prepare` wrote")
    paths = [scores] if isinstance(scores, Path) else list(scores)
    with files.locked(private.with_name(f".{private.name}.lock")):
        opened = open_seal(folder, manifest=manifest, seal=seal, digest=digest)
        read = [files.read_scores(path) for path in paths]
        joined = opened.join([name for ids, _ in read for name in ids], np.concatenate([values for _, values in read]))
        mark = files.digest(joined.score.tobytes())
        if opened.judged is not None and opened.judged.get("scores") != mark:
            raise InvalidInputError(
                f"{private}: this seal was opened on {opened.judged.get('when')} for other scores (verdict: "
                f"{opened.judged.get('outcome')}): whoever saw that verdict knows something about the coins; prepare a "
                "new run"
            )
        kind = str(opened.tree["kind"])
        if isinstance(control, OneRunResult):
            check_same_canaries(control.content, audited=str(opened.tree.get("content", "")))
        result = dataclasses.replace(
            judge(joined, design=opened.design, control=control, gradients=opened.gradients),
            runs=int(opened.tree["runs"]),
            canary_kind=kind,
            run=str(opened.tree["run"]),
            digest=files.digest(files.canonical(opened.tree)),
            content=str(opened.tree.get("content", "")),
        )
        if opened.judged is None:
            judged = {
                "scores": mark,
                "outcome": result.verdict.outcome.value,
                "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            }
            files.write(private, _pretty({**opened.secret, "judged": judged}), secret=True)
    if store is not None:
        result.keep(store, name=name, tags=tags)
    return result


def judge_control(
    folder: Path, *, scores: Path | Sequence[Path], audited: Path, manifest: Path | None = None
) -> OneRunResult:
    """Judge a positive control: another prepared run of the same game, whose training is known to break the claim.

    A control of another kind of canaries, for another claim or design, or the run that it is the control of
    (``audited``) itself is refused before any seal is opened.
    """
    mine, other = (
        files.read_json(path, what="the manifest that `one-run prepare` wrote")
        for path in (manifest or Path(audited) / MANIFEST, Path(folder) / MANIFEST)
    )
    if mine.get("run") == other.get("run"):
        raise InvalidInputError(
            f"control: {folder} is the audited run itself: expected a run of its own, prepared in the same way, whose "
            "training is known to break the claim"
        )
    for name in ("kind", "canaries", "runs"):
        if mine.get(name) != other.get(name):
            raise InvalidInputError(
                f"control: {folder} has {name} = {_validate.shown(other.get(name))}: expected "
                f"{_validate.shown(mine.get(name))}, as the audited run has"
            )
    check_same_canaries(str(other.get("content", "")), audited=str(mine.get("content", "")))
    try:
        check_control(Design.from_dict(other.get("design", {})), design=Design.from_dict(mine.get("design", {})))
        return judge_folder(folder, scores=scores)
    except InvalidInputError as error:
        words = str(error)
        raise InvalidInputError(words if words.startswith("control") else f"control: {words}") from None
