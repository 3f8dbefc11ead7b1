"""The server: routes, and what keeps others out. It only reads, answers this machine alone, and asks nobody.

Every answer needs the token of this start (in the address once, in a cookie afterwards) and a Host header that names
this machine, so that no web page that is open in the same browser can read the store.
"""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coalmine.errors import CoalmineError, InvalidInputError, StoreError
from coalmine.store import Store
from coalmine.view import figures
from coalmine.view.catalogue import Query
from coalmine.view.links import Links
from coalmine.view.pages import Pages

HOSTS = ("127.0.0.1", "localhost")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src "
    "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_KINDS = {"css": "text/css", "js": "text/javascript", "txt": "text/plain"}
STATIC = ("style.css", "view.js", "htmx.min.js", "htmx.LICENSE.txt")
POLL_SECONDS = 1.0
"""How often a watched store is looked at."""
_BEATS = 10
"""After so many looks without news a sign of life is sent, so that a reader who went away is noticed."""


def create_app(
    store: Store, *, token: str, poll: float = POLL_SECONDS, ending: threading.Event | None = None
) -> Starlette:
    """The application over an open store.

    Every request needs the ``token``. A watched audit is looked at every ``poll`` seconds, and streams that are open
    end when ``ending`` is set. ``app.state.pages`` must be closed at the end.
    """
    pages = Pages(store, Links(live=True))

    def shown(name: str, page: Callable[[Request], str]) -> Route:
        def answer(request: Request) -> Response:
            return HTMLResponse(page(request), headers={"Vary": "HX-Request"} if name == "/" else None)

        return Route(name, answer)

    routes = [
        shown(
            "/", lambda asked: pages.runs(Query.of(asked.query_params), part=asked.headers.get("HX-Request") == "true")
        ),
        shown(
            "/audits/{audit}",
            lambda asked: pages.audit(asked.path_params["audit"], judge=asked.query_params.get("judge") == "now"),
        ),
        shown("/audits/{audit}/row", lambda asked: pages.row(asked.path_params["audit"])),
        Route("/audits/{audit}/events", functools.partial(_events, pages, poll, ending or threading.Event())),
        shown("/audits/{audit}/attacks/{index:int}", lambda asked: pages.attack(**asked.path_params)),
        shown("/runs/{run}", lambda asked: pages.trials(asked.path_params["run"], page=_page(asked))),
        shown("/results/{result}", lambda asked: pages.result(asked.path_params["result"])),
        shown(
            "/results/{result}/canaries", lambda asked: pages.canaries(asked.path_params["result"], page=_page(asked))
        ),
        shown("/compare", lambda asked: pages.compare(*_two(asked))),
        Route("/static/{name}", _static),
    ]
    handlers: dict[Any, Callable[[Request, Exception], Response | Awaitable[Response]]] = {
        CoalmineError: functools.partial(_refused, pages),
        Exception: functools.partial(_ours, pages),
        404: lambda request, error: HTMLResponse(pages.message("Not found", "There is no such page."), 404),
    }
    guards = [
        Middleware(_Headers),
        Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS), www_redirect=False),
        Middleware(_Token, token=token),
    ]
    app = Starlette(routes=routes, middleware=guards, exception_handlers=handlers)
    app.state.pages = pages
    return app


def static_file(name: str) -> bytes:
    """A file that comes with the pages; ``vega.js`` is the one that the report's renderer brings."""
    if name == "vega.js":
        return _vega()
    return (resources.files("coalmine.view") / "static" / name).read_bytes()


@functools.cache
def _vega() -> bytes:
    """Vega, Vega-Lite and Vega-Embed as one script, from the package that also draws the figures of the report."""
    import vl_convert

    # In a function of its own, so that its names are its own, and it may be loaded from a file too.
    return b"(() => {\n" + vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").encode() + b"\n})();\n"


# ---- routes -----------------------------------------------------------------------------------------------------


def _page(request: Request) -> int:
    """Which page of many is asked for."""
    number = request.query_params.get("page", "1")
    return max(1, int(number)) if number.isascii() and number.isdigit() and len(number) < 9 else 1


def _two(request: Request) -> list[str]:
    """The two audits that are asked for."""
    chosen = request.query_params.getlist("audit")
    if len(chosen) != 2 or chosen[0] == chosen[1]:
        raise InvalidInputError(f"{len(set(chosen))} audits were chosen: expected two; choose them with the boxes")
    return chosen


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in (*STATIC, "vega.js"):
        return PlainTextResponse("There is no such file.", 404)
    kept = {"Cache-Control": "private, max-age=86400"} if name == "vega.js" else {}
    return Response(static_file(name), media_type=_KINDS[name.rpartition(".")[2]], headers=kept)


async def _events(pages: Pages, poll: float, ending: threading.Event, request: Request) -> Response:
    audit = request.path_params["audit"]
    now = await run_in_threadpool(pages.look, audit)  # an unknown audit is an answer, not a stream

    async def stream() -> AsyncIterator[str]:
        look, before, quiet = now, "", 0
        while not ending.is_set():
            html = pages.live(look)
            if html != before:
                points = figures.points_of(look.attacks)
                yield f"event: progress\ndata: {json.dumps({'html': html, 'points': points})}\n\n"
                before, quiet = html, 0
            if look.complete:
                yield "event: complete\ndata: {}\n\n"
                return
            quiet += 1
            if quiet % _BEATS == 0:
                yield ": still here\n\n"
            await asyncio.sleep(poll)
            try:
                look = await run_in_threadpool(pages.look, audit)
            except StoreError as error:
                yield f"event: problem\ndata: {json.dumps({'text': str(error)})}\n\n"
                return

    return StreamingResponse(stream(), media_type="text/event-stream")


def _refused(pages: Pages, request: Request, error: Exception) -> Response:
    """An error of Coalmine in words: what is not there, or what is wrong with the request or the store."""
    status = 400 if isinstance(error, InvalidInputError) else 404
    return HTMLResponse(pages.message("This cannot be shown", str(error)), status)


def _ours(pages: Pages, request: Request, error: Exception) -> Response:
    """An error of the view itself, or what a store that somebody has changed by hand led to; the server says more."""
    text = f"An error of Coalmine itself, or a store that was changed by hand: {type(error).__name__}: {error}"
    return HTMLResponse(pages.message("This cannot be shown", text), 500)


# ---- who may ask ------------------------------------------------------------------------------------------------


class _Headers:
    """Headers of every answer: no script but ours, no frame, no cache, nothing from elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                more = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(one for one in more if one[0] not in given)]
            await send(message)

        await self._app(scope, receive, sent)


class _Token:
    """The secret of this start: given once in the address, then kept by the browser in a cookie."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        if request.method not in ("GET", "HEAD"):
            await PlainTextResponse("This page only shows.", 405)(scope, receive, send)
            return
        # Cookies are shared by all ports of a host: each server has its own.
        name = f"coalmine-{request.url.port or 80}"
        if self._is_right(request.cookies.get(name, "")):
            await self._app(scope, receive, send)
        elif self._is_right(request.query_params.get("token", "")):
            answer = RedirectResponse(str(request.url.remove_query_params("token").replace(scheme="", netloc="")), 303)
            answer.set_cookie(name, self._token, httponly=True, samesite="lax")
            await answer(scope, receive, send)
        else:
            text = "Open the address that coalmine view printed: it holds the token of this start."
            await PlainTextResponse(text, 403)(scope, receive, send)

    def _is_right(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())
