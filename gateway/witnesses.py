"""What every orchestrator says of itself, side by side: who answers, and whether they differ over who decides."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter, Response

from dcnr.client import Orchestrators
from dcnr.errors import DcnrError
from dcnr.ids import NodeId
from dcnr.v1 import membership_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from gateway.context import Context, answer
from gateway.schema import JSON, array, holds
from gateway.shapes import Json
from gateway.views import Fresh, Views

MAX_ASKED: Final = 16
ASK_TIMEOUT_S: Final = 3.0
"""For the answer; a connection that is not there yet has a limit of its own."""
FRESH_S: Final = 5.0
_TEXT: Final[Json] = {"type": "string"}
WITNESS: Final = holds(
    node_id=_TEXT, answers={"type": "boolean"}, reason=_TEXT, holder=_TEXT, epoch={"type": "integer"}, store_ok={"type": "boolean"},
    num_attached={"type": "integer"}, software=_TEXT,
)  # fmt: skip


def routes(context: Context) -> APIRouter:
    """The route over one network."""
    router = APIRouter()
    fresh = Fresh(context.clock)

    @router.get(
        "/v1/orchestrators", summary="What each orchestrator says of itself", responses=JSON(holds(orchestrators=array(WITNESS)))
    )
    async def list_orchestrators() -> Response:
        rows = await fresh.get("all", lambda: ask_all(context.views), FRESH_S)
        return answer({"orchestrators": rows})

    return router


async def ask_all(views: Views) -> list[Json]:
    """A row for each orchestrator of the network that is in sight, by id; at most `MAX_ASKED`. Raises Unavailable where nobody tells who is in sight."""
    found = [
        node
        for node in await views.nodes()
        if node.kind == membership_pb2.NODE_KIND_ORCHESTRATOR
        and node.address
        and views.policy.is_orchestrator(NodeId(node.node_id))
    ]
    return list(await asyncio.gather(*(ask_one(views.orchestrators, node) for node in found[:MAX_ASKED])))


async def ask_one(orchestrators: Orchestrators, node: orchestrator_pb2.NodeView) -> Json:
    """What it says, or why there is nothing."""
    try:
        connection = await orchestrators.connection(NodeId(node.node_id), (node.address,))
        stub = OrchestratorServiceStub(connection.channel)
        status = await connection.call(stub.GetStatus, orchestrator_pb2.GetStatusRequest(), timeout_s=ASK_TIMEOUT_S)
    except DcnrError as error:
        return _row(node, orchestrator_pb2.GetStatusResponse(), error.message)
    return _row(node, status, "")


def _row(node: orchestrator_pb2.NodeView, status: orchestrator_pb2.GetStatusResponse, reason: str) -> Json:
    return {
        "node_id": node.node_id, "answers": not reason, "reason": reason, "holder": status.holder_id, "epoch": int(status.epoch),
        "store_ok": status.store_ok, "num_attached": int(status.attached), "software": status.software or node.software,
    }  # fmt: skip
