"""``coalmine view``: the application on a port of this machine."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.store import Store
from coalmine.view.app import create_app, static_file

HOST = "127.0.0.1"
_LAST_SECONDS = 4
"""How long pages that are still open may hold up the end; streams end within a second."""


def serve(store: Store, *, port: int = 0, ready: Callable[[str], None]) -> None:
    """Serve the pages until the process is asked to end.

    ``port`` 0 is any free port; ``ready`` is told the address, with the token, once it can be opened.
    """
    token = secrets.token_urlsafe(24)
    with _listening(port) as listener:
        ending = threading.Event()
        app = create_app(store, token=token, ending=ending)
        settings = uvicorn.Config(
            app, log_level="error", access_log=False, server_header=False, timeout_graceful_shutdown=_LAST_SECONDS
        )
        threading.Thread(target=static_file, args=("vega.js",), daemon=True).start()  # takes two seconds: begin now
        try:
            ready(f"http://{HOST}:{listener.getsockname()[1]}/?token={token}")
            _Server(settings, ending).run(sockets=[listener])
        finally:
            app.state.pages.close()


class _Server(uvicorn.Server):
    """A server that tells open streams when it is asked to end."""

    def __init__(self, config: uvicorn.Config, ending: threading.Event) -> None:
        super().__init__(config)
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ctrl-C, or a request to end."""
        self._ending.set()
        super().handle_exit(sig, frame)


def _listening(port: int) -> socket.socket:
    """A socket of this machine alone."""
    number = _validate.integer("port", port, at_least=0, at_most=65535)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, number))
        listener.listen()  # whoever is told the address may open it: until the server runs, callers wait in line
    except OSError as error:
        listener.close()
        raise InvalidInputError(f"port = {port} cannot be used: {error.strerror}; 0 takes a free one") from None
    return listener
