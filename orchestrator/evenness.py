"""How evenly work lies on nodes: what moves without a fault are judged by. Pure.

A node's part of a VNode is here what it would be if the VNode were shared by the present speeds of its replicas, whatever the weights in force. All replicas
of a VNode then take equally long, so a node that has become slower changes what its siblings take and its own by the same: a measurement that wanders
makes nobody look overloaded. What is left is where replicas are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from orchestrator.board import Board
from orchestrator.loads import Load


def fair_s(board: Board, load: Load) -> float:
    """Seconds per batch of the job that a node takes at fair shares."""
    return math.fsum(1.0 / board.speed(seat.cost.vnode) for seat in load.seats if seat.works)


def unevenness(board: Board, loads: Iterable[Load]) -> float:
    """Of what these nodes take at fair shares, the sum of squares: every move without a fault lowers that of all nodes, so no two plans take turns."""
    return math.fsum(fair_s(board, load) ** 2 for load in loads)


def mean_s(board: Board) -> float:
    """Seconds per batch that nodes which take anything new take on average."""
    seconds = [load.seconds for load in board.loads.values() if load.is_open]
    return math.fsum(seconds) / max(1, len(seconds))
