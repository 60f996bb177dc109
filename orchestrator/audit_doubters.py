"""What follows from doubts beside the verdict: who doubts alone again and again is asked no more for a while, and what was spared behind an interval that
doubts took back is looked at. Pure.

A doubt is never wrong, and nobody pays for one. But each has two others repeat the audit, and until they have its accused is under suspicion: it gets nothing
new, and all that it does is audited. Whoever doubted everything could have everybody audited for ever, and do nothing for it. Of honest steps none was
ever doubted, so that somebody doubts alone several times says something about its machine, if not about itself.

A state in which last bits grow has every interval from there on doubted, whoever learns on. Where the job's rates do not make it one, somebody did, in an
interval that was not drawn: that is found where what was spared is drawn late (`trust.late_draw`), as behind a state from which nobody can learn. It may
be one that no checkpoint holds, an anchor that a contributor began with: so what came with the same checkpoint is looked at first, or it would go back
with what is doubted, and nobody would ever look at it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Mapping
from typing import Final

from orchestrator.audit_case import AUDIT_S, LONGEST_CHALLENGE_S, Case
from orchestrator.audit_events import Decision, Report, TakenBack, Word
from orchestrator.audited_late import beside
from trust.late_draw import SPARED_KEPT_S
from trust.ledger import Interval, Ledger, Verdict
from trust.standing import REAUDITORS

MAX_ALONE: Final = 3
"""Intervals that somebody may doubt alone within `WITHIN_S`; then it is asked no more until the first of them is as long ago."""
WITHIN_S: Final = 3600.0
HELD_S: Final = LONGEST_CHALLENGE_S + 2 * AUDIT_S
"""So long what doubts take back waits at most for what came with the same checkpoint."""


class Doubters:
    """Of one desk."""

    def __init__(self) -> None:
        self._alone_s: dict[str, deque[float]] = {}
        """By auditor: when intervals were judged that it alone had doubted, or accused without proof; the newest."""
        self.taken_back: dict[str, TakenBack] = {}
        """By VNode: what doubts took back last, while what was spared before it may be drawn for that."""
        self._gone_back_to: dict[tuple[str, str], TakenBack] = {}
        """By VNode and checkpoint: what doubts took back last that went on from there. What went on since is seldom drawn at once: doubts take back what
        stands on it first, and come to it then."""
        self.held: dict[str, tuple[Interval, float]] = {}
        """By name, until when what doubts take back waits for what came with the same checkpoint; until `look` also what waits for nothing."""

    def judged(self, case: Case, decision: Decision, now_s: float) -> None:
        """An interval is decided. Where nobody else has looked nobody has doubted alone."""
        passed = {name for name, one in case.words.items() if one.word is Word.PASS}
        doubted = [name for name, one in case.words.items() if one.word in (Word.DOUBT, Word.FAULT) and name not in case.own]
        if decision.verdict is Verdict.PASSED and len(doubted) == 1 and (len(passed) >= REAUDITORS or passed & case.own):
            self._alone_s.setdefault(doubted[0], deque(maxlen=MAX_ALONE)).append(now_s)

    def decided(self, case: Case, decision: Decision, ledger: Ledger) -> None:
        """An interval is decided, in whichever way."""
        one, said = case.interval, {report.word for report in case.words.values()}
        if decision.verdict is Verdict.UNVERIFIABLE and said & {Word.DOUBT, Word.FAULT}:
            self.held[one.name] = one, math.inf if beside(ledger, one.name) else -math.inf

    def let_go(self, case: Case) -> Decision | None:
        """What is decided of it, unless that is held."""
        _, until_s = self.held.get(case.interval.name, (case.interval, -math.inf))
        return case.decision if until_s == -math.inf else None

    def look(self, ledger: Ledger, cases: Mapping[str, Case], again: Container[str], now_s: float, *, waits: bool = True) -> None:
        """What is held goes back as soon as nothing that came with it is looked at any more. ``again``: spared ones that are to be open. ``waits``: not where
        the job may be over before, and what is doubted would be in what it comes to.
        """

        def is_looked_at(one: Interval) -> bool:
            case = cases.get(one.name)
            is_guilty = case is not None and case.decision is not None and case.decision.verdict is Verdict.FAILED
            return one.name in again or is_guilty or (case is not None and case.decision is None)

        self.taken_back = {vnode: one for vnode, one in self.taken_back.items() if now_s < one.at_s + SPARED_KEPT_S / 2}
        self._gone_back_to = {place: one for place, one in self._gone_back_to.items() if now_s < one.at_s + SPARED_KEPT_S / 2}
        held, self.held = self.held, {}
        for name, (one, until_s) in held.items():
            if now_s < until_s and name not in cases:
                continue  # it went back with something else
            if waits and now_s < until_s and any(map(is_looked_at, beside(ledger, name))):
                self.held[name] = one, min(until_s, now_s + HELD_S)
            else:
                self._take_back(one, ledger, now_s)

    def recalled(self, report: Report, ledger: Ledger, at_s: float) -> None:
        """An earlier desk heard of doubts, and took the interval back if the chain says that: what is doubted again from there on is so after a takeover, too.
        When it went back is not known: what was named behind it counts as learned since, but what did not go back with it.
        """
        one = ledger.intervals.get(report.interval)
        if one is not None and one.verdict is Verdict.UNVERIFIABLE and report.word in (Word.DOUBT, Word.FAULT):
            last = self.taken_back.get(one.vnode)
            if last is None or last.number != one.number:
                self._take_back(one, ledger, at_s, one.number + 1)

    def _take_back(self, one: Interval, ledger: Ledger, now_s: float, num_known: int = 0) -> None:
        last = self.taken_back.get(one.vnode)
        if last is not None and last.number < one.number < last.num_known:
            return  # it stands on that one, or went on beside it
        place = one.vnode, begins_with(ledger, one)
        before = self._gone_back_to.get(place)
        num_known = num_known or 1 + max((known.number for known in ledger.intervals.values()), default=one.number)
        is_again = before is not None and one.number >= before.num_known
        self.taken_back[one.vnode] = self._gone_back_to[place] = TakenBack(one.number, place[1], num_known, now_s, is_again)

    def resting(self, now_s: float) -> frozenset[str]:
        """Who is asked nothing now."""
        return frozenset(name for name, times in self._alone_s.items() if len(times) == MAX_ALONE and now_s < times[0] + WITHIN_S)


def begins_with(ledger: Ledger, one: Interval) -> str:
    """The newest checkpoint that counts and holds nothing as new as that interval: last bits may grow from there whoever learns."""
    line = ledger.lines.get(one.vnode, ())
    older = (named for named in reversed(line) if all(ledger.intervals[name].number < one.number for name in named.intervals))
    return next((named.digest for named in older), "")
