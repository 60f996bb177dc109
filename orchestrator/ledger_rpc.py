"""`dcnr.v1.LedgerService`: what this orchestrator's history says, and signed quotes. A thin shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from dcnr.errors import InvalidInput
from dcnr.graph import graph_digest, graph_from_bytes, stages_of_graph
from dcnr.ids import check_name, check_node_id
from dcnr.rpc.guard import peer_of
from dcnr.v1 import identity_pb2, ledger_pb2, ledger_pb2_grpc
from orchestrator.access import Caller, caller_of
from orchestrator.questions import MAX_REDUNDANCY
from orchestrator.routing import Table
from orchestrator.runtime import Shared
from orchestrator.track import NodeScore, Percentiles, Work
from orchestrator.usage import QUOTE_LIFETIME_MS, Asked, Books, answered
from trust.envelope import seal

MAX_SCORES: Final = 2048
MAX_WORKS: Final = 64
MAX_EXPECTED: Final = 1024
MAX_USAGE: Final = 256
QUOTES_AT_ONCE: Final = 2


class LedgerServicer(ledger_pb2_grpc.LedgerServiceServicer):
    """``passes``: audits of a PNode that still count here."""

    def __init__(self, shared: Shared, books: Books, passes: Callable[[str], float]) -> None:
        self._shared, self._books, self._passes = shared, books, passes
        self._quotes = asyncio.Semaphore(QUOTES_AT_ONCE)

    async def ListScores(self, request: ledger_pb2.ListScoresRequest, context: Any) -> ledger_pb2.ListScoresResponse:
        """Scores, the best first."""
        del context
        wanted = check_node_id(request.pnode_id) if request.pnode_id else ""
        records = self._shared.records
        scores = [score_message(one) for one in records.scores(self._passes) if wanted in ("", one.pnode_id)]
        expected = [
            ledger_pb2.ExpectedWork(
                component=component, device_class=device_class, s_per_gflop=times_message(one.s_per_gflop),
                provisioning_s=times_message(one.provisioning_s),
            )
            for (component, device_class), one in list(records.expected().items())[:MAX_EXPECTED]
        ]  # fmt: skip
        return ledger_pb2.ListScoresResponse(reporter=self._shared.key.node_id, scores=scores[:MAX_SCORES], expected=expected)

    async def ListUsage(self, request: ledger_pb2.ListUsageRequest, context: Any) -> ledger_pb2.ListUsageResponse:
        """Statements, oldest first: of questions every client sees its own, maintainers and orchestrators all."""
        caller = self._caller(context)
        sees_all = caller.maintainer or caller.orchestrator
        reader = ("", "") if sees_all else (ledger_pb2.UsageKind.Name(ledger_pb2.USAGE_KIND_JOB), caller.node_id)
        model = check_name(request.model) if request.model else ""
        rows = await self._shared.history.usage(model, int(request.after), min(request.limit or MAX_USAGE, MAX_USAGE), reader)
        return ledger_pb2.ListUsageResponse(
            entries=[
                ledger_pb2.UsageEntry(number=number, statement=identity_pb2.Envelope.FromString(data)) for number, data in rows
            ]
        )

    async def QuoteCost(self, request: ledger_pb2.QuoteCostRequest, context: Any) -> ledger_pb2.QuoteCostResponse:
        """What the books would charge, signed. Raises InvalidInput."""
        del context
        shared, for_questions = self._shared, request.kind == ledger_pb2.USAGE_KIND_QUESTIONS
        if not 0 < (request.num_samples if for_questions else request.num_batches) < 1 << 48:
            raise InvalidInput("a job has at least one batch, a question at least one sample", code="bad_request")
        if request.redundancy > MAX_REDUNDANCY:
            raise InvalidInput(f"at most {MAX_REDUNDANCY} ways are compared", code="bad_redundancy")
        async with self._quotes:
            graph = graph_from_bytes(request.graph)
            stages = await asyncio.to_thread(stages_of_graph, graph, shared.registry)
        if for_questions:
            num_vnodes = len(Table("", tuple(stages), {}).requires(request.exit or stages[-1].id))
            asked = Asked(graph.name, 0, num_vnodes, int(request.num_samples) * max(1, int(request.redundancy)))
        else:
            asked = Asked(graph.name, int(request.num_batches), len(stages))
        cost = await answered(self._books.quote_cost(asked))
        now = int(shared.clock.wall() * 1000)
        quote = ledger_pb2.CostQuote(
            network_id=shared.policy.network_id, model=asked.model, graph_digest=graph_digest(graph), num_batches=asked.num_batches,
            num_vnodes=asked.num_vnodes, vnode_batches=0 if for_questions else cost, orchestrator=shared.key.node_id,
            issued_unix_ms=now, expires_unix_ms=now + QUOTE_LIFETIME_MS, kind=request.kind, num_samples=asked.num_samples,
            vnode_samples=cost if for_questions else 0,
        )  # fmt: skip
        return ledger_pb2.QuoteCostResponse(quote=seal(identity_pb2.DOMAIN_QUOTE, quote, shared.key))

    def _caller(self, context: Any) -> Caller:
        peer, shared = peer_of(context), self._shared
        return caller_of(shared.policy, peer.node_id, peer.pnode_id, lambda node_id: node_id in shared.inventory.nodes())


def score_message(one: NodeScore) -> ledger_pb2.PNodeScore:
    """As it travels."""
    return ledger_pb2.PNodeScore(
        pnode_id=one.pnode_id, score=one.score.shown, credibility=one.score.credibility, reliability=one.score.reliability,
        passes=one.score.passes, num_results=one.num_results, num_on_time=one.num_on_time,
        works=[_work_message(work) for work in one.works[:MAX_WORKS]],
    )  # fmt: skip


def times_message(times: Percentiles | None) -> ledger_pb2.Times | None:
    """As it travels; None where nothing was timed."""
    return ledger_pb2.Times(p50=times.p50, p95=times.p95, num=times.num) if times is not None else None


def _work_message(work: Work) -> ledger_pb2.WorkRecord:
    return ledger_pb2.WorkRecord(
        component=work.component, device_class=work.device_class, num_results=work.num_results, num_on_time=work.num_on_time,
        provisioning_s=times_message(work.provisioning_s), step_s=times_message(work.step_s), s_per_gflop=times_message(work.s_per_gflop),
    )  # fmt: skip
