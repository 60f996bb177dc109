"""Goal: the first thing that a worker hears is for whom it acts, whatever else the daemon has to say by then: a worker that hears anything else ends."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

from dcnr.settings import PNodeSettings
from dcnr.system import SystemClock
from dcnr.v1 import local_pb2
from pnode.daemon import Daemon
from pnode.home import Home
from pnode.pipe import LocalPipe
from pnode.probe import Machine
from pnode.supervisor import Worker
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import create_document, verify_chain
from vnode.registry import default_registry

KEY, WORKER_KEY, MAINTAINER, ORCHESTRATOR = (NodeKey.generate() for _ in range(4))
MACHINE = Machine(2, 4 << 30, 4 << 30, 40 << 30, 10.0, "x86_64", "linux")


def test_nothing_is_said_to_a_worker_before_its_delegation(tmp_path: Path) -> None:
    async def story() -> None:
        clock = SystemClock()
        policy = verify_chain(
            [create_document(MAINTAINER, name="n", now_wall=clock.wall(), orchestrator_ids=[ORCHESTRATOR.node_id])]
        )
        home = Home(tmp_path / "home")
        home.open()
        daemon = Daemon(
            PNodeSettings(), home, key=KEY, network=InForce(policy), machine=MACHINE, clock=clock, rng=random.Random(1), environment={}, bootstrap=[],
            registry=default_registry(), incarnation=1,
        )  # fmt: skip
        ours, theirs = socket.socketpair()
        mine = await LocalPipe.over(ours, local_pb2.FromWorker)
        heard = await LocalPipe.over(theirs, local_pb2.ToWorker)
        try:
            async with asyncio.TaskGroup() as group:
                daemon._wire(group)
                hello = local_pb2.WorkerHello(public_key=WORKER_KEY.public_der, data_port=7701)
                worker = daemon._supervisor.worker = Worker(4711, 1, hello, mine)
                news = local_pb2.ToWorker(head_seen=local_pb2.HeadSeen(epoch=1))
                assert not await daemon._send(news), "a head that is read while the new worker's directory is swept"
                await daemon._worker_up(worker)
                assert await daemon._send(news)
                words = [await heard.receive() for _ in range(3)]
                assert [word.WhichOneof("kind") for word in words if word is not None] == ["delegation", "callers", "head_seen"]
                daemon._duties.stop()
                daemon._neighbours.stop()
                daemon._shards.stop()
        finally:
            await mine.close()
            await heard.close()
            home.close()

    asyncio.run(asyncio.wait_for(story(), 60))
