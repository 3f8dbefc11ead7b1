"""Trainings in several threads of one process: none sees the settings of torch that another one needs."""

import threading
import time

import numpy as np
import torch

from coalmine.training import (
    Dataset,
    LogisticRegression,
    Neighbours,
    TrainingConfig,
    alone,
    clipped_sums,
    one_thread,
    train,
)


def together(*actions):
    """Run all at once, each in a thread of its own, and wait."""
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)


def test_threads_that_need_one_torch_thread_take_turns():
    before = torch.get_num_threads()
    seen = []

    def work(seconds):
        with one_thread():
            for _ in range(10):
                seen.append(torch.get_num_threads())
                time.sleep(seconds)

    torch.set_num_threads(2)
    try:
        together(lambda: work(0.002), lambda: work(0.005))
        assert seen == [1] * 20
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_training_waits_for_a_thread_that_must_be_alone():
    base = Dataset(np.eye(3), [0, 1, 1])
    config = TrainingConfig(steps=1, sampling="full", clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    order = []

    def training():
        train(
            LogisticRegression(3), neighbours=Neighbours(base), config=config, fingerprint="a", trials=[0], worlds=[0]
        )
        order.append("trained")

    with alone():
        thread = threading.Thread(target=training)
        thread.start()
        time.sleep(0.2)
        order.append("done")
    thread.join(timeout=60)
    assert order == ["done", "trained"]


def test_clipped_sums_of_two_threads_do_not_touch_each_other():
    rng = np.random.default_rng(0)
    base = Dataset(rng.normal(size=(200, 30)), rng.integers(0, 2, size=200))
    config = TrainingConfig(
        steps=1, sampling="full", clip=1.0, noise_multiplier=1.0, learning_rate=0.1, dtype="float64"
    )
    models = [torch.from_numpy(rng.normal(size=(4, 62))) for _ in range(2)]

    def sums(which):
        return clipped_sums(LogisticRegression(30), models[which], dataset=base, config=config)

    expected = [sums(0), sums(1)]
    same = []
    together(*(lambda w=w: same.extend(torch.equal(sums(w), expected[w]) for _ in range(30)) for w in (0, 1)))
    assert same == [True] * 60
