"""What a replica core is told once, at its start: every number that its decisions depend on. Pure, torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dcnr import limits
from dcnr.errors import InvalidInput
from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from vnode.vocabulary import Lane, Role

STATED_INTERVALS: Final = 256
"""At most this many intervals, the lowest, are stated in one set."""
STATEMENT_GAP_S: Final = 0.05
"""Small changes of a floor, a durable set or what was evicted are stated together if they come closer than this."""
MAX_UNSENT_FRAMES: Final = 4
"""Frames handed to one link that have not left yet."""
MAX_SENT_MARKS: Final = 4096
"""Frames sent on one link of which no newer Need says whether they came; then the link waits for a Need."""
MAX_ASKED_ROUNDS: Final = 8
"""Validation rounds served at a time; further ones wait until one of them ends."""
MAX_KEPT_ROUNDS: Final = 16
"""Own rounds whose results are kept."""
HALTED: Final = "job_paused: its maintainers have called the job to a halt"
"""Why nobody learns while a job is paused."""
MAX_BACKOFF_S: Final = 60.0
"""Longest wait before a failed computation is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """Identity, sizes and times of one replica. Raises InvalidInput for a number that no replica could work with."""

    vnode: VNodeId
    replica: ReplicaId
    incarnation: int
    num_inputs: int
    input_edges: frozenset[int]
    """Edges that read the data set instead of a predecessor."""
    num_batches: int
    spool_batches: int
    """Outputs of the train lane kept for successors."""
    frame_bytes: int = 0
    """One output in the wire codec, upper bound."""
    window_batches: int = limits.WINDOW_BATCHES
    lead_batches: int = limits.LEAD_BATCHES
    checkpoint_s: float = limits.CHECKPOINT_S
    checkpoint_steps: int = limits.CHECKPOINT_STEPS
    evaluate: bool = True
    """Whether this VNode has an objective to evaluate."""
    eval_batches: Mapping[str, int] = field(default_factory=dict)
    """Batches per split: ``validation`` and ``test``."""
    evaluate_every: int = 0
    """Learned batches between two validation rounds; 0: none."""
    horizon_s: float = limits.HORIZON_S
    resend_s: float = 2.0
    """A frame is not sent again on a link within this time; at least two round trips."""
    repeat_s: float = 2.0
    """Statements are repeated this often."""
    is_new_primary: bool = False
    role: Role = Role.PRIMARY
    """Until the first plan says so."""
    unit_batches: int = 1
    """The grain in which replicas share batches."""
    merge_every: int = limits.MERGE_EVERY
    """Own steps between two deltas of a contributor."""
    behind: Mapping[VNodeId, frozenset[VNodeId]] = field(default_factory=dict)
    """By VNode that reads from this one: itself and all behind it. Empty where the graph is not known: then its floor may be held by any."""
    audited: bool = False
    """A contributor learns from an anchor to its delta, and nothing before the answer: so that others can run it again."""

    def __post_init__(self) -> None:
        at_least_one = (
            "num_inputs",
            "spool_batches",
            "window_batches",
            "lead_batches",
            "checkpoint_steps",
            "unit_batches",
            "merge_every",
        )
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be at least 1", code="bad_replica", field=name)
        for name in ("incarnation", "num_batches", "frame_bytes", "evaluate_every"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{name} must not be negative", code="bad_replica", field=name)
        for name in ("checkpoint_s", "horizon_s", "resend_s", "repeat_s"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} must be above 0", code="bad_replica", field=name)
        if not all(0 <= edge < self.num_inputs for edge in self.input_edges):
            raise InvalidInput("an input edge is out of range", code="bad_replica", field="input_edges")

    @property
    def is_source(self) -> bool:
        """Whether it reads batches by number itself, and so waits for those behind it."""
        return bool(self.input_edges)

    @property
    def edges(self) -> tuple[int, ...]:
        """Edges that lead to a predecessor."""
        return tuple(edge for edge in range(self.num_inputs) if edge not in self.input_edges)

    def size(self, lane: Lane) -> int:
        """How many batches a lane has."""
        return self.num_batches if lane.is_train else self.eval_batches.get(lane.split, 0)

    def window(self, lane: Lane) -> int:
        """Batches of one lane that may be waiting here; evaluation lanes take a quarter each, so that all of them stay bounded."""
        return self.window_batches if lane.is_train else max(1, self.window_batches // 4)


def lowest_intervals(batches: IntervalSet) -> IntervalSet:
    """As much of the set, from below, as one statement holds."""
    return batches if len(batches.bounds) <= 2 * STATED_INTERVALS else IntervalSet(batches.bounds[: 2 * STATED_INTERVALS])


def backoff_s(num_failures: int) -> float:
    """How long to wait after so many failures in a row: 1, 2, 4 … s, bounded."""
    return min(MAX_BACKOFF_S, 2.0 ** min(num_failures - 1, 10))
