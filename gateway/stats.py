"""The network in figures, from what one orchestrator says: nodes by state, jobs by state, how many succeed, how fast the running ones learn. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydantic import BaseModel

from dcnr.v1 import membership_pb2, model_pb2, orchestrator_pb2

QUEUED: Final = frozenset({model_pb2.JOB_STATE_QUEUED, model_pb2.JOB_STATE_PLACING})
AT_WORK: Final = frozenset({model_pb2.JOB_STATE_RUNNING, model_pb2.JOB_STATE_PAUSED, model_pb2.JOB_STATE_SETTLING})
ENDED: Final = frozenset(
    {model_pb2.JOB_STATE_COMPLETED, model_pb2.JOB_STATE_FAILED, model_pb2.JOB_STATE_CANCELLED, model_pb2.JOB_STATE_EXPIRED}
)
SERVING_FIELDS: Final = tuple(field for field in orchestrator_pb2.ServingFigures.DESCRIPTOR.fields if field.name != "failed")
"""Single figures."""
PROXIED_FIELDS: Final = tuple(field.name for field in orchestrator_pb2.ProxyFigures.DESCRIPTOR.fields)


class Quantiles(BaseModel):
    """Of the newest requests that this gateway answered, streams of events left out."""

    count: int
    p50: float
    p95: float


class Training(BaseModel):
    """A job at work."""

    job_id: str
    model: str
    state: str
    num_batches: int
    num_learned: int
    """By the VNode that has learned least."""
    batches_per_s: float
    """Of the slowest VNode, all its replicas together; 0 where nobody knows."""
    eta_s: float
    """Estimate; 0: unknown."""


class Stats(BaseModel):
    """The network as one orchestrator sees it."""

    as_of_unix_ms: int
    reporter: str
    """Id of the orchestrator that says so."""
    network_id: str
    network_name: str
    num_orchestrators: int
    """Known to the reporter, itself included."""
    holder: str
    """Id of the orchestrator that decides; empty: none."""
    store_ok: bool
    store_reason: str
    nodes_by_state: dict[str, int]
    """PNodes only; states as in the contract."""
    num_attached: int
    """PNodes whose control stream ends at the reporter."""
    jobs_by_state: dict[str, int]
    queue_depth: int
    """Jobs that are accepted and not yet at work."""
    num_ended: int
    success_rate: float
    """Completed jobs among the ended ones; 0 where none has ended."""
    failure_rate: float
    """Failed and expired jobs among the ended ones."""
    training: list[Training]
    serving: dict[str, float]
    """What questions to the model came to at the reporter since its start, by their names in the contract (ServingFigures)."""
    questions_failed: dict[str, int]
    """Of these questions, the failed ones by error code."""
    proxied: dict[str, int]
    """Objects of the store that went through the reporter since its start, by their names in the contract (ProxyFigures)."""
    request_seconds: Quantiles


def stats_of(
    *, as_of_unix_ms: int, network_name: str, status: orchestrator_pb2.GetStatusResponse, nodes: Sequence[orchestrator_pb2.NodeView],
    jobs: Sequence[orchestrator_pb2.JobView], at_work: Sequence[orchestrator_pb2.JobView], seconds: Sequence[float],
) -> Stats:  # fmt: skip
    """``at_work``: the jobs at work, with their VNodes; ``seconds``: how long the newest requests took."""
    pnodes = [node for node in nodes if node.kind == membership_pb2.NODE_KIND_PNODE]
    states = Counter(job.state for job in jobs)
    ended = sum(states[state] for state in ENDED)
    bad = states[model_pb2.JOB_STATE_FAILED] + states[model_pb2.JOB_STATE_EXPIRED]
    return Stats(
        as_of_unix_ms=as_of_unix_ms,
        reporter=status.node_id,
        network_id=status.network_id,
        network_name=network_name,
        num_orchestrators=len(nodes) - len(pnodes),
        holder=status.holder_id,
        store_ok=status.store_ok,
        store_reason=status.store_reason,
        nodes_by_state=_counted(orchestrator_pb2.NodeState, Counter(node.state for node in pnodes)),
        num_attached=sum(node.attached for node in pnodes),
        jobs_by_state=_counted(model_pb2.JobState, states),
        queue_depth=sum(states[state] for state in QUEUED),
        num_ended=ended,
        success_rate=states[model_pb2.JOB_STATE_COMPLETED] / ended if ended else 0.0,
        failure_rate=bad / ended if ended else 0.0,
        training=[_training(job) for job in at_work],
        serving={field.name: getattr(status.serving, field.name) for field in SERVING_FIELDS},
        questions_failed=dict(status.serving.failed),
        proxied={name: getattr(status.proxied, name) for name in PROXIED_FIELDS},
        request_seconds=Quantiles(count=len(seconds), p50=quantile(seconds, 0.5), p95=quantile(seconds, 0.95)),
    )


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _counted(enum: Any, counted: Counter[Any]) -> dict[str, int]:
    return {value.name: counted[value.number] for value in enum.DESCRIPTOR.values if value.number}


def _training(job: orchestrator_pb2.JobView) -> Training:
    rates = [sum(replica.report.rate for replica in vnode.replicas) for vnode in job.vnodes]
    learned = [int(vnode.report.num_learned) for vnode in job.vnodes]
    return Training(
        job_id=job.job_id, model=job.model, state=model_pb2.JobState.Name(job.state), num_batches=job.num_batches,
        num_learned=min(learned, default=0), batches_per_s=min(rates, default=0.0), eta_s=job.eta_s,
    )  # fmt: skip
