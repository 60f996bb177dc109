"""Keeps this node's records in the directory: its advert in a short form, and the locations of its replicas; signed anew before they expire.

The short advert leaves out what only gossip carries (capability, owner) and takes the sequence just below the full one, so that who finds it in the
directory replaces it by the full advert as soon as gossip brings that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dcnr.errors import DcnrError, InvalidInput
from dcnr.limits import DHT_RECORD_LIFETIME_S, DHT_REPUBLISH_S, MAX_DHT_RECORD_BYTES
from dcnr.v1 import identity_pb2, membership_pb2
from membership.directory import Directory
from membership.network_time import NetworkTime
from trust.envelope import seal
from trust.identity import NodeKey
from trust.records import advert_key, location_key, make_location

MAX_LOCATIONS: Final = 200
SHORT_ADDRESSES: Final = 2
AGAIN_S: Final = 10.0
"""What nobody keeps, or what failed, is published again after this time."""


@dataclass(slots=True)
class _Published:
    delegation: identity_pb2.Envelope
    due: float  # monotonic
    sequence: int


class Publisher:
    """Own records; `refresh` is called every few seconds."""

    def __init__(self, key: NodeKey, network_id: str, *, directory: Directory, time: NetworkTime) -> None:
        self._key, self._network_id, self._directory, self._time = key, network_id, directory, time
        self._locations: dict[tuple[str, str], _Published] = {}
        self._advert_due = float("-inf")
        self.num_failures = 0

    def advert_changed(self) -> None:
        """The advert is published at the next `refresh`."""
        self._advert_due = float("-inf")

    async def publish_location(self, model: str, replica: str, delegation: identity_pb2.Envelope) -> int:
        """How many nodes keep the record now; `refresh` goes on until it is withdrawn. Raises InvalidInput, and what the directory raises."""
        if (model, replica) not in self._locations and len(self._locations) >= MAX_LOCATIONS:
            raise InvalidInput(f"a node publishes at most {MAX_LOCATIONS} locations", code="too_many_records")
        previous = self._locations.get((model, replica))
        published = _Published(delegation, 0.0, previous.sequence if previous else 0)
        self._locations[(model, replica)] = published  # before it is done: one that is withdrawn meanwhile stays withdrawn
        return await self._put_location(model, replica, published)

    def withdraw_location(self, model: str, replica: str) -> None:
        """Lets the record expire."""
        self._locations.pop((model, replica), None)

    async def refresh(self, own: identity_pb2.Envelope | None) -> None:
        """Publishes what is due; a failure is counted."""
        now = self._time.monotonic()
        try:
            if own is not None and now >= self._advert_due:
                self._advert_due = now + AGAIN_S  # before it is done: one that changes meanwhile is due at once
                kept = await self._directory.put(advert_key(self._key.node_id), short_advert(own, self._key, self._time.wall()))
                if kept and self._advert_due > now:
                    self._advert_due = now + DHT_REPUBLISH_S
            for (model, replica), published in list(self._locations.items()):
                if now >= published.due and self._locations.get((model, replica)) is published:
                    await self._put_location(model, replica, published)
        except DcnrError:
            self.num_failures += 1

    async def _put_location(self, model: str, replica: str, published: _Published) -> int:
        published.sequence = max(published.sequence + 1, int(self._time.wall() * 1000))
        envelope = make_location(
            self._key,
            network_id=self._network_id,
            model=model,
            replica=replica,
            delegation=published.delegation,
            sequence=published.sequence,
            now_wall=self._time.wall(),
        )
        now = self._time.monotonic()
        published.due = now + AGAIN_S
        key = location_key(self._network_id, model, replica, self._key.node_id)
        kept = await self._directory.put(key, envelope.SerializeToString())
        if kept:
            published.due = now + DHT_REPUBLISH_S
        return kept


def short_advert(own: identity_pb2.Envelope, key: NodeKey, now_wall: float) -> bytes:
    """The advert as a directory record: at most 1 KiB, with the delegation if that fits. Raises InvalidInput if even the addresses do not."""
    full = membership_pb2.Advert.FromString(own.payload)
    short = membership_pb2.Advert(
        network_id=full.network_id,
        node_id=full.node_id,
        kind=full.kind,
        incarnation=full.incarnation,
        sequence=full.sequence - 1,
        control_addresses=full.control_addresses[:SHORT_ADDRESSES],
        dht_address=full.dht_address,
        delegation=full.delegation if full.HasField("delegation") else None,
        protocol=full.protocol,
        issued_unix_ms=int(now_wall * 1000),
        expires_unix_ms=int((now_wall + DHT_RECORD_LIFETIME_S) * 1000),
    )
    for smaller in ("", "delegation", "dht_address"):
        if smaller:
            short.ClearField(smaller)  # type: ignore[arg-type]  # names from the line above
        record = seal(identity_pb2.DOMAIN_ADVERT, short, key).SerializeToString()
        if len(record) <= MAX_DHT_RECORD_BYTES:
            return record
    raise InvalidInput("the control addresses do not fit a directory record", code="record_too_large", remedy="use shorter names")
