"""Goal: work that takes long is no sleep: however slow the directory is, a machine that runs keeps its control streams; one that stood still renews them.
Whatever its clocks did meanwhile, its worker acts under a delegation that is good.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dcnr import limits
from dcnr.settings import PNodeSettings
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from pnode.control import _Stream
from pnode.daemon import Daemon
from pnode.home import Home
from pnode.models import Hosted
from pnode.probe import Machine
from pnode.reasons import WorkerFacts
from pnode.supervisor import Worker
from pnode.waking import STOOD_S
from simulation.control_clock import SimClock
from simulation.control_loop import ProcessLoop
from simulation.kernel import Kernel, Process
from trust.delegation import open_delegation
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


class MovedClock:
    """Its wall clock can be set, or runs on while the monotonic one stands still with the machine."""

    def __init__(self, kernel: Kernel) -> None:
        self._clock, self.moved_s = SimClock(kernel, 0.0, 500.0), 0.0

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall(self) -> float:
        return self._clock.wall() + self.moved_s


class HeardPipe:
    """A worker's: what it heard under which it may act."""

    def __init__(self) -> None:
        self.delegations: list[identity_pb2.Envelope] = []

    async def send(self, message: local_pb2.ToWorker) -> None:
        if message.HasField("delegation"):
            self.delegations.append(message.delegation)


class Watched:
    """A real daemon that hosts replicas, wired on virtual time, with one open control stream and a slow directory."""

    def __init__(self, home: Home, num_replicas: int) -> None:
        self.kernel, self.errors, self.directory = Kernel(1), list[BaseException](), SlowDirectory()
        self.process = Process(self.kernel, "pnode")
        self.loop, self.clock = ProcessLoop(self.kernel, self.process, self.errors.append), MovedClock(self.kernel)
        self._home, self._num_replicas, self.pipe = home, num_replicas, HeardPipe()

    async def story(self) -> None:
        policy = verify_chain(
            [create_document(MAINTAINER, name="n", now_wall=self.clock.wall(), orchestrator_ids=[ORCHESTRATOR.node_id])]
        )
        daemon = self.daemon = Daemon(
            PNodeSettings(), self._home, key=KEY, network=InForce(policy), machine=MACHINE, clock=self.clock, rng=random.Random(1), environment={},
            bootstrap=[], registry=default_registry(), incarnation=1,
        )  # fmt: skip
        directory: Any = self.directory
        daemon._membership._publisher._directory = directory
        async with asyncio.TaskGroup() as group:
            daemon._wire(group)
            pipe: Any = self.pipe
            hello = local_pb2.WorkerHello(public_key=WORKER_KEY.public_der, data_port=7701)
            worker = daemon._supervisor.worker = Worker(4711, 1, hello, pipe)
            daemon._now.worker = WorkerFacts.of(worker.pid, worker.incarnation, hello)
            await daemon._delegated.begin(worker)
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


@contextlib.contextmanager
def watching(directory: Path, num_replicas: int) -> Iterator[Watched]:
    """Its story has begun, and is buried in the end."""
    home = Home(directory / "home")
    home.open()
    watched = Watched(home, num_replicas)
    watched.loop.spawn(watched.story())
    try:
        yield watched
    finally:
        watched.loop.bury()
        home.close()


def test_a_server_that_is_made_in_a_simulated_loop_leaves_grpc_as_it_is_for_real_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no loop of the tests' process refuses gRPC a reader, after which an event for a closed loop would end its polling thread, and every later call."""
    refused: list[object] = []

    def refuses(loop: object, *what: object) -> None:
        refused.append(loop)
        raise NotImplementedError

    monkeypatch.setattr(asyncio.AbstractEventLoop, "add_reader", refuses)
    with watching(tmp_path, 1) as watched:
        watched.run(1.0)
    assert refused == []


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_a_slow_directory_is_no_sleep_and_is_asked_one_thing_at_a_time(tmp_path: Path, num_replicas: int) -> None:
    with watching(tmp_path, num_replicas) as watched:
        watched.run(num_replicas * STOOD_S + 10.0)
        assert (watched.directory.num_puts, watched.directory.most_at_once) == (num_replicas, 1)
        assert not watched.slept()
        assert not watched.stream.stale, "it would be opened anew"
        watched.process.pause(3 * STOOD_S)
        watched.run(3 * STOOD_S + 2.0)
        assert watched.slept()
        assert watched.stream.stale


@pytest.mark.parametrize(
    ("moved_s", "num_sent"), [(13 * 3600.0, 2), (-24 * 3600.0, 2), (-limits.MAX_CLOCK_SKEW_S + 60.0, 1), (600.0, 1)]
)
def test_a_worker_gets_a_delegation_that_is_good_by_the_time_of_now(tmp_path: Path, moved_s: float, num_sent: int) -> None:
    """Goal: neither a sleep in which the monotonic clock stood still nor a clock that is set leaves one that has ended, nearly, or has not begun."""
    with watching(tmp_path, 0) as watched:
        watched.run(3.0)
        assert len(watched.pipe.delegations) == 1
        watched.clock.moved_s = moved_s
        watched.run(3.0)
        assert len(watched.pipe.delegations) == num_sent
        network_id = watched.daemon._present().network_id
        left_s = (
            open_delegation(watched.pipe.delegations[-1], network_id=network_id, now_wall=watched.clock.wall()).expires_wall
            - watched.clock.wall()
        )
        assert left_s >= limits.DELEGATION_LIFETIME_S / 2


def test_who_wakes_up_has_a_good_delegation_however_long_the_directory_takes(tmp_path: Path) -> None:
    """Goal: nobody waits for the directory, which is asked for one replica after the other, to hear of a worker whose delegation has ended."""
    with watching(tmp_path, 8) as watched:
        watched.run(3.0)
        watched.clock.moved_s = 13 * 3600.0
        watched.run(2.0)
        assert watched.directory.num_puts < 3, "the directory is still being asked"
        assert len(watched.pipe.delegations) == 2


def test_where_replicas_of_a_worker_lived_is_told_no_more_once_it_is_gone(tmp_path: Path) -> None:
    """Goal: a worker that goes while the directory is asked about its first replica leaves no location that would be published again and again."""
    with watching(tmp_path, 3) as watched:
        watched.run(STOOD_S / 2)
        assert watched.directory.num_puts == 1
        watched.daemon._delegated.end()
        watched.run(2 * limits.DHT_REPUBLISH_S)
        assert watched.directory.num_puts == 1
        assert watched.daemon._membership._publisher._locations == {}
