"""Goal: the store of DHT records keeps only valid, unexpired, newest records of the first owner, within every bound."""

from __future__ import annotations

import pytest

from dcnr.errors import InvalidInput
from dcnr.ids import NodeId
from dcnr.limits import DHT_RECORD_LIFETIME_S, MAX_CLOCK_SKEW_S, MAX_DHT_RECORD_BYTES
from membership.dht_storage import RecordStore, StoreResult
from membership.directory import VerifiedRecord, best_answer, checked_record, record_key

KEY = record_key("node/a")


def record(sequence: int, *, owner: str = "a", expires: float = 100.0, value: str = "") -> bytes:
    return f"{owner}|{sequence}|{expires}|{value}".encode()


def verify(key: bytes, data: bytes, now_wall: float) -> VerifiedRecord | None:
    if data.count(b"|") != 3:
        return None
    owner, sequence, expires, _ = data.decode().split("|")
    return VerifiedRecord(key, NodeId(owner), int(sequence), float(expires))


def offer(store: RecordStore, data: object, *, key: object = KEY, subnet: str = "", now: float = 0.0) -> StoreResult:
    result = store.offer(key, data, subnet=subnet, now_wall=now)
    store.check()
    return result


def test_newest_sequence_wins_and_equal_sequence_with_other_bytes_is_refused() -> None:
    store = RecordStore(verify)
    assert offer(store, record(2)) is StoreResult.KEPT
    assert offer(store, record(2)) is StoreResult.SAME
    assert offer(store, record(1)) is StoreResult.OLDER
    assert offer(store, record(2, value="x")) is StoreResult.CONFLICT
    assert offer(store, record(3)) is StoreResult.KEPT
    assert store.read(KEY, 0.0) == record(3)


def test_nobody_else_takes_a_key_over_until_the_record_has_expired() -> None:
    store = RecordStore(verify)
    assert offer(store, record(1)) is StoreResult.KEPT
    assert offer(store, record(10**9, owner="b", expires=200.0)) is StoreResult.OTHER_OWNER
    assert offer(store, record(1, owner="b", expires=200.0), now=100.0) is StoreResult.KEPT


@pytest.mark.parametrize("data", ["text", 5, None, b"", b"x" * (MAX_DHT_RECORD_BYTES + 1), [b"x"]])
def test_records_of_wrong_type_or_size_are_refused(data: object) -> None:
    assert offer(RecordStore(verify), data) is StoreResult.MALFORMED


@pytest.mark.parametrize("key", ["text", b"short", b"x" * 21, None, 7])
def test_keys_of_wrong_type_or_size_are_refused(key: object) -> None:
    assert offer(RecordStore(verify), record(1), key=key) is StoreResult.MALFORMED


def test_what_does_not_verify_or_belongs_under_another_key_is_refused() -> None:
    assert offer(RecordStore(verify), b"unsigned") is StoreResult.INVALID
    elsewhere = RecordStore(lambda key, data, now: VerifiedRecord(record_key("other"), NodeId("a"), 1, 100.0))
    assert offer(elsewhere, record(1)) is StoreResult.INVALID


def test_records_expire_and_republishing_the_same_bytes_does_not_prolong_them() -> None:
    store = RecordStore(verify)
    assert offer(store, record(1, expires=100.0)) is StoreResult.KEPT
    assert offer(store, record(1, expires=100.0), now=99.0) is StoreResult.SAME
    assert store.read(KEY, 99.9) == record(1)
    assert store.read(KEY, 100.0) is None
    assert len(store) == 0
    assert offer(store, record(1, expires=100.0), now=100.0) is StoreResult.EXPIRED
    assert offer(store, record(1, expires=float("nan"))) is StoreResult.EXPIRED
    far = DHT_RECORD_LIFETIME_S + MAX_CLOCK_SKEW_S + 1
    assert offer(store, record(1, expires=far)) is StoreResult.TOO_LONG_LIVED


def test_a_record_is_verified_again_on_every_read() -> None:
    good = True
    store = RecordStore(lambda key, data, now: verify(key, data, now) if good else None)
    assert offer(store, record(1)) is StoreResult.KEPT
    good = False
    assert store.read(KEY, 0.0) is None
    assert len(store) == 0
    store.check()


def test_bounds_per_owner_and_subnet_and_in_all() -> None:
    store = RecordStore(verify, max_records=4, max_per_owner=2, max_per_subnet=3)
    keys = [record_key(str(i)) for i in range(8)]
    assert offer(store, record(1), key=keys[0], subnet="s") is StoreResult.KEPT
    assert offer(store, record(1), key=keys[1], subnet="s") is StoreResult.KEPT
    assert offer(store, record(1), key=keys[2], subnet="t") is StoreResult.OWNER_FULL
    assert offer(store, record(1, owner="b", expires=50.0), key=keys[2], subnet="s") is StoreResult.KEPT
    assert offer(store, record(1, owner="b"), key=keys[3], subnet="s") is StoreResult.SUBNET_FULL
    assert offer(store, record(1, owner="b"), key=keys[3], subnet="t") is StoreResult.KEPT
    assert offer(store, record(1, owner="c", expires=40.0), key=keys[4], subnet="u") is StoreResult.FULL
    assert offer(store, record(1, owner="c", expires=60.0), key=keys[4], subnet="u") is StoreResult.KEPT
    assert store.read(keys[2], 0.0) is None  # it would have expired first
    assert len(store) == 4


def test_updating_one_key_for_ever_keeps_the_store_small() -> None:
    store = RecordStore(verify)
    for sequence in range(1000):
        assert offer(store, record(sequence, expires=100.0 + sequence % 7)) is StoreResult.KEPT
    assert len(store) == 1


def test_a_single_keeper_with_a_huge_sequence_does_not_beat_the_owner_whom_most_name() -> None:
    owner, thief = VerifiedRecord(KEY, NodeId("a"), 3, 100.0), VerifiedRecord(KEY, NodeId("b"), 10**9, 100.0)
    older = VerifiedRecord(KEY, NodeId("a"), 2, 100.0)
    assert best_answer([(older, b"old"), (thief, b"theft"), (owner, b"new"), (older, b"old")]) == b"new"
    assert best_answer([]) is None


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"unsigned", "bad_record"), (b"x" * 2000, "record_too_large"), (record(3, expires=-1.0), "record_expired")],
)
def test_what_nobody_would_keep_is_refused_before_anybody_is_asked(data: bytes, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked_record(KEY, data, verify, 0.0)
    assert caught.value.code == code
