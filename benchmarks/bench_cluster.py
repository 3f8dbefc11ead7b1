"""A run on many machines: a model, held against what can be measured on one, and what it says of 10 to 1000 nodes.

The driver hands out groups of blocks, takes their results and stores them, one after the other; that is all that does
not spread over the machines. The model is a simulation of these two: workers that play groups (some slower, some lost
with their machine) and a driver that serves one answer at a time. Its numbers are measured here: what a block and a
group cost the driver, with Ray and without.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import heapq
import random
import tempfile
import time
from collections import deque
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from coalmine import game
from coalmine.game import BLOCK_SIZE, Watcher, blocks_for, trials_of, worlds_of
from coalmine.store import BlockResult, Store

NAME = "ab" * 16
AHEAD = 2
"""Groups handed out for each worker, as the Ray engine does."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds of the driver: for each block (its share of a transaction) and for each group (Ray, claim)."""

    block: float
    group: float


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Machines: how many, workers on each, hours between two losses of one, seconds until another takes its place.

    A loss takes one worker at a time here: as many groups are lost as when all workers of a machine go together.
    """

    nodes: int
    workers: int = 16
    hours_between_losses: float = float("inf")
    replaced_after: float = 180.0
    spread: float = 0.1
    """Standard deviation of the logarithm of a group's time."""
    stragglers: float = 0.01
    """Share of groups that take three times as long."""


