"""Auditors that doubt alone again and again: they are asked no more for a while. Pure.

A doubt is never wrong, and nobody pays for one. But each has two others repeat the audit, and until they have its accused is under suspicion: it gets nothing
new, and all that it does is audited. Whoever doubted everything could have everybody audited for ever, and do nothing for it. Of honest steps none was
ever doubted, so that somebody doubts alone several times says something about its machine, if not about itself.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from orchestrator.audit_case import Case
from orchestrator.audit_events import Decision, Word
from trust.ledger import Verdict
from trust.standing import REAUDITORS

MAX_ALONE: Final = 3
"""Intervals that somebody may doubt alone within `WITHIN_S`; then it is asked no more until the first of them is as long ago."""
WITHIN_S: Final = 3600.0


class Doubters:
    """Of one desk."""

    def __init__(self) -> None:
        self._alone_s: dict[str, deque[float]] = {}
        """By auditor: when intervals were judged that it alone had doubted, or accused without proof; the newest."""

    def judged(self, case: Case, decision: Decision, now_s: float) -> None:
        """An interval is decided. Where nobody else has looked nobody has doubted alone."""
        passed = {name for name, one in case.words.items() if one.word is Word.PASS}
        doubted = [name for name, one in case.words.items() if one.word in (Word.DOUBT, Word.FAULT) and name not in case.own]
        if decision.verdict is Verdict.PASSED and len(doubted) == 1 and (len(passed) >= REAUDITORS or passed & case.own):
            self._alone_s.setdefault(doubted[0], deque(maxlen=MAX_ALONE)).append(now_s)

    def resting(self, now_s: float) -> frozenset[str]:
        """Who is asked nothing now."""
        return frozenset(name for name, times in self._alone_s.items() if len(times) == MAX_ALONE and now_s < times[0] + WITHIN_S)
