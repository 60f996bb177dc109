"""Dials PNodes that ask for it where their own connection comes from, so that they learn whether others reach them.

A request names ports and no address: nobody can have a third machine dialled. What answers must show the key of the caller or of its worker; more than
that it did, did not or was too slow is told nobody. Requests are counted for each caller, each subnet and all together.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from typing import Final

from dcnr.errors import Corrupt, DcnrError, InvalidInput, Refused, RemoteFault, Unavailable
from dcnr.ids import NodeId
from dcnr.ports import Clock
from dcnr.rpc.dialer import fetch_certificate
from dcnr.v1 import membership_pb2
from trust.addresses import join_address, split_address
from trust.delegation import open_delegation
from trust.rates import Rate, TokenBuckets
from trust.session import Caller, Peer
from trust.tls import certificate_id

CONNECT_S: Final = 3.0
"""Nobody answers who has not within this time; a lost first packet is sent again in it."""
HANDSHAKE_S: Final = 3.0
MIN_PORT: Final = 1024
"""Below are the doors of other services: where one address stands for many machines they may be somebody else's."""
MAX_PORT: Final = 65535
MAX_AT_ONCE: Final = 32
CALLER_RATE: Final = Rate(per_s=0.2, burst=20.0)
SUBNET_RATE: Final = Rate(per_s=1.0, burst=60.0)
"""Many machines of one house may start at once."""
WHOLE_RATE: Final = Rate(per_s=20.0, burst=200.0)
ALL: Final = ""
REACHED: Final = membership_pb2.REACH_RESULT_REACHED
UNREACHED: Final = membership_pb2.REACH_RESULT_UNREACHED
UNSURE: Final = membership_pb2.REACH_RESULT_UNSURE


class ReachDesk:
    """One per orchestrator. ``clock``: delegations are judged by its wall clock."""

    def __init__(self, network_id: str, clock: Clock) -> None:
        self._network_id, self._clock = network_id, clock
        self._callers, self._subnets, self._whole = (TokenBuckets(rate) for rate in (CALLER_RATE, SUBNET_RATE, WHOLE_RATE))
        self._places = asyncio.Semaphore(MAX_AT_ONCE)

    async def serve(self, request: membership_pb2.ReachRequest, peer: Peer, caller: Caller) -> membership_pb2.ReachResponse:
        """What answers at the caller's ports, within `CONNECT_S` and `HANDSHAKE_S`.

        Raises Refused (``no_address``, ``not_a_pnode``), InvalidInput (``bad_port``), Corrupt, Stale (its delegation), Unavailable.
        """
        if peer.pnode_id is not None:
            raise Refused("a daemon asks to be dialled, for its worker too", code="not_a_pnode")
        host = _host_of(caller)
        for port in (request.control_port, request.data_port):
            if port and not MIN_PORT <= port <= MAX_PORT:
                raise InvalidInput(f"port {port} is not dialled: {MIN_PORT} to {MAX_PORT} are", code="bad_port")
        worker_id = self._worker_of(request, peer) if request.data_port else peer.node_id
        now = self._clock.monotonic()
        for buckets, name in ((self._callers, peer.node_id), (self._subnets, caller.subnet), (self._whole, ALL)):
            if wait_s := buckets.wait_s(name, now):
                raise Unavailable("too many requests to be dialled", code="rate_limited", retry_after_s=wait_s)
        if self._places.locked():
            raise Unavailable("too many are being dialled", code="overloaded")
        async with self._places, asyncio.TaskGroup() as group:
            control = group.create_task(_dialled(host, request.control_port, peer.node_id))
            data = group.create_task(_dialled(host, request.data_port, worker_id))
        return membership_pb2.ReachResponse(host=host, control=control.result(), data=data.result())

    def _worker_of(self, request: membership_pb2.ReachRequest, peer: Peer) -> NodeId:
        worker = open_delegation(request.delegation, network_id=self._network_id, now_wall=self._clock.wall())
        if worker.pnode_id != peer.node_id:
            raise Corrupt("a delegation of another PNode than the caller", code="wrong_pnode")
        return worker.worker_id


def _host_of(caller: Caller) -> str:
    """The IP address from which the connection comes. Raises Refused for one that has none."""
    try:
        host = ipaddress.ip_address(split_address(caller.address)[0])
    except (DcnrError, ValueError):
        raise Refused("the connection comes from no address that can be dialled", code="no_address") from None
    embedded = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return str(embedded or host)


async def _dialled(host: str, port: int, wanted: NodeId) -> membership_pb2.ReachResult.ValueType:
    """Never raises for what happens there."""
    if not port:
        return membership_pb2.REACH_RESULT_UNSPECIFIED
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
        writer.transport.abort()
    except (OSError, TimeoutError):
        return UNREACHED
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            certificate = await fetch_certificate(join_address(host, port))
        return REACHED if certificate_id(certificate) == wanted else UNREACHED
    except Unavailable as error:
        return UNREACHED if _is_no_tls(error.__cause__) else UNSURE
    except TimeoutError:  # a machine with much to do: its port is open all the same
        return UNSURE
    except (Corrupt, RemoteFault):
        return UNREACHED


def _is_no_tls(error: BaseException | None) -> bool:
    """Whether something else than TLS answered, rather than nothing whole."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