def simulate(cluster: Cluster, costs: Costs, *, blocks: int, block_seconds: float, aim: float = 20.0, seed: int = 0
             ) -> dict[str, float]:  # fmt: skip
    """A run in the model: its seconds, the share of the workers' time that was used, and of the driver's."""
    rng = random.Random(seed)
    workers = cluster.nodes * cluster.workers
    aim = max(aim, min(60.0, 0.005 * workers))  # as the Ray engine does
    size = max(1, int(aim / block_seconds))
    left, lost, busy, served, now = blocks, 0, 0.0, 0.0, 0.0
    waiting = deque[int]()  # groups handed out and not begun
    idle = list(range(workers))
    events: list[
        tuple[float, int, int, int]
    ] = []  # when, 0: a group ends, 1: it is lost, 2: a worker is back; worker; blocks

    def hand_out() -> None:
        nonlocal left
        while left and len(waiting) + (workers - len(idle)) < AHEAD * workers:
            taken = min(left, max(1, size // 10, min(size, -(-left // (AHEAD * workers)))))
            left -= taken
            waiting.append(taken)

    def begin() -> None:
        nonlocal busy
        while waiting and idle:
            taken, worker = waiting.popleft(), idle.pop()
            slow = 3.0 if rng.random() < cluster.stragglers else 1.0
            seconds = taken * block_seconds * slow * rng.lognormvariate(0.0, cluster.spread)
            gone = rng.expovariate(1.0 / (3600.0 * cluster.hours_between_losses)) if np.isfinite(
                cluster.hours_between_losses
            ) else float("inf")  # fmt: skip
            heapq.heappush(events, (now + min(seconds, gone), 0 if seconds <= gone else 1, worker, taken))
            busy += min(seconds, gone)

    driver = ended = 0.0
    hand_out()
    begin()
    while events:
        now, kind, worker, taken = heapq.heappop(events)
        if kind == 2:
            idle.append(worker)
        elif kind == 1:
            lost += 1
            waiting.appendleft(taken)  # Ray plays it again elsewhere
            heapq.heappush(events, (now + cluster.replaced_after, 2, worker, 0))
        else:
            idle.append(worker)
            ended = now
            cost = costs.group + taken * costs.block
            driver = max(driver, now) + cost
            served += cost
            if driver - now > aim:  # the driver falls behind: nothing new is handed out before it has caught up
                idle.remove(worker)
                heapq.heappush(events, (driver, 2, worker, 0))
            hand_out()
        begin()
    seconds = max(ended, driver)
    return {
        "seconds": seconds,
        "workers_used": blocks * block_seconds / (workers * seconds),
        "driver_used": served / seconds,
        "groups": float(-(-blocks // size)),
        "lost": float(lost),
    }


class Asleep:
    """A task that takes its time without using a processor, so that many workers fit on one machine."""

    device, separate, fingerprint = "cpu", False, NAME

    def __init__(self, seconds: float, *, most_together: int = 4096) -> None:
        self.seconds, self.most_together = seconds, most_together

    def on(self, device: str) -> Asleep:
        return self

    def check(self) -> None:
        pass

    def play(self, blocks: Any, *, notes: Path | None = None) -> list[BlockResult]:
        time.sleep(self.seconds * len(blocks))
        found = []
        for block in blocks:
            trials = trials_of(block)
            elapsed = max(self.seconds, 1e-6)
            found.append(
                BlockResult(trial=trials, world=worlds_of(trials), score=trials * 0.5, elapsed=elapsed, device="none")
            )
        return found

    def post_mortem(self, notes: Path) -> None:
        return None


class AtOnce:
    """An engine that answers at once: what is left is the driver."""

    stacks = 1

    def __init__(self, blocks: int) -> None:
        self.aim_seconds = 1e-6 * blocks

    def width(self, task: Any) -> int:
        return 8

    def status(self) -> str:
        return ""

    def submit(self, task: Any, blocks: Any) -> concurrent.futures.Future[list[BlockResult]]:
        future: concurrent.futures.Future[list[BlockResult]] = concurrent.futures.Future()
        future.set_result(task.play(blocks))
        return future


def played(engine: Any, task: Any, blocks: int, *, warm: int = 0) -> tuple[float, float]:
    """Wall and processor seconds of the driver for so many blocks; ``warm`` blocks are played before."""
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "a.db") as store:
        store.register(NAME, {})
        if warm:
            first = [10**6 + index for index in range(warm)]
            game.play(task, blocks=first, store=store, engine=engine, watcher=Watcher())
        wall, own = time.perf_counter(), time.process_time()
        game.play(task, blocks=blocks_for(blocks * BLOCK_SIZE), store=store, engine=engine, watcher=Watcher())
        return time.perf_counter() - wall, time.process_time() - own


def driver_costs() -> Costs:
    """What blocks and groups cost without Ray: two sizes of groups, two unknowns. The task's own work is left out."""
    task = Asleep(0.0)
    making = time.process_time()
    task.play(range(4096))
    making = (time.process_time() - making) / 4096
    _, small = played(AtOnce(8), task, 4096)
    _, large = played(AtOnce(512), task, 16384)
    group = (small / 4096 - large / 16384) / (1 / 8 - 1 / 512)
    return Costs(block=large / 16384 - group / 512 - making, group=group)


def with_ray() -> dict[str, Any]:
    """Measured on this machine: what a group costs through Ray, and runs of sleeping workers beside the model's."""
    from coalmine.game.engines import LocalEngine
    from coalmine.game.engines.ray import RayEngine

    found: dict[str, Any] = {}
    with RayEngine(workers=2) as engine:
        task = Asleep(10.0)
        wall, _ = played(engine, task, 8, warm=2)
        found["ray_10s_blocks_2_workers"] = 8 * 10.0 / (2 * wall)
        engine.aim_seconds = 1e-6
        _, own = played(engine, Asleep(0.0, most_together=1), 500, warm=2)
        found["driver_seconds_a_group_with_ray"] = own / 500
    with LocalEngine(2) as local:
        wall, _ = played(local, task, 8, warm=2)
        found["local_10s_blocks_2_workers"] = 8 * 10.0 / (2 * wall)
    found["ratio_ray_to_local_10s_blocks"] = found["ray_10s_blocks_2_workers"] / found["local_10s_blocks_2_workers"]
    return found


def against_the_model(costs: Costs) -> list[dict[str, float]]:
    """Sleeping workers on this machine, and the model's word for it."""
    from coalmine.game.engines.ray import RayEngine

    rows = []
    for workers, blocks, seconds, aim in (
        (2, 40, 0.5, 1.0),
        (8, 160, 0.5, 1.0),
        (8, 64, 2.0, 2.0),
        (16, 320, 0.5, 2.0),
    ):
        with RayEngine(workers=workers) as engine:
            engine.aim_seconds = aim
            wall, _ = played(engine, Asleep(seconds), blocks, warm=2 * workers)
        model = simulate(
            Cluster(nodes=1, workers=workers, spread=0.0, stragglers=0.0), costs, blocks=blocks, block_seconds=seconds,
            aim=aim,
        )["seconds"]  # fmt: skip
        rows.append({"workers": workers, "blocks": blocks, "block_seconds": seconds, "measured": wall, "model": model})
        print(
            f"  {workers:3d} workers, {blocks} blocks of {seconds} s: measured {wall:.1f} s, model {model:.1f} s",
            flush=True,
        )
    return rows


def table(costs: Costs) -> list[dict[str, float]]:
    """10^6 trials on 10 to 1000 nodes of 16 workers, by how long a block of 16 trials takes a worker."""
    rows = []
    for block_seconds in (0.1, 1.0, 16.0, 160.0):
        for nodes in (10, 30, 100, 300, 1000):
            for hours in (float("inf"), 6.0):
                blocks = 10**6 // BLOCK_SIZE
                found = simulate(
                    Cluster(nodes=nodes, hours_between_losses=hours), costs, blocks=blocks, block_seconds=block_seconds
                )
                rows.append({"block_seconds": block_seconds, "nodes": nodes, "hours_between_losses": hours, **found})
    return rows


def run() -> dict[str, Any]:
    """All of it."""
    costs = driver_costs()
    found: dict[str, Any] = {"driver_seconds_a_block": costs.block, "driver_seconds_a_group": costs.group}
    if find_spec("ray") is None:
        print("  Ray is not installed: the cost of a group is that without it")
    else:
        found |= with_ray()
        costs = dataclasses.replace(costs, group=found["driver_seconds_a_group_with_ray"])
        found["measured_and_model"] = against_the_model(costs)
    for name, value in found.items():
        if isinstance(value, float):
            print(f"  {name}: {value:.3g}", flush=True)
    found["most_trials_a_second_of_the_driver"] = BLOCK_SIZE / (costs.block + costs.group / 512)
    found["table"] = table(costs)
    print("  10^6 trials, 16 workers a node, groups of 20 to 60 s")
    for row in found["table"]:
        losses = "" if row["hours_between_losses"] == float("inf") else ", a node lost every 6 h"
        print(
            f"  {row['block_seconds']:6.1f} s a block, {row['nodes']:5.0f} nodes{losses}: {row['seconds']:9.0f} s, "
            f"workers {row['workers_used']:.0%}, driver {row['driver_used']:.0%}"
        )
    return {"cluster": found}
