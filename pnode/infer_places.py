"""Where a hop of a question is computed in this worker: by a training replica between two of its steps, or by a seat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from dcnr.errors import NotFound
from dcnr.ports import Clock
from pnode.host import ReplicaHost
from pnode.hosting import Prepared
from pnode.infer_reads import Asking
from pnode.infer_words import Travelling
from pnode.pace import Pace
from vnode.compute import Compute
from vnode.vocabulary import Mode

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


class Place(Protocol):
    """Who computes one hop."""

    @property
    def asking(self) -> Asking:
        """What it takes."""
        ...

    async def compute(self, inputs: Sequence[Travelling], *, answers: bool) -> Computed:
        """The output, and with ``answers`` the readout. Raises NotFound (``not_here``), RemoteFault, Corrupt, InvariantBroken."""
        ...


def infer(compute: Compute, inputs: Sequence[Travelling], step: int, clock: Clock, *, answers: bool) -> Computed:
    """One question; blocks, to be called on the thread of ``compute``."""
    began_s = clock.monotonic()
    result = compute.forward(0, [one.values() for one in inputs], Mode.INFER)
    readout = compute.readout(result.output) if answers else None
    return Computed(result.output, readout, step, began_s, clock.monotonic() - began_s)


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

    async def compute(self, inputs: Sequence[Travelling], *, answers: bool) -> Computed:
        """See `Place`."""
        async with self._turn:
            await self._pace.rest(self._never)
            step = self._host.num_learned
            work = lambda: infer(self._compute, inputs, step, self._clock, answers=answers)  # noqa: E731
            computed: Computed
            computed, _ = await unless_gone(lambda: self._host.on_thread(work))
            return computed


def _gone() -> NotFound:
    return NotFound("it is not hosted here any more", code="not_here")
