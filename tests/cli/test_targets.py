"""What a command writes is never something that it reads, nor a file of another kind: nobody's work is overwritten."""

import os
import zipfile

import pytest
from cli_runner import assert_refused, run

import coalmine
from coalmine import report
from coalmine.auditing.config import Execution
from coalmine.errors import InvalidInputError
from coalmine.game.engines import LocalEngine
from coalmine.report.targets import check_target, write_bytes

CONFIG = """
[data]
name = "synthetic"
rows = 40
[model]
kind = "logistic"
[training]
steps = 2
sample_rate = 0.5
noise_multiplier = 1.0
[audit]
trials = 32
[[adversary]]
name = "malicious-dataset"
"""
CODE = """
import numpy as np
import coalmine
def train(dataset, seed):
    return dataset.sum() + np.random.default_rng(seed).normal()
def score(model):
    return model
def make_step():
    raise RuntimeError("never called")
worlds = coalmine.neighbours(np.zeros(3), 1.0)
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A store with an audit that has a name, and its bundle."""
    folder = tmp_path_factory.mktemp("targets")
    (folder / "a.toml").write_text(CONFIG)
    inline = Execution(engine="inline", workers=1)
    coalmine.audit(folder / "a.toml", store=folder / "ok.db", name="fine", execution=inline)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "page", lambda result: "<!DOCTYPE html>")
        coalmine.bundle("fine", store=folder / "ok.db", output=folder / "o.zip")
    (folder / "my_targets.py").write_text(CODE)
    (folder / "scores.csv").write_text("id,score\n1,0.5\n")
    return folder


@pytest.fixture
def here(played, monkeypatch):
    """In that folder, with links, and without any training."""
    monkeypatch.chdir(played)
    monkeypatch.syspath_prepend(str(played))
    for link in ("soft.html", "hard.html", "code.html"):
        (played / link).unlink(missing_ok=True)
    os.symlink("ok.db", "soft.html")
    os.link("ok.db", "hard.html")
    os.symlink("my_targets.py", "code.html")

    def refuse(*_, **__):
        raise AssertionError("refused too late: something was trained")

    monkeypatch.setattr(LocalEngine, "submit", refuse)
    monkeypatch.setattr("coalmine.auditing.setting.prepare", refuse)
    monkeypatch.setattr("coalmine.auditing.choosing.sweep", refuse)
    return played


OWN = "audit --train my_targets:train --score my_targets:score --claim-epsilon 1 --trials 64"
LINES = {
    "a report over the store": "report fine --store ok.db -o ok.db",
    "a report over a link to the store": "report fine --store ok.db -o soft.html",
    "a report over a hard link to it": "report fine --store ok.db -o hard.html",
    "a report where the log of the store will be": "report fine --store ok.db -o ok.db-wal",
    "a report over another bundle": "report fine --store ok.db -o o.zip",
    "a bundle over the store": "bundle fine --store ok.db -o ok.db",
    "a bundle over a config": "bundle fine --store ok.db -o a.toml",
    "a report over the bundle": "verify o.zip --report o.zip",
    "a report over the store of an audit": "audit a.toml --store ok.db --report ok.db",
    "a report over a store that will be": "audit a.toml --store new.html --report new.html",
    "a report over the config": "audit a.toml --store ok.db --report a.toml",
    "a report over the code": f"{OWN} --store ok.db --report my_targets.py",
    "a report over a link to the code": f"{OWN} --store ok.db --report code.html",
    "a report over what the training reads": f"{OWN} --store ok.db --depends-on data=scores.csv --report scores.csv",
    "a report over the code of a step": "probe my_targets:make_step --report my_targets.py",
    "a section over the scores": "one-run judge --run . --scores scores.csv --section scores.csv",
    "a section over a store that will be": "one-run play --store x.json --section x.json",
    "two outputs at one place": "one-run play --section x.html --report x.html",
    "a figure over a store that will be": "study run jagielski-2020/table-2 --store x.svg --figure x.svg",
    "a figure over the config": "choose --belief 0.7 --config a.toml --figure a.toml",
}


def _contents(folder):
    """Every file but those that SQLite keeps beside a store while it is open."""
    files = [one for one in folder.iterdir() if one.is_file() and not one.name.endswith(("-wal", "-shm"))]
    return {one.name: one.read_bytes() for one in files}


@pytest.mark.parametrize("what", LINES)
def test_what_is_read_is_not_overwritten(here, capsys, what):
    before = _contents(here)
    assert_refused(run(capsys, LINES[what]), "is not allowed", "name")
    after = _contents(here)
    assert {name: after[name] for name in before} == before
    assert not {"x.json", "x.html", "x.svg", "new.html"} & set(after)


def test_an_earlier_report_is_replaced(here, capsys, monkeypatch):
    monkeypatch.setattr(report, "page", lambda result: "<!DOCTYPE html><p>new</p>")
    (here / "before.html").write_text("\n<!doctype HTML><p>old</p>")
    assert run(capsys, "report fine --store ok.db -o before.html").code == 0
    assert "new" in (here / "before.html").read_text()
    assert run(capsys, "bundle fine --store ok.db -o o.zip").code == 0


KINDS = {
    "report": (b"<!DOCTYPE html>", b"a,b\n1,2\n"),
    "figure": (b"\x89PNG\r\n", b"SQLite format 3\0"),
    "section": (b'{"kind": "one_run", "runs": 1}', b'{"cells": []}'),
    "bundle": (b"PK\x03\x04" + 26 * b"\0" + b"MANIFEST.json", b"PK\x03\x04" + 26 * b"\0" + b"arr_0.npy"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_replaced_by_its_own_kind_alone(tmp_path, kind):
    own, other = KINDS[kind]
    target = tmp_path / "x"
    for content in (own, b""):
        target.write_bytes(content)
        write_bytes(b"new", target, name="report", kind=kind)
        assert target.read_bytes() == b"new"
    target.write_bytes(other)
    with pytest.raises(InvalidInputError, match="would be lost"):
        write_bytes(b"new", target, name="report", kind=kind)
    assert target.read_bytes() == other


def test_an_empty_program_is_a_program(tmp_path):
    (tmp_path / "__init__.py").write_bytes(b"")
    with pytest.raises(InvalidInputError, match="would be lost"):
        check_target(tmp_path / "__init__.py")


def test_a_pipe_is_no_place(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInputError, match="a device or a pipe"):
        check_target(tmp_path / "pipe")


def test_what_is_written_is_of_its_kind(played, tmp_path, monkeypatch):
    """A bundle as it is written may be replaced by the next one."""
    assert check_target(played / "o.zip", name="output", kind="bundle")
    with zipfile.ZipFile(played / "o.zip") as bundle:
        assert bundle.namelist()[0] == "MANIFEST.json"
