"""What becomes of the replicas of a plan, from what an orchestrator hears anyway: when one was asked for, came to work, how long its steps take, and that it
failed, brought nothing, or was lost. Pure: looks go in, results come out.

Who leaves politely, or is gone when nothing was asked of it, has done nothing wrong. A worker that ended without a word is a loss, however quickly another
one begins: what it had learned and not brought is learned again. A PNode that was out of reach and comes back with the same life of the
same replica, before anybody took its place, has cost nobody anything: its loss is corrected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.audit_events import Unshown
from orchestrator.costs import StageCost
from orchestrator.lending import MEASURED_BATCHES, REFUSED_AFTER_S
from orchestrator.results import MAX_REASON, MAX_SECONDS, Kind, Result, device_class_of
from orchestrator.silence import NodeRecord
from orchestrator.view import ModelView

FIRST_PAUSE_S: Final = 60.0
LONGEST_PAUSE_S: Final = 3600.0
"""Steps of one replica are written down after a minute, then after as long as it has worked, at least hourly: a long record has few entries."""
NEVER_S: Final = 300.0
"""A replica that is asked for and not at work after so long counts as failed."""
MAX_WAITING: Final = 1024
_ACTIVE: Final = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE

LateAfter = Callable[[Kind, str, str, float], float]
"""Seconds from which on a result of that kind, component, device class and size in GFLOP is late."""


@dataclass(slots=True)
class _Stint:
    """One replica on one PNode."""

    asked_at: float | None
    """When it was asked for, while it is not at work; None where that was not seen."""
    active_at: float | None = None
    incarnation: int = 0
    """Of the life that was at work last; 0: there was none, or its end is accounted for."""
    is_leaving: bool = False
    """Whether that life was told to hand over: by its owner's pause or because it leaves."""
    num_learned: int = 0
    """When its steps were last written down."""
    due_at: float = 0.0
    failing_since: float | None = None
    has_failed: bool = False
    is_lost: bool = False
    loss: int = 0
    """Number of the entry that says so."""
    held: int = 0
    """Batches that it held when it was last heard."""


@dataclass(frozen=True, slots=True)
class _Fact:
    """What the next result is about."""

    view: ModelView
    item: model_pb2.Assignment
    cost: StageCost
    record: NodeRecord
    now: float
    wall_s: float
    late_after: LateAfter


