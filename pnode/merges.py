"""Carries out what the core of a replica with siblings decides: deltas and anchors are made and taken over on the compute thread, between steps; calls to
and from siblings run beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, assert_never

from dcnr.errors import DcnrError, InvariantBroken, Unavailable
from dcnr.ids import Digest, ReplicaId, digest_of
from dcnr.intervals import IntervalSet
from dcnr.ports import Clock
from dcnr.v1 import identity_pb2, vnode_pb2
from pnode.anchors import Anchor, Question, Reply, check_anchor, check_verdict
from pnode.books import Books
from pnode.chain import CommitChain
from pnode.held_out import HeldOut
from pnode.hosted import SLOW_LINK_BYTES_S, Fixed, Neighbours, Planned
from pnode.merge_calls import MergeCalls
from pnode.merge_desk import Brought, MergeDesk
from pnode.no_books import NoBooks
from trust.commits import DELTA_CODECS
from trust.delegation import VerifiedDelegation
from trust.envelope import digest_of_envelope
from vnode import events as ev
from vnode import merge_events as mev
from vnode.compute import Compute
from vnode.merge_events import MergeInstruction
from vnode.merging import EARLY, counts_of
from vnode.state import StateInfo
from vnode.vocabulary import Peer

TOO_EARLY: Final = EARLY | {"unknown_replica", "wrong_pnode"}
"""What says that a plan has not come to both of them yet."""
NOT_THERE: Final = frozenset({"no_address", "unreachable", "connect_timeout", "no_relay"})
"""What says that the primary is not where it was."""
ANCHOR_SLACK_BYTES: Final = 2 * 1024 * 1024
"""An anchor may be a whole state with a centre of merges, and its lineage may have more intervals than that of the state with which this replica began."""


class Host(Protocol):
    """The replica's shell, as far as merges need it."""

    @property
    def books(self) -> Books | NoBooks:
        """What it writes down for auditors."""
        ...

    @property
    def slowest_bytes_s(self) -> float:
        """Measured rate towards other machines; 0: unknown."""
        ...

    def post(self, event: ev.Event) -> None:
        """To the core."""
        ...

    def spawn(self, work: Callable[[Any], Coroutine[Any, Any, None]], job: Any) -> asyncio.Task[None] | None:
        """Runs beside the event loop's other work, and ends with the replica."""
        ...

    async def on_thread(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """On the compute thread, with the seconds that it took."""
        ...

    def failed_on_thread(self, error: Exception) -> None:
        """The core decides what that means."""
        ...

    def state_info(self, lineage: IntervalSet) -> StateInfo:
        """What the state says about itself if it is captured now."""
        ...

    def relearned(self, info: StateInfo) -> None:
        """The state holds that lineage now, by other means than a step."""
        ...

    def snapshot_again(self, reason: str) -> None:
        """A checkpoint is due."""
        ...


class Directory(Protocol):
    """Where siblings are served."""

    def worker_of(self, replica: ReplicaId, pnode_id: str) -> VerifiedDelegation | None:
        """None if it is not known."""
        ...

    def missed(self, replica: ReplicaId, pnode_id: str) -> None:
        """It does not answer there, or is not known."""
        ...


@dataclass(frozen=True, slots=True)
class _Kept:
    """The delta that was made last, while no anchor shows it."""

    sequence: int
    statement: identity_pb2.Envelope
    batches: IntervalSet
    data: bytes
    codec: str


class Merges:
    """One per hosted replica, whatever its role."""

    def __init__(
        self, fixed: Fixed, *, host: Host, info: StateInfo, chain: CommitChain, compute: Compute, calls: MergeCalls,
        directory: Directory, clock: Clock, executor: Executor,
        told: Callable[[str, str, str], None],
    ) -> None:  # fmt: skip
        self._fixed, self._host, self._info, self._chain, self._compute = fixed, host, info, chain, compute
        self._calls, self._directory, self._clock, self._executor, self._told = calls, directory, clock, executor, told
        self._neighbours = Neighbours({}, {}, 1)
        self._anchor: Anchor | None = None
        self._delta: _Kept | None = None
        self._asking: asyncio.Task[None] | None = None
        self._asked_for_room = False
        self.held_out = HeldOut()
        self._max_anchor_bytes = 2 * fixed.state_bytes + ANCHOR_SLACK_BYTES
        self.desk = MergeDesk(
            fixed.standing, num_batches=fixed.num_batches, max_bytes=fixed.state_bytes, clock=clock, executor=executor,
            check=compute.check_delta, post=host.post, full=lambda: chain.is_full,
            between=lambda begin, measured: chain.between(begin, measured) if fixed.audited else 0,
        )  # fmt: skip

    def plan(self, neighbours: Neighbours) -> None:
        """The newest plan around this replica."""
        self._neighbours = neighbours
        self.desk.plan(neighbours)

    def named(self, state: str) -> None:
        """A manifest names that state of this VNode."""
        self._chain.named(state)
        self._asked_for_room = False

    def close(self) -> None:
        """Ends all questions of siblings."""
        self.desk.close()

    def carry_out(self, instruction: MergeInstruction) -> None:
        """Begins what the core asks for."""
        match instruction:
            case mev.MakeDelta():
                self._host.spawn(self._make_delta, instruction)
            case mev.AskMerge():
                if self._asking is not None:
                    self._asking.cancel()
                self._asking = self._host.spawn(self._ask, instruction)
            case mev.Rebase():
                self._host.spawn(self._rebase, instruction)
            case mev.MergeOwn():
                self._host.spawn(self._merge_own, instruction)
            case mev.Lead():
                self._chain.lead(instruction.own)
                self._compute.lead()
                self._delta = None
            case mev.MergeDeltas():
                # taken now: until the task begins, another event may withdraw a question, and its delta with it
                brought = [self.desk.brought(request) for request in instruction.requests]
                self._host.spawn(partial(self._merge, brought=brought), instruction)
            case mev.CaptureAnchor():
                self._host.spawn(self._capture, instruction)
            case mev.AnswerMerge():
                if self._anchor is None:
                    raise InvariantBroken("an answer before any anchor was captured", code="no_anchor")
                self.desk.answer(instruction.request, instruction.verdict, instruction.code, instruction.reason, self._anchor)
            case mev.DeferMerge():
                self.desk.defer(instruction.request, Unavailable(instruction.reason, code=instruction.code))
            case _:
                assert_never(instruction)

    # ---- a contributor ------------------------------------------------------------------------------------------------------

    async def _make_delta(self, job: mev.MakeDelta) -> None:
        codec, anchor = self._codec(), job.anchor

        def make() -> tuple[bytes, Digest]:
            data = self._compute.delta(codec, anchor.data, is_late=job.is_late)
            return data, digest_of(data)

        try:
            log = await self._host.books.log(self._chain.state_digest)
            (data, digest), _ = await self._host.on_thread(make)
        except Exception as error:  # noqa: BLE001  VNode boundary: the core decides what a failed computation means
            self._host.failed_on_thread(error)
            return
        envelope = self._chain.delta(
            job.sequence, codec, digest, len(data), anchor=anchor.digest, commits=anchor.commits, steps=digest_of(log) if log else "",
            is_late=job.is_late,
        )  # fmt: skip
        ended = self._host.books.ended(
            envelope, log, anchor.info, displacement=data, anchor=anchor.data, is_measured=not job.is_late
        )
        await self._host.books.keep(ended, digest_of_envelope(envelope), None)
        self._delta = _Kept(job.sequence, envelope, job.batches, data, codec)
        self._host.relearned(anchor.info)
        self._host.post(mev.DeltaMade(self._clock.monotonic(), job.sequence, job.batches))

    def _codec(self) -> str:
        """int8 where the line, or what bulk may take of it, is slow and the graph leaves it open."""
        wanted = self._fixed.wanted_codec
        if wanted in DELTA_CODECS:
            return wanted
        slow = any(0 < bytes_s < SLOW_LINK_BYTES_S for bytes_s in (self._host.slowest_bytes_s, self._calls.uplink.bytes_s))
        return "int8" if slow and wanted == "auto" else "raw"

    async def _ask(self, job: mev.AskMerge) -> None:
        planned = next((one for one in self._neighbours.siblings if one.replica == job.primary), None)
        try:
            if planned is None:
                raise Unavailable("the plan here has no such replica", code="unknown_replica")
            question, opening, weights = self._question(job, planned)
            reply = await self._calls.ask(question.worker, opening, weights, max_anchor_bytes=self._max_anchor_bytes)
            event = await self._event(job, question, reply)
        except DcnrError as error:
            if not isinstance(error, Unavailable) and error.code not in TOO_EARLY:
                self._told("merge_fault", job.primary, f"{error.code}: {error.message}")
            elif planned is not None and error.code in NOT_THERE:
                self._directory.missed(planned.replica, planned.pnode_id)
            self._host.post(
                mev.MergeUnanswered(self._clock.monotonic(), job.ask, f"{error.code}: {error.message}", error.code in TOO_EARLY)
            )
            return
        self._host.post(event)

    async def _event(self, job: mev.AskMerge, question: Question, reply: Reply) -> mev.AnchorArrived | mev.DeltaAnswered:
        """What may be believed of a reply. Raises RemoteFault, Corrupt, Refused."""
        verdict = check_verdict(reply, question)
        if question.sequence:
            return mev.DeltaAnswered(self._clock.monotonic(), job.ask, question.primary, verdict)
        anchor = await self._in_executor(lambda: check_anchor(reply, question, self._info, self._compute.check_anchor))
        return mev.AnchorArrived(self._clock.monotonic(), job.ask, question.primary, anchor.lineage, anchor)

    def _question(self, job: mev.AskMerge, planned: Planned) -> tuple[Question, vnode_pb2.MergeOpen, bytes]:
        standing = self._fixed.standing
        worker = self._directory.worker_of(planned.replica, planned.pnode_id)
        if worker is None:
            raise Unavailable("where the primary is served is not known yet", code="no_address")
        opening = vnode_pb2.MergeOpen(
            network_id=standing.network_id, model=standing.model, job_id=standing.job_id, contributor=standing.peer.replica,
            incarnation=standing.peer.incarnation, primary=planned.replica,
        )  # fmt: skip
        weights = b""
        if job.sequence is not None:
            kept = self._kept(job.sequence)
            weights = kept.data
            opening.delta.CopyFrom(kept.statement)
        primary = Peer(planned.replica, worker.incarnation)
        return Question(standing, primary, worker, job.sequence or 0), opening, weights

    def _kept(self, sequence: int) -> _Kept:
        if self._delta is None or self._delta.sequence != sequence:
            raise InvariantBroken(f"delta {sequence} is not kept", code="no_delta")
        return self._delta

    async def _rebase(self, job: mev.Rebase) -> None:
        anchor: Anchor = job.anchor
        kept = self._delta if job.keep_open else None

        def rebase() -> None:
            taken_back = self._compute.check_delta(kept.data, kept.codec) if kept is not None else None
            share, _ = counts_of(job.num_learning)
            self._compute.rebase(anchor.data, keep_after=job.keep_after, taken_back=taken_back, share=share)

        try:
            await self._host.on_thread(rebase)
        except Exception as error:  # noqa: BLE001  VNode boundary
            self._host.failed_on_thread(error)
            return
        self._chain.rebase(anchor.digest, anchor.commits, keep_open=job.keep_open, keep_after=job.keep_after)
        await self._host.books.rebased(anchor.data, anchor.info)
        self._delta = None
        self._host.relearned(replace(anchor.info, lineage=job.lineage))
        self._host.post(mev.Rebased(self._clock.monotonic()))

    async def _merge_own(self, job: mev.MergeOwn) -> None:
        """As a primary does with a sibling's, before this replica is one: the first commit says so."""
        kept = self._kept(job.sequence)

        def merge() -> None:
            share, centred = counts_of(job.num_learning)
            delta = self._compute.check_delta(kept.data, kept.codec)
            self._compute.merge([delta], [len(kept.batches)], [share], centred=centred)

        try:
            await self._host.on_thread(merge)
        except Exception as error:  # noqa: BLE001  VNode boundary
            self._host.failed_on_thread(error)
            return
        self._chain.merged(kept.statement, job.num_learning)
        await self._host.books.merged([kept.data])
        info = self._host.state_info(job.lineage)
        self._host.relearned(replace(info, step=info.step - 1))  # no commit is closed with it
        self._host.post(mev.OwnMerged(self._clock.monotonic()))

    # ---- a primary ----------------------------------------------------------------------------------------------------------

    async def _merge(self, job: mev.MergeDeltas, brought: Sequence[Brought]) -> None:
        info = self._host.state_info(job.lineage)

        def merge() -> tuple[bytes, Digest]:
            share, centred = counts_of(job.num_learning)
            weights, counts = [one.weights for one in brought], [one.num_batches for one in brought]
            before = self.held_out.loss(self._compute)
            bears = partial(self.held_out.bears, before, self._compute)
            self._compute.merge(weights, counts, [share] * len(brought), centred=centred, bears=bears)
            return self._captured(info)

        try:
            (data, digest), _ = await self._host.on_thread(merge)
        except Exception as error:  # noqa: BLE001  VNode boundary
            self._host.failed_on_thread(error)
            return
        for one in brought:
            self._chain.merged(one.statement, job.num_learning)
        await self._host.books.merged([one.data for one in brought])
        await self._anchored(data, digest, info)
        self._host.post(mev.MergesDone(self._clock.monotonic()))

    async def _capture(self, job: mev.CaptureAnchor) -> None:
        info = self._host.state_info(job.lineage)
        try:
            (data, digest), _ = await self._host.on_thread(lambda: self._captured(info))
        except Exception as error:  # noqa: BLE001  VNode boundary
            self._host.failed_on_thread(error)
            return
        await self._anchored(data, digest, info)
        self._host.post(mev.AnchorCaptured(self._clock.monotonic()))

    def _captured(self, info: StateInfo) -> tuple[bytes, Digest]:
        """On the compute thread. What was merged before it cannot be undone: then the replica cannot go on."""
        try:
            data = self._compute.anchor(info)
        except DcnrError as error:
            raise InvariantBroken(f"no anchor can be captured: {error.message}", code="no_anchor") from error
        return data, digest_of(data)

    async def _anchored(self, data: bytes, digest: Digest, info: StateInfo) -> None:
        log = await self._host.books.log(self._chain.state_digest)
        link = self._chain.close(anchor=digest, steps=digest_of(log) if log else "")
        self._host.books.anchored(link.commit, log, data, info)
        self._anchor = Anchor(data, digest, info, self._chain.commits)
        self._host.relearned(info)
        if self._chain.is_long and not self._asked_for_room:
            self._asked_for_room = True
            self._host.snapshot_again("many merges since the last checkpoint that a manifest names")

    async def _in_executor(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
