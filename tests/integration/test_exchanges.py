"""Goal: what a node tells reaches its partners soon, whoever of them is silent, and whoever of them has forgotten everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from town_rig import Node, Town, in_town, until

from dcnr.rpc.guard import peer_of
from dcnr.testing import free_ports
from dcnr.v1 import membership_pb2
from membership import circle, partners
from membership.dht_directory import DirectoryNode
from membership.node import MembershipSettings
from membership.publishing import Publisher
from membership.seeking import TOLD_BY_EACH
from membership.service import MembershipServicer

RARELY = MembershipSettings(exchange_s=0.3, document_s=3600.0)
"""Nobody is asked but by gossip, and no oftener than partners answer for long."""


def test_who_begins_anew_with_nothing_hears_at_once_of_those_who_know_where_it_is() -> None:
    """The only orchestrator, whose disk is lost: nobody told it of anybody, and adverts are renewed and documents asked for only in a minute."""

    async def scene(town: Town) -> None:
        [port] = free_ports(1)
        first = await town.orchestrator(port=port, settings=RARELY)
        node = await town.add(settings=RARELY)
        await until(lambda: first.knows(node) and not node.membership._view._own_exchanges, "its advert is news still")
        town.nodes.remove(first)
        await first.die()
        again = await town.orchestrator(entries=[], port=port, settings=RARELY)
        began = time.monotonic()
        await until(lambda: again.knows(node), "it hears of nobody")
        assert time.monotonic() - began < 10  # s

    in_town(scene)


def test_who_is_silent_keeps_nobody_from_hearing_of_a_change() -> None:
    """Goal: who does not answer holds up no round: from a machine that nobody can dial the others hear of its changed advert while it waits for that one."""

    async def scene(town: Town) -> None:
        first = await town.orchestrator(settings=RARELY)
        node, silent = await town.add(settings=RARELY), await town.add(settings=RARELY)
        await until(lambda: all(one.knows(*town.nodes) for one in town.nodes), "not everybody knows everybody")

        def told(one: Node) -> membership_pb2.Advert:
            advert = one.membership.find(node.key.node_id)
            assert advert is not None
            return advert.advert

        node.membership.update_self(control_addresses=[])
        await until(lambda: not any(told(one).control_addresses for one in town.nodes), "it is dialled still")
        node.dialer.silent.add(silent.key.node_id)
        while not node.dialer.num_silent:  # a connection that was just being made would go on
            await node.membership._partners._drop(silent.key.node_id)
            await asyncio.sleep(0.3)
        node.membership.update_self(software="9.9")
        began = time.monotonic()
        await until(lambda: told(first).software == "9.9", "nobody heard of it")
        assert time.monotonic() - began < 3.5, "s; the silent one is waited for longer"

    in_town(scene)


@pytest.mark.parametrize("reads", [True, False])
def test_what_is_known_is_told_briefly_to_who_says_that_it_reads_that(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    """Goal: software that reads what is known at length only is told that, however often it is asked."""
    told: list[tuple[int, int]] = []
    serve = MembershipServicer.Exchange

    async def recorded(
        self: MembershipServicer, request: membership_pb2.ExchangeRequest, context: Any
    ) -> membership_pb2.ExchangeResponse:
        told.append((len(request.known), len(request.known_briefly.sequences)))
        response = await serve(self, request, context)
        response.reads_briefly = response.reads_briefly and reads
        return response

    monkeypatch.setattr(MembershipServicer, "Exchange", recorded)

    async def scene(town: Town) -> None:
        first = await town.orchestrator(settings=RARELY)
        await town.add(settings=RARELY)
        await until(lambda: all(one.knows(*town.nodes) for one in town.nodes), "not everybody knows everybody")
        told.clear()
        await until(lambda: len(told) >= 8, "they exchange nothing")
        assert all(bool(at_length) != bool(briefly) for at_length, briefly in told)
        assert (told[-1] == (0, 2)) == reads
        assert first.knows(*town.nodes)

    in_town(scene)


def test_entries_are_told_where_a_session_begins_and_rarely_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: however many orchestrators there are, their entries are not most of what exchanges carry; of more than a hearer keeps, none is told."""
    told: dict[str, list[tuple[int, int]]] = {}
    serve = MembershipServicer.Exchange

    async def recorded(
        self: MembershipServicer, request: membership_pb2.ExchangeRequest, context: Any
    ) -> membership_pb2.ExchangeResponse:
        response = await serve(self, request, context)
        told.setdefault(peer_of(context).node_id, []).append((len(request.bootstrap), len(response.bootstrap)))
        return response

    monkeypatch.setattr(MembershipServicer, "Exchange", recorded)

    async def scene(town: Town) -> None:
        first = await town.orchestrator(settings=RARELY)
        node = await town.add(settings=RARELY)
        await until(lambda: all(one.knows(*town.nodes) for one in town.nodes), "not everybody knows everybody")
        seen = told.setdefault(node.key.node_id, [])
        begun = len(seen)
        await until(lambda: len(seen) >= begun + 4, "they exchange nothing")
        assert seen[begun + 2 :] == [(0, 0)] * len(seen[begun + 2 :])
        monkeypatch.setattr(partners, "ENTRIES_AGAIN_S", 0.0)
        count = len(seen)
        await until(lambda: len(seen) >= count + 2, "they exchange nothing")
        assert seen[-1] == (1, 1)
        for one in (first, node):
            advert = node.membership.find(first.key.node_id)
            monkeypatch.setattr(one.membership._seeker, "_orchestrators", lambda advert=advert: [advert] * 16)
        count = len(seen)
        await until(lambda: len(seen) >= count + 2, "they exchange nothing")
        assert seen[-1] == (TOLD_BY_EACH, TOLD_BY_EACH)

    in_town(scene)


