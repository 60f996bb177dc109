"""Keeps one worker process alive: starts it with one end of a socket pair, restarts it with growing pauses, and always knows why it is gone.

The worker inherits nothing but that descriptor and a small environment: no key, no store credential, no configuration. It ends when the descriptor
closes, so a killed daemon never leaves a worker behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dcnr import limits
from dcnr.crashpoints import VARIABLE
from dcnr.errors import Corrupt, DcnrError, Unavailable
from dcnr.rpc.options import QUIET, VERBOSITY
from dcnr.settings import TracingSettings
from dcnr.v1 import local_pb2
from pnode.disk import on_disk
from pnode.pipe import LocalPipe

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 30.0
"""A worker that lived this long starts the pauses anew."""
HELLO_TIMEOUT_S = 60.0
"""From process start to the worker's first message: importing torch on a slow disk."""
KILLED_S = 2.0
HELD = "the worker was ended for a pause"
"""Whatever signal it took: its owner wanted it to end, and nothing is wrong with it."""
STOPPED = "the worker was ended, as it was told"
UNKNOWN_CODE = 255
"""What asyncio says of a process that a signal came too late for: sending it looked for the end, and took the exit code along."""
MAX_LAST_WORDS = 400
"""Bytes of the worker's log that are searched for the reason of its end."""
MAX_LOG_BYTES = 8 * limits.MIB
KEPT_LOG_BYTES = limits.MIB
"""A log that was found above the former keeps so much of its end."""
LOG_LOOK_S = 10.0
_INHERITED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "SYSTEMROOT", "LD_LIBRARY_PATH", VARIABLE,
    VERBOSITY, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES",
)  # fmt: skip
"""The last three: which accelerators their owner lets programs see."""
ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": str(16 * limits.MIB), "MALLOC_TRIM_THRESHOLD_": str(32 * limits.MIB)}
"""For glibc; others ignore it. The memory of a chunk or frame serves the next one: given back to the kernel each time, its pages cost more than
the rest of the hand-over. A worker keeps at most so much more than it uses.
"""

WorkerPipe = LocalPipe[local_pb2.FromWorker]


class WorkerProcess(Protocol):
    """What is needed of a process that was started; asyncio's are such."""

    @property
    def pid(self) -> int:
        """Also after it has ended."""

    @property
    def returncode(self) -> int | None:
        """None while it runs; minus the signal that ended it."""

    async def wait(self) -> int:
        """Its ``returncode``, once it has ended; several may wait."""

    def send_signal(self, signal: int, /) -> None:
        """Nothing, or ProcessLookupError, where it has ended."""


class Start(Protocol):
    """How a worker is started: in a session of its own, with nothing but the pipe, this environment and the descriptor of its log. Raises OSError."""

    async def __call__(
        self, pipe: socket.socket, arguments: Sequence[str], environment: Mapping[str, str], log: int
    ) -> WorkerProcess:
        """``arguments`` say all but where the pipe is; the caller closes both descriptors afterwards."""


