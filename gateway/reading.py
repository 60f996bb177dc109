"""The routes that only read: nodes, jobs, the model, reasons, figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Response

from dcnr.errors import InvalidInput
from dcnr.graph import graph_from_bytes
from dcnr.ids import check_name, check_node_id
from dcnr.ledger_check import Account, JobLedger
from dcnr.v1 import common_pb2, membership_pb2, model_pb2, orchestrator_pb2
from gateway.context import Context, answer
from gateway.errors import RestError
from gateway.paging import page
from gateway.schema import JSON, array, holds, message, one_of
from gateway.shapes import shown
from gateway.stats import AT_WORK, Stats, stats_of

MAX_AT_WORK: Final = 4
MAX_AUDITS: Final = 30
"""Of one node that are shown."""
MAX_BATCH: Final = 2**63 - 1
NodeId = Annotated[str, Path(pattern="^[0-9a-f]{40}$", description="Id of a node.")]
JobId = Annotated[str, Path(pattern="^[a-z0-9][a-z0-9_-]{0,62}$", description="Id of a job.")]
Model = Annotated[str, Query(pattern="^([a-z0-9][a-z0-9_-]{0,62})?$", description="Name of the model; empty: the only one.")]
Cursor = Annotated[str, Query(max_length=200, description="next_cursor of the page before; empty: the first page.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Rows in the page.")]
_TEXT, _COUNT = {"type": "string"}, {"type": "integer"}
PAGE: Final = {"next_cursor": _TEXT}
CURVE: Final = holds(
    vnode=_TEXT, num_learned=_COUNT, loss={"type": "number"}, batches_per_s={"type": "number"}, curve=array(message("ExitResult"))
)
MODEL: Final = holds(head=message("Head"), graph=one_of(message("ModelGraph"), {"type": "null"}), manifest_digest=_TEXT)
EXPLANATIONS: Final = array(message("Explanation"))
NODE: Final = holds(node=message("NodeView"), explanations=EXPLANATIONS)
JOBS: Final = holds(jobs=array(message("JobView")), num_jobs=_COUNT, **PAGE)
ACCOUNT: Final = holds(
    pnode=_TEXT, cleared=_COUNT, waiting=_COUNT, taken_back=_COUNT, passed=_COUNT, failed=_COUNT, passes={"type": "number"},
    credibility={"type": "number"},
)  # fmt: skip
LEDGER: Final = holds(manifest_digest=_TEXT, audited={"type": "boolean"}, problem=_TEXT, accounts=array(ACCOUNT))
AUDIT: Final = holds(
    job=_TEXT, interval=_TEXT, vnode=_TEXT, batches=_COUNT, verdict=_TEXT, decided_s={"type": "number"}, evidence=_TEXT
)
AUDITS: Final = holds(manifest_digest=_TEXT, audited={"type": "boolean"}, audits=array(AUDIT))
RECEIPT: Final = holds(format=_TEXT, pnode_id=_TEXT, model=_TEXT, network=array(_TEXT), request=_TEXT, manifests=array(_TEXT))
PLACEMENT: Final = holds(plan_digest=_TEXT, plan=message("Plan"))
MANIFEST: Final = holds(manifest_digest=_TEXT, manifest=message("Manifest"))
CURVES: Final = holds(job_id=_TEXT, state=_TEXT, num_batches=_COUNT, vnodes=array(CURVE))
SHOWN_MESSAGES: Final = (
    orchestrator_pb2.NodeView.DESCRIPTOR, orchestrator_pb2.JobView.DESCRIPTOR, orchestrator_pb2.Explanation.DESCRIPTOR,
    common_pb2.Event.DESCRIPTOR, model_pb2.Head.DESCRIPTOR, model_pb2.Plan.DESCRIPTOR, model_pb2.Manifest.DESCRIPTOR,
    model_pb2.ModelGraph.DESCRIPTOR, model_pb2.ExitResult.DESCRIPTOR,
)  # fmt: skip


def _named(enum: Any, what: str) -> Any:
    """A query parameter that is a name of that enum."""
    names = [value.name for value in enum.DESCRIPTOR.values]
    return Query(pattern=f"^({'|'.join(names)})$", json_schema_extra={"enum": names}, description=what)


States = Annotated[str | None, _named(orchestrator_pb2.NodeState, "Only nodes in this state.")]
Kinds = Annotated[str | None, _named(membership_pb2.NodeKind, "Only nodes of this kind.")]
JobStates = Annotated[str | None, _named(model_pb2.JobState, "Only jobs in this state.")]


def routes(context: Context) -> APIRouter:
    """The routes over one network."""
    router = APIRouter()
    _nodes(router, context)
    _jobs(router, context)
    _model(router, context)
    _figures(router, context)
    return router


async def read_stats(context: Context) -> Stats:
    """The network in figures, from one orchestrator's answers. Raises Unavailable."""
    views = context.views
    status, nodes, jobs = await views.status(), await views.nodes(), await views.jobs()
    busy = [await views.job(job.job_id, job.model) for job in jobs if job.state in AT_WORK][:MAX_AT_WORK]
    return stats_of(
        as_of_unix_ms=int(context.clock.wall() * 1000), network_name=views.policy.document.name, status=status, nodes=nodes, jobs=jobs,
        at_work=busy, seconds=tuple(context.seconds),
    )  # fmt: skip


