"""``coalmine plan`` as a user types it."""

import json

import pytest

from coalmine.cli import main


def run(capsys, *arguments):
    code = main(["plan", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_perfect_attack(capsys):
    code, out, err = run(capsys, "--epsilon", 8, "--delta", "1e-5", "--confidence", 0.99, "--json")
    assert (code, err) == (0, "")
    plans = {(each["method"], each["threshold_rule"]): each for each in json.loads(out)["plans"]}
    fixed = plans["clopper_pearson", "fixed beforehand"]
    assert fixed["trials"] == 15797
    assert fixed["ceiling"] > 8
    assert plans["clopper_pearson", "sup"]["trials"] < fixed["trials"]
    assert plans["one_run", "fixed beforehand"]["trials"] is None  # δ·m eats up what many canaries would give


def test_attack_of_a_stated_worth(capsys):
    arguments = ["--epsilon", 3, "--delta", "1e-5", "--attack-epsilon", 8, "--method", "gdp", "--json"]
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    fixed, sup = json.loads(out)["plans"]
    assert 5 < sup["trials"] < fixed["trials"] < 500


def test_what_fewer_trials_cannot_do_is_said_of_the_method(capsys):
    _, out, _ = run(capsys, "--epsilon", 4, "--delta", "1e-5")
    text = " ".join(out.split())
    assert "an attack that makes no error refutes the claim by the method of its row; with fewer none does" in text


def test_neighbours_and_mechanism_are_carried(capsys):
    replace = ["--epsilon", 4, "--delta", "1e-5", "--relation", "replace", "--sample-rate", 0.1, "--steps", 10]
    _, out, _ = run(capsys, *replace, "--json")
    plans = json.loads(out)["plans"]
    assert {each["relation"] for each in plans} == {"replace"}
    assert not any("one_run" in each["method"] for each in plans)  # canaries are added or left out
    steps = {each["method"]: each["mechanism"] and each["mechanism"]["steps"] for each in plans}
    assert steps == {"clopper_pearson": None, "gdp": None, "dpsgd": 10}
    _, out, _ = run(capsys, *replace)
    assert "Neighbours replace a row" in out
    _, out, _ = run(capsys, "--one-run", "--epsilon", 2, "--delta", "1e-5", "--canaries", 100, "--json")
    assert json.loads(out)["confidence"] == 0.95


def test_a_power_without_an_attack_is_refused(capsys):
    code, out, err = run(capsys, "--epsilon", 4, "--delta", "1e-5", "--power", 0.9)
    assert (code, out) == (2, "")
    assert "--power = 0.9 is not allowed without --attack-epsilon" in err


def test_no_number_of_trials_is_not_that_many(capsys):
    _, out, _ = run(capsys, "--epsilon", 1, "--delta", "1e-5", "--attack-epsilon", 1.0001, "--method", "gdp")
    text = " ".join(out.split())
    assert "more than 1000000" in text
    assert "None of the numbers of trials that were tried is enough" in text
    assert "With that many trials" not in text


def test_people_get_a_table(capsys):
    code, out, _ = run(capsys, "--epsilon", 2, "--delta", "1e-5", "--method", "clopper-pearson")
    assert code == 0
    assert "trials needed" in out
    assert "--attack-epsilon" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--epsilon", "4", "--delta", "1e-5", "--attack-epsilon", "3"], "--attack-epsilon"),
        (["--epsilon", "-4", "--delta", "1e-5"], "--epsilon = -4.0"),
        (["--epsilon", "4", "--delta", "7"], "--delta"),
        (["--epsilon", "4", "--delta", "1e-5", "--confidence", "1"], "--confidence"),
        (["--epsilon", "4", "--delta", "1e-5", "--method", "guess"], "--method"),
        (["--epsilon", "4", "--delta", "1e-5", "--steps", "3"], "--sample-rate"),
        (["--epsilon", "4", "--delta", "1e-5", "--power", "2"], "--power"),
        (["--delta", "1e-5"], "--epsilon"),
    ],
)
def test_bad_options_are_named(capsys, arguments, named):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert named in err
