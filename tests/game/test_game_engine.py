"""Blocks, and the engine that plays them: claims, failures, workers, another process on the same store."""

import concurrent.futures
import dataclasses
import importlib
import os
import platform
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from coalmine import game
from coalmine.errors import BlocksFailedError, GameStoppedError, InvalidInputError, WorkersDiedError
from coalmine.game import (
    BLOCK_SIZE,
    Watcher,
    blocks_for,
    machine,
    trials_of,
    worlds_of,
)
from coalmine.game.built_in import BuiltInTask
from coalmine.game.engines import DevicesEngine, InlineEngine, LocalEngine, local
from coalmine.game.task import play_in_stacks
from coalmine.roles import Distinguisher
from coalmine.store import BlockResult, Store
from coalmine.training import Dataset, ExampleCanary, LogisticRegression, Neighbours, TrainingConfig

NAME = "ab" * 16
PLAYING = importlib.import_module("coalmine.game.play")  # the room's function of the same name hides the module


def result_of(block, *, scale=1.0):
    trials = trials_of(block)
    return BlockResult(trial=trials, world=worlds_of(trials), score=scale * trials, elapsed=0.01, device="cpu test")


@dataclasses.dataclass(frozen=True)
class Counting:
    """A task without training: the score is the trial's number; some blocks raise."""

    errors: tuple = ()
    fingerprint: str = NAME
    device: str = "cpu"
    separate: bool = False
    most_together: int | None = None

    def on(self, device):
        return self

    def check(self):
        pass

    def play(self, blocks, *, notes=None):
        for block in blocks:
            for which, error in self.errors:
                if block == which:
                    raise error
        return [result_of(block) for block in blocks]

    def post_mortem(self, notes):
        return None


class Dying(Counting):
    """A task whose process ends without a word."""

    def play(self, blocks, *, notes=None):
        os._exit(3)


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "game.db") as opened:
        opened.register(NAME, {})
        yield opened


class Seen(Watcher):
    """Keeps what it is told."""

    def __init__(self):
        self.blocks = []

    def block(self, result):
        self.blocks.append(result)


def play(task, store, *, trials=64, workers=1):
    seen = Seen()
    blocks = blocks_for(trials, done=store.done(NAME))
    with LocalEngine(workers) as engine:
        game.play(task, blocks=blocks, store=store, engine=engine, watcher=seen)
    return seen.blocks


def test_blocks_and_worlds_follow_from_the_number_alone():
    assert blocks_for(2) == (0,)
    assert blocks_for(4 * BLOCK_SIZE + 1, done={0, 2}) == (1, 3, 4)
    assert trials_of(3).tolist() == list(range(3 * BLOCK_SIZE, 4 * BLOCK_SIZE))
    assert worlds_of(trials_of(0)).sum() * 2 == BLOCK_SIZE
    with pytest.raises(InvalidInputError, match="trials = 1"):
        blocks_for(1)
    with pytest.raises(InvalidInputError, match="block = -1"):
        trials_of(-1)


def test_every_block_is_stored_once_and_told_once(store):
    seen = play(Counting(), store, trials=200)
    assert store.done(NAME) == set(range(13))
    assert sorted(int(one.trial[0]) for one in seen) == [16 * block for block in range(13)]
    np.testing.assert_array_equal(store.scores(NAME).score, np.arange(208.0))
    assert play(Counting(), store, trials=200) == []


def test_a_block_that_fails_is_reported_and_tried_again(store):
    broken = Counting(errors=((2, RuntimeError("out of luck")),))
    with pytest.raises(BlocksFailedError, match=r"1 of 4 blocks.*block 2: RuntimeError: out of luck"):
        play(broken, store)
    assert store.done(NAME) == {0, 1, 3}
    assert [one.reason for one in store.failures(NAME)] == ["RuntimeError: out of luck"]
    play(Counting(), store)
    assert store.done(NAME) == {0, 1, 2, 3}
    assert store.failures(NAME) == ()


def test_wrong_input_stops_at_once_in_its_own_words(store):
    wrong = Counting(errors=((0, InvalidInputError("device = 'cuda' is not allowed: expected 'cpu'")),))
    with pytest.raises(InvalidInputError, match=r"^device = 'cuda' is not allowed"):
        play(wrong, store)
    assert store.done(NAME) == set()
    with Store.open(store.path) as another:  # the claim is given up
        assert another.claim(NAME, [0]) == (0,)


