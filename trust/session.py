"""Sessions: a caller proves its key once per connection; the token it gets is worth nothing on another connection, server, network or day.

Pure: time, addresses and randomness come with the calls. The proof covers the server's id, the digest of the certificate that the caller saw, both nonces
and the network, so a proof made for one server is useless at another. Tokens belong to one transport connection (``connection``: the peer's address and
port) and to one process (they are kept in its memory only). Everything here is bounded: nonces, sessions in all, per id and per subnet.
"""

from __future__ import annotations

import hmac
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dcnr.errors import Refused, RemoteFault, Unavailable
from dcnr.ids import NodeId
from dcnr.v1 import common_pb2, identity_pb2
from trust.delegation import open_delegation
from trust.envelope import open_single, parse, seal
from trust.identity import NodeKey
from trust.network import PROTOCOL_MAX, PROTOCOL_MIN
from trust.rates import Rate, TokenBuckets

NONCE_BYTES: Final = 32
TOKEN_BYTES: Final = 32
NONCE_LIFETIME_S: Final = 10.0
SESSION_LIFETIME_S: Final = 3600.0
MAX_PROOF_BYTES: Final = 1024
SUBNET_RATE: Final = Rate(per_s=100.0, burst=600.0)
ID_RATE: Final = Rate(per_s=10.0, burst=120.0)

RandomBytes = Callable[[int], bytes]
"""Unpredictable bytes (``secrets.token_bytes`` in processes)."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of a `SessionBook`."""

    max_nonces: int = 4096
    max_sessions: int = 16384
    max_sessions_per_id: int = 64
    max_sessions_per_subnet: int = 4096
    per_subnet: Rate = SUBNET_RATE
    per_id: Rate = ID_RATE


