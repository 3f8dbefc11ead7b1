"""Running a cell: train what is missing, measure, and say how our value compares with the paper's."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import loky

from coalmine.auditing.config import Execution
from coalmine.auditing.setting import prepare
from coalmine.game import Watcher
from coalmine.game.engines.inline import InlineEngine
from coalmine.records import plain
from coalmine.store import BlockResult, Store, Trials
from coalmine.studies import measures
from coalmine.studies.cells import Cell, Scale, Study, find
from coalmine.studies.measures import Bench, Measured
from coalmine.training import Network, at_once

_MEASURERS = 4
"""Processes that compute bounds beside a GPU."""

VERDICTS = ("matches", "tighter", "falls short", "differs", "INVALID", "no published value")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellResult:
    """One cell measured: our value, the paper's, and the further values of the measure.

    ``delta`` and ``confidence`` are those of the bounds that are held against the guarantee, ``played`` counts the
    evidence (:class:`~coalmine.studies.measures.Measured`).
    """

    study: str
    cell: str
    values: Mapping[str, Any]
    published: float | None
    ours: float
    columns: Mapping[str, float | str | None]
    guarantee: float | None
    verdict: str
    trials: int
    seconds: float
    details: Mapping[str, Any]
    delta: float | None = None
    confidence: float | None = None
    played: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """All of it on one level, for tables and charts."""
        first = {"cell": self.cell, **self.values, "published": self.published, "ours": self.ours}
        return {**first, **self.columns, "guarantee": self.guarantee, "verdict": self.verdict}

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        result: dict[str, Any] = plain(vars(self))
        return result


def train_cell(study: Study, *, cell: Cell, scale: Scale, bench: Bench) -> list[Network]:
    """Train all that the cell needs and store it; what is stored already is not trained again. Gives the networks."""
    networks = []
    for settings in measures.find(study.measure).audits(study, cell, scale):
        setting = prepare(settings, data_dir=bench.how.data_dir)
        networks.append(setting.network)
        for section in settings.adversary:
            bench.play(setting, section)
    return networks


def run_cell(study: Study, *, cell: Cell, scale: Scale, bench: Bench) -> CellResult:
    """Measure the cell and compare."""
    return _compared(study, cell, scale, measures.find(study.measure).measure(study, cell, scale, bench))


def run_cells(study: Study, *, cells: Sequence[Cell], scale: Scale, bench: Bench) -> list[CellResult]:
    """Measure these cells and compare, in their order.

    Where a GPU trains, several cells are trained at once if it has room, so that it is never idle and small trainings
    share its launches, and other processes compute the bounds of the cells that are trained.
    """
    apart = bench.how.device != "cpu" and len(cells) > 1
    if not apart or not measures.find(study.measure).audits(study, cells[0], scale):
        return [run_cell(study, cell=cell, scale=scale, bench=bench) for cell in cells]
    # Engines with processes of their own see to all their devices by themselves.
    in_threads = bench.how.engine == "local" and len(bench.how.devices) == 1
    turns = _Turns(bench.watcher)
    with loky.ProcessPoolExecutor(min(_MEASURERS, os.cpu_count() or 1)) as pool:

        def trained(cell: Cell) -> tuple[Future[Measured], list[Network]]:
            # A store of its own, so that a run that two cells share is trained once.
            with Store.open(bench.store.path, create=False) as store:
                own = dataclasses.replace(bench, store=store, watcher=_InTurn(turns))
                networks = train_cell(study, cell=cell, scale=scale, bench=own)
            return pool.submit(_measured, study.name, cell.name, scale, bench.store.path, bench.how), networks

        # The first one alone: it compiles kernels that all others use, and tells what is trained.
        first, networks = trained(cells[0])
        trainers = min(at_once(bench.how.devices[0], one) for one in networks) if in_threads else 1
        with ThreadPoolExecutor(trainers) as threads:
            coming = [first, *(answer for answer, _ in threads.map(trained, cells[1:]))]
        return [_compared(study, cell, scale, one.result()) for cell, one in zip(cells, coming, strict=True)]


class _Turns:
    """Who may tell a watcher now: it can follow one attack, and two are played at once."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher, self.lock = watcher, threading.Lock()
        self.teller: _InTurn | None = None
        self.ended: list[Callable[[], None]] = []


class _InTurn(Watcher):
    """Tells of an attack as it goes if no other is being told; else when that one has ended, or this one if later."""

    def __init__(self, turns: _Turns) -> None:
        self._turns = turns
        self._news: list[Callable[[], None]] = []

    def begin(self, label: str, *, trials: int, copies: int, done: Iterator[Trials]) -> None:
        stored = list(done)  # as it is now, not when it is told
        self._tell(lambda: self._turns.watcher.begin(label, trials=trials, copies=copies, done=iter(stored)))

    def block(self, result: BlockResult) -> None:
        self._tell(lambda: self._turns.watcher.block(result))

    def end(self) -> None:
        self._tell(self._turns.watcher.end, last=True)

    def _tell(self, news: Callable[[], None], *, last: bool = False) -> None:
        turns = self._turns
        with turns.lock:
            self._news.append(news)
            if turns.teller is None:
                turns.teller = self
            if turns.teller is self:
                told, self._news = self._news, []
                if last:
                    told, turns.ended, turns.teller = told + turns.ended, [], None
                for tell in told:
                    tell()
            elif last:
                turns.ended, self._news = turns.ended + self._news, []


def _measured(name: str, cell: str, scale: Scale, path: Path, how: Execution) -> Measured:
    """What the measure makes of a cell whose trials are all stored."""
    study = find(name)
    with Store.open(path, create=False) as store:
        bench = Bench(store=store, how=how, watcher=Watcher(), engine=InlineEngine())
        return measures.find(study.measure).measure(study, study.cell(cell), scale, bench)


def _compared(study: Study, cell: Cell, scale: Scale, found: Measured) -> CellResult:
    """Our value beside the paper's."""
    kept = ("ours", "columns", "guarantee", "trials", "seconds", "details", "delta", "confidence")
    return CellResult(
        study=study.name,
        cell=cell.name,
        values=cell.values,
        published=cell.published,
        **{name: getattr(found, name) for name in kept},
        verdict=verdict(
            found.ours,
            published=cell.published,
            room=0.0 if cell.published is None else scale.room(cell.published),
            proved=found.proved,
            guarantee=found.guarantee,
        ),
        played=found.played or ({"trials": found.trials} if found.trials else {}),
    )


def verdict(
    ours: float, *, published: float | None, room: float, proved: float | None = None, guarantee: float | None = None
) -> str:
    """How our value compares with the paper's; INVALID when a bound at the guarantee's δ exceeds the guarantee.

    A lower bound that is larger than the paper's is tighter; any other value just differs.

    >>> verdict(0.77, published=0.75, room=0.15, proved=2.4, guarantee=3.17)
    'matches'
    >>> verdict(0.77, published=0.75, room=0.15, proved=3.5, guarantee=3.17)
    'INVALID'
    """
    if proved is not None and guarantee is not None and proved > guarantee:
        return "INVALID"
    if published is None:
        return "no published value"
    if abs(ours - published) <= room:
        return "matches"
    if proved is None:
        return "differs"
    return "tighter" if ours > published else "falls short"
