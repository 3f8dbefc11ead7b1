"""Scores that other auditing tools made, read into the worlds of this one.

Which tool writes which names was read in their sources (docs/elsewhere.md has the versions): ml_privacy_meter writes
.npz files by itself; jax_privacy, opake and PrivacyGuard hold arrays or data frames, and a file keeps their names.
In all four a larger score speaks for a member.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.bounds.one_run import coin_notes
from coalmine.errors import InvalidInputError
from coalmine.integrations.score_files import array_names, numbers, read_arrays, read_json
from coalmine.records import OneRunScores, Scores

Array = NDArray[np.float64]

TOOLS = ("jax-privacy", "opake", "privacyguard", "ml-privacy-meter")
DIRECTIONS = ("higher", "lower")

_JOINED = ("scores", "canary_indices", "in_indices")
_MARKED = ("scores", "memberships")
_NAMES: dict[str, tuple[tuple[str, ...], ...]] = {
    "jax-privacy": (("in_canary_scores", "out_canary_scores"),),
    "opake": (("in_scores", "out_scores"), _JOINED),
    "privacyguard": (("df_train_user", "df_test_user"), ("scores_train", "scores_test")),
    "ml-privacy-meter": (_MARKED,),
}
"""For each tool the arrays that a file of it may hold: members and non-members, or scores with their labels."""

_LONGEST = 64


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ToolScores:
    """Scores of another tool: the tool, the evidence in our worlds, and what a reader should know of it."""

    tool: str
    evidence: Scores | OneRunScores
    notes: tuple[str, ...]

    @property
    def members(self) -> Array:
        """The scores of what was trained on."""
        one_run = isinstance(self.evidence, OneRunScores)
        return self.evidence.score[self.evidence.included] if one_run else self.evidence.world1  # type: ignore[union-attr]

    @property
    def nonmembers(self) -> Array:
        """The scores of what was not."""
        one_run = isinstance(self.evidence, OneRunScores)
        return self.evidence.score[~self.evidence.included] if one_run else self.evidence.world0  # type: ignore[union-attr]


def detect_tool(path: str | Path) -> str | None:
    """The tool whose names a file holds, or None where none or several fit.

    Args:
        path: A CSV, .npz, .json or .parquet file.

    Returns:
        One of ``TOOLS``, or None.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> np.savez(Path(folder.name, "a.npz"), scores=np.arange(4.0), memberships=np.array([0, 1, 0, 1]))
    >>> detect_tool(Path(folder.name, "a.npz"))
    'ml-privacy-meter'
    >>> folder.cleanup()
    """
    path = Path(path)
    if not path.is_file() or path.suffix.lower() in (".npy", ".jsonl"):
        return None
    given = set(array_names(path))
    found = [tool for tool, layouts in _NAMES.items() if any(given.issuperset(names) for names in layouts)]
    return found[0] if len(found) == 1 else None


def read_tool_scores(
    path: str | Path,
    *,
    tool: str = "auto",
    nonmembers: str | Path | None = None,
    one_run: bool | None = None,
    member_scores: str = "higher",
) -> ToolScores:
    """Scores that jax_privacy, opake, PrivacyGuard or ml_privacy_meter made, in the right worlds.

    Args:
        path: The file; where members and non-members have files of their own, that of the members.
        tool: One of ``TOOLS``, or "auto" where the names in the file say it.
        nonmembers: The file of the non-members (.npy, or a column ``score`` in CSV, .npz, .json, .jsonl or .parquet).
        one_run: True where all scores come from one training, each canary in it or not by its own fair coin; False
            where every score comes from a training of its own. opake, PrivacyGuard and ml_privacy_meter score one
            training, so it is True for them unless said otherwise; jax_privacy takes both, so it must be said.
        member_scores: "higher" where a larger score speaks for a member, as in all four tools; "lower" for losses.

    Returns:
        The tool, the evidence (:class:`~coalmine.records.OneRunScores` or :class:`~coalmine.records.Scores`) and notes.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> np.savez(Path(folder.name, "a.npz"), scores=np.arange(4.0), memberships=np.array([False, False, True, True]))
    >>> read_tool_scores(Path(folder.name, "a.npz")).members.tolist()
    [2.0, 3.0]
    >>> folder.cleanup()
    """
    path = Path(path)
    _validate.choice("tool", tool, ("auto", *TOOLS))
    _validate.choice("member_scores", member_scores, DIRECTIONS)
    if tool == "auto":
        found = detect_tool(path) if nonmembers is None else None
        if found is None:
            what = (
                "names of one tool in the file" if nonmembers is None else "the tool's name beside two files (--from)"
            )
            raise _validate.reject("tool", tool, f"{what}, or one of {', '.join(TOOLS)}")
        tool = found
    if one_run is None and tool == "jax-privacy":
        raise InvalidInputError(
            "one_run is missing: scores of jax_privacy may come from one training with many canaries (one_run=True, "
            "--one-run) or each from a training of its own (one_run=False, --no-one-run); expected one of them"
        )
    inside, outside = _both(path, tool) if nonmembers is None else (_column(path), _column(Path(nonmembers)))
    for name, scores in (("members", inside), ("non-members", outside)):
        if scores.size == 0:
            raise InvalidInputError(f"{path}: no scores of {name}: expected at least one")
    notes = _direction(inside, outside, member_scores)
    if member_scores == "lower":
        inside, outside = -inside, -outside
    if one_run is False:
        return ToolScores(tool=tool, evidence=Scores(outside, inside), notes=notes)
    notes += coin_notes(inside.size, inside.size + outside.size)
    included = np.repeat([True, False], [inside.size, outside.size])
    return ToolScores(tool=tool, evidence=OneRunScores(included, np.concatenate([inside, outside])), notes=notes)


def _both(path: Path, tool: str) -> tuple[Array, Array]:
    """Members and non-members from one file of this tool."""
    given = array_names(path)
    names = next((names for names in _NAMES[tool] if set(given).issuperset(names)), None)
    if names is None:
        allowed = " or ".join(",".join(names) for names in _NAMES[tool])
        raise InvalidInputError(f"{path}: not scores of {tool}: expected {allowed}, found {','.join(given) or 'none'}")
    if names[0].startswith("df_") and path.suffix.lower() == ".json":
        content = read_json(path)
        return _frame(path, names[0], content[names[0]]), _frame(path, names[1], content[names[1]])
    arrays, first = read_arrays(path, names)
    columns = {name: numbers(path, name, _flat(path, name, values), first) for name, values in arrays.items()}
    if names == _MARKED:
        return _split(path, columns, "memberships", columns["memberships"])
    if names == _JOINED:
        canaries = columns["canary_indices"]
        if np.unique(canaries).size != canaries.size:
            raise InvalidInputError(f"{path}: canary_indices holds a number twice: expected every canary once")
        strangers = np.setdiff1d(columns["in_indices"], canaries)
        if strangers.size:
            raise InvalidInputError(f"{path}: in_indices holds {strangers[0]:g}, which is not in canary_indices")
        return _split(path, columns, "canary_indices", np.isin(canaries, columns["in_indices"]).astype(np.float64))
    return columns[names[0]], columns[names[1]]


def _split(path: Path, columns: dict[str, Array], name: str, marks: Array) -> tuple[Array, Array]:
    """Scores apart by their labels."""
    scores = columns["scores"]
    if scores.size != marks.size:
        raise InvalidInputError(f"{path}: {scores.size} scores and {marks.size} {name}: expected as many")
    bad = np.flatnonzero((marks != 0) & (marks != 1))
    if bad.size:
        raise InvalidInputError(f"{path}: {name}[{bad[0]}] = {marks[bad[0]]:g} is not allowed: expected 0 or 1")
    inside = marks == 1
    if name == "memberships":
        _check_models(path, inside)
    return scores[inside], scores[~inside]


def _check_models(path: Path, inside: NDArray[np.bool_]) -> None:
    """ml_privacy_meter puts scores of several models one after the other; models of a pair have opposite members."""
    for models in range(2, _LONGEST + 1):
        each, rest = divmod(inside.size, models)
        if rest == 0 and each >= 20 and np.array_equal(inside[:each], ~inside[each : 2 * each]):
            raise InvalidInputError(
                f"{path}: its labels are those of {models} models, one after the other, of which the second has just "
                "the members that the first has not: their coins are not independent; expected the file of one model "
                "(attack_result_0.npz). If it is one model, sorted by membership, put its scores in random order"
            )


def _flat(path: Path, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """A list of numbers."""
    if values.ndim != 1:
        raise InvalidInputError(f"{path}: {name} has the shape {values.shape}: expected a plain list of numbers")
    return values


def _column(path: Path) -> Array:
    """The scores in a file that holds one world alone."""
    kind = path.suffix.lower()
    if kind == ".npy" and path.is_file():
        try:
            return numbers(path, "scores", _flat(path, "scores", np.load(path, allow_pickle=False)), 0)
        except (ValueError, EOFError, OSError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise InvalidInputError(f"{path}: not a plain .npy file of numbers: {error}") from None
    if kind == ".jsonl" and path.is_file():
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
            rows = [json.loads(line, object_pairs_hook=_validate.once) for line in lines if line.strip()]
        except (ValueError, RecursionError, OSError) as error:
            raise InvalidInputError(f"{path}: not a file of JSON lines: {error}") from None
        return _frame(path, "score", rows)
    if kind == ".json" and path.is_file():
        return _frame(path, "score", read_json(path))
    arrays, first = read_arrays(path, ("score",))
    return numbers(path, "score", _flat(path, "score", arrays["score"]), first)


def _frame(path: Path, name: str, frame: Any) -> Array:
    """The scores of a data frame as JSON has it: numbers, records, or columns of lists or of values by row."""
    if isinstance(frame, dict):
        frame = frame.get("score")
        frame = list(frame.values()) if isinstance(frame, dict) else frame
    if isinstance(frame, list) and any(isinstance(row, dict) for row in frame):
        frame = [row.get("score") if isinstance(row, dict) else None for row in frame]
    if not isinstance(frame, list):
        raise InvalidInputError(f"{path}: {name} holds no scores: expected a list, or a column score")
    return numbers(path, name, np.fromiter(frame, dtype=object, count=len(frame)), 0)


def _direction(inside: Array, outside: Array, member_scores: str) -> tuple[str, ...]:
    """A word where members score on the other side than was said. The scores never choose the direction."""
    lower = float(np.median(inside)) < float(np.median(outside))
    if lower == (member_scores == "lower"):
        return ()
    other = "lower" if member_scores == "higher" else "higher"
    return (
        f"The median score of members is {other} than that of the others, though {member_scores} was said to speak for "
        f"members. If these are losses, or if the sign was changed twice, say {other} (in advance: a direction "
        "chosen on the scores is not paid for).",
    )