@dataclass(frozen=True, slots=True)
class Peer:
    """Who calls: ``node_id`` belongs to the key that proved itself. For a worker that is the worker's own id, and ``pnode_id`` the PNode it acts for.

    A handler that wants the daemon itself compares ``node_id``; one that serves workers too uses ``pnode_id or node_id``.
    """

    node_id: NodeId
    worker_id: NodeId | None
    pnode_id: NodeId | None
    address: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Where a call comes from: the connection (unique while it lives), its address as text, and the subnet that limits count by."""

    connection: str
    address: str
    subnet: str


@dataclass(slots=True)
class _Session:
    peer: Peer
    caller: Caller
    expires_at: float  # monotonic


class SessionBook:
    """The server's side; one per server process."""

    def __init__(
        self,
        *,
        server_id: str,
        certificate_sha256: bytes,
        network_id: str,
        random_bytes: RandomBytes,
        protocol: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX),
        limits: SessionLimits | None = None,
    ) -> None:
        self._server_id, self._certificate, self._network_id = server_id, certificate_sha256, network_id
        self._random, self._protocol = random_bytes, protocol
        self._limits = limits or SessionLimits()
        self._nonces: OrderedDict[bytes, tuple[Caller, bytes, float]] = OrderedDict()
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()  # oldest first
        self._by_id: dict[str, list[bytes]] = {}
        self._by_subnet: dict[str, int] = {}
        self._subnets = TokenBuckets(self._limits.per_subnet)
        self._ids = TokenBuckets(self._limits.per_id)

    def __len__(self) -> int:
        return len(self._sessions)

    def challenge(
        self, request: identity_pb2.ChallengeRequest, caller: Caller, *, now: float, now_wall: float
    ) -> identity_pb2.ChallengeResponse:
        """A nonce that is good once, on this connection, for 10 s. Raises Refused, Unavailable (``rate_limited``)."""
        if len(request.client_nonce) != NONCE_BYTES:
            raise Refused("the nonce has the wrong length", code="bad_nonce")
        self._limit(self._subnets, caller.subnet, now)
        while self._nonces and next(iter(self._nonces.values()))[2] <= now:
            self._nonces.popitem(last=False)
        if len(self._nonces) >= self._limits.max_nonces and not self._crowd_out_nonce(caller.subnet):
            raise Unavailable("too many sessions are being opened", code="rate_limited", retry_after_s=NONCE_LIFETIME_S)
        nonce = self._random(NONCE_BYTES)
        self._nonces[nonce] = (caller, request.client_nonce, now + NONCE_LIFETIME_S)
        return identity_pb2.ChallengeResponse(
            server_nonce=nonce,
            protocol=common_pb2.ProtocolRange(min=self._protocol[0], max=self._protocol[1]),
            network_id=self._network_id,
            time_unix_ms=int(now_wall * 1000),
        )

    def open(self, request: identity_pb2.OpenRequest, caller: Caller, *, now: float, now_wall: float) -> identity_pb2.OpenResponse:
        """A token for the caller, if its proof is right in every part. Raises Refused, Corrupt, Stale (delegation), Unavailable."""
        self._limit(self._subnets, caller.subnet, now)
        payload, signer = open_single(request.proof, identity_pb2.DOMAIN_SESSION, max_bytes=MAX_PROOF_BYTES)
        proof = parse(identity_pb2.SessionProof, payload, MAX_PROOF_BYTES)
        self._limit(self._ids, signer.node_id, now)
        self._check_nonces(proof, caller, now)
        if proof.server_id != self._server_id or not hmac.compare_digest(proof.server_certificate_sha256, self._certificate):
            raise Refused("the proof was made for another server", code="wrong_server")
        if proof.network_id != self._network_id:
            raise Refused(
                "the caller belongs to another network", code="wrong_network", wanted=self._network_id, got=proof.network_id[:64]
            )
        version = common_version(self._protocol, proof.protocol)
        peer = Peer(signer.node_id, None, None, caller.address)
        lifetime_s = SESSION_LIFETIME_S
        if request.HasField("delegation"):
            delegation = open_delegation(request.delegation, network_id=self._network_id, now_wall=now_wall)
            if delegation.worker_public_der != signer.public_der:
                raise Refused("the delegation is for another key", code="wrong_delegation")
            peer = Peer(signer.node_id, delegation.worker_id, delegation.pnode_id, caller.address)
            lifetime_s = min(lifetime_s, delegation.expires_wall - now_wall)
        token = self._admit(_Session(peer, caller, now + lifetime_s), now)
        return identity_pb2.OpenResponse(
            token=token, expires_unix_ms=int((now_wall + lifetime_s) * 1000), observed_address=caller.address, protocol=version
        )

    def knows(self, token: bytes, *, now: float) -> bool:
        """Whether a token could be good: a cheap look before anything of a call is read."""
        session = self._sessions.get(token)
        return session is not None and session.expires_at > now

    def check(self, token: bytes, connection: str, *, now: float) -> Peer:
        """Who calls with this token over this connection. Raises Refused (``session_required``, ``session_expired``, ``session_elsewhere``)."""
        session = self._sessions.get(token)
        if session is None:
            raise Refused("no such session in this process", code="session_required", remedy="open a session")
        if session.expires_at <= now:
            raise Refused("the session has expired", code="session_expired", remedy="open a new session")
        if session.caller.connection != connection:
            raise Refused("the session belongs to another connection", code="session_elsewhere", remedy="open a session")
        return session.peer

    def _check_nonces(self, proof: identity_pb2.SessionProof, caller: Caller, now: float) -> None:
        issued = self._nonces.pop(proof.server_nonce, None)  # used once, whatever follows
        if issued is None or issued[2] <= now:
            raise Refused("the challenge is unknown, used or older than 10 s", code="bad_nonce", remedy="ask for a new challenge")
        if issued[0].connection != caller.connection or not hmac.compare_digest(issued[1], proof.client_nonce):
            raise Refused("the challenge was given to another caller", code="bad_nonce", remedy="ask for a new challenge")

    def _admit(self, session: _Session, now: float) -> bytes:
        """Keeps the session. An id's oldest session gives way to its newest. A full table is made room in by the most crowded subnet, never by a
        smaller one for a larger: a few subnets full of strangers keep nobody else out, and push nobody else out.
        """
        if self._full(session.caller.subnet):
            for token in [t for t, s in self._sessions.items() if s.expires_at <= now]:
                self._drop(token)
        own = self._by_id.get(session.peer.node_id, [])
        while len(own) >= self._limits.max_sessions_per_id:
            self._drop(own[0])
            own = self._by_id.get(session.peer.node_id, [])
        if len(self._sessions) >= self._limits.max_sessions:
            self._crowd_out_session(session.caller.subnet)
        if self._full(session.caller.subnet):
            raise Unavailable("too many sessions are open", code="too_many_sessions", retry_after_s=30.0)
        token = self._random(TOKEN_BYTES)
        self._sessions[token] = session
        self._by_id.setdefault(session.peer.node_id, []).append(token)
        self._by_subnet[session.caller.subnet] = self._by_subnet.get(session.caller.subnet, 0) + 1
        return token

    def _full(self, subnet: str) -> bool:
        return (
            len(self._sessions) >= self._limits.max_sessions
            or self._by_subnet.get(subnet, 0) >= self._limits.max_sessions_per_subnet
        )

    def _crowd_out_session(self, newcomer: str) -> None:
        crowded = max(sorted(self._by_subnet), key=lambda subnet: self._by_subnet[subnet])
        if self._by_subnet[crowded] > self._by_subnet.get(newcomer, 0) + 1:
            self._drop(next(token for token, session in self._sessions.items() if session.caller.subnet == crowded))

    def _crowd_out_nonce(self, newcomer: str) -> bool:
        counts = Counter(issued[0].subnet for issued in self._nonces.values())
        crowded = max(sorted(counts), key=lambda subnet: counts[subnet])
        if counts[crowded] <= counts[newcomer] + 1:
            return False
        del self._nonces[next(nonce for nonce, issued in self._nonces.items() if issued[0].subnet == crowded)]
        return True

    def _drop(self, token: bytes) -> None:
        session = self._sessions.pop(token)
        tokens = self._by_id[session.peer.node_id]
        tokens.remove(token)
        if not tokens:
            del self._by_id[session.peer.node_id]
        self._by_subnet[session.caller.subnet] -= 1
        if not self._by_subnet[session.caller.subnet]:
            del self._by_subnet[session.caller.subnet]

    def _limit(self, buckets: TokenBuckets, name: str, now: float) -> None:
        wait_s = buckets.wait_s(name, now)
        if wait_s:
            raise Unavailable("too many sessions are being opened from there", code="rate_limited", retry_after_s=wait_s)


