"""Connections to other nodes: whoever answers holds the wanted key, or nothing is sent; calls fail with typed errors.

`Dialer.connect` fetches the certificate over TLS unless it is known already, compares its key's hash with the wanted id, opens a channel pinned to that
certificate and proves the caller's own key. First contact without an id (`Dialer.join`) learns the id from the certificate.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Final

import grpc
from grpc import aio

from dcnr.errors import Corrupt, DcnrError, InvalidInput, Refused, RemoteFault, TimedOut, Unavailable
from dcnr.ids import NodeId, check_node_id
from dcnr.limits import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S
from dcnr.ports import Clock
from dcnr.rpc.certificates import Certificates
from dcnr.rpc.connection import Connection
from dcnr.rpc.errors import calls_let_go, error_from_rpc
from dcnr.rpc.options import channel_options
from dcnr.rpc.resolving import Resolve, Resolver, numeric_only
from dcnr.v1 import identity_pb2, membership_pb2, membership_pb2_grpc
from trust.addresses import MAX_ADDRESSES, join_address, split_address
from trust.identity import NodeKey
from trust.session import RandomBytes
from trust.tls import certificate_id, certificate_pem

_NO_DELEGATION: Final[Callable[[], identity_pb2.Envelope | None]] = lambda: None  # noqa: E731  a named default


class Dialer:
    """Opens connections for the holder of ``key``. ``delegation``: the one in force, for workers; asked for at each session.

    ``own_connections``: each `Connection` gets a TCP connection of its own, for bulk over several in parallel. ``certificates``: those that are known.
    """

    def __init__(
        self,
        key: NodeKey,
        network_id: str,
        *,
        clock: Clock,
        rng: RandomBytes,
        delegation: Callable[[], identity_pb2.Envelope | None] = _NO_DELEGATION,
        own_connections: bool = False,
        certificates: Certificates | None = None,
    ) -> None:
        self.certificates = certificates or Certificates()
        self._key, self._network_id, self._clock, self._rng = key, network_id, clock, rng
        self._delegation, self._own_connections = delegation, own_connections
        self._resolver = Resolver()

    @property
    def node_id(self) -> NodeId:
        """Who calls."""
        return self._key.node_id

    async def connect(self, peer_id: str, addresses: Sequence[str], *, own_connection: bool | None = None) -> Connection:
        """A connection with an open session to the holder of ``peer_id`` at the first address where it answers.

        Takes at most `CONNECT_TIMEOUT_S` per address. Raises Refused (the peer's reason), RemoteFault (``wrong_identity``: somebody else answers
        everywhere), Unavailable (``unreachable``).
        """
        wanted = check_node_id(peer_id)
        own = self._own_connections if own_connection is None else own_connection
        failures: list[tuple[str, DcnrError]] = []
        for address in addresses[:MAX_ADDRESSES]:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    return await self._connect_once(wanted, address, own)
            except TimeoutError:
                failures.append((address, TimedOut(f"no answer within {CONNECT_TIMEOUT_S:g} s", code="connect_timeout")))
            except DcnrError as error:
                failures.append((address, error))
        try:
            raise _worst(wanted, failures)
        finally:
            failures.clear()  # else each of them holds this frame, which holds them

    async def join(
        self, address: str, request: membership_pb2.JoinRequest, expected_id: str | None = None
    ) -> tuple[membership_pb2.JoinResponse, NodeId]:
        """First contact: the answer of whoever listens at ``address``, and the id of its key. Raises RemoteFault (``wrong_identity``), Unavailable."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                certificate, node_id = await self._certificate_at(address, expected_id)
        except TimeoutError:
            raise TimedOut(f"{address} did not answer within {CONNECT_TIMEOUT_S:g} s", code="connect_timeout") from None
        channel = _channel(certificate, node_id, address, own_connection=False)
        try:
            stub = membership_pb2_grpc.MembershipServiceStub(channel)
            with calls_let_go():
                return await stub.Join(request, timeout=CALL_TIMEOUT_S), node_id
        except aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        finally:
            await channel.close(None)

    async def _connect_once(self, wanted: NodeId, address: str, own_connection: bool) -> Connection:
        known = self.certificates.of(wanted)
        if known is not None:
            try:
                return await self._pinned(wanted, address, known, own_connection)
            except Unavailable as error:
                if error.code != "unreachable":
                    raise  # else nobody is there, or somebody else, or it shows another one by now: fetching it says which
        certificate, _ = await self._certificate_at(address, wanted)
        self.certificates.shown(wanted, certificate)
        return await self._pinned(wanted, address, certificate, own_connection)

    async def _pinned(self, wanted: NodeId, address: str, certificate: bytes, own_connection: bool) -> Connection:
        connection = Connection(
            _channel(certificate, wanted, address, own_connection=own_connection),
            key=self._key,
            network_id=self._network_id,
            peer_id=wanted,
            address=address,
            certificate=certificate,
            clock=self._clock,
            rng=self._rng,
            delegation=self._delegation,
        )
        try:
            await connection.open()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _certificate_at(self, address: str, expected_id: str | None) -> tuple[bytes, NodeId]:
        """The certificate (DER) shown at ``address`` and the id of its key, which is ``expected_id`` if one is given."""
        certificate = await fetch_certificate(address, self._resolver.resolve)
        try:
            got = certificate_id(certificate)
        except Corrupt as error:
            raise RemoteFault(f"{address} shows no certificate of a node key", code="wrong_identity", address=address) from error
        if expected_id is not None and got != expected_id:
            raise RemoteFault(
                f"{address} is node {got}, not {expected_id}",
                code="wrong_identity",
                remedy="check the id and the address with whoever gave them to you",
                wanted=expected_id,
                got=got,
                address=address,
            )
        return certificate, got


