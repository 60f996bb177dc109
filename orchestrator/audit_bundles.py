"""Evidence that came to the audit desk, by interval: what is audited again needs it, and whoever brought it has thrown it away. Pure."""

from __future__ import annotations

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
        self._taken: set[str] = set()

    def came(self, interval: str, bundle: Bundle, now_s: float) -> None:
        """It is in the store from now on."""
        self._came[interval] = bundle, now_s
        while len(self._came) > MAX_BUNDLES:
            self._taken.discard(self._came.popitem(last=False)[0])

    def of(self, interval: str) -> Bundle | None:
        """What came, if it is remembered."""
        found = self._came.get(interval)
        return found[0] if found is not None else None

    def take_again(self, interval: str, now_s: float) -> bool:
        """Whether an interval may be audited again since its auditor was found out: once, while the store keeps what came."""
        came = self._came.get(interval)
        if came is None or now_s > came[1] + AGAIN_S or interval in self._taken:
            return False
        self._taken.add(interval)
        return True
