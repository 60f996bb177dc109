"""Keeps the worker informed of where its neighbours live: from adverts known by gossip, then the orchestrators, then the DHT.

No training step waits for this: the worker dials the address it has and reports a neighbour that does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dcnr.client import Orchestrators
from dcnr.errors import DcnrError
from dcnr.ids import NodeId
from dcnr.ports import Clock
from dcnr.v1 import local_pb2, model_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from membership.node import Membership
from pnode.placing import Say
from trust.delegation import VerifiedDelegation
from trust.records import open_advert

SEARCH_FIRST_S = 0.2
SEARCH_LONGEST_S = 5.0


@dataclass(slots=True)
class _Lost:
    replica: str
    broken: bool
    since_s: float


class Neighbours:
    """Addresses of predecessors, and evidence about those that are lost."""

    def __init__(
        self, *, membership: Membership, orchestrators: Orchestrators, network_id: str, wanted: Callable[[], list[tuple[str, model_pb2.Neighbour]]],
        send: Callable[[local_pb2.ToWorker], Awaitable[bool]], clock: Clock, say: Say, group: asyncio.TaskGroup,
    ) -> None:  # fmt: skip
        self._membership, self._orchestrators, self._network_id = membership, orchestrators, network_id
        self._wanted, self._send, self._clock, self._say, self._group = wanted, send, clock, say, group
        self._told: dict[tuple[str, str], tuple[int, float]] = {}
        """By replica and PNode: the incarnation of the delegation that the worker has, and its end. One incarnation has later ones with other addresses."""
        self._lost: dict[str, _Lost] = {}
        self._searching: dict[str, asyncio.Task[None]] = {}

    async def refresh(self) -> None:
        """Tells the worker what is new; called after every change of plan or membership."""
        wanted = {(item.replica, item.pnode_id) for _, item in self._wanted()}
        for key in [key for key in self._told if key not in wanted]:
            del self._told[key]
        for replica, pnode_id in sorted(wanted):
            found = self._membership.find(NodeId(pnode_id))
            if found is not None and found.delegation is not None:
                await self._tell(replica, found.delegation)
            else:
                self._search(replica, pnode_id)
        for pnode_id in [pnode_id for pnode_id in self._lost if pnode_id not in {item[1] for item in wanted}]:
            del self._lost[pnode_id]

    def worker_up(self) -> None:
        """A new worker knows nobody."""
        self._told.clear()
        self._lost.clear()

    def lost(self, message: local_pb2.NeighbourLost) -> None:
        """The worker cannot reach a neighbour at the address it has."""
        known = self._lost.get(message.pnode_id)
        self._lost[message.pnode_id] = _Lost(message.replica, message.broken, known.since_s if known else self._clock.monotonic())
        self._search(message.replica, message.pnode_id)

    def evidence(self) -> list[orchestrator_pb2.LinkEvidence]:
        """For beats; at most 32."""
        now = self._clock.monotonic()
        return [
            orchestrator_pb2.LinkEvidence(replica=item.replica, pnode_id=pnode_id, broken=item.broken, since_s=now - item.since_s)
            for pnode_id, item in sorted(self._lost.items())
        ][:32]

    def reached(self, still_lost: set[str]) -> None:
        """The worker's newest list of PNodes in trouble: all others answer again."""
        for pnode_id in [pnode_id for pnode_id in self._lost if pnode_id not in still_lost]:
            del self._lost[pnode_id]

    def stop(self) -> None:
        """Ends all searches."""
        for task in self._searching.values():
            task.cancel()

    async def _tell(self, replica: str, worker: VerifiedDelegation) -> bool:
        if self._told.get((replica, worker.pnode_id)) == _order_of(worker):
            return False
        address = local_pb2.NeighbourAddress(replica=replica, pnode_id=worker.pnode_id, delegation=worker.envelope)
        if await self._send(local_pb2.ToWorker(neighbour=address)):
            self._told[(replica, worker.pnode_id)] = _order_of(worker)
            return True
        return False

    def _search(self, replica: str, pnode_id: str) -> None:
        task = self._searching.get(pnode_id)
        if task is None or task.done():
            self._searching[pnode_id] = self._group.create_task(self._searching_for(replica, pnode_id))

    async def _searching_for(self, replica: str, pnode_id: str) -> None:
        """Looks for a newer advert until the neighbour is reached or not wanted any more; bounded pauses."""
        pause_s = SEARCH_FIRST_S
        while model := next((model for model, item in self._wanted() if item.pnode_id == pnode_id), None):
            before = self._told.get((replica, pnode_id))
            for source, look in (("an orchestrator", self._ask), ("the DHT", self._locate)):
                try:
                    found = await look(model, replica, NodeId(pnode_id))
                except DcnrError:
                    continue
                if found is None or found.pnode_id != pnode_id or _order_of(found) <= self._told.get((replica, pnode_id), (0, 0.0)):
                    continue
                if await self._tell(replica, found):
                    self._say("neighbour_found", replica, f"{pnode_id[:8]} by {source}, incarnation {found.incarnation}")
                    return
            if pnode_id not in self._lost and before is not None:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(SEARCH_LONGEST_S, pause_s * 2)

    async def _ask(self, model: str, replica: str, node_id: NodeId) -> VerifiedDelegation | None:
        answer = await self._orchestrators.call(
            OrchestratorServiceStub, "Resolve", orchestrator_pb2.ResolveRequest(node_id=node_id), timeout_s=2.0
        )
        if not answer.HasField("advert"):
            return None
        advert = open_advert(answer.advert, network_id=self._network_id, now_wall=self._membership.network_time())
        return advert.delegation if advert.node_id == node_id else None

    async def _locate(self, model: str, replica: str, node_id: NodeId) -> VerifiedDelegation | None:
        location = await self._membership.locate(model, replica, node_id)
        if location is not None:
            return location.delegation
        advert = await self._membership.resolve(node_id)
        return advert.delegation if advert is not None else None


def _order_of(worker: VerifiedDelegation) -> tuple[int, float]:
    """Later delegations of a PNode have a higher one."""
    return worker.incarnation, worker.expires_wall
