"""Who reaches whom: every edge that a hosted replica wants is open as soon as its other end is known, inside this worker or over a Link.

Replicas of one worker hand detached tensors over as they are, with the same events as over the network. The hub decides nothing
about frames; it opens edges, tries again while they fail, and tells the daemon whom it cannot find.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from dcnr.errors import Corrupt, DcnrError, InvariantBroken, NotFound
from dcnr.ids import NodeId, ReplicaId
from dcnr.ports import Clock
from pnode.exchange import Replica, Said
from trust.delegation import VerifiedDelegation
from vnode.events import (
    AckHeard,
    DurableHeard,
    EdgeDown,
    EdgeUp,
    Event,
    FrameArrived,
    FrameMissing,
    FrameSent,
    NeedHeard,
    SendAck,
    SendDurable,
    SendNeed,
    SendWindow,
    WindowHeard,
)
from vnode.vocabulary import Lane, Mode

RETRY_S: Final = 0.5
"""Between attempts to open edges that are not open."""
LOST_AGAIN_S: Final = 5.0
"""Between two reports that the same neighbour has no known address."""


class Opened(Protocol):
    """An edge on its way or open, as its receiver uses it."""

    @property
    def up(self) -> bool:
        """Whether it is open now."""
        ...

    def state(self, said: Said) -> None:
        """Says something to the sender, if the edge is open."""
        ...

    def close(self, code: str) -> None:
        """Ends it; EdgeDown follows if it was open."""
        ...


class Peers(Protocol):
    """Links to other workers."""

    def open(self, replica: Replica, index: int, source: ReplicaId, worker: VerifiedDelegation) -> Opened:
        """An edge over the Link to that worker, kept open until closed."""
        ...

    def renew(self, worker: VerifiedDelegation) -> None:
        """Addresses of a known worker may have changed."""
        ...


@dataclass(slots=True)
class _Want:
    replica: Replica
    index: int
    source: ReplicaId
    pnode_id: str
    opened: Opened | None = None
    worker_id: NodeId | None = None
    reported_s: float = float("-inf")
    down_s: float | None = None
    was_up: bool = False


@dataclass(frozen=True, slots=True)
class Trouble:
    """An edge that is not open: ``broken`` if it was before; ``since_s`` is an age."""

    replica: ReplicaId
    pnode_id: str
    broken: bool
    since_s: float


class LinkHub:
    """All hosted replicas, all known neighbours, all wanted ways of one worker: one for each edge and each replica that feeds it."""

    def __init__(self, clock: Clock, pnode_id: str, peers: Peers, lost: Callable[[ReplicaId, str, bool], None]) -> None:
        self._clock, self._pnode_id, self._peers, self._lost = clock, pnode_id, peers, lost
        self._hosted: dict[str, Replica] = {}
        self._known: dict[str, VerifiedDelegation] = {}
        self._wants: dict[tuple[ReplicaId, int, ReplicaId], _Want] = {}
        self._group: asyncio.TaskGroup | None = None

    def find(self, name: str) -> Replica:
        """The hosted replica. Raises NotFound (``not_here``)."""
        replica = self._hosted.get(name)
        if replica is None:
            raise NotFound("this replica is not hosted here", code="not_here")
        return replica

    def add(self, replica: Replica) -> None:
        """Begins to serve a replica that is ready."""
        self._hosted[replica.peer.replica] = replica
        self._try_all()

    def remove(self, replica: Replica) -> None:
        """Ends all edges of a replica."""
        if self._hosted.get(replica.peer.replica) is replica:
            del self._hosted[replica.peer.replica]
        for key in [key for key, want in self._wants.items() if want.replica is replica]:
            self._close(self._wants.pop(key), "released")
        for want in self._wants.values():
            if isinstance(want.opened, LocalWay) and want.opened.source is replica:
                self._close(want, "released")

    def neighbour(self, replica: ReplicaId, worker: VerifiedDelegation) -> None:
        """Where a neighbour's replica is served; an older incarnation of a known one is ignored."""
        known = self._known.get(replica)
        if known is not None and known.pnode_id == worker.pnode_id and known.incarnation > worker.incarnation:
            return
        self._known[replica] = worker
        self._peers.renew(worker)
        for want in self._wants.values():
            if want.source == replica and want.worker_id not in (None, worker.worker_id):
                self._close(want, "moved")
        self._try_all()

    def worker_of(self, replica: ReplicaId, pnode_id: str) -> VerifiedDelegation | None:
        """Where that replica is served, if it is known."""
        worker = self._known.get(replica)
        return worker if worker is not None and worker.pnode_id == pnode_id else None

    def near(self, worker_id: NodeId) -> tuple[str, ...]:
        """Where machines of its house dial that worker though others cannot."""
        return next((worker.near for worker in self._known.values() if worker.worker_id == worker_id), ())

    def missed(self, replica: ReplicaId, pnode_id: str) -> None:
        """That replica does not answer where it is known, or is not known: the daemon is asked to look for it."""
        self._lost(replica, pnode_id, False)

    def want(self, replica: Replica, index: int, sources: Mapping[ReplicaId, str]) -> None:
        """An edge of ``replica`` is fed by all of ``sources`` (with the PNode of each) and by nobody else from now on; ways that stay are not
        disturbed.
        """
        name = replica.peer.replica
        for key, want in [(key, want) for key, want in self._wants.items() if key[:2] == (name, index)]:
            if want.replica is not replica or sources.get(want.source) != want.pnode_id:
                self._close(self._wants.pop(key), "replanned")
        for source, pnode_id in sources.items():
            if (name, index, source) not in self._wants:
                self._wants[name, index, source] = want = _Want(replica, index, source, pnode_id)
                self._try(want)

    def say(self, replica: Replica, said: Said) -> None:
        """A statement over a way; lost where it is not open (the core states everything anew when it opens)."""
        want = self._wants.get((replica.peer.replica, said.edge, said.source))
        if want is not None and want.opened is not None:
            want.opened.state(said)

    def troubles(self) -> list[Trouble]:
        """The wanted edges that are not open, as of now."""
        now, found = self._clock.monotonic(), []
        for want in self._wants.values():
            if want.opened is not None and want.opened.up:
                want.down_s, want.was_up = None, True
                continue
            want.down_s = now if want.down_s is None else want.down_s
            found.append(Trouble(want.source, want.pnode_id, want.was_up, now - want.down_s))
        return found

    async def run(self) -> None:
        """Keeps trying until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            while True:
                self._try_all()
                await asyncio.sleep(RETRY_S)

    def spawn(self, way: LocalWay, lane: Lane, batch: int) -> None:
        """Loads a tensor for a local hand-over that is no longer in memory."""
        if self._group is not None:
            self._group.create_task(way.hand_over_stored(lane, batch))

    def _try_all(self) -> None:
        for want in list(self._wants.values()):
            self._try(want)

    def _try(self, want: _Want) -> None:
        if want.opened is not None:
            return
        local = self._hosted.get(want.source)
        worker = self._known.get(want.source)
        if local is not None:
            way = LocalWay(self._clock, self, local, want.replica, want.index, lambda: self._ended(want, way))
            try:
                way.open(self._pnode_id)
            except DcnrError:
                return  # not ready for us yet: the next attempt follows
            want.opened = way
        elif want.pnode_id == self._pnode_id:
            return  # it will be hosted here
        elif worker is not None and worker.pnode_id == want.pnode_id:
            want.opened, want.worker_id = self._peers.open(want.replica, want.index, want.source, worker), worker.worker_id
        elif self._clock.monotonic() - want.reported_s >= LOST_AGAIN_S:
            want.reported_s = self._clock.monotonic()
            self._lost(want.source, want.pnode_id, False)

    def _ended(self, want: _Want, way: LocalWay) -> None:
        if want.opened is way:
            want.opened = None

    def _close(self, want: _Want, code: str) -> None:
        opened, want.opened, want.worker_id = want.opened, None, None
        if opened is not None:
            opened.close(code)


class LocalWay:
    """An edge between two replicas of this worker: its receiver's `Opened` and its sender's `Way` in one."""

    def __init__(self, clock: Clock, hub: LinkHub, source: Replica, target: Replica, index: int, ended: Callable[[], None]) -> None:
        self._clock, self._hub, self.source, self._target, self._index, self._ended = clock, hub, source, target, index, ended
        self._link = -1
        self._open = False

    @property
    def up(self) -> bool:
        """Whether it is open now."""
        return self._open

    def open(self, pnode_id: str) -> None:
        """Joins both. Raises what `Replica.attach` raises."""
        self._open = True
        self._link = self.source.attach(self._target.peer, pnode_id, self)
        self._target.post(EdgeUp(self._clock.monotonic(), self._index, self.source.peer))

    def send(self, lane: Lane, batch: int, mode: Mode) -> None:
        """Hands the tensor over: at once if it is in memory."""
        tensor = self.source.outbox.tensor(lane, batch)
        if tensor is None:
            self._hub.spawn(self, lane, batch)
        else:
            self._hand_over(lane, batch, tensor)

    async def hand_over_stored(self, lane: Lane, batch: int) -> None:
        """Hands over what the spool holds."""
        try:
            tensor = await self.source.outbox.stored_tensor(lane, batch)
        except (NotFound, Corrupt):
            if self._open:
                self.source.post(FrameMissing(self._clock.monotonic(), lane, batch))
            return
        self._hand_over(lane, batch, tensor)

    def state(self, said: Said) -> None:
        """Hears what the receiver says, without a wire."""
        if self._open:
            self.source.post(self._heard(said))

    def close(self, code: str) -> None:
        """Ends it for both sides."""
        if self._open:
            self._open = False
            self.source.detach(self._link)
            self._target.post(EdgeDown(self._clock.monotonic(), self._index, self.source.peer.replica))
            self._ended()

    def _hand_over(self, lane: Lane, batch: int, tensor: object) -> None:
        if self._open:
            now = self._clock.monotonic()
            self._target.post(FrameArrived(now, self._index, lane, batch, tensor))
            self.source.post(FrameSent(now, self._link, lane, batch))

    def _heard(self, said: Said) -> Event:
        now, link = self._clock.monotonic(), self._link
        match said:
            case SendNeed():
                return NeedHeard(now, link, said.sequence, said.lane, said.wanted, said.forward_only, said.evicted)
            case SendWindow():
                return WindowHeard(now, link, said.sequence, said.lane, said.end)
            case SendAck():
                return AckHeard(now, link, said.sequence, said.num_learned, said.floor, said.floor_vnode)
            case SendDurable():
                return DurableHeard(now, link, said.batches)
        raise InvariantBroken("an unknown statement", code="bad_statement")
