"""Data sets that need no files, the record, the subset."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from coalmine.data import LoadedData, load, names, standardize, status, subset, verify
from coalmine.errors import CoalmineError, DataError, InvalidInputError


def tiny(**change):
    fields = {
        "name": "tiny",
        "x_train": np.arange(12, dtype=np.float32).reshape(6, 2),
        "y_train": np.array([2, 0, 1, 0, 2, 0]),
        "x_test": np.zeros((3, 2), dtype=np.float32),
        "y_test": np.array([0, 1, 2]),
        "classes": 3,
        "image_shape": None,
        "citation": "",
        "licence": "",
    }
    return LoadedData(**{**fields, **change})


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    bunch, data = load_digits(), load("digits")
    ranks = np.array([(bunch.target[:i] == digit).sum() for i, digit in enumerate(bunch.target)])
    test = ranks % 5 == 4
    assert np.array_equal(data.x_train * 16, bunch.data[~test])
    assert np.array_equal(data.x_test * 16, bunch.data[test])
    assert np.array_equal(data.y_train, bunch.target[~test])
    assert np.array_equal(data.y_test, bunch.target[test])
    assert (data.image_shape, data.classes, data.stand_in_for) == ((1, 8, 8), 10, None)
    assert set(np.bincount(data.y_test)) <= {34, 35, 36}
    assert verify("digits").content_hash == data.content_hash


def test_arrays_are_read_only():
    data = load("digits")
    for array in (data.x_train, data.y_train, data.x_test, data.y_test):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize("name", ["synthetic", "purchase-like", "housing-like"])
def test_generated_data_follow_their_seed(name):
    hashes = {load(name, rows=200, seed=seed).content_hash for seed in (0, 1)}
    assert len(hashes) == 2
    assert load(name, rows=200, seed=1).content_hash in hashes
    assert load(name, rows=200).x_train.shape[0] == 200


def test_purchase_like_says_what_it_is_and_can_be_learned_but_not_perfectly():
    from sklearn.naive_bayes import BernoulliNB

    data = load("purchase-like", rows=10_000, test_rows=3000)
    assert data.stand_in_for == "purchase100"
    assert "stand-in" in data.note
    assert set(np.unique(data.x_train)) == {0.0, 1.0}
    assert (data.features, data.classes, len(np.unique(data.y_train))) == (600, 100, 100)
    accuracy = BernoulliNB().fit(data.x_train, data.y_train).score(data.x_test, data.y_test)
    assert 0.75 < accuracy < 0.97


def test_synthetic_takes_sizes():
    data = load("synthetic", rows=90, test_rows=7, features=5, classes=3, separation=50.0)
    assert (data.x_train.shape, data.x_test.shape, data.classes) == ((90, 5), (7, 5), 3)
    assert np.bincount(data.y_train).tolist() == [30, 30, 30]
    centres = np.stack([data.x_train[data.y_train == label].mean(axis=0) for label in range(3)])
    assert np.linalg.norm(centres, axis=1) == pytest.approx(50, rel=0.02)
    assert (np.linalg.norm(data.x_test[:, None] - centres, axis=2).argmin(axis=1) == data.y_test).all()


def test_content_hash_depends_on_content_alone():
    data = tiny()
    assert data.content_hash == tiny(name="other", note="x").content_hash
    assert data.content_hash == tiny(x_train=np.asfortranarray(data.x_train)).content_hash
    changed = data.x_train.copy()
    changed[3, 1] += 1
    labels = data.y_train.copy()
    labels[0] = 1
    others = [tiny(x_train=changed), tiny(y_train=labels), tiny(x_test=data.x_test + 1), tiny(y_test=data.y_test[::-1])]
    assert len({one.content_hash for one in [data, *others]}) == 5


def test_subset_keeps_the_first_rows_of_each_class_in_order():
    part = subset(tiny(), classes=(2, 0), per_class=2)
    assert part.x_train[:, 0].tolist() == [0, 2, 6, 8]
    assert part.y_train.tolist() == [0, 1, 1, 0]
    assert part.y_test.tolist() == [1, 0]
    assert part.classes == 2
    assert subset(tiny(), rows=4, test_rows=1).y_train.tolist() == [2, 0, 1, 0]
    assert subset(tiny(), test_per_class=1, test_rows=2).y_test.tolist() == [0, 1]
    assert subset(tiny()).content_hash == tiny().content_hash
    assert part.content_hash != tiny().content_hash


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": (0, 3)}, "classes = 3"),
        ({"classes": (0, 0)}, "different"),
        ({"classes": (0,)}, "at least two"),
        ({"classes": (0, "1")}, "classes = '1'"),
        ({"per_class": 2}, "per_class = 2 .* at most 1, the rows of class 1"),
        ({"test_per_class": 0}, "test_per_class = 0"),
        ({"rows": 7}, "rows = 7 .* at most 6"),
        ({"test_rows": 1.5}, "test_rows = 1.5"),
    ],
)
def test_subset_refuses(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        subset(tiny(), **arguments)


@pytest.mark.parametrize(
    "change",
    [
        {"y_train": np.array([3, 0, 1, 0, 2, 0])},
        {"y_train": np.array([0, 1])},
        {"x_train": np.zeros((6, 2))},
        {"x_test": np.zeros((3, 4), dtype=np.float32)},
    ],
)
def test_a_record_that_does_not_fit_is_refused(change):
    with pytest.raises(InvalidInputError):
        tiny(**change)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fashion_mnist", {}, "did you mean 'fashion-mnist'"),
        ("purchase", {}, "did you mean 'purchase"),
        ("zzzz", {}, "expected one of digits"),
        (None, {}, "expected one of digits"),
        ("digits", {"rows": 3}, "rows is not an option of data set digits: there is none"),
        ("synthetic", {"row": 3}, "did you mean 'rows'"),
        ("synthetic", {"rows": 0}, "rows = 0"),
        ("synthetic", {"classes": 1}, "classes = 1"),
        ("purchase-like", {"rows": 99}, "rows = 99"),
        ("purchase-like", {"seed": -1}, "seed = -1"),
    ],
)
def test_bad_names_and_options(name, options, message):
    with pytest.raises(InvalidInputError, match=message):
        load(name, **options)


def test_status_of_every_name():
    assert len(names()) == 10
    for name in names():
        state = status(name)
        assert state.licence
        assert state.citation
        assert state.train_rows > state.test_rows or name == "synthetic"


@pytest.mark.parametrize(("module", "package"), [("sklearn.datasets", "scikit-learn"), ("pooch", "pooch")])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("COALMINE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=rf"{package} is needed .* pip install 'coalmine\[train\]'"):
        load("digits" if package == "scikit-learn" else "mnist")
    assert issubclass(DataError, CoalmineError)


def test_importing_the_rooms_loads_none_of_the_heavy_packages():
    code = (
        "import sys, coalmine.data, coalmine.store;"
        "print([m for m in ('torch', 'sklearn', 'pooch', 'PIL', 'dp_accounting', 'scipy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_standardize_moves_numbers_and_leaves_indicators():
    x = np.array([[0.0, 2.0, 7.0], [1.0, 4.0, 7.0], [1.0, 9.0, 7.0]], dtype=np.float32)
    made = standardize(
        dataclasses.replace(
            tiny(), x_train=x, y_train=np.array([0, 1, 0]), x_test=x[:1], y_test=np.array([1]), classes=2,
            image_shape=None,
        )
    )  # fmt: skip
    np.testing.assert_array_equal(made.x_train[:, 0], x[:, 0])
    assert made.x_train[:, 1].mean() == pytest.approx(0.0, abs=1e-6)
    assert made.x_train[:, 1].std() == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_array_equal(made.x_train[:, 2], 0.0)
    np.testing.assert_array_equal(made.x_test[0], made.x_train[0])


def test_housing_like_says_what_it_is_and_can_be_learned_but_not_perfectly():
    from sklearn.linear_model import LogisticRegression

    data = load("housing-like")
    assert data.stand_in_for == "California housing"
    assert (data.features, data.classes, len(data.y_train), len(data.y_test)) == (8, 2, 16_512, 4_128)
    assert 0.7 < LogisticRegression().fit(data.x_train, data.y_train).score(data.x_test, data.y_test) < 0.9
