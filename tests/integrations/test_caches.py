"""A cached function gives its result again: a training that changes it leaves something behind for the next one."""

import functools
import itertools

import numpy as np
import pytest

from coalmine import audit_function, neighbours
from coalmine.auditing import games
from coalmine.auditing.config import Execution
from coalmine.errors import GameStoppedError
from coalmine.integrations.caches import kept_results


class Model:
    def __init__(self):
        self.weights = np.zeros(1)


@functools.lru_cache
def made_once():
    return Model()


@functools.cache
def made_for(size, *, name):
    return {name: [np.zeros(size)]}


class Factory:
    @functools.lru_cache(maxsize=4)  # noqa: B019  the fault that is looked for
    def model(self):
        return Model()


FACTORY = Factory()


@functools.lru_cache(maxsize=2)
def loaded(number):
    return np.full(3, float(number))


@functools.lru_cache
def numbers():
    return itertools.count()  # nothing that can be compared


def noisy(dataset, seed):
    return dataset.sum() + np.random.default_rng(seed).normal()


def goes_on(dataset, seed):
    model = made_once()
    model.weights *= 0.9
    model.weights += noisy(dataset, seed)
    return model.weights[0]


def goes_on_by_name(dataset, seed):
    weights = made_for(1, name="weights")["weights"][0]
    weights += noisy(dataset, seed)
    return weights[0]


def goes_on_by_method(dataset, seed):
    model = FACTORY.model()
    model.weights += noisy(dataset, seed)
    return model.weights[0]


def loads_what_it_needs(dataset, seed):
    """Ever other entries, which push each other out; none changes."""
    return noisy(dataset, seed) + 0.0 * loaded(seed % 7).sum() + 0.0 * next(numbers())


def makes_its_own(dataset, seed):
    """A cached method of an object that is made anew: its model is another one each time."""
    model = Factory().model()
    model.weights += noisy(dataset, seed)
    return model.weights[0]


def score(model):
    return model


@pytest.fixture
def play(tmp_path, monkeypatch):
    # Verdicts take long, and are not asked for.
    monkeypatch.setattr(games, "conclude_and_keep", lambda store, record: None)
    for one in (made_once, made_for, Factory.model, loaded, numbers):
        one.cache_clear()

    def audit(train, **options):
        audit_function(
            train, score, worlds=neighbours(np.zeros(3), 1.0), claim_epsilon=1.0, trials=96, store=tmp_path / "t.db",
            **{"execution": Execution(engine="inline"), **options},
        )  # fmt: skip

    return audit


@pytest.mark.parametrize(
    ("train", "place"),
    [
        (goes_on, r"test_caches\.made_once cached"),
        (goes_on_by_name, r"test_caches\.made_for cached"),
        (goes_on_by_method, r"test_caches\.FACTORY class Factory\.model cached"),
    ],
)
def test_a_cached_model_that_trainings_go_on_from_stops_the_game(play, train, place):
    with pytest.raises(GameStoppedError, match=rf"leave something behind for the next one \({place}\)"):
        play(train)


def test_what_no_training_reads_may_be_named(play):
    play(goes_on, depends_on={"test_caches.made_once cached": "unused"})


@pytest.mark.parametrize("train", [loads_what_it_needs, makes_its_own])
def test_a_cache_that_only_gains_and_loses_entries_is_no_matter(play, train):
    play(train)


def test_what_a_cache_held_before_is_no_part_of_the_name(play, tmp_path):
    """A worker begins without it, so an audit would stop there."""
    loaded(3)
    play(loads_what_it_needs, execution=Execution(workers=1))


@pytest.mark.parametrize("size", [None, 0, 1, 2, 128])
@pytest.mark.parametrize("given", [[], [1], [(), (1, 2), dict], ["a", "a", "b"]])
def test_all_results_of_a_cache_are_found(size, given):
    """Python offers no way to ask for them: this fails where another Python keeps them in another order."""
    cached = functools.lru_cache(size)(lambda value: [value])
    for value in given:
        cached(value)
    found = [result for _, result in kept_results(cached)]
    distinct = list(dict.fromkeys(given))
    assert found == [[one] for one in distinct[-cached.cache_info().currsize :] if cached.cache_info().currsize]