def test_a_task_may_stop_the_game_and_what_is_stored_stays(store):
    with pytest.raises(GameStoppedError, match="enough"):
        play(Counting(errors=((2, GameStoppedError("enough")),)), store)
    assert 0 in store.done(NAME)
    assert 2 not in store.done(NAME)


def test_a_bug_is_not_hidden(store):
    with pytest.raises(AssertionError):
        play(Counting(errors=((0, AssertionError("a bug")),)), store)


def test_a_task_travels_by_value(store):
    """Lambdas, and objects of classes made inside a function: a worker could import none of these."""

    @dataclasses.dataclass(frozen=True)
    class Local(Counting):
        score: object = None

        def play(self, blocks, *, notes=None):
            return [result_of(block, scale=self.score(2.0)) for block in blocks]

    play(Local(score=lambda value: value + 1.0), store, workers=2)
    np.testing.assert_array_equal(store.scores(NAME).score, 3.0 * np.arange(64.0))


def test_an_engine_is_whatever_has_a_width_and_submits(store):
    """The protocol is all that is asked: this one plays at once and says how many groups may be under way."""
    asked = []

    class Here:
        aim_seconds, stacks = 2.0, 1

        def status(self):
            return "here"

        def width(self, task):
            return 3

        def submit(self, task, blocks):
            asked.append(tuple(blocks))
            future = concurrent.futures.Future()
            future.set_result(task.play(blocks))
            return future

    game.play(Counting(), blocks=blocks_for(200), store=store, engine=Here(), watcher=Watcher())
    assert sorted(block for group in asked for block in group) == list(range(13))
    assert store.done(NAME) == set(range(13))


def test_a_worker_that_dies_is_reported(store):
    with pytest.raises(WorkersDiedError, match=r"ended without a word.*running the same audit again"):
        play(Dying(), store, workers=2)
    assert store.done(NAME) == set()


@dataclasses.dataclass(frozen=True)
class Telling(Counting):
    """A task that says which process played it; its scores are its own."""

    scale: float = 1.0

    def play(self, blocks, *, notes=None):
        time.sleep(0.05)
        return [
            dataclasses.replace(result_of(block, scale=self.scale), device=f"cpu {os.getpid()}") for block in blocks
        ]


def test_tasks_in_a_row_share_their_workers_and_keep_apart(store):
    """Three tasks on two processes: the same two for all, and each gets its own scores."""
    names, processes = ["0a" * 16, "0b" * 16, "0c" * 16], set()
    with LocalEngine(2) as engine:
        for scale, name in enumerate(names, start=1):
            store.register(name, {})
            task = Telling(fingerprint=name, scale=float(scale))
            game.play(task, blocks=blocks_for(400), store=store, engine=engine, watcher=Watcher())
            trials = store.scores(name)
            np.testing.assert_array_equal(trials.score, scale * np.arange(400.0))
            processes.update(trials.devices)
    assert f"cpu {os.getpid()}" not in processes
    assert 1 <= len(processes) <= 2
    with pytest.raises(BlocksFailedError, match="shutdown"):  # nobody is left to play
        game.play(task, blocks=[100], store=store, engine=engine, watcher=Watcher())


def test_several_devices_have_a_process_each(store):
    """Each plays the task that was made for its device, and the last groups are small enough for all."""

    @dataclasses.dataclass(frozen=True)
    class Placed(Telling):
        where: str = ""

        def on(self, device):
            return dataclasses.replace(self, where=device)

        def play(self, blocks, *, notes=None):
            found = super().play(blocks)
            return [dataclasses.replace(one, device=f"{self.where} {os.getpid()}") for one in found]

    with DevicesEngine(("cpu:0", "cpu:1")) as engine:
        assert engine.width(Placed()) == 2
        game.play(Placed(), blocks=blocks_for(400), store=store, engine=engine, watcher=Watcher())
        assert engine.status() == "0 of 2 devices at work"
    trials = store.scores(NAME)
    np.testing.assert_array_equal(trials.score, np.arange(400.0))
    assert [one.split()[0] for one in trials.devices] == ["cpu:0", "cpu:1"]
    assert len({one.split()[1] for one in trials.devices} - {str(os.getpid())}) == 2


