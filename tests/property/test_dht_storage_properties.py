"""Goal: after any sequence of offers and reads the record store is within its bounds and agrees with a plain model of its rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dcnr.ids import NodeId
from membership.dht_storage import RecordStore, StoreResult
from membership.directory import VerifiedRecord, record_key

KEYS = [record_key(f"k{i}") for i in range(6)]


def verify(key: bytes, data: bytes, now_wall: float) -> VerifiedRecord | None:
    if data[0] == 255:
        return None
    return VerifiedRecord(key, NodeId(f"owner{data[0] % 3}"), data[1], float(data[2]))


OFFERS = st.tuples(st.sampled_from(KEYS), st.binary(min_size=3, max_size=4), st.sampled_from(["", "s", "t"]), st.floats(0.0, 20.0))


@given(st.lists(OFFERS, max_size=60))
def test_the_store_agrees_with_a_model(offers: list[tuple[bytes, bytes, str, float]]) -> None:
    store = RecordStore(verify, max_records=4, max_per_owner=3, max_per_subnet=2)
    kept: dict[bytes, bytes] = {}
    now = 0.0
    for key, data, subnet, wait in offers:
        now += wait
        kept = {k: r for k, r in kept.items() if r[2] > now}
        held = kept.get(key)
        result = store.offer(key, data, subnet=subnet, now_wall=now)
        store.check()
        if result is StoreResult.KEPT:
            assert data[0] != 255
            assert data[2] > now
            assert held is None or (data[1] > held[1] and data[0] % 3 == held[0] % 3)
            kept[key] = data
        else:
            assert (result is StoreResult.SAME) == (held == data)
        present = {k: record for k in KEYS if (record := store.read(k, now)) is not None}
        assert present.items() <= kept.items()
        lost = kept.keys() - present.keys()
        assert len(lost) <= 1  # a full store gives up the one that expires first
        assert all(kept[gone][2] <= min(record[2] for record in present.values()) for gone in lost)
        kept = present
