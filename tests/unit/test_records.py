"""Goal: adverts, delegations and locations are believed only as signed, for this network and in time; changed records are never accepted."""

from __future__ import annotations

import pytest

from dcnr.errors import Corrupt, InvalidInput, Stale
from dcnr.limits import ADVERT_LIFETIME_S, DELEGATION_LIFETIME_S, MAX_CLOCK_SKEW_S, MAX_DHT_RECORD_BYTES
from dcnr.v1 import identity_pb2, membership_pb2
from trust.delegation import make_delegation, open_delegation
from trust.envelope import seal
from trust.identity import NodeKey
from trust.records import advert_key, dht_facts, location_key, make_advert, make_location, open_advert, open_location

NETWORK, OTHER, NOW = "a" * 40, "b" * 40, 1_700_000_000.0
NODE, WORKER, MALLORY = (NodeKey.generate() for _ in range(3))


def delegation(lifetime_s: float = 3600.0, key: NodeKey = NODE) -> identity_pb2.Envelope:
    return make_delegation(key, NETWORK, WORKER.public_der, 7, ["192.0.2.1:7701"], NOW, lifetime_s)


def advert(key: NodeKey = NODE, **fields: object) -> identity_pb2.Envelope:
    given: dict[str, object] = {
        "network_id": NETWORK,
        "kind": membership_pb2.NODE_KIND_PNODE,
        "incarnation": 3,
        "sequence": 4,
        "control_addresses": ["192.0.2.1:7700"],
        "now_wall": NOW,
        "delegation": delegation(key=key),
    }
    return make_advert(key, **{**given, **fields})  # type: ignore[arg-type]


def location() -> identity_pb2.Envelope:
    return make_location(
        NODE, network_id=NETWORK, model="mnist", replica="conv1.0", delegation=delegation(), sequence=9, now_wall=NOW
    )


def test_what_was_signed_comes_out() -> None:
    found = open_advert(advert(), network_id=NETWORK, now_wall=NOW)
    assert (found.node_id, found.order, found.is_orchestrator) == (NODE.node_id, (3, 4), False)
    assert found.delegation is not None
    assert (found.delegation.pnode_id, found.delegation.worker_id) == (NODE.node_id, WORKER.node_id)
    assert found.delegation.addresses == ("192.0.2.1:7701",)
    place = open_location(location(), network_id=NETWORK, now_wall=NOW)
    assert (place.pnode_id, place.delegation.incarnation, place.location.replica) == (NODE.node_id, 7, "conv1.0")


def test_every_byte_of_a_record_counts() -> None:
    records = [(advert_key(NODE.node_id), advert()), (location_key(NETWORK, "mnist", "conv1.0"), location())]
    for key, envelope in records:
        data = envelope.SerializeToString()
        assert dht_facts(NETWORK, key, data, NOW) is not None
        accepted = []
        for index in range(len(data)):
            changed = bytearray(data)
            changed[index] ^= 1 + index % 255
            if dht_facts(NETWORK, key, bytes(changed), NOW) is not None:
                accepted.append(index)
        assert accepted == []
        for extra in (b"\0", b"\x7a\x01x", data):
            assert dht_facts(NETWORK, key, data + extra, NOW) is None
        assert dht_facts(OTHER, key, data, NOW) is None
        assert dht_facts(NETWORK, bytes(20), data, NOW) is None


def test_another_network_and_another_signer_are_refused() -> None:
    with pytest.raises(Corrupt) as refused:
        open_advert(advert(), network_id=OTHER, now_wall=NOW)
    assert refused.value.code == "wrong_network"
    stolen = membership_pb2.Advert.FromString(advert().payload)
    for forged in (seal(identity_pb2.DOMAIN_ADVERT, stolen, MALLORY), seal(identity_pb2.DOMAIN_ADVERT, stolen, NODE, MALLORY)):
        with pytest.raises(Corrupt):
            open_advert(forged, network_id=NETWORK, now_wall=NOW)
    with pytest.raises(Corrupt):
        open_advert(seal(identity_pb2.DOMAIN_LOCATION, stolen, NODE), network_id=NETWORK, now_wall=NOW)


def test_time_bounds() -> None:
    with pytest.raises(Stale):
        open_advert(advert(), network_id=NETWORK, now_wall=NOW + ADVERT_LIFETIME_S + 1)
    with pytest.raises(Corrupt):
        open_advert(advert(), network_id=NETWORK, now_wall=NOW - MAX_CLOCK_SKEW_S - 1)
    with pytest.raises(InvalidInput):
        advert(lifetime_s=ADVERT_LIFETIME_S + 1)
    for_ever = membership_pb2.Advert.FromString(advert().payload)
    for_ever.expires_unix_ms += 10_000
    with pytest.raises(Corrupt):
        open_advert(seal(identity_pb2.DOMAIN_ADVERT, for_ever, NODE), network_id=NETWORK, now_wall=NOW)
    with pytest.raises(Stale):
        open_location(location(), network_id=NETWORK, now_wall=NOW + 601)


def test_delegations_are_for_one_network_one_pnode_and_a_day() -> None:
    envelope = delegation(100.0)
    assert open_delegation(envelope, network_id=NETWORK, now_wall=NOW + 99).worker_id == WORKER.node_id
    with pytest.raises(Stale):
        open_delegation(envelope, network_id=NETWORK, now_wall=NOW + 101)
    with pytest.raises(Corrupt):
        open_delegation(envelope, network_id=OTHER, now_wall=NOW)
    with pytest.raises(InvalidInput):
        delegation(DELEGATION_LIFETIME_S + 1)
    stolen = seal(identity_pb2.DOMAIN_DELEGATION, envelope.payload, MALLORY)
    with pytest.raises(Corrupt):
        open_delegation(stolen, network_id=NETWORK, now_wall=NOW)


def test_an_advert_outlives_its_delegation_but_never_carries_anothers() -> None:
    assert open_advert(advert(delegation=delegation(10.0)), network_id=NETWORK, now_wall=NOW + 20).delegation is None
    with pytest.raises(Corrupt):
        open_advert(advert(MALLORY, delegation=delegation()), network_id=NETWORK, now_wall=NOW)


def test_a_location_fits_a_dht_record_or_is_not_made() -> None:
    assert location().ByteSize() <= MAX_DHT_RECORD_BYTES
    wide = make_delegation(NODE, NETWORK, WORKER.public_der, 7, [f"{'h' * 60}{n}.example.org:7701" for n in range(8)], NOW, 60)
    with pytest.raises(InvalidInput) as refused:
        make_location(NODE, network_id=NETWORK, model="m", replica="v.0", delegation=wide, sequence=1, now_wall=NOW)
    assert refused.value.code == "record_too_large"


def test_newer_records_have_higher_sequences() -> None:
    key = advert_key(NODE.node_id)
    facts = [
        dht_facts(NETWORK, key, advert(delegation=None, incarnation=i, sequence=s).SerializeToString(), NOW)
        for i, s in ((1, 1), (1, 2**40), (2, 0), (2, 1))
    ]
    orders = [f.sequence for f in facts if f is not None]
    assert len(orders) == 4
    assert orders == sorted(set(orders))
