"""Where an audit's trainings start: a file or held-out rows, by their content part of what a trial is."""

import numpy as np
import pytest

import coalmine
from coalmine.auditing.config import FileStart, HeldOutStart, load, parse
from coalmine.auditing.run import game_of, planned
from coalmine.auditing.setting import prepare
from coalmine.cli.audit import show
from coalmine.errors import InvalidInputError
from coalmine.report import summary
from coalmine.report.words import caveats
from coalmine.training import GivenWeights, Glorot, LogisticRegression, parameter_count

HELD_OUT = {"held_out": 150, "epochs": 3, "learning_rate": 0.5, "batch_size": 32}


def settings(start, **data):
    return parse(
        {
            "data": {"name": "digits", "classes": [3, 8], **data},
            "model": {"kind": "logistic"},
            "training": {"steps": 4, "sample_rate": 0.2, "noise_multiplier": 1.0, "initialization": start},
            "audit": {"trials": 32},
            "adversary": [{"name": "api"}],
        }
    )


def game(start):
    setting = prepare(settings(start))
    return game_of(setting, setting.config.adversary[0], trials=32)


def save(path, shift=0.0):
    np.save(path, np.linspace(-0.1, 0.1, parameter_count(LogisticRegression(64))) + shift)
    return {"file": str(path)}


def test_a_scale_is_what_it_was():
    """Fingerprints of trials that were stored before there were other starts."""
    assert prepare(settings(0.5)).training.initialization == Glorot(scale=0.5, seed=0)
    assert game(0.5).identity["training"]["initialization"] == {"scale": 0.5, "seed": 0}


def test_the_content_of_a_file_is_part_of_a_trial_and_its_name_is_not(tmp_path):
    one = game(save(tmp_path / "one.npy"))
    same = game(save(tmp_path / "same.npy"))
    other = game(save(tmp_path / "other.npy", shift=1e-6))
    assert one.run == same.run
    assert one.run != other.run
    assert set(one.identity["training"]["initialization"]) == {"sha256"}


def test_rows_set_aside_are_not_audited():
    whole, rest = prepare(settings(0.0)), prepare(settings(HELD_OUT))
    assert rest.base.rows == whole.base.rows - 150
    assert np.array_equal(rest.base.x, whole.base.x[150:])
    assert np.array_equal(prepare(settings(HELD_OUT, rows=40)).base.x, whole.base.x[150:190])
    assert isinstance(rest.training.initialization, GivenWeights)
    assert prepare(settings(HELD_OUT)).training.initialization is rest.training.initialization


def test_an_audit_from_a_start_plays_resumes_and_starts_there(tmp_path):
    start = save(tmp_path / "start.npy")
    first = coalmine.audit(settings(start), store=tmp_path / "trials.db")
    again = coalmine.audit(settings(start), store=tmp_path / "trials.db")
    assert first.adversaries[0].trials == again.adversaries[0].trials == 32
    assert first.config.training.initialization == FileStart(file=str(tmp_path / "start.npy"))
    record, _ = planned(settings(start))
    assert parse(record.to_dict()["config"]) == settings(start)


@pytest.mark.parametrize("held_out", [False, True], ids=["file", "held out"])
def test_a_reader_sees_where_the_trainings_started(tmp_path, capsys, held_out):
    start = HELD_OUT if held_out else save(tmp_path / "start.npy")
    made = coalmine.audit(settings(start), store=tmp_path / "trials.db")
    words = made.subject.details["start"]
    content = made.subject.details["sha256 of the start"]
    expected = "weights trained on 150 held-out rows"
    if not held_out:
        expected = f"the weights in 'start.npy' (sha256 of the numbers {content[:12]}…)"
    assert words == expected
    assert content == game(start).identity["training"]["initialization"]["sha256"]
    assert made.to_dict()["subject"]["details"]["start"] == words
    assert f", started from {words}; " in summary.subject(made)
    assert any(f"Every training started from {words}" in line for line in caveats(made))
    show(made)
    assert f", started from {words}." in " ".join(capsys.readouterr().out.split())


def test_drawn_starts_are_not_spoken_of():
    assert "start" not in planned(settings(1.0))[0].subject.details


def test_held_out_rows_of_arrays_from_python(tmp_path):
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(400, 5)), rng.integers(0, 2, 400))
    made = coalmine.audit(settings(HELD_OUT), data=data, model=LogisticRegression(5), store=tmp_path / "trials.db")
    assert made.adversaries[0].trials == 32
    assert made.config.training.initialization == HeldOutStart(**HELD_OUT)


def test_a_start_on_the_command_line():
    made = load(overrides=['training.initialization={file = "start.npz"}'])
    assert made.training.initialization == FileStart(file="start.npz")


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (-1.0, "training.initialization = -1.0 is not allowed: expected a number greater than or equal to 0"),
        ("drawn", "training.initialization = 'drawn' is not allowed: expected a number, { file = "),
        ([1.0], "training.initialization = [1.0] is not allowed: expected a number, { file = "),
        (True, "training.initialization = True is not allowed: expected a number, { file = "),
        ({"fil": "ok.npy"}, "training.initialization = {'fil': 'ok.npy'} is not allowed: expected a number, { file = "),
        ({}, "training.initialization = {} is not allowed: expected a number, { file = "),
        ({"file": 3}, "training.initialization.file = 3 is not allowed: expected a valid string"),
        ({"file": "a", "seed": 2}, "training.initialization.seed is not a known key: expected one of file"),
        ({"held_out": 9}, "training.initialization.epochs is missing"),
        ({**HELD_OUT, "held_out": 0}, "training.initialization.held_out = 0 is not allowed"),
        ({**HELD_OUT, "learning_rate": -1.0}, "training.initialization.learning_rate = -1.0 is not allowed"),
        ({**HELD_OUT, "held_out": 10**6}, "training.initialization.held_out = 1000000 is not allowed: expected fewer"),
        ({**HELD_OUT, "batch_size": 151}, "training.initialization.batch_size = 151 is not allowed"),
        ({"file": "nowhere.npz"}, "training.initialization: file = 'nowhere.npz' is not allowed: it cannot be read"),
    ],
)
def test_a_start_that_cannot_be_is_refused(start, words):
    with pytest.raises(InvalidInputError) as caught:
        prepare(settings(start))
    assert words in str(caught.value)


def test_pooling_belongs_to_the_network_that_has_it():
    with pytest.raises(InvalidInputError, match="pooling has no meaning with kind = 'mlp'"):
        parse({"model": {"kind": "mlp", "pooling": "avg"}})
