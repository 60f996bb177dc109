"""What the routes of one gateway share."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fastapi import Response

from dcnr.ports import Clock
from dcnr.tracing import UNTRACED, Tracer
from gateway.feeds import Feeds
from gateway.keys import KeyRing
from gateway.metrics import Metrics
from gateway.results import Results
from gateway.views import Views

if TYPE_CHECKING:
    from gateway.here import Here

KEPT_TIMES: Final = 1024


@dataclass(slots=True)
class Context:
    """Made once per gateway."""

    views: Views
    clock: Clock
    metrics: Metrics
    feeds: Feeds
    ring: KeyRing
    results: Results
    here: Here | None = None
    """The machine whose owner began this gateway for themselves."""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_TIMES))
    """How long the newest requests took."""
    tracer: Tracer = UNTRACED


def answer(content: Any, status: int = 200) -> Response:
    """``content`` as JSON; what is no character in a text of it becomes a question mark."""
    data = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(data, status, media_type="application/json")
