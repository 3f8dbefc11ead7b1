"""kill -9, several processes, leases: nothing is lost, nothing is doubled."""

import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from store_worker import TRIALS, block_result

from coalmine.errors import StoreError
from coalmine.store import Store

RUN = "0123456789abcdef"
WORKER = Path(__file__).with_name("store_worker.py")


def start(path, blocks):
    return subprocess.Popen([sys.executable, WORKER, path, RUN, str(blocks)], stdout=subprocess.PIPE, text=True)


def assert_unbroken(path, blocks):
    with Store.open(path) as store:
        assert store.done(RUN) == set(range(blocks))
        found = store.scores(RUN)
        whole = [block_result(index) for index in range(blocks)]
        assert found.trial.tolist() == list(range(TRIALS * blocks))
        assert found.score.tobytes() == np.concatenate([one.score for one in whole]).tobytes()
        assert found.columns["loss"].tobytes() == np.concatenate([one.columns["loss"] for one in whole]).tobytes()
        assert store.verify() == ()


def test_twenty_kills_then_the_same_scores(tmp_path):
    path, blocks, rng = tmp_path / "coalmine.db", 3000, random.Random(5)
    done = [0]
    for attempt in range(20):
        worker = start(path, blocks)
        if attempt < 3:  # while it starts: imports, the making of the file and its tables
            time.sleep(rng.uniform(0.05, 0.3))
        else:
            assert worker.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0, 0.03))
        worker.kill()
        worker.communicate()
        assert worker.returncode == -signal.SIGKILL
        with Store.open(path) as store:
            assert store.verify() == ()
            done.append(len(store.done(RUN)))
    assert done == sorted(done)
    assert 0 < done[-1] < blocks
    assert len(set(done)) > 17  # every worker but the first three stored something before it was killed
    worker = start(path, blocks)
    out, _ = worker.communicate(timeout=60)
    assert out.split() == ["ready", str(blocks - done[-1])]
    assert_unbroken(path, blocks)


def test_two_processes_share_the_work_and_double_nothing(tmp_path):
    path, blocks = tmp_path / "coalmine.db", 1000
    workers = [start(path, blocks) for _ in range(2)]
    stored = [int(worker.communicate(timeout=60)[0].split()[-1]) for worker in workers]
    assert sum(stored) == blocks
    assert_unbroken(path, blocks)


def test_a_live_process_keeps_its_claim_and_a_dead_one_loses_it(tmp_path):
    path = tmp_path / "coalmine.db"
    with Store.open(path) as mine, Store.open(path) as other:
        mine.register(RUN, {})
        assert mine.claim(RUN, range(5), limit=2) == (0, 1)
        assert other.claim(RUN, range(5), limit=2) == (2, 3)
        assert mine.claim(RUN, range(5), limit=9) == (4,)
        assert other.claim(RUN, range(5)) == ()
        assert mine.renew(RUN) == (0, 1, 4)
        with pytest.raises(StoreError, match=f"process {os.getpid()}"):
            other.remove(RUN)
        other.release(RUN)
        assert mine.claim(RUN, range(5), limit=9) == (2, 3)
        mine.put(RUN, 0, block_result(0))
        assert mine.renew(RUN) == (1, 2, 3, 4)
        mine.fail(RUN, 1, "why")
        assert other.claim(RUN, range(5), limit=9) == (1,)
    code = (
        "import sys, os; from coalmine.store import Store; s = Store.open(sys.argv[1]);"
        f"print(s.claim('{RUN}', range(5), limit=9), flush=True); os.kill(os.getpid(), 9)"
    )
    with Store.open(path) as store:
        assert store.claim(RUN, [4], seconds=1000) == (4,)
        dead = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True)
        assert dead.stdout.readline() == "(1, 2, 3)\n"
        deadline = time.monotonic() + 20
        taken = []
        while len(taken) < 3:  # a zombie (not yet waited for) counts as dead
            taken += store.claim(RUN, range(5), limit=9)
            assert time.monotonic() < deadline
        assert sorted(taken) == [1, 2, 3]
        dead.communicate()


def test_a_lease_ends_when_it_is_not_renewed(tmp_path):
    path = tmp_path / "coalmine.db"
    with Store.open(path) as mine, Store.open(path) as other:
        mine.register(RUN, {})
        assert mine.claim(RUN, [0], seconds=0.05) == (0,)
        time.sleep(0.1)
        assert other.claim(RUN, [0]) == (0,)
        assert mine.renew(RUN) == ()
        assert other.put(RUN, 0, block_result(0)) is True
        assert mine.put(RUN, 0, block_result(0)) is False
        with mine.keeping(RUN, seconds=0.4):
            assert mine.claim(RUN, [1], seconds=0.4) == (1,)
            time.sleep(1.0)
            assert other.claim(RUN, [1]) == ()
        assert other.claim(RUN, [1]) == (1,)


def test_a_lease_from_another_machine_or_a_reused_pid(tmp_path):
    path = tmp_path / "coalmine.db"
    with Store.open(path) as mine, Store.open(path) as other:
        mine.register(RUN, {})
        assert mine.claim(RUN, [0, 1], limit=2) == (0, 1)
        mine._database.execute("UPDATE lease SET host = 'elsewhere', pid = 999999999 WHERE block = 0")
        mine._database.execute("UPDATE lease SET started = '1' WHERE block = 1")
        assert other.claim(RUN, [0, 1], limit=2) == ((1,) if socket.gethostname() and sys.platform == "linux" else ())


def test_threads_share_one_store(tmp_path):
    with Store.open(tmp_path / "coalmine.db") as store:
        store.register(RUN, {})
        threads = [
            threading.Thread(target=lambda part=part: [store.put(RUN, i, block_result(i)) for i in range(part, 200, 4)])
            for part in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert_unbroken(tmp_path / "coalmine.db", 200)


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of fork beside threads
def test_a_forked_process_must_open_its_own(tmp_path):
    def use(store, pipe):
        try:
            store.done(RUN)
        except StoreError as error:
            pipe.send(str(error))
        os._exit(0)

    with Store.open(tmp_path / "coalmine.db") as store:
        store.register(RUN, {})
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=use, args=(store, there))
        child.start()
        assert "open it anew" in here.recv()
        child.join()
        assert store.claim(RUN, [0]) == (0,)
