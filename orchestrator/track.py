"""Track records: what results say of PNodes, by node, component and device class, and what may be expected of a machine that was never measured. Pure.

Per node: how reliable it was (`trust.scores`: the average of results in time, halved every seven days), the part of its results that were in time, and the
50th and 95th percentile (nearest rank) of provisioning times, and of step times of the last day. Per component and device class the same over nodes, each
with one voice: step times are a stranger's word, and many entries of one stranger weigh no more than one of another.

Bounded: of each node the newest results count, fewer where there are very many nodes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orchestrator.offers import ExpectedPace, TrackRecord
from orchestrator.results import MIN_SECONDS, Kind, Result
from trust.decay import DAY_S
from trust.scores import Punctuality, Score, score_of

MAX_NODES: Final = 12_288
MAX_PER_NODE: Final = 256
MIN_PER_NODE: Final = 16
MAX_RESULTS: Final = 200_000
LATE_FACTOR: Final = 2.0
"""Late is what takes longer than so many times the 95th percentile of its component and device class."""
LATE_NODES: Final = 3
"""Nodes that say how long something takes before anybody is late."""
MIN_LATE_S: Final[Mapping[Kind, float]] = {Kind.PROVISIONED: 30.0, Kind.STEPS: 0.0}
"""Nothing quicker is late."""
STEPS_S: Final = DAY_S
"""What a step took says for so long how fast a machine is."""
AGE_S: Final = 3600.0
"""So often results are looked at for what has become too old."""
MAX_PACE: Final = 8.0
PACE_STEP: Final = 1.25
SCORE_STEPS: Final = 10
PROVISION_STEP_S: Final = 30.0
"""The planner reads rounded figures: each change is looked at, and machines that are alike must stay alike."""

Passes = Callable[[str], float]
"""Audits that a PNode passed and that still count (k)."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of times in seconds, or in seconds per GFLOP."""

    p50: float
    p95: float
    num: int


@dataclass(frozen=True, slots=True)
class Work:
    """What one node did with one component on one class of device; None where nothing was timed."""

    component: str
    device_class: str
    num_results: int
    num_on_time: int
    provisioning_s: Percentiles | None
    step_s: Percentiles | None
    s_per_gflop: Percentiles | None


@dataclass(frozen=True, slots=True)
class NodeScore:
    """One node, as it is shown."""

    pnode_id: str
    score: Score
    num_results: int
    num_on_time: int
    works: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """What machines of a class take for a component: over nodes."""

    s_per_gflop: Percentiles | None
    provisioning_s: Percentiles | None


@dataclass(slots=True)
class _Node:
    results: deque[Result] = field(default_factory=deque)
    punctuality: Punctuality = field(default_factory=Punctuality)
    works: dict[tuple[str, str], Work] = field(default_factory=dict)
    is_stale: bool = False


