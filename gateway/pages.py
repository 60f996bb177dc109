"""The community dashboard: its page at ``/``, its modules under ``/dashboard/``, both with headers that let nothing in from elsewhere.

The files are plain ES modules beside this one; nothing is built. What is not ours lies in ``dashboard/vendor`` with its licence and digest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER: Final = Path(__file__).with_name("dashboard")
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-cache",
    "service-worker-allowed": "/",
}
"""Of every answer, beside those of the gate. ``no-cache``: asked again, and answered 304 while nothing changed.
The page keeps a copy of itself by a service worker beside its modules."""


def mount_dashboard(app: Starlette) -> None:
    """Adds the page and its files to ``app``. They are public, as what they show is; the routes of ``app`` keep their own answers for what they do not know."""
    app.router.routes.append(Route("/", _dressed(_page()), methods=["GET"], include_in_schema=False))
    app.router.routes.append(Mount("/dashboard", _dressed(StaticFiles(directory=FOLDER))))


def _page() -> ASGIApp:
    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        await FileResponse(FOLDER / "index.html")(scope, receive, send)

    return page


def _dressed(app: ASGIApp) -> ASGIApp:
    """``app`` with `HEADERS`, compressed."""

    async def dressed(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await app(scope, receive, with_headers)

    return GZipMiddleware(dressed, minimum_size=500)
