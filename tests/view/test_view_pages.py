"""What the pages of the view say, without a browser: the numbers of the judge, and all of it escaped."""

import html
import json
import re
import sqlite3

import numpy as np
import pytest
import view_store
from view_store import HOSTILE

import coalmine
from coalmine.auditing.stored import stored_result
from coalmine.errors import InvalidInputError
from coalmine.report import one_person, rounding, summary, words
from coalmine.store import Store, listing

DATA_BLOCK = re.compile(r'<script type="application/json" class="(\w+)">(.*?)</script>', re.DOTALL)


def judged(client, address):
    """The page once the judge is done."""
    for _ in range(200):
        page = client.get(address)
        assert page.status_code == 200, page.text
        if 'class="judging"' not in page.text:
            return html.unescape(page.text).replace("\u00a0", " ")
    raise AssertionError("the judge did not end")


def test_the_list_shows_how_each_audit_ended(shared):
    page = html.unescape(shared.get("/").text).replace("\u00a0", " ")
    assert "3 audits" in page
    assert 'class="verdict refuted"' in page
    assert "192 trials" in page
    assert ">nightly<" in page
    with Store.open(shared.pages._store.path, create=False, read_only=True) as store:
        result = stored_result(store, shared.audits["half the noise"])
    assert f"ε ≥ {rounding.down(result.strongest.bound.epsilon)}" in page
    assert f"ε ≤ {rounding.up(result.claim_epsilon)}" in page or "DP-SGD q = 1, σ = 2, T = 1" in page


def test_no_epsilon_stands_without_its_delta(shared):
    audit = shared.audits["half the noise"]
    result = shared.pages.judged.result(audit)
    point = f"δ = {rounding.small(result.config.audit.delta)}"
    cells = html.unescape(shared.get("/").text).replace("\u00a0", " ").split("<tr id=")[1:]
    for cell in cells:
        assert "ε" not in cell or point in cell
    head = judged(shared, f"/audits/{audit}").split('id="facts"')[1].split("</dl>")[0]
    assert point in head
    assert point in judged(shared, f"/audits/{audit}/attacks/0").split('class="lead"')[1].split("</p>")[0]


def test_the_kept_end_is_that_of_the_judge(shared):
    with Store.open(shared.pages._store.path, create=False, read_only=True) as store:
        for entry in listing.audits(store):
            result = stored_result(store, entry.fingerprint)
            kept = entry.conclusion
            assert kept["outcome"] == result.verdict.outcome.value
            assert kept["epsilon"] == result.strongest.bound.epsilon
            assert kept["ceiling"] == result.verdict.ceiling
            assert kept["ceilings"]["on_data"] == result.on_data.bound.ceiling


def test_an_audit_says_what_the_report_says(shared):
    audit = shared.audits["half the noise"]
    page = judged(shared, f"/audits/{audit}")
    result = shared.pages.judged.result(audit)
    assert words.verdict(result) in page
    for line in one_person.meaning(result):
        assert line.replace("\u00a0", " ") in page
    assert words.epsilon(result.strongest.bound) in page
    assert "claim_epsilon" in page or "noise_multiplier" in page


def test_one_attack_has_scores_curves_methods_and_failures(shared):
    audit = shared.audits["half the noise"]
    page = judged(shared, f"/audits/{audit}/attacks/0")
    result = shared.pages.judged.result(audit)
    blocks = dict(DATA_BLOCK.findall(shared.get(f"/audits/{audit}/attacks/0").text))
    rates = json.loads(blocks["thresholds"])
    scores = result.adversaries[0].scores
    middle = len(rates["threshold"]) // 2
    assert rates["alarm"][middle] == pytest.approx((scores.world0 > rates["threshold"][middle]).mean())
    assert rates["miss"][middle] == pytest.approx((scores.world1 <= rates["threshold"][middle]).mean())
    assert "Exploratory, not a valid bound." in page
    assert set(json.loads(blocks["specs"])) == {"linear", "logarithmic"}
    assert "If the leak is Gaussian" in page
    failed = result.adversaries[0].failed
    assert sum(failed) > 0
    assert f"{failed[0]} trainings failed in world 0 and {failed[1]} in world 1." in page


def test_the_trials_come_in_pages(shared):
    audit = shared.audits["half the noise"]
    run = shared.pages.judged.record(audit).members[0].run
    page = shared.get(f"/runs/{run}").text
    assert "192 trials are stored" in page
    assert page.count('<th scope="row" class="number">') == 192
    assert "failed" in page
    with Store.open(shared.pages._store.path, create=False, read_only=True) as store:
        scores = store.scores(run).score
    assert f"{scores[np.isfinite(scores)][0]:.6g}" in page  # which ones fail depends on the versions, as all seeds do


