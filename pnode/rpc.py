"""The worker's side of the network: its data server under its own key, and its dialler. Nothing else in the worker opens a connection."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from dcnr.client import Known, Orchestrators
from dcnr.errors import Unavailable
from dcnr.ids import NodeId
from dcnr.ports import Clock
from dcnr.rpc.certificates import Certificates
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.guard import peer_of
from dcnr.rpc.server import RpcServer
from dcnr.v1 import identity_pb2
from membership.relays import LOOPBACK, RelayDialer
from pnode.links import SERVICE, Dial
from pnode.service import DataPlane
from trust.identity import NodeKey

GRACE_S: Final = 0.2
EVERYWHERE: Final = ("0.0.0.0", "::", "")


class HeldPort:
    """A bound port that nobody else can take while the network it will serve is not known yet."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise Unavailable(
                f"cannot listen on port {port} of {host}: {error.strerror}",
                code="port_in_use",
                remedy="choose another --data-port, or 0",
            ) from error
        self.port: int = self._socket.getsockname()[1]

    @property
    def own_host(self) -> str:
        """Where this machine itself dials it."""
        return LOOPBACK if self.host in EVERYWHERE else self.host

    def free(self) -> None:
        """Gives it to whoever listens next."""
        self._socket.close()


def data_server(key: NodeKey, network_id: str, clock: Clock, service: Callable[[Callable[[Any], str]], DataPlane]) -> RpcServer:
    """A server with the data plane's only service, not started yet. Callers may come to it through relays too."""
    server = RpcServer(key, network_id, clock=clock, rng=secrets.token_bytes, apart=True)
    server.add(service(pnode_of).add_to, SERVICE)
    return server


def pnode_of(context: Any) -> str:
    """The PNode whose worker calls. Raises Refused without a session."""
    peer = peer_of(context)
    return peer.pnode_id or peer.node_id


@dataclass(frozen=True, slots=True)
class Outward:
    """What a worker dials with: other workers, each over a TCP connection of its own or, where nobody can dial them, through relays."""

    dial: Dial
    relays: Orchestrators
    certificates: Certificates


def outward(
    key: NodeKey, network_id: str, clock: Clock, delegation: Callable[[], identity_pb2.Envelope | None], relays: Known = tuple,
    near: Callable[[NodeId], Sequence[str]] = lambda worker_id: (), volunteers: Callable[[], Set[NodeId]] = frozenset,
) -> Outward:  # fmt: skip
    """``relays``: those known now; ``near``, ``volunteers``: see `RelayDialer`."""
    dialer = Dialer(key, network_id, clock=clock, rng=secrets.token_bytes, delegation=delegation, own_connections=True)
    known = Orchestrators(dialer, relays)
    return Outward(RelayDialer(dialer, known, near=near, volunteers=volunteers).connect, known, dialer.certificates)
