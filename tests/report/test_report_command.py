"""``coalmine report`` and ``coalmine audit --report``: from the store, without training, however far the run is."""

import dataclasses
import json

import numpy as np
import pytest

from coalmine import cli, data
from coalmine.adversaries import catalogue
from coalmine.auditing.stored import AuditRecord
from coalmine.game.engines import LocalEngine
from coalmine.store import BlockResult, Store
from coalmine.store.listing import audits

# Data sets are read-only arrays; torch says so when it reads one. What is tested here is the report.
pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")

AUDIT = """
[data]
name = "digits"
[model]
kind = "logistic"
[training]
steps = 2
sample_rate = 0.05
noise_multiplier = 1.0
[audit]
trials = 32
[[adversary]]
name = "membership"
[[adversary]]
name = "clipbkd"
copies = 2
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A folder with a store of a small audit, and the report that the audit wrote."""
    folder = tmp_path_factory.mktemp("audit")
    (folder / "audit.toml").write_text(AUDIT)
    options = ["--store", str(folder / "a.db"), "--workers", "1", "--report", str(folder / "report.html")]
    assert cli.main(["audit", str(folder / "audit.toml"), *options]) == 3
    return folder


@pytest.fixture
def no_training(monkeypatch):
    """Nothing is loaded, crafted or trained."""

    def refuse(*_, **__):
        raise AssertionError("a report must not need this")

    monkeypatch.setattr(data, "load", refuse)
    monkeypatch.setattr("coalmine.auditing.setting.prepare", refuse)
    monkeypatch.setattr(LocalEngine, "submit", refuse)
    for one in catalogue().values():
        monkeypatch.setattr(one.kind, "craft", refuse)


def names(folder):
    with Store.open(folder / "a.db", create=False) as store:
        return [run.fingerprint for run in store.runs()]


def copy_audit(store, target, *, blocks, trials):
    """The audit in another store, where it wants more trials, with the first blocks of each run."""
    [audit] = audits(store)
    description = json.loads(json.dumps(store.audit(audit.fingerprint)))
    description["config"]["audit"]["trials"] = trials
    for member in description["members"]:
        member["wanted"] = trials
    for fingerprint in blocks:
        target.register(fingerprint, store.run(fingerprint).description)
    name = AuditRecord.from_dict(description).name  # an audit is named by what it is
    target.record_audit(name, description, members=dict.fromkeys(blocks, trials))
    for fingerprint, count in blocks.items():
        copy_blocks(store, fingerprint, target, count=count)


def copy_blocks(store, fingerprint, target, *, count):
    """The first blocks of a run."""
    scores = store.scores(fingerprint)
    for block in range(count):
        part = slice(16 * block, 16 * (block + 1))
        target.put(
            fingerprint,
            block,
            BlockResult(
                trial=scores.trial[part], world=scores.world[part], score=scores.score[part], elapsed=1.0, device="cpu"
            ),
        )


def test_the_report_from_the_store_is_the_report_of_the_audit(played, no_training, capsys):
    for name in names(played):
        target = played / "again.html"
        assert cli.main(["report", name[:10], "--store", str(played / "a.db"), "-o", str(target)]) == 0
        assert capsys.readouterr().out.strip() == f"Report: {target}"
        assert target.read_text() == (played / "report.html").read_text()


def test_a_report_changes_nothing_in_the_store(played, no_training, capsys):
    with Store.open(played / "a.db") as store:
        before = [dataclasses.asdict(run) for run in store.runs()]
    again = str(played / "again.html")
    cli.main(["report", names(played)[0], "--store", str(played / "a.db"), "-o", again, "--json"])
    assert json.loads(capsys.readouterr().out) == {"report": again, "figures": []}
    with Store.open(played / "a.db") as store:
        assert [dataclasses.asdict(run) for run in store.runs()] == before


def test_the_name_and_the_figures_by_default(played, no_training, monkeypatch, capsys):
    monkeypatch.chdir(played)
    name = names(played)[0]
    assert cli.main(["report", name[:12], "--store", "a.db", "--figures", "figures"]) == 0
    assert (played / f"coalmine-{name[:12]}.html").is_file()
    assert "Figures: 21 files in figures" in capsys.readouterr().out
    assert {path.suffix for path in (played / "figures").iterdir()} == {".svg", ".png", ".pdf"}


def test_a_run_that_is_not_complete_is_reported_with_what_it_has(played, no_training, tmp_path):
    first, second = names(played)
    with Store.open(played / "a.db") as store, Store.open(tmp_path / "part.db") as target:
        copy_audit(store, target, blocks={first: 1, second: 0}, trials=400)
    options = ["--store", str(tmp_path / "part.db"), "-o", str(tmp_path / "part.html")]
    assert cli.main(["report", first[:10], *options]) == 0
    text = (tmp_path / "part.html").read_text()
    assert "This run is not complete: 16 of 400 trainings for each adversary" in text
    assert "1 further adversaries of this audit have no trials yet" in text
    assert cli.main(["report", second[:10], *options]) == 2


