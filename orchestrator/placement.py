"""Which node takes a replica: what fits, apart from its siblings' owners and subnets, done soonest, with a good record. And why the others do not. Pure.

Rejections are bounded per VNode, so that those of one VNode never push out another's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dcnr.v1 import model_pb2
from orchestrator.board import Board
from orchestrator.columns import Floats, Mask
from orchestrator.costs import StageCost, disk_bytes, states_bytes
from orchestrator.loads import Load, Seat
from orchestrator.obstacles import Obstacle, mib, needed_bytes, told
from orchestrator.offers import PLACEABLE

MAX_REJECTIONS: Final = 1024
"""Of a plan, shared equally among its VNodes; each has room for one at least."""
MAX_REJECTIONS_PER_VNODE: Final = 8
RUNNERS_UP: Final = 2
"""Nodes that would have fitted, named per VNode."""


class Rejections:
    """The candidates that a plan did not take."""

    def __init__(self, num_vnodes: int) -> None:
        self.per_vnode = max(1, min(MAX_REJECTIONS_PER_VNODE, MAX_REJECTIONS // max(1, num_vnodes)))
        self._rows: dict[str, list[model_pb2.Rejection]] = {}
        self._short: dict[str, model_pb2.Rejection] = {}

    def room(self, vnode: str) -> int:
        """How many candidates more may be named."""
        return self.per_vnode - len(self._rows.get(vnode, ()))

    def add(self, vnode: str, pnode_id: str, reason: str) -> None:
        """A candidate and why not."""
        if self.room(vnode) > 0:
            self._rows.setdefault(vnode, []).append(model_pb2.Rejection(vnode=vnode, pnode_id=pnode_id, reason=reason))

    def short(self, vnode: str, reason: str) -> None:
        """What the VNode as a whole waits for; the newest word counts."""
        self._short[vnode] = model_pb2.Rejection(vnode=vnode, reason=reason)

    def rows(self) -> list[model_pb2.Rejection]:
        """All, by VNode: first what it waits for."""
        names = sorted(self._rows.keys() | self._short.keys())
        return [row for name in names for row in (*([self._short[name]] if name in self._short else ()), *self._rows.get(name, ()))]


@dataclass(frozen=True, slots=True)
class _Siblings:
    """Where the other replicas of a VNode are."""

    nodes: frozenset[str]
    owners: frozenset[str]
    subnets: frozenset[str]

    def nearness(self, load: Load) -> int:
        """How much a node has in common with them."""
        if not self.nodes:
            return 0
        return 2 * (load.offer.owner in self.owners) + (load.offer.subnet in self.subnets)


def best(board: Board, cost: StageCost, role: model_pb2.Role.ValueType, rejections: Rejections | None) -> Load | None:
    """The node for one more replica; None where none fits. ``rejections`` None: nobody asks why.

    Of all nodes at once: those that fit, of these the ones that have least in common with its siblings, then with room for the siblings that it
    will get, then the soonest done (by load, expected speed and record), then the one that hosts least, then the first from a place that is the VNode's
    own: equals take different VNodes together, so that what one of them loses is spread over all others.
    """
    siblings = _siblings(board, cost)
    fits = _fitting(board, cost, role, siblings)
    num_named = min(RUNNERS_UP, rejections.room(cost.vnode)) if rejections is not None else 0
    step_s = board.columns.expected_s(cost, board.request.expected)
    after_s = _after_s(board, cost, role, step_s) * board.columns.reluctance
    ranked = _ranked(board, cost, after_s, siblings, fits, 1 + num_named)
    if rejections is not None:
        _explain(board, cost, role, rejections, ranked, fits)
    return ranked[0] if ranked else None


def soonest(board: Board, cost: StageCost, role: model_pb2.Role.ValueType) -> Load | None:
    """The same, blind to what the history says: where a replica that works might move. What is only a record takes no seat from anybody.

    For contributors blind to losses too: nothing waits for one that is lost.
    """
    siblings = _siblings(board, cost)
    after_s = _after_s(board, cost, role, cost.step_flops * board.columns.slowness)
    if role != model_pb2.ROLE_CONTRIBUTOR:
        after_s = after_s * board.columns.doubt
    ranked = _ranked(board, cost, after_s, siblings, _fitting(board, cost, role, siblings), 1)
    return ranked[0] if ranked else None


def can_take(board: Board, cost: StageCost, role: model_pb2.Role.ValueType, load: Load) -> bool:
    """Whether nothing stands in the way of one more replica there."""
    return _obstacle(board, cost, role, load, _siblings(board, cost), needed_bytes(board, cost)) is Obstacle.NONE


def hindrance(board: Board, cost: StageCost, role: model_pb2.Role.ValueType, load: Load) -> str:
    """What stands in the way of one more replica there, in words; empty where nothing does."""
    return told(board, cost, load, _obstacle(board, cost, role, load, _siblings(board, cost), needed_bytes(board, cost)))


def lacks_room(board: Board, cost: StageCost, load: Load) -> bool:
    """Whether a primary has no place there only for what sits there."""
    obstacle = _obstacle(board, cost, model_pb2.ROLE_PRIMARY, load, _siblings(board, cost), needed_bytes(board, cost))
    return obstacle in (Obstacle.MEMORY, Obstacle.DISK, Obstacle.FULL)


def cannot_share(board: Board, cost: StageCost) -> str:
    """Why the VNode's only replica cannot have a sibling; empty if it can."""
    seats = board.seats[cost.vnode]
    if len(seats) == 1 and cost.sharing_bytes > seats[0].load.free_bytes:
        offer = seats[0].load.offer
        free = mib(seats[0].load.free_bytes)
        return f"its primary on {offer.node_id[:8]} needs {mib(cost.sharing_bytes)} MiB more memory to merge, {free} MiB are free there"
    return ""


