"""The worker's seats: named states that answer questions besides training, all on one thread, so that together they take no more than one replica does.

A seat that is dropped answers the questions that it has taken; then its memory is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from dcnr import logs
from dcnr.errors import Corrupt, InvalidInput, NotFound
from dcnr.graph import graph_from_bytes, stages_of_graph
from dcnr.ports import Clock
from dcnr.specs import Registry
from dcnr.v1 import local_pb2, orchestrator_pb2
from pnode.infer_places import Computed, Session, Wish, unless_gone
from pnode.infer_reads import Asking, Reads
from pnode.infer_sessions import infer_on, lost
from pnode.infer_together import Together, Waiting
from pnode.infer_turns import Turns
from pnode.infer_words import Travelling
from pnode.pace import Pace
from pnode.seating import FILE_GONE, LOADING, Key
from pnode.text_sessions import SessionKey, TextSessions
from vnode.costs import session_bytes
from vnode.torch_compute import TorchCompute
from vnode.torch_memory import Memory

MAX_SEATS: Final = 64
WEIGHT: Final = 0.1
"""Of the newest question in the moving average."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    compute: TorchCompute
    together: Together
    asking: Asking
    step: int
    session_bytes: int | None
    """That it keeps of one text; None: it keeps nothing."""


@dataclass(frozen=True, slots=True)
class _Thread:
    """The thread of all seats, within the volunteer's share of processor time. It knows no seat: one that is dropped would know itself through it, and stay in
    the memory until somebody searches that for garbage.
    """

    executor: ThreadPoolExecutor
    pace: Pace
    never: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, work: Callable[[], Any]) -> Any:
        """What the work gives. Raises NotFound (``not_here``) where the thread has ended."""
        await self.pace.rest(self.never)
        begun = self.pace.begin()
        try:
            return await unless_gone(lambda: asyncio.get_running_loop().run_in_executor(self.executor, work))
        finally:
            self.pace.end(begun)

    async def turn(self, loaded: _Loaded) -> Sequence[Waiting]:
        """Those who were computed together."""
        return cast(Sequence[Waiting], await self.run(lambda: loaded.together.work(loaded.step)))


