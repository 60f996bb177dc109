"""Every request passes here first: bounds before anything is parsed, then who asks, then how often; and every answer leaves in one form.

Refused without a look at the rest: long URLs, many headers, another machine's name in Host, keys in the URL, large, slow or compressed bodies. The body is
read whole, within its bound and time, before a route sees it. Streams of events are let through as they are. Work for a client that goes away ends, and a
client that does not read its answer is cut off.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import structlog

from dcnr import limits
from dcnr.ports import Clock
from dcnr.tracing import UNTRACED, Tracer, checked
from gateway.access import MAX_PATH, Access, Admitted, Asked, check_origin
from gateway.errors import RestError
from gateway.metrics import Metrics

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

KEY: Final = "key"
"""Where routes find the caller's key, in the state of the request; None: none was shown."""
MAX_BODY_BYTES: Final = limits.MAX_MESSAGE_BYTES
MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 16 * limits.KIB
MAX_URL_BYTES: Final = 4096
BODY_TIMEOUT_S: Final = 20.0
REQUEST_TIMEOUT_S: Final = 140.0
"""More than a question may take. From the last byte of the request to the last byte of the answer; streams of events, and texts, have limits of their own."""
STALLED_S: Final = 10.0
"""A client that takes no piece of its answer for so long is cut off."""
PIECE_BYTES: Final = limits.MIB // 4
STREAMS: Final = ("/events", "/completions")
UNROUTED: Final = "unknown"
GONE: Final = 499
"""Noted as the status where the client went before its answer."""
SECURITY_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
DEFAULT_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
"""For answers that do not say otherwise."""
_log = structlog.get_logger("gateway")


class _Gone(Exception):
    """The client went before its answer."""


class Gate:
    """The outermost ASGI application."""

    def __init__(
        self,
        app: App,
        access: Access,
        metrics: Metrics,
        clock: Clock,
        note_seconds: Callable[[float], None],
        tracer: Tracer = UNTRACED,
    ) -> None:
        self._app, self._access, self._metrics, self._clock, self._note, self._tracer = (
            app,
            access,
            metrics,
            clock,
            note_seconds,
            tracer,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        parent = checked(_header(scope, b"traceparent"))
        if scope["method"] == "GET" and not parent:
            await self._request(scope, receive, send)  # pages that look again every second make no traces
            return
        with self._tracer.span(scope["method"], parent) as span:
            status = await self._request(scope, receive, send)
            span.rename(f"{scope['method']} {_route(scope)}")
            span.note(**{"http.response.status_code": status})

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Its status."""
        state = scope.setdefault("state", {})
        answer = _Answer(send, secrets.token_hex(8), state.get("abort", _nothing))
        began = self._clock.monotonic()
        streams = scope["path"].endswith(STREAMS)
        admitted: Admitted | None = None
        with self._metrics.in_flight():
            try:
                asked = _asked(scope)
                await self._access.meet(asked)
                admitted = self._access.admit(asked)
                answer.add(admitted.headers)
                body = await _body(scope, receive)
                self._access.check_signature(asked, admitted, body)
                state[KEY] = admitted.key
                async with asyncio.timeout(None if streams else REQUEST_TIMEOUT_S):
                    work = self._app(scope, _replayed(body, receive), answer.send)
                    await (_while_there(work, receive, answer) if asked.method == "POST" else work)
            except RestError as error:
                answer.add(error.headers)
                await answer.refuse(error)
            except _Gone:
                answer.status = answer.status or GONE
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # nobody cancelled this request: gRPC cancels what waits on a connection that another request has found broken
                answer.add({"Retry-After": "1"})
                await answer.refuse(RestError("UNAVAILABLE", "the connection to the network broke"))
            except TimeoutError:
                await answer.refuse(RestError("TIMED_OUT", f"no answer within {REQUEST_TIMEOUT_S:g} s"))
            except Exception as error:  # noqa: BLE001  the edge: whatever it is, the caller gets one form and nothing of our insides
                _log.error("request_failed", request=answer.request_id, exc_info=error)
                await answer.refuse(RestError("INTERNAL", "internal error", request=answer.request_id))
        took_s = self._clock.monotonic() - began
        if not streams:
            self._note(took_s)
        route = _route(scope)
        self._metrics.answered(route, scope["method"], answer.status, None if streams else took_s)
        self._access.note(admitted, scope["method"], route if route != UNROUTED else scope["path"][:MAX_PATH], answer.status)
        return answer.status

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One WebSocket, judged as a request for the same path is; a page from elsewhere may not open one."""
        admitted: Admitted | None = None
        try:
            asked = _asked({**scope, "method": "GET"})
            check_origin(asked)
            await self._access.meet(asked)
            admitted = self._access.admit(asked)
            self._access.check_signature(asked, admitted, b"")
            scope.setdefault("state", {})[KEY] = admitted.key
        except RestError as error:
            await deny(send, error)
            self._access.note(admitted, "GET", scope["path"][:MAX_PATH], error.status)
            return
        with self._metrics.in_flight():
            await self._app(scope, receive, send)
        self._access.note(admitted, "GET", _route(scope), 101)


def _route(scope: Scope) -> str:
    """The pattern that the path fits."""
    return str(getattr(scope.get("route"), "path", UNROUTED))


def _header(scope: Scope, name: bytes) -> str:
    """The first header of that name."""
    return next((bytes(value).decode("latin-1") for key, value in scope["headers"] if key == name), "")


async def deny(send: Send, error: RestError) -> None:
    """Answers the request for a WebSocket with an error."""
    data = json.dumps(error.body(), ensure_ascii=False).encode("utf-8", "replace")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode()), *SECURITY_HEADERS]
    headers += [(key.lower().encode(), value.encode("latin-1", "replace")) for key, value in error.headers.items()]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": data})


