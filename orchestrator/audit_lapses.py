"""How often in a row an accused that is here has shown nothing of what it did, by PNode and VNode. Pure.

What it brings ends the row, unless that shows nothing of what was done: then it is as if nothing had been brought, found later.
"""

from __future__ import annotations

import math
from typing import Final

from orchestrator.audit_events import Unshown
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

    def lapsed(self, one: Interval, since_s: float, now_s: float, reason: str) -> Unshown | None:
        """Nothing was brought in the whole of its time, which began at ``since_s``, or what was shows nothing. What was due together is one lapse: None."""
        who = one.pnode_id, one.vnode
        num, last_s = max(self._rows.get(who, _NONE), self._ended.pop(one.name, _NONE))
        if since_s < last_s:
            return None
        self._rows[who] = num + 1, now_s
        return Unshown(one.pnode_id, one.vnode, one.replica, num + 1, reason)

    def closed(self, interval: str) -> None:
        """It is judged."""
        self._ended.pop(interval, None)
