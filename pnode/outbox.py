"""Outputs of one replica on their way: live tensors for the newest, encoded frames in the spool for all that somebody may still ask for.

The compute thread only hands a tensor over; encoding, digest and disk belong to the executor, but for the digest of a raw frame of few MiB, which is
sooner made than the way to another thread is worth. A raw encoding is the tensor's own memory. What is held: the newest `HOT_BYTES` of live tensors with their
encodings (at least one frame, at most `HOT_FRAMES`), and beside them a backlog of frames that are not in the spool yet, which `keep` waits for. A
frame may be sent before it is in the spool: until then it stays here. Small frames go to the disk together.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

import numpy as np

from dcnr import limits
from dcnr.errors import DcnrError, InvalidInput
from dcnr.intervals import IntervalSet
from dcnr.tensor import Array, decode, encode_final
from pnode.spool import Frame, Spool
from vnode.vocabulary import Lane, TensorHandle

HOT_BYTES: Final = 16 * limits.MIB
HOT_FRAMES: Final = 64
MAX_BACKLOG: Final = 3
"""Frames that may wait for the disk, whatever their size."""
BACKLOG_BYTES: Final = 8 * limits.MIB
"""Smaller frames may wait until they are so much together, or `HOT_FRAMES`."""
WORTH_BYTES: Final = 4 * limits.MIB
"""Worth the way to another thread, which costs as much as writing a frame of 1 MiB does (ADR 0034). Less is written after `WAIT_S`."""
WAIT_S: Final = 0.02
QUICK_BYTES: Final = 4 * limits.MIB
"""Raw frames of at most so much are digested at once: a millisecond, and another thread, whose cache has not seen the tensor, takes a third more."""
_Key = tuple[Lane, int]


@dataclass(slots=True, eq=False)
class _Hot:
    tensor: TensorHandle
    num_bytes: int
    frame: asyncio.Future[Frame]
    in_spool: bool = False
    """Or not to be put there: the disk refused it."""


class Outbox:
    """Used from one event loop. ``codec()`` names the codec for the next frame of training; what it cannot carry goes raw, and so does every evaluation."""

    def __init__(self, spool: Spool, executor: Executor, codec: Callable[[], str], *, hot_bytes: int = HOT_BYTES) -> None:
        self._spool, self._executor, self._codec, self._hot_bytes = spool, executor, codec, hot_bytes
        self._hot: OrderedDict[_Key, _Hot] = OrderedDict()
        self._held_bytes = 0
        self._backlog: list[_Hot] = []
        self._room = asyncio.Event()
        self._not_kept: dict[str, int] = {}
        self._unwritten: list[tuple[_Key, _Hot]] = []
        self._writing = self._closed = False
        self._later: asyncio.TimerHandle | None = None

    @property
    def num_bytes(self) -> int:
        """Of the frames in the spool."""
        return self._spool.num_bytes

    @property
    def held_bytes(self) -> int:
        """Of live tensors and their encodings in memory, upper bound."""
        return self._held_bytes

    @property
    def not_kept(self) -> dict[str, int]:
        """How many frames did not get into the spool, by reason."""
        return dict(self._not_kept)

    async def keep(self, lane: Lane, batch: int, tensor: TensorHandle, step: int) -> None:
        """Takes over a detached tensor; returns when few enough are being encoded. Nothing may write to the tensor any more."""
        while self._is_full():
            self._write_behind()
            self._room.clear()
            await self._room.wait()
        self._forget((lane, batch))
        loop, codec = (
            asyncio.get_running_loop(),
            self._codec() if lane.is_train else "raw",
        )  # what is judged is the model, not its edges
        frame: asyncio.Future[Frame]
        if codec == "raw" and tensor.nbytes <= QUICK_BYTES and is_at_hand(tensor):
            frame = loop.create_future()
            try:
                frame.set_result(_encode(tensor, step, codec))
            except InvalidInput as error:
                frame.set_exception(error)
        else:
            frame = loop.run_in_executor(self._executor, _encode, tensor, step, codec)
        hot = _Hot(tensor, 2 * int(tensor.nbytes), frame)  # with its encoding, at most
        self._hot[(lane, batch)] = hot
        self._backlog.append(hot)
        self._held_bytes += hot.num_bytes
        frame.add_done_callback(lambda done: self._encoded((lane, batch), hot, done))

    def tensor(self, lane: Lane, batch: int) -> TensorHandle | None:
        """The live tensor, if it is one of the newest."""
        hot = self._hot.get((lane, batch))
        return None if hot is None else hot.tensor

    def newest(self, lane: Lane, batch: int) -> asyncio.Future[Frame] | None:
        """The frame of one of the newest tensors, encoded or being encoded; not to be cancelled."""
        hot = self._hot.get((lane, batch))
        return None if hot is None else hot.frame

    async def frame(self, lane: Lane, batch: int) -> Frame:
        """The encoded frame. Raises NotFound or Corrupt where there is none any more."""
        newest = self.newest(lane, batch)
        if newest is not None:
            return await asyncio.shield(newest)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._spool.get, lane, batch)

    async def stored_tensor(self, lane: Lane, batch: int) -> Array:
        """The decoded tensor out of the spool. Raises NotFound or Corrupt."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._load, lane, batch)

    def drop(self, lane: Lane, batches: IntervalSet) -> None:
        """Nobody needs these any more. The files' part is quick: it only changes the index."""
        for key in [key for key in self._hot if key[1] in batches and key[0] == lane]:
            self._forget(key)
        self._spool.drop(lane, batches)

    def close(self) -> None:
        """Removes the spool; nothing may be kept afterwards."""
        self._closed = True
        self._hot.clear()
        self._spool.close()

    def _load(self, lane: Lane, batch: int) -> Array:
        frame = self._spool.get(lane, batch)
        return decode(frame.encoded.header, frame.encoded.payload)

    def _encoded(self, key: _Key, hot: _Hot, done: asyncio.Future[Frame]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._lost(error.code if isinstance(error, DcnrError) else "not_encoded")
        if error is not None or done.cancelled():
            self._leave(hot)
            if self._hot.get(key) is hot:
                self._forget(key)
            return
        if self._hot.get(key) is hot:
            self._count(hot, done.result())
        self._unwritten.append((key, hot))
        self._write_soon()

    def _is_full(self) -> bool:
        backlog = self._backlog
        return len(backlog) >= MAX_BACKLOG and (len(backlog) >= HOT_FRAMES or _bytes_of(backlog) >= BACKLOG_BYTES)

    def _leave(self, hot: _Hot) -> None:
        self._backlog.remove(hot)
        self._room.set()

    def _write_soon(self) -> None:
        """At once if it is worth it, else together with what comes within `WAIT_S`."""
        if _bytes_of(hot for _, hot in self._unwritten) >= WORTH_BYTES:
            self._write_behind()
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(WAIT_S, self._write_behind)

    def _write_behind(self) -> None:
        """Writes all that waits, in order, by one thread at a time."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._writing or self._closed or not self._unwritten:
            return
        due, self._unwritten, self._writing = self._unwritten, [], True
        frames = [(key, hot.frame.result()) for key, hot in due if self._hot.get(key) is hot]  # the others were dropped meanwhile
        work = asyncio.get_running_loop().run_in_executor(self._executor, self._put_all, frames)
        work.add_done_callback(lambda done: self._written(due, done))

    def _written(self, due: list[tuple[_Key, _Hot]], done: asyncio.Future[None]) -> None:
        self._writing = False
        for key, hot in due:
            self._leave(hot)
            hot.in_spool = True
            if key not in self._hot:  # dropped meanwhile; a newer tensor of that number replaces it in the spool itself
                self._spool.drop(key[0], IntervalSet.of((key[1], key[1] + 1)))
        self._shrink()
        if self._unwritten:
            self._write_soon()
        if not done.cancelled():
            done.result()

    def _put_all(self, frames: list[tuple[_Key, Frame]]) -> None:
        for (lane, batch), frame in frames:
            try:
                self._spool.put(lane, batch, frame)
            except DcnrError as error:
                self._lost(error.code)

    def _lost(self, reason: str) -> None:
        self._not_kept[reason] = self._not_kept.get(reason, 0) + 1

    def _count(self, hot: _Hot, frame: Frame) -> None:
        """Exactly, now that it is known whether the encoding has memory of its own."""
        num_bytes = int(hot.tensor.nbytes) + (0 if frame.encoded.is_view else len(frame.encoded.payload))
        self._held_bytes += num_bytes - hot.num_bytes
        hot.num_bytes = num_bytes

    def _shrink(self) -> None:
        """What is on its way to the spool is bounded by itself: it pushes nothing out that a successor's window still has room for."""
        spooled_bytes = sum(hot.num_bytes for hot in self._hot.values() if hot.in_spool)
        while len(self._hot) > 1 and (spooled_bytes > self._hot_bytes or len(self._hot) > HOT_FRAMES):
            oldest, hot = next(iter(self._hot.items()))
            if not hot.in_spool:
                return  # the next one to arrive there tries again
            spooled_bytes -= hot.num_bytes
            self._forget(oldest)

    def _forget(self, key: _Key) -> None:
        hot = self._hot.pop(key, None)
        if hot is not None:
            self._held_bytes -= hot.num_bytes


def _bytes_of(frames: Iterable[_Hot]) -> int:
    return sum(int(hot.tensor.nbytes) for hot in frames)


def _encode(tensor: TensorHandle, step: int, codec: str) -> Frame:
    array = as_array(tensor)
    if array.dtype != np.float32:
        codec = "raw"
    try:
        return Frame(encode_final(array, codec), step)
    except InvalidInput:
        return Frame(encode_final(array, "raw"), step)


def is_at_hand(tensor: TensorHandle) -> bool:
    """In main memory: nothing has to be waited for."""
    return isinstance(tensor, np.ndarray) or bool(getattr(tensor, "is_cpu", False))


def as_array(tensor: TensorHandle) -> Array:
    """The values in main memory, without a copy where they are there already."""
    if isinstance(tensor, np.ndarray):
        return tensor
    return np.asarray(tensor.cpu() if hasattr(tensor, "cpu") else tensor)


def bytes_of(tensor: TensorHandle) -> memoryview:
    """The same as raw bytes."""
    return np.ascontiguousarray(as_array(tensor)).reshape(-1).view(np.uint8).data
