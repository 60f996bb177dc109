"""Goal: work that takes long is no sleep: however slow the directory is, a machine that runs keeps its control streams; one that stood still renews them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from dcnr.settings import PNodeSettings
from dcnr.v1 import local_pb2, model_pb2
from pnode.control import _Stream
from pnode.daemon import Daemon
from pnode.home import Home
from pnode.models import Hosted
from pnode.probe import Machine
from pnode.supervisor import Worker
from pnode.waking import STOOD_S
from simulation.control_clock import SimClock
from simulation.control_loop import ProcessLoop
from simulation.kernel import Kernel, Process
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import create_document, verify_chain
from vnode.registry import default_registry

KEY, WORKER_KEY, MAINTAINER, ORCHESTRATOR = (NodeKey.generate() for _ in range(4))
MACHINE = Machine(2, 4 << 30, 4 << 30, 40 << 30, 10.0, "x86_64", "linux")


class SlowDirectory:
    """Nobody near keeps a record: each put takes as long as a sleep that counts."""

    def __init__(self) -> None:
        self.num_puts = self.under_way = self.most_at_once = 0

    async def put(self, key: bytes | str, record: bytes) -> int:
        self.num_puts, self.under_way = self.num_puts + 1, self.under_way + 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        await asyncio.sleep(STOOD_S)
        self.under_way -= 1
        return 1


class SilentPipe:
    """A worker's, of which nothing is to be seen here."""

    async def send(self, message: local_pb2.ToWorker) -> None:
        pass


class Watched:
    """A real daemon that hosts replicas, wired on virtual time, with one open control stream and a slow directory."""

    def __init__(self, home: Home, num_replicas: int) -> None:
        self.kernel, self.errors, self.directory = Kernel(1), list[BaseException](), SlowDirectory()
        self.process = Process(self.kernel, "pnode")
        self.loop, self.clock = ProcessLoop(self.kernel, self.process, self.errors.append), SimClock(self.kernel, 0.0, 500.0)
        self._home, self._num_replicas = home, num_replicas

    async def story(self) -> None:
        policy = verify_chain(
            [create_document(MAINTAINER, name="n", now_wall=self.clock.wall(), orchestrator_ids=[ORCHESTRATOR.node_id])]
        )
        daemon = self.daemon = Daemon(
            PNodeSettings(), self._home, key=KEY, network=InForce(policy), machine=MACHINE, clock=self.clock, rng=random.Random(1), environment={},
            bootstrap=[], registry=default_registry(),
        )  # fmt: skip
        directory: Any = self.directory
        daemon._membership._publisher._directory = directory
        async with asyncio.TaskGroup() as group:
            daemon._wire(group)
            pipe: Any = SilentPipe()
            await daemon._delegated.begin(
                Worker(4711, 1, local_pb2.WorkerHello(public_key=WORKER_KEY.public_der, data_port=7701), pipe)
            )
            hosted = daemon._duties._models.entry("m", with_work=True).hosted
            for number in range(self._num_replicas):
                hosted[f"v.{number}"] = Hosted(model_pb2.DesiredAssignment(replica=f"v.{number}", vnode="v"), "m")
            ending: Any = None
            self.stream = daemon._streams._streams[ORCHESTRATOR.node_id] = _Stream(ending, asyncio.Event(), attached=True)
            await daemon._watch()

    def run(self, for_s: float) -> None:
        self.kernel.run_until(self.kernel.now_s + for_s, lambda: False)
        assert not self.errors

    def slept(self) -> bool:
        return any(event.kind == "woke_up" for event in self.daemon.journal.since(0))


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_a_slow_directory_is_no_sleep_and_is_asked_one_thing_at_a_time(tmp_path: Path, num_replicas: int) -> None:
    home = Home(tmp_path / "home")
    home.open()
    watched = Watched(home, num_replicas)
    watched.loop.spawn(watched.story())
    try:
        watched.run(num_replicas * STOOD_S + 10.0)
        assert (watched.directory.num_puts, watched.directory.most_at_once) == (num_replicas, 1)
        assert not watched.slept()
        assert not watched.stream.stale, "it would be opened anew"
        watched.process.pause(3 * STOOD_S)
        watched.run(3 * STOOD_S + 2.0)
        assert watched.slept()
        assert watched.stream.stale
    finally:
        watched.loop.bury()
        home.close()
