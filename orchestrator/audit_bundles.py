"""Evidence that came to the audit desk, by interval: what is audited again needs it, and whoever brought it has thrown it away. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from orchestrator.audit_events import Bundle
from trust.overturned import AGAIN_S

MAX_BUNDLES: Final = 8192
"""Remembered; the oldest are forgotten."""


class Bundles:
    """Of one desk."""

    def __init__(self) -> None:
        self._came: OrderedDict[str, tuple[Bundle, float]] = OrderedDict()
        self._told: dict[str, float] = {}
        """When an earlier desk heard of an interval that it passes: then its evidence was there, and whose work it was may still know its name."""
        self._taken: set[str] = set()

    def came(self, interval: str, bundle: Bundle, now_s: float) -> None:
        """It is in the store from now on."""
        self._came[interval] = bundle, now_s
        while len(self._came) > MAX_BUNDLES:
            self._taken.discard(self._came.popitem(last=False)[0])

    def told(self, interval: str, at_s: float) -> None:
        """An earlier desk heard then that it passes."""
        self._told[interval] = at_s

    def of(self, interval: str) -> Bundle | None:
        """What came, if it is remembered."""
        found = self._came.get(interval)
        return found[0] if found is not None else None

    def take_again(self, interval: str, now_s: float, *, also_told: bool) -> bool:
        """Whether an interval may be audited again since its auditor was found out: once, while the store keeps what came.
        ``also_told``: that, or what came to an earlier desk.
        """
        came = self._came.get(interval)
        came_s = came[1] if came is not None else self._told.get(interval, -math.inf) if also_told else -math.inf
        if now_s > came_s + AGAIN_S or interval in self._taken:
            return False
        self._taken.add(interval)
        return True
