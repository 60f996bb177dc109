"""What questions would cost, as an orchestrator signs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcnr.v1 import ledger_pb2
from dcnr.v1.ledger_pb2_grpc import LedgerServiceStub
from trust.usage import open_quote

if TYPE_CHECKING:
    from dcnr.sdk.client import AsyncClient


async def quote_questions(
    client: AsyncClient, model: str, num_samples: int, *, exit_: str = "", redundancy: int = 1
) -> ledger_pb2.CostQuote:
    """The most that so many samples cost at that exit (empty: the deepest); a text has one sample per token at most.

    Raises InvalidInput (``bad_request``, ``bad_redundancy``, ``no_such_exit``), NotFound, Corrupt, Unavailable.
    """
    request = ledger_pb2.QuoteCostRequest(
        graph=(await client.model(model)).graph, kind=ledger_pb2.USAGE_KIND_QUESTIONS, num_samples=num_samples, exit=exit_,
        redundancy=redundancy,
    )  # fmt: skip
    answer = await client.orchestrators.call(LedgerServiceStub, "QuoteCost", request)
    return open_quote(answer.quote, client.policy.network_id)