def make_room(board: Board, cost: StageCost) -> Load | None:
    """Frees a node for a VNode that has no primary, by taking contributors and standbys of other VNodes off it; as few as possible."""
    leaving = _in_the_way(board, cost)
    for seat in leaving:
        board.leave(seat)
        board.unsettled.add(seat.cost.vnode)
    return leaving[0].load if leaving else None


def has_place(board: Board, cost: StageCost) -> bool:
    """Whether a VNode that has no primary would get one, on a node that fits or that can be freed."""
    return best(board, cost, model_pb2.ROLE_PRIMARY, None) is not None or bool(_in_the_way(board, cost))


def last_resort(board: Board, cost: StageCost) -> Load | None:
    """Where nobody else fits: a node that was of no use lately and would fit otherwise, that least of which was of none to this VNode."""
    siblings, needed = _siblings(board, cost), needed_bytes(board, cost)
    fit = [
        load
        for load in board.loads.values()
        if load.offer.useless and _closed(load) is Obstacle.USELESS
        and _misfit(board, cost, model_pb2.ROLE_PRIMARY, load, siblings, needed) in (Obstacle.NONE, Obstacle.ONLY_COPY)
    ]  # fmt: skip
    return min(fit, key=lambda load: (cost.vnode in load.offer.useless, load.seconds, load.offer.node_id), default=None)


def _in_the_way(board: Board, cost: StageCost) -> list[Seat]:
    """The fewest contributors and standbys of other VNodes, all of one node, without which that would fit; empty where there are none such."""
    siblings, needed = _siblings(board, cost), needed_bytes(board, cost)
    by_node: dict[str, list[Seat]] = {}
    for seat in board.helpers:
        by_node.setdefault(seat.load.offer.node_id, []).append(seat)
    found: list[tuple[int, float, str, list[Seat]]] = []
    for node_id in sorted(by_node):
        load = board.loads[node_id]
        obstacle = _obstacle(board, cost, model_pb2.ROLE_PRIMARY, load, siblings, needed)
        if obstacle not in (Obstacle.MEMORY, Obstacle.DISK, Obstacle.FULL):
            continue
        leaving: list[Seat] = []
        memory, disk = load.free_bytes, load.free_disk_bytes
        for seat in sorted(by_node[node_id], key=lambda seat: (seat.works, -seat.memory_bytes, seat.replica)):
            leaving.append(seat)
            memory, disk = memory + seat.memory_bytes, disk + load.disk(seat.cost)
            if memory >= needed and disk >= load.disk(cost):
                found.append((len(leaving), load.step_s(cost), node_id, leaving))
                break
    return min(found, key=lambda item: item[:3])[3] if found else []


