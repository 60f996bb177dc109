"""Goal: what a node says in the directory is there soon, whatever happened to the first try."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dcnr.limits import DHT_REPUBLISH_S
from dcnr.v1 import identity_pb2, membership_pb2
from membership.network_time import NetworkTime
from membership.publishing import AGAIN_S, Publisher
from trust.delegation import make_delegation
from trust.identity import NodeKey
from trust.records import make_advert

NODE, WORKER, NETWORK, NOW_S = NodeKey.generate(), NodeKey.generate(), "a" * 40, 1_800_000_000.0


class Clock:
    """Both clocks go when they are told to."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return NOW_S + self.now_s


class Peers:
    """So many keep what is put, after ``meanwhile``."""

    def __init__(self) -> None:
        self.num, self.num_puts = 1, 0
        self.meanwhile: Callable[[], None] = lambda: None

    async def put(self, key: bytes | str, record: bytes) -> int:
        self.num_puts += 1
        self.meanwhile()
        return self.num

    async def get(self, key: bytes | str) -> bytes | None:
        return None


class Rig:
    def __init__(self) -> None:
        self.clock, self.peers = Clock(), Peers()
        self.publisher = Publisher(NODE, NETWORK, directory=self.peers, time=NetworkTime(self.clock))
        self.own: identity_pb2.Envelope | None = make_advert(
            NODE, network_id=NETWORK, kind=membership_pb2.NODE_KIND_PNODE, incarnation=1, sequence=2, now_wall=NOW_S, lifetime_s=180.0,
            control_addresses=["127.0.0.1:9000"],
        )  # fmt: skip

    def puts_after(self, seconds: float) -> int:
        """How many records are put in a refresh so much later."""
        self.clock.now_s += seconds
        before = self.peers.num_puts
        asyncio.run(self.publisher.refresh(self.own))
        return self.peers.num_puts - before


def test_an_advert_that_nobody_keeps_is_published_again_soon_and_one_that_is_kept_when_it_is_due() -> None:
    rig = Rig()
    rig.peers.num = 0
    assert rig.puts_after(0.0) == 1
    assert rig.puts_after(1.0) == 0, "not after each look"
    rig.peers.num = 1
    assert [rig.puts_after(seconds) for seconds in (AGAIN_S, AGAIN_S, DHT_REPUBLISH_S)] == [1, 0, 1]


def test_an_advert_that_changes_while_it_is_published_is_published_at_once() -> None:
    rig = Rig()
    rig.peers.meanwhile = rig.publisher.advert_changed
    assert rig.puts_after(0.0) == 1
    rig.peers.meanwhile = lambda: None
    assert [rig.puts_after(1.0) for _ in range(2)] == [1, 0]


def test_a_location_that_nobody_keeps_is_published_again_soon() -> None:
    rig = Rig()
    rig.own, rig.peers.num = None, 0
    delegation = make_delegation(NODE, NETWORK, WORKER.public_der, 1, ["127.0.0.1:9001"], NOW_S, 3600)
    assert not asyncio.run(rig.publisher.publish_location("m", "a.1", delegation))
    rig.peers.num = 1
    assert [rig.puts_after(seconds) for seconds in (1.0, AGAIN_S, AGAIN_S, DHT_REPUBLISH_S)] == [0, 1, 0, 1]


def test_a_location_that_is_withdrawn_while_it_is_published_is_published_no_more() -> None:
    rig = Rig()
    rig.peers.num = 0
    delegation = make_delegation(NODE, NETWORK, WORKER.public_der, 1, [], NOW_S)
    rig.peers.meanwhile = lambda: rig.publisher.withdraw_location("m", "v.0")
    asyncio.run(rig.publisher.publish_location("m", "v.0", delegation))
    rig.own = None
    assert rig.puts_after(AGAIN_S) == 0


def test_of_several_locations_one_that_is_withdrawn_while_another_is_published_is_published_no_more() -> None:
    rig = Rig()
    rig.peers.num = 0
    delegation = make_delegation(NODE, NETWORK, WORKER.public_der, 1, [], NOW_S)
    for replica in ("v.0", "v.1"):
        asyncio.run(rig.publisher.publish_location("m", replica, delegation))
    rig.own = None
    rig.peers.meanwhile = lambda: rig.publisher.withdraw_location("m", "v.1")
    assert rig.puts_after(AGAIN_S) == 1