async def fetch_certificate(address: str, resolve: Resolve = numeric_only) -> bytes:
    """The certificate (DER) of whoever listens at ``address``, unverified. The caller bounds the time. Raises Unavailable, InvalidInput.

    A host name is looked up by ``resolve``; without one only IP addresses are dialled.
    """
    host, port = split_address(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the key's hash is compared instead, by the caller
    context.set_alpn_protocols(["h2"])
    writer: asyncio.StreamWriter | None = None
    failed: OSError | None = None
    for found in await resolve(host, port):
        try:
            _, writer = await asyncio.open_connection(
                found, port, ssl=context, server_hostname=host, ssl_handshake_timeout=CONNECT_TIMEOUT_S
            )
            break
        except (OSError, ssl.SSLError) as error:
            failed = failed or error
    if writer is None:
        why = _reason(failed) if failed is not None else "its name has no address"
        raise Unavailable(f"{address} cannot be reached: {why}", code="unreachable", address=address) from failed
    try:
        shown = writer.get_extra_info("ssl_object")
        certificate = shown.getpeercert(binary_form=True) if shown else None
    finally:
        writer.transport.abort()
    if not certificate:
        raise RemoteFault(f"{address} shows no certificate", code="wrong_identity", address=address)
    return bytes(certificate)


def _channel(certificate: bytes, peer_id: str, address: str, *, own_connection: bool) -> aio.Channel:
    credentials = grpc.ssl_channel_credentials(root_certificates=certificate_pem(certificate))
    return aio.secure_channel(
        join_address(*split_address(address)), credentials, options=channel_options(peer_id, own_connection=own_connection)
    )


def _worst(wanted: str, failures: list[tuple[str, DcnrError]]) -> DcnrError:
    """What to tell about a node that could not be connected: a refusal by the node itself before impostors before silence."""
    if not failures:
        return InvalidInput(f"no address of node {wanted} is known", code="no_address")
    for kind in (Refused, RemoteFault):
        for _, error in failures:
            if isinstance(error, kind):
                return error
    for _, error in failures:
        if not isinstance(error, Unavailable):
            return error
    tried = {address: error.message for address, error in failures}
    waits = max(error.retry_after_s for _, error in failures if isinstance(error, Unavailable))
    first = failures[0][1]
    code = first.code if len(failures) == 1 else "unreachable"
    return Unavailable(f"node {wanted[:8]}: {first.message}", code=code, retry_after_s=waits, **tried)


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
