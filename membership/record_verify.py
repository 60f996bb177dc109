"""Binds the directory's idea of a valid record to `trust.records`: adverts and locations of one network, under their own keys only."""

from __future__ import annotations

from membership.directory import VerifiedRecord, Verify
from trust.records import dht_facts


def verify_dht_record(network_id: str) -> Verify:
    """The ``Verify`` of a network's directory."""

    def verify(key: bytes, record: bytes, now_wall: float) -> VerifiedRecord | None:
        facts = dht_facts(network_id, key, record, now_wall)
        return VerifiedRecord(facts.key, facts.owner, facts.sequence, facts.expires_wall) if facts is not None else None

    return verify
