"""Who watches jobs: what is shown is built once for all who watch a job and an interval, and strangers watch seldom, and not too many.

Building it walks over the plan and the nodes on the loop that judges beats and holds heads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from dcnr.errors import Unavailable
from dcnr.v1 import common_pb2, orchestrator_pb2
from orchestrator.access import Caller

LONGEST_S: Final = 60.0
LISTED_S: Final = 0.2
OTHERS_S: Final = 1.0
"""Shortest interval of who is neither a maintainer nor an orchestrator: keys cost nothing, also those of PNodes."""
PER_CALLER: Final = 16
"""Streams of one key."""
PER_SUBNET: Final = 32
"""Streams from one subnet; keys cost nothing, also those of PNodes."""
AT_ONCE: Final = 256
"""Of all that are bounded: maintainers, orchestrators and the gateways that the operator knows are not."""
EARLY_S: Final = 0.01
"""A watcher that wakes so much before its time builds all the same."""
MAX_MESSAGES: Final = 64
"""Of one picture, by the newest event that was heard."""

Response = orchestrator_pb2.WatchJobResponse


@dataclass(slots=True)
class Picture:
    """A job as it was at ``built_s``, with its nodes; messages differ by the events that a watcher has not heard."""

    built_s: float
    plain: Response
    _messages: dict[int, Response] = field(default_factory=dict)

    def message(self, after: int, events: Callable[[int], list[common_pb2.Event]]) -> Response:
        """For whoever has heard the events up to that number."""
        found = self._messages.get(after)
        if found is None:
            found = Response()
            found.CopyFrom(self.plain)
            found.events.extend(events(after))
            if len(self._messages) < MAX_MESSAGES:
                self._messages[after] = found
        return found


class Watchers:
    """Of one orchestrator."""

    def __init__(self) -> None:
        self._callers: Counter[str] = Counter()
        self._subnets: Counter[str] = Counter()
        self._jobs: Counter[tuple[str, str]] = Counter()
        self._pictures: dict[tuple[str, str], Picture] = {}

    @contextmanager
    def place(self, caller: Caller, subnet: str, job: tuple[str, str], *, is_bounded: bool) -> Iterator[None]:
        """Raises Unavailable (``overloaded``) where the caller, its subnet or all together watch as much as they may."""
        if is_bounded:
            full = self._callers[caller.node_id] >= PER_CALLER or self._subnets[subnet] >= PER_SUBNET
            if full or self._callers.total() >= AT_ONCE:
                raise Unavailable(
                    "too many watch jobs here", code="overloaded", remedy="watch fewer jobs, or ask another orchestrator"
                )
            self._callers[caller.node_id] += 1
            self._subnets[subnet] += 1
        self._jobs[job] += 1
        try:
            yield
        finally:
            if is_bounded:
                _less(self._callers, caller.node_id)
                _less(self._subnets, subnet)
            self._jobs[job] -= 1
            if not self._jobs[job]:
                del self._jobs[job]
                self._pictures.pop(job, None)

    def picture(self, job: tuple[str, str], interval_s: float, now_s: float, build: Callable[[], Response]) -> Picture:
        """As it was at most ``interval_s`` ago."""
        found = self._pictures.get(job)
        if found is None or now_s >= found.built_s + interval_s - EARLY_S:
            found = self._pictures[job] = Picture(now_s, build())
        return found


def interval_of(caller: Caller, wanted_s: float) -> float:
    """The interval that this caller gets."""
    return min(LONGEST_S, max(LISTED_S if caller.is_listed else OTHERS_S, wanted_s or 1.0))


def _less(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
