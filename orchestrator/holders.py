"""Questions that another orchestrator has to answer: passed on over one connection to each, which is kept while it works."""

from __future__ import annotations

from collections.abc import Callable

from dcnr import tracing
from dcnr.client import Orchestrators
from dcnr.errors import Unavailable
from dcnr.ids import check_node_id
from dcnr.rpc.dialer import Dialer
from dcnr.v1 import orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from trust.records import VerifiedAdvert


class Holders:
    """``find``: the newest advert of a node."""

    def __init__(self, dialer: Dialer, find: Callable[[str], VerifiedAdvert | None]) -> None:
        self._find = find
        self._connections = Orchestrators(dialer, tuple)

    async def ask(
        self, node_id: str, request: orchestrator_pb2.ForwardRequest, timeout_s: float
    ) -> orchestrator_pb2.ForwardResponse:
        """That orchestrator's answer. Raises its typed error, Unavailable where it cannot be reached."""
        found = self._find(node_id)
        if found is None or not found.is_orchestrator:
            raise Unavailable("the orchestrator that decides is not known here", code="no_orchestrator")
        connection = await self._connections.connection(check_node_id(node_id), list(found.advert.control_addresses))
        request.traceparent = tracing.current()
        stub = OrchestratorServiceStub(connection.channel)
        return await connection.call(stub.Forward, request, timeout_s=timeout_s)

    async def close(self) -> None:
        """Closes all connections."""
        await self._connections.close()