def test_who_leaves_the_circle_is_connected_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: connections over which nothing goes cost each volunteer's line what keeps them alive, so nobody collects them while circles turn."""
    monkeypatch.setattr(circle, "CIRCLE", 1)
    monkeypatch.setattr(circle, "TURN_S", 0.5)
    met: set[str] = set()

    async def scene(town: Town) -> None:
        first = await town.orchestrator()
        for _ in range(3):
            await town.add()
        connections = first.membership._partners._connections

        def has_met_all() -> bool:
            met.update(connections)
            return len(met) == 3

        await until(has_met_all, "its circle does not turn")
        await until(lambda: len(connections) <= 1, "it keeps connections to those that left its circle")

    in_town(scene)


def test_a_directory_that_has_met_everybody_looks_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: daemons of a small network are not awake for walks that can find nothing; whoever comes is met."""
    asked: list[Sequence[Any]] = []
    bootstrap, refresh, num_ticks = DirectoryNode.bootstrap, Publisher.refresh, 0

    async def recorded(self: DirectoryNode, addresses: Sequence[tuple[str, int]]) -> int:
        asked.append(addresses)
        return await bootstrap(self, addresses)

    async def ticked(self: Publisher, own: Any) -> None:
        nonlocal num_ticks
        num_ticks += 1
        await refresh(self, own)

    monkeypatch.setattr(DirectoryNode, "bootstrap", recorded)
    monkeypatch.setattr(Publisher, "refresh", ticked)

    async def scene(town: Town) -> None:
        def have_met() -> bool:
            ids = {node.key.node_id for node in town.nodes}
            return all(node.tables() == ids - {node.key.node_id} for node in town.nodes)

        await town.orchestrator()
        for _ in range(2):
            await town.add()
            await until(have_met, "the directory is not joined")
            asked.clear()
            until_tick = num_ticks + 8 * len(town.nodes)
            await until(lambda wanted=until_tick: num_ticks >= wanted, "nobody keeps the directory")
            assert len(asked) <= len(town.nodes), "one look each may have begun before all had met"

    in_town(scene)


def test_who_says_the_same_for_longer_is_published_again_when_that_is_due_and_a_change_at_once() -> None:
    """Goal: the directory, which keeps an advert for ten minutes, is not asked to each time that gossip needs a newer one."""
    often = MembershipSettings(exchange_s=0.1, advert_renew_s=0.4)

    async def scene(town: Town) -> None:
        await town.orchestrator(settings=often)
        node = await town.add(settings=often)
        directory = node.membership._directory
        await until(lambda: directory.stats().puts == 1, "its advert is not published")
        _, sequence = node.membership._own.order
        await until(lambda: node.membership._own.order[1] >= sequence + 16, "its advert is not renewed")
        assert directory.stats().puts == 1
        node.membership.update_self(software="9.9")
        await until(lambda: directory.stats().puts == 2, "the change is not published")

    in_town(scene)
