"""A bounded store of other nodes' records: only valid, unexpired ones are kept or given out, and only their owner replaces one, by a newer one.

Pure: time comes with every call. Bounds: one record per key; `max_per_owner`, `max_per_subnet` (of whoever brought it) and `max_records` in
all. When the store is full the record that expires first gives way, unless the newcomer would expire sooner still. Expiry is capped at the record
lifetime plus clock skew, so that nobody holds a place by naming a far future.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dcnr.limits import DHT_RECORD_LIFETIME_S, MAX_CLOCK_SKEW_S, MAX_DHT_RECORD_BYTES
from membership.directory import KEY_BYTES, VerifiedRecord, Verify

MAX_RECORDS: Final = 16384
MAX_RECORDS_PER_OWNER: Final = 256
MAX_RECORDS_PER_SUBNET: Final = 2048


class StoreResult(StrEnum):
    """Why a record was kept or refused; the values are the reasons counted in statistics."""

    KEPT = "kept"
    SAME = "same"
    MALFORMED = "malformed_record"
    INVALID = "invalid_record"
    EXPIRED = "expired_record"
    TOO_LONG_LIVED = "too_long_lived"
    OLDER = "older_sequence"
    CONFLICT = "equal_sequence_other_bytes"
    OTHER_OWNER = "other_owner"
    OWNER_FULL = "owner_full"
    SUBNET_FULL = "subnet_full"
    FULL = "store_full"

    @property
    def holds(self) -> bool:
        """True if exactly these bytes are in the store now."""
        return self in (StoreResult.KEPT, StoreResult.SAME)


@dataclass(frozen=True, slots=True)
class _Entry:
    record: bytes
    facts: VerifiedRecord
    subnet: str


class RecordStore:
    """Records of others by key; see the module's first line for what it guarantees."""

    def __init__(
        self,
        verify: Verify,
        *,
        max_records: int = MAX_RECORDS,
        max_per_owner: int = MAX_RECORDS_PER_OWNER,
        max_per_subnet: int = MAX_RECORDS_PER_SUBNET,
    ) -> None:
        self._verify = verify
        self._max_records, self._max_per_owner, self._max_per_subnet = max_records, max_per_owner, max_per_subnet
        self._entries: dict[bytes, _Entry] = {}
        self._owners: Counter[str] = Counter()
        self._subnets: Counter[str] = Counter()
        self._by_expiry: list[tuple[float, bytes]] = []  # heap; rows of replaced records are dropped lazily

    def __len__(self) -> int:
        return len(self._entries)

    def keys(self) -> Iterator[bytes]:
        """Keys held, expired ones possibly among them until the next `sweep`."""
        return iter(self._entries)

    def offer(self, key: object, record: object, *, subnet: str, now_wall: float) -> StoreResult:
        """Keeps the record if it is valid and newer. ``subnet`` is that of the bringer, empty where the bound per subnet does not apply."""
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            return StoreResult.MALFORMED
        if not isinstance(record, bytes) or not 0 < len(record) <= MAX_DHT_RECORD_BYTES:
            return StoreResult.MALFORMED
        self.sweep(now_wall)
        held = self._entries.get(key)
        if held is not None and held.record == record:
            return StoreResult.SAME  # before the signature: republishing costs no verification
        facts = self._verify(key, record, now_wall)
        if facts is None or facts.key != key:
            return StoreResult.INVALID
        if not facts.expires_wall > now_wall:
            return StoreResult.EXPIRED
        if facts.expires_wall > now_wall + DHT_RECORD_LIFETIME_S + MAX_CLOCK_SKEW_S:
            return StoreResult.TOO_LONG_LIVED
        if held is not None and facts.owner != held.facts.owner:
            return StoreResult.OTHER_OWNER  # else any member could take a key over with a huge sequence
        if held is not None and facts.sequence <= held.facts.sequence:
            return StoreResult.CONFLICT if facts.sequence == held.facts.sequence else StoreResult.OLDER
        return self._keep(key, _Entry(record, facts, subnet), held)

    def read(self, key: bytes, now_wall: float) -> bytes | None:
        """The record under ``key`` if it still verifies; one that does not is dropped."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        facts = self._verify(key, entry.record, now_wall)
        if facts != entry.facts or entry.facts.expires_wall <= now_wall:
            self._drop(key)
            return None
        return entry.record

    def sweep(self, now_wall: float) -> int:
        """Drops what has expired; returns how many."""
        dropped = 0
        while self._by_expiry and self._by_expiry[0][0] <= now_wall:
            expires, key = heapq.heappop(self._by_expiry)
            entry = self._entries.get(key)
            if entry is not None and entry.facts.expires_wall == expires:
                self._drop(key)
                dropped += 1
        return dropped

    def check(self) -> None:
        """Asserts the invariants; for tests."""
        assert len(self._entries) <= self._max_records
        assert self._owners == Counter(e.facts.owner for e in self._entries.values())
        assert self._subnets == Counter(e.subnet for e in self._entries.values() if e.subnet)
        assert all(n <= self._max_per_owner for n in self._owners.values())
        assert all(n <= self._max_per_subnet for n in self._subnets.values())
        assert {(e.facts.expires_wall, key) for key, e in self._entries.items()} <= set(self._by_expiry)
        assert len(self._by_expiry) <= 2 * len(self._entries) + 64

    def _keep(self, key: bytes, entry: _Entry, held: _Entry | None) -> StoreResult:
        same_subnet = held is not None and held.subnet == entry.subnet
        if held is None and self._owners[entry.facts.owner] >= self._max_per_owner:
            return StoreResult.OWNER_FULL
        if entry.subnet and not same_subnet and self._subnets[entry.subnet] >= self._max_per_subnet:
            return StoreResult.SUBNET_FULL
        if held is None and len(self._entries) >= self._max_records:
            self._compact()
            soonest, victim = self._by_expiry[0]
            if entry.facts.expires_wall <= soonest:
                return StoreResult.FULL
            self._drop(victim)
        if held is not None:
            self._drop(key)
        self._entries[key] = entry
        self._owners[entry.facts.owner] += 1
        if entry.subnet:
            self._subnets[entry.subnet] += 1
        heapq.heappush(self._by_expiry, (entry.facts.expires_wall, key))
        if len(self._by_expiry) > 2 * len(self._entries) + 64:
            self._compact()
        return StoreResult.KEPT

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key)
        for counter, name in ((self._owners, str(entry.facts.owner)), (self._subnets, entry.subnet)):
            counter[name] -= 1
            if counter[name] <= 0:
                del counter[name]

    def _compact(self) -> None:
        """Forgets heap rows of replaced records."""
        self._by_expiry = [(entry.facts.expires_wall, key) for key, entry in self._entries.items()]
        heapq.heapify(self._by_expiry)
