"""Which node takes a replica: what fits, apart from its siblings' owners and subnets, done soonest, with a good record. And why the others do not.

Rejections are bounded per VNode, so that those of one VNode never push out another's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import nsmallest
from itertools import islice
from typing import Final

from dcnr import limits
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.board import Board, Load, Seat
from orchestrator.costs import StageCost, disk_bytes
from orchestrator.offers import PLACEABLE

MAX_REJECTIONS: Final = 1024
"""Of a plan, shared equally among its VNodes; each has room for one at least."""
MAX_REJECTIONS_PER_VNODE: Final = 8
RUNNERS_UP: Final = 2
"""Nodes that would have fitted, named per VNode."""


class Obstacle(IntEnum):
    """Why a node cannot take a replica; the nearest misses first."""

    NONE = 0
    MEMORY = 1
    DISK = 2
    FULL = 3
    SIBLING = 4
    REFUSED = 5
    NO_WORK = 6
    STATE = 7


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

    Looks at nodes in the order of `orchestrator.ranks` and stops where none that follows can be better.
    """
    siblings, needed = _siblings(board.seats[cost.vnode]), _needed(board, cost)
    roomy = cost.memory_bytes + (cost.sharing_bytes if cost.wanted_replicas > 1 else 0)
    others = board.speed(cost.vnode)
    found: list[tuple[int, bool, float, int, str]] = []
    refused: list[tuple[Obstacle, str]] = []
    soonest = math.inf  # of those that leave nothing to be desired
    for is_idle, row in ((True, board.ranks.idle), (False, board.ranks.busy)):
        for key, node_id in row:
            load = board.loads[node_id]
            step_s = load.step_s(cost) if role != model_pb2.ROLE_STANDBY else 0.0
            more_s = step_s / (1.0 + others * step_s)
            if more_s >= soonest if is_idle else key > soonest:
                break
            obstacle = _obstacle(board, cost, load, siblings, needed)
            if obstacle is not Obstacle.NONE:
                refused.append((obstacle, node_id))
                continue
            near, tight, after_s = siblings.nearness(load), load.free_bytes < roomy, (load.seconds + more_s) * load.doubt
            found.append((near, tight, after_s, load.hosted, node_id))
            if not near and not tight:
                soonest = min(soonest, after_s)
    ranked = [board.loads[item[-1]] for item in nsmallest(1 + RUNNERS_UP, found)]
    if rejections is not None:
        _explain(board, cost, role, rejections, ranked, refused)
    return ranked[0] if ranked else None


def cannot_share(board: Board, cost: StageCost) -> str:
    """Why the VNode's only replica cannot have a sibling; empty if it can."""
    seats = board.seats[cost.vnode]
    if len(seats) == 1 and cost.sharing_bytes > seats[0].load.free_bytes:
        offer = seats[0].load.offer
        free = _mib(seats[0].load.free_bytes)
        return f"its primary on {offer.node_id[:8]} needs {_mib(cost.sharing_bytes)} MiB more memory to merge, {free} MiB are free there"
    return ""


def make_room(board: Board, cost: StageCost) -> Load | None:
    """Frees a node for a VNode that has no primary, by taking contributors and standbys of other VNodes off it; as few as possible."""
    siblings, needed = _siblings(board.seats[cost.vnode]), _needed(board, cost)
    by_node: dict[str, list[Seat]] = {}
    for seats in board.seats.values():
        for seat in seats:
            if seat.role != model_pb2.ROLE_PRIMARY:
                by_node.setdefault(seat.load.offer.node_id, []).append(seat)
    found: list[tuple[int, float, str, list[Seat]]] = []
    for node_id in sorted(by_node):
        load = board.loads[node_id]
        obstacle = _obstacle(board, cost, load, siblings, needed)
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
    if not found:
        return None
    _, _, node_id, leaving = min(found, key=lambda item: item[:3])
    for seat in leaving:
        board.leave(seat)
        board.unsettled.add(seat.cost.vnode)
    return board.loads[node_id]