class _Answer:
    """The way out: adds what every answer has, and turns errors into answers as long as none has begun."""

    def __init__(self, send: Send, request_id: str, abort: Callable[[], None]) -> None:
        self._send, self.request_id, self.status, self._abort = send, request_id, 0, abort
        self.is_whole = False
        self._headers: list[tuple[bytes, bytes]] = [(b"x-request-id", request_id.encode())]

    def add(self, headers: dict[str, str]) -> None:
        self._headers += [(key.lower().encode(), value.encode("latin-1", "replace")) for key, value in headers.items()]

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = list(message.get("headers", ()))
            names = {key.lower() for key, _ in own}
            own += [item for item in DEFAULT_HEADERS if item[0] not in names]
            message = {**message, "headers": [*own, *SECURITY_HEADERS, *self._headers]}
            await self._send(message)
            return
        body, follows = message.get("body", b""), message.get("more_body", False)
        for first in range(0, max(1, len(body)), PIECE_BYTES):
            more = follows or first + PIECE_BYTES < len(body)
            async with asyncio.timeout(STALLED_S):
                await self._send({**message, "body": body[first : first + PIECE_BYTES], "more_body": more})
        self.is_whole = not follows

    async def refuse(self, error: RestError) -> None:
        if self.status:
            self._abort()  # half an answer is out: the connection ends short, which the client notices, whether it reads or not
            return
        data = json.dumps(error.body(), ensure_ascii=False).encode("utf-8", "replace")
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": data})


def _asked(scope: Scope) -> Asked:
    """What is asked, its bounds checked. Raises RestError."""
    url = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if url > MAX_URL_BYTES:
        raise RestError("URL_TOO_LONG", f"a URL of {url} bytes, at most {MAX_URL_BYTES} are taken")
    size = sum(len(key) + len(value) for key, value in scope["headers"])
    if len(scope["headers"]) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        raise RestError("HEADERS_TOO_LARGE", f"at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes together are taken")
    client = scope.get("client")
    headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
    query = scope["query_string"].decode("latin-1")
    return Asked(scope["method"], scope["path"], query, headers, client[0] if client else "")


async def _body(scope: Scope, receive: Receive) -> bytes:
    """The whole body. Raises RestError."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18 or int(length) > MAX_BODY_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RestError("INVALID_PAYLOAD", "the body ended early")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > MAX_BODY_BYTES:
                    raise _too_large()
                if not message.get("more_body", False):
                    break
    except TimeoutError as error:
        raise RestError("TIMED_OUT", f"the body was not here within {BODY_TIMEOUT_S:g} s") from error
    if size:
        _check_media(headers)
    return b"".join(parts)


def _check_media(headers: dict[bytes, bytes]) -> None:
    kind, _, parameters = headers.get(b"content-type", b"").lower().partition(b";")
    charset = parameters.strip().removeprefix(b"charset=").strip(b'"') or b"utf-8"
    if kind.strip() != b"application/json" or charset != b"utf-8":
        raise RestError("UNSUPPORTED_MEDIA_TYPE", "send application/json in UTF-8")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise RestError("UNSUPPORTED_MEDIA_TYPE", "compressed bodies are not taken")


def _too_large() -> RestError:
    return RestError("BODY_TOO_LARGE", f"a body has at most {MAX_BODY_BYTES} bytes", headers={"Connection": "close"})


async def _while_there(work: Awaitable[None], receive: Receive, answer: _Answer) -> None:
    """Ends the work when the client goes before it has its answer: nobody would read what comes of it. Raises _Gone, and what the work raises."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done() and not answer.is_whole:
            raise _Gone
        await working
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _nothing() -> None:
    """Ends no connection: there is none."""


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body in one piece, then what comes from the connection."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