def _nodes(router: APIRouter, context: Context) -> None:
    views = context.views

    @router.get(
        "/v1/nodes", summary="Nodes, by id", responses=JSON(holds(nodes=array(message("NodeView")), num_nodes=_COUNT, **PAGE))
    )
    async def list_nodes(
        state: States = None,
        kind: Kinds = None,
        cursor: Cursor = "", limit: Limit = 100,
    ) -> Response:  # fmt: skip
        rows = [
            node
            for node in await views.nodes()
            if (state is None or node.state == orchestrator_pb2.NodeState.Value(state))
            and (kind is None or node.kind == membership_pb2.NodeKind.Value(kind))
        ]
        taken, following = page(rows, lambda node: node.node_id, cursor=cursor, limit=limit, by_name=True)
        return answer({"nodes": [shown(node) for node in taken], "num_nodes": len(rows), "next_cursor": following})

    @router.get("/v1/nodes/{node_id}", summary="A node, and why it is in its state", responses=JSON(NODE))
    async def get_node(node_id: NodeId) -> Response:
        found = next((node for node in await views.nodes() if node.node_id == node_id), None)
        if found is None:
            raise RestError("NODE_NOT_FOUND", f"no node {node_id} is known")
        lines = await views.explain(orchestrator_pb2.ExplainRequest(node_id=node_id))
        return answer({"node": shown(found), "explanations": [shown(line) for line in lines]})

    @router.get(
        "/v1/nodes/{node_id}/audits",
        summary="What became of a node's newest work, by the chain of manifests",
        responses=JSON(AUDITS),
    )
    async def get_audits(node_id: NodeId, model: Model = "") -> Response:
        digest, ledgers, _ = await views.ledger(model)
        return answer({"manifest_digest": digest, "audited": bool(ledgers), "audits": audit_rows(ledgers, node_id)})


def _jobs(router: APIRouter, context: Context) -> None:
    views = context.views

    @router.get("/v1/jobs", summary="Jobs, newest first, without their VNodes", responses=JSON(JOBS))
    async def list_jobs(
        model: Model = "", state: JobStates = None,
        cursor: Cursor = "", limit: Limit = 100,
    ) -> Response:  # fmt: skip
        rows = [job for job in await views.jobs(model) if state is None or job.state == model_pb2.JobState.Value(state)]
        taken, following = page(rows, lambda job: job.job_id, cursor=cursor, limit=limit, by_name=False)
        return answer({"jobs": [shown(job) for job in taken], "num_jobs": len(rows), "next_cursor": following})

    @router.get("/v1/jobs/{job_id}", summary="Where a job stands, VNode by VNode", responses=JSON(message("JobView")))
    async def get_job(job_id: JobId) -> Response:
        return answer(shown(await views.job(job_id)))


def _model(router: APIRouter, context: Context) -> None:
    views = context.views

    @router.get("/v1/model", summary="The model: its head and its graph", responses=JSON(MODEL))
    async def get_model(model: Model = "") -> Response:
        found = await views.model(model)
        graph = shown(graph_from_bytes(found.graph)) if found.graph else None
        return answer({"head": shown(await views.head(model)), "graph": graph, "manifest_digest": found.manifest_digest})

    @router.get("/v1/model/placement", summary="Which replica is where, and why", responses=JSON(PLACEMENT))
    async def get_placement(model: Model = "") -> Response:
        digest, plan = await views.plan(model)
        return answer({"plan_digest": digest, "plan": shown(plan)})

    @router.get(
        "/v1/model/checkpoints",
        summary="The manifest under the head: checkpoints, contributions, what was taken back",
        responses=JSON(MANIFEST),
    )
    async def get_checkpoints(model: Model = "") -> Response:
        digest, manifest = await views.manifest(model)
        return answer({"manifest_digest": digest, "manifest": shown(manifest)})

    @router.get(
        "/v1/model/metrics",
        summary="Curves of a job: evaluations per exit, training loss and rate per VNode",
        responses=JSON(CURVES),
    )
    async def get_metrics(
        model: Model = "",
        job_id: Annotated[str, Query(pattern="^([a-z0-9][a-z0-9_-]{0,62})?$", description="Which job; empty: the newest.")] = "",
    ) -> Response:
        if not job_id:
            jobs = await views.jobs(model)
            if not jobs:
                raise RestError("JOB_NOT_FOUND", "there is no job yet")
            job_id = jobs[0].job_id
        return answer(curves_of(await views.job(job_id)))


