"""What the siblings of a primary ask of it: each question is checked in full before the core hears of it, and answered once. A sibling has one place, and
keeps no more of this machine's memory than one call needs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from dcnr.errors import Corrupt, DcnrError, NotFound, Refused, Stale, Unavailable
from dcnr.ids import ReplicaId, digest_of
from dcnr.intervals import IntervalSet
from dcnr.limits import KIB, MIB
from dcnr.ports import Clock
from dcnr.v1 import identity_pb2, vnode_pb2
from pnode.anchors import Anchor, place_of
from pnode.chain import Standing
from pnode.hosted import Neighbours
from pnode.merge_turns import Turns
from trust.commits import VerifiedDelta, open_delta
from vnode.compute import Delta
from vnode.merge_events import MergeAsked
from vnode.vocabulary import Peer, Verdict

MAX_WAITING: Final = 8
"""Siblings whose questions are open at a time; whoever comes then asks again later."""
MAX_STATEMENTS_BYTES: Final = 512 * KIB
"""Of their signed deltas together: all of them may end up in one commit."""
MAX_WEIGHTS_BYTES: Final = 32 * MIB
"""Of their weights together, as far as they have come; one delta is taken whatever its size (`vnode.costs.ReplicaCost.sharing_bytes` counts one), that
of which most has come: whoever announces much and sends little keeps nobody out.
"""
ANCHOR_GAP_S: Final = 3.0
"""Between anchors that a sibling is given without having brought a delta in between: each may be a whole state, captured for it alone."""
FREE_ANCHORS: Final = 2
"""So many in a row before that: what one begins with, and what the first delta is measured against."""
ANSWER_S: Final = 60.0
"""How long a question waits for the core, which answers between two computations."""

Weights = Callable[[int], AsyncIterator[bytes]]
"""Weights of that size in their parts, as they come from the wire."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is told to a sibling."""

    verdict: Verdict
    code: str
    reason: str
    sequence: int
    anchor: Anchor | None
    """None: the sibling has measured its delta against one, and goes on from that."""


