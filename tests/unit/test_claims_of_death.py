"""Goal: who calls others dead again and again, or us, costs a few probes and now and then an advert, however much he says."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from dcnr.rpc.dialer import Dialer
from dcnr.v1 import membership_pb2
from membership.doubts import CLAIM_RATE, Doubts
from membership.network_time import NetworkTime
from membership.node import DENIAL_S, Membership
from membership.own_advert import SEQUENCE_STEP
from membership.probing import Findings
from simulation.control_clock import SimClock
from simulation.control_loop import ProcessLoop
from simulation.kernel import Kernel, Process
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import create_document, verify_chain
from trust.records import VerifiedAdvert, make_advert, open_advert

OWN, MAINTAINER, ORCHESTRATOR = (NodeKey.generate() for _ in range(3))


class Machine:
    """Virtual time for one process."""

    def __init__(self) -> None:
        self.kernel, self.errors = Kernel(1), list[BaseException]()
        self.clock = SimClock(self.kernel, 0.0, 500.0)
        self.loop = ProcessLoop(self.kernel, Process(self.kernel, "node"), self.errors.append)

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.spawn(story())
        self.kernel.run_until(1000.0, lambda: False)
        assert not self.errors, self.errors
        self.loop.bury()


def test_who_is_called_dead_all_the_time_says_otherwise_every_few_seconds() -> None:
    machine = Machine()
    clock = machine.clock
    policy = verify_chain([create_document(MAINTAINER, name="n", now_wall=clock.wall(), orchestrator_ids=[ORCHESTRATOR.node_id])])

    async def story() -> None:
        dialer = Dialer(OWN, policy.network_id, clock=clock, rng=secrets.token_bytes)
        node = Membership(
            key=OWN, network=InForce(policy), kind=membership_pb2.NODE_KIND_PNODE, dialer=dialer, clock=clock, rng=random.Random(1)
        )
        await node.start("127.0.0.1:7700")
        await asyncio.sleep(2 * DENIAL_S)
        first, began = node._own.order, clock.monotonic()

        def called_dead() -> None:
            incarnation, sequence = node._own.order
            node._suspect([membership_pb2.KnownNode(node_id=OWN.node_id, incarnation=incarnation, sequence=sequence)])

        def num_made() -> int:
            return (node._own.order[1] - first[1]) // SEQUENCE_STEP

        for _ in range(20):
            called_dead()
        assert num_made() == 1
        await asyncio.sleep(2 * DENIAL_S)
        assert num_made() == 2, "the last claim is not left unanswered"
        while clock.monotonic() < began + 20 * DENIAL_S:
            called_dead()
            await asyncio.sleep(0.1)
        assert 10 <= num_made() <= 21
        await node.stop()

    machine.run(story)


class Prober:
    """Finds everybody alive, and counts."""

    def __init__(self) -> None:
        self.probed: list[str] = []

    async def probe(self, subject: VerifiedAdvert) -> Findings:
        self.probed.append(subject.node_id)
        return Findings(subject.node_id, direct=True, num_asked=0, answers=())

    async def close(self) -> None:
        pass


def test_claims_of_many_deaths_are_looked_into_at_a_bounded_rate_and_own_doubts_at_once() -> None:
    machine = Machine()
    keys = [NodeKey.generate() for _ in range(200)]
    adverts = [
        open_advert(
            make_advert(
                key, network_id="a" * 40, kind=membership_pb2.NODE_KIND_PNODE, incarnation=1, sequence=2, control_addresses=["127.0.0.1:7700"],
                now_wall=machine.clock.wall(),
            ),
            network_id="a" * 40, now_wall=machine.clock.wall(),
        )
        for key in keys
    ]  # fmt: skip

    async def story() -> None:
        prober: Any = Prober()
        doubts = Doubts(prober, NetworkTime(machine.clock), lambda advert: None)
        for _ in range(100):
            for start in range(0, len(adverts), 16):
                doubts.claimed(adverts[start : start + 16])
            await asyncio.sleep(0.1)
        assert len(prober.probed) <= CLAIM_RATE.burst + 10.0 * CLAIM_RATE.per_s
        assert len(prober.probed) >= CLAIM_RATE.burst
        own = next(advert for advert in adverts if advert.node_id not in prober.probed)
        doubts.about([own])
        await asyncio.sleep(0.1)
        assert own.node_id in prober.probed
        await doubts.close()

    machine.run(story)
