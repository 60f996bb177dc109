"""The orchestrators of the control world as the real `pnode.headcheck.HeadCheck` asks them to confirm a head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dcnr.ids import NodeId
from dcnr.v1 import orchestrator_pb2

if TYPE_CHECKING:
    from simulation.control_pnode import PNodeShell


class _Dialled:
    """What is needed of an orchestrator's connection."""

    def __init__(self, pnode: PNodeShell, orchestrator: NodeId) -> None:
        self._pnode, self._orchestrator = pnode, orchestrator
        self.channel: Any = _Channel()

    async def call(self, method: str, request: Any, *, timeout_s: float) -> Any:
        """ConfirmHead."""
        data = await self._pnode.world.ask_orchestrator(
            self._pnode.process, self._orchestrator, "confirm_head", request.SerializeToString(), timeout_s
        )
        return orchestrator_pb2.ConfirmHeadResponse.FromString(data)


class _Channel:
    """Gives a stub the names of its methods."""

    def __getattr__(self, _kind: str) -> Any:
        return lambda path, **_codecs: path


class KnownOrchestrators:
    """What is needed of `dcnr.client.Orchestrators`."""

    def __init__(self, pnode: PNodeShell) -> None:
        self._pnode = pnode

    def known(self) -> list[tuple[NodeId, tuple[str, ...]]]:
        """All listed ones, in this PNode's own order."""
        return [(node_id, ("127.0.0.1:1",)) for node_id in self._pnode.orchestrators()]

    async def connection(self, node_id: NodeId, _addresses: object) -> _Dialled:
        """A connection; calls find out whether it works."""
        return _Dialled(self._pnode, node_id)
