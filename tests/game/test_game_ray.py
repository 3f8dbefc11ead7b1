"""A Ray cluster of two nodes on this machine: the same bits as here, whatever dies meanwhile.

COALMINE_KILLS sets how often a worker, a node or the driver is killed (a few by default).
"""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'coalmine[ray]'")
if "COALMINE_RAY" not in os.environ:
    pytest.skip("a cluster is started and killed only where COALMINE_RAY is set: make ray", allow_module_level=True)

from coalmine import audit_function, game, neighbours
from coalmine.auditing import config
from coalmine.auditing.config import Execution
from coalmine.auditing.run import audit
from coalmine.errors import GameStoppedError, InvalidInputError
from coalmine.game import Watcher, blocks_for, machine, trials_of, worlds_of
from coalmine.game.engines import LocalEngine
from coalmine.game.engines import ray as engine_module
from coalmine.game.engines.ray import RayEngine, check_same
from coalmine.store import BlockResult, Store

KILLS = int(os.environ.get("COALMINE_KILLS", "4"))
NAME = "cd" * 16

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # Ray leaves its log files open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    made.shutdown()


@dataclasses.dataclass(frozen=True)
class Slow:
    """A task without training: the score follows from the trial's number and the run's name; it takes some time."""

    seconds: float = 0.0
    fingerprint: str = NAME
    device: str = "cpu"
    separate: bool = False
    most_together: int = 4

    def on(self, device):
        return self

    def check(self):
        pass

    def play(self, blocks, *, notes=None):
        began = time.perf_counter()
        time.sleep(self.seconds * len(blocks))
        elapsed = (time.perf_counter() - began) / len(blocks)
        found = []
        for block in blocks:
            trials = trials_of(block)
            score = np.random.default_rng([7, block]).normal(size=trials.size)
            found.append(
                BlockResult(trial=trials, world=worlds_of(trials), score=score, elapsed=elapsed, device="cpu test")
            )
        return found

    def post_mortem(self, notes):
        return None


LADDER = [{"name": "clipbkd", "copies": 2}, {"name": "malicious-dataset"}]


def settings(trials=96, adversary=LADDER):
    return config.parse(
        {
            "data": {"name": "synthetic", "rows": 60},
            "model": {"kind": "logistic"},
            "training": {"steps": 4, "sample_rate": 0.5, "noise_multiplier": 1.0},
            "audit": {"trials": trials},
            "adversary": adversary,
        }
    )