def test_a_run_without_trials_is_an_error(played, no_training, tmp_path, capsys):
    name = names(played)[0]
    with Store.open(played / "a.db") as store, Store.open(tmp_path / "empty.db") as target:
        copy_audit(store, target, blocks={name: 0}, trials=32)
    assert cli.main(["report", name[:10], "--store", str(tmp_path / "empty.db")]) == 2
    error = capsys.readouterr().err
    assert f"run {name[:12]} has no trials yet: play it first (coalmine runs resume {name[:12]})" in error
    assert error.count("\n") == 1


def test_a_run_of_no_audit_is_not_passed_off_as_one(played, no_training, tmp_path, capsys):
    """Its trials may come from other data or another version: what they are is not known, so nothing is said."""
    name = names(played)[0]
    with Store.open(played / "a.db") as store, Store.open(tmp_path / "other.db") as target:
        copy_audit(store, target, blocks={name: 2}, trials=32)
        target.register("ab" * 32, dict(store.run(name).description))
        trial = np.arange(16)
        target.put(
            "ab" * 32, 0, BlockResult(trial=trial, world=trial % 2, score=trial + 0.5, elapsed=1.0, device="cpu")
        )
    assert cli.main(["report", "abab", "--store", str(tmp_path / "other.db"), "-o", str(tmp_path / "x.html")]) == 2
    assert "run abababababab has no audit in this store" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_an_audit_by_its_name_or_its_own_fingerprint(played, no_training, tmp_path):
    name = names(played)[0]
    with Store.open(played / "a.db") as store, Store.open(tmp_path / "other.db") as target:
        (entry,) = audits(store)
        for one in names(played):
            target.register(one, store.run(one).description)
            copy_blocks(store, one, target, count=2)
        target.record_audit(entry.fingerprint, store.audit(entry.fingerprint), members=entry.members, name="spring")
    pages = [tmp_path / f"{number}.html" for number in range(3)]
    for word, page in zip((name, entry.fingerprint[:8], "spring"), pages, strict=True):
        assert cli.main(["report", word, "--store", str(tmp_path / "other.db"), "-o", str(page)]) == 0
    assert pages[0].read_text() == pages[1].read_text() == pages[2].read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ffff"], "is no run of this store"),
        (["nonsense!"], "expected the first characters of a run's fingerprint"),
    ],
)
def test_names_that_are_no_run(played, capsys, arguments, said):
    assert cli.main(["report", *arguments, "--store", str(played / "a.db")]) == 2
    assert said in capsys.readouterr().err


def test_a_store_that_is_not_there(tmp_path, capsys):
    assert cli.main(["report", "abcd", "--store", str(tmp_path / "no.db")]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert not (tmp_path / "no.db").exists()


def test_a_report_that_cannot_be_written_is_found_out_before_training(played, no_training, tmp_path, capsys):
    options = ["--store", str(tmp_path / "new.db"), "--report", str(tmp_path / "none" / "x.html")]
    assert cli.main(["audit", str(played / "audit.toml"), *options]) == 2
    assert "--report = " in capsys.readouterr().err
    assert not (tmp_path / "new.db").exists()


def test_the_page_of_a_kept_result_says_by_what_it_is_found_again(tmp_path, capsys):
    import html as markup

    from coalmine.one_run import design, judge
    from coalmine.probing.findings import Measurement, ProbeReport
    from coalmine.records import EpsilonClaim, OneRunScores

    store = tmp_path / "r.db"
    found = ProbeReport(
        subject="my step", measurements=(Measurement(name="noise", sentence="As promised."),), level=1e-4, seconds=1.0,
        versions={"coalmine": "0.0.7"},
    )  # fmt: skip
    included = np.arange(60) % 2 == 0
    judged = judge(
        OneRunScores(included, included + np.linspace(0, 0.1, 60)),
        design=design(EpsilonClaim(epsilon=1.0, delta=1e-5), canaries=60),
    )
    with Store.open(store) as opened:
        marks = {
            "before the fix": found.keep(opened, name="before the fix", tags=["nightly"]),
            "one training": judged.keep(opened, name="one training", tags=["nightly"]),
        }
    for name, mark in marks.items():
        target = tmp_path / f"{mark[:8]}.html"
        assert cli.main(["report", mark[:8], "--store", str(store), "-o", str(target)]) == 0
        text = markup.unescape(target.read_text())
        head = text.split("</header>")[0]
        for words in (name, "nightly", mark, "UTC", "coalmine "):
            assert words in head
    capsys.readouterr()


def test_a_report_leaves_the_verdict_for_lists(played, tmp_path, capsys):
    import shutil

    shutil.copy(played / "a.db", tmp_path / "a.db")
    with Store.open(tmp_path / "a.db") as store:
        (entry,) = audits(store)
        store.keep_conclusion(entry.fingerprint, {"outcome": "of another version"})
    run = next(iter(entry.members))[:10]
    assert cli.main(["report", run, "--store", str(tmp_path / "a.db"), "-o", str(tmp_path / "a.html")]) == 0
    with Store.open(tmp_path / "a.db", read_only=True) as store:
        assert audits(store)[0].conclusion["outcome"] == "inconclusive"