class Seat:
    """One named state: an `infer_places.Place` once it is loaded. ``sessions`` are those of all seats."""

    def __init__(
        self, order: local_pb2.HostSeat, thread: ThreadPoolExecutor, pace: Pace, clock: Clock, sessions: TextSessions[Memory]
    ) -> None:
        self.order, self.reason = order, LOADING
        self.key: Key = (order.model, order.vnode, order.state_digest)
        self._thread, self._clock, self._sessions = _Thread(thread, pace), clock, sessions
        self._loaded: tuple[_Loaded, Turns] | None = None
        self._queued = self._num_answered = 0
        self._compute_s = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether it answers."""
        return self._loaded is not None

    @property
    def asking(self) -> Asking:
        """What it takes. Raises NotFound (``not_here``) before it is loaded."""
        return self._whole()[0].asking

    async def load(self, prepare: Callable[[local_pb2.HostSeat], _Loaded]) -> None:
        """Restores the state; what goes wrong is the reason that reports show."""
        try:
            loaded = await asyncio.get_running_loop().run_in_executor(self._thread.executor, prepare, self.order)
            self._loaded = loaded, Turns(loaded.together, partial(self._thread.turn, loaded))
            self.reason = ""
        except Exception as error:  # noqa: BLE001  VNode boundary: a state that cannot be served leaves the worker alive
            self.reason = logs.told("seat_failed", error, vnode=self.order.vnode)[:200]

    async def compute(self, inputs: Sequence[Travelling], wish: Wish) -> Computed:
        """See `infer_places.Place`."""
        loaded, turns = self._whole()
        memory = self._memory(loaded, wish.session) if wish.session is not None else None
        self._queued += 1
        try:
            if memory is not None and wish.session is not None:
                computed = await self._going_on(loaded, memory, wish.session.offset, inputs, wish)
            else:
                computed = await turns.computed(inputs, wish)
        finally:
            self._queued -= 1
        self._num_answered += 1
        self._compute_s += max(WEIGHT, 1 / self._num_answered) * (computed.seconds / computed.num_together - self._compute_s)
        return computed

    async def _going_on(self, loaded: _Loaded, memory: Memory, offset: int, inputs: Sequence[Travelling], wish: Wish) -> Computed:
        computed: Computed = await self._thread.run(
            lambda: infer_on(loaded.compute, memory, offset, inputs, loaded.step, self._clock, wish)
        )
        return computed

    def _memory(self, loaded: _Loaded, session: Session) -> Memory | None:
        """Where a session goes on, or begins; None for one that begins where there is no room for it."""
        key, now_s = SessionKey(session.caller, session.id, self.key), self._clock.monotonic()
        if session.offset:
            memory = self._sessions.find(key, now_s)
            if memory is None:
                raise lost(0)
            return memory
        if loaded.session_bytes is None:
            return None
        begun = loaded.compute.memory()
        return begun if self._sessions.begin(key, begun, loaded.session_bytes, now_s) else None

    def report(self, sessions: tuple[int, int] = (0, 0)) -> orchestrator_pb2.SeatReport:
        """As it is now, with the number and the bytes of the texts of which it keeps something."""
        order = self.order
        return orchestrator_pb2.SeatReport(
            model=order.model, vnode=order.vnode, state_digest=order.state_digest, ready=self.is_ready, reason=self.reason,
            queued=self._queued, compute_s=self._compute_s, num_answered=self._num_answered, num_sessions=sessions[0], session_bytes=sessions[1],
        )  # fmt: skip

    def _whole(self) -> tuple[_Loaded, Turns]:
        if self._loaded is None:
            raise NotFound(f"this seat does not answer yet: {self.reason}", code="not_here")
        return self._loaded


class Seats:
    """All seats of one worker. ``news`` is called when reports should go out at once."""

    def __init__(
        self, registry: Registry, *, compute: Callable[..., TorchCompute], device: str, clock: Clock, pace: Pace, news: Callable[[], None],
        group: asyncio.TaskGroup,
    ) -> None:  # fmt: skip
        self._registry, self._make, self._device, self._clock, self._pace = registry, compute, device, clock, pace
        self._news, self._group = news, group
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="seats")
        self._seats: dict[Key, Seat] = {}
        self._sessions = TextSessions[Memory]()

    def ordered(self, order: local_pb2.HostSeat) -> None:
        """Begins a seat, or ends it where the order names no file. Raises InvalidInput where there are too many."""
        key = (order.model, order.vnode, order.state_digest)
        if not order.state_path:
            self._seats.pop(key, None)
            self._sessions.leave(key)
            self._news()
            return
        known = self._seats.get(key)
        if known is not None and (known.is_ready or known.reason == LOADING):
            return
        if known is None and len(self._seats) >= MAX_SEATS:
            raise InvalidInput(f"there are {MAX_SEATS} seats already", code="too_many_seats")
        self._pace.limit(order.cpu_share * max(1, order.threads))
        self._seats[key] = seat = Seat(order, self._thread, self._pace, self._clock, self._sessions)
        self._group.create_task(self._load(seat))

    def find(self, model: str, vnode: str, state_digest: str) -> Seat:
        """The seat with that state. Raises NotFound (``not_here``)."""
        seat = self._seats.get((model, vnode, state_digest))
        if seat is None:
            raise NotFound("this state is not served here", code="not_here")
        return seat

    def reports(self) -> list[orchestrator_pb2.SeatReport]:
        """One of each."""
        kept = self._sessions.by_seat()
        return [seat.report(kept.get(key, (0, 0))) for key, seat in sorted(self._seats.items())]

    def lend(self, max_bytes: int) -> None:
        """So much memory may hold what is kept of texts."""
        self._sessions.limit(max_bytes)

    def ended(self, caller: str, session: bytes) -> None:
        """That caller does not go on with that session."""
        self._sessions.end(caller, session)

    def review(self) -> None:
        """What nobody went on with for long is forgotten; to be called every second or so."""
        self._sessions.review(self._clock.monotonic())

    def close(self) -> None:
        """Nothing is computed any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _load(self, seat: Seat) -> None:
        await seat.load(self._prepared)
        self._news()

    def _prepared(self, order: local_pb2.HostSeat) -> _Loaded:
        graph = graph_from_bytes(order.graph)
        stages = stages_of_graph(graph, self._registry)
        stage = next((item for item in stages if item.id == order.vnode), None)
        if stage is None:
            raise InvalidInput(f"the graph has no VNode {order.vnode!r:.80} with weights", code="bad_assignment")
        compute = self._make(
            stage, self._registry, num_batches=1, seed=int(graph.train.seed), device=self._device, threads=order.threads
        )
        try:
            info = compute.serve(Path(order.state_path))
        except FileNotFoundError as error:
            raise NotFound("its file was removed before it was read", code=FILE_GONE) from error
        if info.model != order.model:
            raise Corrupt(f"the state belongs to {info.model}", code="bad_state_model")
        most = int(graph.train.batch_size)
        asking = Asking(stage.id, Reads.of(stages), most)
        return _Loaded(
            compute, Together(compute, most, self._clock), asking, len(info.lineage), session_bytes(stage, self._registry)
        )
