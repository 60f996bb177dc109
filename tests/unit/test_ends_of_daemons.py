"""Goal: a daemon that was stopped ends, whatever its worker still had to say, and whatever its disk does."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dcnr import limits
from dcnr.cli import ending
from dcnr.ids import digest_of
from dcnr.settings import PNodeSettings
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from pnode import snapshots
from pnode.daemon import LAST_UPLOADS_S, Daemon
from pnode.home import Home, write_atomically
from pnode.probe import Machine
from pnode.supervisor import executed
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import create_document, verify_chain
from vnode.registry import default_registry

WITHIN_S = 60.0
NODE, MAINTAINER, ORCHESTRATOR, GONE = (NodeKey.generate() for _ in range(4))
POLICY = verify_chain(
    [
        create_document(
            MAINTAINER, name="n", now_wall=SystemClock().wall(), orchestrator_ids=[ORCHESTRATOR.node_id],
            locality=identity_pb2.LOCALITY_SINGLE_HOST,
        )
    ]
)  # fmt: skip
STATE = model_pb2.Checkpoint(vnode="v", digest=digest_of(b"state"), size_bytes=5, step=1, incarnation=1)

HELLO = local_pb2.FromWorker(hello=local_pb2.WorkerHello(public_key=NodeKey.generate().public_der, data_port=1))


def saying(*messages: local_pb2.FromWorker) -> tuple[str, str]:
    """A worker that says all of this at once, and ends when its pipe closes."""
    said = b"".join(len(data).to_bytes(4, "big") + data for data in (one.SerializeToString() for one in messages))
    return "-c", f"import os, sys\nend = int(sys.argv[2])\nos.write(end, {said!r})\nwhile os.read(end, 4096): pass"


def made(home: Home, ready: asyncio.Event, worker: tuple[str, str]) -> Daemon:
    return Daemon(
        PNodeSettings(), home, key=NODE, network=InForce(POLICY), machine=Machine(2, 4 << 30, 4 << 30, 40 << 30, 10.0, "x86_64", "linux"),
        clock=SystemClock(), rng=random.Random(1), environment={}, bootstrap=[], registry=default_registry(), incarnation=1, worker=executed(*worker),
        on_ready=lambda _: ready.set(),
    )  # fmt: skip


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="dcnr-") as directory:  # short: a socket lies there
        made = Home(Path(directory))
        made.open()
        yield made
        made.close()


def test_what_a_worker_said_while_the_disk_stood_still_begins_nothing_in_a_daemon_that_ends(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search for a lost neighbour has no end by itself."""
    stands, goes_on = threading.Event(), threading.Event()

    def slow(path: Path, data: bytes) -> None:
        stands.set()
        assert goes_on.wait(WITHIN_S)
        write_atomically(path, data)

    monkeypatch.setattr(snapshots, "write_atomically", slow)
    worker = saying(
        HELLO,
        local_pb2.FromWorker(snapshot=local_pb2.SnapshotReady(replica="v.0", model="m", checkpoint=STATE, path="none")),
        local_pb2.FromWorker(lost=local_pb2.NeighbourLost(replica="u.0", pnode_id=GONE.node_id, broken=True)),
    )

    async def story() -> None:
        ready = asyncio.Event()
        daemon = made(home, ready, worker)
        leave = daemon._leave

        async def left() -> None:
            await leave()
            goes_on.set()

        monkeypatch.setattr(daemon, "_leave", left)
        running = asyncio.create_task(daemon.run())
        async with asyncio.timeout(WITHIN_S):
            await ready.wait()
            neighbour = model_pb2.Neighbour(replica="u.0", pnode_id=GONE.node_id)
            monkeypatch.setattr(daemon._neighbours, "_wanted", lambda: [("m", neighbour)])
            assert await asyncio.to_thread(stands.wait, WITHIN_S)
        daemon.request_stop(hand_over=False)
        done, _ = await asyncio.wait([running], timeout=WITHIN_S / 2)
        running.cancel()
        await asyncio.wait([running])
        assert done, "it went on"
        running.result()

    asyncio.run(story())


@pytest.mark.parametrize(("handing_over_s", "left_s"), [(2.0, 18.0), (15.5, 5.0)])
def test_what_is_left_of_the_time_to_leave_is_for_uploads(
    home: Home, monkeypatch: pytest.MonkeyPatch, handing_over_s: float, left_s: float
) -> None:
    """What a worker has handed over within two seconds may take a slow line ten more."""
    now, waited = [100.0], list[float]()

    class Clock(SystemClock):
        def monotonic(self) -> float:
            return now[0]

    async def handed_over(within_s: float) -> None:
        assert within_s == limits.DRAIN_TIMEOUT_S - LAST_UPLOADS_S
        now[0] += handing_over_s

    async def flushed(within_s: float, wanted: Callable[[], bool]) -> bool:
        waited.append(within_s)
        return wanted()

    async def story() -> None:
        daemon = made(home, asyncio.Event(), saying(HELLO))
        async with asyncio.TaskGroup() as group:
            daemon._wire(group)
            monkeypatch.setattr(daemon, "_clock", Clock())
            monkeypatch.setattr(daemon, "_hand_all_over", handed_over)
            monkeypatch.setattr(daemon._uploads, "flush", flushed)
            await daemon._leave()

    asyncio.run(story())
    assert waited == [left_s]


HANGS = """
import asyncio, sys, typer
from concurrent.futures import ThreadPoolExecutor
from dcnr.cli import ending, errors, foreground
ending.LAST_THREADS_S = 0.5
_, hangs, whose = sys.argv
sys.argv[1:] = []
app = typer.Typer()

@app.command()
def start():
    async def main():
        asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor() if whose == "own" else None, open, hangs)
        await asyncio.sleep(0.1)
        return 3
    raise typer.Exit(foreground.run(main()))

errors.run(app, "start")
"""
"""A thread of it reads what nobody writes: as from a disk, or a resolver, that does not answer."""


@pytest.mark.parametrize(("whose", "code"), [("the loop's", ending.HUNG), ("own", 3)])
def test_a_thread_that_hangs_does_not_keep_a_daemon_for_ever(tmp_path: Path, whose: str, code: int) -> None:
    os.mkfifo(tmp_path / "hangs")
    ended = subprocess.run([sys.executable, "-c", HANGS, str(tmp_path / "hangs"), whose], timeout=WITHIN_S / 2, check=False)
    assert ended.returncode == code


def test_a_daemon_whose_disk_is_gone_ends_in_order(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        ready = asyncio.Event()
        daemon = made(home, ready, saying(HELLO))
        running = asyncio.create_task(daemon.run())
        async with asyncio.timeout(WITHIN_S):
            await ready.wait()
            gone = home.root / "gone" / "run.sock"
            gone.parent.touch()
            monkeypatch.setattr(home, "socket", gone)  # it is no directory: whatever is asked of it fails
            daemon.request_stop(hand_over=True)
            await running

    asyncio.run(story())
