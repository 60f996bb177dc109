"""What keeps judgements of checkpoints bounded: one at a time for each VNode, few that read ancestors, and no lie read twice.

A primary chooses how many commits lie behind what it records, and how often it records it. They are held in memory together while they are followed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from dcnr import limits
from dcnr.errors import Corrupt, DcnrError, Refused, Unavailable
from dcnr.ports import Clock

READS_AT_ONCE: Final = 2
"""Ancestries that are followed through the store at a time, over all models of an orchestrator; what goes on from a known state reads nothing."""
MAX_WAITING: Final = 4
"""Records of one VNode that wait for one another."""
WAIT_S: Final = limits.CALL_TIMEOUT_S / 2
MAX_REFUSED: Final = 4096
REFUSED_S: Final = 120.0
"""So long a commit that was refused is refused without a look; whoever is honest makes another one."""


class Reads:
    """Places for following ancestries, of one orchestrator."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(READS_AT_ONCE)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Raises Unavailable (``busy``) after a bounded wait."""
        await _acquired(self._places)
        try:
            yield
        finally:
            self._places.release()


class Turns:
    """One turn at a time for each VNode of one model."""

    def __init__(self) -> None:
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        """With how many hold it or wait for it."""

    @asynccontextmanager
    async def turn(self, vnode: str) -> AsyncIterator[None]:
        """Raises Unavailable (``busy``) at once where many wait, else after a bounded wait."""
        lock, count = self._turns.get(vnode, (asyncio.Lock(), 0))
        if count > MAX_WAITING:
            raise _busy()
        self._turns[vnode] = lock, count + 1
        try:
            await _acquired(lock)
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, count = self._turns.pop(vnode)
            if count > 1:
                self._turns[vnode] = lock, count - 1


@dataclass(frozen=True, slots=True)
class _Refusal:
    message: str
    code: str
    until_s: float


class Refusals:
    """Commits that were refused lately, and those of which nothing that goes on from them leads anywhere."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: OrderedDict[str, _Refusal] = OrderedDict()

    def check(self, *commits: str) -> None:
        """Raises Refused, as before, where one of these was refused lately."""
        for commit in commits:
            found = self._refused.get(commit)
            if found is not None and self._clock.monotonic() < found.until_s:
                raise Refused(found.message, code=found.code)

    @contextmanager
    def noting(self, commit: str) -> Iterator[None]:
        """What refuses for good inside is noted of that commit."""
        try:
            yield
        except (Refused, Corrupt) as error:
            self.note(commit, error)
            raise

    def note(self, commit: str, error: DcnrError) -> None:
        """That commit was refused for good."""
        self._refused.pop(commit, None)
        self._refused[commit] = _Refusal(error.message, error.code, self._clock.monotonic() + REFUSED_S)
        while len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)


async def _acquired(lock: asyncio.Lock | asyncio.Semaphore) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            await lock.acquire()
    except TimeoutError:
        raise _busy() from None


def _busy() -> Unavailable:
    return Unavailable("other checkpoints are judged", code="busy", retry_after_s=WAIT_S, remedy="record it again in a few seconds")
