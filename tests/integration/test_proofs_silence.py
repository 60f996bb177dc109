"""Goal: nobody waits for ever for those who have fallen silent: a stopped PNode, or all orchestrators at once."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from itertools import pairwise

import psutil
import pytest
from network_rig import BATCH_SIZE, SAMPLES, Rig, running_network
from nursed_daemon import DEAF

from dcnr import limits
from dcnr.testing import LocalPNode, Process

PER_PASS = SAMPLES // BATCH_SIZE
DISK_MB = 256
FLAGS = ("--cpu-percent", "20", "--disk-mb", str(DISK_MB), "--may-be-deaf")
PNODES = tuple(LocalPNode(f"p{number}", 1.0, 360, FLAGS) for number in range(1, 5))
"""Each has room for two VNodes."""
LEAD = 12
"""So little that its source has reached it long before a silent machine counts as lost."""
MAX_GROWTH_BYTES = 32 * limits.MIB
RELOCATED_S = 90.0
"""What it takes is measured elsewhere, on a quiet machine; here it has to happen."""


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running_network(PNODES, num_orchestrators=2) as running:
        yield running


def signal_both(process: Process, worker_pid: int, number: int) -> None:
    """Daemon and worker of one PNode."""
    for pid in (process.pid, worker_pid):
        os.kill(pid, number)


def test_a_stopped_successor_costs_its_sender_nothing_and_is_replaced(rig: Rig) -> None:
    """Goal: memory and spool of the sender stay bounded, its source learns up to its lead and names who holds it back, the silent VNode moves."""
    passes = 4
    job_id = rig.submit("stopped", passes=passes, lead_batches=LEAD, checkpoint_s=2.0, batches_per_s=8.0)
    hosts = rig.learning(job_id, 20, 90)
    source = hosts["a"][0]
    vnode = next(name for name in reversed(rig.vnodes) if hosts[name][0] is not source)
    stopped, before = hosts[vnode]
    told, sending = rig.told(stopped), rig.told(source)
    worker = psutil.Process(sending.worker_pid)
    rss_bytes, learned = worker.memory_info().rss, hosts["a"][1].num_learned
    rig.silent.add(stopped.name)
    signal_both(stopped, told.worker_pid, signal.SIGSTOP)
    try:
        held_back: list[str] = []
        growth: list[int] = []
        spooled: list[int] = []

        def relocated() -> bool:
            growth.append(worker.memory_info().rss - rss_bytes)
            now = rig.hosts()
            if "a" in now:
                held_back.append(now["a"][1].held_back_by)
                spooled.append(now["a"][1].spool_bytes)
            return vnode in now and now[vnode][0] is not stopped

        rig.until(relocated, f"{vnode} is hosted elsewhere", RELOCATED_S)
        assert max(growth) <= MAX_GROWTH_BYTES
        assert max(spooled) <= DISK_MB * limits.MIB * 3 // 16
        assert vnode in held_back, f"{held_back}: the source says whom it waits for"
        assert rig.hosts()["a"][1].num_learned >= min(learned + 1, before.num_learned + LEAD), (
            "it learned on, or was at its lead already"
        )
    finally:
        signal_both(stopped, told.worker_pid, signal.SIGCONT)
        rig.silent.discard(stopped.name)

    def fenced() -> bool:
        status = rig.status(stopped)
        return status is not None and all(item.replica != before.replica for item in status.replicas)

    rig.until(fenced, "the stopped PNode has given its replica up", 90)
    rig.ended(job_id, 150)
    assert all(item.exact and item.num_batches == passes * PER_PASS for item in rig.audit())


def test_training_goes_on_without_any_orchestrator(rig: Rig) -> None:
    """Goal: with all orchestrators killed, a PNode that comes back elsewhere is found by all who dial it, through the DHT and by nothing else; training
    goes on from there to its end, and an orchestrator with an empty disk ends the job.
    """
    passes = 4
    num_batches = passes * PER_PASS
    job_id = rig.submit("alone", passes=passes, checkpoint_s=2.0, batches_per_s=5.0)
    hosts = rig.learning(job_id, 15, 90)
    edges = [(one, two) for one, two in pairwise(rig.vnodes) if hosts[one][0] is not hosts[two][0]]
    feeding, moved = edges[0][0], hosts[edges[0][0]][0]
    readers = [two for one, two in edges if hosts[one][0] is moved]
    rig.until(lambda: rig.durable(feeding), "a checkpoint is durable", 60)
    before = rig.told(moved)
    known = {vnode: rig.told(hosts[vnode][0]).dht_lookups for vnode in readers}
    for orchestrator in rig.network.orchestrators:
        rig.network.kill(orchestrator)
    rig.network.kill(moved)
    for other in rig.network.pnodes:
        if other is not moved:
            (other.home / DEAF).touch()
    left = {vnode: report.num_learned for vnode, (_, report) in rig.hosts().items() if vnode in readers}
    assert set(left) == set(readers)
    assert max(left.values()) < num_batches, "there is something left to learn"
    rig.network.restart(moved)
    rig.until(lambda: (rig.status(moved) or before).worker_pid not in (0, before.worker_pid), "it is back", 60)
    after = rig.told(moved)
    assert after.control_address != before.control_address
    assert after.incarnation > before.incarnation

    def complete() -> bool:
        now = rig.hosts()
        return set(now) == set(rig.vnodes) and all(report.num_learned == num_batches for _, report in now.values())

    rig.until(complete, "every replica has learned every batch", 120)
    for vnode in readers:
        finder = hosts[vnode][0]
        again = (
            event
            for event in rig.events(finder)
            if event.startswith("neighbour_found ") and event.endswith(f" {after.incarnation}")
        )
        assert {event.partition(" by ")[2] for event in again} == {f"the DHT, incarnation {after.incarnation}"}
        assert rig.told(finder).dht_lookups > known[vnode]
    for other in rig.network.pnodes:
        (other.home / DEAF).unlink(missing_ok=True)
    fresh = rig.network.orchestrators[0]
    for path in fresh.home.iterdir():
        if path.name != "key.pem":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    rig.network.restart(fresh)
    replica = hosts[feeding][1].replica
    rig.until(lambda: rig.located(replica) == after.incarnation, f"the DHT has the new place of {replica}", 60, pause_s=0.5)
    rig.ended(job_id, 90)
    assert all(item.exact and item.num_batches == num_batches for item in rig.audit())
    rig.until(
        lambda: all(rig.told(one).state in ("idle", "serving") for one, _ in rig.hosts().values()),
        "nobody says that it still works",
        30,
    )
