"""What the routes of one gateway share."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import Response

from dcnr.ports import Clock
from gateway.feeds import Feeds
from gateway.metrics import Metrics
from gateway.views import Views

KEPT_TIMES: Final = 1024


@dataclass(slots=True)
class Context:
    """Made once per gateway."""

    views: Views
    clock: Clock
    metrics: Metrics
    feeds: Feeds
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_TIMES))
    """How long the newest requests took."""


def answer(content: Any, status: int = 200) -> Response:
    """``content`` as JSON."""
    data = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return Response(data, status, media_type="application/json")
