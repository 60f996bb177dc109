"""The evaluation results that replicas reported, by job: a result once heard survives the replica that computed it. Pure, bounded.

A job is known here by the digest of its request: one of that name which a store has lost had results of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

from dcnr.v1 import model_pb2

MAX_JOBS: Final = 8
MAX_RESULTS: Final = 65_536
"""Results kept per job."""


class ExitBook:
    """Keeps, for each (VNode, split, round), the most complete result."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, dict[tuple[str, str, int], model_pb2.ExitResult]] = OrderedDict()

    def heard(self, request_digest: str, results: Sequence[model_pb2.ExitResult]) -> None:
        """Takes in what a replica reports."""
        table = self._jobs.setdefault(request_digest, {})
        self._jobs.move_to_end(request_digest)
        while len(self._jobs) > MAX_JOBS:
            self._jobs.popitem(last=False)
        for result in results:
            key = (result.vnode, result.split, int(result.round))
            known = table.get(key)
            better = known is None or (result.complete, result.step, result.count) > (known.complete, known.step, known.count)
            if better and (known is not None or len(table) < MAX_RESULTS):
                table[key] = result

    def forget(self, request_digest: str, vnodes: Collection[str]) -> None:
        """What these VNodes went back from says nothing of what they learn now."""
        table = self._jobs.get(request_digest, {})
        for key in [key for key in table if key[0] in vnodes]:
            del table[key]

    def curve(self, request_digest: str, vnode: str) -> list[model_pb2.ExitResult]:
        """All results of a VNode's objective, validation rounds first, then the test split."""
        table = self._jobs.get(request_digest, {})
        return [table[key] for key in sorted(table, key=lambda key: (key[1] == "test", key[2])) if key[0] == vnode]

    def test_results(self, request_digest: str, order: Sequence[str]) -> tuple[model_pb2.ExitResult, ...]:
        """Test results by depth, which is the position among ``order``."""
        table = self._jobs.get(request_digest, {})
        found: list[model_pb2.ExitResult] = []
        for depth, vnode in enumerate(order, start=1):
            result = table.get((vnode, "test", 0))
            if result is not None:
                copy = model_pb2.ExitResult()
                copy.CopyFrom(result)
                copy.depth = depth
                found.append(copy)
        return tuple(found)