def executed(*program: str) -> Start:
    """Python runs the program."""

    async def start(pipe: socket.socket, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> WorkerProcess:
        return await asyncio.create_subprocess_exec(
            sys.executable, *program, "--fd", str(pipe.fileno()), *arguments, pass_fds=[pipe.fileno()], env=environment,
            stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    return start


WORKER = executed("-m", "pnode.worker_process")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How to start it. ``listen_host`` and ``data_port`` are where it serves frames (0: any free port)."""

    listen_host: str
    data_port: int
    threads: int
    device: str
    log_path: Path
    environment: Mapping[str, str]
    tracing: TracingSettings = field(default_factory=TracingSettings)
    components: Sequence[str] = ()
    """What its owner's own configuration names from outside the tree: the worker loads the same as the daemon."""
    start: Start = WORKER
    """Only code that starts a daemon itself can change it."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A running worker that has said hello."""

    pid: int
    incarnation: int
    hello: local_pb2.WorkerHello
    pipe: WorkerPipe


class Supervisor:
    """Runs workers one after the other until `stop`."""

    def __init__(
        self, options: WorkerOptions, *, next_incarnation: Callable[[], int],
        on_up: Callable[[Worker], Awaitable[None]], on_message: Callable[[Worker, local_pb2.FromWorker], Awaitable[None]],
        on_down: Callable[[str], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._options, self._next_incarnation = options, next_incarnation
        self._on_up, self._on_message, self._on_down = on_up, on_message, on_down
        self._stopping, self._go = asyncio.Event(), asyncio.Event()
        self._go.set()
        self._process: WorkerProcess | None = None
        self.worker: Worker | None = None
        self.reason = "the worker has not started yet"
        self.last_words = ""
        """Of the log of a worker that ended by an error or had to be forced. For its owner alone: they may name directories."""
        self._log_start = 0
        """Bytes that the log had when the worker was started: what stands there is of others."""
        self._is_ours = False
        """Whether the process that runs was sent a signal from here: then its exit code says nothing of what it did."""

    async def run(self) -> None:
        """Returns after `stop`. Every end of a worker is reported with its reason before the next one starts; its log is kept within bounds."""
        bounding = asyncio.create_task(_bounded(self._options.log_path), name="bounds of the worker's log")
        try:
            await self._lives()
        finally:
            bounding.cancel()
            await asyncio.wait([bounding])

    async def _lives(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            await self._go.wait()
            if self._stopping.is_set():
                return
            started = loop.time()
            why = await self._one_life()
            self.reason = HELD if self.is_held else why
            self.worker = None
            await self._on_down(self.reason)
            if self._stopping.is_set():
                return
            if self.is_held:
                pause_s = FIRST_PAUSE_S
                continue
            pause_s = FIRST_PAUSE_S if loop.time() - started > STEADY_S else min(LONGEST_PAUSE_S, pause_s * 2)
            try:
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def stop(self, *, within_s: float) -> None:
        """Ends the worker: it is asked by the closed descriptor, then by SIGTERM, then killed. At most ``within_s`` + 2 seconds."""
        self._stopping.set()
        self._go.set()
        await self._end(within_s)

    async def hold(self, *, within_s: float) -> None:
        """Ends the worker as `stop` does, and starts no other one until `go_on`."""
        self.hold_back()
        await self._end(within_s)

    def hold_back(self) -> None:
        """No further worker is started until `go_on`."""
        self._go.clear()

    def go_on(self) -> None:
        """Workers may run again."""
        self._go.set()

    @property
    def is_held(self) -> bool:
        """Whether no worker may run."""
        return not self._go.is_set()

    async def _end(self, within_s: float) -> None:
        process = self._process
        if self.worker is not None:
            await self.worker.pipe.close()
        if process is None or process.returncode is not None:
            return
        for number, wait_s in ((signal.SIGTERM, within_s), (signal.SIGKILL, 2.0)):
            try:
                async with asyncio.timeout(wait_s / 2):
                    await process.wait()
                return
            except TimeoutError:
                self._signal(process, number)

    def kill(self) -> None:
        """Ends the worker at once; it is started again."""
        if self._process is not None and self._process.returncode is None:
            self._signal(self._process, signal.SIGKILL)

    def _signal(self, process: WorkerProcess, number: int) -> None:
        self._is_ours = True
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    async def _one_life(self) -> str:
        self._is_ours, self.last_words = False, ""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # no descriptor is free now
            return f"the worker cannot be started: {error.strerror}"
        try:
            process = await self._spawn(theirs)
        except OSError as error:
            ours.close()
            return f"the worker cannot be started: {error.strerror}"
        except Unavailable:
            ours.close()
            return STOPPED
        finally:
            theirs.close()
        self._process = process
        if self._stopping.is_set() or self.is_held:  # since the start began: whoever said so saw no process to end
            self._signal(process, signal.SIGKILL)
        pipe: WorkerPipe = await LocalPipe.over(ours, local_pb2.FromWorker)
        why = ""
        try:
            why = await self._serve(process, pipe)
        finally:
            await pipe.close()
            why = await self._ended(process, why)
        return why

    async def _serve(self, process: WorkerProcess, pipe: WorkerPipe) -> str:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                first = await pipe.receive()
        except TimeoutError:
            return f"the worker said nothing within {HELLO_TIMEOUT_S:.0f} s"
        except Corrupt as error:
            return error.message
        if first is None or first.WhichOneof("kind") != "hello":
            return "the worker ended before it said hello"
        try:
            number = await on_disk(self._next_incarnation, self._stopping)
            self.worker = Worker(process.pid, number, first.hello, pipe)
            self.reason = ""
            await self._done(self._on_up(self.worker))
            while (message := await pipe.receive()) is not None:
                await self._done(self._on_message(self.worker, message))
        except DcnrError as error:  # a bad message, or a disk that takes no number: this worker ends, the daemon goes on
            return error.message
        return "the worker closed its end"

    async def _ended(self, process: WorkerProcess, why: str) -> str:
        """Waits for the end and says how it came about. One that has to be forced ended for ``why``, unless it was told to end."""
        try:
            async with asyncio.timeout(limits.CONNECT_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            self._signal(process, signal.SIGKILL)
            await self._gone(process)
            if self._stopping.is_set():
                return STOPPED
            await self._hear()
            return f"{why}, and was killed: it had not ended {limits.CONNECT_TIMEOUT_S:.0f} s later"
        code = process.returncode or 0
        if self._is_ours and (code < 0 or code == UNKNOWN_CODE):
            return STOPPED
        if code == -signal.SIGKILL:
            return "the worker was killed (SIGKILL: by hand, or by the system for memory)"
        if code < 0:
            return f"the worker was ended by signal {-code}"
        if not code:
            return why
        await self._hear()
        return f"the worker ended with exit code {code}"

    async def _hear(self) -> None:
        with contextlib.suppress(Unavailable):
            self.last_words = await on_disk(lambda: _last_words(self._options.log_path, self._log_start), self._stopping)

    async def _done(self, work: Awaitable[None]) -> None:
        """Waits for what is done about a worker's word. Raises what it raises, and Unavailable where it has to be given up since this is stopped."""
        if not await self._waited(working := asyncio.ensure_future(work)):
            raise Unavailable("it is stopped while the disk stands still", code="disk_trouble")
        working.result()

    async def _gone(self, process: WorkerProcess) -> None:
        """Waits for a process that was killed. One that hangs in a disk no signal ends, and nobody takes its place."""
        await self._waited(asyncio.ensure_future(process.wait()))

    async def _waited(self, work: asyncio.Future[Any]) -> bool:
        """Whether it is done; what waits for a disk that stands still is not, and who is stopped waits for `KILLED_S`."""
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((work,), timeout=KILLED_S)
            return work.done()
        finally:
            work.cancel()
            stopped.cancel()

    async def _spawn(self, theirs: socket.socket) -> WorkerProcess:
        options = self._options
        inherited = {name: options.environment[name] for name in _INHERITED if name in options.environment}
        environment = {
            VERBOSITY: QUIET,
            **inherited,
            **ALLOCATION,
            "OMP_NUM_THREADS": str(options.threads),
            "PYTHONUNBUFFERED": "1",
        }
        arguments = [
            "--host", options.listen_host, "--port", str(options.data_port), "--threads", str(options.threads), "--device", options.device,
            "--trace-endpoint", options.tracing.endpoint, "--trace-share", str(options.tracing.share),
            *(word for source in options.components for word in ("--components", source)),
        ]  # fmt: skip
        log, self._log_start = await on_disk(
            lambda: _opened(options.log_path), self._stopping, too_late=lambda opened: os.close(opened[0])
        )
        try:
            return await options.start(theirs, arguments, environment, log)
        finally:
            os.close(log)


def _opened(log: Path) -> tuple[int, int]:
    """A descriptor that writes at its end, and the bytes before that. Raises OSError."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return descriptor, os.fstat(descriptor).st_size


async def _bounded(log: Path) -> None:
    while True:
        await asyncio.to_thread(shorten, log)
        await asyncio.sleep(LOG_LOOK_S)


def shorten(log: Path) -> None:
    """A log above `MAX_LOG_BYTES` keeps its last `KEPT_LOG_BYTES`, whole lines; who writes at its end goes on there. Nothing where the disk refuses."""
    with contextlib.suppress(OSError), log.open("rb+") as file:
        if (size := file.seek(0, os.SEEK_END)) <= MAX_LOG_BYTES:
            return
        file.seek(size - KEPT_LOG_BYTES)
        kept = file.read(KEPT_LOG_BYTES)
        file.truncate(0)  # what is written meanwhile may be lost, or stand before what is kept
        with log.open("ab") as end:
            end.write(kept[kept.find(b"\n") + 1 :])


def _last_words(log: Path, start: int) -> str:
    """The last line of a log behind its first ``start`` bytes, or in all of it where it was shortened since; empty where it cannot be read."""
    try:
        with log.open("rb") as file:
            size = log.stat().st_size
            file.seek(max(size - MAX_LAST_WORDS, start if start <= size else 0))
            lines = file.read(MAX_LAST_WORDS).decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""
