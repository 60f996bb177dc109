"""The ways to the successors: each gets the lowest batch it needs and has room for, at most once per resend time. Pure, torch-free.

What a receiver states is absolute; a newer statement replaces the older, a stale one is ignored, a new link starts afresh. A
batch that was sent counts as on its way until a Need, heard at least the resend time later, still asks for it, or one says
*evicted* (PROTOCOL.md, rule 2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dcnr.errors import InvariantBroken
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from vnode.events import AckHeard, DurableHeard, FrameMissing, FrameSent, LinkDown, LinkUp, NeedHeard, SendFrame, WindowHeard
from vnode.floor import Behind
from vnode.replica_config import MAX_ASKED_ROUNDS, MAX_SENT_MARKS, MAX_UNSENT_FRAMES, ReplicaConfig
from vnode.spool import Frame, Spool
from vnode.vocabulary import TRAIN_LANE, Lane, Mode, Peer

_NONE = IntervalSet.empty()
LinkEvent = LinkUp | LinkDown | NeedHeard | WindowHeard | AckHeard | DurableHeard | FrameSent | FrameMissing


@dataclass(slots=True)
class _Ask:
    """What one receiver said about one lane, and what it was sent."""

    wanted: IntervalSet = _NONE
    forward_only: IntervalSet = _NONE
    heard_s: float = 0.0
    end: int = 0
    sent: dict[int, float] = field(default_factory=dict)

    def open(self) -> IntervalSet:
        """What it needs and has room for."""
        return (self.wanted | self.forward_only).below(self.end)


@dataclass(slots=True)
class _Link:
    """One open way to one receiver."""

    target: Peer
    asks: dict[Lane, _Ask] = field(default_factory=dict)
    sending: set[Frame] = field(default_factory=set)
    need_sequence: int = -1
    window_sequence: int = -1
    ack_sequence: int = -1
    last_lane: Lane | None = None

    def ask(self, lane: Lane) -> _Ask | None:
        """The ask of a lane, made if there is room for another one."""
        if lane not in self.asks:
            if not lane.is_train and sum(1 for known in self.asks if known.split == lane.split) >= MAX_ASKED_ROUNDS:
                return None
            self.asks[lane] = _Ask()
        return self.asks[lane]


class Outlet:
    """All links of a replica and what may be sent on them."""

    def __init__(self, config: ReplicaConfig, spool: Spool, behind: Behind) -> None:
        self._config, self._spool, self._behind = config, spool, behind
        self._links: dict[int, _Link] = {}
        self._planned: frozenset[ReplicaId] | None = None
        self.num_sent = 0
        self.num_resent = 0

    def plan(self, successors: frozenset[ReplicaId]) -> None:
        """Whom the newest plan names. Others are sent what lies in the spool; nothing is computed or kept for them, so that whoever makes up
        a replica cannot have the whole pipeline work for it.
        """
        self._planned = successors
        self._behind.plan(successors)

    def hear(self, event: LinkEvent) -> None:
        """What comes over links. A link of an incarnation that was replaced, or one that is gone, has no say."""
        match event:
            case LinkUp():
                if not self._behind.is_stale(event.target):
                    self._behind.meet(event.target)
                    self.link_up(event.link, event.target)
            case LinkDown():
                gone = self.link_down(event.link)
                if gone is not None:
                    self._behind.leave(gone.replica)
            case NeedHeard():
                self.needs(event)
            case WindowHeard():
                self.window(event)
            case AckHeard():
                target = self.target(event.link)
                if target is not None and self.accepts_ack(event.link, event.sequence):
                    self._behind.hear_floor(target, event.floor, event.floor_vnode)
            case DurableHeard():
                target = self.target(event.link)
                if target is not None:
                    self._behind.hear_durable(target, event.batches)
            case FrameSent():
                self.sent(event)
            case FrameMissing():
                self.missing(event.lane, event.batch)

    def _planned_links(self) -> list[_Link]:
        return [link for _, link in sorted(self._links.items()) if self._planned is None or link.target.replica in self._planned]

    def link_up(self, link: int, target: Peer) -> None:
        """A new link replaces older ones to the same replica."""
        for old in [number for number, known in self._links.items() if known.target.replica == target.replica]:
            del self._links[old]
        self._links[link] = _Link(target)

    def link_down(self, link: int) -> Peer | None:
        """Who was behind that link; None if it had been replaced."""
        known = self._links.pop(link, None)
        return known.target if known else None

    def target(self, link: int) -> Peer | None:
        """Who is behind that link; None for one that is gone."""
        known = self._links.get(link)
        return known.target if known else None

    def needs(self, event: NeedHeard) -> None:
        """Takes over a newer Need; an empty one ends an evaluation lane."""
        link = self._links.get(event.link)
        if link is None or event.sequence <= link.need_sequence or not self._config.size(event.lane):
            return
        link.need_sequence = event.sequence
        asked = event.wanted | event.forward_only
        if not asked and not event.lane.is_train:
            link.asks.pop(event.lane, None)
            return
        ask = link.ask(event.lane)
        if ask is not None:
            ask.wanted, ask.forward_only, ask.heard_s = event.wanted, event.forward_only, event.now_s
            ask.sent = {batch: at for batch, at in ask.sent.items() if batch in asked and batch not in event.evicted}

    def window(self, event: WindowHeard) -> None:
        """Takes over a newer window."""
        link = self._links.get(event.link)
        if link is not None and event.sequence > link.window_sequence and self._config.size(event.lane):
            link.window_sequence = event.sequence
            ask = link.ask(event.lane) if event.end else link.asks.get(event.lane)
            if ask is not None:
                ask.end = event.end

    def accepts_ack(self, link: int, sequence: int) -> bool:
        """Whether this Ack is the newest of a living link."""
        known = self._links.get(link)
        if known is None or sequence <= known.ack_sequence:
            return False
        known.ack_sequence = sequence
        return True

    def sent(self, event: FrameSent) -> None:
        """A frame left: the resend time starts."""
        link = self._links.get(event.link)
        if link is not None and (event.lane, event.batch) in link.sending:
            link.sending.discard((event.lane, event.batch))
            ask = link.asks.get(event.lane)
            if ask is not None:
                ask.sent[event.batch] = event.now_s

    def missing(self, lane: Lane, batch: int) -> None:
        """The spool had lost this frame: it was sent to nobody who waits for it. Said twice, the second is not about its successor."""
        if (lane, batch) in self.pinned():
            self._spool.forget(lane, batch)
        for link in self._links.values():
            link.sending.discard((lane, batch))

    def pinned(self) -> set[Frame]:
        """Frames on their way out of the spool."""
        return {frame for link in self._links.values() for frame in link.sending}

    def _is_due(self, link: _Link, ask: _Ask, lane: Lane, batch: int) -> bool:
        at = ask.sent.get(batch)
        return (lane, batch) not in link.sending and (at is None or ask.heard_s - at >= self._config.resend_s)

    def _on_way(self, link: _Link, ask: _Ask, lane: Lane) -> IntervalSet:
        """What was sent, or is being sent, and is not due again."""
        batches = {batch for batch in ask.sent if not self._is_due(link, ask, lane, batch)}
        batches |= {batch for known, batch in link.sending if known == lane}
        return IntervalSet.of(*((batch, batch + 1) for batch in batches))

    def demanded(self) -> dict[Lane, IntervalSet]:
        """By lane, what is asked for, has room at the receiver, is not on its way to it and not in the spool."""
        result: dict[Lane, IntervalSet] = {}
        for link in self._planned_links():
            for lane, ask in link.asks.items():
                lacking = ask.open() - self._spool.available(lane)
                if lacking:
                    lacking -= self._on_way(link, ask, lane)
                    if lacking:
                        result[lane] = result.get(lane, _NONE) | lacking
        return result

    def asked(self) -> dict[Lane, IntervalSet]:
        """By lane, what receivers lack and is not on its way to them: the spool holds on to it."""
        result: dict[Lane, IntervalSet] = {}
        for link in self._planned_links():
            for lane, ask in link.asks.items():
                lacking = (ask.wanted | ask.forward_only) - self._on_way(link, ask, lane)
                result[lane] = result.get(lane, _NONE) | lacking
        return result

    def lacking(self) -> IntervalSet:
        """Train batches that receivers of the plan lack by their own newest word, those on their way to them among them."""
        lacking = _NONE
        for link in self._planned_links():
            ask = link.asks.get(TRAIN_LANE)
            if ask is not None:
                lacking |= ask.wanted | ask.forward_only
        return lacking

    def askers(self, lane: Lane, batch: int) -> tuple[ReplicaId, ...]:
        """Who asks for a batch."""
        asking = (link for link in self._planned_links() if lane in link.asks)
        return tuple(sorted(link.target.replica for link in asking if batch in link.asks[lane].open()))

    def frames(self) -> Iterator[SendFrame]:
        """What to send now, lowest batch first; lanes take turns on a link."""
        for number, link in sorted(self._links.items()):
            while len(link.sending) < MAX_UNSENT_FRAMES:
                lanes = sorted(link.asks, key=lambda lane: (lane == link.last_lane, lane))
                found = next(((lane, batch) for lane in lanes if (batch := self._lowest(link, lane)) is not None), None)
                if found is None:
                    break
                lane, batch = found
                link.last_lane = lane
                link.sending.add(found)
                ask = link.asks[lane]
                self.num_sent += 1
                self.num_resent += batch in ask.sent
                yield SendFrame(number, lane, batch, self._mode(lane, batch, ask))

    def _mode(self, lane: Lane, batch: int, ask: _Ask) -> Mode:
        """The mode is the Need's, hop by hop (PROTOCOL.md, rule 1), however the frame was computed."""
        if not lane.is_train:
            return Mode.EVAL
        return Mode.TRAIN if batch in ask.wanted else Mode.FORWARD_ONLY

    def _lowest(self, link: _Link, lane: Lane) -> int | None:
        """The lowest batch to send of a lane."""
        ask = link.asks[lane]
        if len(ask.sent) >= MAX_SENT_MARKS:
            return None
        ready = ask.open() & self._spool.available(lane)
        return next((batch for batch in ready if self._is_due(link, ask, lane, batch)), None)

    def check(self) -> None:
        """Raises InvariantBroken where a bound is passed or a frame on its way is not in the spool."""
        for number, link in self._links.items():
            if len(link.sending) > MAX_UNSENT_FRAMES:
                raise InvariantBroken(f"{len(link.sending)} unsent frames on link {number}", code="unsent_bound")
            for lane, batch in link.sending:
                if batch not in self._spool.available(lane):
                    raise InvariantBroken(f"batch {batch} on its way is not in the spool", code="unpinned_frame")
            for ask in link.asks.values():
                if len(ask.sent) > MAX_SENT_MARKS + MAX_UNSENT_FRAMES:
                    raise InvariantBroken(f"{len(ask.sent)} marks of sent frames on link {number}", code="marks_bound")