def test_two_audits_are_compared(shared):
    first, second = shared.audits["plain noise"], shared.audits["half the noise"]
    page = judged(shared, f"/compare?audit={first}&audit={second}")
    assert "audit.trials" in page
    assert re.search(r"audit\.trials</bdi></th><td[^>]*><bdi>96</bdi></td><td[^>]*><bdi>192</bdi></td>", page)
    for audit in (first, second):  # what is proved depends on the versions, as all seeds do
        bound = shared.pages.judged.result(audit).strongest.bound
        assert (words.epsilon(bound) if bound.epsilon > 0.0 else "nothing proved") in page
    assert shared.get(f"/compare?audit={first}").status_code == 400
    assert shared.get(f"/compare?audit={first}&audit=beef").status_code == 404


def test_filters_and_sorts(shared):
    def rows(**given):
        page = shared.get("/", params=given, headers={"HX-Request": "true"})
        assert page.status_code == 200
        assert "<html" not in page.text
        found = re.findall(r'<th scope="row"><a href="[^"]*"><bdi>(.*?)</bdi></a>', page.text)
        return [html.unescape(name) for name in found]

    assert rows(text="noise half") == ["half the noise"]
    assert rows(text="nothing like that") == []
    assert rows(outcome="refuted") == ["half the noise"]
    assert set(rows(tag="nightly")) == {"plain noise", "half the noise"}
    assert rows(tag="cpu") == ["plain noise"]
    assert len(rows(state="complete")) == 3
    assert rows(state="running") == []
    assert rows(sort="proved", order="down")[0] == "half the noise"
    assert rows(sort="name", order="up")[0] == HOSTILE
    assert rows(sort="progress", order="up") != []
    assert shared.get("/", params={"sort": "drop table"}).status_code == 400


def test_what_a_store_holds_is_never_markup(shared):
    audit = shared.audits[HOSTILE]
    addresses = ["/", f"/audits/{audit}", f"/compare?audit={audit}&audit={shared.audits['plain noise']}"]
    for address in addresses:
        judged(shared, address)
        page = shared.get(address).text
        assert HOSTILE not in page
        assert "<img" not in page
        assert "7*7" in page
        assert "49 }}" not in page
        # The only scripts are our own files, and data that is not executed.
        for tag in re.findall(r"<script[^>]*>", page):
            assert re.fullmatch(r'<script (src="/static/[\w.]+" defer|type="application/json" class="\w+")>', tag)


def test_unknown_addresses_are_answered_in_words(shared):
    for address in ("/audits/beefbeef", "/runs/beefbeef", "/audits/..%2f..", "/runs/%3Cscript%3E", "/nowhere"):
        answer = shared.get(address)
        assert answer.status_code in (400, 404)
        assert "Traceback" not in answer.text
        assert "<script>" not in answer.text
    assert shared.get(f"/audits/{shared.audits['plain noise']}/attacks/7").status_code == 404
    assert shared.get("/static/app.py").status_code == 404
    assert shared.get("/static/..%2fapp.py").status_code == 404


def test_a_running_audit_is_followed(path, client):
    like = view_store.names(path)["plain noise"]
    run, audit = view_store.begun(path, like, trials=320, name="under way")
    with Store.open(path) as writer:
        assert len(writer.claim(run, range(20), limit=20)) == 20
        writer.say(run, "2 nodes, 8 workers")
        writer.put_many(run, {number: view_store.block(number, failed=(1,)) for number in range(8)})
        page = html.unescape(client.get(f"/audits/{audit}").text)
        assert "128 of 320" in page
        assert "2 nodes, 8 workers" in page
        assert "0 of 64, 8 of 64" in page
        assert "nothing yet" in page
        assert "Judge the trials that are there now" in page
        row = html.unescape(client.get(f"/audits/{audit}/row").text)
        assert "running" in row
        assert 'hx-trigger="every 3s"' in row
        assert "under way" in html.unescape(client.get("/?state=running").text)
        writer.put_many(run, {number: view_store.block(number) for number in range(8, 20)})
    events = client.get(f"/audits/{audit}/events").text
    assert "event: progress" in events
    assert events.rstrip().endswith("event: complete\ndata: {}")
    news = json.loads(re.search(r"event: progress\ndata: (.*)", events)[1])
    assert "320 of 320" in news["html"]
    assert news["points"][-1]["trials"] == 320


def test_the_bound_so_far_is_that_of_the_confidence_sequence(path, client):
    from coalmine.auditing.progress import BoundSoFar

    like = view_store.names(path)["plain noise"]
    run, audit = view_store.begun(path, like, trials=640, name="under way")
    with Store.open(path) as writer:
        writer.put_many(run, {number: view_store.block(number) for number in range(30)})
        trials = writer.scores(run)
    look = client.app.state.pages.look(audit).attacks[0]
    expected = BoundSoFar(delta=1e-5, confidence=0.95, copies=1)
    expected.add(trials.trial, trials.world, trials.score)
    bound = expected.bound()
    assert look.points[-1].ceiling == bound.ceiling
    # More looks may only sharpen it: the smallest limits so far hold too.
    assert look.points[-1].epsilon >= bound.epsilon
    assert look.played == (240, 240)
    assert look.state == "stopped"


