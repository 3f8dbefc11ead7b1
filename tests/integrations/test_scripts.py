"""A script that holds its own training: classes, objects and cached functions of ``__main__`` reach the workers."""

import functools
import os
import subprocess
import sys

import pytest

from coalmine.errors import GameStoppedError
from coalmine.integrations.travel import opened, sealed

BEGIN = """
import dataclasses, enum, functools
import numpy as np
import coalmine
from coalmine.game import Watcher

def noisy(dataset, seed, sigma=1.0):
    return np.clip(dataset, -1, 1).sum() + sigma * np.random.default_rng(seed).normal()
def score(model):
    return model
class Watching(Watcher):
    def begin(self, label, *, trials, copies, done):
        started()
def started(): pass
"""
END = """
if __name__ == "__main__":
    result = coalmine.audit_function(
        train, score, worlds=coalmine.neighbours(np.zeros(3), 1.0), claim_epsilon=1.0, trials=16, workers=1,
        store="trials.db", watcher=Watching(),
    )
    print("played", sum(map(len, (result.strongest.scores.world0, result.strongest.scores.world1))))
"""
CLASSES = """
class Noise:
    clip = 1.0
    def __init__(self, sigma): self.sigma = sigma
    def draw(self, seed): return self.sigma * np.random.default_rng(seed).normal()
def train(dataset, seed):
    return np.clip(dataset, -1, Noise.clip).sum() + Noise(1.0).draw(seed)
"""
OBJECT = """
class Trainer:
    def __init__(self, sigma): self.sigma = sigma
    def fit(self, dataset, seed): return noisy(dataset, seed, self.sigma)
    @classmethod
    def plain(cls, dataset, seed): return noisy(dataset, seed)
    def __call__(self, dataset, seed): return self.fit(dataset, seed)
"""
SCRIPTS = {
    "a helper class": CLASSES,
    "a dataclass": "@dataclasses.dataclass\nclass Settings:\n    sigma: float = 1.0\n"
    "def train(dataset, seed, settings=Settings()): return noisy(dataset, seed, settings.sigma)\n",
    "an enum": "class Kind(enum.Enum):\n    NOISY = 1.0\n"
    "def train(dataset, seed): return noisy(dataset, seed, Kind.NOISY.value)\n",
    "an object that is called": OBJECT + "train = Trainer(1.0)\n",
    "a bound method": OBJECT + "train = Trainer(1.0).fit\n",
    "a class method": OBJECT + "train = Trainer.plain\n",
    "a score object": "train = noisy\nclass Score:\n    def __call__(self, model): return model\nscore = Score()\n",
    "a cached function": "@functools.lru_cache\ndef level(): return 1.0\n"
    "def train(dataset, seed): return noisy(dataset, seed, level())\n",
    "a cached function that calls itself": "@functools.cache\n"
    "def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\n"
    "def train(dataset, seed): return noisy(dataset, seed, fib(2))\n",
    "a cached method and property": "class Held:\n"
    "    @functools.lru_cache(maxsize=2)\n    def level(self): return 1.0\n"
    "    @functools.cached_property\n    def more(self): return 0.0\n"
    "def train(dataset, seed): return noisy(dataset, seed, Held().level() + Held().more)\n",
}


def ran(folder, text):
    (folder / "script.py").write_text(BEGIN + text + END)
    return subprocess.run(
        [sys.executable, "script.py"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, timeout=300, check=False, cwd=folder,
    )  # fmt: skip


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_with_its_own_classes_is_the_same_in_a_worker(tmp_path, kind):
    done = ran(tmp_path, SCRIPTS[kind])
    assert "played 16" in done.stdout, done.stderr


def test_a_script_that_is_edited_before_its_workers_start_stops_the_game(tmp_path):
    """What the class does is in the file too, which a worker reads for itself."""
    edit = "def started():\n    with open('script.py', 'a') as file: file.write('# edited\\nMORE = 1\\n')\n"
    done = ran(tmp_path, CLASSES + edit)
    assert "is not the same in a worker process" in done.stderr
    assert "(source)" in done.stderr


def made():
    """A cached function that no module has by its name."""

    @functools.lru_cache(maxsize=3, typed=True)
    def squared(number):
        """Its words."""
        return number * number

    return squared


def test_a_cached_function_travels_with_its_size_and_without_its_cache():
    before = made()
    assert before(3) == 9
    after = opened(sealed(before))
    assert (after.cache_info().currsize, after.cache_parameters()) == (0, {"maxsize": 3, "typed": True})
    assert (after(4), after.__doc__, after.__wrapped__(5)) == (16, "Its words.", 25)


def test_what_cannot_be_made_again_says_what_to_do():
    class Breaks:
        def __reduce__(self):
            return getattr, (os, "nothing_of_the_kind")

    with pytest.raises(
        GameStoppedError, match=r"made again in a worker process \(AttributeError: .*put them into a mod"
    ):
        opened(sealed(Breaks()))
