"""Who used what, and what it would cost: the port behind which an accounting system may stand, and the one that is there, which writes into the history.

The unit of a job is a batch of one VNode that was cleared (durable, where audits are not in force), that of questions a sample computed by one VNode. No
money: a community that wants to settle accounts gives its own `Books`. It gets statements as they were signed, over the envelope's bytes, and has to believe
nobody about them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from dcnr.errors import TimedOut
from dcnr.v1 import identity_pb2, ledger_pb2, model_pb2
from orchestrator.history import History
from orchestrator.jobs import intervals
from trust.envelope import open_envelope
from trust.folding import AUDITS_DRAWN
from trust.usage import open_usage

T = TypeVar("T")
QUOTE_LIFETIME_MS: Final = 600_000
ANSWER_S: Final = 10.0
"""Books that take longer are taken for books that are away."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A job that somebody thinks of submitting: so many batches; or questions: so many samples, each counted as often as ways have to agree."""

    model: str
    num_batches: int
    num_vnodes: int
    """With weights; of questions those that lead to the exit."""
    num_samples: int = 0


class Books(Protocol):
    """What an orchestrator tells an accounting system, and asks of it. Neither call holds up a decision."""

    async def record_usage(self, statement: identity_pb2.Envelope) -> None:
        """A signed `UsageStatement`. It may come again: the same kind, model and subject are the same usage. Raises DcnrError to have it repeated."""

    async def quote_cost(self, asked: Asked) -> int:
        """Batches of VNodes that a job, or samples of VNodes that questions, would be charged."""


async def answered(question: Awaitable[T]) -> T:
    """What books answer. Raises TimedOut after `ANSWER_S`, and what they raise."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await question
    except TimeoutError:
        raise TimedOut("the books do not answer") from None


class HistoryBooks:
    """Writes statements into the orchestrator's own history, and quotes what has to be cleared."""

    def __init__(self, history: History, network_id: str) -> None:
        self._history, self._network_id = history, network_id

    async def record_usage(self, statement: identity_pb2.Envelope) -> None:
        """Kept with the history, and lost with it; of jobs it is made again, of questions never. Raises Corrupt for one that does not hold."""
        said = open_usage(statement, self._network_id)
        self._history.used(
            said.model, ledger_pb2.UsageKind.Name(said.kind), said.subject, statement.SerializeToString(deterministic=True)
        )

    async def quote_cost(self, asked: Asked) -> int:
        """Each VNode with weights learns each batch once, or computes each sample."""
        return (asked.num_batches + asked.num_samples) * asked.num_vnodes


def job_usage(
    outcome: model_pb2.Outcome, request: identity_pb2.Envelope, manifest: model_pb2.Manifest | None, *, network_id: str, model: str,
    orchestrator: str, issued_unix_ms: int,
) -> ledger_pb2.UsageStatement:  # fmt: skip
    """What a job used, from its documents alone. ``manifest``: the one that its outcome names. Raises Corrupt."""
    audited = manifest is not None and manifest.audits == AUDITS_DRAWN
    vnodes = [
        ledger_pb2.VNodeUsage(vnode=entry.vnode, batches=len(intervals(found.lineage)))
        for entry in (manifest.entries if manifest is not None else ())
        for found in _counted(entry, audited=audited)
        if found.job_id == outcome.job_id
    ]
    vnodes.sort(key=lambda one: one.vnode)
    return ledger_pb2.UsageStatement(
        network_id=network_id, model=model, kind=ledger_pb2.USAGE_KIND_JOB, subject=outcome.job_id, users=_signers(request),
        orchestrator=orchestrator, vnode_batches=sum(one.batches for one in vnodes), vnodes=vnodes, manifest_digest=outcome.manifest_digest,
        outcome=model_pb2.JobState.Name(outcome.state).removeprefix("JOB_STATE_").lower(), cleared=audited, issued_unix_ms=issued_unix_ms,
    )  # fmt: skip


def _counted(entry: model_pb2.ManifestEntry, *, audited: bool) -> Iterable[model_pb2.Checkpoint]:
    if audited:
        return [entry.cleared] if entry.cleared.digest else []
    return entry.working[:1]


def _signers(request: identity_pb2.Envelope) -> list[str]:
    opened = open_envelope(request, identity_pb2.DOMAIN_JOB_REQUEST)
    return sorted({signer.node_id for signer in opened.signers})
