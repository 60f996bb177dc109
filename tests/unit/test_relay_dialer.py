"""Goal: whoever looks for a worker asks those relays at which it listens, whatever failed there before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dcnr.errors import Unavailable
from dcnr.ids import NodeId
from membership.relays import NUM_RELAYS, RelayDialer, in_order

WORKER = NodeId("a" * 40)
RELAYS = in_order(WORKER, [(NodeId(f"{number:040x}"), ("h:1",)) for number in range(12)])


def asked(num_times: int, prefer: NodeId | None = None) -> list[list[NodeId]]:
    """Whom each of so many attempts asks, where no relay answers."""

    async def connection(relay_id: NodeId, where: object) -> Any:
        attempts[-1].append(relay_id)
        raise Unavailable("nobody answers", code="unreachable")

    async def story() -> None:
        relays: Any = SimpleNamespace(known=lambda: RELAYS, connection=connection)
        dialer = RelayDialer(relays, relays, prefer=prefer)
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
