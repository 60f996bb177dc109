"""The object store as a machine of its own: requests travel there, wait, land and are answered, each part of which may fail; a caller that gave up has
not undone anything.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dataservice.memory import Fault, MemoryStore, Operation
from dcnr import limits
from dcnr.errors import DcnrError, TimedOut, Unavailable
from dcnr.ports import ObjectInfo, ObjectStore, Random, StoredObject
from simulation.control_loop import ProcessLoop
from simulation.kernel import Process

if TYPE_CHECKING:
    from simulation.control_world import ControlWorld

STORE_HOST: Final = "store"
_RATES: Final = {
    Fault.CONFLICT: 0.2,
    Fault.PRECONDITION: 0.2,
    Fault.UNAVAILABLE: 0.25,
    Fault.TIMEOUT_BEFORE: 0.15,
    Fault.TIMEOUT_AFTER: 0.2,
    Fault.TORN: 0.15,
    Fault.STALE_READ: 0.1,
}
"""How often each fault is met, times the knob."""
HELD_UP_S: Final = 3.0
"""A call that is held up takes at most so much longer."""
REPEATED_S: Final = 5.0
"""A call that is repeated is served again within this time."""


class KnobFaults:
    """Faults of single calls while the world is unsafe."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world

    def pick(self, operation: Operation, key: str, random: Random) -> Fault:
        """At most one fault per call."""
        world = self._world
        if not world.is_unsafe:
            return Fault.NONE
        if world.kernel.now_s < world.store_away_until_s:
            return Fault.UNAVAILABLE
        draw = random.random()
        for fault, rate in _RATES.items():
            draw -= rate * world.knobs.store_fault_rate
            if draw < 0:
                return fault
        return Fault.NONE


class WatchedStore(MemoryStore):
    """Tells the checkers of every write and deletion at the moment it lands."""

    def __init__(self, world: ControlWorld, **options: Any) -> None:
        super().__init__(world.true_clock(), world.kernel.rng("store"), **options)
        self._world = world

    def _write(self, key: str, data: bytes | None) -> None:
        old = self.peek(key)
        super()._write(key, data)
        self._world.kernel.note("stored", key, "nothing" if data is None else zlib.crc32(data))
        self._world.checkers.stored(key, old, data)

    def dump(self) -> dict[str, bytes]:
        """Everything that lies there now: a backup."""
        return {key: data for key in self.keys() if (data := self.peek(key)) is not None}

    def restore(self, copy: Mapping[str, bytes]) -> None:
        """Puts exactly what is in an older copy in the place of what lies there."""
        before = self.dump()
        for key in sorted(before.keys() | copy.keys()):
            if before.get(key) != copy.get(key):
                super()._write(key, copy.get(key))
        self._world.maintainers.restored()
        self._world.checkers.restored(before)


