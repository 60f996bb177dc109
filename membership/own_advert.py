"""Our own advert: what it says, and its place in order, which only grows within a life and over restarts."""

from __future__ import annotations

from typing import Any, Final

from dcnr.errors import InvalidInput
from dcnr.v1 import common_pb2, identity_pb2, membership_pb2
from trust.addresses import check_addresses
from trust.identity import NodeKey
from trust.network import PROTOCOL_MAX, PROTOCOL_MIN
from trust.records import make_advert

ADVERT_FIELDS: Final = frozenset(
    {"control_addresses", "dht_address", "capability", "delegation", "software", "owner", "public_name"}
)
SEQUENCE_STEP: Final = 2
"""Leaves room below each advert for its short form in the directory."""


class OwnAdvert:
    """Fields and order of the own advert; `make` signs the next one."""

    def __init__(self, key: NodeKey, network_id: str, kind: membership_pb2.NodeKind.ValueType, incarnation: int) -> None:
        self._key, self._network_id, self._kind, self._incarnation = key, network_id, kind, incarnation
        self._sequence = 0
        self._fields: dict[str, Any] = {}

    @property
    def order(self) -> tuple[int, int]:
        """Of the newest one made."""
        return (self._incarnation, self._sequence)

    @property
    def control_addresses(self) -> list[str]:
        """Where our control server is reached."""
        return list(self._fields.get("control_addresses", ()))

    @property
    def dht_address(self) -> str:
        """Where our directory node is reached; may be empty."""
        return str(self._fields.get("dht_address", ""))

    def update(self, fields: dict[str, Any]) -> None:
        """Changes what the next advert says. Raises InvalidInput for anything but `ADVERT_FIELDS`."""
        unknown = sorted(set(fields) - ADVERT_FIELDS)
        if unknown:
            raise InvalidInput(f"an advert has no field {unknown[0]}", code="bad_advert")
        if "control_addresses" in fields:
            fields = {**fields, "control_addresses": list(check_addresses(fields["control_addresses"]))}
        self._fields.update(fields)

    def set_default(self, name: str, value: object) -> None:
        """Sets a field that nobody has set yet."""
        if name not in self._fields:
            self.update({name: value})

    def rise_above(self, order: tuple[int, int]) -> None:
        """An advert of an earlier life goes round with this order: the next one gets a higher one."""
        if order > self.order:
            self._incarnation = max(self._incarnation, order[0] + 1)

    def make(self, now_wall: float, lifetime_s: float) -> identity_pb2.Envelope:
        """The next advert, signed. Raises InvalidInput if it became too large."""
        self._sequence += SEQUENCE_STEP
        return make_advert(
            self._key,
            network_id=self._network_id,
            kind=self._kind,
            incarnation=self._incarnation,
            sequence=self._sequence,
            now_wall=now_wall,
            lifetime_s=lifetime_s,
            protocol=common_pb2.ProtocolRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX),
            **self._fields,
        )
