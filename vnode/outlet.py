"""The ways to the successors: each gets the lowest batch it needs and has room for, at most once per resend time. Pure, torch-free.

What a receiver states is absolute; a newer statement replaces the older, a stale one is ignored, a new link starts afresh. A
batch that was sent counts as on its way until a Need, heard at least the resend time later, still asks for it, or one says
*evicted* (PROTOCOL.md, rule 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from dcnr.errors import InvariantBroken
from dcnr.ids import ReplicaId, VNodeId, vnode_of
from dcnr.intervals import IntervalSet
from vnode.events import (
    AckHeard,
    DropFrames,
    DurableHeard,
    FrameMissing,
    FrameSent,
    LinkDown,
    LinkUp,
    NeedHeard,
    SendFrame,
    WindowHeard,
)
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
    open: IntervalSet = _NONE
    """What it needs and has room for."""
    on_way: IntervalSet | None = None
    """What was sent, or is being sent, and is not due again; None where it has to be counted anew."""
    due: tuple[tuple[IntervalSet, ...], IntervalSet, IntervalSet] | None = None
    """What is to be sent, and what is to be computed for that, with what both follow from."""

    def needs(self, event: NeedHeard) -> None:
        """A newer Need."""
        asked = event.wanted | event.forward_only
        self.wanted, self.forward_only, self.heard_s = event.wanted, event.forward_only, event.now_s
        self.sent = {batch: at for batch, at in self.sent.items() if batch in asked and batch not in event.evicted}
        self.open, self.on_way = asked.below(self.end), None

    def has_room(self, end: int) -> None:
        """A newer window."""
        self.end = end
        self.open = (self.wanted | self.forward_only).below(end)


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
        self._demanded: tuple[list[tuple[Lane, IntervalSet]], dict[Lane, IntervalSet]] = ([], {})
        """What is demanded in all, with what each asks for: the same after most messages."""
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
                if (
                    target is not None
                    and self.accepts_ack(event.link, event.sequence)
                    and self._may_hold(event.floor_vnode, target)
                ):
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
        """Takes over a newer Need, as far as the lane goes; an empty one ends an evaluation lane."""
        link, size = self._links.get(event.link), self._config.size(event.lane)
        if link is None or event.sequence <= link.need_sequence or not size:
            return
        link.need_sequence = event.sequence
        event = replace(event, wanted=event.wanted.below(size), forward_only=event.forward_only.below(size))
        if not (event.wanted or event.forward_only or event.lane.is_train):
            link.asks.pop(event.lane, None)
            return
        ask = link.ask(event.lane)
        if ask is not None:
            ask.needs(event)

    def window(self, event: WindowHeard) -> None:
        """Takes over a newer window."""
        link = self._links.get(event.link)
        if link is not None and event.sequence > link.window_sequence and self._config.size(event.lane):
            link.window_sequence = event.sequence
            ask = link.ask(event.lane) if event.end else link.asks.get(event.lane)
            if ask is not None:
                ask.has_room(event.end)

    def accepts_ack(self, link: int, sequence: int) -> bool:
        """Whether this Ack is the newest of a living link."""
        known = self._links.get(link)
        if known is None or sequence <= known.ack_sequence:
            return False
        known.ack_sequence = sequence
        return True

    def _may_hold(self, vnode: VNodeId, target: Peer) -> bool:
        """Whether a successor's floor can be held by that VNode: it is its own or lies behind it. Whoever names another one has not said its floor."""
        return not self._config.behind or vnode in self._config.behind.get(vnode_of(target.replica), ())

    def sent(self, event: FrameSent) -> None:
        """A frame left: the resend time starts."""
        link = self._links.get(event.link)
        if link is not None and (event.lane, event.batch) in link.sending:
            link.sending.discard((event.lane, event.batch))
            ask = link.asks.get(event.lane)
            if ask is not None:
                ask.sent[event.batch] = event.now_s
                if self._is_due(link, ask, event.lane, event.batch):
                    ask.on_way = None

    def missing(self, lane: Lane, batch: int) -> None:
        """The spool had lost this frame: it was sent to nobody who waits for it. Said twice, the second is not about its successor."""
        if (lane, batch) in self.pinned():
            self._spool.forget(lane, batch)
        for link in self._links.values():
            link.sending.discard((lane, batch))
            if lane in link.asks:
                link.asks[lane].on_way = None

    def pinned(self) -> set[Frame]:
        """Frames on their way out of the spool."""
        return {frame for link in self._links.values() for frame in link.sending}

    def _is_due(self, link: _Link, ask: _Ask, lane: Lane, batch: int) -> bool:
        at = ask.sent.get(batch)
        return (lane, batch) not in link.sending and (at is None or ask.heard_s - at >= self._config.resend_s)

    def _on_way(self, link: _Link, ask: _Ask, lane: Lane) -> IntervalSet:
        if ask.on_way is None:
            ask.on_way = self._count_on_way(link, ask, lane)
        return ask.on_way

    def _due(self, link: _Link, ask: _Ask, lane: Lane) -> tuple[IntervalSet, IntervalSet]:
        """Of what a receiver needs and has room for and is not on its way: what the spool has, and what is to be computed for it: not what it says is
        durable, which nobody behind it can lack, whatever it asks for. The same after most messages.
        """
        available, on_way = self._spool.available(lane), self._on_way(link, ask, lane)
        durable = self._behind.durable_in(link.target) if lane.is_train else _NONE
        given = (ask.open, on_way, available, durable)
        if ask.due is None or ask.due[0] != given:
            left = ask.open - on_way
            ask.due = (given, left & available, left - available - durable)
        return ask.due[1:]

    def _count_on_way(self, link: _Link, ask: _Ask, lane: Lane) -> IntervalSet:
        batches = {batch for batch in ask.sent if not self._is_due(link, ask, lane, batch)}
        batches |= {batch for known, batch in link.sending if known == lane}
        return IntervalSet.of(*((batch, batch + 1) for batch in batches))

    def demanded(self) -> Mapping[Lane, IntervalSet]:
        """By lane, what is asked for, has room at the receiver, is not on its way to it, not in the spool, and not durable by that receiver's own word."""
        parts = [(lane, self._due(link, ask, lane)[1]) for link in self._planned_links() for lane, ask in link.asks.items()]
        if parts != self._demanded[0]:
            result: dict[Lane, IntervalSet] = {}
            for lane, lacking in parts:
                if lacking:
                    result[lane] = result.get(lane, _NONE) | lacking
            self._demanded = (parts, result)
        return self._demanded[1]

    def fits(self, lacking: IntervalSet) -> IntervalSet:
        """Of train batches that are asked for and not in the spool: the lowest, as many as it would hold on to beside what it holds on to already. Any
        other would push out itself, or what is then lacking: where a receiver takes nothing, the same would be computed without end. What is asked for
        against its asker's own word comes last.
        """
        if not lacking:
            return _NONE
        leaving = IntervalSet.of(*((batch, batch + 1) for lane, batch in self.pinned() if lane.is_train))
        held, kept = self._held().get(TRAIN_LANE, _NONE), self._spool.available(TRAIN_LANE) - leaving
        staying, room = kept & held, max(0, self._config.spool_batches - len(leaving))
        first = (staying | (lacking & held)).first(room) - staying
        asked_for = (kept & self.asked().get(TRAIN_LANE, _NONE)) | first
        return first | (lacking - held).first(max(0, room - len(asked_for)))

    def keep(self, lane: Lane, batch: int) -> list[DropFrames]:
        """A frame is in the spool; names what must go for it. What is asked for is looked at only where something must."""
        return self._spool.put(lane, batch, self.pinned(), self._held() if self._spool.is_full(train=lane.is_train) else {})

    def _held(self) -> dict[Lane, IntervalSet]:
        """By lane, what the spool holds on to: what is asked for, but not what its asker says is durable, or is below the floor that it tells. Whoever
        contradicts itself takes no place from others.
        """
        return self._wished(
            lambda link: self._behind.durable_in(link.target) | IntervalSet.span(0, self._behind.floor_in(link.target))
        )

    def asked(self) -> dict[Lane, IntervalSet]:
        """By lane, what receivers ask for and is not on its way to them."""
        return self._wished(lambda link: _NONE)

    def _wished(self, has: Callable[[_Link], IntervalSet]) -> dict[Lane, IntervalSet]:
        """As `asked`. ``has``: train batches that the receiver of a link counts as having, by its own word."""
        result: dict[Lane, IntervalSet] = {}
        for link in self._planned_links():
            for lane, ask in link.asks.items():
                lacking = (ask.wanted | ask.forward_only) - self._on_way(link, ask, lane)
                result[lane] = result.get(lane, _NONE) | (lacking - has(link) if lane.is_train else lacking)
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
        return tuple(sorted(link.target.replica for link in asking if batch in link.asks[lane].open))

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
                ask.on_way = self._on_way(link, ask, lane).add(batch)
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
        return self._due(link, ask, lane)[0].lowest()

    def check(self) -> None:
        """Raises InvariantBroken where a bound is passed or a frame on its way is not in the spool."""
        for number, link in self._links.items():
            if len(link.sending) > MAX_UNSENT_FRAMES:
                raise InvariantBroken(f"{len(link.sending)} unsent frames on link {number}", code="unsent_bound")
            for lane, batch in link.sending:
                if batch not in self._spool.available(lane):
                    raise InvariantBroken(f"batch {batch} on its way is not in the spool", code="unpinned_frame")
            for lane, ask in link.asks.items():
                if len(ask.sent) > MAX_SENT_MARKS + MAX_UNSENT_FRAMES:
                    raise InvariantBroken(f"{len(ask.sent)} marks of sent frames on link {number}", code="marks_bound")
                if ask.on_way not in (None, self._count_on_way(link, ask, lane)):
                    raise InvariantBroken(f"what is on its way on link {number} was miscounted", code="stale_on_way")