def test_a_stack_is_never_larger_than_a_task_allows():
    asked = []

    @dataclasses.dataclass(frozen=True)
    class Small(Counting):
        most_together: int = 3

        def play(self, blocks, *, notes=None):
            asked.append(len(blocks))
            return super().play(blocks)

    assert len(play_in_stacks(Small(), range(8))) == 8
    assert asked == [3, 3, 2]


def test_blocks_of_another_process_are_waited_for_and_told(store, monkeypatch):
    """Another one holds block 1 and finishes it a little later; block 2 it drops, so it is played here."""
    monkeypatch.setattr(PLAYING, "_POLL_SECONDS", 0.01)
    with Store.open(store.path) as other:
        assert other.claim(NAME, [1, 2], limit=2) == (1, 2)
        polls = []

        def sleep(seconds):
            polls.append(seconds)
            if len(polls) == 2:
                other.put(NAME, 1, result_of(1))
            if len(polls) == 4:
                other.release(NAME)

        monkeypatch.setattr(PLAYING, "time", type("Clock", (), {"sleep": staticmethod(sleep), "time": time.time}))
        seen = play(Counting(), store)
    assert len(polls) >= 4
    assert store.done(NAME) == {0, 1, 2, 3}
    assert sorted(int(one.trial[0]) for one in seen) == [0, 16, 32, 48]
    told = next(one for one in seen if one.trial[0] == 16)
    np.testing.assert_array_equal(told.score, np.arange(16.0, 32.0))


def test_groups_grow_to_a_couple_of_seconds():
    group = PLAYING._Group(Counting(), InlineEngine())
    assert group.size == 1
    group.learn([result_of(0)])
    assert group.size == 64  # 0.01 s a block: capped
    group.learn([BlockResult(trial=[0], world=[0], score=[0.0], elapsed=0.5, device="cpu")])
    assert group.size == 4
    assert [group.of(left, width=2) for left in (100, 6, 1)] == [4, 3, 1]
    slow = [BlockResult(trial=[0], world=[0], score=[0.0], elapsed=60.0, device="cpu")]
    group.learn(slow)
    assert group.size == 1
    # A GPU that trains 20 blocks together is given 20, however long they take, and stores them when they are done.
    group = PLAYING._Group(Counting(device="cuda", most_together=20), InlineEngine())
    assert group.size == 20
    group.learn(slow)
    assert group.size == 20


def built_in(**changes):
    rng = np.random.default_rng(0)
    base = Dataset(rng.normal(size=(30, 4)), rng.integers(0, 2, size=30))
    settings = {
        "fingerprint": NAME,
        "network": LogisticRegression(4, classes=2),
        "neighbours": Neighbours(base, canary=ExampleCanary([1.0, 1.0, 1.0, 1.0], 1)),
        "training": TrainingConfig(steps=3, clip=1.0, noise_multiplier=1.0, learning_rate=0.5, sample_rate=0.3),
        "distinguisher": SumOfLogits(),
    }
    return BuiltInTask(**{**settings, **changes})


class SumOfLogits(Distinguisher):
    view = "black_box"

    def observe(self, iterate):
        raise AssertionError("never shown under a black box")

    def finish(self, models):
        return models.logits(np.ones((1, 4)))[:, 0, 1]


