"""What is in a bundle, and what never is."""

import json

import evidence_functions as own
import pytest
from evidence_bundles import INLINE, SETTINGS, members

import coalmine
from coalmine.auditing import config
from coalmine.errors import StoreError, UnsupportedError
from coalmine.evidence import archive
from coalmine.store import Store, results


def test_the_same_audit_gives_the_same_bytes(audited, built_in, tmp_path):
    store, result = audited
    again = coalmine.bundle("the small one", store=store, output=tmp_path / "again.zip")
    assert again.read_bytes() == built_in.read_bytes()
    by_run = coalmine.bundle(result.strongest.run[:10], store=store, output=tmp_path / "run.zip")
    assert by_run.read_bytes() == built_in.read_bytes()


def test_it_holds_what_others_need(audited, built_in):
    _, result = audited
    files = members(built_in)
    tables = [name for name in files if name.startswith("trials/")]
    assert set(files) == {archive.AUDIT, archive.RESULT, archive.REPORT, archive.README, *tables}
    assert len(tables) == 3  # two attacks and a control
    said = json.loads(files[archive.RESULT])
    assert said == json.loads(result.to_json())
    about = json.loads(files[archive.AUDIT])
    assert about["audit"]["config"]["audit"]["trials"] == 64
    assert about["audit"]["versions"]["coalmine"] == coalmine.__version__
    assert about["name"] == "the small one"


def test_no_row_no_message_and_no_bound_text_is_in_it(own_store, own_bundle):
    _, result = own_store
    assert "hunter2" in result.to_json()  # the store was asked to keep them ...
    assert "could not fit" in result.to_json()
    everything = b"".join(members(own_bundle).values()).decode()
    assert sum(result.strongest.failed) > 0
    for secret in ("hunter2", "could not fit", "0.123456", "ValueError"):  # ... and a bundle is for others
        assert secret not in everything


def test_an_audit_that_is_not_complete_is_refused(audited, tmp_path):
    more = config.parse({**SETTINGS, "audit": {"trials": 128}})
    store = tmp_path / "part.db"

    class Stop(coalmine.GameStoppedError):
        pass

    class AfterOneBlock(coalmine.game.Watcher):
        def block(self, result):
            raise Stop("enough")

    with pytest.raises(Stop):
        coalmine.audit(more, store=store, execution=INLINE, watcher=AfterOneBlock(), name="half done")
    with pytest.raises(StoreError, match="is not complete"):
        coalmine.bundle("half done", store=store, output=tmp_path / "no.zip")
    assert not (tmp_path / "no.zip").exists()


def test_trials_of_a_larger_audit_are_left_out(audited, built_in, tmp_path):
    store = tmp_path / "both.db"
    coalmine.audit(config.parse({**SETTINGS, "audit": {"trials": 96}}), store=store, execution=INLINE, name="large")
    small = coalmine.audit(config.parse(SETTINGS), store=store, execution=INLINE, name="the small one")
    path = coalmine.bundle(small, store=store, output=tmp_path / "small.zip")
    tables = {name: content for name, content in members(path).items() if name.startswith("trials/")}
    assert tables == {name: content for name, content in members(built_in).items() if name.startswith("trials/")}
    assert coalmine.verify(path, sample=4).outcome == "verified"


@pytest.mark.parametrize("name", ["nobody", "the small", "zz"])
def test_an_audit_that_is_not_there_is_refused(audited, name, tmp_path):
    store, _ = audited
    with pytest.raises(StoreError, match="no audit is called"):
        coalmine.bundle(name, store=store, output=tmp_path / "no.zip")


def test_one_name_for_two_audits_is_refused(tmp_path):
    store = tmp_path / "two.db"
    for trials in (16, 32):
        coalmine.audit_function(
            own.half, own.score, worlds=own.worlds, claim_epsilon=5.0, trials=trials, store=store, execution=INLINE,
            name="same",
        )  # fmt: skip
    with pytest.raises(StoreError, match="2 audits are called 'same'"):
        coalmine.bundle("same", store=store, output=tmp_path / "no.zip")


def test_a_bundle_is_asked_for_as_a_report_is(audited, tmp_path):
    """By the first characters of a fingerprint, however few, as long as they stand for one alone."""
    store, result = audited
    run = result.adversaries[0].run
    others = {one.run for one in result.adversaries[1:]} | {one.control for one in result.adversaries} | {result.audit}
    short = next(run[:n] for n in range(1, 64) if not any(one and one.startswith(run[:n]) for one in others))
    assert coalmine.bundle(short, store=store, output=tmp_path / "a.zip").exists()
    with pytest.raises(StoreError, match="no audit is called"):
        coalmine.bundle("nosuchname", store=store, output=tmp_path / "b.zip")


def test_a_result_without_trials_is_no_bundle(tmp_path):
    with Store.open(tmp_path / "r.db") as store:
        mark = results.keep(store, "probe", summary={"outcome": "refuted"}, report={"level": 1e-4}, name="my step")
        for called in ("my step", mark[:6]):
            with pytest.raises(UnsupportedError, match="a probe result, which has no trials of its own"):
                coalmine.bundle(called, store=store, output=tmp_path / "b.zip")


def test_a_full_temporary_folder_is_what_is_blamed(audited, tmp_path, monkeypatch):
    store, result = audited

    def full(*_):
        raise StoreError("store '/somewhere/evidence.db': the disk is full")

    monkeypatch.setattr("coalmine.evidence.contents._fill", full)
    with pytest.raises(StoreError, match="or name another folder with TMPDIR") as error:
        coalmine.bundle(result, store=store, output=tmp_path / "b.zip")
    assert "evidence.db" not in str(error.value)
