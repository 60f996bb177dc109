"""Merges on the simulated wire: a stream for each call, serialised requests and answers, lost, late and repeated as the network is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.v1 import identity_pb2, model_pb2, vnode_pb2
from simulation import arithmetic
from simulation.network import Stream
from simulation.wire import VERDICTS
from vnode import merge_events as mev
from vnode.events import Event
from vnode.merging import EARLY
from vnode.vocabulary import Peer

if TYPE_CHECKING:
    from simulation.replica_shell import ReplicaShell

CALL_TIMEOUT_S = 6.0
BetweenSteps = mev.MakeDelta | mev.Rebase | mev.MergeOwn | mev.MergeDeltas | mev.CaptureAnchor


@dataclass(frozen=True, slots=True)
class Delta:
    """What a contributor handed in last."""

    sequence: int
    batches: IntervalSet
    data: bytes


@dataclass(eq=False)
class Call:
    """A contributor's end of one call: over with the answer, a broken stream, its time, or the next question."""

    shell: ReplicaShell
    ask: mev.AskMerge
    stream: Stream | None = None
    answer: vnode_pb2.MergeAnswer | None = None
    is_over: bool = False

    def begin(self, delta: Delta | None) -> None:
        """Reaches for the primary and brings the delta, if one was asked about."""
        shell, world = self.shell, self.shell.world
        asked = world.living(self.ask.primary)
        desk = Desk(asked) if asked is not None else None
        stream = world.network.connect((shell.process, asked.process), (self, desk)) if asked and desk else None
        if stream is None or desk is None:
            shell.process.after(shell.rng.uniform(0.05, 0.5), lambda: self.fail("not reached"))
            return
        self.stream = desk.stream = stream
        message = vnode_pb2.MergeRequest()
        message.open.contributor, message.open.incarnation, message.open.primary = (
            shell.replica,
            shell.incarnation,
            self.ask.primary,
        )
        if self.ask.sequence is None:
            stream.send(0, message.SerializeToString())
        else:
            is_kept = delta is not None and delta.sequence == self.ask.sequence
            world.require(is_kept, "merge_call", f"{shell.replica}: delta {self.ask.sequence} is not kept")
            assert delta is not None
            said = model_pb2.Delta(replica=shell.replica, sequence=delta.sequence, batches=delta.batches)
            message.open.delta.CopyFrom(identity_pb2.Envelope(payload=said.SerializeToString()))
            stream.send(0, message.SerializeToString())
            stream.send(0, vnode_pb2.MergeRequest(chunk=delta.data).SerializeToString(), shell.rng.uniform(0.01, 0.3))
        shell.process.after(CALL_TIMEOUT_S, lambda: self.fail("no answer in time"))

    def end(self) -> None:
        """Nothing is heard any more."""
        self.is_over = True
        if self.stream is not None:
            self.stream.close(0)

    def fail(self, reason: str) -> None:
        """It is not known what became of the delta."""
        if not self.is_over:
            self.end()
            self.shell.feed(mev.MergeUnanswered(self.shell.now_s, self.ask.ask, reason, reason in EARLY))

    def on_broken(self) -> None:
        """The stream is over."""
        self.fail("the stream broke")

    def on_message(self, data: bytes) -> None:
        """The answer: a verdict, or the anchor behind it."""
        message = vnode_pb2.MergeResponse.FromString(data)
        if self.is_over:
            return
        if message.HasField("answer"):
            if message.answer.verdict == vnode_pb2.MERGE_VERDICT_UNSPECIFIED:
                self.fail(message.answer.code)
            elif self.ask.sequence is not None:
                self.end()
                verdict = next(verdict for verdict, value in VERDICTS.items() if value == message.answer.verdict)
                primary = Peer(self.ask.primary, message.answer.primary_incarnation)
                self.shell.feed(mev.DeltaAnswered(self.shell.now_s, self.ask.ask, primary, verdict))
            self.answer = message.answer
        elif self.answer is not None:
            self.end()
            primary = Peer(self.ask.primary, self.answer.primary_incarnation)
            lineage, now_s = arithmetic.lineage_of(message.chunk), self.shell.now_s
            self.shell.feed(mev.AnchorArrived(now_s, self.ask.ask, primary, lineage, bytes(message.chunk)))