def _siblings(board: Board, cost: StageCost) -> _Siblings:
    offers = [seat.load.offer for seat in board.seats[cost.vnode]]
    known = offers if board.policy.keeps_apart else []
    return _Siblings(
        frozenset(offer.node_id for offer in offers),
        frozenset(offer.owner for offer in known if offer.owner),
        frozenset(offer.subnet for offer in known if offer.subnet),
    )


def _fitting(board: Board, cost: StageCost, role: model_pb2.Role.ValueType, siblings: _Siblings) -> Mask:
    """Nodes to which nothing stands in the way, as `_obstacle` says it of one."""
    fits = board.columns.fitting(cost.vnode, needed_bytes(board, cost), states_bytes(cost), cost.output_bytes)
    for node_id in siblings.nodes:
        fits[board.loads[node_id].row] = False
    if board.policy.ids_per_subnet:
        fits &= ~board.columns.crowded(board.policy.ids_per_subnet)
    if may_not_contribute(board, role):
        fits &= ~board.columns.young
    if is_only_copy(board, cost) and (others := fits & ~board.columns.young).any():
        return others
    return fits


def may_not_contribute(board: Board, role: model_pb2.Role.ValueType) -> bool:
    """Whether nobody in probation gets a replica of that role."""
    return role == model_pb2.ROLE_CONTRIBUTOR and not board.policy.young_contribute


def is_only_copy(board: Board, cost: StageCost) -> bool:
    """Whether a replica placed now would hold what nobody else does, and no manifest names."""
    return not board.seats[cost.vnode] and not board.request.durable.get(cost.vnode, 0)


def _after_s(board: Board, cost: StageCost, role: model_pb2.Role.ValueType, step_s: Floats) -> Floats:
    """Seconds per batch of every node with one more replica on it, at a share by its speed; ``step_s`` where nothing was measured."""
    columns = board.columns
    if role == model_pb2.ROLE_STANDBY:
        return columns.seconds
    for load in columns.measuring(cost.vnode):
        step_s[load.row] = load.step_s(cost)
    others = board.speed(cost.vnode)
    after_s: Floats = columns.seconds + (step_s / (1.0 + others * step_s) if others else step_s)
    return after_s


def _ranked(board: Board, cost: StageCost, after_s: Floats, siblings: _Siblings, fits: Mask, count: int) -> list[Load]:
    """The best of those that fit, at most ``count``."""
    columns = board.columns
    grades, start = _grades(board, cost, siblings), _place_of(cost.vnode) % max(1, len(columns.loads))
    left, ranked = fits.copy(), list[Load]()
    while len(ranked) < count and left.any():
        row = _first(left, grades, after_s, columns.hosted, start)
        ranked.append(columns.loads[row])
        left[row] = False
    return ranked


def _place_of(vnode: str) -> int:
    return int.from_bytes(hashlib.sha256(vnode.encode()).digest()[:4], "little")


def _first(left: Mask, grades: NDArray[np.int8] | None, after_s: Floats, hosted: NDArray[np.int64], start: int) -> int:
    """The best of those that are left: by grade, then time, then by what they host, then the first from ``start``."""
    if grades is not None:
        left = left & (grades == grades[left].min())
    alike = np.where(left, after_s, np.inf)
    rows = np.flatnonzero(alike == alike.min())
    if len(rows) > 1:
        rows = rows[hosted[rows] == hosted[rows].min()]
    return int(rows[np.searchsorted(rows, start) % len(rows)])


def _grades(board: Board, cost: StageCost, siblings: _Siblings) -> NDArray[np.int8] | None:
    """What comes before speed: twice the nearness, and 1 more where the siblings that it will get find no room to merge. None: nobody has any."""
    roomy = cost.memory_bytes + (cost.sharing_bytes if cost.wanted_replicas > 1 else 0)
    has_room = roomy <= needed_bytes(board, cost)
    if has_room and not siblings.owners and not siblings.subnets:
        return None
    grades = board.columns.nearness(siblings.owners, siblings.subnets)
    grades *= 2
    if not has_room:
        grades += board.columns.free_bytes < roomy
    return grades