def common_version(own: tuple[int, int], other: common_pb2.ProtocolRange) -> int:
    """The highest protocol version that both speak. Raises Refused (``protocol_mismatch``)."""
    version = min(own[1], other.max)
    if version < max(own[0], other.min) or other.min < 1:
        raise Refused(
            f"no protocol version in common: {own[0]} to {own[1]} here, {other.min} to {other.max} there",
            code="protocol_mismatch",
            remedy="update the older side",
        )
    return version


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """The client's side of an open session; ``expires_at`` is monotonic time, early by the round trip."""

    token: bytes
    expires_at: float
    observed_address: str
    protocol: int


@dataclass(frozen=True, slots=True)
class SessionOpening:
    """The client's side while a session is being opened: what was asked, and when."""

    key: NodeKey
    network_id: str
    server_id: str
    certificate_sha256: bytes
    client_nonce: bytes
    protocol: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX)

    def prove(
        self, challenge: identity_pb2.ChallengeResponse, delegation: identity_pb2.Envelope | None = None
    ) -> identity_pb2.OpenRequest:
        """The answer to a challenge. Raises Refused (``wrong_network``, ``protocol_mismatch``), RemoteFault."""
        if challenge.network_id != self.network_id:
            raise Refused(
                "the server belongs to another network",
                code="wrong_network",
                wanted=self.network_id,
                got=challenge.network_id[:64],
                remedy="check the address, and which network is meant: --network, --network-id, or network.json in the home directory",
            )
        common_version(self.protocol, challenge.protocol)
        if len(challenge.server_nonce) != NONCE_BYTES:
            raise RemoteFault("the server's nonce has the wrong length", code="bad_nonce")
        proof = identity_pb2.SessionProof(
            server_id=self.server_id,
            server_certificate_sha256=self.certificate_sha256,
            client_nonce=self.client_nonce,
            server_nonce=challenge.server_nonce,
            network_id=self.network_id,
            protocol=common_pb2.ProtocolRange(min=self.protocol[0], max=self.protocol[1]),
        )
        return identity_pb2.OpenRequest(proof=seal(identity_pb2.DOMAIN_SESSION, proof, self.key), delegation=delegation)

    def opened(
        self,
        challenge: identity_pb2.ChallengeResponse,
        response: identity_pb2.OpenResponse,
        *,
        asked_at: float,
    ) -> OpenedSession:
        """The session that the server's answer gives. ``asked_at``: when the challenge was sent, monotonic. Raises RemoteFault."""
        if len(response.token) != TOKEN_BYTES or not self.protocol[0] <= response.protocol <= self.protocol[1]:
            raise RemoteFault("the server's answer opens no session", code="bad_session")
        lifetime_s = (response.expires_unix_ms - challenge.time_unix_ms) / 1000  # by the server's clock alone
        return OpenedSession(
            token=response.token,
            expires_at=asked_at + min(max(lifetime_s, 0.0), SESSION_LIFETIME_S),
            observed_address=response.observed_address[:255],
            protocol=response.protocol,
        )
