"""Goal: statements of usage come from one orchestrator's history from its first to its last, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dcnr.errors import Unavailable
from dcnr.ids import NodeId
from dcnr.sdk import usage
from dcnr.v1 import ledger_pb2

ONE, OTHER = NodeId("1" * 40), NodeId("2" * 40)


class Histories:
    """Answers pages of one entry; who answers a call is told by ``order``, the last one from then on."""

    def __init__(self, order: list[NodeId], sizes: dict[NodeId, int]) -> None:
        self.order, self.sizes, self.preferred = order, sizes, list[NodeId | None]()

    async def answered(self, _stub: Any, _method: str, request: Any, *, prefer: NodeId | None) -> tuple[NodeId, Any]:
        self.preferred.append(prefer)
        node = self.order.pop(0) if len(self.order) > 1 else self.order[0]
        number = int(request.after) + 1
        entries = [ledger_pb2.UsageEntry(number=number)] if number <= self.sizes[node] else []
        return node, ledger_pb2.ListUsageResponse(entries=entries)


def read(histories: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(usage, "open_usage", lambda statement, network_id: statement)
    return len(asyncio.run(usage.read_usage(histories, "n", "")))


@pytest.mark.parametrize(
    ("order", "wanted"), [([ONE], 3), ([ONE, ONE, OTHER], 5), ([ONE, OTHER, ONE], 3)], ids=["one", "it dies", "and comes back"]
)
def test_a_history_is_read_from_its_beginning(order: list[NodeId], wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(Histories(order, {ONE: 3, OTHER: 5}), monkeypatch) == wanted


def test_orchestrators_that_never_stay_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    histories = Histories([ONE, OTHER] * 10, {ONE: 99, OTHER: 99})
    with pytest.raises(Unavailable, match="stays"):
        read(histories, monkeypatch)
    assert len(histories.preferred) == usage.MAX_HISTORIES + 1
