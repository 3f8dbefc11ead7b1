"""One block of a user's own training: each trial calls ``train`` in its world, then ``score`` on what came out."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import functools
import inspect
import os
import platform
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from coalmine import seeds
from coalmine.errors import InvalidInputError
from coalmine.game import GameStoppedError, machine, trials_of, worlds_of
from coalmine.integrations.identity import NoContentError, content_hash, function_identity, label, layers
from coalmine.integrations.worlds import GivenWorlds, Worlds, as_worlds
from coalmine.store import BlockResult

Train = Callable[..., Any]
Score = Callable[..., Any]

_SEEDS = 2**31
"""Seeds stay below this: every common generator takes them (torch's on the CPU reads 32 bits and no more)."""
_LONGEST_REASON = 500


def seed_of(fingerprint: str, trial: int) -> int:
    """The seed of a trial: a keyed permutation of the numbers below 2³¹, so that no two trials ever share one.

    Trials alternate between the worlds, so no digit of the seed may follow from the trial's number: a training that
    takes ``seed % 2`` for anything, or a weak generator that shows its seed's last bit, would tell the worlds apart.

    >>> [seed_of("a run", trial) % 2 for trial in range(12)]
    [0, 0, 1, 1, 1, 1, 0, 1, 1, 0, 0, 0]
    """
    key = seeds.key(fingerprint, purpose="own training", trial=0)
    value = (trial + key) % _SEEDS
    # Each line can be undone, so all of them together can (the finaliser of MurmurHash3, with a key, on 31 bits).
    value ^= value >> 16
    value = value * 0x85EBCA6B % _SEEDS ^ (key >> 31) % _SEEDS
    value ^= value >> 13
    value = value * 0xC2B2AE35 % _SEEDS ^ (key >> 62) % _SEEDS
    return value ^ value >> 16


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class FunctionTask:
    """A task (:class:`coalmine.game.Task`) that calls a user's functions.

    ``contents`` are the hashes of the worlds' data, where they have some. ``code`` says what the functions are, so that
    another machine can tell whether it has the same ones. With a ``timeout`` each training is watched by a thread
    outside Python, which ends the process when the time is up and leaves a note of where the training was. What
    exceptions say is kept in the store only with ``messages``: they may quote the data.

    A user's code may end its process, hang, or print: it has a process of its own, whatever the number of workers.
    """

    fingerprint: str
    train: Train
    scores: tuple[tuple[str, Score], ...]
    worlds: GivenWorlds
    contents: tuple[str, ...] | None = None
    code: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    timeout: float | None = None
    messages: bool = False
    device: str = "cpu"
    most_together: None = None
    separate: bool = True

    def on(self, device: str) -> Self:
        """Where a user's training runs is the user's business."""
        return self

    def check(self) -> None:
        """An error unless the functions are the same here as where the task was made."""
        here = code_of(self.train, dict(self.scores), self.worlds)
        for name, told in self.code.items():
            differs = [key for key, value in told.items() if name in here and here[name][key] != value]
            if differs:
                raise GameStoppedError(
                    f"{name} is not the same on {platform.node()} as where the audit was started (its "
                    f"{' and '.join(differs)} differ): install the same code and packages on every machine, or send "
                    "the code along (ray job submit --working-dir)"
                )

    def play(self, blocks: Sequence[int], *, notes: Path | None = None) -> list[BlockResult]:
        """Play the blocks one after the other, and see that none has changed the data of the others."""
        results = [self._block(block, notes) for block in blocks]
        if contents(self._built) != self.contents:
            raise GameStoppedError(
                f"{title(self.train)} or its score changed its data set in place, so trials are not independent: work "
                "on a copy"
            )
        return results

    @functools.cached_property
    def _built(self) -> Worlds:
        built = build(self.worlds)
        if contents(built) != self.contents:
            raise GameStoppedError(
                "worlds gives other data each time it is called, so trials would not be alike: fix its seed"
            )
        return built

    def _block(self, block: int, notes: Path | None) -> BlockResult:
        """One block. A training that raises fails its trial alone; when none of a block ends, the game is stopped."""
        trials = trials_of(block)
        worlds = worlds_of(trials)
        built = self._built
        began = time.perf_counter()
        scores, failures = np.full((trials.size, len(self.scores)), np.nan), {}
        for index, trial in enumerate(trials.tolist()):
            dataset = built.world1 if worlds[index] else built.world0
            try:
                with self._watched(trial, notes):
                    scores[index] = self._trial(trial, dataset, built.canary)
            except _TrialFailedError as error:
                failures[trial] = error
        if len(failures) == trials.size:
            first = failures[int(trials[0])]
            words = "all {} trainings of block {} failed (trial {}: {}); nothing that was stored before is lost"
            about = (trials.size, block, trials[0])
            raise GameStoppedError(words.format(*about, first), kept=words.format(*about, first.kept))
        return BlockResult(
            trial=trials,
            world=worlds,
            score=scores[:, 0],
            columns={name: scores[:, at] for at, (name, _) in enumerate(self.scores) if at},
            elapsed=time.perf_counter() - began,
            device=f"own training, {machine.instruction_set()}",
            failures={trial: error.kept for trial, error in failures.items()},
        )

    def _trial(self, trial: int, dataset: Any, canary: Any) -> list[float]:
        """Train once and take every score, under the trial's own seed."""
        seed = seed_of(self.fingerprint, trial)
        ready = "torch" in sys.modules
        with _seeded(seed):
            model = self._guarded("train", self.train, dataset, seed)
            values = [
                self._guarded(name, score, *((model, canary) if wants_canary(score) else (model,)))
                for name, score in self.scores
            ]
        if not ready and "torch" in sys.modules:
            # The training has loaded torch, whose generator could not be seeded before it was there: the first trial of
            # every process would draw the same numbers. Once more, from the seed.
            return self._trial(trial, dataset, canary)
        return [_one_number(value, trial, title(score)) for value, (_, score) in zip(values, self.scores, strict=True)]

    def _guarded(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a user's function. What the machine may cause stops the game; anything else fails the trial."""
        process = os.getpid()
        try:
            return function(*arguments)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                raise  # Ctrl-C; in a worker it ends the process, and this would be the user's code that raised it
            full = _reason(name, error)
            kept = full if self.messages else _reason(name, error, message=False)
            if isinstance(error, (MemoryError, OSError, ImportError)) or "OutOfMemory" in type(error).__name__:
                more = (
                    ": this looks like the machine, not the training; all finished blocks are stored, and running the "
                    "same audit again goes on from there"
                )
                raise GameStoppedError(full + more, kept=kept + more) from None
            raise _TrialFailedError(full, kept) from None
        finally:
            if os.getpid() != process:  # the user's code has forked, and the child has come back from it
                os._exit(0)

    def post_mortem(self, notes: Path) -> str | None:
        """Why a worker process ended: a training that was too slow (which, and where it was)."""
        for path in sorted(notes.glob("trial.*")):
            trial, _, text = path.read_text(encoding="utf-8", errors="replace").partition("\n")
            if "Timeout" in text:
                # The thread that trains comes last, its innermost call first.
                calls = [line.split() for line in text.rpartition("Thread 0x")[2].splitlines() if " line " in line]
                where = f" (in {' '.join(calls[0][1:])})" if calls else ""
                return f"the training of trial {trial} took longer than {self.timeout:g} seconds and was stopped{where}"
        return None

    @contextlib.contextmanager
    def _watched(self, trial: int, notes: Path | None) -> Iterator[None]:
        """End this process when the trial takes longer than the timeout; the folder of notes tells why."""
        if self.timeout is None or notes is None:
            yield
            return
        path = notes / f"trial.{os.getpid()}"
        with path.open("w", encoding="utf-8") as note:
            note.write(f"{trial}\n")
            note.flush()
            faulthandler.dump_traceback_later(self.timeout, exit=True, file=note)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
        path.unlink()


class _TrialFailedError(Exception):
    """One training gave no score; the message is its reason, ``kept`` what may be stored of it."""

    def __init__(self, message: str, kept: str) -> None:
        super().__init__(message)
        self.kept = kept


def title(function: Callable[..., Any], *, texts: bool = False) -> str:
    """The function's name with what is bound to it; bound texts, which may be private, only with ``texts``.

    >>> title(functools.partial(build, "secret"))
    'coalmine.integrations.task:build(<str>)'
    """
    name = label(function)
    bound = [one for one in layers(function) if isinstance(one, functools.partial)]
    for value in () if texts else (value for one in bound for value in (*one.args, *one.keywords.values())):
        name = name.replace(repr(value), "<str>") if isinstance(value, str) else name
    return name


def code_of(train: Train, scores: Mapping[str, Score], worlds: GivenWorlds) -> dict[str, Any]:
    """What each function is that was imported from a file; what was typed in travels as it is."""
    named = {"train": train, **scores, **({"worlds": worlds} if callable(worlds) else {})}
    found = {}
    for name, function in named.items():
        inner = layers(function)[-1]
        if getattr(sys.modules.get(inner.__module__), inner.__qualname__.partition(".")[0], None) is None:
            continue
        if inner.__module__ != "__main__":
            found[name] = {key: one for key, one in function_identity(name, function).items() if key != "function"}
    return found


def check_signatures(train: Train, score: Score) -> None:
    """``train(dataset, seed)`` and ``score(model)`` or ``score(model, canary)``."""
    try:
        inspect.signature(train).bind(None, 0)
    except TypeError as error:
        raise InvalidInputError(f"train = {title(train)} cannot be called as train(dataset, seed): {error}") from None
    try:
        inspect.signature(score).bind(*([None, None] if wants_canary(score) else [None]))
    except TypeError as error:
        raise InvalidInputError(
            f"score = {title(score)} cannot be called as score(model) or score(model, canary): {error}"
        ) from None


def wants_canary(score: Score) -> bool:
    """Whether the function has two arguments without a default: the model and the canary."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(score).parameters.values()
    return sum(one.kind in kinds and one.default is inspect.Parameter.empty for one in parameters) == 2


def build(worlds: GivenWorlds) -> Worlds:
    """The worlds from what the user gave; what a user's function raises here stops the game."""
    if not callable(worlds):
        return as_worlds(worlds)
    try:
        given = worlds()
    except (Exception, SystemExit) as error:  # noqa: BLE001  a user's code may raise anything
        raise GameStoppedError(_reason("worlds", error), kept=_reason("worlds", error, message=False)) from None
    return as_worlds(given)


def _reason(name: str, error: BaseException, *, message: bool = True) -> str:
    """What was raised, and where, in one line; its ``message`` may quote the data."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    said = f"{name} raised {type(error).__name__}"
    if message:
        said = f"{said}: {_shown(error, str)}"[:_LONGEST_REASON]
    return said + where


def _shown(value: Any, how: Callable[[Any], str]) -> str:
    """A user's object as text; its own code for that may raise anything."""
    try:
        return str(how(value))
    except BaseException as error:  # noqa: BLE001
        return f"<{type(value).__name__} whose text raises {type(error).__name__}>"


def _one_number(value: Any, trial: int, name: str) -> float:
    """The score as a float; NaN and infinity fail the trial, anything that is not one number stops the game."""
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (TypeError, ValueError):
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "fiub":
        words = "score = {} gave {} for trial {}: expected one number"
        kept = words.format(name, f"an object of type {type(value).__name__}", trial)
        raise GameStoppedError(words.format(name, _shown(value, repr), trial), kept=kept)
    if array.size != 1:
        raise GameStoppedError(f"score = {name} gave {array.size} numbers for trial {trial}: expected one number")
    number = float(array.reshape(()))
    if not np.isfinite(number):
        reason = f"score gave {number}: expected a finite number"
        raise _TrialFailedError(reason, reason)
    return number


def contents(worlds: Worlds) -> tuple[str, ...] | None:
    """The content hash of both data sets, or None where they have none."""
    try:
        return content_hash(worlds.world0), content_hash(worlds.world1), content_hash(worlds.canary)
    except NoContentError:
        return None


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The global generators start from the trial's seed, and are put back afterwards.

    A training should draw from its seed; one that draws from a global generator would otherwise draw the same numbers
    in every worker process (torch starts from a constant), and its trials would not be independent.
    """
    torch = sys.modules.get("torch")
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state() if torch else None  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if torch:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002
        if torch:
            torch.set_rng_state(kept[2])
