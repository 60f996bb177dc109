"""Goal: a worker that tests take from their nursery is a process as a daemon starts it; and no nursery outlives the tests, or takes anybody with it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
from nursery import Nursed, forking, nursery
from trouble_rig import until

from dcnr.v1 import local_pb2
from pnode.pipe import LocalPipe
from pnode.supervisor import Supervisor, WorkerOptions

OWNER = "import time; from nursery import nursery; print(nursery(), flush=True); time.sleep(600)"
"""A test process."""
MARK = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


async def begun(log: Path) -> tuple[Nursed, LocalPipe[local_pb2.FromWorker]]:
    """One that has said hello."""
    ours, theirs = socket.socketpair()
    with log.open("ab") as file, theirs:
        process = await forking(nursery())(theirs, ("--host", "127.0.0.1"), MARK, file.fileno())
    assert isinstance(process, Nursed)
    pipe = await LocalPipe.over(ours, local_pb2.FromWorker)
    async with asyncio.timeout(120):
        first = await pipe.receive()
    assert first is not None
    assert first.hello.data_port
    return process, pipe


def test_a_forked_worker_is_alone_with_its_pipe_and_its_log(tmp_path: Path) -> None:
    """It leads a session of its own, and holds nothing of another worker: a pipe that two hold would not end with its daemon."""

    async def scenario() -> None:
        (one, first), (other, second) = await begun(tmp_path / "one"), await begun(tmp_path / "other")
        for process, log in ((one, "one"), (other, "other")):
            assert os.getsid(process.pid) == process.pid
            names = held(process)
            assert [names[number] for number in range(3)] == ["/dev/null", *[str(tmp_path / log)] * 2]
            assert [number for number, what in names.items() if what == names[3]] == [3], "its end of the pipe, once"
        assert not [
            what for what in {*held(one).values()} & {*held(other).values()} if not what.startswith(("/dev/", "anon_inode:"))
        ]
        await first.close()
        assert await one.wait() == 0
        assert other.returncode is None
        other.kill()
        assert await other.wait() == -signal.SIGKILL
        other.kill()  # nothing happens to one that has ended
        await second.close()

    asyncio.run(scenario())


def held(process: Nursed) -> dict[int, str]:
    """What its descriptors are."""
    return {int(entry.name): os.readlink(entry) for entry in Path(f"/proc/{process.pid}/fd").iterdir()}


def test_without_a_nursery_the_reason_is_told(tmp_path: Path) -> None:
    reasons = asyncio.Queue[str]()

    async def nobody(*_: object) -> None:
        raise AssertionError("no worker is there")

    async def scenario() -> None:
        options = WorkerOptions("127.0.0.1", 0, 1, "cpu", tmp_path / "log", os.environ, start=forking(tmp_path / "s"))
        subject = Supervisor(options, next_incarnation=lambda: 1, on_up=nobody, on_message=nobody, on_down=reasons.put)
        running = asyncio.create_task(subject.run())
        assert "the nursery of the tests forks none" in await reasons.get()
        await subject.stop(within_s=1.0)
        await running

    asyncio.run(scenario())


def test_a_nursery_ends_with_the_tests_and_leaves_nothing() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment, text=True) as owner:
        assert owner.stdout is not None
        where = Path(owner.stdout.readline().strip())
        [process] = psutil.Process(owner.pid).children()
        owner.kill()
        until(lambda: not process.is_running(), 60.0)
        assert not where.parent.exists()
