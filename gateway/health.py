"""The routes of who runs the gateway: alive, ready, version, metrics, description."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from dcnr import __version__
from dcnr.errors import DcnrError, Unavailable
from gateway.context import Context, answer
from gateway.reading import read_stats
from gateway.schema import JSON, holds
from gateway.shapes import Json

_TEXT = {"type": "string"}


def routes(context: Context, description: Callable[[], Json]) -> APIRouter:
    """``description``: the OpenAPI document."""
    router = APIRouter()

    @router.get("/healthz", summary="The process answers", responses=JSON(holds(status=_TEXT)))
    async def alive() -> Response:
        return answer({"status": "ok"})

    @router.get(
        "/readyz", summary="An orchestrator answers, and its store", responses=JSON(holds(status=_TEXT, orchestrator=_TEXT))
    )
    async def ready() -> Response:
        status = await context.views.status()
        if not status.store_ok:
            raise Unavailable(f"the store is away: {status.store_reason}", code="store_away", remedy="wait, or look at the store")
        return answer({"status": "ready", "orchestrator": status.node_id})

    @router.get("/version", summary="Versions", responses=JSON(holds(version=_TEXT, network_id=_TEXT, network_name=_TEXT)))
    async def version() -> Response:
        policy = context.views.policy
        return answer({"version": __version__, "network_id": policy.network_id, "network_name": policy.document.name})

    @router.get("/metrics", summary="Metrics for Prometheus", responses={200: {"content": {"text/plain": {"schema": _TEXT}}}})
    async def metrics() -> Response:
        try:
            stats = await read_stats(context)
        except DcnrError:
            stats = None
        return Response(context.metrics.rendered(stats), media_type=CONTENT_TYPE_LATEST)

    @router.get("/openapi.json", summary="This description", responses=JSON({"type": "object"}))
    async def openapi() -> Response:
        return answer(description())

    return router