def _figures(router: APIRouter, context: Context) -> None:
    views = context.views

    @router.get(
        "/v1/explain",
        summary="Why: a VNode's place, a node's state, a batch that is missing",
        responses=JSON(holds(explanations=EXPLANATIONS)),
    )
    async def explain(
        model: Model = "",
        vnode: Annotated[str, Query(max_length=63, description="A VNode: its placement, and what it waits for.")] = "",
        node_id: Annotated[str, Query(max_length=40, description="Or a node: its state.")] = "",
        batch: Annotated[int | None, Query(ge=0, le=MAX_BATCH, description="Or a batch: who needs it, from whom, since when.")] = None,
    ) -> Response:  # fmt: skip
        if node_id and (vnode or batch is not None):
            raise InvalidInput("name a node, or a VNode or batch of a model", code="ambiguous_question")
        request = orchestrator_pb2.ExplainRequest(
            model=check_name(model) if model else "", vnode=check_name(vnode) if vnode else "",
            node_id=check_node_id(node_id) if node_id else "", batch=batch or 0, with_batch=batch is not None,
        )  # fmt: skip
        return answer({"explanations": [shown(line) for line in await views.explain(request)]})

    @router.get("/v1/ledger", summary="Who is credited with what, by the chain of manifests", responses=JSON(LEDGER))
    async def get_ledger(model: Model = "") -> Response:
        digest, ledgers, accounts = await views.ledger(model)
        problem = next((one.problem for one in ledgers if one.problem), "")
        rows = [account_row(one) for one in accounts]
        return answer({"manifest_digest": digest, "audited": bool(ledgers), "problem": problem, "accounts": rows})

    @router.get(
        "/v1/ledger/receipts/{node_id}",
        summary="What a PNode is credited with in the newest job, as a file that proves it",
        responses=JSON(RECEIPT),
    )
    async def get_receipt(node_id: NodeId, model: Model = "") -> Response:
        data = await views.receipt(node_id, model)
        name = f"receipt-{node_id[:10]}.json"
        return Response(data, media_type="application/json", headers={"Content-Disposition": f'attachment; filename="{name}"'})

    @router.get("/v1/stats", summary="The network in figures", responses={200: {"model": Stats}})
    async def get_stats() -> Response:
        stats = await read_stats(context)
        return Response(stats.model_dump_json(), media_type="application/json")

    @router.get(
        "/v1/log", summary="The newest events, oldest first", responses=JSON(holds(reporter=_TEXT, events=array(message("Event"))))
    )
    async def get_log() -> Response:
        status = await views.status()
        return answer({"reporter": status.node_id, "events": [shown(event) for event in status.events]})


def audit_rows(ledgers: Sequence[JobLedger], node_id: str, most: int = MAX_AUDITS) -> list[dict[str, Any]]:
    """What is known now of a node's intervals, each once, the newest verdict first; ``batches`` are how many."""
    rows: dict[str, dict[str, Any]] = {}
    for ledger in ledgers:
        for one in ledger.chronicle.told:
            if one.pnode_id == node_id:
                known = ledger.chronicle.ledger.intervals[one.interval]
                rows.pop(one.interval, None)
                rows[one.interval] = {
                    "job": ledger.job_id, "interval": one.interval, "vnode": known.vnode, "batches": len(known.batches),
                    "verdict": one.verdict.value, "decided_s": one.decided_s, "evidence": one.evidence,
                }  # fmt: skip
    return list(rows.values())[-most:][::-1]


def account_row(one: Account) -> dict[str, Any]:
    """One PNode in the ledger: what ``dcnr ledger scores --json`` has of it from the chain; counts are batches."""
    return {
        "pnode": one.pnode_id, "cleared": one.cleared, "waiting": one.waiting, "taken_back": one.taken_back, "passed": one.num_passed,
        "failed": one.num_failed, "passes": one.passes, "credibility": one.credibility,
    }  # fmt: skip


def curves_of(job: orchestrator_pb2.JobView) -> dict[str, Any]:
    """The curves of a job: what its exits scored by round, and how its VNodes stand."""
    rows = [
        {
            "vnode": vnode.vnode, "num_learned": int(vnode.report.num_learned), "loss": vnode.report.loss if math.isfinite(vnode.report.loss) else 0.0,
            "batches_per_s": sum(replica.report.rate for replica in vnode.replicas), "curve": [shown(result) for result in vnode.curve],
        }
        for vnode in job.vnodes
    ]  # fmt: skip
    return {
        "job_id": job.job_id, "state": model_pb2.JobState.Name(job.state), "num_batches": int(job.num_batches), "vnodes": rows,
    }  # fmt: skip
