"""Goal: adverts, delegations and locations are believed only as signed, for this network and in time; changed records are never accepted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dcnr.errors import Corrupt, DcnrError, InvalidInput, Stale
from dcnr.limits import ADVERT_LIFETIME_S, DELEGATION_LIFETIME_S, DHT_RECORD_LIFETIME_S, MAX_CLOCK_SKEW_S, MAX_DHT_RECORD_BYTES
from dcnr.v1 import identity_pb2, membership_pb2
from trust.delegation import OpenedDelegations, make_delegation, open_delegation, open_past_delegation
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


def location(**fields: object) -> identity_pb2.Envelope:
    given: dict[str, object] = {
        "network_id": NETWORK, "model": "mnist", "replica": "conv1.0", "delegation": delegation(), "sequence": 9, "now_wall": NOW, **fields,
    }  # fmt: skip
    return make_location(NODE, **given)  # type: ignore[arg-type]


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(DcnrError) as refused:
        call()
    return refused.value.code


def signed_advert(key: NodeKey = NODE, **fields: object) -> identity_pb2.Envelope:
    """What `make_advert` would not make."""
    said = membership_pb2.Advert.FromString(advert(delegation=None).payload)
    for name in fields:
        said.ClearField(name)  # type: ignore[arg-type]
    said.MergeFrom(membership_pb2.Advert(**fields))  # type: ignore[arg-type]
    return seal(identity_pb2.DOMAIN_ADVERT, said, key)


def signed_location(key: NodeKey = NODE, **fields: object) -> identity_pb2.Envelope:
    """What `make_location` would not make."""
    said = membership_pb2.Location.FromString(location().payload)
    for name in fields:
        said.ClearField(name)  # type: ignore[arg-type]
    said.MergeFrom(membership_pb2.Location(**fields))  # type: ignore[arg-type]
    return seal(identity_pb2.DOMAIN_LOCATION, said, key)


def signed_delegation(key: NodeKey = NODE, **fields: object) -> identity_pb2.Envelope:
    """What `make_delegation` would not make."""
    said = identity_pb2.Delegation.FromString(delegation(100.0).payload)
    for name in fields:
        said.ClearField(name)  # type: ignore[arg-type]
    said.MergeFrom(identity_pb2.Delegation(**fields))  # type: ignore[arg-type]
    return seal(identity_pb2.DOMAIN_DELEGATION, said, key)


def ms(wall: float) -> int:
    return int(wall * 1000)


def test_what_was_signed_comes_out() -> None:
    found = open_advert(advert(), network_id=NETWORK, now_wall=NOW)
    assert (found.node_id, found.order, found.is_orchestrator) == (NODE.node_id, (3, 4), False)
    assert found.delegation is not None
    assert (found.delegation.pnode_id, found.delegation.worker_id) == (NODE.node_id, WORKER.node_id)
    assert found.delegation.addresses == ("192.0.2.1:7701",)
    place = open_location(location(), network_id=NETWORK, now_wall=NOW)
    assert (place.pnode_id, place.delegation.incarnation, place.location.replica) == (NODE.node_id, 7, "conv1.0")
    assert (found.expires_wall, place.expires_wall) == (NOW + ADVERT_LIFETIME_S, NOW + DHT_RECORD_LIFETIME_S)
    assert open_location(location(lifetime_s=0.5), network_id=NETWORK, now_wall=NOW).expires_wall == NOW + 0.5


def test_every_byte_of_a_record_counts() -> None:
    records = [(advert_key(NODE.node_id), advert()), (location_key(NETWORK, "mnist", "conv1.0", NODE.node_id), location())]
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


def test_keys_are_made_of_checked_names_only() -> None:
    for key in (
        lambda: advert_key("x"), lambda: location_key(NETWORK, "No Name", "conv1.0", NODE.node_id),
        lambda: location_key(NETWORK, "mnist", "conv1", NODE.node_id), lambda: location_key(NETWORK, "mnist", "conv1.0", "x"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            key()
    places = [(NETWORK, "m", "v.0", NODE), (OTHER, "m", "v.0", NODE), (NETWORK, "m", "v.1", NODE), (NETWORK, "m", "v.0", MALLORY)]
    assert len({advert_key(NODE.node_id), *(location_key(*place, key.node_id) for *place, key in places)}) == 5


def test_newer_records_have_higher_sequences() -> None:
    key = advert_key(NODE.node_id)
    facts = [
        dht_facts(NETWORK, key, advert(delegation=None, incarnation=i, sequence=s).SerializeToString(), NOW)
        for i, s in ((1, 1), (1, 2**40), (2, 0), (2, 1))
    ]
    orders = [f.sequence for f in facts if f is not None]
    assert len(orders) == 4
    assert orders == sorted(set(orders))
    assert orders[1] == 2**64 + 2**40


ADDRESSES = [f"192.0.2.1:{port}" for port in range(7700, 7709)]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"lifetime_s": 0.0}, "bad_advert"),
        ({"lifetime_s": ADVERT_LIFETIME_S + 1}, "bad_advert"),
        ({"kind": membership_pb2.NODE_KIND_UNSPECIFIED}, "bad_advert"),
        ({"dht_address": "nowhere"}, "bad_address"),
        ({"control_addresses": ["nowhere"]}, "bad_address"),
        ({"control_addresses": ADDRESSES}, "too_many_addresses"),
        ({"software": "s" * 4096}, "advert_too_large"),
    ],
)
def test_an_advert_that_nobody_would_believe_is_not_made(fields: dict[str, object], code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        advert(**fields)  # type: ignore[arg-type]
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("envelope", "code"),
    [
        (signed_advert(network_id=OTHER), "wrong_network"),
        (signed_advert(MALLORY), "wrong_signer"),
        (signed_advert(node_id=MALLORY.node_id), "wrong_signer"),
        (signed_advert(kind=membership_pb2.NODE_KIND_UNSPECIFIED), "bad_advert"),
        (signed_advert(kind=99), "bad_advert"),
        (signed_advert(control_addresses=["nowhere"]), "bad_address"),
        (signed_advert(control_addresses=ADDRESSES), "bad_address"),
        (signed_advert(dht_address="nowhere"), "bad_address"),
        (signed_advert(expires_unix_ms=ms(NOW)), "bad_lifetime"),
        (signed_advert(expires_unix_ms=ms(NOW + ADVERT_LIFETIME_S) + 1), "bad_lifetime"),
        (signed_advert(issued_unix_ms=ms(NOW + MAX_CLOCK_SKEW_S) + 1), "bad_lifetime"),
        (signed_advert(issued_unix_ms=ms(NOW - 60), expires_unix_ms=ms(NOW)), "advert_expired"),
        (signed_advert(delegation=delegation(key=MALLORY)), "wrong_signer"),
        (signed_advert(software="s" * 4096), "envelope_too_large"),
    ],
)
def test_an_advert_says_in_every_part_what_can_be(envelope: identity_pb2.Envelope, code: str) -> None:
    assert code_of(lambda: open_advert(envelope, network_id=NETWORK, now_wall=NOW)) == code


def test_an_advert_is_believed_up_to_its_bounds() -> None:
    for envelope in (
        signed_advert(dht_address="192.0.2.1:7702", control_addresses=ADDRESSES[:8]),
        signed_advert(issued_unix_ms=ms(NOW - 1), expires_unix_ms=ms(NOW) + 1),
        advert(lifetime_s=0.5),
        signed_advert(issued_unix_ms=ms(NOW + MAX_CLOCK_SKEW_S)),
        advert(lifetime_s=ADVERT_LIFETIME_S, dht_address="192.0.2.1:7702"),
    ):
        assert open_advert(envelope, network_id=NETWORK, now_wall=NOW).node_id == NODE.node_id


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"lifetime_s": 0.0}, "bad_lifetime"),
        ({"lifetime_s": DHT_RECORD_LIFETIME_S + 1}, "bad_lifetime"),
        ({"model": "No Name"}, "bad_id"),
        ({"replica": "conv1"}, "bad_id"),
    ],
)
def test_a_location_that_nobody_would_believe_is_not_made(fields: dict[str, object], code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        location(**fields)
    assert refused.value.code == code


LATEST = NOW + DHT_RECORD_LIFETIME_S + MAX_CLOCK_SKEW_S


@pytest.mark.parametrize(
    ("envelope", "code"),
    [
        (signed_location(network_id=OTHER), "wrong_network"),
        (signed_location(MALLORY), "wrong_signer"),
        (signed_location(pnode_id=MALLORY.node_id), "wrong_signer"),
        (signed_location(model="No Name"), "bad_location"),
        (signed_location(replica="conv1"), "bad_location"),
        (signed_location(expires_unix_ms=ms(LATEST) + 1), "bad_lifetime"),
        (signed_location(expires_unix_ms=ms(NOW)), "location_expired"),
        (signed_location(delegation=delegation(key=MALLORY)), "wrong_signer"),
        (signed_location(delegation=signed_delegation(expires_unix_ms=ms(NOW) + 1)), ""),
    ],
)
def test_a_location_says_in_every_part_what_can_be(envelope: identity_pb2.Envelope, code: str) -> None:
    def opened() -> object:
        return open_location(envelope, network_id=NETWORK, now_wall=NOW)

    if code:
        assert code_of(opened) == code
    else:
        opened()
    assert open_location(signed_location(expires_unix_ms=ms(LATEST)), network_id=NETWORK, now_wall=NOW).expires_wall == LATEST


def test_a_location_ends_with_its_delegation() -> None:
    short = location(delegation=delegation(60.0))
    facts = dht_facts(NETWORK, location_key(NETWORK, "mnist", "conv1.0", NODE.node_id), short.SerializeToString(), NOW)
    assert facts is not None
    assert facts.expires_wall == NOW + 60.0
    assert code_of(lambda: open_location(short, network_id=NETWORK, now_wall=NOW + 60.0)) == "delegation_expired"


@pytest.mark.parametrize(
    ("envelope", "code"),
    [
        (signed_delegation(network_id=OTHER), "wrong_network"),
        (signed_delegation(MALLORY), "wrong_signer"),
        (signed_delegation(pnode_id=MALLORY.node_id), "wrong_signer"),
        (signed_delegation(data_addresses=["nowhere"]), "bad_address"),
        (signed_delegation(data_addresses=ADDRESSES), "bad_address"),
        (signed_delegation(expires_unix_ms=ms(NOW)), "bad_lifetime"),
        (signed_delegation(expires_unix_ms=ms(NOW + DELEGATION_LIFETIME_S) + 1), "bad_lifetime"),
        (signed_delegation(not_before_unix_ms=ms(NOW + MAX_CLOCK_SKEW_S) + 1, expires_unix_ms=ms(NOW + 400)), "bad_lifetime"),
        (signed_delegation(worker_public_key=b"key"), "bad_public_key"),
        (signed_delegation(not_before_unix_ms=ms(NOW - 60), expires_unix_ms=ms(NOW)), "delegation_expired"),
        (seal(identity_pb2.DOMAIN_ADVERT, delegation().payload, NODE), "wrong_domain"),
        (signed_delegation(data_addresses=["h" * 60 + ".example.org:1"] * 64), "envelope_too_large"),
    ],
)
def test_a_delegation_says_in_every_part_what_can_be(envelope: identity_pb2.Envelope, code: str) -> None:
    assert code_of(lambda: open_delegation(envelope, network_id=NETWORK, now_wall=NOW)) == code


def test_a_delegation_that_nobody_would_believe_is_not_made() -> None:
    for lifetime_s in (0.0, DELEGATION_LIFETIME_S + 1):
        assert code_of(lambda: delegation(lifetime_s)) == "bad_lifetime"  # noqa: B023
    for addresses, public_der, code in ((["nowhere"], WORKER.public_der, "bad_address"), ([], b"key", "bad_public_key")):
        assert code_of(lambda: make_delegation(NODE, NETWORK, public_der, 1, addresses, NOW)) == code  # noqa: B023
    assert code_of(lambda: make_delegation(NODE, NETWORK, WORKER.public_der, 1, [], NOW, near=["nowhere"])) == "bad_address"
    latest = signed_delegation(not_before_unix_ms=ms(NOW + MAX_CLOCK_SKEW_S), expires_unix_ms=ms(NOW + 400))
    for envelope in (delegation(DELEGATION_LIFETIME_S), latest):
        assert open_delegation(envelope, network_id=NETWORK, now_wall=NOW).pnode_id == NODE.node_id


def test_a_past_delegation_counts_from_its_beginning_if_it_ever_held() -> None:
    assert open_past_delegation(delegation(1.0), network_id=NETWORK).worker_id == WORKER.node_id
    assert code_of(lambda: open_past_delegation(signed_delegation(MALLORY), network_id=NETWORK)) == "wrong_signer"
    never = signed_delegation(expires_unix_ms=ms(NOW))
    assert code_of(lambda: open_past_delegation(never, network_id=NETWORK)) == "bad_lifetime"


class SetClock:
    """As it is set."""

    def __init__(self, wall: float) -> None:
        self.now = wall

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


def test_delegations_met_again_are_looked_up_and_still_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SetClock(NOW)
    opened = OpenedDelegations(NETWORK, clock)
    first = delegation(100.0)
    assert opened.open(first) is opened.open(identity_pb2.Envelope.FromString(first.SerializeToString()))
    assert code_of(lambda: opened.open(signed_delegation(MALLORY))) == "wrong_signer"
    clock.now = NOW + 100.0
    assert code_of(lambda: opened.open(first)) == "delegation_expired"
    clock.now = NOW
    monkeypatch.setattr("trust.delegation.MAX_OPENED", 2)
    told = [delegation(float(lifetime_s)) for lifetime_s in (1, 2, 3)]
    kept = [opened.open(envelope) for envelope in told]
    assert [opened.open(told[at]) is kept[at] for at in (2, 1, 0)] == [True, True, False], "the oldest made room"
