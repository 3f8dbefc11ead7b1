"""One block of a user's own training: each trial calls ``train`` in its world, then ``score`` on what came out."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import functools
import importlib.util
import inspect
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coalmine import seeds
from coalmine.errors import GameStoppedError, InvalidInputError
from coalmine.game import BLOCK_SIZE, machine, trials_of, worlds_of
from coalmine.integrations.content import NoContentError, content_hash
from coalmine.integrations.fitting import MissesCanaryError
from coalmine.integrations.identity import label, layers
from coalmine.integrations.known import Known
from coalmine.integrations.reads import Reads
from coalmine.integrations.travel import Sealed, opened, sealed
from coalmine.integrations.worlds import GivenWorlds, Worlds, as_worlds
from coalmine.store import BlockResult

Train = Callable[..., Any]
Score = Callable[..., Any]

_SEEDS = 2**31
"""Seeds stay below this: every common generator takes them (torch's on the CPU reads 32 bits and no more)."""
_LONGEST_REASON = 500
_ROUNDED = 0.05
"""Part of the scores' spread by which the order of sums, and what a long training makes of it, may move a score."""
_RELATIVE = 1e-6
"""The same as a part of the score, where all scores are equal."""


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

    ``identity`` is what the fingerprint was made of, ``contents`` the hashes of the worlds' data, where they have some.
    ``known`` says what the functions are, so that another process or machine can tell whether it has the same ones.
    With ``batched`` the function trains up to that many trials of one world in one call. With a ``timeout`` each call
    is watched by a thread outside Python, which ends the process when the time is up and leaves a note of where the
    training was. What exceptions say is kept in the store only with ``messages``: they may quote the data.
    ``visible_gpu`` is the one GPU that its process may see. ``role`` is what a message calls the training.

    A user's code may end its process, hang, or print: it has a process of its own, whatever the number of workers.
    """

    fingerprint: str
    train: Train
    scores: tuple[tuple[str, Score], ...]
    worlds: GivenWorlds
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    contents: tuple[str, ...] | None = None
    known: Known | None = None
    batched: int | None = None
    threads: int | None = None
    timeout: float | None = None
    messages: bool = False
    role: str = "train"
    visible_gpu: str | None = None
    device: str = "cpu"
    separate: bool = True

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process as a whole: a script's functions need more than the engines' own way of sending."""
        return _again, (type(self), sealed(vars(self)))

    @property
    def most_together(self) -> int | None:
        """As many blocks as fill a call that trains many."""
        return None if self.batched is None else max(1, 2 * self.batched // BLOCK_SIZE)

    def on(self, device: str) -> Self:
        """On one GPU of several (``cuda:1``): its process sees that one alone, whatever the training calls it."""
        number = device.partition(":")[2]
        seen = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
        if number and seen:  # numbers are of those that this process sees
            if int(number) >= len(seen):
                raise InvalidInputError(f"device = {device!r} is not there: CUDA_VISIBLE_DEVICES names {len(seen)}")
            number = seen[int(number)]
        return dataclasses.replace(self, visible_gpu=number or None)

    def check(self) -> None:
        """An error unless the functions are the same here as where the task was made."""
        if self.known is not None:
            self.known.check_once()

    def play(self, blocks: Sequence[int], *, notes: Path | None = None) -> list[BlockResult]:
        """Play the blocks, one after the other or in few calls that train many; see that none has changed the data."""
        return self._play({block: trials_of(block) for block in blocks}, notes, stops=True)

    def again(self, units: Sequence[int], *, notes: Path | None = None) -> list[BlockResult]:
        """Play single trials once more, each a result by itself."""
        return self._play({trial: np.array([trial]) for trial in units}, notes, stops=False)

    def _play(self, parts: Mapping[int, NDArray[np.int64]], notes: Path | None, *, stops: bool) -> list[BlockResult]:
        """Play some trials; each part of them is a result by itself. One without a score ``stops`` the game."""
        self.check()
        if self.visible_gpu is not None:  # before the training has loaded CUDA: a worker plays for one GPU alone
            os.environ["CUDA_VISIBLE_DEVICES"] = self.visible_gpu
        with _limited(self.threads):
            trained = self._trained_together(np.concatenate(list(parts.values())), notes)
            results = []
            for name, part in parts.items():
                results.append(self._part(name, part, trained, notes, stops=stops))
                if self.known is not None and len(results) in (1, len(parts)):
                    self.known.check_settled()
            if stops and 0 in parts:  # once in a run, by whoever plays its first block
                self._check_own_seeds(results[list(parts).index(0)], notes)
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

    def _trained_together(self, trials: NDArray[np.int64], notes: Path | None) -> _Trained:
        """The models of many trials, each world's in calls of at most ``batched``; none without ``batched``.

        A call that raises says nothing about which training failed: its trials are then trained one by one.
        """
        found = _Trained({}, set())
        worlds = worlds_of(trials)
        for world in (0, 1) if self.batched is not None else ():
            mine = trials[worlds == world].tolist()
            for first in range(0, len(mine), self.batched or 1):
                some = mine[first : first + (self.batched or 1)]
                dataset = self._built.world1 if world else self._built.world0
                with contextlib.suppress(_TrialFailedError):
                    models, made = self._models(some, dataset, notes)
                    found.models.update(zip(some, models, strict=True))
                    found.made.update(made)
        return found

    def _check_own_seeds(self, block: BlockResult, notes: Path | None) -> None:
        """Stop the game where a model of a call that trains many follows from the seeds beside its own.

        Models that share a mask of drawn rows, a start or a noise are not independent, and then no confidence holds.
        Every second trial of each world is trained once more in other company, and must have the scores that it had.
        """
        if self.batched in (None, 1) or getattr(self.train, "by_seed", False):
            return
        scores = np.column_stack([block.score, *block.columns.values()])
        for world in (0, 1):
            mine = np.flatnonzero(block.world == world)
            spread = np.nanstd(scores[mine], axis=0)
            some = [at for at in mine[1::2] if np.isfinite(scores[at]).all()]
            trained = self._trained_together(block.trial[some], notes)
            dataset = self._built.world1 if world else self._built.world0
            for at in some:
                trial = int(block.trial[at])
                if trial not in trained.models:  # the call failed for another of its seeds
                    continue
                try:
                    again = np.array(self._trial(trial, dataset, self._built.canary, trained))
                except _TrialFailedError:
                    again = np.full(len(self.scores), np.nan)
                apart = np.abs(again - scores[at])
                if not (apart <= np.maximum(_ROUNDED * spread, _RELATIVE * np.abs(scores[at]))).all():
                    worst = int(np.argmax(np.nan_to_num(apart, nan=np.inf)))
                    raise GameStoppedError(
                        f"{self.role} = {title(self.train)} gives another model for the same seed where other seeds "
                        f"share its call (trial {trial}: score {scores[at, worst]:.6g}, then {again[worst]:.6g}), so "
                        "the trials of a call depend on each other: draw all that is random in a model from its own "
                        "seed alone, the batches too"
                    )

    def _models(self, trials: list[int], dataset: Any, notes: Path | None) -> tuple[list[Any], set[str]]:
        """One call of a function that trains many: the models, and the files that it made."""
        seeds = np.array([seed_of(self.fingerprint, trial) for trial in trials], dtype=np.int64)
        with self._watched(trials[0], notes), _seeded(int(seeds[0])), self._reading() as reads, _printing_elsewhere():
            models = list(self._guarded(self.role, self.train, dataset, seeds))
        if len(models) != len(trials):
            raise GameStoppedError(
                f"{self.role} = {title(self.train)} gave {len(models)} models for {len(trials)} seeds: expected one "
                "for each"
            )
        return models, reads.made

    def _part(
        self, block: int, trials: NDArray[np.int64], trained: _Trained, notes: Path | None, *, stops: bool
    ) -> BlockResult:
        """One part. A training that raises fails its trial alone; when none of a block ends, the game is stopped."""
        worlds = worlds_of(trials)
        built = self._built
        began = time.perf_counter()
        scores, failures = np.full((trials.size, len(self.scores)), np.nan), {}
        for index, trial in enumerate(trials.tolist()):
            dataset = built.world1 if worlds[index] else built.world0
            try:
                with self._watched(trial, notes):
                    scores[index] = self._trial(trial, dataset, built.canary, trained)
            except _TrialFailedError as error:
                failures[trial] = error
        if stops and len(failures) == trials.size:
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

    def _trial(self, trial: int, dataset: Any, canary: Any, trained: _Trained) -> list[float]:
        """Train once and take every score, under the trial's own seed."""
        seed = seed_of(self.fingerprint, trial)
        ready = "torch" in sys.modules
        with _seeded(seed), self._reading(trained.made), _printing_elsewhere():
            if trial in trained.models:
                model = trained.models[trial]
            elif self.batched is not None:
                [model] = self._guarded(self.role, self.train, dataset, np.array([seed]))
            else:
                model = self._guarded(self.role, self.train, dataset, seed)
            values = [
                self._guarded(name, score, *((model, canary) if wants_canary(score) else (model,)))
                for name, score in self.scores
            ]
        if not ready and "torch" in sys.modules:
            # The training has loaded torch, whose generator could not be seeded before it was there: the first trial of
            # every process would draw the same numbers. Once more, from the seed.
            return self._trial(trial, dataset, canary, trained)
        return [_one_number(value, trial, title(score)) for value, (_, score) in zip(values, self.scores, strict=True)]

    def _guarded(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a user's function. What the machine may cause stops the game; anything else fails the trial."""
        process = os.getpid()
        try:
            return function(*arguments)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                raise  # Ctrl-C; in a worker it ends the process, and this would be the user's code that raised it
            if isinstance(error, MissesCanaryError):  # in both worlds, so no verdict could follow
                raise GameStoppedError(f"{name} = {title(function)} cannot be played: {error}") from None
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

    def _reading(self, made: Collection[str] = ()) -> contextlib.AbstractContextManager[Reads]:
        """Stop the game when a training reads a file that its identity does not know, or that an earlier one left."""
        if self.known is None:
            return contextlib.nullcontext(Reads())
        return self.known.reading(label(self.train), made=made)

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


def _again(kind: type[FunctionTask], given: Sealed) -> FunctionTask:
    """A task in the process that it was sent to."""
    task = object.__new__(kind)
    vars(task).update(opened(given))
    return task


@dataclasses.dataclass(frozen=True)
class _Trained:
    """What calls that train many gave: models by their trials, and the files that were made for these."""

    models: dict[int, Any]
    made: set[str]


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
        with _printing_elsewhere():
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


def _printing_elsewhere() -> contextlib.AbstractContextManager[Any]:
    """What a user's function prints goes to stderr: stdout is for results."""
    return contextlib.redirect_stdout(sys.stderr)


@contextlib.contextmanager
def _limited(threads: int | None) -> Iterator[None]:
    """Let torch and the BLAS libraries use so many threads at most."""
    torch = sys.modules.get("torch")
    if threads is None:
        yield
        return
    before = torch.get_num_threads() if torch else 0
    if torch:
        torch.set_num_threads(threads)
    try:
        with _blas_limited(threads):
            yield
    finally:
        if torch:
            torch.set_num_threads(before)


def _blas_limited(threads: int) -> contextlib.AbstractContextManager[Any]:
    """The same for what NumPy and SciPy call, where threadpoolctl is installed."""
    if importlib.util.find_spec("threadpoolctl") is None:
        return contextlib.nullcontext()
    threadpoolctl = importlib.import_module("threadpoolctl")
    return threadpoolctl.threadpool_limits(limits=threads)  # type: ignore[no-any-return]


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
