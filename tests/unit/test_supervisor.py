"""Goal: whoever stops or holds a supervisor is rid of its worker, also of one that is just being started; whatever ends one, its true reason is told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from dcnr.errors import TimedOut
from dcnr.limits import MIB
from dcnr.rpc.options import QUIET, VERBOSITY
from dcnr.v1 import local_pb2
from pnode.supervisor import (
    HELD,
    KEPT_LOG_BYTES,
    MAX_LOG_BYTES,
    STOPPED,
    Supervisor,
    Worker,
    WorkerOptions,
    WorkerProcess,
    executed,
    shorten,
)

SILENT = ("-c", "import time; time.sleep(600)")
HELLO = local_pb2.FromWorker(hello=local_pb2.WorkerHello(data_port=1)).SerializeToString()
STANDS_STILL = (
    "-c",
    f"import os, sys, time; os.write(int(sys.argv[2]), {len(HELLO).to_bytes(4, 'big') + HELLO!r}); time.sleep(600)",
)
"""Says hello, and reads nothing."""


async def _nothing(*_: object) -> None:
    return


async def begun() -> psutil.Process:
    """The worker's process, once it runs its own program."""
    while True:
        for one in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if SILENT[1] in one.cmdline():
                    return one
        await asyncio.sleep(0.01)


class Ends:
    """What is told of the ends of workers."""

    def __init__(self) -> None:
        self.reasons = list[str]()
        self.first = asyncio.Event()

    async def told(self, reason: str) -> None:
        self.reasons.append(reason)
        self.first.set()


def supervisor(tmp_path: Path, on_down: Callable[[str], Awaitable[None]] = _nothing) -> Supervisor:
    options = WorkerOptions("127.0.0.1", 0, 1, "cpu", tmp_path / "worker.log", os.environ, start=executed(*SILENT))

    async def up(worker: Worker) -> None:
        raise AssertionError("it never says hello")

    async def message(worker: Worker, what: local_pb2.FromWorker) -> None:
        raise AssertionError("it never says anything")

    return Supervisor(options, next_incarnation=lambda: 1, on_up=up, on_message=message, on_down=on_down)


@pytest.mark.parametrize("turns", range(6))
def test_a_stop_in_the_middle_of_a_start_ends_it(tmp_path: Path, turns: int) -> None:
    """Goal: however far the start of the process has come when it is stopped, `run` returns, and nothing is told as a failure."""

    async def scenario() -> None:
        ends = Ends()
        subject = supervisor(tmp_path, ends.told)
        running = asyncio.create_task(subject.run())
        for _ in range(turns):
            await asyncio.sleep(0)
        await subject.stop(within_s=0.2)
        async with asyncio.timeout(20):
            await running
        assert ends.reasons == [STOPPED] * bool(turns)  # before its first turn it starts nothing

    asyncio.run(scenario())


def test_a_worker_that_others_kill_is_told_as_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        ends = Ends()
        subject = supervisor(tmp_path, ends.told)
        running = asyncio.create_task(subject.run())
        async with asyncio.timeout(60):
            worker = await begun()
            worker.kill()
            await ends.first.wait()
            await subject.stop(within_s=0.2)
            await running
        assert "SIGKILL" in ends.reasons[0]

    asyncio.run(scenario())


def test_a_worker_that_has_to_be_forced_is_told_with_what_it_did_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's own SIGKILL is no news."""
    monkeypatch.setattr("pnode.supervisor.HELLO_TIMEOUT_S", 0.0)
    monkeypatch.setattr("dcnr.limits.CONNECT_TIMEOUT_S", 0.0)

    async def scenario() -> None:
        ends = Ends()
        subject = supervisor(tmp_path, ends.told)
        running = asyncio.create_task(subject.run())
        async with asyncio.timeout(60):
            await ends.first.wait()
            await subject.stop(within_s=0.2)
            await running
        assert "said nothing" in ends.reasons[0]

    asyncio.run(scenario())


