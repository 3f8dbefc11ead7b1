"""What a report prints under "How to repeat it" for a training of the user's own really plays the same audit again."""

import functools
import html
import re
import shlex

import numpy as np
import pytest

import coalmine
from coalmine import cli, report
from coalmine.auditing.config import Execution
from coalmine.report import repeat, repeat_own
from coalmine.store import Store
from coalmine.store.listing import audits

CODE = """
import functools
import numpy as np
import coalmine


def train(dataset, seed, sigma=2.0):
    return np.clip(dataset, -1.0, 1.0).sum() + sigma * np.random.default_rng(seed).normal()


def score(model):
    return model


def size(model):
    return abs(model)


worlds = coalmine.neighbours(np.zeros(20), 1.0)
half_the_noise = functools.partial(train, sigma=1.0)
named_worlds = lambda: worlds
"""
CLAIM = coalmine.DpSgd(sample_rate=1.0, noise_multiplier=2.0, steps=1, sampling="full")
INLINE = Execution(engine="inline", workers=1)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's, that can be imported."""
    (tmp_path / "my_repeated.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_repeated

    yield my_repeated
    import sys

    del sys.modules["my_repeated"]


def printed(result):
    """What the page says, as a reader copies it."""
    page = report.page(result).split('id="repeat"')[1]
    return html.unescape(re.search("<pre[^>]*>(.*?)</pre>", page, re.DOTALL)[1])


def runs_of(result):
    return [(one.run, one.control) for one in result.adversaries]


def test_a_call_from_python_runs_and_gives_the_same(mine, tmp_path):
    """A control, a mechanism, worlds that are a value, and something bound to a function: all of it is in the call."""
    result = coalmine.audit_function(
        functools.partial(mine.train, sigma=2.0),
        mine.score,
        worlds=mine.worlds,
        control=mine.half_the_noise,
        claim_dpsgd=CLAIM,
        trials=64,
        seed=3,
        store=tmp_path / "first.db",
        execution=INLINE,
    )
    text = printed(result)
    assert repeat.command(result) is None
    assert "The worlds were given as a value, whose name is not kept" in report.page(result)
    again = {}
    exec(text, again)  # in another store: that of this folder
    assert runs_of(again["result"]) == runs_of(result)
    assert (again["result"].audit, str(again["result"].verdict)) == (result.audit, str(result.verdict))


def test_several_scores_have_their_names_in_the_call(mine, tmp_path):
    result = coalmine.audit_function(
        mine.train,
        {"sum": mine.score, "size": mine.size},
        worlds=mine.worlds,
        claim_epsilon=3.0,
        trials=64,
        store=tmp_path / "first.db",
        execution=INLINE,
    )
    again = {}
    exec(printed(result), again)
    assert runs_of(again["result"]) == runs_of(result)
    assert again["result"].audit == result.audit


def test_the_command_of_an_audit_from_the_command_line_plays_the_same(mine, tmp_path, capsys):
    """Also where the names of worlds and control are those of values, which a function does not know by itself."""
    line = (
        "coalmine audit --train my_repeated:train --score my_repeated:score --control-train my_repeated:half_the_noise "
        "--claim-dpsgd 1,2,1,full --trials 64 --set audit.seed=4 --timeout 100 --engine local --workers 1"
    )
    cli.main([*shlex.split(line)[1:], "--report", "first.html", "--store", "first.db"])
    with Store.open("first.db", read_only=True) as store:
        (first,) = audits(store)
    cli.main(["report", first.fingerprint, "--store", "first.db", "-o", "later.html"])
    found = [
        html.unescape(re.search('<code class="command">(.*?)</code>', (tmp_path / name).read_text())[1])
        for name in ("first.html", "later.html")
    ]
    assert found[0] == found[1]
    command = re.sub("</?span>", "", found[0])
    assert "--worlds my_repeated:worlds --control-train my_repeated:half_the_noise" in command
    capsys.readouterr()
    cli.main(shlex.split(command)[1:])
    with Store.open("coalmine.db", read_only=True) as store:
        (again,) = audits(store)
    assert (again.fingerprint, again.members) == (first.fingerprint, first.members)
    assert again.conclusion["outcome"] == first.conclusion["outcome"]


def test_what_cannot_be_told_is_said(mine, tmp_path):
    def local(dataset, seed):
        return mine.train(dataset, seed)

    result = coalmine.audit_function(
        local, mine.score, worlds=mine.worlds, claim_epsilon=3.0, trials=64, store=tmp_path / "a.db", execution=INLINE
    )
    assert "What train and worlds were cannot be told" in repeat_own.about_call(result)
    assert "\n    train,\n" in repeat_own.call(result)


def test_names_of_a_foreign_store_that_are_none_are_not_printed(mine, tmp_path):
    result = coalmine.audit_function(
        mine.train, mine.score, worlds=mine.worlds, claim_epsilon=3.0, trials=64, store=tmp_path / "a.db",
        execution=INLINE,
    )  # fmt: skip
    bad = {"train": "x:y; rm -rf ~", "score": "a:b", "worlds": "a:c"}
    import dataclasses

    assert repeat.command(dataclasses.replace(result, asked=bad)) is None
    assert "rm -rf" not in report.page(dataclasses.replace(result, asked=bad))
    numbers = {"train": "a:t", "score": "a:b", "worlds": "a:c", "batched": "4; rm", "depends_on": [{}], "messages": "x"}
    assert "rm" not in repeat.command(dataclasses.replace(result, asked=numbers))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.b:f", "f"),
        ("a:C.run", "C.run"),
        ("a:f(1, sigma=-0.5, name=None)", "functools.partial(f, 1, sigma=-0.5, name=None)"),
        ("a:f(<str>)", None),
        ("a:f(sigma=inf)", None),
        ("a:f(x=__import__('os'))", None),
        ("a:f(1)(2)", None),
        ("a:f(**{'x': 1})", None),
        ("a:<lambda>", None),
        ("<interactive>:f", None),
    ],
)
def test_a_name_is_read_only_where_it_is_plain(name, text):
    found = repeat_own._function(name)
    assert (found and found.text(apart=True)) == text


def test_functions_of_one_name_are_called_by_their_modules(tmp_path, monkeypatch):
    for name in ("one_mod", "other_mod"):
        (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import one_mod
    import other_mod

    result = coalmine.audit_function(
        one_mod.train, other_mod.score, worlds=(np.zeros(3), np.array([0.0, 0.0, 0.0, 1.0])), control=other_mod.train,
        claim_epsilon=3.0, trials=64, store=tmp_path / "a.db", execution=INLINE,
    )  # fmt: skip
    text = repeat_own.call(result)
    assert "import one_mod\nimport other_mod\n" in text
    assert "one_mod.train,\n    other_mod.score,\n    worlds=one_mod.worlds,\n    control=other_mod.train" in text