def _obstacle(
    board: Board, cost: StageCost, role: model_pb2.Role.ValueType, load: Load, siblings: _Siblings, needed: int
) -> Obstacle:
    return _misfit(board, cost, role, load, siblings, needed) if load.is_open else _closed(load)


def _misfit(
    board: Board, cost: StageCost, role: model_pb2.Role.ValueType, load: Load, siblings: _Siblings, needed: int
) -> Obstacle:
    """The obstacle at a node that would take something new."""
    if load.offer.refused and cost.vnode in load.offer.refused:
        return Obstacle.REFUSED
    if load.offer.node_id in siblings.nodes:
        return Obstacle.SIBLING
    if load.hosted >= load.most(board.policy.max_vnodes_per_node):
        return Obstacle.FULL
    if needed > load.free_bytes:
        return Obstacle.MEMORY
    if load.disk(cost) > load.free_disk_bytes:
        return Obstacle.DISK
    limit = board.policy.ids_per_subnet
    if limit and board.columns.crowded(limit)[load.row]:
        return Obstacle.SUBNET
    if load.is_young and may_not_contribute(board, role):
        return Obstacle.YOUNG
    return Obstacle.ONLY_COPY if load.is_young and is_only_copy(board, cost) else Obstacle.NONE


def _explain(
    board: Board, cost: StageCost, role: model_pb2.Role.ValueType, rejections: Rejections, ranked: Sequence[Load],
    fits: Mask,
) -> None:  # fmt: skip
    """Names runners-up, then the nearest misses, then those that take nothing at all; and how many there are beside them."""
    if not board.loads:
        need = f"no PNode is attached; it needs {mib(cost.memory_bytes)} MiB of memory and {mib(disk_bytes(cost, 0))} MiB of disk"
        rejections.add(cost.vnode, "", need)
        return
    for load in ranked[1:]:
        seconds = load.seconds + (0.0 if role == model_pb2.ROLE_STANDBY else board.share_s(cost, load))
        late = f", lost {load.offer.num_losses} times lately" if load.offer.num_losses else ""
        known = scored(load)
        rejections.add(
            cost.vnode, load.offer.node_id, f"fits, but another is better: {1000 * seconds:.3g} ms per batch with it{late}{known}"
        )
    room = rejections.room(cost.vnode)
    named = nsmallest(room, _refused(board, cost, role, fits, room)) if room > 0 else []
    left = len(board.loads) - len(ranked) - len(named)
    for index, (obstacle, node_id) in enumerate(named):
        more = f"; and {left} candidates more" if index == len(named) - 1 and left > 0 else ""
        rejections.add(cost.vnode, node_id, told(board, cost, board.loads[node_id], obstacle) + more)


def _refused(board: Board, cost: StageCost, role: model_pb2.Role.ValueType, fits: Mask, room: int) -> list[tuple[Obstacle, str]]:
    """Of those that do not fit: some that have most memory left, and the first that take nothing."""
    columns, siblings, needed = board.columns, _siblings(board, cost), needed_bytes(board, cost)
    misses = np.flatnonzero(columns.takes & ~fits)
    if len(misses) > 2 * room:
        misses = misses[np.argsort(-columns.free_bytes[misses], kind="stable")[: 2 * room]]
    rows = [*misses.tolist(), *np.flatnonzero(~columns.takes)[:room].tolist()]
    return [
        (_obstacle(board, cost, role, load, siblings, needed), load.offer.node_id) for load in (columns.loads[row] for row in rows)
    ]


def scored(load: Load) -> str:
    """What the history says of a node, in words; empty where it says nothing."""
    track = load.offer.track
    slow = f", {track.provision_s:.0f} s or more to provision" if track.provision_s else ""
    return f", score about {100 * track.score:.0f}{slow}" if track.score or slow else ""


def _closed(load: Load) -> Obstacle:
    if load.offer.state not in PLACEABLE:
        return Obstacle.STATE
    if load.offer.lacks:
        return Obstacle.LACKS
    return Obstacle.USELESS if load.offer.useless and load.offer.accepts_work else Obstacle.NO_WORK
