"""The ways over which successors of one replica ask it: at most one for each of their replicas, the newest.

Names of replicas can be guessed, so a stranger may come under one that only the next plan names: its way, and whatever it said, goes with that plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dcnr.errors import Refused, Stale
from dcnr.ids import ReplicaId, VNodeId, vnode_of
from dcnr.ports import Clock
from pnode.exchange import Way
from vnode.events import Event, LinkDown, LinkUp, SendFrame
from vnode.vocabulary import Peer

MAX_UNPLANNED: Final = 8
"""Links of replicas that the newest plan here does not name: this plan may be the older one, but not by many."""


class SuccessorLinks:
    """``vnodes``: those that read from this replica in the graph; ``post`` takes LinkUp and LinkDown."""

    def __init__(self, vnodes: frozenset[VNodeId], clock: Clock, post: Callable[[Event], None]) -> None:
        self._vnodes, self._clock, self._post = vnodes, clock, post
        self._planned: dict[ReplicaId, str] = {}
        self._links: dict[int, tuple[Peer, str, Way]] = {}
        """With the PNode that each came from."""
        self._next = 1

    def plan(self, successors: dict[ReplicaId, str]) -> None:
        """The newest plan, with the PNode of each replica; ways of replicas that left it end, and those from other PNodes. To be called before the core hears
        of that plan: LinkDown comes to it first, and it forgets whom it does not know from a plan.
        """
        self._planned = successors
        for link, (target, pnode_id, way) in list(self._links.items()):
            if successors.get(target.replica) != pnode_id:
                way.close("replanned")
                self.detach(link)

    def attach(self, target: Peer, pnode_id: str, way: Way) -> int:
        """A new link. Raises Stale (older incarnation), Refused (no successor, or not from there)."""
        if vnode_of(target.replica) not in self._vnodes:
            raise Refused("this VNode does not read from here", code="no_successor")
        planned = self._planned.get(target.replica)
        if planned is not None and planned != pnode_id:
            raise Refused("the plan has this replica elsewhere", code="wrong_pnode")
        if planned is None and sum(known.replica not in self._planned for known, _, _ in self._links.values()) >= MAX_UNPLANNED:
            raise Refused("too many replicas that the plan here does not name are connected", code="too_many_unplanned")
        for link, (known, _, older) in list(self._links.items()):
            if known.replica == target.replica:
                if known.incarnation > target.incarnation:
                    raise Stale("a newer incarnation is connected", code="stale_incarnation")
                older.close("replaced")
                self.detach(link)
        link, self._next = self._next, self._next + 1
        self._links[link] = (target, pnode_id, way)
        self._post(LinkUp(self._clock.monotonic(), link, target))
        return link

    def detach(self, link: int) -> None:
        """That link is gone."""
        if self._links.pop(link, None) is not None:
            self._post(LinkDown(self._clock.monotonic(), link))

    def send(self, job: SendFrame) -> None:
        """Sends a frame, if its link is still there."""
        found = self._links.get(job.link)
        if found is not None:
            found[2].send(job.lane, job.batch, job.mode)

    def close(self) -> None:
        """Ends all."""
        for _, _, way in list(self._links.values()):
            way.close("released")
        self._links.clear()
