"""The server's gate: no call runs without a session of this connection (but for open methods), and every failure leaves as a typed error.

A call with an unknown token, or one too many, is refused before its first message is read; so methods with one message are served as streams, of which it
is the first: gRPC itself would read it before anything else, for as long as its caller likes. Handlers find the caller by `peer_of`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final, cast
from urllib.parse import unquote

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc import aio

from dcnr import limits
from dcnr.errors import DcnrError, InvalidInput, InvariantBroken, Refused, Unavailable, without_directories
from dcnr.ports import Clock
from dcnr.rpc.errors import status_of, trailing_metadata_of
from dcnr.rpc.reading import SESSION_READ_S, Reading
from trust.addresses import is_loopback, join_address, split_address, subnet_of
from trust.session import Caller, Peer, SessionBook

SESSION_METADATA: Final = "dcnr-session-bin"
MAX_CALLERS: Final = 1024
"""Connections of which is remembered where they come from; others are looked at again."""
_log = structlog.get_logger(__name__)
_peer: ContextVar[Peer | None] = ContextVar("dcnr_rpc_peer", default=None)

Behaviour = Callable[[Any, Any], Any]


def peer_of(context: Any) -> Peer:
    """Who makes the call that is being handled. Raises Refused in an open method that was called without a session."""
    peer = _peer.get()
    if peer is None:
        raise Refused("this needs a session", code="session_required", remedy="open a session")
    return peer


def caller_of(context: Any, *, apart: bool = False) -> Caller:
    """Where the call comes from, session or not. ``apart``: over loopback each connection counts as a subnet of its own."""
    return _caller_behind(str(context.peer()), apart)


@lru_cache(maxsize=MAX_CALLERS)
def _caller_behind(connection: str, apart: bool) -> Caller:
    kind, _, rest = connection.partition(":")
    try:
        host, port = split_address(unquote(rest))
    except DcnrError:
        return Caller(connection, "", connection if apart else kind)
    return Caller(connection, join_address(host, port), connection if apart and is_loopback(host) else subnet_of(host))


class Guard(aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """The interceptor of `dcnr.rpc.server.RpcServer`."""

    def __init__(
        self, book: SessionBook, *, clock: Clock, open_methods: frozenset[str], max_concurrent: int, max_concurrent_per_peer: int, apart: bool
    ) -> None:  # fmt: skip
        """Of callers without a session, each subnet counts as a peer, with a quarter of its calls."""
        self._book, self._clock, self._open = book, clock, open_methods
        self._max, self._max_per_peer = max_concurrent, max_concurrent_per_peer
        self._max_of_strangers = max(1, max_concurrent_per_peer // 4)
        self._apart = apart
        self._reading = Reading()
        self._num_running = 0
        self._running: Counter[str] = Counter()

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The method's handler behind the gate."""
        method, token = handler_call_details.method, _token_in(handler_call_details.invocation_metadata)
        if method not in self._open and (token is None or not self._book.knows(token, now=self._clock.monotonic())):
            return _refusal(Refused("this needs a session of this server", code="session_required", remedy="open a session"))
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        if self._num_running >= self._max:
            return _refusal(Unavailable("too many calls at once", code="overloaded"))
        return self._wrapped(handler, method, token)

    def _wrapped(self, handler: Any, method: str, token: bytes | None) -> Any:
        coming, going = ("stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming))
        behaviour = cast(Behaviour, getattr(handler, f"{coming}_{going}"))
        guarded = self._guarded(behaviour, method, token, reads_one=not handler.request_streaming)
        parse = handler.request_deserializer if handler.request_streaming else _parser(handler.request_deserializer)
        make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
        return make(guarded, request_deserializer=parse, response_serializer=handler.response_serializer)

    def _guarded(self, behaviour: Behaviour, method: str, token: bytes | None, *, reads_one: bool = False) -> Behaviour:
        async def guarded(request: Any, context: Any) -> Any:
            name = await self._enter(context, method, token)
            if name is None:
                return None
            failure: Exception | None = None
            try:
                if reads_one:
                    request = await self._message(context)
                if request is _MALFORMED:
                    raise InvalidInput("the message is malformed", code="malformed_message", remedy="send what the contract says")
                answer = behaviour(request, context)
                if not inspect.isasyncgen(answer):
                    return await answer
                async with contextlib.aclosing(answer) as responses:  # closed at once when the caller goes away
                    async for response in responses:
                        try:
                            await context.write(response)
                        except aio.BaseError:
                            return  # the caller is gone: no fault of ours, and nobody to tell
                        except asyncio.CancelledError as cancelled:
                            # by a time limit of the handler's, which knows what it means; or the caller is gone
                            await responses.athrow(cancelled)
                            raise
            except aio.AbortError:
                raise
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                # what it waited for was cancelled, not the call: gRPC would say nothing, and the caller would wait for its own time limit
                failure = Unavailable("what the answer waited for has ended", code="call_cancelled")
            except Exception as error:  # noqa: BLE001  RPC boundary: becomes a typed error
                failure = error
            finally:
                self._leave(name)  # before the last words: a caller that does not read them takes no place
            if failure is not None:
                await _abort(context, method, failure)

        return guarded

    async def _enter(self, context: Any, method: str, token: bytes | None) -> str | None:
        """Counts the call in and notes its peer; aborts where there is no session of this connection. None: it is over, though its caller took no words."""
        caller, peer = caller_of(context, apart=self._apart), None
        try:
            if token is not None:
                try:
                    peer = self._book.check(token, caller.connection, now=self._clock.monotonic())
                except Refused:
                    if method not in self._open:
                        raise
            name = peer.node_id if peer else caller.subnet
            if self._num_running >= self._max or self._running[name] >= (self._max_per_peer if peer else self._max_of_strangers):
                raise Unavailable("too many calls at once", code="overloaded")
        except DcnrError as error:
            await _abort(context, method, error)
            return None
        _peer.set(peer)
        self._num_running += 1
        self._running[name] += 1
        return name

    async def _message(self, context: Any) -> Any:
        within_s = limits.CALL_TIMEOUT_S if _peer.get() is None else SESSION_READ_S
        return await self._reading.message(context, caller_of(context, apart=self._apart).subnet, within_s)

    def _leave(self, name: str) -> None:
        self._num_running -= 1
        self._running[name] -= 1
        if self._running[name] <= 0:
            del self._running[name]


class _Malformed:
    """Stands for a message that did not parse: what a stranger sends must not become a traceback in our log."""


_MALFORMED: Final = _Malformed()


def _parser(deserialise: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    if deserialise is None:
        return None

    def parse(data: bytes) -> Any:
        try:
            return deserialise(data)
        except DecodeError:
            return _MALFORMED

    return parse


def _token_in(metadata: Any) -> bytes | None:
    for key, value in metadata or ():
        if key == SESSION_METADATA:
            return value if isinstance(value, bytes) else None
    return None


def _refusal(error: DcnrError) -> Any:
    """A handler that ends the call before any message is read (a streaming one never reads by itself)."""

    async def refuse(_requests: Any, context: Any) -> None:
        await _abort(context, "", error)

    return grpc.stream_stream_rpc_method_handler(refuse)


async def _abort(context: Any, method: str, error: Exception) -> None:
    """Ends the call with the typed form of ``error``; what is not typed is our bug: it is logged here and not told."""
    if not isinstance(error, DcnrError):
        _log.error("rpc_failed", method=method, exc_info=error)
        error = InvariantBroken("internal error", code="internal")
    with contextlib.suppress(TimeoutError):  # what was written before has not been read yet
        async with asyncio.timeout(limits.CALL_TIMEOUT_S):
            await context.abort(status_of(error), without_directories(error.message)[:512], trailing_metadata_of(error))