@dataclass(frozen=True, slots=True)
class Brought:
    """A checked delta: its signed statement, and the weights that belong to it."""

    statement: identity_pb2.Envelope
    weights: Delta
    num_batches: int
    data: bytes
    """The weights as they came."""
    is_measured: bool = True
    """Whether it names the anchor that it was measured against; else its contributor goes on from the one that it is answered with."""

    @property
    def size_bytes(self) -> int:
        """Of the weights as they came."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class _Open:
    sibling: ReplicaId
    brought: Brought | None
    sequence: int
    answered: asyncio.Future[Answer]

    @property
    def size_bytes(self) -> int:
        """Of its weights as they came."""
        return self.brought.size_bytes if self.brought is not None else 0

    @property
    def statement_bytes(self) -> int:
        """What it may add to a commit."""
        return self.brought.statement.ByteSize() if self.brought is not None else 0


class MergeDesk:
    """``post`` takes a MergeAsked; ``check`` decodes a delta's weights (blocks; any thread); ``full``: no further anchor can be made now.

    ``between``: how many batches lie between what a delta begins with and what it was measured against; None where it may not be taken in with these. Where
    audits are in force it is replayed from there, whatever that is: one that nothing leads to would be a state of the contributor's own making.
    """

    def __init__(
        self, standing: Standing, *, num_batches: int, max_bytes: int, clock: Clock, executor: Executor,
        check: Callable[[bytes, str], Delta], post: Callable[[MergeAsked], None], full: Callable[[], bool],
        between: Callable[[str, str], int | None] = lambda begin, measured: 0,
    ) -> None:  # fmt: skip
        self._standing, self._num_batches, self._max_bytes, self._clock = standing, num_batches, max_bytes, clock
        self._executor, self._check, self._post, self._full = executor, check, post, full
        self._between = between
        self._siblings: dict[ReplicaId, str] = {}
        self._incarnations: dict[ReplicaId, int] = {}
        self._open: dict[int, _Open] = {}
        self._coming: dict[ReplicaId, bytearray] = {}
        """Weights, as far as they are here."""
        self._turns = Turns()
        self._anchors: dict[ReplicaId, deque[float]] = {}
        """When each was given the last two, and has brought no delta since."""
        self._next = 1
        self._closed = False

    @property
    def incarnation(self) -> int:
        """Of the replica that answers here."""
        return self._standing.peer.incarnation

    def plan(self, neighbours: Neighbours) -> None:
        """Who may ask from now on."""
        own = self._standing.peer.replica
        self._siblings = {one.replica: one.pnode_id for one in neighbours.siblings if one.replica != own}
        self._incarnations = {name: number for name, number in self._incarnations.items() if name in self._siblings}
        self._anchors = {name: at_s for name, at_s in self._anchors.items() if name in self._siblings}

    @contextlib.asynccontextmanager
    async def asked(self, opening: vnode_pb2.MergeOpen, caller: str, weights: Weights) -> AsyncIterator[Answer]:
        """The core's answer to a sibling on PNode ``caller``, while it is told of it: until then, or until the sibling asks again, the call has its place.
        Raises NotFound, Refused, Stale, Corrupt (all: not in this form), Unavailable (``replaced``: it has asked again).
        """
        source = self._source(opening, caller)
        self._check_room(source.replica, alone=not opening.HasField("delta"))
        delta = self._delta(opening.delta, source, caller) if opening.HasField("delta") else None
        if delta is not None:
            self._check_whole(int(delta.delta.size_bytes))
        async with self._turns.take(source.replica):
            yield await self._answered(source, opening.delta, delta, weights)

    async def _answered(
        self, source: Peer, statement: identity_pb2.Envelope, delta: VerifiedDelta | None, weights: Weights
    ) -> Answer:
        """Nothing that was brought is kept here once there is an answer. Raises what `asked` raises."""
        brought = await self._bring(statement, delta, weights(int(delta.delta.size_bytes))) if delta is not None else None
        if self._closed:  # while the weights came: nobody would answer
            raise _released()
        sequence, batches = (int(delta.delta.sequence), delta.batches) if delta is not None else (0, IntervalSet.empty())
        waiting = _Open(source.replica, brought, sequence, asyncio.get_running_loop().create_future())
        if sum(one.statement_bytes for one in self._open.values()) + waiting.statement_bytes > MAX_STATEMENTS_BYTES:
            raise _overloaded()
        request, self._next = self._next, self._next + 1
        self._open[request] = waiting
        since = self._between(delta.delta.anchor_digest, delta.measured) if delta is not None else 0
        self._post(
            MergeAsked(self._clock.monotonic(), request, source, sequence or None, batches, brought, since is None, since or 0)
        )
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.shield(waiting.answered)
        except TimeoutError:
            raise Unavailable("the replica did not come to an answer in time", code="busy", retry_after_s=2.0) from None

    def _check_room(self, sibling: ReplicaId, *, alone: bool) -> None:
        """Raises Unavailable. What the sibling itself has open takes no place from it: its newest question replaces that."""
        others = {one.sibling for one in self._open.values()} | set(self._coming)
        if self._closed or self._full() or len(others - {sibling}) >= MAX_WAITING:
            raise _overloaded()
        given = self._anchors.get(sibling)
        if alone and given is not None and len(given) == FREE_ANCHORS and self._clock.monotonic() - given[0] < ANCHOR_GAP_S:
            raise Unavailable("it has just been given an anchor", code="overloaded", retry_after_s=ANCHOR_GAP_S)

    def _check_whole(self, size_bytes: int) -> None:
        """Raises Unavailable where weights of that size do not fit beside those that wait for the core."""
        held = sum(one.size_bytes for one in self._open.values())
        if held and held + size_bytes > MAX_WEIGHTS_BYTES:
            raise _overloaded()

    def brought(self, request: int) -> Brought:
        """The delta of a question that is open."""
        brought = self._open[request].brought
        assert brought is not None
        return brought

    def answer(self, request: int, verdict: Verdict, code: str, reason: str, anchor: Anchor) -> None:
        """Answers a question."""
        found = self._open.pop(request)
        brought = found.brought
        if brought is None:
            self._anchors.setdefault(found.sibling, deque(maxlen=FREE_ANCHORS)).append(self._clock.monotonic())
        else:
            self._anchors.pop(found.sibling, None)
        if not found.answered.done():
            is_alone = brought is not None and brought.is_measured
            found.answered.set_result(Answer(verdict, code, reason, found.sequence, None if is_alone else anchor))

    def defer(self, request: int, error: DcnrError) -> None:
        """Answers a question with an error: nothing has happened."""
        found = self._open.pop(request)
        if not found.answered.done():
            found.answered.set_exception(error)
            found.answered.exception()  # whoever asked may be gone

    def close(self) -> None:
        """Ends all questions."""
        self._closed = True
        for request in list(self._open):
            self.defer(request, _released())

    def _source(self, opening: vnode_pb2.MergeOpen, caller: str) -> Peer:
        standing = self._standing
        if (opening.network_id, opening.model, opening.job_id) != (standing.network_id, standing.model, standing.job_id):
            raise NotFound("another network, model or job", code="wrong_job")
        replica = ReplicaId(opening.contributor)
        pnode_id = self._siblings.get(replica)
        if pnode_id is None:
            raise Refused("the plan here has no such replica of this VNode", code="unknown_replica")
        if pnode_id != caller:
            raise Refused("the plan has this replica elsewhere", code="wrong_pnode")
        if opening.incarnation < self._incarnations.get(replica, 0):
            raise Stale("a newer incarnation has asked", code="stale_incarnation")
        self._incarnations[replica] = int(opening.incarnation)
        return Peer(replica, int(opening.incarnation))

    def _delta(self, envelope: identity_pb2.Envelope, source: Peer, caller: str) -> VerifiedDelta:
        found = open_delta(envelope, place_of(self._standing))
        if found.delegation.pnode_id != caller:
            raise Refused("a delta of another PNode", code="wrong_pnode")
        if found.replica != source.replica:
            raise Refused("a delta of another replica", code="unknown_replica")
        if found.delta.incarnation != source.incarnation:
            raise Stale("a delta of another incarnation", code="stale_incarnation")
        highest = found.batches.highest()
        if highest is None or highest >= self._num_batches:
            raise Refused("a delta with batches that the job does not have", code="foreign_batches")
        if found.delta.size_bytes > self._max_bytes:
            raise Refused(f"weights of {found.delta.size_bytes} bytes", code="delta_too_large")
        return found

    async def _bring(self, statement: identity_pb2.Envelope, delta: VerifiedDelta, parts: AsyncIterator[bytes]) -> Brought:
        """Raises Unavailable, Corrupt, and what reading raises."""
        coming = self._coming[delta.replica] = bytearray()
        try:
            async for part in parts:
                coming += part
                self._check_coming(coming)
            data = bytes(coming)

            def checked() -> Delta:
                if digest_of(data) != delta.digest:
                    raise Corrupt("the weights do not have the digest that its delta names", code="wrong_digest")
                return self._check(data, delta.delta.codec)

            weights = await asyncio.get_running_loop().run_in_executor(self._executor, checked)
            return Brought(statement, weights, len(delta.batches), data, is_measured=bool(delta.delta.measured_digest))
        finally:
            if self._coming.get(delta.replica) is coming:
                del self._coming[delta.replica]

    def _check_coming(self, coming: bytearray) -> None:
        """Raises Unavailable where all that is here is too much, and others have come further or wait for the core."""
        whole, sizes = sum(one.size_bytes for one in self._open.values()), [len(one) for one in self._coming.values()]
        if whole + sum(sizes) > MAX_WEIGHTS_BYTES and (whole or len(coming) < max(sizes)):
            raise _overloaded()


def _overloaded() -> Unavailable:
    return Unavailable("this replica can take in nothing more at the moment", code="overloaded", retry_after_s=2.0)


def _released() -> Unavailable:
    return Unavailable("the replica is being released", code="released")
