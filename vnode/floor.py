"""The floor and the durable set of a replica and all behind it: never higher, never larger than what every successor has said. Pure.

The floor is the lowest batch that this replica or one behind it still has to learn (PROTOCOL.md, rule 3). A new incarnation replaces what the old one said; who
leaves the plan is forgotten. A successor of the plan that was not heard holds the floor where it stood when it was met or the plan named it: what it lacks
below that is in spools, where sources had not gone further by then than they may go now. Where that is not known it is zero, which sources go by; but nobody
passes it on (`Behind.is_known`): a replica that has just begun knows nothing of the floor, and the others need not fall to zero for that.

A batch is durable *here and behind* once it is in this replica's named checkpoint and in that of everyone behind it: then nobody,
not even a far successor that restores, makes this replica ask for it again. Taking only the direct successor's word would free
spools sooner, but a restore two hops behind would make every stage up to the sources compute again; the spool is bounded anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dcnr.ids import ReplicaId, VNodeId, vnode_of
from dcnr.intervals import END, IntervalSet
from vnode.vocabulary import Peer


@dataclass(frozen=True, slots=True)
class _Said:
    """The newest word of one successor's replica."""

    incarnation: int
    floor: int | None
    """None: it was met, and nothing is known."""
    floor_vnode: VNodeId
    durable: IntervalSet


class Behind:
    """What the replicas behind this one have said."""

    def __init__(self) -> None:
        self._successors: frozenset[ReplicaId] | None = None
        self._said: dict[ReplicaId, _Said] = {}
        self._stood: dict[ReplicaId, int | None] = {}
        """Of those of the plan: the floor when they were named, or met before that; None where it was not known."""
        self._durable: tuple[IntervalSet | None] | None = None
        """What all successors reported, until one of them reports anew: it is asked for with every event."""
        self._with_own: tuple[tuple[IntervalSet | None, ...], IntervalSet] = ((), IntervalSet.empty())
        """What is durable here and behind, with what that follows from."""

    @property
    def successors(self) -> frozenset[ReplicaId] | None:
        """Those of the newest plan; None before the first."""
        return self._successors

    def plan(self, successors: frozenset[ReplicaId]) -> None:
        """A new plan: who left it is forgotten."""
        stood = self._stands()
        self._stood = {replica: self._stood.get(replica, stood) for replica in successors}
        self._successors, self._durable = successors, None
        self._said = {replica: said for replica, said in self._said.items() if replica in successors}

    def is_stale(self, peer: Peer) -> bool:
        """Whether a newer incarnation of that replica was seen."""
        said = self._said.get(peer.replica)
        return said is not None and peer.incarnation < said.incarnation

    def meet(self, peer: Peer) -> None:
        """A way to that incarnation is open: what an older one said is void."""
        said = self._said.get(peer.replica)
        if said is None or said.incarnation < peer.incarnation:
            stood = self._stood[peer.replica] = self._stands()
            self._said[peer.replica] = _Said(peer.incarnation, stood, vnode_of(peer.replica), IntervalSet.empty())
            self._durable = None

    def leave(self, replica: ReplicaId) -> None:
        """Its last way is gone: forgotten unless the plan has it. Before the first plan too: whoever came under that name need not be who the plan means."""
        if replica not in (self._successors or ()):
            self._said.pop(replica, None)
            self._stood.pop(replica, None)

    def hear_floor(self, peer: Peer, floor: int, floor_vnode: VNodeId) -> None:
        """The newest floor of that incarnation."""
        self._update(peer, floor=floor, floor_vnode=floor_vnode)

    def hear_durable(self, peer: Peer, batches: IntervalSet) -> None:
        """The newest durable set of that incarnation."""
        self._update(peer, durable=batches)
        self._durable = None

    def _update(self, peer: Peer, **news: object) -> None:
        self.meet(peer)
        said = self._said.get(peer.replica)
        if said is not None and said.incarnation == peer.incarnation:
            self._said[peer.replica] = replace(said, **news)  # type: ignore[arg-type]

    @property
    def is_known(self) -> bool:
        """Whether every successor of the plan has said its floor, or the floor was known when it was named: else `floor` tells of nobody."""
        return self._successors is not None and all(self._floor_of(replica) is not None for replica in self._successors)

    def _floor_of(self, replica: ReplicaId) -> int | None:
        said = self._said.get(replica)
        return said.floor if said is not None else self._stood[replica]

    def _stands(self) -> int | None:
        """Where the floor of those behind stands now; None where that is not known."""
        return self._lowest()[0] if self._successors and self.is_known else None

    def floor(self, own: int, vnode: VNodeId) -> tuple[int, VNodeId]:
        """(floor, the VNode that holds it), ``own`` being the lowest batch unlearned here. Zero before the first plan, and where it is not known."""
        if self._successors is None:
            return 0, vnode
        behind = self._lowest()
        return behind if behind[0] < own else (own, vnode)

    def _lowest(self) -> tuple[int, VNodeId]:
        """Of the successors; beyond every batch where there is none."""
        lowest = (END, VNodeId(""))
        for replica in sorted(self._successors or ()):
            said = self._said.get(replica)
            heard = (self._floor_of(replica) or 0, said.floor_vnode if said else vnode_of(replica))
            if heard[0] < lowest[0]:
                lowest = heard
        return lowest

    def durable(self) -> IntervalSet | None:
        """Batches that all successors of the plan reported; None where there is none to ask, empty before the first plan."""
        if self._durable is None:
            self._durable = (self._common(),)
        return self._durable[0]

    def durable_in(self, peer: Peer) -> IntervalSet:
        """What that incarnation reported: neither it nor anybody behind it lacks any of it."""
        said = self._said.get(peer.replica)
        return said.durable if said is not None and said.incarnation == peer.incarnation else IntervalSet.empty()

    def floor_in(self, peer: Peer) -> int:
        """The floor that incarnation said last: what lies below it lacks by its own word neither itself nor anybody behind. 0: it has said none."""
        said = self._said.get(peer.replica)
        return said.floor or 0 if said is not None and said.incarnation == peer.incarnation else 0

    def durable_from(self, named: IntervalSet, missing: IntervalSet) -> IntervalSet:
        """Named here, not to be learned here again, and durable in everyone behind."""
        given = (named, missing, behind := self.durable())
        if self._with_own[0] != given:
            own = named - missing
            self._with_own = (given, own if behind is None else own & behind)
        return self._with_own[1]

    def _common(self) -> IntervalSet | None:
        if self._successors is None:
            return IntervalSet.empty()
        common: IntervalSet | None = None
        for replica in sorted(self._successors):
            said = self._said.get(replica)
            batches = said.durable if said else IntervalSet.empty()
            common = batches if common is None else common & batches
        return common
