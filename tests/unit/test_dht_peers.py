"""Goal: addresses from strangers are checked, the dead are skipped with growing back-off and revived, askers are rate limited, all within bounds."""

from __future__ import annotations

import pytest

from membership.dht_peers import (
    FIRST_BACK_OFF_S,
    MAX_BACK_OFF_S,
    Contact,
    ContactReader,
    DeadPeers,
    RateLimiter,
    RoundTrip,
    contact_from_wire,
    subnet_of,
    usable_host,
)

ID = bytes(range(20))
A = ("10.0.0.1", 7700)


def test_subnets() -> None:
    assert subnet_of("203.0.113.77") == "203.0.113.0/24"
    assert subnet_of("2001:db8:1:2::5") == "2001:db8:1::/48"
    assert subnet_of("::ffff:203.0.113.77") == "203.0.113.0/24"


@pytest.mark.parametrize(
    "host",
    [
        "example.org",
        "",
        "224.0.0.1",
        "0.0.0.0",
        "255.255.255.255",
        "::",
        "ff02::1",
        "::ffff:127.0.0.1",
        "127.0.0.1",
        "::1",
        "1.2.3",
    ],
)
def test_hosts_that_a_stranger_may_not_name(host: str) -> None:
    assert not usable_host(host, single_host=False)


@pytest.mark.parametrize("host", ["8.8.8.8", "192.168.1.5", "2600::1"])
def test_hosts_that_a_stranger_may_name(host: str) -> None:
    assert usable_host(host, single_host=False)


def test_loopback_only_on_a_single_host() -> None:
    assert usable_host("127.0.0.1", single_host=True)


@pytest.mark.parametrize(
    "raw",
    [None, 5, [], [ID, "8.8.8.8"], [ID, "8.8.8.8", 0], [ID, "8.8.8.8", 65536], [ID, "8.8.8.8", True], [ID, "8.8.8.8", "1"], [ID[:19], "8.8.8.8", 1],
     ["x" * 20, "8.8.8.8", 1], [ID, b"8.8.8.8", 1], [ID, "host.example", 1], [ID, "2600::1", 1], [ID, "8" * 100, 1], [[], {}, 1]],
)  # fmt: skip
def test_malformed_contacts_are_dropped(raw: object) -> None:
    assert contact_from_wire(raw, single_host=True, version=4) is None
    reader = ContactReader(single_host=True, version=4)
    assert reader.contacts([raw, [ID, "8.8.8.8", 1], raw], Contact(ID, "8.8.4.4", 1)) == [Contact(ID, "8.8.8.8", 1)]


def test_a_public_peer_cannot_point_at_private_addresses_and_answers_are_cut() -> None:
    reader = ContactReader(single_host=False, version=4)
    private = [ID, "192.168.1.1", 80]
    assert reader.contacts([private], Contact(ID, "8.8.8.8", 1)) == []
    assert reader.contacts([private], Contact(ID, "192.168.1.9", 1)) == [Contact(ID, "192.168.1.1", 80)]
    many = [[i.to_bytes(20), "8.8.8.8", 1] for i in range(1, 1000)]
    assert len(reader.contacts(many, Contact(ID, "8.8.4.4", 1))) == 20
    assert reader.contacts("text", Contact(ID, "8.8.4.4", 1)) == []


def test_the_dead_are_skipped_longer_each_time_and_revived_when_heard() -> None:
    dead, now = DeadPeers(), 0.0
    for strikes in range(1, 12):
        assert dead.failed(A, now, now) == strikes
        back_off = min(FIRST_BACK_OFF_S * 2 ** (strikes - 1), MAX_BACK_OFF_S)
        assert dead.skip(A, now + back_off - 0.1)
        now += back_off
        assert not dead.skip(A, now)
    dead.heard(A)
    assert len(dead) == 0
    assert dead.failed(A, now, now) == 1


def test_requests_that_failed_together_are_one_failure() -> None:
    dead = DeadPeers()
    assert [dead.failed(A, sent, 1.0 + sent) for sent in (0.0, 0.1, 0.2)] == [1, 1, 1]
    assert dead.failed(A, 1.5, 2.5) == 2


def test_the_list_of_the_dead_is_bounded() -> None:
    dead = DeadPeers(max_addresses=10)
    for port in range(100):
        dead.failed(("10.0.0.1", port), 0.0, 0.0)
    assert len(dead) == 10
    assert dead.skip(("10.0.0.1", 99), 1.0)


def test_rate_limits_hold_per_address_and_per_subnet_and_recover() -> None:
    limiter = RateLimiter(single_host=False, rate_per_s=1.0, burst=5.0)
    assert sum(limiter.admit(("8.8.8.8", port), 0.0) for port in range(50)) == 5
    assert not limiter.admit(("8.8.8.8", 1), 0.5)
    assert limiter.admit(("8.8.8.8", 1), 1.0)
    others = sum(limiter.admit((f"8.8.8.{i}", 1), 1.0) for i in range(100, 200))
    assert others <= 4 * 5
    assert limiter.admit(("9.9.9.9", 1), 1.0)


def test_nodes_of_a_single_host_are_told_apart_by_port() -> None:
    limiter = RateLimiter(single_host=True, rate_per_s=1.0, burst=5.0)
    assert sum(limiter.admit(("127.0.0.1", port), 0.0) for port in range(3) for _ in range(50)) == 15


def test_patience_follows_the_round_trip_within_bounds() -> None:
    trip = RoundTrip()
    assert trip.patience_s == 0.5
    for _ in range(50):
        trip.add(0.001)
    assert trip.patience_s == 0.1
    for _ in range(50):
        trip.add(0.2)
    assert 0.2 < trip.patience_s < 0.5
    for _ in range(50):
        trip.add(5.0)
    assert trip.patience_s == 0.8
