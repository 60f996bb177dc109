"""How often in a row an accused that is here has shown nothing of what it did that counts, by PNode and VNode. Pure.

What it brings ends the row, unless that shows nothing of what was done, or all who look measure otherwise: then it is as if nothing had been brought, found
later. Nobody is blamed for doubts; but with inputs of its own making, as large as may be sent, a cheat can have all that it does doubted, and would hold its
VNode still for as long as it liked.
"""

from __future__ import annotations

import math
from typing import Final

from orchestrator.audit_case import UNCLEAR, Case, is_in_vain
from orchestrator.audit_events import Decision, Unshown
from trust.ledger import Interval

_NONE: Final = (0, -math.inf)


class Lapses:
    """Of one desk."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], tuple[int, float]] = {}
        """How many, and when the last was found."""
        self._ended: dict[str, tuple[int, float]] = {}
        """By open interval of which something was brought: the row that this has ended."""

    def brought(self, one: Interval) -> None:
        """Something is there to be looked at."""
        self._ended[one.name] = self._rows.pop((one.pnode_id, one.vnode), _NONE)

    def withheld(self, case: Case, now_s: float, reason: str, *, is_late: bool = True) -> list[Unshown]:
        """Nothing was brought in the whole of its time, or what was is in vain. What was due together is one lapse: nothing."""
        one = case.interval
        who = one.pnode_id, one.vnode
        num, last_s = max(self._rows.get(who, _NONE), self._ended.pop(one.name, _NONE))
        if case.since_s < last_s:
            return []
        self._rows[who] = num + 1, now_s
        return [Unshown(one.pnode_id, one.vnode, one.replica, num + 1, reason, is_late)]

    def concluded(self, case: Case, found: Decision, now_s: float) -> list[Unshown]:
        """What was said of what it brought is enough."""
        return self.withheld(case, now_s, found.reason, is_late=found.reason == UNCLEAR) if is_in_vain(case, found) else []

    def closed(self, interval: str) -> None:
        """It is judged."""
        self._ended.pop(interval, None)