class StoreService:
    """The machine."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self._rng = world.kernel.rng("store-times")
        self.process = Process(world.kernel, STORE_HOST)
        self.loop = ProcessLoop(world.kernel, self.process, world.failed)
        self.store = WatchedStore(world, faults=KnobFaults(world), delay=self._delay)

    async def _delay(self) -> None:
        await asyncio.sleep(self._rng.uniform(0.001, 0.008))

    def hold_s(self) -> float:
        """How long a request lies around before it is looked at."""
        world = self._world
        if world.is_unsafe and self._rng.random() < world.knobs.slow_store_rate:
            return self._rng.choice([0.5, 1.5, 3.0, 12.0]) * self._rng.random()
        return 0.0

    def ask(self, process: Process, call: Callable[[ObjectStore], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
        """Carries one request there and its answer back; what is lost on the way is never answered."""
        network = self._world.network
        if not process.alive or network.is_blocked(process.host, STORE_HOST):
            return
        delay_s = network.latency_s(process.host, STORE_HOST) + self.hold_s()

        def arrive() -> None:
            self.loop.spawn(self._serve(process, call, future))

        self._world.kernel.after(delay_s, arrive)

    async def _serve(self, process: Process, call: Callable[[ObjectStore], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
        error: DcnrError | None = None
        result: Any = None
        try:
            result = await call(self.store)
        except DcnrError as failure:
            error = failure
        network = self._world.network
        if network.is_blocked(STORE_HOST, process.host):
            return
        delay_s = network.latency_s(STORE_HOST, process.host) + self.hold_s() / 2

        def answer() -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        process.after(delay_s, answer)


class StoreClient:
    """A `dcnr.ports.ObjectStore` as one process has it. What it gave up on may still land."""

    def __init__(self, world: ControlWorld, process: Process) -> None:
        self._world, self._process = world, process

    async def _call(self, call: Callable[[ObjectStore], Awaitable[Any]]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._world.store.ask(self._process, call, future)
        try:
            async with asyncio.timeout(limits.STORE_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise TimedOut("the store did not answer in time", code="store_timeout") from None

    async def get(self, key: str, *, max_bytes: int) -> StoredObject:
        """As the port says."""
        found: StoredObject = await self._call(lambda store: store.get(key, max_bytes=max_bytes))
        return found

    async def get_range(self, key: str, *, first: int, num_bytes: int) -> bytes:
        """As the port says."""
        data: bytes = await self._call(lambda store: store.get_range(key, first=first, num_bytes=num_bytes))
        return data

    async def head(self, key: str) -> ObjectInfo:
        """As the port says."""
        found: ObjectInfo = await self._call(lambda store: store.head(key))
        return found

    async def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """As the port says."""
        etag: str = await self._call(lambda store: store.put(key, data, if_match=if_match, if_none_match=if_none_match))
        return etag

    async def delete(self, key: str) -> None:
        """As the port says."""
        await self._call(lambda store: store.delete(key))

    async def list(self, prefix: str, *, max_keys: int = 1000, after: str = "") -> Sequence[ObjectInfo]:
        """As the port says."""
        rows: Sequence[ObjectInfo] = await self._call(lambda store: store.list(prefix, max_keys=max_keys, after=after))
        return rows


class Calls:
    """Unary calls between processes: lost, answered late, or answered by an error."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self._rng = world.kernel.rng("calls")

    async def call(
        self, caller: Process, callee: Process, loop: ProcessLoop, serve: Callable[[], Awaitable[bytes]], timeout_s: float
    ) -> bytes:
        """The answer's bytes. Raises Unavailable (also TimedOut) or the callee's typed error."""
        world = self._world
        if not callee.alive or world.network.is_blocked(caller.host, callee.host):
            await asyncio.sleep(0.05)
            raise Unavailable("no connection", code="no_connection")
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            if not self._lost():
                callee.post(serve_it)

        def serve_it() -> None:
            if callee.alive:
                loop.spawn(run())

        async def run() -> None:
            failure: DcnrError | None = None
            data = b""
            try:
                data = await serve()
            except DcnrError as error:
                failure = error
            if self._lost() or world.network.is_blocked(callee.host, caller.host):
                return
            world.network.note_message("answer", callee.host, caller.host, data)
            caller.after(world.network.latency_s(callee.host, caller.host) + self._held_up_s(), lambda: finish(data, failure))

        def finish(data: bytes, failure: DcnrError | None) -> None:
            if future.done():
                return
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(data)

        way_s = world.network.latency_s(caller.host, callee.host)
        world.kernel.after(way_s + self._held_up_s(), arrive)
        if world.is_unsafe and self._rng.random() < world.knobs.call_repeat_rate:
            world.kernel.after(way_s + self._rng.uniform(0.0, REPEATED_S), arrive)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise TimedOut("no answer in time", code="timed_out") from None

    def _lost(self) -> bool:
        return self._world.is_unsafe and self._rng.random() < self._world.knobs.call_loss_rate

    def _held_up_s(self) -> float:
        """What makes later calls overtake this one."""
        if self._world.is_unsafe and self._rng.random() < self._world.knobs.call_delay_rate:
            return self._rng.uniform(0.0, HELD_UP_S)
        return 0.0
