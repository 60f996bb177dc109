"""Records that travel between strangers: adverts and locations, believed only when signed by whom they are about, for this network, and fresh.

The same bytes are gossip and DHT records. Order: the newest (incarnation, sequence) of an advert, the newest sequence of a location.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dcnr.errors import Corrupt, DcnrError, InvalidInput, Stale
from dcnr.ids import NodeId, check_name, check_node_id, check_replica_id
from dcnr.limits import ADVERT_LIFETIME_S, DHT_RECORD_LIFETIME_S, MAX_ADVERT_BYTES, MAX_CLOCK_SKEW_S, MAX_DHT_RECORD_BYTES
from dcnr.v1 import common_pb2, identity_pb2, membership_pb2
from trust.addresses import check_addresses, split_address
from trust.delegation import VerifiedDelegation, open_delegation
from trust.envelope import open_single, parse, parse_envelope, seal
from trust.identity import NodeKey
from trust.ownership import owner_in
from trust.public_names import check_public_name

DHT_KEY_BYTES: Final = 20
_KINDS: Final = (membership_pb2.NODE_KIND_PNODE, membership_pb2.NODE_KIND_ORCHESTRATOR)
_SEQUENCE_SPAN: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class VerifiedAdvert:
    """An advert whose signature, network and time were found right when it was opened. ``delegation`` is None where there is none in force."""

    advert: membership_pb2.Advert
    node_id: NodeId
    delegation: VerifiedDelegation | None
    envelope: identity_pb2.Envelope
    owner: str = ""
    """Id of the key that says the node is its own; empty where none does."""

    @property
    def order(self) -> tuple[int, int]:
        """Newer adverts of a node have a higher one."""
        return (self.advert.incarnation, self.advert.sequence)

    @property
    def expires_wall(self) -> float:
        """Network time (s) at which the advert is forgotten."""
        return self.advert.expires_unix_ms / 1000

    @property
    def is_orchestrator(self) -> bool:
        """What the node says it is; whether it may is the network document's business."""
        return self.advert.kind == membership_pb2.NODE_KIND_ORCHESTRATOR


@dataclass(frozen=True, slots=True)
class VerifiedLocation:
    """A location whose signature, network and time were found right when it was opened. The plan, not the record, says who *should* host it."""

    location: membership_pb2.Location
    pnode_id: NodeId
    delegation: VerifiedDelegation
    envelope: identity_pb2.Envelope

    @property
    def expires_wall(self) -> float:
        """Network time (s) at which the location is forgotten."""
        return self.location.expires_unix_ms / 1000


@dataclass(frozen=True, slots=True)
class DhtFacts:
    """What a valid DHT record says about itself."""

    key: bytes
    owner: NodeId
    sequence: int
    expires_wall: float


def make_advert(
    key: NodeKey,
    *,
    network_id: str,
    kind: membership_pb2.NodeKind.ValueType,
    incarnation: int,
    sequence: int,
    control_addresses: Sequence[str],
    now_wall: float,
    lifetime_s: float = ADVERT_LIFETIME_S,
    dht_address: str = "",
    capability: membership_pb2.Capability | None = None,
    delegation: identity_pb2.Envelope | None = None,
    software: str = "",
    protocol: common_pb2.ProtocolRange | None = None,
    owner: identity_pb2.Envelope | None = None,
    public_name: str = "",
) -> identity_pb2.Envelope:
    """A node's signed description of itself. Raises InvalidInput where `open_advert` would refuse it."""
    if not 0 < lifetime_s <= ADVERT_LIFETIME_S or kind not in _KINDS:
        raise InvalidInput(f"an advert has a kind and lives at most {ADVERT_LIFETIME_S:g} s", code="bad_advert")
    if dht_address:
        split_address(dht_address)
    advert = membership_pb2.Advert(
        network_id=network_id,
        node_id=key.node_id,
        kind=kind,
        incarnation=incarnation,
        sequence=sequence,
        control_addresses=check_addresses(control_addresses),
        dht_address=dht_address,
        capability=capability,
        delegation=delegation,
        software=software,
        protocol=protocol,
        issued_unix_ms=int(now_wall * 1000),
        expires_unix_ms=int((now_wall + lifetime_s) * 1000),
        owner=owner,
        public_name=check_public_name(public_name),
    )
    envelope = seal(identity_pb2.DOMAIN_ADVERT, advert, key)
    if envelope.ByteSize() > MAX_ADVERT_BYTES:
        raise InvalidInput(
            f"an advert of {envelope.ByteSize()} bytes, at most {MAX_ADVERT_BYTES} are allowed", code="advert_too_large"
        )
    return envelope


def open_advert(envelope: identity_pb2.Envelope, *, network_id: str, now_wall: float) -> VerifiedAdvert:
    """The facts of an advert that is valid now. Raises Corrupt, or Stale (``advert_expired``) for one that was valid once."""
    payload, signer = open_single(envelope, identity_pb2.DOMAIN_ADVERT, max_bytes=MAX_ADVERT_BYTES)
    advert = parse(membership_pb2.Advert, payload)
    if advert.network_id != network_id:
        raise Corrupt("an advert of another network", code="wrong_network")
    if advert.node_id != signer.node_id:
        raise Corrupt("an advert that its node did not sign", code="wrong_signer")
    if advert.kind not in _KINDS:
        raise Corrupt("an advert without a known kind", code="bad_advert")
    try:
        check_addresses(advert.control_addresses)
        if advert.dht_address:
            split_address(advert.dht_address)
    except InvalidInput as error:
        raise Corrupt(f"an advert with a bad address: {error.message}", code="bad_address") from error
    issued, expires = advert.issued_unix_ms / 1000, advert.expires_unix_ms / 1000
    if not 0 < expires - issued <= ADVERT_LIFETIME_S or issued > now_wall + MAX_CLOCK_SKEW_S:
        raise Corrupt("an advert with an impossible lifetime", code="bad_lifetime")
    if expires <= now_wall:
        raise Stale("the advert has expired", code="advert_expired")
    owner = owner_in(advert.owner, advert.node_id) if advert.HasField("owner") else ""
    return VerifiedAdvert(advert, signer.node_id, _delegation_in_force(advert, network_id, now_wall), envelope, owner)


