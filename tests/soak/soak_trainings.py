"""Trainings that behave, and trainings that do all that trainings do; the right score follows from world and seed."""

import os
import signal
import threading
import time

import numpy as np


def worlds():
    return np.zeros(3), np.array([0.0, 0.0, 0.0, 1.0])


def score(model):
    return model


def right(dataset, seed):
    return float(dataset.sum() + np.random.default_rng(seed).normal())


def fails(dataset, seed):
    if seed % 7 == 0:
        raise ValueError(f"a row: {dataset}")
    return right(dataset, seed)


def prints(dataset, seed):
    print("loss", seed)
    os.write(1, b"more\n")
    return right(dataset, seed)


def threads(dataset, seed):
    threading.Thread(target=time.sleep, args=(3600,)).start()
    return right(dataset, seed)


def forks(dataset, seed):
    if seed % 4 == 0 and os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
        os._exit(0)
    return right(dataset, seed)


def returns_twice(dataset, seed):
    if seed % 8 == 0:
        os.fork()
    return right(dataset, seed)


def opens_files(dataset, seed):
    globals().setdefault("FILES", []).append(open(os.devnull))  # noqa: SIM115
    return right(dataset, seed)


def hangs(dataset, seed):
    """Hangs while the flag is up."""
    if seed % 16 == 0 and os.path.exists(os.environ["SOAK_FLAG"]):
        time.sleep(3600)
    return right(dataset, seed)


def ends(dataset, seed):
    """Ends its process while the flag is up."""
    if seed % 16 == 0 and os.path.exists(os.environ["SOAK_FLAG"]):
        os._exit(0)
    return right(dataset, seed)


def slow(dataset, seed):
    time.sleep(0.005)
    return right(dataset, seed)
