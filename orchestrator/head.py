"""`HeadCore`: the one writer of a model's head in this process, pure. At most one request is outstanding; bodies are composed from exactly the bytes
whose ETag is in ``If-Match``; whatever is not a plain success counts as unknown until a GET tells.

The shell executes `Get` and `Put` one at a time and hands each answer back as an event; the other instructions are news. The rules are those of
PROTOCOL.md, "Control plane". Safety comes from the compare-and-swap alone: the clocks only decide when to try.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar, assert_never

from dcnr import limits
from dcnr.errors import Corrupt, InvariantBroken, Stale, Unavailable
from dcnr.ids import Digest, digest_of
from dcnr.v1 import model_pb2
from orchestrator.changes import Change, NamePlan, apply
from orchestrator.head_events import (
    Dropped,
    Get,
    GetAbsent,
    GetAnswered,
    GetFailed,
    HeadEvent,
    HeadInstruction,
    HeadSeen,
    HeadShown,
    HeadTimes,
    KnownHead,
    Landed,
    Put,
    PutAnswered,
    PutUnknown,
    StoreWentBack,
    TermGained,
    TermLost,
    Tick,
)
from orchestrator.seen_heads import MAX_AHEAD, Place, SeenHeads, Watch

MAX_QUEUED: Final = 64
"""Changes waiting for a write; more are refused, the caller comes again."""
MAX_ATTEMPTS: Final = 1024
"""Unresolved own writes that are remembered (a digest each); the oldest is forgotten beyond."""


_Request = TypeVar("_Request", Get, Put)


@dataclass(frozen=True, slots=True)
class _Attempt:
    sent_at: float
    tickets: tuple[int, ...]
    epoch: int


class HeadCore:
    """See the module. ``sign`` turns a Head into the stored envelope; ``open_head`` checks such an envelope and raises Corrupt."""

    def __init__(
        self,
        network_id: str,
        model: str,
        me: str,
        sign: Callable[[model_pb2.Head], bytes],
        open_head: Callable[[bytes], model_pb2.Head],
        *,
        times: HeadTimes | None = None,
        may_hold: Callable[[], bool] = lambda: True,
    ) -> None:
        self._network_id, self._model, self._me = network_id, model, me
        self._sign, self._open = sign, open_head
        self._times = times or HeadTimes()
        self._may_hold = may_hold
        self._known: KnownHead | None = None
        self._absent = False
        self._seen = SeenHeads(self._times)
        self._attempts: dict[Digest, _Attempt] = {}
        self._queue: dict[int, Change] = {}
        self._tickets = itertools.count(1)
        self._busy: Get | Put | None = None
        self._sent_at = 0.0
        self._must_read = True
        self._is_behind = False
        """Whether the store's last answer was older than what is known here: it may have gone back, and then this term is in it no more."""
        self._next_poll = -math.inf
        self._next_put = -math.inf
        self._wall_unix_ms = 0
        self._epoch: int | None = None
        self._renewed_at = 0.0
        self._counted_at = 0.0
        self._watch: Watch | None = None
        self._reason = "the head has not been read yet"
        self._last_answer_ok = False
        self._unwritten = ""

    # Questions

    @property
    def known(self) -> KnownHead | None:
        """The newest head read or acknowledged."""
        return self._known

    @property
    def store_ok(self) -> bool:
        """Whether the store answers reads, and took the last write."""
        return self._last_answer_ok and not self._unwritten

    @property
    def trouble(self) -> str:
        """Why the store takes no write of the head, or why nothing is decided here; empty for a holder without trouble."""
        return self._unwritten or self._reason

    @property
    def reason(self) -> str:
        """Why nothing is decided here at the moment; empty for a holder."""
        return self._reason

    @property
    def num_back(self) -> int:
        """How often the store went back for good: what it held before may be there no more."""
        return self._seen.num_back

    @property
    def num_queued(self) -> int:
        """Changes waiting for a write."""
        return len(self._queue)

    def is_holder(self, now: float) -> bool:
        """Whether this process may decide: it may hold the head, won this term itself, sent its last successful renewal less than 0.8 TTL ago, and has not read
        an older head since.
        """
        return self._epoch is not None and not self._is_behind and self._may_hold() and now < self._renewed_at + self._times.stop_s

    def is_orphaned(self, now: float) -> bool:
        """Whether nobody has written the head for as long as any taker waits, or ever: as far as it could be read."""
        watch = self._watch
        if watch is None or now - watch.last > self._times.gap_s:
            return self._absent and self._known is None
        return self._sent_at - watch.since >= self._times.take_s

    def propose(self, change: Change, now: float) -> int:
        """Queues a change and returns its ticket; `Landed` or `Dropped` follows. Raises Stale (not the holder) and Unavailable (queue full)."""
        if not self.is_holder(now):
            raise Stale(f"this orchestrator does not hold the head: {self._reason}", code="not_holder")
        if len(self._queue) >= MAX_QUEUED:
            raise Unavailable("too many changes wait for the head", code="head_queue_full", retry_after_s=self._times.renew_s)
        ticket = next(self._tickets)
        self._queue[ticket] = change
        return ticket

    # The one entry

    def step(self, event: HeadEvent) -> list[HeadInstruction]:
        """Takes one event and returns what to do; at most one `Get` or `Put`, and none while one is outstanding."""
        out: list[HeadInstruction] = []
        now = event.now
        match event:
            case Tick():
                self._wall_unix_ms = event.wall_unix_ms
            case GetAnswered():
                self._expect(Get)
                self._got(event, out)
            case GetAbsent():
                self._expect(Get)
                self._got_nothing(now, out)
            case GetFailed():
                self._expect(Get)
                self._must_read, self._last_answer_ok = True, False
                self._next_poll = now + self._times.retry_s
                if not self.is_holder(now):
                    self._reason = f"the store cannot be read: {event.reason}"
            case PutUnknown():
                self._expect(Put)
                self._unwritten = event.reason
                self._must_read, self._next_poll, self._next_put = True, now, now + self._times.retry_s
            case PutAnswered():
                data = self._expect(Put).data
                self._last_answer_ok = True
                self._landed(data, event.etag, now, out)
            case HeadShown():
                self._surpass(event, out)
            case _:
                assert_never(event)
        if self._busy is None:
            self._next_request(now, out)
        self.check()
        return out

    def check(self) -> None:
        """Asserts what must always hold."""
        if self._epoch is not None and (self._known is None or self._known.head.holder != self._me):
            raise InvariantBroken("a term without a head that names this orchestrator", code="head_term")
        if len(self._attempts) > MAX_ATTEMPTS or len(self._queue) > MAX_QUEUED:
            raise InvariantBroken("the head's bookkeeping is off", code="head_books")

    # Answers

    def _expect(self, kind: type[_Request]) -> _Request:
        busy = self._busy
        if not isinstance(busy, kind):
            raise InvariantBroken(f"an answer to {kind.__name__}, which is not outstanding", code="head_answer")
        self._busy = None
        return busy

    def _got(self, event: GetAnswered, out: list[HeadInstruction]) -> None:
        self._last_answer_ok = True
        self._must_read = False
        self._next_poll = event.now + self._times.poll_s
        if self._known is not None and event.etag == self._known.etag and event.data == self._known.data:
            self._saw(event.etag, event.now)
            self._seen.unchanged()
            if self._is_behind:
                self._is_behind, self._reason = (
                    False,
                    "" if self._epoch is not None else f"{self._known.head.holder} holds the head",
                )
            return
        try:
            head = self._open(event.data)
        except Corrupt as error:
            self._attempts.clear()
            self._lose(f"the head in the store cannot be trusted: {error.message}", out)
            self._watch = None
            return
        read = _place(head)
        floor, num_back = self._seen.floor, self.num_back
        if read < floor:
            self._saw(event.etag, event.now)
        if self._seen.is_late(read, self._sent_at, event.now):
            out.append(StoreWentBack(floor, read))
            self._must_read = self._is_behind = True
            self._reason = f"the store shows an older head: epoch {head.epoch}, sequence {head.sequence}"
            return
        if self.num_back > num_back:
            self._lose(f"the store went back to epoch {head.epoch}, sequence {head.sequence}", out)
        self._learn(KnownHead(head, event.data, event.etag), event.now, out)

    def _landed(self, data: bytes, etag: str, now: float, out: list[HeadInstruction]) -> None:
        try:
            head = self._open(data)
        except Corrupt:  # taken out of the network document while it was on its way: what others make of it is read
            self._must_read, self._next_poll = True, now
            return
        self._learn(KnownHead(head, data, etag), now, out)

    def _got_nothing(self, now: float, out: list[HeadInstruction]) -> None:
        self._last_answer_ok = True
        self._must_read = False
        self._next_poll = now + self._times.poll_s
        if self._known is not None:
            self._must_read, self._is_behind, self._watch = True, True, None
            self._reason = "the head has disappeared from the store"
            out.append(StoreWentBack(self._seen.floor, (0, 0)))
            return
        self._absent = True

    def _learn(self, known: KnownHead, now: float, out: list[HeadInstruction]) -> None:
        """A head that was not known: own attempts under the old one are settled by it."""
        previous, self._unwritten = self._known, ""
        self._known, self._absent, self._must_read, self._is_behind = known, False, False, False
        self._next_poll, self._next_put = now + self._times.poll_s, -math.inf
        self._seen.learned(_place(known.head))
        landed = self._attempts.get(digest_of(known.data))
        self._attempts.clear()
        self._saw(known.etag, now)
        if landed is None:
            if previous is not None or self._epoch is not None:
                self._lose(f"{known.head.holder} wrote epoch {known.head.epoch}", out)
            self._reason = f"{known.head.holder} holds the head"
        else:
            gained = self._epoch != landed.epoch
            self._epoch, self._reason = landed.epoch, ""
            self._renewed_at = self._counted_at = landed.sent_at
            if gained:
                out.append(TermGained(landed.epoch))
        out.append(HeadSeen(known.head, known.data))
        if landed is not None and landed.tickets:
            for ticket in landed.tickets:
                self._queue.pop(ticket, None)
            out.append(Landed(landed.tickets, known.head))

    def _surpass(self, event: HeadShown, out: list[HeadInstruction]) -> None:
        """A term that PNodes do not obey is given up; the next one is above what they know."""
        if self._known is None:
            return
        head = self._known.head
        is_above = self._seen.shown((event.epoch, event.sequence), _place(head))
        is_other = event.epoch == head.epoch and event.holder != head.holder
        # of this very term, in which nobody else writes
        was_ours = is_above and (event.epoch, event.holder) == (self._epoch, self._me) and not self._attempts
        if not was_ours and not (event.has_stayed and (is_above or is_other)):
            return
        if self._epoch is not None:
            self._lose(f"PNodes know epoch {event.epoch}, sequence {event.sequence}, and obey nothing older", out)

    def _lose(self, reason: str, out: list[HeadInstruction]) -> None:
        self._reason = reason
        if self._epoch is not None:
            out.append(TermLost(self._epoch, reason))
            self._epoch = None
        out.extend(Dropped(ticket, reason) for ticket in self._queue)
        self._queue.clear()

    def _saw(self, etag: str, now: float) -> None:
        """Counts the taker's wait from the answer that first showed this ETag; the newest look is counted by when it was sent."""
        watch = self._watch
        if watch is None or watch.etag != etag or self._sent_at - watch.last > self._times.gap_s:
            self._watch = Watch(etag, now, now)
        else:
            watch.last = now

    # Requests

    def _next_request(self, now: float, out: list[HeadInstruction]) -> None:
        if self._epoch is not None and not self._may_hold():
            self._lose("this orchestrator may hold it no longer: it is not listed, or lacks a component", out)
        lapsed = self._epoch is not None and not self.is_holder(now)
        if lapsed and not self._is_behind:
            self._reason = "the term was not renewed in time"
        unread = self._must_read or (self._known is None and not self._absent)
        if unread or (self._epoch is None and not self._may_take(now)):
            if now >= self._next_poll:
                self._send(Get(), now, out)
        elif now < self._next_put:
            return
        elif self._epoch is None:
            self._send_body(self._takeover(), (), now, out)
        elif lapsed or self._queue or now >= self._renewed_at + self._times.renew_s:
            self._send_renewal(now, out, with_changes=not lapsed)

    def _may_take(self, now: float) -> bool:
        if not self._may_hold():
            return False
        if self._absent:
            return True
        watch, known = self._watch, self._known
        if watch is None or known is None or watch.etag != known.etag:
            return False
        return self._sent_at - watch.since >= self._times.take_s and now - watch.last <= self._times.gap_s

    def _takeover(self) -> model_pb2.Head:
        head = model_pb2.Head()
        if self._known is None:
            head.network_id, head.model = self._network_id, self._model
        else:
            head.CopyFrom(self._known.head)
        head.epoch = max(head.epoch, min(self._seen.newest[0], head.epoch + MAX_AHEAD[0])) + 1
        head.holder = self._me
        head.sequence = max(head.sequence, self._seen.newest[1]) + 1
        return head

    def _send_renewal(self, now: float, out: list[HeadInstruction], *, with_changes: bool) -> None:
        assert self._known is not None
        head = model_pb2.Head()
        head.CopyFrom(self._known.head)
        elapsed_s = max(0.0, now - self._counted_at)
        if head.active.state == model_pb2.JOB_STATE_RUNNING:
            head.active.running_s += elapsed_s
        elif head.active.state == model_pb2.JOB_STATE_SETTLING:
            head.active.settling_s += min(elapsed_s, self._times.stop_s)  # no store, no upload: that time is nobody's to use
        taken: list[int] = []
        sequence = head.sequence + 1
        for ticket, change in list(self._queue.items()) if with_changes else ():
            reason = apply(change, head)
            if reason:
                del self._queue[ticket]
                out.append(Dropped(ticket, reason))
                continue
            taken.append(ticket)
            if isinstance(change, NamePlan):
                sequence = change.sequence
        head.sequence = sequence
        head.written_unix_ms = self._wall_unix_ms
        self._send_body(head, tuple(taken), now, out)

    def _send_body(self, head: model_pb2.Head, tickets: tuple[int, ...], now: float, out: list[HeadInstruction]) -> None:
        data = self._sign(head)
        if len(data) > limits.MAX_HEAD_BYTES:
            raise InvariantBroken(f"a head of {len(data)} bytes", code="head_too_large")
        base = self._known.etag if self._known is not None else None
        digest = digest_of(data)
        self._attempts.setdefault(digest, _Attempt(now, tickets, head.epoch))
        if len(self._attempts) > MAX_ATTEMPTS:
            del self._attempts[next(iter(self._attempts))]
        self._send(Put(data, base), now, out)

    def _send(self, request: Get | Put, now: float, out: list[HeadInstruction]) -> None:
        self._busy, self._sent_at = request, now
        out.append(request)


def _place(head: model_pb2.Head) -> Place:
    return int(head.epoch), int(head.sequence)
