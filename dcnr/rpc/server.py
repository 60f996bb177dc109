"""One gRPC server of the network: TLS with the node's key, sessions, bounds and typed errors built in; services are added by their registrars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
from grpc import aio

from dcnr.errors import Unavailable
from dcnr.ports import Clock
from dcnr.rpc.guard import Guard, caller_of
from dcnr.rpc.health import CHECK, Health
from dcnr.rpc.options import server_options
from dcnr.v1 import identity_pb2, identity_pb2_grpc
from trust.addresses import join_address
from trust.identity import NodeKey
from trust.session import RandomBytes, SessionBook, SessionLimits
from trust.tls import certificate_sha256, self_signed_certificate

SESSION_METHODS: Final = frozenset({"/dcnr.v1.SessionService/Challenge", "/dcnr.v1.SessionService/Open"})
DEFAULT_OPEN_METHODS: Final = frozenset({"/dcnr.v1.MembershipService/Join", CHECK})
MAX_CONCURRENT: Final = 2048
MAX_CONCURRENT_PER_PEER: Final = 256


class RpcServer:
    """Serves what its registrars add, from `start` to `stop`. ``rng``: unpredictable bytes (``secrets.token_bytes``); ``apart``: callers from everywhere
    may come in over loopback, through relays, so each connection from there counts as a subnet of its own.
    """

    def __init__(
        self,
        key: NodeKey,
        network_id: str,
        *,
        clock: Clock,
        rng: RandomBytes,
        open_methods: frozenset[str] = DEFAULT_OPEN_METHODS,
        max_concurrent: int = MAX_CONCURRENT,
        max_concurrent_per_peer: int = MAX_CONCURRENT_PER_PEER,
        limits: SessionLimits | None = None,
        apart: bool = False,
    ) -> None:
        self._key, self._certificate = key, self_signed_certificate(key)
        self._book = SessionBook(
            server_id=key.node_id,
            certificate_sha256=certificate_sha256(self._certificate),
            network_id=network_id,
            random_bytes=rng,
            limits=limits,
        )
        self._services: list[str] = []
        self._health = Health(self._services)
        self._guard = Guard(
            self._book,
            clock=clock,
            open_methods=open_methods | SESSION_METHODS,
            max_concurrent=max_concurrent,
            max_concurrent_per_peer=max_concurrent_per_peer,
            apart=apart,
        )
        self._server = aio.server(interceptors=[self._guard], options=server_options())
        self._health.register(self._server)
        self.add(lambda server: identity_pb2_grpc.add_SessionServiceServicer_to_server(_Sessions(self._book, clock, apart), server))
        self.port = 0

    @property
    def node_id(self) -> str:
        """The id that callers pin."""
        return self._key.node_id

    def add(self, registrar: Callable[[aio.Server], None], *services: str) -> None:
        """Lets ``registrar`` add a service, before `start`. ``services``: full names, for health checks and reflection."""
        registrar(self._server)
        self._services.extend(services)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the bound port (``port`` 0: any free one). Raises Unavailable (``port_in_use``)."""
        self._add_reflection()
        credentials = grpc.ssl_server_credentials([(self._key.private_pem(), self._certificate)])
        try:
            self.port = self._server.add_secure_port(join_address(host, port), credentials)
        except RuntimeError as error:
            raise Unavailable(
                f"cannot listen on {join_address(host, port)}",
                code="port_in_use",
                remedy="choose another port, or 0 for a free one",
            ) from error
        await self._server.start()
        return self.port

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls and ends running ones after ``grace_s`` at the latest."""
        self._health.stop()
        await self._server.stop(grace_s)

    def _add_reflection(self) -> None:
        try:
            from grpc_reflection.v1alpha import reflection
        except ImportError:  # a development dependency
            return
        reflection.enable_server_reflection([*self._services, reflection.SERVICE_NAME], self._server)


class _Sessions(identity_pb2_grpc.SessionServiceServicer):
    """The shell around `SessionBook`."""

    def __init__(self, book: SessionBook, clock: Clock, apart: bool) -> None:
        self._book, self._clock, self._apart = book, clock, apart

    async def Challenge(self, request: identity_pb2.ChallengeRequest, context: Any) -> identity_pb2.ChallengeResponse:
        return self._book.challenge(
            request, caller_of(context, apart=self._apart), now=self._clock.monotonic(), now_wall=self._clock.wall()
        )

    async def Open(self, request: identity_pb2.OpenRequest, context: Any) -> identity_pb2.OpenResponse:
        return self._book.open(
            request, caller_of(context, apart=self._apart), now=self._clock.monotonic(), now_wall=self._clock.wall()
        )
