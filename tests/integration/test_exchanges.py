"""Goal: what a node tells reaches its partners soon, whoever of them is silent, and whoever of them has forgotten everything."""

from __future__ import annotations

import asyncio
import time

from town_rig import Node, Town, in_town, until

from dcnr.testing import free_ports
from dcnr.v1 import membership_pb2
from membership.node import MembershipSettings

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
