"""clipbkd: the direction, the label and the two forms of world 0, against independent computations."""

import os
import subprocess
import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from coalmine import data
from coalmine.adversaries import Scene, adversary
from coalmine.adversaries.clipbkd import class_scores, least_direction
from coalmine.errors import InvalidInputError
from coalmine.records import Relation
from coalmine.training import Dataset, TrainingConfig
from coalmine.training import LogisticRegression as Network


def scene(base, classes):
    training = TrainingConfig(steps=1, clip=1.0, noise_multiplier=1.0, learning_rate=1.0, sample_rate=0.5)
    return Scene(base=base, classes=classes, network=Network(base.shape[0], classes=max(classes, 2)), training=training)


@pytest.mark.parametrize("shape", [(50, 7), (7, 50), (30, 30), (400, 3)])
def test_least_direction_has_the_smallest_singular_value(shape):
    x = np.random.default_rng(1).normal(size=shape) * np.logspace(0, -6, shape[1])
    v = least_direction(x)
    smallest = np.linalg.svd(x, compute_uv=False)[-1] if shape[0] >= shape[1] else 0.0
    assert np.linalg.norm(v) == pytest.approx(1.0, abs=1e-12)
    assert np.linalg.norm(x @ v) == pytest.approx(smallest, rel=1e-6, abs=1e-13)
    assert v[np.argmax(np.abs(v))] > 0


def test_a_direction_that_no_row_touches():
    """Digits have pixels that are always 0: any mixture of them is least; the choice must not be left to rounding."""
    x = data.load("digits").x_train.astype(np.float64)
    v = least_direction(x)
    untouched = np.flatnonzero((x == 0).all(axis=0))
    assert untouched.size > 1
    assert np.linalg.norm(x @ v) < 1e-12
    shuffled = np.random.default_rng(2).permutation(len(x))
    np.testing.assert_allclose(least_direction(x[shuffled]), v, atol=1e-12)
    np.testing.assert_allclose(np.delete(v, untouched), 0.0, atol=1e-12)


def test_the_direction_does_not_depend_on_the_number_of_threads():
    """The rows are no product of matrices, which NumPy's library adds up otherwise by two threads on some machines."""
    code = (
        "import numpy as np; from coalmine.adversaries.clipbkd import least_direction;"
        "x = np.random.default_rng(0).normal(size=(500, 60)) * np.geomspace(0.1, 10.0, 60);"
        "print(least_direction(x).tobytes().hex())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(printed) == 1


def test_the_label_is_the_least_likely_one_of_an_independent_fit():
    loaded = data.load("digits")
    x, y = loaded.x_train.astype(np.float64), loaded.y_train
    base = Dataset(loaded.x_train, y)
    neighbours = adversary("clipbkd").craft(scene(base, 10)).neighbours
    point = neighbours.canary.x[0].astype(np.float64)
    # The same objective by another library: the constant is a feature, so that it has the same ridge.
    fit = LogisticRegression(C=1.0 / (1e-3 * len(x)), fit_intercept=False, tol=1e-8, max_iter=2000)
    fit.fit(np.c_[x, np.ones(len(x))], y)
    theirs = fit.predict_log_proba(np.append(point, 1.0)[None])[0]
    ours = class_scores(x, y, point, classes=10)
    np.testing.assert_allclose(ours, theirs, atol=5e-3)
    assert neighbours.canary.y[0] == np.argmin(theirs)


@pytest.mark.parametrize("seed", range(4))
def test_the_label_agrees_with_a_plain_fit_on_blobs(seed):
    loaded = data.load("synthetic")
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(loaded.y_train), 200, replace=False)
    x, y = loaded.x_train[rows].astype(np.float64), loaded.y_train[rows]
    point = rng.normal(size=x.shape[1]) * 3
    plain = LogisticRegression(C=1.0 / (1e-3 * len(x)), tol=1e-8).fit(x, y).predict_log_proba(point[None])[0]
    assert np.argmin(class_scores(x, y, point, classes=2)) == np.argmin(plain)


def test_the_norm_is_the_one_asked_for_or_the_mean_norm_of_the_rows():
    loaded = data.subset(data.load("digits"), rows=200)
    base = Dataset(loaded.x_train, loaded.y_train)
    for norm, expected in ((10.0, 10.0), (None, np.linalg.norm(loaded.x_train.astype(float), axis=1).mean())):
        x = adversary("clipbkd", norm=norm).craft(scene(base, 10)).neighbours.canary.x
        assert np.linalg.norm(x[0].astype(float)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("copies", [1, 2, 4, 8])
def test_clean_adds_k_equal_rows(copies):
    base = Dataset(np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 2)
    neighbours = adversary("clipbkd", copies=copies).craft(scene(base, 2)).neighbours
    assert (neighbours.relation, neighbours.copies, neighbours.base.rows) == (Relation.ADD_REMOVE, copies, 40)
    assert len(np.unique(neighbours.canary.x, axis=0)) == 1


@pytest.mark.parametrize("copies", [1, 4])
def test_relabelled_replaces_k_rows_that_differ_in_the_label_alone(copies):
    base = Dataset(np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 2)
    neighbours = adversary("clipbkd", copies=copies, world0="relabelled").craft(scene(base, 2)).neighbours
    assert (neighbours.relation, neighbours.copies) == (Relation.REPLACE, copies)
    assert neighbours.replaced == tuple(range(40, 40 + copies))
    np.testing.assert_array_equal(neighbours.base.x[40:], neighbours.canary.x)
    assert (neighbours.base.y[40:] != neighbours.canary.y).all()
    np.testing.assert_array_equal(neighbours.base.x[:40], base.x)


def test_one_class_is_not_enough():
    with pytest.raises(InvalidInputError, match="1 class"):
        adversary("clipbkd").craft(scene(Dataset(np.eye(4), np.zeros(4, dtype=int)), 1))