def test_an_audit_without_trials_has_a_page(path, client):
    _, audit = view_store.begun(path, view_store.names(path)["plain noise"], trials=320, name="just begun")
    page = html.unescape(client.get(f"/audits/{audit}").text)
    assert "0 of 320" in page
    assert "nobody is at work" in page


def test_a_store_that_somebody_changed_by_hand_is_shown_or_refused_in_words(path, client):
    names = view_store.names(path)
    with Store.open(path, create=False, read_only=True) as store:
        entry = next(one for one in listing.audits(store) if one.name == "plain noise")
        kept, audit = dict(entry.conclusion), entry.fingerprint
    broken = [
        {"coalmine": kept["coalmine"], "trials": kept["trials"]},
        {**kept, "outcome": ["<b>"], "epsilon": "many", "proved": 7, "ceiling": {}},
        {**kept, "outcome": "<script>alert(1)</script>", "claim": "infinity"},
    ]
    for one in broken:
        with Store.open(path) as store:
            store.keep_conclusion(audit, one)  # as a program of somebody's own may have kept it, with its checksum
        database = sqlite3.connect(path)
        with database:
            database.execute('UPDATE audit SET description = \'{"members": 5, "claim": []}\' WHERE id = 2')
        database.close()
        for address in ("/", "/?sort=proved", "/?sort=verdict&outcome=refuted", "/?sort=progress"):
            page = client.get(address)
            assert page.status_code == 200
            assert "<script>alert" not in page.text
            assert "<b>" not in page.text
    answer = client.get(f"/audits/{names['half the noise']}")
    assert 'class="problem"' in answer.text
    assert "damaged or changed" in answer.text


def test_a_name_changes_neither_audit_nor_trials(path):
    before = view_store.names(path)
    with Store.open(path) as store:
        runs = {run.fingerprint: run.trials for run in store.runs()}
    view_store.audited(path, name="another name", tags=("more",))
    after = view_store.names(path)
    assert after["another name"] == before["plain noise"]
    assert len(after) == len(before)
    with Store.open(path) as store:
        assert {run.fingerprint: run.trials for run in store.runs()} == runs
    for wrong in ("", " ", "a\nb", 5):
        with pytest.raises(InvalidInputError, match="name ="):
            view_store.audited(path, name=wrong)
    with pytest.raises(InvalidInputError, match="tags ="):
        view_store.audited(path, tags="one text")


def test_an_audit_says_whether_it_could_have_failed(shared):
    audit = shared.audits["half the noise"]
    page = judged(shared, f"/audits/{audit}")
    answer, reasons = summary.could_fail(shared.pages.judged.result(audit))
    part = page.split("Could this audit have failed?")[1].split("</p>")[0]
    assert answer in part
    assert all(line.replace("\u00a0", " ") in part for line in reasons)


def test_the_trials_of_a_control_are_counted_as_its_own(path, client):
    """Half of what was trained is the control's: the numbers beside it speak of the other half."""
    result = coalmine.audit_function(
        view_store.train,
        view_store.score,
        worlds=coalmine.neighbours(np.zeros(20), 1.0),
        control=view_store.leaky,
        claim_epsilon=3.0,
        trials=32,
        store=path,
        execution=coalmine.Execution(engine="inline"),
    )
    assert "64 of 64, 32 of them the control's" in judged(client, f"/audits/{result.audit}")
    other = view_store.names(path)["plain noise"]
    assert "of them the control's" not in judged(client, f"/audits/{other}")


def test_a_name_turns_nothing_but_itself(path, client):
    """A name that is written from right to left would take the numbers beside it along."""
    hebrew = "\u05d1\u05d9\u05e7\u05d5\u05e8\u05ea 12"
    audit = view_store.names(path)["half the noise"]
    with sqlite3.connect(path) as database:
        database.execute("UPDATE label SET name = ?, tags = ?", (hebrew, json.dumps([hebrew])))
    database.close()
    other = next(one for one in view_store.names(path).values() if one != audit)
    for address in ("/", f"/audits/{audit}", f"/compare?audit={audit}&audit={other}"):
        body = html.unescape(client.get(address).text).split("<body>")[1]
        shown = re.sub(r"<option.*?</option>|<[^>]*=\"[^>]*>", "", body)  # attributes are not shown
        assert hebrew in shown
        assert shown.count(hebrew) == shown.count(f"<bdi>{hebrew}")


def test_two_audits_stand_in_a_table_whose_columns_long_names_do_not_move(shared):
    first, second = list(shared.audits.values())[:2]
    assert judged(shared, f"/compare?audit={first}&audit={second}").count('class="cards sides"') == 2