def make_location(
    key: NodeKey,
    *,
    network_id: str,
    model: str,
    replica: str,
    delegation: identity_pb2.Envelope,
    sequence: int,
    now_wall: float,
    lifetime_s: float = DHT_RECORD_LIFETIME_S,
) -> identity_pb2.Envelope:
    """A PNode's signed statement that it hosts a replica. Raises InvalidInput where it would not fit a DHT record."""
    if not 0 < lifetime_s <= DHT_RECORD_LIFETIME_S:
        raise InvalidInput(f"a location lives at most {DHT_RECORD_LIFETIME_S:g} s", code="bad_lifetime")
    location = membership_pb2.Location(
        network_id=network_id,
        model=check_name(model),
        replica=check_replica_id(replica),
        pnode_id=key.node_id,
        delegation=delegation,
        sequence=sequence,
        expires_unix_ms=int((now_wall + lifetime_s) * 1000),
    )
    envelope = seal(identity_pb2.DOMAIN_LOCATION, location, key)
    if envelope.ByteSize() > MAX_DHT_RECORD_BYTES:
        raise InvalidInput(
            f"a location of {envelope.ByteSize()} bytes, at most {MAX_DHT_RECORD_BYTES} are allowed",
            code="record_too_large",
            remedy="give the worker fewer or shorter data addresses",
        )
    return envelope


def open_location(envelope: identity_pb2.Envelope, *, network_id: str, now_wall: float) -> VerifiedLocation:
    """The facts of a location that is valid now. Raises Corrupt, or Stale (``location_expired``, ``delegation_expired``)."""
    payload, signer = open_single(envelope, identity_pb2.DOMAIN_LOCATION, max_bytes=MAX_DHT_RECORD_BYTES)
    location = parse(membership_pb2.Location, payload)
    if location.network_id != network_id:
        raise Corrupt("a location of another network", code="wrong_network")
    if location.pnode_id != signer.node_id:
        raise Corrupt("a location that its PNode did not sign", code="wrong_signer")
    try:
        check_name(location.model)
        check_replica_id(location.replica)
    except InvalidInput as error:
        raise Corrupt(error.message, code="bad_location") from error
    expires = location.expires_unix_ms / 1000
    if expires > now_wall + DHT_RECORD_LIFETIME_S + MAX_CLOCK_SKEW_S:
        raise Corrupt("a location with an impossible lifetime", code="bad_lifetime")
    if expires <= now_wall:
        raise Stale("the location has expired", code="location_expired")
    delegation = open_delegation(location.delegation, network_id=network_id, now_wall=now_wall)
    if delegation.pnode_id != signer.node_id:
        raise Corrupt("a location with another PNode's delegation", code="wrong_signer")
    return VerifiedLocation(location, signer.node_id, delegation, envelope)


def advert_key(node_id: str) -> bytes:
    """The DHT key of a node's advert, 20 bytes."""
    return _dht_key("advert", check_node_id(node_id))


def location_key(network_id: str, model: str, replica: str, pnode_id: str) -> bytes:
    """The DHT key of a replica's location at a PNode, 20 bytes: no record of another signer belongs there."""
    return _dht_key("location", network_id, check_name(model), check_replica_id(replica), check_node_id(pnode_id))


def dht_facts(network_id: str, key: bytes, record: bytes, now_wall: float) -> DhtFacts | None:
    """What a DHT record says about itself if it is valid now and belongs under ``key``; else None. Never raises."""
    try:
        envelope = parse_envelope(record, MAX_DHT_RECORD_BYTES)
        if envelope.domain == identity_pb2.DOMAIN_ADVERT:
            facts = _advert_facts(open_advert(envelope, network_id=network_id, now_wall=now_wall))
        else:
            facts = _location_facts(open_location(envelope, network_id=network_id, now_wall=now_wall))
    except DcnrError:
        return None
    return facts if facts.key == key else None


def _advert_facts(verified: VerifiedAdvert) -> DhtFacts:
    incarnation, sequence = verified.order
    return DhtFacts(advert_key(verified.node_id), verified.node_id, incarnation * _SEQUENCE_SPAN + sequence, verified.expires_wall)


def _location_facts(verified: VerifiedLocation) -> DhtFacts:
    location = verified.location
    key = location_key(location.network_id, location.model, location.replica, verified.pnode_id)
    return DhtFacts(key, verified.pnode_id, location.sequence, min(verified.expires_wall, verified.delegation.expires_wall))


def _delegation_in_force(advert: membership_pb2.Advert, network_id: str, now_wall: float) -> VerifiedDelegation | None:
    if not advert.HasField("delegation"):
        return None
    try:
        delegation = open_delegation(advert.delegation, network_id=network_id, now_wall=now_wall)
    except Stale:  # outlived by the advert that carries it: the node is there, its worker's key is not good any more
        return None
    if delegation.pnode_id != advert.node_id:
        raise Corrupt("an advert with another PNode's delegation", code="wrong_signer")
    return delegation


def _dht_key(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()[:DHT_KEY_BYTES]
