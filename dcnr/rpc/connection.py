"""A pinned channel with a session that is kept open: over server restarts, reconnects and expiry, until `close` or until the peer is lost.

A session belongs to one TCP connection. When the channel reconnects, the session is opened anew before the next call; a call that is refused for its
session (it did not run) is made once more with a new one. Nothing else is retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, Protocol, TypeVar

from grpc import ChannelConnectivity, StatusCode, aio

from dcnr.errors import TimedOut, Unavailable
from dcnr.ids import NodeId
from dcnr.limits import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S
from dcnr.ports import Clock
from dcnr.rpc.errors import error_from_rpc, unless_closed
from dcnr.rpc.guard import SESSION_METADATA
from dcnr.v1 import identity_pb2, identity_pb2_grpc
from trust.identity import NodeKey
from trust.session import NONCE_BYTES, OpenedSession, RandomBytes, SessionOpening
from trust.tls import certificate_sha256

LOST_AFTER_S: Final = 10.0
"""A connection that could not be made again for so long is closed."""
RENEW_BEFORE_S: Final = 30.0
"""A session that expires within this time is renewed before the next call."""

_Request = TypeVar("_Request", contravariant=True)
_Response = TypeVar("_Response", covariant=True)
Metadata = tuple[tuple[str, bytes], ...]


class _Awaitable(Protocol[_Response]):
    def __await__(self) -> Generator[Any, None, _Response]: ...


class UnaryMethod(Protocol[_Request, _Response]):
    """A unary method of an async stub."""

    def __call__(self, request: _Request, /, *, timeout: float | None = None, metadata: Any = None) -> _Awaitable[_Response]:
        """Starts the call."""
        ...


class Connection:
    """Made by `dcnr.rpc.dialer.Dialer.connect`. Pass ``metadata`` to streaming calls; make unary calls by `call`. ``certificate``: the peer's, DER."""

    def __init__(
        self,
        channel: aio.Channel,
        *,
        key: NodeKey,
        network_id: str,
        peer_id: NodeId,
        address: str,
        certificate: bytes,
        clock: Clock,
        rng: RandomBytes,
        delegation: Callable[[], identity_pb2.Envelope | None],
    ) -> None:
        self._channel, self.peer_id, self.address, self.certificate = channel, peer_id, address, certificate
        self._closed = asyncio.Event()
        self._key, self._network_id = key, network_id
        self._clock, self._rng, self._delegation = clock, rng, delegation
        self._sessions = identity_pb2_grpc.SessionServiceStub(channel)
        self._session: OpenedSession | None = None
        self._known: OpenedSession | None = None
        self._opening = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None
        self._behind: Callable[[], Awaitable[None]] | None = None

    @property
    def closed(self) -> bool:
        """True once the connection is of no use any more; `wait_closed` waits for that."""
        return self._closed.is_set()

    @property
    def channel(self) -> aio.Channel:
        """For stubs. Raises Unavailable (``connection_closed``): gRPC's core corrupts memory where a stub is made on a closed channel."""
        self._require_open()
        return self._channel

    @property
    def metadata(self) -> Metadata:
        """To be passed to each call; `fresh_metadata` renews it first where needed."""
        return ((SESSION_METADATA, self._last().token),)

    @property
    def observed_address(self) -> str:
        """Our address as the peer sees it."""
        return self._last().observed_address

    @property
    def protocol(self) -> int:
        """The protocol version that both speak."""
        return self._last().protocol

    async def open(self) -> None:
        """Opens the first session and begins to watch the channel; the dialer calls this."""
        await self._renew(None)
        self._watcher = asyncio.create_task(self._watch(), name=f"connection {self.peer_id}")

    async def fresh_metadata(self) -> Metadata:
        """`metadata` of a session that is good now, as far as this side knows. Raises like `call`."""
        session = self._session
        if session is None or session.expires_at - RENEW_BEFORE_S <= self._clock.monotonic():
            await self._renew(session)
        return self.metadata

    async def renewed(self, refused: Metadata) -> Metadata:
        """`metadata` of another session than that one, for which the peer refused a call (it did not run): it lets go of sessions too. Raises like `call`."""
        used = self._session
        await self._renew(used if used is not None and ((SESSION_METADATA, used.token),) == refused else None)
        return self.metadata

    async def call(
        self, method: UnaryMethod[_Request, _Response], request: _Request, timeout_s: float = CALL_TIMEOUT_S
    ) -> _Response:
        """The answer of a unary call. Raises the peer's typed error, or Unavailable, TimedOut where there is none; Unavailable also where somebody closes
        the connection meanwhile.
        """
        self._require_open()
        used = await self.fresh_metadata()
        try:
            return await self._made(method, request, timeout_s)
        except aio.AioRpcError as error:
            if error.code() is not StatusCode.UNAUTHENTICATED:
                raise error_from_rpc(error) from error
        await self.renewed(used)
        try:
            return await self._made(method, request, timeout_s)
        except aio.AioRpcError as error:
            raise error_from_rpc(error) from error

    async def _made(self, method: UnaryMethod[_Request, _Response], request: _Request, timeout_s: float) -> _Response:
        """Once, in the newest session."""
        self._require_open()
        with unless_closed():
            return await method(request, timeout=timeout_s, metadata=self.metadata)

    async def wait_closed(self) -> None:
        """Returns when the connection is closed, by `close` or because the peer was lost."""
        await self._closed.wait()

    async def close(self) -> None:
        """Ends the channel and all its calls. Idempotent."""
        self._closed.set()
        watcher, self._watcher = self._watcher, None
        try:
            if watcher is not None and watcher is not asyncio.current_task():
                watcher.cancel()
                await asyncio.wait([watcher])
        finally:
            try:
                await self._channel.close(None)
            finally:
                behind, self._behind = self._behind, None
                if behind is not None:
                    await behind()

    def end_with(self, behind: Callable[[], Awaitable[None]]) -> None:
        """``behind`` is what the channel runs through: it is ended after the channel, whoever closes the connection."""
        self._behind = behind

    async def _renew(self, used: OpenedSession | None) -> None:
        """A new session, unless another task has made one since ``used``."""
        async with self._opening:
            if self._session is not None and self._session is not used:
                return
            self._require_open()
            try:
                with unless_closed():
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        self._session = self._known = await self._open_session()
            except TimeoutError:
                raise TimedOut(f"no session with {self.address} within {CONNECT_TIMEOUT_S:g} s", code="connect_timeout") from None
            except aio.AioRpcError as error:
                raise error_from_rpc(error) from error

    async def _open_session(self) -> OpenedSession:
        opening = SessionOpening(
            self._key, self._network_id, self.peer_id, certificate_sha256(self.certificate), self._rng(NONCE_BYTES)
        )
        asked_at = self._clock.monotonic()
        challenge = await self._sessions.Challenge(
            identity_pb2.ChallengeRequest(client_nonce=opening.client_nonce), timeout=CONNECT_TIMEOUT_S
        )
        self._require_open()
        response = await self._sessions.Open(opening.prove(challenge, self._delegation()), timeout=CONNECT_TIMEOUT_S)
        return opening.opened(challenge, response, asked_at=asked_at)

    async def _watch(self) -> None:
        """Keeps the channel connected; notes reconnects, which end the session; closes when the peer stays away."""
        while True:
            state = self._channel.get_state(try_to_connect=True)
            if state is ChannelConnectivity.READY:
                await self._channel.wait_for_state_change(state)
                self._session = None
                continue
            try:
                async with asyncio.timeout(LOST_AFTER_S):
                    while state is not ChannelConnectivity.READY:
                        if state is ChannelConnectivity.SHUTDOWN:
                            break
                        await self._channel.wait_for_state_change(state)
                        state = self._channel.get_state(try_to_connect=True)
            except TimeoutError:
                state = ChannelConnectivity.SHUTDOWN
            if state is ChannelConnectivity.SHUTDOWN:
                break
        await self.close()

    def _last(self) -> OpenedSession:
        if self._known is None:
            raise Unavailable("the connection is not open yet", code="connection_closed")
        return self._known

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise Unavailable(f"the connection to {self.peer_id} is closed", code="connection_closed")
