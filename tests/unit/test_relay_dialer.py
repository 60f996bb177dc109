"""Goal: whoever looks for a worker asks those relays at which it listens, whatever failed there before."""

from __future__ import annotations

import asyncio
import gc
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from dcnr.errors import Unavailable
from dcnr.ids import NodeId
from membership.relays import NUM_RELAYS, NUM_VOLUNTEERS, Door, RelayDialer, in_order
from trust.addresses import split_address

WORKER = NodeId("a" * 40)
RELAYS = in_order(WORKER, [(NodeId(f"{number:040x}"), ("h:1",)) for number in range(12)])


def asked(num_times: int, prefer: NodeId | None = None, volunteers: frozenset[NodeId] = frozenset()) -> list[list[NodeId]]:
    """Whom each of so many attempts asks, where no relay answers."""

    async def connection(relay_id: NodeId, where: object) -> Any:
        attempts[-1].append(relay_id)
        raise Unavailable("nobody answers", code="unreachable")

    async def story() -> None:
        relays: Any = SimpleNamespace(known=lambda: RELAYS, connection=connection)
        dialer = RelayDialer(relays, relays, prefer=prefer, volunteers=lambda: volunteers)
        for _ in range(num_times):
            attempts.append([])
            with pytest.raises(Unavailable) as error:
                await dialer.connect(WORKER, [])
            assert error.value.code == "no_relay"

    attempts = list[list[NodeId]]()
    asyncio.run(story())
    return attempts


def test_relays_that_failed_are_tried_again_where_the_worker_listens_at_them() -> None:
    near = {relay_id for relay_id, _ in RELAYS[: 2 * NUM_RELAYS]}
    assert [set(attempt) for attempt in asked(3)] == [near] * 3


def test_the_preferred_relay_is_asked_first_wherever_it_stands() -> None:
    own = RELAYS[-1][0]
    assert [attempt[0] for attempt in asked(2, own)] == [own] * 2
    assert len(asked(1, own)[0]) == 2 * NUM_RELAYS + 1


def test_who_comes_to_a_door_in_the_turn_in_which_it_closes_leaves_no_socket_open() -> None:
    """An open one is a warning, and warnings are errors here."""

    async def further() -> Any:
        raise Unavailable("no relay", code="unreachable")

    async def story() -> None:
        first: Any = SimpleNamespace(cancel=lambda: None)
        door, closed = Door(first, further), asyncio.Event()
        loop: Any = asyncio.get_running_loop()
        accept = loop._accept_connection

        def accepted(*arguments: Any) -> None:
            accept(*arguments)
            with pytest.raises(StopIteration):  # it waits for nobody
                door.close().send(None)
            closed.set()

        loop._accept_connection = accepted
        host, port = split_address(await door.open())
        with socket.create_connection((host, port)):
            async with asyncio.timeout(20.0):
                await closed.wait()

    asyncio.run(story())
    gc.collect()


def test_pnodes_that_offer_to_relay_are_asked_after_orchestrators_and_not_all_of_them() -> None:
    ids = [relay_id for relay_id, _ in RELAYS]
    offering = frozenset(ids[:6])
    tried = ids[6:], ids[: 2 * NUM_VOLUNTEERS]
    assert asked(1, volunteers=offering) == [[*tried[0], *tried[1]]]
