"""What a hop of a question computes, whoever does: a training replica (`pnode.infer_live`) or a seat (`pnode.seats`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from dcnr.errors import NotFound, RemoteFault
from dcnr.ports import Clock
from dcnr.tokens import LIKELIEST, Drawing
from pnode.infer_reads import Asking
from pnode.infer_words import Travelling
from pnode.outbox import as_array
from vnode.compute import Compute
from vnode.vocabulary import Mode

NUM_TOKENS: Final = 256
"""Sequences that are drafted are bytes."""


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
    num_together: int = 1
    """Questions that this call computed, it included."""
    kept: int = 0
    """Places of the question's session that are kept now."""


@dataclass(frozen=True, slots=True)
class Session:
    """What a question goes on from: see `vnode_pb2.InferRequest`."""

    caller: str
    id: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class Wish:
    """What a hop is to do besides its output: see `vnode_pb2.InferHop`."""

    answers: bool = False
    draft: int = 0
    last: int = 0
    session: Session | None = None
    drawing: Drawing = LIKELIEST

    @property
    def is_alone(self) -> bool:
        """Whether it cannot be computed together with another question."""
        return self.draft > 0


class Place(Protocol):
    """Who computes one hop."""

    @property
    def asking(self) -> Asking:
        """What it takes."""
        ...

    async def compute(self, inputs: Sequence[Travelling], wish: Wish) -> Computed:
        """The output, and the readout where it answers. Raises NotFound (``not_here``, ``no_cache``), RemoteFault, Corrupt, InvariantBroken."""
        ...


def infer(compute: Compute, inputs: Sequence[Travelling], step: int, clock: Clock, wish: Wish) -> Computed:
    """One question; blocks, to be called on the thread of ``compute``."""
    began_s = clock.monotonic()
    values = [one.values() for one in inputs]
    drafted = _drafted(compute, values, wish) if wish.draft else b""
    if drafted:
        values = [_extended(values[0], drafted)]
    output = compute.forward(0, values, Mode.INFER).output
    readout = last_places(compute.readout(output), wish.last) if wish.answers else None
    return Computed(output, readout, step, began_s, clock.monotonic() - began_s, drafted)


def _drafted(compute: Compute, values: Sequence[Any], wish: Wish) -> bytes:
    """The tokens that follow one sequence, as this VNode's own exit has them."""
    check_drafts_follow(values)
    drafted = b""
    for number in range(wish.draft):
        output = compute.forward(0, [_extended(values[0], drafted)], Mode.INFER).output
        token = draft_of(compute, output, wish.drawing, number)
        if token is None:
            break
        drafted += bytes([token])
    return drafted


def check_drafts_follow(values: Sequence[Any]) -> None:
    """Raises RemoteFault (``bad_question``) unless it is one sequence of bytes."""
    if (
        len(values) != 1
        or as_array(values[0]).dtype != np.uint8
        or as_array(values[0]).shape[:1] != (1,)
        or as_array(values[0]).ndim != 2
    ):
        raise RemoteFault("drafts follow one sequence of bytes, and nothing else", code="bad_question")


def draft_of(compute: Compute, output: Any, drawing: Drawing, number: int) -> int | None:
    """The token that this VNode's exit puts after the last place, as the draft after so many others; None where it names none."""
    token = drawing.token(as_array(last_places(compute.readout(output), 1)).reshape(-1), number)
    return token if token < NUM_TOKENS else None


def _extended(sequence: Any, drafted: bytes) -> Any:
    return np.concatenate([as_array(sequence), np.frombuffer(drafted, np.uint8)[None]], axis=1)


def last_places(readout: Any, count: int) -> Any:
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


def _gone() -> NotFound:
    return NotFound("it is not hosted here any more", code="not_here")
