"""Goal: a PNode that works for two models is attached to both that decide on them: whom it is not attached to takes it for gone, and moves its replicas."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from dcnr.ids import NodeId
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from pnode.authority import Source
from pnode.control import ATTACHED, ControlStreams
from pnode.duties import Duties
from pnode.home import Home
from pnode.orders import HostingOptions
from simulation.control_clock import SimClock
from simulation.kernel import Kernel
from trust.envelope import seal
from trust.identity import NodeKey
from trust.network import create_document, verify_chain

ME = NodeId("0" * 40)
CLOCK = SimClock(Kernel(1), 0.0)
ORCHESTRATORS = [NodeKey.generate() for _ in range(5)]
POLICY = verify_chain(
    [create_document(NodeKey.generate(), name="n", now_wall=CLOCK.wall(), orchestrator_ids=[key.node_id for key in ORCHESTRATORS])]
)


class Unanswering:
    """A dialer by which nobody is reached."""

    async def connect(self, node_id: str, addresses: object, *, own_connection: bool) -> None:
        await asyncio.Event().wait()


async def nothing(*words: object) -> Any:
    return True


def duties_of(home: Home, group: asyncio.TaskGroup) -> Duties:
    unused: Any = None
    return Duties(
        node_id=ME, policy=lambda: POLICY, home=home, provisioner=unused, budget=unused, heads=unused,
        options=HostingOptions(threads=1, spool_bytes=0, free_disk_bytes=lambda: 0), send=nothing, hosted_changed=lambda: None,
        say=lambda kind, subject, reason: None, clock=CLOCK, group=group,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_the_holders_of_all_models_have_a_stream(tmp_path: Path, seed: int) -> None:
    async def story() -> None:
        home, dialer = Home(tmp_path / "home"), Unanswering()
        home.open()
        known = [(key.node_id, ("127.0.0.1:1",)) for key in ORCHESTRATORS]
        try:
            async with asyncio.TaskGroup() as group:
                duties = duties_of(home, group)
                unreachable: Any = dialer
                streams = ControlStreams(
                    unreachable, lambda: known, hello=orchestrator_pb2.Hello, beat=lambda sequence: orchestrator_pb2.Beat(sequence=sequence),
                    on_message=nothing, holders=duties.holders, clock=CLOCK, rng=random.Random(seed),
                )  # fmt: skip
                streams._review(group)
                assert len(streams._streams) == ATTACHED
                holders = {key.node_id: key for key in ORCHESTRATORS}
                away = [holders[node_id] for node_id in sorted(set(holders) - set(streams._streams))]
                for number, key in enumerate(away):
                    head = model_pb2.Head(network_id=POLICY.network_id, model=f"m{number}", epoch=1, holder=key.node_id, sequence=1)
                    await duties.head_received(seal(identity_pb2.DOMAIN_HEAD, head, key), Source.OWN_GET)
                streams._review(group)
                assert {key.node_id for key in away} <= set(streams._streams)
                for stream in streams._streams.values():
                    stream.task.cancel()
        finally:
            home.close()

    asyncio.run(story())