@dataclass(eq=False)
class Desk:
    """A primary's end of one call. A repeated request is another question."""

    shell: ReplicaShell
    stream: Stream | None = None
    opened: vnode_pb2.MergeOpen | None = None

    def on_broken(self) -> None:
        """The stream is over; what was asked is answered to nobody."""
        self.stream = None

    def on_message(self, data: bytes) -> None:
        """The question, then the delta."""
        message = vnode_pb2.MergeRequest.FromString(data)
        if message.HasField("open"):
            self.opened = message.open
            if not message.open.HasField("delta"):
                self._ask(None)
        elif self.opened is not None:
            said = model_pb2.Delta.FromString(self.opened.delta.payload)
            batches = IntervalSet.of(*((batch, batch + 1) for batch in said.batches))
            self._ask(Delta(said.sequence, batches, bytes(message.chunk)))

    def _ask(self, delta: Delta | None) -> None:
        shell = self.shell
        assert self.opened is not None
        request = shell.merges.asked(self, delta)
        source = Peer(ReplicaId(self.opened.contributor), self.opened.incarnation)
        sequence, batches = (delta.sequence, delta.batches) if delta else (None, IntervalSet.empty())
        shell.feed(mev.MergeAsked(shell.now_s, request, source, sequence, batches, delta))

    def answer(self, answer: vnode_pb2.MergeAnswer, anchor: bytes | None) -> None:
        """Sends it, if anybody is still there."""
        if self.stream is None:
            return
        answer.primary_incarnation = self.shell.incarnation
        self.stream.send(1, vnode_pb2.MergeResponse(answer=answer).SerializeToString())
        if anchor is not None:
            self.stream.send(1, vnode_pb2.MergeResponse(chunk=anchor).SerializeToString(), self.shell.rng.uniform(0.01, 0.3))


class Merges:
    """Everything about merges that one shell keeps."""

    def __init__(self, shell: ReplicaShell) -> None:
        self._shell = shell
        self._delta: Delta | None = None
        self._call: Call | None = None
        self._anchor: tuple[IntervalSet, bytes] | None = None
        self._count = 0
        self._deltas: dict[int, Delta | None] = {}
        self._desks: dict[int, Desk] = {}
        """Of questions that are not answered yet."""

    def ask(self, ask: mev.AskMerge) -> None:
        """The newest question replaces the one before."""
        if self._call is not None:
            self._call.end()
        self._call = Call(self._shell, ask)
        self._call.begin(self._delta)

    def asked(self, desk: Desk, delta: Delta | None) -> int:
        """A question came in: its number."""
        self._count += 1
        self._desks[self._count], self._deltas[self._count] = desk, delta
        return self._count

    def answer(self, answer: mev.AnswerMerge | mev.DeferMerge) -> None:
        """One answer to each question: the verdict on a delta, or the anchor captured last."""
        shell, desk = self._shell, self._desks.pop(answer.request, None)
        if desk is None:
            shell.world.fail("merge_call", f"{shell.replica}: request {answer.request} is answered twice")
        delta = self._deltas[answer.request]
        reply = vnode_pb2.MergeAnswer(code=answer.code, reason=answer.reason, sequence=delta.sequence if delta else 0)
        if isinstance(answer, mev.DeferMerge):
            desk.answer(reply, None)
            return
        lineage, data = self._anchor or (IntervalSet.empty(), b"")
        held = shell.state.lineage
        shell.world.require(lineage == held, "fresh_anchor", f"{shell.replica}: answers with {lineage}, holds {held}")
        reply.verdict = VERDICTS[answer.verdict]
        desk.answer(reply, data if delta is None else None)

    def carry_out(self, work: BetweenSteps) -> Event:
        """What is done to the state between two steps, and the word that it was."""
        shell, maths = self._shell, self._shell.maths
        match work:
            case mev.MakeDelta():
                self._delta = Delta(work.sequence, work.batches, maths.delta(work.anchor))
                return mev.DeltaMade(shell.now_s, work.sequence, work.batches)
            case mev.Rebase():
                maths.rebase(work.anchor, keep_open=work.keep_open, keep_after=work.keep_after)
                return mev.Rebased(shell.now_s)
            case mev.MergeOwn():
                maths.merge_own()
                return mev.OwnMerged(shell.now_s)
            case mev.MergeDeltas():
                deltas = [self._deltas[request] for request in work.requests]
                maths.merge(delta.data for delta in deltas if delta is not None)
                self._anchor = work.lineage, maths.anchor(work.lineage)
                return mev.MergesDone(shell.now_s)
            case mev.CaptureAnchor():
                self._anchor = work.lineage, maths.anchor(work.lineage)
                return mev.AnchorCaptured(shell.now_s)
