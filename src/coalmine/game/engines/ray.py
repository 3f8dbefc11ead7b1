"""Blocks on a Ray cluster: the driver hands out groups of blocks and stores what comes back; nothing else writes.

What a task needs (data set, attack, a user's functions) is put into Ray's object store once and fetched once by each
worker process. A group that is lost with its worker or its node is played again by Ray, on another one; since a trial
owns its randomness and only the driver stores, nothing is lost or doubled. A user's own training runs in a process
below the worker (:class:`~coalmine.game.engines.LocalEngine`), so whatever it does to its process, the worker lives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import platform
import signal
import sys
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import cloudpickle

from coalmine.errors import GameStoppedError, InvalidInputError, UnsupportedError, WorkersDiedError
from coalmine.game import machine
from coalmine.game.engines.local import LocalEngine
from coalmine.game.play import TROUBLE
from coalmine.game.task import Task, play_in_stacks
from coalmine.store import BlockResult

_RETRIES = 20
"""How often Ray plays a group again that was lost with its worker or node: on spot machines that is no rare thing."""
_AHEAD = 2
"""Groups handed out for each place: while one is played the next one waits there already."""
_LONGEST_SECONDS, _SECONDS_A_WORKER = 60.0, 0.005
"""The most that a group should take, and how much more it takes for each worker: 200 groups a second at most."""
_LOOK_SECONDS = 5.0
"""How often the cluster is asked how large it is; machines may join and leave."""


class RayEngine:
    """A Ray cluster that plays blocks. It is joined at the start of the ``with`` block and left at its end.

    Args:
        address: of the cluster (``auto`` for one that runs here, ``host:port``, ``ray://host:port``); None joins the
            one that the environment variable RAY_ADDRESS names, or starts one on this machine for the time being.
        workers: the most groups to be played at once; 0 means as many as the cluster has room for.
        cpus: cores that each task asks for.
        gpus: GPUs that each task asks for; a fraction lets several tasks share one.
        memory: bytes that each task asks for.
        accelerator: the kind of GPU to ask for, by Ray's name.

    """

    aim_seconds = 20.0
    stacks = 4096

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int = 0,
        cpus: float = 1.0,
        gpus: float = 0.0,
        memory: int | None = None,
        accelerator: str | None = None,
    ) -> None:
        self._address, self._workers = address, workers
        self._asks: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus}
        if memory is not None:
            self._asks["memory"] = memory
        if accelerator is not None:
            self._asks["accelerator_type"] = accelerator
        self._ray: Any = None
        self._joined = False
        self._task: Task | None = None
        self._name = ""
        self._sealed: Any = None
        self._looked = 0.0
        self._room, self._nodes = 1, 1
        self._rates: dict[str, _Rate] = {}

    def width(self, task: Task) -> int:
        """Two groups for each place that the cluster has now, or as many as are allowed."""
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._look()
        return min(self._workers or _AHEAD * self._room, _AHEAD * self._room)

    def status(self) -> str:
        """Nodes, places and the rate of each node's processes, for people."""
        rates = sorted(rate.trials / rate.seconds for rate in self._rates.values() if rate.seconds > 0)
        speed = f", {rates[0]:.3g} to {rates[-1]:.3g} trials/s a worker" if rates else ""
        return f"{self._nodes} nodes, {self._room} workers{speed}"

    def submit(self, task: Task, blocks: Sequence[int]) -> Future[list[BlockResult]]:
        """Hand these blocks to the cluster."""
        if task is not self._task:
            self._task, self._name = task, uuid.uuid4().hex
            self._sealed = self._ray.put(_seal(task))
        order = _Order(task=self._name, blocks=tuple(blocks), versions=machine.versions(), code=machine.code())
        future: Future[list[BlockResult]] = Future()
        # The reference goes inside a list, or Ray would fetch and unpack the task for every group.
        answer = self._remote.remote([self._sealed], order).future()
        answer.add_done_callback(lambda done: self._deliver(done, future))
        return future

    def _deliver(self, done: Future[_Answer], future: Future[list[BlockResult]]) -> None:
        """What a worker found, or why it did not."""
        error = done.exception()
        if error is not None:
            words = str(error).strip().splitlines() or [type(error).__name__]
            future.set_exception(
                WorkersDiedError(
                    f"the cluster lost a group of blocks {_RETRIES + 1} times, or is gone ({words[0][:200]}); all "
                    "finished blocks are stored, and running the same audit again goes on from there"
                )
            )
            return
        answer = done.result()
        if answer.error is not None:
            future.set_exception(answer.error)
            return
        rate = self._rates.setdefault(answer.node, _Rate())
        rate.add(sum(one.trial.size for one in answer.results), sum(one.elapsed for one in answer.results))
        future.set_result(answer.results)

    def _look(self) -> None:
        """How large the cluster is now."""
        found: Mapping[str, float] = self._ray.cluster_resources()
        places = [
            found.get(name, 0.0) / self._asks[asked]
            for name, asked in (("CPU", "num_cpus"), ("GPU", "num_gpus"), ("memory", "memory"))
            if self._asks.get(asked)
        ]
        self._room = max(1, int(min(places, default=1.0)))
        self._nodes = sum(bool(node["Alive"]) for node in self._ray.nodes())
        # A group costs the driver milliseconds, whatever is in it: thousands of workers get larger ones.
        self.aim_seconds = max(self.aim_seconds, min(_LONGEST_SECONDS, _SECONDS_A_WORKER * self._room))
        self._looked = time.monotonic()

    def __enter__(self) -> RayEngine:
        self._ray = _load()
        self._output = contextlib.redirect_stdout(sys.stderr)  # Ray tells of lost workers on stdout, which is ours
        self._output.__enter__()
        try:
            with _signals_kept():
                if not self._ray.is_initialized():
                    self._join()
                    self._joined = True
            self._look()
        except BaseException:
            self.__exit__()
            raise
        if self._asks["num_gpus"] and not self._ray.cluster_resources().get("GPU"):
            self.__exit__()
            raise UnsupportedError("device = 'cuda' is not allowed: no machine of the cluster has a GPU for Ray")
        play = self._ray.remote(_play)
        self._remote = play.options(max_retries=_RETRIES, retry_exceptions=False, **self._asks)
        return self

    def _join(self) -> None:
        """Join the cluster, or start one here."""
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        address = self._address or os.environ.get("RAY_ADDRESS")
        if address is not None:
            options["address"] = address
        else:
            options |= {"address": "local", "include_dashboard": False}
            if self._workers:
                options["num_cpus"] = max(1, round(self._workers * self._asks["num_cpus"]))
        try:
            self._ray.init(**options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InvalidInputError(
                f"address = {self._address!r} is not a Ray cluster that can be joined ({reason}): expected that of a "
                "running one with the same versions of Ray and Python (ray start --head begins one)"
            ) from None

    def __exit__(self, *_: object) -> None:
        # What is still under way ends with the driver's connection; nobody waits for it any more.
        if self._joined:
            with _signals_kept(), contextlib.suppress(Exception):
                self._ray.shutdown()
            self._joined = False
        self._output.__exit__(None, None, None)


@dataclasses.dataclass
class _Rate:
    """How much a node has done, in the time of its workers."""

    trials: int = 0
    seconds: float = 0.0

    def add(self, trials: int, seconds: float) -> None:
        self.trials += trials
        self.seconds += seconds


@dataclasses.dataclass(frozen=True)
class _Order:
    """Blocks of the task of that name, and what whoever plays them must be like."""

    task: str
    blocks: tuple[int, ...]
    versions: Mapping[str, str]
    code: str


@dataclasses.dataclass(frozen=True)
class _Answer:
    """The node that played and what it found, or what went wrong."""

    node: str
    results: list[BlockResult] = dataclasses.field(default_factory=list)
    error: Exception | None = None


_held: tuple[str, Task] | None = None
"""In a worker: the task that it played last, and its name, which no other task of any engine has."""
_below: LocalEngine | None = None
"""In a worker: the process below it that plays a user's own training."""


def _play(sealed: list[Any], order: _Order) -> _Answer:
    """In a worker: play the blocks. Whatever the task raises comes back as a value; only a lost worker is an error."""
    node = platform.node()
    try:
        return _Answer(node=node, results=_results(sealed, order, node))
    except TROUBLE as error:
        return _Answer(node=node, error=error)


def _results(sealed: list[Any], order: _Order, node: str) -> list[BlockResult]:
    global _held, _below
    if _held is None or _held[0] != order.task:
        check_same(node, versions=order.versions, code=order.code)
        try:
            task: Task = cloudpickle.loads(_load().get(sealed[0]))
        except (ImportError, AttributeError) as error:
            raise GameStoppedError(
                f"the code of this audit is not on {node} ({error}): install it there, or send it along (ray job "
                "submit --working-dir)"
            ) from None
        task.check()
        _held = (order.task, task)
        if _below is not None:
            _below.__exit__()
            _below = None
    task = _held[1]
    if not task.separate:
        return play_in_stacks(task, order.blocks)
    if _below is None:
        _below = LocalEngine(1, apart=True)
    try:
        return _below.submit(task, order.blocks).result()
    except GameStoppedError:
        _below.__exit__()
        _below = None
        raise


def check_same(node: str, *, versions: Mapping[str, str], code: str) -> None:
    """An error unless this installation is the one that is described: other versions may give other bits.

    >>> check_same("here", versions=machine.versions(), code=machine.code())
    """
    here = machine.versions()
    differ = [
        f"{name} {here.get(name, 'missing')} there, {versions.get(name, 'missing')} here"
        for name in sorted({*here, *versions})
        if here.get(name) != versions.get(name)
    ]
    if not differ and machine.code() != code:
        differ = ["the source of coalmine itself"]
    if differ:
        raise GameStoppedError(
            f"node {node} is not like the machine where the audit was started ({'; '.join(differ)}), so its trials "
            "could differ: install the same versions on every machine"
        )


def _seal(task: Task) -> bytes:
    """The task as bytes, with the text of the user's own modules in it: a node need not have them.

    A module that cannot be sent must be there, and the task's own check sees that it is the same.
    """
    modules = machine.own_modules()
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        sealed: bytes = cloudpickle.dumps(task)
    except Exception:  # noqa: BLE001  a user's module may hold anything
        sealed = b""
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    return sealed or bytes(cloudpickle.dumps(task))


def _load() -> Any:
    """Ray, which tells nobody that it is used, and whose warnings about itself are for its own developers."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray

    return ray


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray puts a handler of its own in the place of the program's."""
    names = [signal.SIGTERM, signal.SIGINT]
    before = [(name, signal.getsignal(name)) for name in names]
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # not the main thread: then Ray has changed nothing
            for name, handler in before:
                signal.signal(name, handler)
