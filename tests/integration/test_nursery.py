"""Goal: what tests take from their nurseries is a process as it is started otherwise; and no nursery outlives the tests, or takes anybody with it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest
from nursery import Forked, Nursed, forked, forking, nursery, ran
from trouble_rig import processes_of, until

from dcnr import crashpoints
from dcnr.testing import ORCHESTRATOR, LocalNetwork, clean_environment
from dcnr.v1 import local_pb2
from pnode.pipe import LocalPipe
from pnode.supervisor import Supervisor, WorkerOptions

OWNER = "import time; from nursery import nursery; print(nursery('workers'), flush=True); time.sleep(600)"
"""A test process."""
MARK = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


async def begun(log: Path) -> tuple[Nursed, LocalPipe[local_pb2.FromWorker]]:
    """One that has said hello."""
    ours, theirs = socket.socketpair()
    with log.open("ab") as file, theirs:
        process = await forking(nursery("workers"))(theirs, ("--host", "127.0.0.1"), MARK, file.fileno())
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


def held(process: Nursed | Forked) -> dict[int, str]:
    """What its descriptors are."""
    return {int(entry.name): os.readlink(entry) for entry in Path(f"/proc/{process.pid}/fd").iterdir()}


def test_a_forked_orchestrator_is_alone_with_its_pipe_and_its_log_and_ends_with_the_pipe(small_network: LocalNetwork) -> None:
    """Its nursery has one thread, of which alone a fork is a copy, and no torch."""
    [process] = small_network.orchestrators
    daemon = process.popen
    assert isinstance(daemon, Forked)
    assert daemon.stdin is not None
    assert os.getsid(daemon.pid) == daemon.pid
    nursery_pid = psutil.Process(daemon.pid).ppid()
    assert psutil.Process(nursery_pid).num_threads() == 1
    assert "libtorch" not in Path(f"/proc/{daemon.pid}/maps").read_text()
    names = held(daemon)
    pipe = os.readlink(f"/proc/self/fd/{daemon.stdin.fileno()}")
    assert [names[number] for number in range(3)] == [pipe, *[str(process.log)] * 2]
    assert [number for number, what in names.items() if what == pipe] == [0], "its end of the pipe, once"
    others = {os.readlink(entry) for entry in Path(f"/proc/{nursery_pid}/fd").iterdir()}
    assert not [what for what in {*names.values()} & others if not what.startswith(("/dev/", "anon_inode:"))]
    assert daemon.pid in {one.pid for one in processes_of(process.log.parent)}, "who looks for what was left behind finds it"
    daemon.stdin.close()
    assert daemon.wait(60.0) == 0
    small_network.restart(process)
    assert process.alive


def test_a_forked_command_has_its_own_environment_and_its_end_is_known(tmp_path: Path) -> None:
    command = [sys.executable, "-m", ORCHESTRATOR, "key", "--home", str(tmp_path / "home")]
    environment = clean_environment(os.environ)
    assert end(command, environment | crashpoints.setting("key.drafted", tmp_path / "note"), tmp_path / "killed") == -signal.SIGKILL
    assert (tmp_path / "note").exists()
    assert end([*command, "--nonsense"], environment, tmp_path / "refused") == 2
    assert end(command, environment, tmp_path / "log") == 0
    executed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (tmp_path / "log").read_text() == executed.stdout != ""


@pytest.mark.parametrize("asked", ["dcnr local status --directory", "pnode status --home", "orchestrator status --home"])
def test_what_ran_says_what_it_says_when_it_is_executed_and_is_not_waited_for_without_end(tmp_path: Path, asked: str) -> None:
    name, *rest = asked.split()
    words = ("-m", f"dcnr.cli.{name}", *rest, str(tmp_path))
    environment = clean_environment(os.environ)
    executed = subprocess.run(
        [sys.executable, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert ran(words, environment, 60.0) == (executed.returncode, executed.stdout)
    assert (executed.returncode, "not_running" in executed.stdout) == (3, True)
    with pytest.raises(subprocess.TimeoutExpired):
        ran(words, environment, 0.0)


def end(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """The exit code of a forked process."""
    with log.open("ab") as file:
        process = forked(command, environment, file.fileno())
    assert isinstance(process, Forked)
    with process.stdin:
        code = process.wait(60.0)
    process.kill()  # nothing happens to one that has ended
    assert process.poll() == code
    return code


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
