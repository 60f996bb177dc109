"""The community dashboard: its page at ``/``, its modules under ``/dashboard/``, both with headers that let nothing in from elsewhere.

The files are plain ES modules beside this one; nothing is built. What is not ours lies in ``dashboard/vendor`` with its licence and digest.
"""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
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


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it is sent: all of them together are small enough to be kept."""

    content: bytes
    media_type: str
    tag: str


def mount_dashboard(app: Starlette) -> None:
    """Adds the page and its files to ``app``. They are public, as what they show is; the routes of ``app`` keep their own answers for what they do not know."""
    files = {path.relative_to(FOLDER).as_posix(): _read(path) for path in sorted(FOLDER.rglob("*")) if path.is_file()}

    def asked(request: Request) -> Response:
        file = files.get(request.path_params.get("path", "index.html"))
        if file is None:
            raise HTTPException(404)
        headers = {"etag": file.tag}
        if file.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await asked(Request(scope))(scope, receive, send)

    dressed = _dressed(answer)
    app.router.routes.append(Route("/", dressed, methods=["GET"], include_in_schema=False))
    app.router.routes.append(Route("/dashboard/{path:path}", dressed, methods=["GET"], include_in_schema=False))


def _read(path: Path) -> _File:
    content = path.read_bytes()
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return _File(content, media_type, f'"{blake3(content).hexdigest()[:16]}"')


def _dressed(app: ASGIApp) -> ASGIApp:
    """``app`` with `HEADERS`, compressed."""

    async def dressed(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await app(scope, receive, with_headers)

    return GZipMiddleware(dressed, minimum_size=500)
