"""Who may ask the server, and what every answer forbids."""

import re
import socket
import sqlite3

import pytest
import view_store
from view_store import TOKEN

from coalmine.cli import main
from coalmine.errors import StoreError
from coalmine.store import Store

TestClient = pytest.importorskip("starlette.testclient", reason="the extra view, or httpx, is not installed").TestClient
create_app = pytest.importorskip("coalmine.view.app").create_app
serve = pytest.importorskip("coalmine.view.server").serve


@pytest.fixture
def stranger(path):
    with Store.open(path, create=False, read_only=True) as store:
        app = create_app(store, token=TOKEN)
        yield TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False)
        app.state.pages.close()


def test_the_address_can_be_opened_as_soon_as_it_is_told(path):
    """Before the server runs: a browser that is quick must not be refused."""

    class EnoughError(Exception):
        pass

    def ready(address):
        host, port = re.fullmatch(r"http://(.+):(\d+)/\?token=.+", address).groups()
        socket.create_connection((host, int(port)), timeout=5).close()
        raise EnoughError

    with Store.open(path, create=False, read_only=True) as store, pytest.raises(EnoughError):
        serve(store, ready=ready)


@pytest.mark.parametrize("address", ["/", "/static/view.js", "/compare", "/audits/beef/events", "/?token=wrong"])
def test_without_the_token_nothing_is_told(stranger, address):
    answer = stranger.get(address)
    assert answer.status_code == 403
    assert "noise" not in answer.text


def test_the_token_moves_from_the_address_into_a_cookie(stranger):
    answer = stranger.get("/", params={"token": TOKEN, "text": "noise"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?text=noise"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("coalmine-8000=")
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()
    assert stranger.get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""])
def test_another_name_for_this_machine_is_refused(stranger, host):
    answer = stranger.get("/", params={"token": TOKEN}, headers={"Host": host})
    assert answer.status_code == 400
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_shows(client, method):
    assert client.request(method, "/").status_code == 405


@pytest.mark.parametrize("address", ["/", "/nowhere", "/static/view.js", "/audits/beefbeef"])
def test_every_answer_forbids_what_it_does_not_need(client, address):
    headers = client.get(address).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_store_cannot_be_written_through_it(path):
    with Store.open(path, create=False, read_only=True) as store:
        with pytest.raises(StoreError, match="cannot be written"):
            store.register("c0ffee00", {})
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            store._database.execute("DELETE FROM run")
    before = sorted(view_store.names(path))
    assert sorted(view_store.names(path)) == before


def test_an_older_store_is_shown_and_left_as_it_is(path):
    database = sqlite3.connect(path)
    database.executescript(
        "DROP TABLE result; DROP TABLE label; DROP TABLE conclusion; ALTER TABLE lease DROP COLUMN status;"
    )
    database.execute("PRAGMA user_version = 3")
    database.close()
    with Store.open(path, create=False, read_only=True) as store:
        app = create_app(store, token=TOKEN)
        with TestClient(app, base_url="http://127.0.0.1:8000") as reader:
            assert "3 audits" in reader.get("/", params={"token": TOKEN}).text
        app.state.pages.close()
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA user_version").fetchone()[0] == 3
    database.close()


def test_the_command_refuses_what_it_cannot_open(tmp_path, capsys):
    assert main(["view", str(tmp_path / "none.db")]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()
    assert main(["view", "bundle", str(tmp_path / "pages"), "--store", str(tmp_path / "none.db")]) == 2
    assert main(["view", "--help"]) == 0
    assert "bundle" in capsys.readouterr().out
