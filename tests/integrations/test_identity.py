"""An edited function, another argument or other data are never taken for the old ones."""

import functools
import importlib
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from coalmine.errors import InvalidInputError
from coalmine.integrations.identity import NoContentError, content_hash, function_identity


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write modules and import them anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(texts)))

    return write


def one(function):
    return content_hash(function_identity("train", function))


def test_an_edited_function_is_another_function(module):
    before = one(module(mine="def train(dataset, seed):\n    return 1\n").train)
    again = one(module(mine="def train(dataset, seed):\n    return 1\n").train)
    after = one(module(mine="def train(dataset, seed):\n    return 2\n").train)
    assert before == again
    assert before != after


@pytest.mark.parametrize("how", ["import helper", "from helper import SIGMA", "from helper import *"])
def test_an_edited_module_that_is_imported_counts_too(module, how):
    text = f"{how}\ndef train(dataset, seed):\n    return 1\n"
    before = one(module(mine=text, helper="SIGMA = 1\n").train)
    after = one(module(mine=text, helper="SIGMA = 2\n").train)
    assert before != after


def test_an_import_inside_the_function_counts_too(module):
    text = "def train(dataset, seed):\n    from helper import SIGMA\n    return SIGMA\n"
    before = one(module(mine=text, helper="SIGMA = 1\n").train)
    after = one(module(mine=text, helper="SIGMA = 2\n").train)
    assert before != after


def test_installed_packages_count_with_their_version(module):
    found = function_identity(
        "train", module(mine="import numpy as np\ndef train(d, s):\n    return np.sum(d)\n").train
    )
    assert found["packages"] == {"numpy": np.__version__}
    assert found["function"] == "mine:train"


def test_values_that_a_function_reads_count_as_they_are(module):
    mine = module(mine="SIGMA = 1.0\ndef noise():\n    return SIGMA\ndef train(d, s):\n    return noise()\n")
    before = one(mine.train)
    mine.SIGMA = 0.5
    assert one(mine.train) != before
    mine.SIGMA = 1.0
    assert one(mine.train) == before


def test_values_of_an_imported_module_count_as_they_are(module):
    mine = module(mine="import helper\ndef train(d, s):\n    return helper.SIGMA\n", helper="SIGMA = 1.0\n")
    before = one(mine.train)
    mine.helper.SIGMA = 0.5
    assert one(mine.train) != before


def test_bound_arguments_defaults_closures_and_decorators_count(module):
    mine = module(
        mine="import functools\n"
        "def make(sigma):\n    def train(d, s):\n        return sigma\n    return train\n"
        "def train(d, s, sigma=1.0):\n    return sigma\n"
        "def scaled(by):\n    def wrap(f):\n        @functools.wraps(f)\n        def inner(d, s):\n"
        "            return by * f(d, s)\n        return inner\n    return wrap\n"
    )
    assert one(mine.make(1.0)) == one(mine.make(1.0)) != one(mine.make(2.0))
    assert one(functools.partial(mine.train, sigma=1.0)) != one(functools.partial(mine.train, sigma=2.0))
    assert one(functools.partial(mine.train, sigma=1.0)) != one(mine.train)
    assert one(mine.scaled(1.0)(mine.train)) != one(mine.scaled(2.0)(mine.train))
    before = one(mine.train)
    mine.train.__defaults__ = (2.0,)
    assert one(mine.train) != before


def test_a_decorated_function_is_taken(module):
    mine = module(mine="import torch\n@torch.no_grad()\ndef score(model):\n    return 1.0\n")
    assert function_identity("score", mine.score)["function"] == "mine:score"


def test_what_cannot_be_told_apart_is_refused(module, tmp_path):
    mine = module(mine="def make(thing):\n    def train(d, s):\n        return thing\n    return train\n")
    with pytest.raises(InvalidInputError, match="cannot be told from others"):
        one(mine.make(object()))
    exec("def train(d, s): return 1", space := {"__name__": "nowhere"})
    with pytest.raises(InvalidInputError, match="has no source text"):
        one(space["train"])
    with pytest.raises(InvalidInputError, match="expected a function"):
        one(len)


def test_a_file_edited_after_its_import_is_refused(module, tmp_path):
    mine = module(mine="def train(d, s):\n    return 1\n")
    (tmp_path / "mine.py").write_text("def train(d, s):\n    return 2\n")
    with pytest.raises(InvalidInputError, match=r"mine.py was edited after it was imported"):
        one(mine.train)


def test_content_hashes_tell_values_apart():
    tensors = torch.zeros(3, 2), torch.zeros(3)
    values = [
        None, 0, 0.0, False, "0", b"0", [0], (0,), {"a": 0}, {0}, 0j,
        np.zeros(3), np.zeros((3, 1)), np.zeros(3, np.float32), torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16),
        [np.zeros(3), np.zeros(3)], np.float64(0.0), TensorDataset(*tensors), Subset(TensorDataset(*tensors), [0]),
    ]  # fmt: skip
    hashes = [content_hash(value) for value in values]
    assert len(set(hashes)) == len(values)
    assert content_hash(TensorDataset(*tensors)) == content_hash(TensorDataset(*tensors))
    with pytest.raises(NoContentError, match="object of type object"):
        content_hash(object())
    with pytest.raises(NoContentError, match="Python objects"):
        content_hash(np.array([object()]))