def test_a_gpu_is_given_one_stack_at_a_time(monkeypatch):
    """So that what is done is stored, and not only when all of it is."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked = {}

    def stack_for(network, **options):
        asked.update(options)
        return 48

    monkeypatch.setattr(importlib.import_module("coalmine.game.built_in"), "stack_for", stack_for)
    task = built_in(device="cuda:0")
    assert task.most_together == 3  # blocks of 16
    assert asked["device"] == "cuda:0"
    assert asked["observer"] is task.distinguisher
    assert built_in().most_together is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the GPU is another machine's
    assert task.most_together is None


def test_a_block_does_not_depend_on_its_company():
    task = built_in()
    together = task.play([0, 1, 2])
    for block, one in enumerate(together):
        alone = task.play([block])[0]
        np.testing.assert_array_equal(alone.score, one.score)
        np.testing.assert_array_equal(alone.trial, one.trial)
        np.testing.assert_array_equal(alone.world, one.world)


def test_a_block_is_labelled_with_what_shapes_its_bits(monkeypatch):
    """Another instruction set gives other bits, so its blocks are not taken for the same kind of device."""
    here = built_in().play([0])[0].device
    assert here.endswith(f", {torch.backends.cpu.get_cpu_capability()}")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert built_in().play([0])[0].device != here or here.endswith("DEFAULT")
    assert machine.instruction_set().split()[0] == platform.machine()


def test_accuracy_is_kept_beside_the_score_and_does_not_change_it():
    test = Dataset(np.random.default_rng(1).normal(size=(50, 4)), np.zeros(50, dtype=int))
    plain, examined = built_in().play([0])[0], built_in(test=test).play([0])[0]
    np.testing.assert_array_equal(plain.score, examined.score)
    assert plain.columns == {}
    accuracy = examined.columns["accuracy"]
    np.testing.assert_allclose(accuracy * 50, np.round(accuracy * 50), atol=1e-9)
    assert len(set(accuracy)) > 1
    # Labels the other way round: what was right is wrong.
    opposite = built_in(test=Dataset(test.x, 1 - test.y)).play([0])[0].columns["accuracy"]
    np.testing.assert_allclose(accuracy + opposite, 1.0)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals of threads")
def test_sigterm_during_the_start_of_workers_leaves_no_folder(monkeypatch, tmp_path):
    def end(*_):
        raise KeyboardInterrupt

    real = local.loky.ProcessPoolExecutor

    def asked_to_end(*given, **named):
        signal.raise_signal(signal.SIGTERM)
        return real(*given, **named)

    monkeypatch.setattr(local.loky, "ProcessPoolExecutor", asked_to_end)
    monkeypatch.setattr(local.tempfile, "tempdir", str(tmp_path))
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(KeyboardInterrupt), LocalEngine(2, apart=True) as engine:
            engine.submit(Counting(), [0])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not list(tmp_path.glob("coalmine-*"))


def test_the_folder_of_a_killed_process_is_put_away_by_the_next_one(monkeypatch, tmp_path):
    monkeypatch.setattr(local.tempfile, "tempdir", str(tmp_path))
    command = (
        "import os, signal, tempfile; from coalmine.game.engines import local; "
        f"tempfile.tempdir = {str(tmp_path)!r}; kept = local._folder(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", command], check=False)
    [stale] = tmp_path.iterdir()
    (tmp_path / "coalmine-report").mkdir()  # not one of these
    mine, lock = local._folder()
    other, another = local._folder()
    assert not stale.exists()
    assert {mine, other, tmp_path / "coalmine-report"} == set(tmp_path.iterdir())
    lock.close()
    another.close()


def test_an_interrupt_waits_until_processes_are_started_whichever_thread_gets_it():
    """A thread of another library lets Ctrl-C through, and Python hands it to the main thread, masked or not."""
    done = threading.Event()
    other = threading.Thread(target=done.wait, daemon=True)
    other.start()
    started = False
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), local._interrupts_later():  # noqa: PT012 - the block is what is tested
            signal.pthread_kill(other.ident, signal.SIGINT)
            for _ in range(100):
                time.sleep(0.001)
            started = True
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
        done.set()
    assert started


def test_own_modules_are_each_named_once_and_installed_ones_are_not(monkeypatch, tmp_path):
    """A package under two names (as requests shows urllib3) stopped a run on Ray; so did ``pip install --target``."""
    for folder in ("own", "target", "target/aninstalledone-1.0.dist-info"):
        (tmp_path / folder).mkdir()
    (tmp_path / "own" / "amoduleofmine.py").touch()
    (tmp_path / "target" / "aninstalledone.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "own")
    monkeypatch.syspath_prepend(tmp_path / "target")
    mine, installed = importlib.import_module("amoduleofmine"), importlib.import_module("aninstalledone")
    monkeypatch.setitem(sys.modules, "another.name", mine)
    try:
        found = machine.own_modules()
    finally:
        del sys.modules["amoduleofmine"], sys.modules["aninstalledone"]
    assert found.count(mine) == 1
    assert installed not in found
