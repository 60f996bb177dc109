"""What stands in the way of a replica at a node, and how it is told. Pure."""

from __future__ import annotations

from enum import IntEnum

from dcnr import limits
from dcnr.v1 import orchestrator_pb2
from orchestrator.board import Board
from orchestrator.costs import StageCost
from orchestrator.loads import Load
from trust.caps import Cap


class Obstacle(IntEnum):
    """Why a node cannot take a replica; the nearest misses first."""

    NONE = 0
    MEMORY = 1
    DISK = 2
    FULL = 3
    SIBLING = 4
    ONLY_COPY = 5
    YOUNG = 6
    SUBNET = 7
    REFUSED = 8
    LACKS = 9
    USELESS = 10
    NO_WORK = 11
    STATE = 12


def needed_bytes(board: Board, cost: StageCost) -> int:
    """Memory that one more replica needs."""
    return cost.memory_bytes + (cost.sharing_bytes if board.seats[cost.vnode] else 0)


def told(board: Board, cost: StageCost, load: Load, obstacle: Obstacle) -> str:
    """In words; empty for no obstacle."""
    offer = load.offer
    match obstacle:
        case Obstacle.STATE:
            return f"{orchestrator_pb2.NodeState.Name(offer.state).removeprefix('NODE_STATE_').lower()}: {offer.reason}"
        case Obstacle.LACKS:
            return offer.lacks
        case Obstacle.USELESS:
            return f"of no use lately: {offer.useless.get(cost.vnode) or next(iter(offer.useless.values()))}"
        case Obstacle.NO_WORK:
            return "takes no work at the moment"
        case Obstacle.REFUSED:
            return f"refused by the node: {offer.refused[cost.vnode]}"
        case Obstacle.SIBLING:
            return "hosts a replica of it already"
        case Obstacle.FULL:
            return Cap.VNODES.value if load.is_young else f"hosts {load.hosted} VNodes already"
        case Obstacle.ONLY_COPY:
            return Cap.ONLY_COPY.value
        case Obstacle.YOUNG:
            return Cap.YOUNG.value
        case Obstacle.SUBNET:
            return Cap.SUBNET.value
        case Obstacle.MEMORY:
            needed, free = mib(needed_bytes(board, cost)), mib(load.free_bytes)
            return f"needs {needed} MiB of memory, {free} of {mib(offer.memory_bytes)} MiB are free"
        case Obstacle.DISK:
            needed, free = mib(load.disk(cost)), mib(load.free_disk_bytes)
            return f"needs {needed} MiB of disk, {free} of {mib(offer.disk_bytes)} MiB are free"
        case _:
            return ""


def mib(size_bytes: int) -> int:
    """Whole MiB."""
    return size_bytes // limits.MIB
