"""One asyncio event loop per simulated process: the real shells run unchanged on virtual time, stand still when their process is paused, end when it dies.

Callbacks run when the kernel says so, in the order in which they were asked for; a blocking call of the executor takes no time.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dcnr.ports import ObjectStore
from simulation.kernel import Kernel, Process

MAX_GHOST_STEPS: Final = 20_000
"""Callbacks that a killed process may run to unwind its tasks; their effects go nowhere."""


class _LoopBase(asyncio.AbstractEventLoop if not TYPE_CHECKING else Any):  # type: ignore[misc]
    """What asyncio asks for; sockets, signals and subprocesses do not exist here."""


class ProcessLoop(_LoopBase):
    """See the module. ``on_error`` hears of every exception that nobody awaited; ``rate`` is how fast this machine's monotonic clock runs."""

    def __init__(self, kernel: Kernel, process: Process, on_error: Callable[[BaseException], None], rate: float = 1.0) -> None:
        self._kernel, self._process, self._on_error, self._rate = kernel, process, on_error, rate
        self._ready: deque[asyncio.Handle] = deque()
        self._is_scheduled = False
        self._is_ghost = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """Living tasks in the order of their beginning, so that the end of a process is the same in every run."""
        self.store: ObjectStore | None = None
        """The store as this process reaches it, for parts that fetch by URL."""

    def time(self) -> float:
        """Seconds as this machine counts them."""
        return self._kernel.now_s * self._rate

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        """Runs after what is already waiting."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._is_scheduled and not self._is_ghost:
            self._is_scheduled = True
            self._process.soon(self._drain)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        """As `call_soon`: there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        """Nothing comes from outside. gRPC asks each loop in which a server is made; where one refuses, it takes it that none of this process reads, and from
        then on an event for a loop that is closed ends the thread on which all the others rest (grpcio 1.85.1, `PollerCompletionQueue`).
        """

    def remove_reader(self, fd: Any) -> bool:
        """Nobody reads."""
        return False

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.TimerHandle:
        """Runs at a time of this loop."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._is_ghost:
            self._process.after(when / self._rate - self._kernel.now_s, partial(self._fire, handle))
        return handle

    def later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        """As `call_later`, for what nobody ever cancels; costs half as much, which thousands of machines feel."""
        if not self._is_ghost:
            when = self.time() + delay_s
            self._process.after(when / self._rate - self._kernel.now_s, partial(self.deliver, callback, *args))

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Runs that much later."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is skipped when its time comes."""

    def _fire(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)
            if not self._is_scheduled:
                self._drain()

    def deliver(self, callback: Callable[..., object], *args: Any) -> None:
        """Runs ``callback`` after what is already waiting, and at once where nothing is: for what comes from outside of any loop."""
        process = self._process
        if self._ready or self._is_scheduled or self._is_ghost or process.paused or not process.alive:
            self._ready.append(asyncio.Handle(callback, args, self))
            if not self._is_scheduled and not self._is_ghost:
                self._drain()
            return
        events._set_running_loop(self)
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001  as a handle does
            self.call_exception_handler({"exception": error})
        finally:
            events._set_running_loop(None)
        if self._ready:
            self._run_ready()

    def _drain(self) -> None:
        self._is_scheduled = False
        self._run_ready()

    def _run_ready(self) -> None:
        process, ready = self._process, self._ready
        events._set_running_loop(self)
        try:
            while ready and (self._is_ghost or (process.alive and not process.paused)):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            events._set_running_loop(None)
        if ready and process.paused and not self._is_ghost:  # it stands still because of what it has just done
            self._is_scheduled = True
            process.soon(self._drain)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None) -> asyncio.Task[Any]:
        """A task of this loop; one that fails unheard ends the simulation."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def spawn(self, coro: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that nobody awaits: what it raises is a finding."""
        task = self.create_task(coro)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None and not self._is_ghost:
            self._on_error(task.exception())  # type: ignore[arg-type]

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Runs ``func`` at once; its result is there at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  whatever a thread raises is handed to who awaits it
            future.set_exception(error)
        return future

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """While its process lives."""
        return self._process.alive

    def is_closed(self) -> bool:
        """Never asked to close: `bury` ends it."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception in a callback, or one that nobody fetched."""
        error = context.get("exception")
        if isinstance(error, BaseException) and not self._is_ghost and self._process.alive:
            self._on_error(error)

    def bury(self) -> None:
        """Unwinds every task of a dead process, so that nothing is left half-run; the dead hear and say nothing."""
        self._is_ghost = True
        self._ready.clear()
        for _ in range(100):
            for task in list(self._tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine: Any = task.get_coro()
                if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                    coroutine.close()  # its first step was dropped with everything that was still to be done
                    del self._tasks[task]
                else:
                    task.cancel()
            steps = 0
            before = events._get_running_loop()
            events._set_running_loop(self)
            try:
                while self._ready and steps < MAX_GHOST_STEPS:
                    steps += 1
                    handle = self._ready.popleft()
                    if not handle.cancelled():
                        handle._run()
            finally:
                events._set_running_loop(before)
            if not self._tasks:
                return