def _siblings(seats: Sequence[Seat]) -> _Siblings:
    offers = [seat.load.offer for seat in seats]
    return _Siblings(
        frozenset(offer.node_id for offer in offers),
        frozenset(offer.owner for offer in offers if offer.owner),
        frozenset(offer.subnet for offer in offers if offer.subnet),
    )


def _needed(board: Board, cost: StageCost) -> int:
    return cost.memory_bytes + (cost.sharing_bytes if board.seats[cost.vnode] else 0)


def _obstacle(board: Board, cost: StageCost, load: Load, siblings: _Siblings, needed: int) -> Obstacle:
    if not load.is_open:
        return _closed(load)
    if load.offer.refused and cost.vnode in load.offer.refused:
        return Obstacle.REFUSED
    if load.offer.node_id in siblings.nodes:
        return Obstacle.SIBLING
    if load.hosted >= board.policy.max_vnodes_per_node:
        return Obstacle.FULL
    if needed > load.free_bytes:
        return Obstacle.MEMORY
    if load.disk(cost) > load.free_disk_bytes:
        return Obstacle.DISK
    return Obstacle.NONE


def _told(board: Board, cost: StageCost, load: Load, obstacle: Obstacle) -> str:
    offer = load.offer
    match obstacle:
        case Obstacle.STATE:
            return f"{orchestrator_pb2.NodeState.Name(offer.state).removeprefix('NODE_STATE_').lower()}: {offer.reason}"
        case Obstacle.NO_WORK:
            return "takes no work at the moment"
        case Obstacle.REFUSED:
            return f"refused by the node: {offer.refused[cost.vnode]}"
        case Obstacle.SIBLING:
            return "hosts a replica of it already"
        case Obstacle.FULL:
            return f"hosts {load.hosted} VNodes already"
        case Obstacle.MEMORY:
            needed, free = _mib(_needed(board, cost)), _mib(load.free_bytes)
            return f"needs {needed} MiB of memory, {free} of {_mib(offer.memory_bytes)} MiB are free"
        case Obstacle.DISK:
            needed, free = _mib(load.disk(cost)), _mib(load.free_disk_bytes)
            return f"needs {needed} MiB of disk, {free} of {_mib(offer.disk_bytes)} MiB are free"
        case _:
            return ""


def _explain(
    board: Board, cost: StageCost, role: model_pb2.Role.ValueType, rejections: Rejections, ranked: Sequence[Load],
    refused: Sequence[tuple[Obstacle, str]],
) -> None:  # fmt: skip
    """Names runners-up, then those that were looked at and refused, then those that take nothing at all; and how many there are beside them."""
    if not board.loads:
        need = f"no PNode is attached; it needs {_mib(cost.memory_bytes)} MiB of memory and {_mib(disk_bytes(cost, 0))} MiB of disk"
        rejections.add(cost.vnode, "", need)
        return
    for load in ranked[1:]:
        seconds = load.seconds + (0.0 if role == model_pb2.ROLE_STANDBY else board.share_s(cost, load))
        late = f", lost {load.offer.num_losses} times lately" if load.offer.num_losses else ""
        rejections.add(cost.vnode, load.offer.node_id, f"fits, but another is better: {seconds:.3g} s per batch with it{late}")
    room = max(0, rejections.room(cost.vnode))
    closed = [
        (_closed(load), load.offer.node_id) for load in islice((one for one in board.loads.values() if not one.is_open), room)
    ]
    named = nsmallest(room, [*refused, *closed])
    left = len(board.loads) - len(ranked) - len(named)
    for index, (obstacle, node_id) in enumerate(named):
        more = f"; and {left} candidates more" if index == len(named) - 1 and left > 0 else ""
        rejections.add(cost.vnode, node_id, _told(board, cost, board.loads[node_id], obstacle) + more)


def _closed(load: Load) -> Obstacle:
    return Obstacle.NO_WORK if load.offer.state in PLACEABLE else Obstacle.STATE


def _mib(size_bytes: int) -> int:
    return size_bytes // limits.MIB
