"""coalmine data list, fetch, verify."""

import json
import os
from pathlib import Path

import pytest

from coalmine.cli import main
from coalmine.data import files, names


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.delenv("COALMINE_DATA", raising=False)
    folder = tmp_path / "data"
    folder.mkdir()
    return str(folder)


def run(capsys, *arguments):
    code = main(["data", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_list(capsys, empty):
    code, out, err = run(capsys, "list", "--data-dir", empty)
    assert (code, err) == (0, "")
    for name in names():
        assert name in out
    assert "built in" in out
    assert "not here" in out
    assert "coalmine data fetch" in out
    assert "Synthetic stand-in for Purchase-100" in out


def test_list_json(capsys, empty):
    code, out, _ = run(capsys, "list", "--data-dir", empty, "--json")
    rows = {row["name"]: row for row in json.loads(out)["data_sets"]}
    assert code == 0
    assert tuple(rows) == names()
    assert rows["digits"]["found"] is True
    assert (rows["adult"]["found"], rows["adult"]["features"]) == (False, 104)


def test_without_a_command_it_shows_help(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    assert "verify" in out


def test_fetch_of_what_is_built_in(capsys):
    assert run(capsys, "fetch", "digits") == (0, "digits is built in: nothing to fetch.\n", "")
    code, out, _ = run(capsys, "fetch", "digits", "--json")
    assert (code, json.loads(out)) == (0, {"name": "digits", "folder": None})


def test_verify_without_names_passes_over_what_is_missing(capsys, empty):
    code, out, err = run(capsys, "verify", "--data-dir", empty)
    assert (code, err) == (0, "")
    assert "missing" in out
    assert "right" in out


def test_verify_of_a_missing_one_is_an_error(capsys, empty):
    code, _, err = run(capsys, "verify", "purchase100", "--data-dir", empty)
    assert code == 2
    assert err.count("\n") == 1
    assert "dataset_purchase.tgz" in err
    assert "purchase-like" in err
    code, out, err = run(capsys, "verify", "digits", "purchase100", "--data-dir", empty, "--json")
    states = {row["name"]: row["state"] for row in json.loads(out)["data_sets"]}
    assert (code, err, states) == (2, "", {"digits": "right", "purchase100": "missing"})


def test_verify_of_a_wrong_file(capsys, empty):
    (Path(empty) / "location30.npz").write_bytes(b"nonsense")
    code, out, err = run(capsys, "verify", "--data-dir", empty)
    assert code == 2
    assert "wrong" in out
    assert err.startswith("coalmine data verify: data set location30: ")
    assert "expected sha256:8a5018ff" in err
    assert err.count("\n") == 1
    assert (Path(empty) / "location30.npz").read_bytes() == b"nonsense"


@pytest.mark.skipif(
    not (Path(os.environ.get("COALMINE_DATA") or "nowhere") / "location30.npz").is_file(),
    reason="location30.npz is not in the folder that COALMINE_DATA names",
)
def test_real_files_are_found_through_the_environment(capsys):
    folder = os.environ["COALMINE_DATA"]
    assert run(capsys, "fetch", "location30") == (
        *(0, f"location30 is in {folder}, its checksums are right.".replace("  ", " ") + "\n", ""),
    )
    code, out, _ = run(capsys, "verify", "location30", "adult", "--json")
    assert code == 0
    assert [row["state"] for row in json.loads(out)["data_sets"]] == ["right", "right"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fetch", "mnst"), "did you mean 'mnist'?"),
        (("verify", "cifar-10"), "did you mean 'cifar10'?"),
        (("fetch",), "Missing argument"),
        (("frobnicate",), "No such command"),
        (("list", "--data-dir", "/no/such/folder"), "--data-dir = '/no/such/folder' is not a folder"),
        (("list", "--what"), "--what"),
    ],
)
def test_bad_usage_is_one_line_and_code_2(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
