"""Delegations: a worker key acts for a PNode, inside one network, for at most a day, and only as that PNode has signed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dcnr.errors import Corrupt, InvalidInput, Stale
from dcnr.ids import NodeId, node_id_of
from dcnr.limits import DELEGATION_LIFETIME_S, MAX_CLOCK_SKEW_S
from dcnr.ports import Clock
from dcnr.v1 import identity_pb2
from trust.addresses import check_addresses
from trust.envelope import open_single, parse, seal
from trust.identity import NodeKey, check_public_key

MAX_DELEGATION_BYTES: Final = 3 * 1024
MAX_OPENED: Final = 1024


@dataclass(frozen=True, slots=True)
class VerifiedDelegation:
    """A delegation whose signature, network and time were found right when it was opened."""

    pnode_id: NodeId
    worker_public_der: bytes
    worker_id: NodeId
    addresses: tuple[str, ...]
    incarnation: int
    expires_wall: float
    envelope: identity_pb2.Envelope
    near: tuple[str, ...] = ()
    """Where only machines of the same house dial it."""


def make_delegation(
    node_key: NodeKey,
    network_id: str,
    worker_public_der: bytes,
    incarnation: int,
    addresses: Sequence[str],
    now_wall: float,
    lifetime_s: float = DELEGATION_LIFETIME_S,
    near: Sequence[str] = (),
) -> identity_pb2.Envelope:
    """A signed delegation that is valid from now on. Raises InvalidInput, Corrupt (no proper key)."""
    if not 0 < lifetime_s <= DELEGATION_LIFETIME_S:
        raise InvalidInput(f"a delegation lives at most {DELEGATION_LIFETIME_S:g} s", code="bad_lifetime")
    delegation = identity_pb2.Delegation(
        network_id=network_id,
        pnode_id=node_key.node_id,
        worker_public_key=check_public_key(worker_public_der),
        incarnation=incarnation,
        data_addresses=check_addresses(addresses),
        not_before_unix_ms=int(now_wall * 1000),
        expires_unix_ms=int((now_wall + lifetime_s) * 1000),
        near_addresses=check_addresses(near),
    )
    return seal(identity_pb2.DOMAIN_DELEGATION, delegation, node_key)


def open_delegation(envelope: identity_pb2.Envelope, *, network_id: str, now_wall: float) -> VerifiedDelegation:
    """The facts of a delegation that is valid now. Raises Corrupt, or Stale (``delegation_expired``) for one that was valid once."""
    payload, signer = open_single(envelope, identity_pb2.DOMAIN_DELEGATION, max_bytes=MAX_DELEGATION_BYTES)
    delegation = parse(identity_pb2.Delegation, payload)
    if delegation.network_id != network_id:
        raise Corrupt("a delegation of another network", code="wrong_network")
    if delegation.pnode_id != signer.node_id:
        raise Corrupt("a delegation that its PNode did not sign", code="wrong_signer")
    try:
        addresses, near = check_addresses(delegation.data_addresses), check_addresses(delegation.near_addresses)
    except InvalidInput as error:
        raise Corrupt(f"a delegation with a bad address: {error.message}", code="bad_address") from error
    not_before, expires = delegation.not_before_unix_ms / 1000, delegation.expires_unix_ms / 1000
    if not 0 < expires - not_before <= DELEGATION_LIFETIME_S or not_before > now_wall + MAX_CLOCK_SKEW_S:
        raise Corrupt("a delegation with an impossible lifetime", code="bad_lifetime")
    worker_key = check_public_key(delegation.worker_public_key)
    if expires <= now_wall:
        raise Stale("the delegation has expired", code="delegation_expired")
    return VerifiedDelegation(
        pnode_id=signer.node_id,
        worker_public_der=worker_key,
        worker_id=node_id_of(worker_key),
        addresses=addresses,
        incarnation=delegation.incarnation,
        expires_wall=expires,
        envelope=envelope,
        near=near,
    )


def open_past_delegation(envelope: identity_pb2.Envelope, *, network_id: str) -> VerifiedDelegation:
    """The facts of a delegation as it was when it began; that it has ended since does not count. Raises Corrupt, Stale."""
    begins = parse(identity_pb2.Delegation, envelope.payload).not_before_unix_ms / 1000
    return open_delegation(envelope, network_id=network_id, now_wall=begins)


class OpenedDelegations:
    """`open_delegation` for whoever meets the same ones again and again: what was found right is looked up by its bytes, and only its end checked again."""

    def __init__(self, network_id: str, clock: Clock) -> None:
        self._network_id, self._clock = network_id, clock
        self._opened: dict[bytes, VerifiedDelegation] = {}

    def open(self, envelope: identity_pb2.Envelope) -> VerifiedDelegation:
        """Raises as `open_delegation` does."""
        data, now_wall = envelope.SerializeToString(deterministic=True), self._clock.wall()
        known = self._opened.get(data)
        if known is not None and known.expires_wall > now_wall:
            return known
        opened = open_delegation(envelope, network_id=self._network_id, now_wall=now_wall)
        while len(self._opened) >= MAX_OPENED:
            del self._opened[next(iter(self._opened))]
        self._opened[data] = opened
        return opened
