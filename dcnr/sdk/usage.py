"""Who used what, as one orchestrator's history tells it: page by page from that one, never from two."""

from __future__ import annotations

from typing import Final

from dcnr.client import Orchestrators
from dcnr.errors import Unavailable
from dcnr.v1 import identity_pb2, ledger_pb2
from dcnr.v1.ledger_pb2_grpc import LedgerServiceStub
from trust.usage import open_usage

MAX_STATEMENTS: Final = 100_000
"""That one call reads."""
MAX_HISTORIES: Final = 4
"""That are begun before it is given up."""

Usage = tuple[ledger_pb2.UsageStatement, identity_pb2.Envelope]


async def read_usage(orchestrators: Orchestrators, network_id: str, model: str) -> list[Usage]:
    """Verified statements, oldest first. Where another orchestrator answers in between, its history is read from the beginning: numbers are each one's own.

    Raises Corrupt, Unavailable (``history_changed`` where the orchestrators keep changing).
    """
    reporter, found, after = None, list[Usage](), 0
    begun = 0
    while len(found) < MAX_STATEMENTS:
        request = ledger_pb2.ListUsageRequest(model=model, after=after)
        node_id, page = await orchestrators.answered(LedgerServiceStub, "ListUsage", request, prefer=reporter)
        if node_id != reporter:
            begun += 1
            if begun > MAX_HISTORIES:
                raise Unavailable("no orchestrator stays to tell its whole history", code="history_changed")
            moved = reporter is not None
            reporter, found, after = node_id, [], 0
            if moved:
                continue
        if not page.entries or page.entries[-1].number <= after:
            break
        after = page.entries[-1].number
        found += [(open_usage(entry.statement, network_id), entry.statement) for entry in page.entries]
    return found
