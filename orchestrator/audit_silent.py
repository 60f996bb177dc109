"""Auditors that were given tasks and let the time for each of them pass: others are asked first for a while. Pure.

Nobody is called dishonest for silence, and nothing is taken back. But an interval waits for its auditor's whole time, and the next one's is twice as long:
whoever answered nothing could hold up whatever it is drawn for, for ever, and do nothing for it.
"""

from __future__ import annotations

from typing import Final

from orchestrator.audit_case import LATE_S, Asked
from orchestrator.audit_events import Report, Word

MAX_SILENT: Final = 2
"""Audits in a row that somebody may let pass; then others are asked first, until the last of them is `REST_S` ago."""
REST_S: Final = 3600.0


class Silent:
    """Of one desk."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, float]] = {}
        """By auditor: how many in a row, and when the last was over."""

    def late(self, asked: Asked, now_s: float) -> None:
        """It was here, and its time is over. A verifier may be asked again at any time: it is the holder itself."""
        if not asked.is_verifier:
            num, _ = self._rows.get(asked.auditor, (0, 0.0))
            self._rows[asked.auditor] = num + 1, now_s

    def answered(self, report: Report, asked: Asked, now_s: float) -> None:
        """It said something, if only that it cannot; who says that when its time is as good as over has let it pass. `Word.UNREAD`: it was not asked."""
        if report.word is Word.REFUSED and now_s >= asked.until_s - LATE_S:
            self.late(asked, now_s)
        elif report.word is not Word.UNREAD:
            self._rows.pop(asked.auditor, None)

    def resting(self, now_s: float) -> frozenset[str]:
        """Who is asked only where nobody else can be."""
        self._rows = {name: row for name, row in self._rows.items() if now_s < row[1] + REST_S}
        return frozenset(name for name, (num, _) in self._rows.items() if num >= MAX_SILENT)
