"""Where a hop of a question is computed in this worker: by a training replica between two of its steps, or by a seat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from dcnr.errors import NotFound, RemoteFault
from dcnr.ports import Clock
from pnode.host import ReplicaHost
from pnode.hosting import Prepared
from pnode.infer_reads import Asking
from pnode.infer_words import Travelling
from pnode.outbox import as_array
from pnode.pace import Pace
from vnode.compute import Compute
from vnode.vocabulary import Mode

NUM_TOKENS: Final = 256
"""Sequences that are drafted are bytes."""
AT_ONCE: Final = 4
"""Questions that have a turn at a replica: each waits for one training step at most, and a training step for at most so many of them."""


@dataclass(frozen=True, slots=True)
class Computed:
    """What a hop computed. ``step``: size of the lineage of the weights, as known when it began; at a training replica it may be one step behind."""

    output: Any
    readout: Any | None
    step: int
    began_s: float
    seconds: float
    drafted: bytes = b""
    """Tokens by which the question was extended first."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a hop is to do besides its output: see `vnode_pb2.InferHop`."""

    answers: bool = False
    draft: int = 0
    last: int = 0


class Place(Protocol):
    """Who computes one hop."""

    @property
    def asking(self) -> Asking:
        """What it takes."""
        ...

    async def compute(self, inputs: Sequence[Travelling], wish: Wish) -> Computed:
        """The output, and the readout where it answers. Raises NotFound (``not_here``), RemoteFault, Corrupt, InvariantBroken."""
        ...


def infer(compute: Compute, inputs: Sequence[Travelling], step: int, clock: Clock, wish: Wish) -> Computed:
    """One question; blocks, to be called on the thread of ``compute``."""
    began_s = clock.monotonic()
    values = [one.values() for one in inputs]
    drafted = _drafted(compute, values, wish.draft) if wish.draft else b""
    if drafted:
        values = [_extended(values[0], drafted)]
    output = compute.forward(0, values, Mode.INFER).output
    readout = _last(compute.readout(output), wish.last) if wish.answers else None
    return Computed(output, readout, step, began_s, clock.monotonic() - began_s, drafted)


def _drafted(compute: Compute, values: Sequence[Any], count: int) -> bytes:
    """The tokens that follow one sequence, each the likeliest by this VNode's own exit."""
    if (
        len(values) != 1
        or as_array(values[0]).dtype != np.uint8
        or as_array(values[0]).shape[:1] != (1,)
        or as_array(values[0]).ndim != 2
    ):
        raise RemoteFault("drafts follow one sequence of bytes, and nothing else", code="bad_question")
    drafted = b""
    for _ in range(count):
        output = compute.forward(0, [_extended(values[0], drafted)], Mode.INFER).output
        token = int(as_array(_last(compute.readout(output), 1)).argmax())
        if token >= NUM_TOKENS:
            break
        drafted += bytes([token])
    return drafted


def _extended(sequence: Any, drafted: bytes) -> Any:
    return np.concatenate([as_array(sequence), np.frombuffer(drafted, np.uint8)[None]], axis=1)


def _last(readout: Any, count: int) -> Any:
    """The readout of so many last places of each sequence; 0: all."""
    if not count:
        return readout
    if len(readout.shape) != 3:
        raise RemoteFault("only the readout of a sequence has last places", code="bad_question")
    return readout[:, -count:]


async def unless_gone(work: Callable[[], Any]) -> Any:
    """What the work gives. Raises NotFound (``not_here``) where the thread that was to do it has ended meanwhile."""
    try:
        return await work()
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        raise _gone() from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _gone() from None  # not we were cancelled: the thread's queue was


class LivePlace:
    """A training replica: questions are computed on its own thread, between its steps, `AT_ONCE` of them in turn with a step at most."""

    def __init__(self, prepared: Prepared, host: ReplicaHost, pace: Pace, clock: Clock) -> None:
        self.asking = Asking(prepared.stage.id, prepared.reads, prepared.batch_size)
        self.model = host.model
        self._compute, self._host, self._pace, self._clock = prepared.compute, host, pace, clock
        self._turn, self._never = asyncio.Semaphore(AT_ONCE), asyncio.Event()

    async def compute(self, inputs: Sequence[Travelling], wish: Wish) -> Computed:
        """See `Place`."""
        async with self._turn:
            await self._pace.rest(self._never)
            step = self._host.num_learned
            work = lambda: infer(self._compute, inputs, step, self._clock, wish)  # noqa: E731
            computed: Computed
            computed, _ = await unless_gone(lambda: self._host.on_thread(work))
            return computed


def _gone() -> NotFound:
    return NotFound("it is not hosted here any more", code="not_here")
