"""A node and its replicas while plans are made: what a replica takes there, and how slow or doubtful the node looks to what is newly placed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.costs import MAX_CORRECTION, StageCost, disk_bytes, predicted_step_s, seconds_per_flop, spool_bytes
from orchestrator.offers import PLACEABLE, NodeOffer
from trust.caps import PROBATION_VNODES

MAX_DOUBT: Final = 4
LOSS_DOUBT: Final = 0.25
"""Each late loss of a node makes it look slower by this part, up to `MAX_DOUBT` of them, when something new is placed."""
SCORE_DOUBT: Final = 0.5
"""A node without any record looks slower by this part to what is newly placed, one with the best not at all: a new name is no better than an old."""
SEAT_LIFE_S: Final = 600.0
"""A new seat is expected to be of use for so long at least: of this, provisioning takes its part."""
WORKING: Final = frozenset((model_pb2.ROLE_PRIMARY, model_pb2.ROLE_CONTRIBUTOR))
"""Roles that own units."""


@dataclass(slots=True, eq=False)
class Load:
    """A node while plans are made."""

    offer: NodeOffer
    correction: float
    """A factor on what is predicted."""
    row: int = 0
    """Where it stands in the columns."""
    seats: list[Seat] = field(default_factory=list)
    free_bytes: int = 0
    free_disk_bytes: int = 0
    seconds: float = 0.0
    """Per batch of the job."""
    hosted: int = 0
    is_open: bool = False
    """Whether it gets anything new."""
    is_young: bool = False
    """In probation: it hosts little, and no only copy that somebody else can hold."""
    spool_bytes: int = 0
    slowness: float = 0.0
    """Seconds per FLOP, as predicted and corrected."""

    def __post_init__(self) -> None:
        self.offered(self.offer, self.correction)

    def offered(self, offer: NodeOffer, correction: float) -> None:
        """What the node offers now; its seats stay."""
        self.offer, self.correction = offer, correction
        self.is_open = offer.state in PLACEABLE and offer.takes_work and not offer.useless
        self.is_young = offer.state == orchestrator_pb2.NODE_STATE_PROBATION
        self.spool_bytes = spool_bytes(offer.disk_bytes)
        self.slowness = correction * seconds_per_flop(offer.gflops)
        for seat in self.seats:
            seat.measure()
        self.account()

    def account(self) -> None:
        """What the seats leave, and take."""
        memory_bytes = used_disk_bytes = 0
        for seat in self.seats:
            memory_bytes += seat.memory_bytes
            used_disk_bytes += seat.disk_bytes
        self.hosted = len(self.seats)
        self.free_bytes, self.free_disk_bytes = self.offer.memory_bytes - memory_bytes, self.offer.disk_bytes - used_disk_bytes
        self.seconds = math.fsum([seat.seconds for seat in self.seats])

    def most(self, max_hosted: int) -> int:
        """VNodes that it may host, of ``max_hosted`` that any node may."""
        return min(max_hosted, PROBATION_VNODES) if self.is_young else max_hosted

    def step_s(self, cost: StageCost) -> float:
        """Seconds per batch of a stage here, as measured or else as predicted and corrected."""
        measured = self.offer.measured.get(cost.vnode, 0.0)
        return bounded(measured, predicted_step_s(cost, self.offer.gflops)) if measured > 0.0 else cost.step_flops * self.slowness

    def disk(self, cost: StageCost) -> int:
        """Disk that a stage reserves here."""
        return disk_bytes(cost, self.spool_bytes)

    @property
    def doubt(self) -> float:
        """A factor on this node's times for what is newly placed: good records are preferred."""
        return 1.0 + LOSS_DOUBT * min(self.offer.num_losses, MAX_DOUBT)

    @property
    def reluctance(self) -> float:
        """The same with what the history says of the node: only for who gets a new seat, never for who gives one up."""
        track = self.offer.track
        return self.doubt * (1.0 + SCORE_DOUBT * (1.0 - track.score)) * (1.0 + min(1.0, track.provision_s / SEAT_LIFE_S))


@dataclass(slots=True, eq=False)
class Seat:
    """One replica on one node, and what it takes there."""

    cost: StageCost
    replica: str
    load: Load
    role: model_pb2.Role.ValueType
    reason: str
    weight: float = 0.0
    seconds: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0
    step_s: float = 0.0
    """Per batch that it learns."""
    hands_over_to: str = ""
    """The node to which its VNode moves; empty: to none."""
    hand_over_s: float = 0.0
    """How long that may take."""
    stays: bool = False
    """It could not hand over: it is not moved by choice for a while."""
    until_unix_ms: int = 0
    """When handing over is given up, or when one that stays may move again."""

    def __post_init__(self) -> None:
        self.measure()

    def measure(self) -> None:
        """What follows from the node's offer."""
        self.step_s, self.disk_bytes = self.load.step_s(self.cost), self.load.disk(self.cost)

    @property
    def works(self) -> bool:
        """Whether it owns units."""
        return self.role in WORKING

    def row(self) -> model_pb2.Assignment:
        """As the plan says it."""
        return model_pb2.Assignment(
            replica=self.replica,
            vnode=self.cost.vnode,
            pnode_id=self.load.offer.node_id,
            role=self.role,
            weight=self.weight,
            reason=self.reason,
            hosted=self.cost.hosted,
            predicted_step_s=self.step_s,
            memory_bytes=self.memory_bytes,
            hands_over_to=self.hands_over_to,
            hand_over_s=self.hand_over_s,
            stays=self.stays,
            until_unix_ms=self.until_unix_ms,
        )

    @property
    def rank(self) -> tuple[int, int]:
        """Its place among the replicas of its VNode: by role, then by number."""
        return int(self.role), int(self.replica.rpartition(".")[2])


def bounded(measured: float, predicted: float) -> float:
    """A measured step's seconds, within `MAX_CORRECTION` of what was predicted."""
    return min(max(measured, predicted / MAX_CORRECTION), predicted * MAX_CORRECTION)
