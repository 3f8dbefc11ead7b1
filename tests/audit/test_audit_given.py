"""Data, model and adversaries from Python: what is not as it must be is refused in words."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
import torch

import coalmine
from coalmine.adversaries import Attack, ThreatModel
from coalmine.auditing import config
from coalmine.auditing.config import Execution
from coalmine.auditing.run import planned
from coalmine.errors import CoalmineError, InvalidInputError, UnsupportedError
from coalmine.roles import Distinguisher, View
from coalmine.training import ExampleCanary, FromModule, LogisticRegression, Neighbours

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 6)), np.arange(40) % 3
TRAINING = {"steps": 2, "sample_rate": 0.5, "noise_multiplier": 1.4}


def play(tmp_path, tree=None, **given):
    given = {"data": (X, Y), "model": torch.nn.Linear(6, 3), "adversaries": ["clipbkd"], **given}
    tree = {"training": TRAINING, "audit": {"trials": 16, "control": False}, **(tree or {})}
    return coalmine.audit(tree, store=tmp_path / "a.db", execution=Execution(engine="inline"), **given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((X, Y, X[:, :3], Y), r"x_test and y_test of shapes \(40, 3\) and \(40,\): expected \(rows, 6\) and \(rows,\)"),
        ((X, Y, X[:, 0], Y), r"x_test and y_test of shapes \(40,\)"),
        ((X, Y, X, Y[:3]), r"x_test and y_test of shapes \(40, 6\) and \(3,\)"),
        ((X, Y, X, Y + 0.5), r"y_test\[0\] of data = 0\.5 is not allowed: expected a class label"),
        ((X, Y, X, Y - 1), r"y_test\[0\] of data = -1 is not allowed"),
        ((X, Y + 0.5), r"y\[0\] of data = 0\.5 is not allowed"),
        ((X, np.where(np.arange(40) == 3, np.nan, Y)), r"y\[3\] of data = nan"),
        ((X, np.where(np.arange(40) == 3, 10**9, Y)), r"y\[3\] of data = 1000000000 .* number them 0, 1, \.\.\."),
        ((X, Y, np.where(np.arange(240).reshape(40, 6) == 13, np.inf, X), Y), r"x_test\[2, 1\] of data = inf"),
        ((X * 1e300, Y), r"x\[0, 0\] of data = 1\.257.*e\+299 is not allowed: expected a finite number of at most"),
        (([[1, 2], [3]], [0, 1]), "x of data cannot be read as an array"),
        ((torch.tensor(X, requires_grad=True), Y), r"x of data cannot be read as an array .*detach\(\)"),
        ((X * 1j, Y), "x of data is not allowed: .*complex128"),
    ],
)
def test_data_that_is_none_is_refused_by_the_name_of_its_array(tmp_path, given, words):
    with pytest.raises(InvalidInputError, match=words):
        play(tmp_path, data=given)


def test_test_rows_in_another_shape_of_the_same_size_are_taken(tmp_path):
    pictures = X.reshape(40, 2, 3)
    assert play(tmp_path, data=(X, Y, pictures, Y), model=LogisticRegression(6, classes=3)).accuracy is not None


@pytest.mark.parametrize(
    ("tree", "name"), [({"data": {"name": "digits"}}, "data"), ({"model": {"kind": "logistic"}}, "model")]
)
def test_what_the_config_names_too_is_refused(tmp_path, tree, name):
    with pytest.raises(InvalidInputError, match=f"{name} is given in Python and by the config's section {name} too"):
        play(tmp_path, tree)
    path = tmp_path / "audit.toml"
    section, values = next(iter(tree.items()))
    key, value = next(iter(values.items()))
    path.write_text(f'[{section}]\n{key} = "{value}"\n', encoding="utf-8")
    with pytest.raises(InvalidInputError, match="expected one of them"):
        coalmine.audit(path, data=(X, Y), model=torch.nn.Linear(6, 3), store=tmp_path / "a.db")


def test_what_a_config_does_not_name_may_come_from_python(tmp_path):
    assert play(tmp_path).subject.given == ("data", "model", "adversaries")
    preset = config.load(overrides=["training.steps=2", "audit.trials=16", "audit.control=false"])
    planned(preset, data=(X, Y), adversaries=["clipbkd"])


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        (LogisticRegression(5), InvalidInputError, r"rows of 6 numbers, and the network takes rows of shape \(5,\)"),
        (torch.nn.Linear(6, 10), InvalidInputError, r"classes are counted from the labels unless FromModule\(.*=10\)"),
        (torch.nn.Linear(6, 2), InvalidInputError, r"expected \(4, 3\)$"),
    ],
)
def test_a_model_for_other_rows_or_classes_is_refused(tmp_path, model, kind, words):
    with pytest.raises(kind, match=words):
        play(tmp_path, model=model)


def test_more_outputs_than_labels_are_taken_where_they_are_said(tmp_path):
    play(tmp_path, model=FromModule(torch.nn.Linear(6, 10), input_shape=(6,), classes=10))


class Draws(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(6, 3)

    def forward(self, rows):
        return self.body(rows) + torch.randn(3, dtype=rows.dtype)


def test_a_module_that_draws_random_numbers_is_told_so(tmp_path):
    with pytest.raises(UnsupportedError, match=r"other outputs for the same rows .* draws no random numbers"):
        play(tmp_path, model=Draws())


class Says(Distinguisher):
    """Gives what it is told to."""

    view = View.BLACK_BOX

    def __init__(self, what):
        self._what = what

    def finish(self, models):
        logits = models.logits(X[:1])[:, 0, 0]
        return {
            "none": None,
            "texts": ["a"] * len(logits),
            "digits": ["1"] * len(logits),
            "complex": logits * 1j,
            "short": logits[:-1],
            "wide": np.column_stack([logits, logits]),
            "tensor": torch.tensor(logits),
            "list": logits.tolist(),
        }[self._what]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own:
    """An adversary of a user's: what it says, and what it changes of the training."""

    says: str = "list"
    gives: str = "attack"
    changes: tuple = ()

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=View.BLACK_BOX, access="a", modification="b", dataset="c", summary="d", paper="none"
    )

    def craft(self, scene):
        if self.gives != "attack":
            return None if self.gives == "none" else (1, 2)
        return Attack(
            neighbours=Neighbours(scene.base, canary=ExampleCanary(np.ones(6), 1)),
            distinguisher=Says(self.says),
            training=dataclasses.replace(scene.training, **dict(self.changes)) if self.changes else None,
        )


