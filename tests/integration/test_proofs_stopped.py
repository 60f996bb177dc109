"""Goal: a successor that is stopped for a minute, and that nobody can replace, costs its sender no memory and no more disk than its spool may take."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import psutil
import pytest
from network_rig import Rig, running_network

from dcnr import limits
from dcnr.testing import LocalPNode, Process
from pnode.outbox import BACKLOG_BYTES, HOT_BYTES

BATCH_SIZE, WIDTH, PER_PASS, PASSES = 4096, 64, 8, 80
FRAME_BYTES: Final = BATCH_SIZE * WIDTH * 4
NUM_BATCHES: Final = PASSES * PER_PASS
DISK_MB = 1024
SPOOL_BYTES: Final = DISK_MB * limits.MIB * 3 // 16
"""A quarter of what is left beside the cache."""
WARM = 96
"""Batches after which buffers and the allocator have their size."""
MAX_GROWTH_BYTES: Final = HOT_BYTES + 2 * BACKLOG_BYTES
"""What it may hold, the newest and what waits for the disk, and once more the latter for what is on its way and for the allocator."""
LEAD: Final = 4 * MAX_GROWTH_BYTES // FRAME_BYTES
"""Batches: so many frames are four times what the sender's memory may grow by, and fit its spool."""
STOPPED_S: Final = 60.0
PNODES = tuple(LocalPNode(f"p{number}", 1.0, 376, ("--disk-mb", str(DISK_MB))) for number in range(1, 4))
"""Each has room for one of these VNodes and not for two, so nobody can take over."""


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running_network(PNODES, num_orchestrators=1, width=WIDTH, batch_size=BATCH_SIZE, samples=PER_PASS * BATCH_SIZE) as running:
        yield running


@dataclass(slots=True)
class Seen:
    """What was seen of the sender and of the source while the successor was silent."""

    growth_bytes: list[int] = field(default_factory=list)
    spool_bytes: list[int] = field(default_factory=list)
    learned: list[tuple[int, int]] = field(default_factory=list)
    """By source and sender."""
    full_s: float = 0.0
    """When the sender had learned the whole lead, from the stop on."""
    elsewhere: bool = False


def signal_both(process: Process, worker_pid: int, number: int) -> None:
    """Daemon and worker of one PNode."""
    for pid in (process.pid, worker_pid):
        os.kill(pid, number)


def watched(rig: Rig, sender: psutil.Process, floor: int) -> Seen:
    """Looks until the minute is over."""
    seen, began, before = Seen(), time.monotonic(), sender.memory_info().rss

    def over() -> bool:
        now_s, hosts = time.monotonic() - began, rig.hosts()
        source, sending = hosts["a"][1], hosts["b"][1]
        seen.growth_bytes.append(sender.memory_info().rss - before)
        seen.spool_bytes.append(sending.spool_bytes)
        seen.learned.append((int(source.num_learned), int(sending.num_learned)))
        seen.elsewhere |= "c" in hosts
        if not seen.full_s and min(seen.learned[-1]) >= floor + LEAD:
            seen.full_s = now_s
        return now_s >= STOPPED_S

    rig.until(over, "the minute is over", STOPPED_S + 30.0)
    return seen


def test_a_successor_that_is_silent_for_a_minute_costs_its_sender_nothing(rig: Rig) -> None:
    job_id = rig.submit("silent", passes=PASSES, lead_batches=LEAD, checkpoint_s=2.0)
    hosts = rig.learning(job_id, WARM, 90)
    silent = hosts["c"][0]
    sending = rig.told(hosts["b"][0])
    told = rig.told(silent)
    assert len({process.name for process, _ in hosts.values()}) == 3, "each has a machine of its own"
    floor = int(told.replicas[0].num_learned)
    rig.silent.add(silent.name)
    signal_both(silent, told.worker_pid, signal.SIGSTOP)
    try:
        seen = watched(rig, psutil.Process(sending.worker_pid), floor)
    finally:
        signal_both(silent, told.worker_pid, signal.SIGCONT)
        rig.silent.discard(silent.name)
    assert not seen.elsewhere, "nobody took over"
    assert seen.full_s, f"source and sender learned on up to the lead: {seen.learned[-1]} from {floor}"
    unbounded_bytes = int(LEAD / seen.full_s * STOPPED_S) * FRAME_BYTES
    assert min(unbounded_bytes, (NUM_BATCHES - floor) * FRAME_BYTES) > max(SPOOL_BYTES, 4 * MAX_GROWTH_BYTES), (
        "a sender that nothing holds back would have made more than all bounds"
    )
    assert max(seen.growth_bytes) <= MAX_GROWTH_BYTES
    assert max(seen.spool_bytes) <= SPOOL_BYTES
    assert max(max(pair) for pair in seen.learned) < NUM_BATCHES
    rig.until(lambda: "c" in (now := rig.hosts()) and now["c"][1].num_learned > floor + LEAD, "the successor catches up", 60.0)
