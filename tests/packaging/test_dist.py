"""The wheel and the sdist, as a newcomer meets them: contents, an empty environment without torch, a first verdict.

`make test-dist` builds both and says where they are; without that these tests skip.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from pathlib import Path

import pytest

DIST = os.environ.get("COALMINE_DIST", "")
pytestmark = pytest.mark.skipif(not DIST, reason="no wheel was built: run make test-dist")
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NEWCOMER_SECONDS = 180
"""From the wheel in an empty folder to a first verdict, without torch: seconds of a processor."""


def _one(pattern):
    [path] = Path(DIST).glob(pattern)
    return path.resolve()


@pytest.fixture(scope="module")
def wheel():
    return _one("coalmine-*.whl")


@pytest.fixture(scope="module")
def sdist():
    return _one("coalmine-*.tar.gz")


def _sources():
    """Every file of the package, as git knows it or could: no caches."""
    every = (path for path in (ROOT / "src" / "coalmine").rglob("*") if path.is_file())
    kept = (path for path in every if "__pycache__" not in path.parts and path.suffix not in (".nbi", ".nbc"))
    return {path.relative_to(ROOT / "src").as_posix() for path in kept}


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == _sources()
    for name in (
        "py.typed",
        "report/templates/page.html.j2",
        "view/static/htmx.min.js",
        "view/static/htmx.LICENSE.txt",
    ):
        assert f"coalmine/{name}" in inside
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: <3.14,>=3.11" in metadata


def test_the_sdist_holds_the_sources_and_neither_tests_nor_data(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    assert {name.removeprefix("src/") for name in names if name.startswith("src/coalmine/")} == _sources()
    others = {name for name in names if not name.startswith(("src/coalmine/", "src/coalmine.egg-info/"))}
    assert others == {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}


@pytest.fixture(scope="module")
def newcomer(wheel, tmp_path_factory):
    """An empty folder with an environment that has the wheel and what it needs; and when it all began."""
    folder = tmp_path_factory.mktemp("newcomer")
    began = time.monotonic()
    venv.create(folder / "env", with_pip=True)
    _install(folder, str(wheel))
    return folder, began


def _install(folder, *what):
    words = [
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "-c",
        str(ROOT / "constraints.txt"),
        *what,
    ]
    _run(folder, "python", *words)


def _run(folder, program, *words, expected=0):
    """A program of the environment, in the empty folder, with nothing of this checkout in reach."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [folder / "env" / "bin" / program, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


def _own_example():
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    return next(code for code in blocks if "audit_function" in code)


def test_a_newcomer_without_torch_has_a_verdict_in_three_minutes(newcomer):
    folder, began = newcomer
    (folder / "example.py").write_text(_own_example(), encoding="utf-8")
    assert _run(folder, "python", "example.py").strip() == "consistent"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = used.ru_utime + used.ru_stime
    took = time.monotonic() - began
    print(f"\nwheel to first verdict without torch: {took:.0f} s, {busy:.0f} s of a processor", file=sys.__stdout__)
    assert busy < NEWCOMER_SECONDS  # the clock depends on what else the machine does
    _run(folder, "python", "-c", "import torch", expected=1)


def test_the_commands_without_training_work_there(newcomer):
    folder, _ = newcomer
    for words in (
        "account --sample-rate 0.01 --noise-multiplier 1 --steps 1000 --delta 1e-5",
        "calibrate --epsilon 2 --delta 1e-5 --sample-rate 0.01 --steps 1000",
        "bound --false-positives 0 --negatives 500 --false-negatives 0 --positives 500 --delta 1e-5",
    ):
        assert "psilon" in _run(folder, "coalmine", *words.split()).replace("ε", "epsilon")
    assert "Serve the pages" in _run(folder, "coalmine", "view", "--help")
    assert "coalmine" in _run(folder, "coalmine", "--version")
    where = _run(folder, "python", "-c", "import coalmine; print(coalmine.__file__)")
    assert str(folder) in where


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completion_is_shown(newcomer, shell, monkeypatch):
    folder, _ = newcomer
    monkeypatch.setenv("_COALMINE_COMPLETE", f"source_{shell}")
    assert "_COALMINE_COMPLETE" in _run(folder, "coalmine")


def test_what_needs_an_extra_says_so(newcomer):
    folder, _ = newcomer
    done = subprocess.run(
        [folder / "env" / "bin" / "coalmine", "audit"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install 'coalmine[train]'" in done.stderr


def test_report_page_and_evidence_work_with_their_extras(newcomer, wheel):
    folder, _ = newcomer
    code, _, call = _own_example().partition("result = ")
    (folder / "training.py").write_text(code, encoding="utf-8")
    (folder / "run.py").write_text(f"import coalmine\nfrom training import *\nresult = {call}", encoding="utf-8")
    _install(folder, f"{wheel}[report,view]")  # before: which packages there are is part of a run's identity
    assert _run(folder, "python", "run.py").strip() == "consistent"
    runs = json.loads(_run(folder, "coalmine", "runs", "list", "--json"))["runs"]
    run = next(one["run"] for one in runs if one["adversary"]["train"] == "training:train")
    _run(folder, "coalmine", "report", run, "-o", "report.html")
    assert (folder / "report.html").stat().st_size > 10_000
    _run(folder, "coalmine", "view", "bundle", "pages")
    _run(folder, "coalmine", "bundle", run, "-o", "audit.zip")
    assert "Partly verified" in _run(folder, "coalmine", "verify", "audit.zip", expected=3)
    named = ["--train", "training:train", "--score", "training:score", "--sample", "8"]
    named += ["--control-train", "training:half_the_noise"]
    assert "Verified" in _run(folder, "coalmine", "verify", "audit.zip", *named)


def test_types_are_seen_by_others(newcomer):
    folder, _ = newcomer
    code = "import importlib.resources as r; print(r.files('coalmine').joinpath('py.typed').is_file())"
    assert _run(folder, "python", "-c", code).strip() == "True"


def test_the_sdist_installs_to_the_same_files(newcomer, sdist):
    folder, _ = newcomer
    code = "import importlib.metadata as m; print(sorted(str(f) for f in m.files('coalmine') if f.suffix != '.pyc'))"
    before = _run(folder, "python", "-c", code)
    _install(folder, "--no-deps", "--force-reinstall", str(sdist))
    after = _run(folder, "python", "-c", code)
    assert re.sub(r"'[^']*dist-info/[^']*', ", "", before) == re.sub(r"'[^']*dist-info/[^']*', ", "", after)
    assert "coalmine" in _run(folder, "coalmine", "--version")
