"""Goal: whoever makes ids that sort first is not all the relays of which a worker hears."""

from __future__ import annotations

import asyncio

from dcnr.ids import NodeId
from dcnr.v1 import local_pb2
from pnode.relaying import MAX_RELAYS, MAX_VOLUNTEERS, Relaying


def test_a_worker_hears_of_every_pnode_that_offers_to_relay_as_far_as_a_view_goes() -> None:
    sent: list[local_pb2.ToWorker] = []

    async def send(message: local_pb2.ToWorker) -> bool:
        sent.append(message)
        return True

    made = [(NodeId(f"{number:040x}"), ("203.0.113.9:7700",)) for number in range(2 * MAX_RELAYS)]
    honest = (NodeId("f" * 40), ("203.0.113.8:7700",))
    relaying = Relaying(lambda: made[:1], lambda: [*made[1:], honest], send, listen=lambda: True)
    asyncio.run(relaying.refresh())
    assert honest[0] in {relay.node_id for relay in sent[0].relays.relays if relay.volunteer}
    assert len(sent[0].relays.relays) <= MAX_RELAYS + MAX_VOLUNTEERS
