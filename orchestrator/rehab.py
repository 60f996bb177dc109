"""The way back from a quarantine: intervals whose truth this orchestrator has seen itself are given to PNodes in rehab, whose word decides nothing. Pure.

A word that fits is a unit done, one that does not is a fault, anything else is nothing. Who reads manifests may guess the answer before its time is over: it
gains a place in probation, where every interval is audited.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from orchestrator.audit_case import AUDIT_S
from orchestrator.audit_events import Known, Report, SendTask, Word
from trust.auditors import Candidate
from trust.overturned import Truth
from trust.standing import State

MAX_UNITS: Final = 64
"""Intervals kept for it, the newest."""
_RIGHT: Final = {Truth.RIGHT: Word.PASS, Truth.WRONG: Word.FAULT}
_WRONG: Final = {Truth.RIGHT: Word.FAULT, Truth.WRONG: Word.PASS}


@dataclass(frozen=True, slots=True)
class Shadow:
    """What came of a unit; ``is_right`` None: nothing."""

    pnode_id: str
    is_right: bool | None
    evidence: str
    """Digest of its signed report."""


@dataclass(frozen=True, slots=True)
class _Given:
    pnode_id: str
    interval: str
    until_s: float


class Rehab:
    """One per desk. ``draw_id`` gives the name of a task."""

    def __init__(self, draw_id: Callable[[], str]) -> None:
        self._draw_id = draw_id
        self._units: OrderedDict[str, Known] = OrderedDict()
        self._given: dict[str, _Given] = {}
        self._done: set[tuple[str, str]] = set()

    def known(self, unit: Known) -> None:
        """An interval with its evidence, and what is true of it."""
        self._units[unit.interval] = unit
        while len(self._units) > MAX_UNITS:
            gone, _ = self._units.popitem(last=False)
            self._done = {pair for pair in self._done if pair[1] != gone}

    def recalled(self, pnode_id: str, interval: str) -> None:
        """An earlier desk gave that unit to that PNode."""
        self._done.add((pnode_id, interval))

    def tick(self, candidates: Iterable[Candidate], now_s: float) -> list[SendTask]:
        """Units for those in rehab that have none, each interval once."""
        self._given = {task_id: one for task_id, one in self._given.items() if now_s < one.until_s}
        busy, tasks = {one.pnode_id for one in self._given.values()}, list[SendTask]()
        for one in candidates:
            name = one.party.node_id
            if one.state is not State.REHAB or not one.is_free or name in busy:
                continue
            fit = (
                unit for unit in reversed(self._units.values()) if unit.accused != name and (name, unit.interval) not in self._done
            )
            unit = next(fit, None)
            if unit is not None:
                task_id, until_s = self._draw_id(), now_s + AUDIT_S
                self._given[task_id] = _Given(name, unit.interval, until_s)
                self._done.add((name, unit.interval))
                tasks.append(SendTask(task_id, unit.interval, unit.vnode, name, False, unit.bundle, until_s, "a unit in rehab"))
        return tasks

    def asks(self, pnode_id: str, vnode: str) -> bool:
        """Whether that PNode has a unit of that VNode."""
        units = (self._units.get(one.interval) for one in self._given.values() if one.pnode_id == pnode_id)
        return any(unit is not None and unit.vnode == vnode for unit in units)

    def gives(self, report: Report) -> bool:
        """Whether that report is on a unit that was given to that PNode."""
        given = self._given.get(report.task_id)
        return given is not None and given.pnode_id == report.auditor

    def reported(self, report: Report) -> Shadow | None:
        """What that report says; None if it is on no unit given to that PNode."""
        if not self.gives(report):
            return None
        given = self._given.pop(report.task_id)
        unit = self._units.get(given.interval)
        if unit is None or (report.interval and report.interval != given.interval):
            return Shadow(given.pnode_id, None, report.digest)
        return Shadow(given.pnode_id, is_right(report.word, unit.truth), report.digest)


def is_right(word: Word, truth: Truth) -> bool | None:
    """Whether a word on an interval of which that is true is right; None: it says nothing."""
    return True if word is _RIGHT[truth] else False if word is _WRONG[truth] else None