class Observer:
    """Numbers its results from ``after`` + 1 on. Times of looks are monotonic, those of results network time."""

    def __init__(self, after: int = 0) -> None:
        self._number = after
        self._stints: dict[str, dict[tuple[str, str], _Stint]] = {}
        self._found: dict[str, list[tuple[Kind, model_pb2.Assignment, str]]] = {}
        """By model: what the holder has found of a replica, and why that is said. The replica may have lost its place since."""

    def begin(self, after: int) -> None:
        """Entries up to this number are written already."""
        self._number = max(self._number, after)

    def brought_nothing(self, model: str, pnode_id: str, vnode: str, replica: str, reason: str) -> None:
        """The holder has found that no manifest comes to name anything new of this replica."""
        self._note(model, Kind.IDLE, model_pb2.Assignment(replica=replica, vnode=vnode, pnode_id=pnode_id), reason)

    def showed_nothing(self, model: str, one: Unshown) -> None:
        """The audit desk of the holder has waited in vain for evidence of it. What others doubt was in time."""
        if one.is_late:
            item = model_pb2.Assignment(replica=one.replica, vnode=one.vnode, pnode_id=one.pnode_id)
            self._note(model, Kind.UNSHOWN, item, one.reason)

    def _note(self, model: str, kind: Kind, item: model_pb2.Assignment, reason: str) -> None:
        waiting = self._found.setdefault(model, [])
        if len(waiting) < MAX_WAITING:
            waiting.append((kind, item, reason))

    def look(
        self, view: ModelView, nodes: Mapping[str, NodeRecord], now: float, wall_s: float, late_after: LateAfter, *, is_holder: bool
    ) -> list[Result]:  # fmt: skip
        """What has become known of a model's replicas since the last look. Losses are the holder's to see: every PNode of the plan attaches to it."""
        before = self._stints.get(view.model)
        stints: dict[tuple[str, str], _Stint] = {}
        results: list[Result] = []
        plan, job = view.plan, view.job
        if plan is not None and job is not None and plan.job_id == job.request.job_id:
            costs = {cost.vnode: cost for cost in job.costs}
            for kind, item, reason in self._found.pop(view.model, ()):
                record, cost = nodes.get(item.pnode_id), costs.get(item.vnode)
                if record is not None and cost is not None:
                    fact = _Fact(view, item, cost, record, now, wall_s, late_after)
                    results.append(self._result(fact, kind, on_time=False, reason=reason))
            for item in plan.assignments:
                record, cost = nodes.get(item.pnode_id), costs.get(item.vnode)
                if cost is None:
                    continue
                key = item.pnode_id, item.replica
                stint = stints[key] = (before or {}).get(key) or _Stint(now if before is not None else None)
                if record is not None and record.beat_at is not None:
                    results += self._heard(stint, _Fact(view, item, cost, record, now, wall_s, late_after), is_holder=is_holder)
        self._stints[view.model] = stints
        return results

    def rebuilt(self, results: list[Result]) -> list[Result]:
        """Entries made from the chain of manifests, with numbers."""
        return [self._numbered(result) for result in results]

    def _heard(self, stint: _Stint, fact: _Fact, *, is_holder: bool) -> list[Result]:
        record, replica = fact.record, fact.item.replica
        stint.is_leaving |= _is_leaving(record)
        if record.judgement.state == orchestrator_pb2.NODE_STATE_OFFLINE:
            return self._gone(stint, fact) if is_holder else []
        results: list[Result] = []
        report = next((one for one in record.beat.replicas if one.replica == replica), None)
        if report is None or not record.streams:
            return results
        if stint.is_lost:
            results += self._back(stint, fact, report)
        if stint.incarnation and report.incarnation > stint.incarnation:
            results += self._began_anew(stint, fact) if is_holder else []
            stint.incarnation = 0
        stint.held = report.num_learned
        if report.state == _ACTIVE:
            stint.failing_since, stint.has_failed = None, False
            return results + self._working(stint, fact, report)
        return results + self._not_working(stint, fact, report)

    def _gone(self, stint: _Stint, fact: _Fact) -> list[Result]:
        if stint.is_lost:
            return []
        stint.is_lost = True
        if fact.record.beat.draining:
            return []
        result = self._result(fact, Kind.LOST, on_time=False, reason=fact.record.judgement.reason)
        stint.loss = result.number
        return [result]

    def _back(self, stint: _Stint, fact: _Fact, report: orchestrator_pb2.ReplicaReport) -> list[Result]:
        """It is there again: the same life with nothing lost, or a new one that has to come to work first."""
        loss, stint.is_lost, stint.loss = stint.loss, False, 0
        if report.state == _ACTIVE and report.incarnation == stint.incarnation and report.num_learned >= stint.held:
            if loss:
                reason = "it was only out of reach: the same replica works on"
                return [self._result(fact, Kind.CORRECTED, on_time=True, corrects=loss, reason=reason)]
        else:
            stint.active_at, stint.asked_at, stint.incarnation = None, fact.now, 0
        return []

    def _began_anew(self, stint: _Stint, fact: _Fact) -> list[Result]:
        """Another life of the same replica, so soon that its PNode was never gone."""
        if stint.is_leaving:
            return []
        return [self._result(fact, Kind.LOST, on_time=False, reason="its worker ended without a word, and another one began")]

    def _working(self, stint: _Stint, fact: _Fact, report: orchestrator_pb2.ReplicaReport) -> list[Result]:
        results: list[Result] = []
        if stint.active_at is None or report.incarnation != stint.incarnation:
            if stint.asked_at is not None:
                results.append(self._timed(fact, Kind.PROVISIONED, fact.now - stint.asked_at, 0.0))
            stint.active_at, stint.asked_at = fact.now, None
            stint.incarnation, stint.is_leaving = report.incarnation, _is_leaving(fact.record)
            stint.num_learned, stint.due_at = report.num_learned, fact.now
        stint.num_learned = min(stint.num_learned, report.num_learned)  # it went back
        if report.num_learned - stint.num_learned >= MEASURED_BATCHES and fact.now >= stint.due_at and _is_time(report.step_s):
            results.append(self._timed(fact, Kind.STEPS, report.step_s, fact.cost.step_flops * 1e-9))
            stint.num_learned = report.num_learned
            stint.due_at = fact.now + min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, fact.now - stint.active_at))
        return results

    def _not_working(self, stint: _Stint, fact: _Fact, report: orchestrator_pb2.ReplicaReport) -> list[Result]:
        if stint.active_at is not None:
            stint.active_at, stint.asked_at = None, fact.now
        if report.state != orchestrator_pb2.ASSIGNMENT_STATE_FAILED or not fact.record.beat.worker_alive:
            stint.failing_since = None
            is_overdue = stint.asked_at is not None and fact.now - stint.asked_at >= NEVER_S
            if not is_overdue or stint.has_failed:
                return []
            stint.has_failed = True
            return [self._result(fact, Kind.FAILED, on_time=False, reason=f"not at work after {NEVER_S:.0f} s")]
        stint.failing_since = fact.now if stint.failing_since is None else stint.failing_since
        if stint.has_failed or fact.now - stint.failing_since < REFUSED_AFTER_S:
            return []
        stint.has_failed = True
        return [self._result(fact, Kind.FAILED, on_time=False, reason=report.reason)]

    def _timed(self, fact: _Fact, kind: Kind, seconds: float, gflop: float) -> Result:
        seconds = min(seconds, MAX_SECONDS)
        late_s = fact.late_after(kind, fact.cost.component, device_class_of(fact.record.capability), gflop)
        late = f"{seconds:.3g} s, late from {late_s:.3g} s on" if seconds > late_s else ""
        return self._result(fact, kind, on_time=not late, reason=late, seconds=seconds, gflop=gflop)

    def _result(
        self, fact: _Fact, kind: Kind, *, on_time: bool, reason: str = "", seconds: float = 0.0, gflop: float = 0.0, corrects: int = 0
    ) -> Result:  # fmt: skip
        assert fact.view.plan is not None
        return self._numbered(
            Result(
                0, fact.wall_s, fact.item.pnode_id, fact.view.model, fact.view.plan.job_id, fact.item.vnode, fact.item.replica,
                fact.cost.component, device_class_of(fact.record.capability), kind, on_time, seconds, gflop, corrects, reason[:MAX_REASON],
            )
        )  # fmt: skip

    def _numbered(self, result: Result) -> Result:
        self._number += 1
        return replace(result, number=self._number)


def _is_leaving(record: NodeRecord) -> bool:
    return record.beat.draining or not record.capability.accepts_work


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0.0
