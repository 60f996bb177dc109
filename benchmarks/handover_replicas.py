"""Two replicas without maths for the hand-over benchmark: one sends what it is asked for within the window, one asks, counts and looks at the clock.

Need and window are the statements of the real protocol, moved as the replica core moves them: by a quarter of the window.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dcnr import limits
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.specs import TensorSpec
from pnode.exchange import Way
from pnode.frames import Expected
from pnode.hub import LinkHub
from pnode.outbox import Outbox
from vnode import events as ev
from vnode.costs import window_batches
from vnode.vocabulary import TRAIN_LANE, Mode, Peer

SIZES: Final = (1 * limits.MIB, 4 * limits.MIB, 64 * limits.MIB)
WIDTH: Final = 1024
KEPT_BYTES: Final = 256 * limits.MIB
"""Frames behind the newest that stay in the spool, as they do until a checkpoint is durable."""
_PER_SIZE: Final = 1 << 32
"""Batch numbers of one size: a number tells its size, so both ends agree without a word."""


def batches_of(size: int, first: int, count: int) -> tuple[int, int]:
    """The interval of ``count`` batch numbers of that size."""
    base = SIZES.index(size) * _PER_SIZE + first
    return base, base + count


def size_of(batch: int) -> int:
    """Bytes of the frame with that number."""
    return SIZES[batch // _PER_SIZE]


@dataclass
class Source:
    """The sending replica."""

    outbox: Outbox
    network_id: str
    peer: Peer = field(default_factory=lambda: Peer(ReplicaId("a.1"), 1))
    model: str = "bench"
    job_id: str = "bench"
    hops: list[float] = field(default_factory=list)
    """Seconds from sending a frame until FrameSent."""
    _ways: dict[int, Way] = field(default_factory=dict)
    _wanted: IntervalSet = field(default_factory=IntervalSet.empty)
    _window_end: int = 0
    _kept: deque[int] = field(default_factory=deque)
    _sent: dict[int, float] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _tensors: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict)

    def post(self, event: ev.Event) -> None:
        match event:
            case ev.NeedHeard():
                self._wanted = event.wanted
            case ev.WindowHeard():
                self._window_end = event.end
                self._send_due()
            case ev.FrameSent():
                self.hops.append(time.perf_counter() - self._sent.pop(event.batch))
            case _:
                pass
        self._news.set()

    def expected(self, edge: int) -> Expected:
        raise AssertionError("nobody feeds the source")

    def attach(self, target: Peer, pnode_id: str, way: Way) -> int:
        self._ways[len(self._ways) + 1] = way
        return len(self._ways)

    def detach(self, link: int) -> None:
        self._ways.pop(link, None)

    def carried(self, num_bytes: int, seconds: float) -> None:
        pass

    async def run(self) -> None:
        """Sends what is wanted within the window, once, until cancelled; like a real replica it makes the batch behind the window meanwhile."""
        done = IntervalSet.empty()
        while True:
            self._news.clear()
            due = self._wanted - done
            batch = min((low for low, _ in due.pairs()), default=None)
            if batch is None or batch > self._window_end or not self._ways:
                await self._news.wait()
                continue
            done = done | IntervalSet.of((batch, batch + 1))
            size = size_of(batch)
            if size not in self._tensors:
                rng = np.random.Generator(np.random.Philox(key=7))
                self._tensors[size] = rng.standard_normal((size // (4 * WIDTH), WIDTH), dtype=np.float32)
            await self.outbox.keep(TRAIN_LANE, batch, self._tensors[size], 0)
            self._kept.append(batch)
            self._send_due()
            old = batch - KEPT_BYTES // size
            self.outbox.drop(TRAIN_LANE, IntervalSet.of((old, old + 1)) if old >= 0 else IntervalSet.empty())

    def _send_due(self) -> None:
        while self._kept and self._kept[0] < self._window_end and self._ways:
            batch = self._kept.popleft()
            self._sent[batch] = time.perf_counter()
            next(reversed(self._ways.values())).send(TRAIN_LANE, batch, Mode.TRAIN)


@dataclass
class Target:
    """The receiving replica."""

    hub: LinkHub
    network_id: str
    peer: Peer = field(default_factory=lambda: Peer(ReplicaId("b.1"), 1))
    model: str = "bench"
    job_id: str = "bench"
    _kinds: set[type[ev.Event]] = field(default_factory=set)
    _arrived: int = 0
    _num_rows: int = 0
    """Of the frames that are asked for."""
    _next: dict[int, int] = field(default_factory=dict)
    _sequence: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def outbox(self) -> Outbox:
        raise AssertionError("the target feeds nobody")

    def post(self, event: ev.Event) -> None:
        self._kinds.add(type(event))
        if isinstance(event, ev.FrameArrived):
            self._arrived += 1
        self._news.set()

    def expected(self, edge: int) -> Expected:
        return Expected(TensorSpec("float32", (WIDTH,)), self._num_rows, ("raw",))

    def attach(self, target: Peer, pnode_id: str, way: Way) -> int:
        raise AssertionError("the target feeds nobody")

    def detach(self, link: int) -> None:
        pass

    def carried(self, num_bytes: int, seconds: float) -> None:
        pass

    async def until(self, kind: type[ev.Event]) -> None:
        """Waits until such an event has come."""
        while kind not in self._kinds:
            self._news.clear()
            await self._news.wait()

    async def transfer(self, size: int, frames: int) -> float:
        """Seconds from asking for ``frames`` frames until the last one has been decoded and checked."""
        first = self._next.get(size, 0)
        low, high = batches_of(size, first, frames)
        self._next[size] = first + frames
        window = window_batches(size)
        step = max(1, window // 4)
        self._num_rows = size // (4 * WIDTH)
        self._arrived, told = 0, low + window
        begun = time.perf_counter()
        self._say_need(low, high)
        self._say_window(told)
        while self._arrived < frames:
            self._news.clear()
            await self._news.wait()
            if low + self._arrived + window >= told + step:
                told = low + self._arrived + window
                self._say_window(told)
        return time.perf_counter() - begun

    def _say_need(self, low: int, high: int) -> None:
        self._sequence += 1
        wanted = IntervalSet.of((low, high))
        self.hub.say(
            self, ev.SendNeed(0, ReplicaId("a.1"), self._sequence, TRAIN_LANE, wanted, IntervalSet.empty(), IntervalSet.empty())
        )

    def _say_window(self, end: int) -> None:
        self._sequence += 1
        self.hub.say(self, ev.SendWindow(0, ReplicaId("a.1"), self._sequence, TRAIN_LANE, end))
