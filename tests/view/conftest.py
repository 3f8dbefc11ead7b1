"""A store with three audits, made once, and a client of the server over a copy of it."""

import pytest
import view_store
from view_store import TOKEN

from coalmine.store import Store


def server():
    """Starlette's client and our application, where the packages are installed."""
    pytest.importorskip("starlette", reason="the extra view is not installed")
    pytest.importorskip("httpx", reason="Starlette's test client needs httpx")
    from starlette.testclient import TestClient

    from coalmine.view.app import create_app

    return TestClient, create_app


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with the store in it; copy it before it is changed."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def path(made, tmp_path):
    """A copy of the store."""
    return view_store.small_store(made, tmp_path)


@pytest.fixture
def client(path):
    """Somebody who has opened the address with the token."""
    test_client, create_app = server()
    with Store.open(path, create=False, read_only=True) as store:
        app = create_app(store, token=TOKEN, poll=0.02)
        with test_client(app, base_url="http://127.0.0.1:8000") as opened:
            assert opened.get("/", params={"token": TOKEN}).status_code == 200
            yield opened
        app.state.pages.close()


@pytest.fixture(scope="session")
def shared(made, tmp_path_factory):
    """A client of a store that no test changes: what it has judged once stays judged."""
    test_client, create_app = server()
    path = view_store.small_store(made, tmp_path_factory.mktemp("shared"))
    with Store.open(path, create=False, read_only=True) as store:
        app = create_app(store, token=TOKEN)
        with test_client(app, base_url="http://127.0.0.1:8000") as opened:
            opened.get("/", params={"token": TOKEN})
            opened.audits = view_store.names(path)
            opened.pages = app.state.pages
            yield opened
        app.state.pages.close()