def test_a_worker_that_goes_too_slowly_is_told_with_its_own_words_and_none_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: why it went is in its log, however it came to its end; the first has said so there, the second nothing."""
    monkeypatch.setattr("dcnr.limits.CONNECT_TIMEOUT_S", 0.0)
    monkeypatch.setattr("pnode.supervisor.FIRST_PAUSE_S", 0.01)
    said = tmp_path / "said"
    program = (
        "import os, pathlib, sys, time; path = pathlib.Path(sys.argv[-1]); path.exists() or print('worker: port 5 is taken'); path.touch();"
        "os.close(int(sys.argv[sys.argv.index('--fd') + 1])); time.sleep(60)"
    )

    async def scenario() -> None:
        heard = asyncio.Queue[tuple[str, str]]()

        async def told(reason: str) -> None:
            heard.put_nowait((reason, subject.last_words))

        async def start(pipe: socket.socket, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> WorkerProcess:
            return await executed("-c", program)(pipe, [*arguments, str(said)], environment, log)

        options = WorkerOptions("127.0.0.1", 0, 1, "cpu", tmp_path / "worker.log", os.environ, start=start)
        subject = Supervisor(options, next_incarnation=lambda: 1, on_up=_nothing, on_message=_nothing, on_down=told)
        running = asyncio.create_task(subject.run())
        async with asyncio.timeout(60):
            first, second = await heard.get(), await heard.get()
            await subject.stop(within_s=0.2)
            await running
        assert first[1] == "worker: port 5 is taken"
        assert second[1] == ""
        for reason, _ in (first, second):
            assert "before it said hello" in reason
            assert "was killed" in reason, "a signal of the daemon's own is said to be that"

    asyncio.run(scenario())


def test_a_worker_that_is_killed_from_here_is_not_told_as_killed_by_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        ends = Ends()
        subject = supervisor(tmp_path, ends.told)
        running = asyncio.create_task(subject.run())
        async with asyncio.timeout(60):
            await begun()
            subject.kill()
            await ends.first.wait()
            await subject.stop(within_s=0.2)
            await running
        assert ends.reasons[0] == STOPPED

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(6))
def test_a_pause_in_the_middle_of_a_start_ends_it(tmp_path: Path, turns: int) -> None:
    """Goal: a worker that was being started when the owner said pause does not live on beside the pause."""

    async def scenario() -> None:
        ends = Ends()
        subject = supervisor(tmp_path, ends.told)
        running = asyncio.create_task(subject.run())
        for _ in range(turns):
            await asyncio.sleep(0)
        await subject.hold(within_s=0.2)
        async with asyncio.timeout(20):
            if turns:  # before its first turn it starts nothing
                await ends.first.wait()
                assert ends.reasons == [HELD], "its owner reads of the pause, not of a signal"
            await subject.stop(within_s=0.2)
            await running

    asyncio.run(scenario())


class Unkillable:
    """A process that hangs in a disk: no signal ends it."""

    pid, returncode = 1 << 30, None

    async def wait(self) -> int:
        await asyncio.Event().wait()
        raise AssertionError

    def send_signal(self, number: int, /) -> None:
        return


def test_a_worker_that_no_signal_ends_keeps_no_daemon_that_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nor is another worker started beside it before that."""
    monkeypatch.setattr("pnode.supervisor.HELLO_TIMEOUT_S", 0.0)
    monkeypatch.setattr("pnode.supervisor.KILLED_S", 0.01)
    monkeypatch.setattr("dcnr.limits.CONNECT_TIMEOUT_S", 0.0)

    async def scenario() -> None:
        ends, started = Ends(), asyncio.Queue[int]()

        async def start(pipe: socket.socket, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> WorkerProcess:
            started.put_nowait(1)
            return Unkillable()

        options = WorkerOptions("127.0.0.1", 0, 1, "cpu", tmp_path / "worker.log", os.environ, start=start)
        subject = Supervisor(options, next_incarnation=lambda: 1, on_up=_nothing, on_message=_nothing, on_down=ends.told)
        running = asyncio.create_task(subject.run())
        await started.get()
        await subject.stop(within_s=0.01)
        ended, _ = await asyncio.wait([running], timeout=20)
        running.cancel()
        await asyncio.wait([running])
        assert ended, "it waits for the worker"
        assert started.empty()
        assert ends.reasons == [STOPPED]

    asyncio.run(scenario())


def test_a_worker_that_reads_nothing_is_ended_in_time(tmp_path: Path) -> None:
    """Goal: neither a pause nor a stop waits until a worker that stands still has taken what was sent to it."""

    async def scenario() -> None:
        ends, workers = Ends(), asyncio.Queue[Worker]()
        options = WorkerOptions("127.0.0.1", 0, 1, "cpu", tmp_path / "worker.log", os.environ, start=executed(*STANDS_STILL))
        subject = Supervisor(options, next_incarnation=lambda: 1, on_up=workers.put, on_message=_nothing, on_down=ends.told)
        running = asyncio.create_task(subject.run())
        async with asyncio.timeout(60):
            worker = await workers.get()
            with pytest.raises(TimedOut):
                await worker.pipe.send(local_pb2.ToWorker(host=local_pb2.HostReplica(graph=bytes(2 * MIB))), timeout_s=0.1)
        async with asyncio.timeout(5):
            await subject.hold(within_s=1.0)
            await ends.first.wait()
        assert ends.reasons == [HELD]
        assert not psutil.pid_exists(worker.pid)
        await subject.stop(within_s=0.2)
        await running

    asyncio.run(scenario())


@pytest.mark.parametrize("own", ["", "DEBUG"])
def test_grpc_in_a_worker_writes_what_its_owner_asks_for_and_else_nothing(tmp_path: Path, own: str) -> None:
    """Goal: no stranger chooses what stands in the worker's log, or how much."""
    environments = list[Mapping[str, str]]()

    async def start(pipe: socket.socket, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> WorkerProcess:
        environments.append(environment)
        raise OSError(2, "none")

    async def scenario() -> None:
        ends = Ends()
        options = WorkerOptions("127.0.0.1", 0, 1, "cpu", tmp_path / "worker.log", {VERBOSITY: own} if own else {}, start=start)
        subject = Supervisor(options, next_incarnation=lambda: 1, on_up=_nothing, on_message=_nothing, on_down=ends.told)
        running = asyncio.create_task(subject.run())
        await ends.first.wait()
        await subject.stop(within_s=0.2)
        await running

    asyncio.run(scenario())
    assert environments[0][VERBOSITY] == (own or QUIET)


def test_a_log_stays_within_its_bound_with_its_newest_lines(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    shorten(log)
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb", buffering=0) as worker:
        worker.write(b"first\n")
        shorten(log)
        assert log.read_bytes() == b"first\n"
        for number in range(MAX_LOG_BYTES // 1024):
            worker.write(b"%1023d\n" % number)
        shorten(log)
        assert KEPT_LOG_BYTES - 1024 <= log.stat().st_size <= KEPT_LOG_BYTES
        worker.write(b"last\n")
    lines = log.read_bytes().splitlines()
    assert [int(line) for line in (lines[0], lines[-2])] == [MAX_LOG_BYTES // 1024 - len(lines) + 1, MAX_LOG_BYTES // 1024 - 1]
    assert lines[-1] == b"last"


def test_a_log_is_looked_at_while_its_worker_lives(tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_bytes(bytes(MAX_LOG_BYTES + 1))

    async def scenario() -> None:
        subject = supervisor(tmp_path)
        running = asyncio.create_task(subject.run())
        async with asyncio.timeout(60):
            await begun()
            while True:
                if (tmp_path / "worker.log").stat().st_size <= KEPT_LOG_BYTES:
                    break
                await asyncio.sleep(0.01)
            await subject.stop(within_s=0.2)
            await running

    asyncio.run(scenario())