@pytest.mark.parametrize("tested", [False, True])
@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("none", "Says.finish gave None: expected one number for each of the 16 trials"),
        ("texts", r"Says.finish gave \['a', 'a'"),
        ("digits", r"Says.finish gave \['1', '1'"),
        ("complex", "Says.finish gave array"),
        ("short", r"Says.finish gave scores of shape \(15,\)"),
        ("wide", "Says.finish gave 2 numbers for each trial: expected 1"),
    ],
)
def test_scores_that_are_none_are_refused(tmp_path, says, words, tested):
    with pytest.raises(InvalidInputError, match=words):
        play(tmp_path, adversaries=[Own(says=says)], data=(X, Y, X, Y) if tested else (X, Y))


@pytest.mark.parametrize("says", ["tensor", "list"])
def test_scores_in_other_clothes_are_taken(tmp_path, says):
    play(tmp_path, adversaries=[Own(says=says)])


@pytest.mark.parametrize("gives", ["none", "pair"])
def test_an_adversary_that_crafts_no_attack_is_told_so(tmp_path, gives):
    with pytest.raises(InvalidInputError, match=r"Own\.craft gave (None|\(1, 2\)): expected an Attack"):
        play(tmp_path, adversaries=[Own(gives=gives)])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"noise_multiplier": 0.2}, r"noise_multiplier = 0\.2 instead of 1\.4"),
        ({"noise_multiplier": 30.0, "clip": 2.0}, r"clip = 2\.0 instead of 1\.0 and noise_multiplier = 30\.0"),
        ({"sample_rate": 1.0}, r"sample_rate = 1\.0 instead of 0\.5"),
        ({"sample_rate": None, "batch_size": 10}, r"sample_rate = 0\.25 instead of 0\.5"),
        ({"steps": 3}, "steps = 3 instead of 2"),
        ({"sampling": "full", "sample_rate": None}, "sampling = full instead of poisson"),
    ],
)
def test_a_training_of_the_adversarys_own_keeps_the_promise_that_is_tested(tmp_path, trained, changes, words):
    """A right training would be refuted, for the adversary's noise is not the noise that is claimed."""
    with pytest.raises(CoalmineError, match=f"own training has {words}"):
        play(tmp_path, adversaries=[Own(changes=tuple(changes.items()))])
    assert trained == []


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 0.0, "dtype": "float64", "regularizer": 0.5},
        {"sample_rate": None, "batch_size": 20},  # the same rate in other words
    ],
)
def test_what_is_learnt_may_be_the_adversarys_choice(tmp_path, changes):
    play(tmp_path, adversaries=[Own(changes=tuple(changes.items()))])


@pytest.mark.parametrize("sampling", [{"sample_rate": 0.3}, {"sampling": "full"}])
@pytest.mark.parametrize("name", ["malicious-dataset", "encoding", "pathological-regularizer", "one-run-black-box"])
def test_built_in_adversaries_with_a_training_of_their_own_pass_with_their_controls(settings, name, sampling):
    training = {"steps": 4, "noise_multiplier": 1.3, **sampling}
    tree = settings(audit={"control": True}).model_dump(exclude_none=True)
    options = {"canaries": 8, "references": 0} if name == "one-run-black-box" else {}
    tree |= {"training": training, "adversary": [{"name": name, **options}]}
    record, games = planned(config.parse(tree))
    assert len(games) == 2
    assert record.members[0].control is not None
