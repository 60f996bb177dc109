"""Heads that one orchestrator tells, held against the terms that this PNode has confirmed. Pure.

Whoever follows the store tells of no term that is over, unless the store went back to a copy that does not know the later one (ADR 0108). PNodes show what
they know when they attach, so a stream on which nothing else is told for long is opened anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dcnr.ids import NodeId

OVER_S: Final = 12.0
"""For so long heads of a term that is over may be told: who is only behind has read the store's by then. Orchestrators tell idle PNodes every 15 s."""
LONGEST_S: Final = 600.0
"""Between two attempts: what is shown is beyond belief where the store was emptied."""


@dataclass(frozen=True, slots=True)
class Told:
    """A head that was told."""

    model: str
    holder: NodeId
    """Who signed it."""
    is_over: bool
    """Its term is another than the confirmed one, and not above it."""


class ToldHeads:
    """Of one orchestrator, over all its streams."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._wait_s = OVER_S

    def told(self, told: Told, now_s: float) -> bool:
        """Whether it is to be shown what is known here: all its heads of that model were over for `OVER_S`, for twice as long after each time in vain."""
        if not told.is_over:
            self._since_s.pop(told.model, None)
            if not self._since_s:
                self._wait_s = OVER_S
            return False
        if now_s - self._since_s.setdefault(told.model, now_s) < self._wait_s:
            return False
        self._since_s.clear()
        self._wait_s = min(LONGEST_S, 2 * self._wait_s)
        return True
