"""Outputs of one replica on their way: live tensors for the newest, encoded frames in the spool for all that somebody may still ask for.

The compute thread only hands a tensor over; encoding, digest and disk belong to the executor. A raw encoding is the tensor's own memory. What is
held: the newest `HOT_BYTES` of live tensors with their encodings (at least one frame, at most `HOT_FRAMES`), and at most `MAX_BACKLOG` frames
that are being encoded, which `keep` waits for.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
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

HOT_BYTES: Final = 24 * limits.MIB
HOT_FRAMES: Final = 64
MAX_BACKLOG: Final = 3
_Key = tuple[Lane, int]


@dataclass(slots=True)
class _Hot:
    tensor: TensorHandle
    num_bytes: int
    frame: asyncio.Future[Frame]


class Outbox:
    """Used from one event loop. ``codec()`` names the codec for the next frame; a frame that it cannot carry goes raw."""

    def __init__(self, spool: Spool, executor: Executor, codec: Callable[[], str], *, hot_bytes: int = HOT_BYTES) -> None:
        self._spool, self._executor, self._codec, self._hot_bytes = spool, executor, codec, hot_bytes
        self._hot: OrderedDict[_Key, _Hot] = OrderedDict()
        self._held_bytes = 0
        self._backlog = asyncio.Semaphore(MAX_BACKLOG)
        self._not_kept: dict[str, int] = {}

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
        await self._backlog.acquire()
        self._forget((lane, batch))
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._executor, self._encode_and_spool, lane, batch, tensor, step, self._codec())
        hot = _Hot(tensor, 2 * int(tensor.nbytes), work)  # with its encoding, at most
        self._hot[(lane, batch)] = hot
        self._held_bytes += hot.num_bytes
        work.add_done_callback(lambda done: self._encoded((lane, batch), hot, done))

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
        self._hot.clear()
        self._spool.close()

    def _encode_and_spool(self, lane: Lane, batch: int, tensor: TensorHandle, step: int, codec: str) -> Frame:
        array = as_array(tensor)
        if array.dtype != np.float32:
            codec = "raw"
        try:
            encoded = encode_final(array, codec)
        except InvalidInput:
            encoded = encode_final(array, "raw")
        frame = Frame(encoded, step)
        try:
            self._spool.put(lane, batch, frame)
        except DcnrError as error:
            self._not_kept[error.code] = self._not_kept.get(error.code, 0) + 1
        return frame

    def _load(self, lane: Lane, batch: int) -> Array:
        frame = self._spool.get(lane, batch)
        return decode(frame.encoded.header, frame.encoded.payload)

    def _encoded(self, key: _Key, hot: _Hot, done: asyncio.Future[Frame]) -> None:
        self._backlog.release()
        failed = done.cancelled() or done.exception() is not None
        if self._hot.get(key) is not hot:
            if key not in self._hot:  # dropped meanwhile; a newer tensor of that number replaces it in the spool itself
                self._spool.drop(key[0], IntervalSet.of((key[1], key[1] + 1)))
        elif failed:
            self._forget(key)
        else:
            self._count(hot, done.result())
        self._shrink()

    def _count(self, hot: _Hot, frame: Frame) -> None:
        """Exactly, now that it is known whether the encoding has memory of its own."""
        num_bytes = int(hot.tensor.nbytes) + (0 if frame.encoded.is_view else len(frame.encoded.payload))
        self._held_bytes += num_bytes - hot.num_bytes
        hot.num_bytes = num_bytes

    def _shrink(self) -> None:
        while len(self._hot) > 1 and (self._held_bytes > self._hot_bytes or len(self._hot) > HOT_FRAMES):
            oldest = next(iter(self._hot))
            if not self._hot[oldest].frame.done():
                return  # it is being encoded: the next one to finish tries again
            self._forget(oldest)

    def _forget(self, key: _Key) -> None:
        hot = self._hot.pop(key, None)
        if hot is not None:
            self._held_bytes -= hot.num_bytes


def as_array(tensor: TensorHandle) -> Array:
    """The values in main memory, without a copy where they are there already."""
    if isinstance(tensor, np.ndarray):
        return tensor
    return np.asarray(tensor.cpu() if hasattr(tensor, "cpu") else tensor)