class TrackRecords:
    """Results go in by `take`, in the order of their numbers."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._expected: dict[tuple[str, str], Expected] = {}
        self._paces: dict[tuple[str, str], ExpectedPace] = {}
        self._is_stale = False
        self._now_s = self._aged_s = 0.0
        """Network time as far as it is known here, and when results were looked at for their age."""

    def take(self, result: Result) -> None:
        """One entry more."""
        self._now_s = max(self._now_s, result.time_s)
        node = self._nodes.pop(result.pnode_id, None) or _Node()
        self._nodes[result.pnode_id] = node
        if len(self._nodes) > MAX_NODES:
            del self._nodes[next(iter(self._nodes))]
        if result.kind is Kind.CORRECTED:
            node.results = deque(one for one in node.results if one.number != result.corrects)
        else:
            node.results.append(result)
            most = max(MIN_PER_NODE, min(MAX_PER_NODE, MAX_RESULTS // len(self._nodes)))
            while len(node.results) > most:
                node.results.popleft()
        node.is_stale = self._is_stale = True

    def scores(self, passes: Passes) -> list[NodeScore]:
        """Of every node with a result, the best first."""
        found = []
        for pnode_id in self._nodes:
            node = self._fresh(pnode_id)
            score = score_of(passes(pnode_id), node.punctuality)
            on_time = sum(one.on_time for one in node.results)
            works = tuple(node.works[key] for key in sorted(node.works))
            found.append(NodeScore(pnode_id, score, len(node.results), on_time, works))
        return sorted(found, key=lambda one: (-one.score.shown, one.pnode_id))

    def score(self, pnode_id: str, passes: float) -> tuple[Score, int]:
        """Of one node, with the number of its results; 0 for whom nothing is known of."""
        if pnode_id not in self._nodes:
            return score_of(passes, Punctuality()), 0
        node = self._fresh(pnode_id)
        return score_of(passes, node.punctuality), len(node.results)

    def refresh(self, now_s: float = 0.0) -> bool:
        """Brings what is expected up to date; whether there may be news since the last time. Looks at every node: call it now and then.

        ``now_s``: network time; no earlier than that of the newest result counts.
        """
        self._now_s = max(self._now_s, now_s)
        if self._nodes and self._now_s >= self._aged_s + AGE_S:
            self._aged_s, self._is_stale = self._now_s, True
            for node in self._nodes.values():
                node.is_stale = True
        if not self._is_stale:
            return False
        self._expected, self._is_stale = self._expectations(), False
        known = ((key, one.s_per_gflop) for key, one in self._expected.items())
        self._paces = {key: ExpectedPace(times.p50, times.p95) for key, times in known if times is not None}
        return True

    def expected(self) -> Mapping[tuple[str, str], Expected]:
        """By (component, device class), as of the last `refresh`."""
        return self._expected

    def paces(self) -> Mapping[tuple[str, str], ExpectedPace]:
        """What the planner takes a machine for that was never measured."""
        return self._paces

    def late_after_s(self, kind: Kind, component: str, device_class: str, gflop: float) -> float:
        """From how many seconds on such a result is late; infinity where too few machines tell."""
        known = self._expected.get((component, device_class))
        if known is None:
            return math.inf
        times, scale = (known.provisioning_s, 1.0) if kind is Kind.PROVISIONED else (known.s_per_gflop, gflop)
        if times is None or times.num < LATE_NODES:
            return math.inf
        return max(MIN_LATE_S.get(kind, 0.0), LATE_FACTOR * times.p95 * scale)

    def tracks(self, passes: Passes) -> dict[str, TrackRecord]:
        """What the planner reads of each node."""
        return {one.pnode_id: _track(one, self._expected) for one in self.scores(passes)}

    def _fresh(self, pnode_id: str) -> _Node:
        node = self._nodes[pnode_id]
        if node.is_stale:
            node.punctuality = _folded(node.results)
            node.works = _works(node.results, self._now_s - STEPS_S)
            node.is_stale = False
        return node

    def _expectations(self) -> dict[tuple[str, str], Expected]:
        voices: dict[tuple[str, str], list[Work]] = {}
        for pnode_id in self._nodes:
            for key, work in self._fresh(pnode_id).works.items():
                voices.setdefault(key, []).append(work)
        return {
            key: Expected(_together([one.s_per_gflop for one in works]), _together([one.provisioning_s for one in works]))
            for key, works in sorted(voices.items())
        }


def percentile(values: Sequence[float], part: float) -> float:
    """By nearest rank, of at least one value."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def _folded(results: Iterable[Result]) -> Punctuality:
    found = Punctuality()
    for one in results:
        found = found.on_time(one.time_s) if one.on_time else found.late(one.time_s)
    return found


def _works(results: Iterable[Result], since_s: float) -> dict[tuple[str, str], Work]:
    """Steps count as taken no earlier than ``since_s``."""
    by_key: dict[tuple[str, str], list[Result]] = {}
    for one in results:
        if one.component and one.device_class:
            by_key.setdefault((one.component, one.device_class), []).append(one)
    steps = {key: [one for one in rows if one.kind is Kind.STEPS and one.time_s >= since_s] for key, rows in by_key.items()}
    return {
        (component, device_class): Work(
            component, device_class, len(rows), sum(one.on_time for one in rows),
            _percentiles([one.seconds for one in rows if one.kind is Kind.PROVISIONED]),
            _percentiles([one.seconds for one in steps[component, device_class]]),
            _percentiles([max(MIN_SECONDS, one.seconds) / one.gflop for one in steps[component, device_class] if one.gflop > 0.0]),
        )
        for (component, device_class), rows in by_key.items()
    }  # fmt: skip


def _percentiles(values: Sequence[float]) -> Percentiles | None:
    return Percentiles(percentile(values, 0.5), percentile(values, 0.95), len(values)) if values else None


def _together(voices: Iterable[Percentiles | None]) -> Percentiles | None:
    """One voice per node: the median of medians, and the 95th of the 95th."""
    known = [one for one in voices if one is not None]
    if not known:
        return None
    return Percentiles(percentile([one.p50 for one in known], 0.5), percentile([one.p95 for one in known], 0.95), len(known))


def _track(node: NodeScore, expected: Mapping[tuple[str, str], Expected]) -> TrackRecord:
    pace = _pace(node.works, expected)
    provisioned = [one.provisioning_s.p50 for one in node.works if one.provisioning_s is not None]
    return TrackRecord(
        score=round(SCORE_STEPS * node.score.shown / 100) / SCORE_STEPS,
        provision_s=PROVISION_STEP_S * (max(provisioned, default=0.0) // PROVISION_STEP_S),
        pace=pace if pace is not None else 1.0,
        is_timed=pace is not None,
    )


def _pace(works: Iterable[Work], expected: Mapping[tuple[str, str], Expected]) -> float | None:
    """How many times as long as others of its class the node takes; None where nothing is known."""
    ratios = []
    for one in works:
        known = expected.get((one.component, one.device_class))
        if one.s_per_gflop is not None and known is not None and known.s_per_gflop is not None:
            ratios.append(one.s_per_gflop.p50 / known.s_per_gflop.p50)
    if not ratios:
        return None
    pace = min(MAX_PACE, max(1.0 / MAX_PACE, percentile(ratios, 0.5)))
    stepped: float = PACE_STEP ** round(math.log(pace, PACE_STEP))
    return stepped
