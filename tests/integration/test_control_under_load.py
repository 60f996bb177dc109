"""Goal: beats and commands are answered in their times while a PNode moves tensors, checkpoints and shards as fast as its machine can."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from network_rig import Rig, running_network

from dcnr.cli.local_door import ask
from dcnr.errors import DcnrError
from dcnr.testing import LocalPNode
from dcnr.v1 import local_pb2, orchestrator_pb2

WIDTH, BATCH_SIZE, SAMPLES = 1024, 64, 1280
LOADED_S = 4.0
USED_S = 0.8
"""Processor time of the worker: a load, however little others leave to one that gives way."""
PNODES = tuple(LocalPNode(f"p{number}", 1.0, 1024) for number in range(1, 4))
OFFLINE = orchestrator_pb2.NODE_STATE_OFFLINE


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running_network(PNODES, num_orchestrators=2, width=WIDTH, batch_size=BATCH_SIZE, samples=SAMPLES) as running:
        yield running


class Asking:
    """Asks a daemon for its status again and again, from a thread, and notes how long each answer took."""

    def __init__(self, rig: Rig, name: str) -> None:
        self._home = next(process.home for process in rig.network.pnodes if process.name == name)
        self._over = threading.Event()
        self.took_s: list[float] = []
        self.failed: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._over.wait(0.1):
            began = time.monotonic()
            try:
                ask(self._home, "Status", local_pb2.StatusRequest())
            except DcnrError as error:
                self.failed.append(error.message)
            self.took_s.append(time.monotonic() - began)


def test_beats_and_commands_are_answered_under_full_load(rig: Rig) -> None:
    job_id = rig.submit("load", passes=400, checkpoint_s=1.0)
    hosts = rig.learning(job_id, 5, 120)
    busy, report = hosts["b"]
    worker = psutil.Process(rig.told(busy).worker_pid)
    began_s, cpu_s, learned = time.monotonic(), sum(worker.cpu_times()[:2]), int(report.num_learned)

    def used_s() -> float:
        return sum(worker.cpu_times()[:2]) - cpu_s

    states: set[int] = set()
    durable: set[int] = set()
    now_learned = [learned]

    def watched() -> bool:
        with rig.client() as client:
            states.update(item.state for item in client.nodes() if item.node_id == busy.node_id)
        now = rig.hosts().get("b")
        if now is not None:
            durable.add(sum(int(item.end - item.first) for item in now[1].durable.intervals))
            now_learned[:] = [int(now[1].num_learned)]
        lasted = time.monotonic() - began_s > LOADED_S and used_s() > USED_S and len(asking.took_s) >= 10
        return lasted and len(durable) >= 3 and now_learned[0] > learned + 20

    # It is a load: the worker computes, frames come and go, checkpoints of megabytes are brought into the store.
    with Asking(rig, busy.name) as asking:
        rig.until(watched, "the load lasts", 120)
    # Nobody took the PNode for silent, and its owner was answered.
    assert OFFLINE not in states
    assert not asking.failed
    assert max(asking.took_s) < 5.0
    assert sorted(asking.took_s)[len(asking.took_s) // 2] < 2.0
    # A new desired state takes effect, and a pause does within its time.
    ask(busy.home, "Pause", local_pb2.PauseRequest())
    assert rig.until(lambda: not worker.is_running(), "its worker has ended", 30, pause_s=0.02) < 5.0
    rig.until(lambda: rig.hosts().get("b", hosts["b"])[0] is not busy, "b is hosted elsewhere under load", 60)
    with rig.client() as client:
        client.cancel(job_id, [rig.key], model="dots")
    rig.until(lambda: not [item for item in rig.hosts().values() if item[0] is busy], "nothing is hosted on the paused one", 30)