def everything(path):
    with Store.open(path, create=False) as store:
        assert store.verify() == ()
        return {run.fingerprint: store.scores(run.fingerprint) for run in store.runs()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, trials in first.items():
        assert trials.score.tobytes() == second[name].score.tobytes()
        assert trials.trial.tolist() == list(range(len(trials)))
        for column in trials.columns:
            assert trials.columns[column].tobytes() == second[name].columns[column].tobytes()


@pytest.mark.parametrize("workers", [1, 0], ids=["one worker", "two nodes"])
def test_an_audit_gives_the_bits_of_the_local_engine(cluster, tmp_path, workers):
    there = audit(
        settings(),
        store=tmp_path / "ray.db",
        execution=Execution(engine="ray", address=cluster.address, workers=workers),
    )
    here = audit(settings(), store=tmp_path / "here.db", execution=Execution(workers=1))
    assert_same(everything(tmp_path / "ray.db"), everything(tmp_path / "here.db"))
    assert there.verdict.outcome is here.verdict.outcome


def test_one_run_gives_the_bits_of_the_local_engine(cluster, tmp_path):
    wanted = settings(adversary=[{"name": "one-run-white-box", "canaries": 20, "runs": 3}])
    for name, how in {"ray": Execution(engine="ray", address=cluster.address), "here": Execution(workers=1)}.items():
        audit(wanted, store=tmp_path / f"{name}.db", execution=how)
    assert_same(everything(tmp_path / "ray.db"), everything(tmp_path / "here.db"))


def test_a_gpu_gives_the_bits_of_the_local_engine(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    for name, how in {
        "local": Execution(device="cuda:0"),
        "ray": Execution(device="cuda", engine="ray"),
        "shared": Execution(device="cuda", engine="ray", gpus=0.5),
        "list": Execution(device="cuda:0,cuda:0"),
    }.items():
        audit(settings(4096), store=tmp_path / f"{name}.db", execution=how)
        assert_same(everything(tmp_path / f"{name}.db"), everything(tmp_path / "local.db"))


def train(dataset, seed):
    print("this goes to nobody's stdout")
    if seed % 5 == 0:
        raise ValueError("a row: 12345")
    return dataset.sum() + np.random.default_rng(seed).normal()


def score(model):
    return model


def own(path, **options):
    # This file reads the environment, for other tests.
    options = {"claim_epsilon": 5.0, "trials": 48, "store": path, "depends_on": {"environment": "not read"}, **options}
    return audit_function(options.pop("train", train), score, worlds=neighbours(np.zeros(3), 1.0), **options)


def test_a_training_of_ones_own(cluster, tmp_path, capfd):
    """Its module is not on the nodes: it travels."""
    own(tmp_path / "ray.db", execution=Execution(engine="ray", address=cluster.address))
    assert capfd.readouterr().out == ""
    own(tmp_path / "here.db", execution=Execution(engine="inline"))
    assert_same(everything(tmp_path / "ray.db"), everything(tmp_path / "here.db"))


def test_a_training_that_ends_its_process_does_not_end_the_worker(cluster, tmp_path):
    def kills(dataset, seed):
        os._exit(0)

    with pytest.raises(GameStoppedError, match="a worker process ended without a word"):
        own(tmp_path / "ray.db", train=kills, execution=Execution(engine="ray", address=cluster.address))

    def hangs(dataset, seed):
        time.sleep(600)

    with pytest.raises(GameStoppedError, match=r"training of trial \d+ took longer than 1 seconds"):
        own(tmp_path / "ray.db", train=hangs, timeout=1.0, execution=Execution(engine="ray", address=cluster.address))


def test_a_node_with_other_versions_is_refused(cluster, tmp_path, monkeypatch):
    here = machine.versions()
    with pytest.raises(GameStoppedError, match=r"node n7 is not like .*numpy .* there, 0\.1 here"):
        check_same("n7", versions={**here, "numpy": "0.1"}, code=machine.code())
    with pytest.raises(GameStoppedError, match="source of coalmine itself"):
        check_same("n7", versions=here, code="0")
    monkeypatch.setattr(engine_module.machine, "versions", lambda: {**here, "torch": "9.9"})
    with pytest.raises(GameStoppedError, match=r"torch .* there, 9\.9 here"):
        own(tmp_path / "ray.db", execution=Execution(engine="ray", address=cluster.address))


def test_a_user_s_code_that_differs_is_refused(tmp_path, monkeypatch):
    """What a node would find: the same name, another text."""
    (tmp_path / "mine_on_ray.py").write_text("def train(dataset, seed):\n    return 0.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    import mine_on_ray

    from coalmine.integrations.known import Known
    from coalmine.integrations.task import FunctionTask

    def made():
        known = Known.of([("train", mine_on_ray.train), ("score", score)], depends_on={"environment": "not read"})
        known = dataclasses.replace(known, process=-1)  # as in another process
        return FunctionTask(
            fingerprint=NAME, train=mine_on_ray.train, scores=(("score", score),), worlds=None, known=known
        )

    made().check()
    task = made()
    [(name, function, told), other] = task.known.functions
    told = dataclasses.replace(told, identity={**told.identity, "source": "another"})
    changed = dataclasses.replace(task.known, functions=((name, function, told), other))
    with pytest.raises(GameStoppedError, match=r"train = .* is not the same in a worker process on .* \(source\)"):
        dataclasses.replace(task, known=changed).check()


def test_what_is_no_cluster_is_wrong_input(tmp_path):
    with pytest.raises(InvalidInputError, match="address = 'nowhere' is not a Ray cluster"):
        own(tmp_path / "ray.db", execution=Execution(engine="ray", address="nowhere"))


def test_groups_take_their_time_and_never_more_are_under_way_than_there_is_room_for(cluster, tmp_path):
    """40 blocks of 0.05 s: one block first, then as many as the aim allows, and at most four groups at once."""
    under_way, groups, most = 0, [], 0

    class Counted(RayEngine):
        aim_seconds = 0.5

        def submit(self, task, blocks):
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            groups.append(len(blocks))
            future = super().submit(task, blocks)

            def down(_):
                nonlocal under_way
                under_way -= 1

            future.add_done_callback(down)
            return future

    with Store.open(tmp_path / "a.db") as store, Counted(cluster.address) as engine:
        store.register(NAME, {})
        game.play(Slow(0.05), blocks=blocks_for(640), store=store, engine=engine, watcher=Watcher())
        assert "2 nodes, 2 workers, " in engine.status()
        assert store.done(NAME) == set(range(40))
    assert most <= 4
    assert groups[0] == 1
    assert 5 <= max(groups) <= 10


def ray_workers(cluster):
    """Processes of this cluster, and of no other, that play blocks."""
    found = []
    for node in cluster.list_all_nodes():
        for raylet in node.all_processes.get("raylet", ()):
            try:
                below = psutil.Process(raylet.process.pid).children(recursive=True)
                found += [one for one in below if one.cmdline() and one.cmdline()[0].startswith("ray::_play")]
            except psutil.Error:
                continue
    return found


def test_dead_workers_and_nodes_cost_time_and_nothing_else(cluster, tmp_path, capsys):
    rng, killed, trials = random.Random(5), [], 0
    nodes = [cluster.add_node(num_cpus=1) for _ in range(KILLS // 4)]

    def kill():
        while len(killed) < KILLS:
            time.sleep(rng.uniform(0.2, 1.0))
            if len(killed) % 4 == 1 and nodes:
                cluster.remove_node(nodes.pop(), allow_graceful=False)
                killed.append("node")
                continue
            for one in rng.sample(found, 1) if (found := ray_workers(cluster)) else ():
                one.kill()
                killed.append("worker")

    thread = threading.Thread(target=kill)
    with Store.open(tmp_path / "a.db") as store, RayEngine(cluster.address) as engine:
        engine.aim_seconds = 1.0
        store.register(NAME, {})
        thread.start()
        while thread.is_alive():
            trials += 640
            done = store.done(NAME)
            game.play(Slow(0.1), blocks=blocks_for(trials, done=done), store=store, engine=engine, watcher=Watcher())
        found = store.scores(NAME)
    assert len(killed) == KILLS
    assert {"worker", "node"} <= set(killed)
    assert capsys.readouterr().out == ""  # Ray's words about it are not ours
    with Store.open(tmp_path / "b.db") as store, LocalEngine(1) as engine:
        store.register(NAME, {})
        game.play(Slow(), blocks=blocks_for(trials), store=store, engine=engine, watcher=Watcher())
        assert store.scores(NAME).score.tobytes() == found.score.tobytes()


def test_a_dead_driver_is_resumed(cluster, tmp_path):
    """kill -9 of the process that hands out and stores; the next one goes on, and the cluster is free for it."""
    text = (
        "import sys\nfrom test_game_ray import *\n"
        "with Store.open(sys.argv[1]) as store, RayEngine(sys.argv[2]) as engine:\n"
        "    store.register(NAME, {})\n"
        "    game.play(Slow(0.2), blocks=blocks_for(640), store=store, engine=engine, watcher=Watcher())\n"
    )
    path = tmp_path / "a.db"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    for _ in range(max(1, KILLS // 10)):
        child = subprocess.Popen([sys.executable, "-c", text, str(path), cluster.address], env=environment)
        deadline = time.monotonic() + 120
        before = 0
        while time.monotonic() < deadline and child.poll() is None:
            time.sleep(0.2)
            if path.exists():
                with Store.open(path) as store:
                    before = len(store.done(NAME))
                if before >= 3:
                    break
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert before >= 3
    with Store.open(path) as store, RayEngine(cluster.address) as engine:
        done = store.done(NAME)
        assert 3 <= len(done) < 40
        game.play(Slow(), blocks=blocks_for(640, done=done), store=store, engine=engine, watcher=Watcher())
        trials = store.scores(NAME)
    expected = np.concatenate([np.random.default_rng([7, block]).normal(size=16) for block in range(40)])
    assert trials.score.tobytes() == expected.tobytes()


def test_the_example_of_the_docs_plays_on_ray(tmp_path):
    """Its module imports coalmine, and Ray puts packages of its own on the path of a worker."""
    command = (
        "audit --train own_training:train --score own_training:score --claim-dpsgd 1,2,1 --trials 200 "
        "--control-train own_training:half_the_noise --engine ray --workers 1"
    )
    examples = Path(__file__).parents[2] / "examples"
    ended = subprocess.run(
        [sys.executable, "-m", "coalmine", *command.split(), "--store", str(tmp_path / "own.db")],
        cwd=examples, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode in (0, 3), ended.stderr
