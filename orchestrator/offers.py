"""What a plan depends on, all of it: the policy, the PNodes as the inventory sees them, the stages, the replicas that live, the plan before. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.costs import StageCost

USABLE: Final = frozenset(
    (orchestrator_pb2.NODE_STATE_ACTIVE, orchestrator_pb2.NODE_STATE_PROBATION, orchestrator_pb2.NODE_STATE_SUSPECT)
)
"""States in which a node keeps what it has; only `PLACEABLE` ones get more."""
PLACEABLE: Final = frozenset((orchestrator_pb2.NODE_STATE_ACTIVE, orchestrator_pb2.NODE_STATE_PROBATION))

EVEN: Final = 1.05
"""Loads within this factor count as equal."""


@dataclass(frozen=True, slots=True)
class PlanPolicy:
    """What the planner may do."""

    min_gain: float = 1.3
    """Without a fault nothing changes unless the rate grows by more than this factor."""
    even_gain: float = 1.15
    """A contributor moves where whoever takes it is done sooner than who gave it was, by this factor: its VNode goes on with the others meanwhile."""
    min_move_interval_s: float = 60.0
    settled_s: float = 5.0
    """Without a new plan for so long, contributors are evened out, and an idle node may get the only copy of a VNode, or new replicas by choice."""
    hand_over_s: float = 15.0
    """An only copy that moves has so long to hand over, and twice as long as its state takes over the lent share of its node's uplink."""
    max_vnodes_per_node: int = 64
    max_chosen_replicas: int = 8
    """Of one VNode whose graph leaves the number to the planner."""
    max_growth: int = 64
    """Replicas that one plan adds by choice."""
    max_lost_work_s: float = 300.0
    """A VNode whose checkpoint takes longer than this to leave its node gets a standby, unless it has contributors; 0: never."""
    keeps_apart: bool = True
    """Replicas of a VNode go to different owners and subnets, where these are known and others have room. Off where all nodes are on one host."""
    young_contribute: bool = True
    """Off where audits are drawn: whoever is in probation contributes to nothing, since its deltas would be merged before their verdict."""
    ids_per_subnet: int = 0
    """Nodes of one subnet that a plan uses; those of no known subnet count as one. 0: no limit."""
    uplink_share: float = 0.25
    """Of a node's uplink, for checkpoints and merges."""


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """What this orchestrator's own history says of a node, rounded; a new one has none. It decides between candidates for a new seat, nothing else."""

    score: float = 0.0
    """C times R, in [0, 1]."""
    provision_s: float = 0.0
    """From being asked for a replica to its first work."""
    pace: float = 1.0
    """How many times as long a step takes there as on others of its device class."""
    is_timed: bool = False
    """Whether steps that it took lately stand behind ``pace``."""


NO_TRACK: Final = TrackRecord()


@dataclass(frozen=True, slots=True)
class ExpectedPace:
    """Seconds per GFLOP of a component on a class of device: the median over machines, and what 95 of 100 keep."""

    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """A PNode as the inventory sees it now."""

    node_id: str
    state: orchestrator_pb2.NodeState.ValueType
    reason: str
    gflops: float
    memory_bytes: int
    disk_bytes: int
    accepts_work: bool
    handing_over: bool = False
    """Leaving politely, with checkpoints on their way: keeps what it has for a few seconds more."""
    may_return: bool = False
    """Gone, but not for long: what it has may wait for it where nobody else fits."""
    awaited: frozenset[str] = frozenset()
    """VNodes of which it hosted a replica when it was lost, a moment ago: a process that died or a cable that was out is often back in seconds."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Seconds per batch by VNode, as reported."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """VNodes that the node itself would not host, with its reason."""
    useless: Mapping[str, str] = field(default_factory=dict)
    """VNodes to which it was of no use lately, in words: those go elsewhere where another node fits, and the node gets nothing new while others do."""
    owner: str = ""
    """Whose machine it is; empty: not known."""
    subnet: str = ""
    """Where it is; empty: not known."""
    uplink_mbit: float = 0.0
    """0: not known."""
    num_losses: int = 0
    """How often it was lost lately."""
    device_class: str = ""
    """What kind of machine computes, in its own words."""
    track: TrackRecord = NO_TRACK
    builds: frozenset[str] | None = None
    """What it can build, each name with its kind; None: it did not say."""
    lacks: str = ""
    """What of the job it cannot build, in words: it hosts nothing of that; empty: nothing."""

    @property
    def takes_work(self) -> bool:
        """Whether it would host anything of the job."""
        return self.accepts_work and not self.lacks


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Everything a plan depends on."""

    network_id: str
    model: str
    job_id: str
    graph_digest: str
    epoch: int
    holder: str
    stages: tuple[StageCost, ...]
    nodes: tuple[NodeOffer, ...]
    previous: model_pb2.Plan | None
    previous_digest: str
    lead_batches: int
    unit_batches: int
    since_last_plan_s: float
    allow_moves: bool
    """Off while the job settles: nothing is gained any more."""
    reason: str
    halted: bool = False
    """Whether the job is paused."""
    tempo: model_pb2.Tempo | None = None
    """When its batches are due; None: at once."""
    now_unix_ms: int = 0
    """By the holder's clock: for what lasts over many plans."""
    live: Mapping[str, int] = field(default_factory=dict)
    """Replicas at work, with the number of batches that their state holds, merged or not."""
    handed_over: frozenset[str] = frozenset()
    """Replicas that were to hand over and have: the manifest names everything that they learned."""
    durable: Mapping[str, int] = field(default_factory=dict)
    """By VNode: batches of the newest checkpoint that the manifest names."""
    fences: Mapping[str, int] = field(default_factory=dict)
    """By VNode: replicas of lower numbers hold what was taken back, or may; others take their places."""
    expected: Mapping[tuple[str, str], ExpectedPace] = field(default_factory=dict)
    """By (component, device class): what a machine that was never measured is taken for."""

    @property
    def goes_on(self) -> bool:
        """Whether the plan before is of the same job: what it placed is kept as far as possible."""
        return self.previous is not None and self.previous.job_id == self.job_id
