"""Probes and one-run results in the view: listed beside audits, drilled down, written to files, never markup."""

import html
import json
import re
import sqlite3

import pytest
import result_store
from test_view_pages import DATA_BLOCK
from view_store import HOSTILE

from coalmine.report import rounding
from coalmine.store import Store, results


@pytest.fixture
def both(path):
    """A probe and a one-run result, beside the three audits of the store."""
    return result_store.keep_both(path)


def read(client, address):
    page = client.get(address)
    assert page.status_code == 200, page.text
    return html.unescape(page.text).replace("\u00a0", " ")


def named(page):
    return re.findall(r'<th scope="row"><a href="[^"]*"><bdi>(.*?)</bdi></a>', page)


def test_the_list_has_them_beside_audits(both, client):
    page = read(client, "/")
    assert "5 results" in page
    assert {"the probe", "the canaries", "half the noise"} <= set(named(page))
    assert "noise too small, no clipping" in page
    assert "3 measures" in page
    assert "450 canaries" in page
    assert "σ = 2, C = 1" in page
    assert f"ε ≥ {rounding.down(result_store.one_run().epsilon)}" in page
    assert f"/results/{both[0]}" in page
    assert 'value="' + both[0] not in page  # two audits are compared, not results


def test_they_are_filtered_and_sorted_with_the_rest(both, client):
    def found(**given):
        return named(read(client, "/?" + "&".join(f"{key}={value}" for key, value in given.items())))

    assert found(kind="probe") == ["the probe"]
    assert found(kind="one-run") == ["the canaries"]
    assert len(found(kind="audit")) == 3
    assert found(text="clipping") == ["the probe"]
    assert found(tag="steps") == ["the probe"]
    assert found(kind="probe", state="complete") == ["the probe"]
    assert found(kind="probe", state="running") == []
    assert set(found(outcome="refuted")) == {"the probe", "the canaries", "half the noise"}
    assert found(sort="proved", order="down")[-1] != "the canaries"
    assert found(sort="progress", order="up") != []
    assert client.get("/?kind=other").status_code == 400


def test_a_probe_shows_its_findings_and_pictures(both, client):
    page = read(client, f"/results/{both[0]}")
    report = result_store.probe()
    for one in report.findings:
        assert one.fault in page
        assert one.sentence in page
        assert one.look_at in page
    for one in report.measurements:
        assert one.sentence in page
    assert "order: nothing moved" in page
    assert "Refuted: noise too small, no clipping" in page
    drawn = re.findall(r'data-figure="([\w-]+)"', page)
    assert drawn == ["stage-noise-too-small", "stage-no-clipping", "noise", "influences"]
    for kind, text in DATA_BLOCK.findall(client.get(f"/results/{both[0]}").text):
        assert kind == "specs"
        assert set(json.loads(text)) == {"wide", "narrow"}
    assert result_store.SECRET not in page
    assert "bias: (not kept: may quote the data)" in page


def test_one_run_shows_coins_scores_guesses_and_the_trade_off(both, client):
    page = read(client, f"/results/{both[1]}")
    result = result_store.one_run()
    assert f"{result.guesses.correct} of {result.guesses.guesses} guesses were right" in page
    for reason in result.verdict.reasons:
        assert reason in page
    assert f"ε ≥ {rounding.down(result.epsilon)}" in page
    assert "80.0% of test rows rightly with the canaries" in page
    specs = [json.loads(text) for _, text in DATA_BLOCK.findall(client.get(f"/results/{both[1]}").text)]
    assert [set(one) for one in specs] == [{"wide"}, {"linear", "logarithmic"}]
    assert "5f3a" in page
    first = read(client, f"/results/{both[1]}/canaries")
    last = read(client, f"/results/{both[1]}/canaries?page=3")
    assert "Page 1 of 3" in first
    highest, lowest = result.scores.score.max(), result.scores.score.min()
    assert f"{highest:.3f}" in first
    assert f"{lowest:.3f}" in last
    assert first.count("<tr>") - 1 == 200
    assert last.count("<tr>") - 1 == 50


def test_they_are_in_the_files_to_share(both, path, tmp_path):
    from coalmine.view.bundle import write_bundle

    with Store.open(path, read_only=True) as store:
        written = write_bundle(store, tmp_path / "pages", audits=["the probe", "the canaries"])
    names = {one.name for one in written}
    assert {f"result-{mark[:16]}.html" for mark in both} <= names
    assert {f"canaries-{both[1][:16]}-{page}.html" for page in (1, 2, 3)} <= names
    index = (tmp_path / "pages" / "index.html").read_text()
    assert f'href="result-{both[0][:16]}.html"' in index
    assert "plain noise" not in index
    assert "/results/" not in index


def test_what_a_result_holds_is_never_markup(path, client):
    with Store.open(path) as store:
        mark = result_store.probe(subject=HOSTILE).keep(store, name=HOSTILE, tags=(HOSTILE,))
    for address in ("/", f"/results/{mark}"):
        page = client.get(address).text
        assert HOSTILE not in page
        assert "<img" not in page
        assert "7*7" in page


def test_a_result_that_was_changed_or_is_not_there_is_refused_in_words(both, path, client):
    with Store.open(path) as store:
        empty = results.keep(store, "probe", summary={"size": "many", "faults": 5, "claim": []}, report={})
        other = results.keep(store, "one-run", summary={"outcome": ["<b>"]}, report={"canaries": {"score": "x"}})
    database = sqlite3.connect(path)
    with database:
        database.execute("UPDATE result SET report = '{}' WHERE fingerprint = ?", (both[0],))
    database.close()
    assert "<b>" not in client.get("/").text
    for mark, said in ((both[0], "was changed"), (empty, "cannot be read"), (other, "cannot be read")):
        answer = client.get(f"/results/{mark}")
        assert answer.status_code == 404
        assert said in answer.text
    assert client.get(f"/results/{other}/canaries").status_code == 404
    assert client.get("/results/beefbeef").status_code == 404
    assert client.get("/results/%3Cscript%3E").status_code == 400


def test_files_that_were_not_finished_are_written_again_and_others_are_left(both, path, tmp_path, monkeypatch):
    """A full disk ends the writing somewhere; the list is written last."""
    from coalmine import report
    from coalmine.errors import InvalidInputError
    from coalmine.view.bundle import write_bundle

    written, folder = report.write_text, tmp_path / "pages"

    def full(text, target, **options):
        if "index" in str(target):
            raise InvalidInputError("no space left")
        return written(text, target, **options)

    monkeypatch.setattr(report, "write_text", full)
    with Store.open(path, create=False, read_only=True) as store:
        with pytest.raises(InvalidInputError, match="no space left"):
            write_bundle(store, folder, audits=["the probe"])
        assert list(folder.iterdir())
        monkeypatch.setattr(report, "write_text", written)
        assert write_bundle(store, folder, audits=["the probe"])
        assert write_bundle(store, folder, audits=["the probe"])
        (folder / "index.html").write_text("<!DOCTYPE html><title>My own site</title>")
        (folder / "mine.css").write_text("p {}")
        with pytest.raises(InvalidInputError, match="expected a folder that is empty"):
            write_bundle(store, folder, audits=["the probe"])
        assert "My own site" in (folder / "index.html").read_text()
