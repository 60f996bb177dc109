"""What follows from doubts beside the verdict: who doubts alone again and again is asked no more for a while, and what was spared behind an interval that
doubts took back is looked at. Pure.

A doubt is never wrong, and nobody pays for one. But each has two others repeat the audit, and until they have its accused is under suspicion: it gets nothing
new, and all that it does is audited. Whoever doubted everything could have everybody audited for ever, and do nothing for it. Of honest steps none was
ever doubted, so that somebody doubts alone several times says something about its machine, if not about itself.

A state in which last bits grow has every interval from there on doubted, whoever learns on. Where the job's rates do not make it one, somebody did, in an
interval that was not drawn: that is found where what was spared is drawn late (`trust.late_draw`), as behind a state from which nobody can learn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from orchestrator.audit_case import Case
from orchestrator.audit_events import Decision, Word
from trust.ledger import Ledger, Verdict
from trust.standing import REAUDITORS

MAX_ALONE: Final = 3
"""Intervals that somebody may doubt alone within `WITHIN_S`; then it is asked no more until the first of them is as long ago."""
WITHIN_S: Final = 3600.0


class Doubters:
    """Of one desk."""

    def __init__(self) -> None:
        self._alone_s: dict[str, deque[float]] = {}
        """By auditor: when intervals were judged that it alone had doubted, or accused without proof; the newest."""
        self.taken_back: dict[str, int] = {}
        """By VNode: the place in the chain of the last interval that doubts took back."""

    def judged(self, case: Case, decision: Decision, now_s: float) -> None:
        """An interval is decided. Where nobody else has looked nobody has doubted alone."""
        passed = {name for name, one in case.words.items() if one.word is Word.PASS}
        doubted = [name for name, one in case.words.items() if one.word in (Word.DOUBT, Word.FAULT) and name not in case.own]
        if decision.verdict is Verdict.PASSED and len(doubted) == 1 and (len(passed) >= REAUDITORS or passed & case.own):
            self._alone_s.setdefault(doubted[0], deque(maxlen=MAX_ALONE)).append(now_s)

    def decided(self, case: Case, decision: Decision) -> None:
        """An interval is decided, in whichever way."""
        if decision.verdict is Verdict.UNVERIFIABLE and any(one.word in (Word.DOUBT, Word.FAULT) for one in case.words.values()):
            self.taken_back[case.interval.vnode] = case.interval.number

    def resting(self, now_s: float) -> frozenset[str]:
        """Who is asked nothing now."""
        return frozenset(name for name, times in self._alone_s.items() if len(times) == MAX_ALONE and now_s < times[0] + WITHIN_S)


def doubtful_in(ledger: Ledger, taken_back: Mapping[str, int]) -> dict[str, str]:
    """By VNode the checkpoint that counts and that it goes on from where doubts took an interval back: last bits may grow from there whoever learns."""
    return {
        vnode: next(one.digest for one in reversed(line) if all(ledger.intervals[name].number < number for name in one.intervals))
        for vnode, number in sorted(taken_back.items())
        if (line := ledger.lines.get(vnode))
    }
