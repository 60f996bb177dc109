"""Who can answer now, by version: what PNodes report in their beats, held against the manifests that were read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dcnr.errors import DcnrError
from dcnr.v1 import identity_pb2, orchestrator_pb2
from orchestrator.routing import Candidate, Table
from orchestrator.runtime import ModelRuntime
from orchestrator.serving import may_serve
from orchestrator.silence import NodeRecord
from orchestrator.trying import bounded_s
from orchestrator.versions import Version
from trust.delegation import VerifiedDelegation, open_delegation

MAX_WORKERS: Final = 16_384

FindWorker = Callable[[str], VerifiedDelegation | None]
"""A PNode's worker by its advert."""


class Workers:
    """Delegations as PNodes report them, each verified once."""

    def __init__(self, network_id: str, wall: Callable[[], float], find: FindWorker) -> None:
        self._network_id, self._wall, self._find = network_id, wall, find
        self._known: dict[str, tuple[bytes, VerifiedDelegation | None]] = {}

    def of(self, record: NodeRecord) -> VerifiedDelegation | None:
        """The worker of a PNode, from its seats or its advert; None where nothing valid is known."""
        for seat in record.beat.seats:
            if seat.HasField("delegation"):
                return self._verified(record.node_id, seat.delegation)
        return self._find(record.node_id)

    def _verified(self, node_id: str, envelope: identity_pb2.Envelope) -> VerifiedDelegation | None:
        known = self._known.get(node_id)
        if known is None or known[0] != envelope.payload or (known[1] is not None and known[1].expires_wall <= self._wall()):
            if len(self._known) >= MAX_WORKERS:
                self._known.clear()
            known = self._known[node_id] = (envelope.payload, self._open(node_id, envelope))
        return known[1]

    def _open(self, node_id: str, envelope: identity_pb2.Envelope) -> VerifiedDelegation | None:
        try:
            found = open_delegation(envelope, network_id=self._network_id, now_wall=self._wall())
        except DcnrError:
            return None
        return found if found.pnode_id == node_id else None


def served_tables(runtime: ModelRuntime, workers: Workers) -> list[Table]:
    """Of the versions of one graph that seats are ready for, the newest first; the graph is that of the newest that is whole, if any is."""
    seats: dict[str, list[tuple[NodeRecord, orchestrator_pb2.SeatReport, VerifiedDelegation]]] = {}
    named: set[str] = set()
    for record in runtime.shared.inventory.nodes().values():
        if not may_serve(record):
            continue
        ready = [seat for seat in record.beat.seats if seat.ready and seat.model == runtime.model]
        worker = workers.of(record) if ready else None
        if worker is None:
            continue
        for seat in ready:
            seats.setdefault(seat.vnode, []).append((record, seat, worker))
            named.add(seat.manifest_digest)
    read = (runtime.serving.versions.get(digest) for digest in named)
    versions = sorted(
        (version for version in read if version is not None), key=lambda version: (-version.number, version.manifest_digest)
    )
    made = [(version.job.request.graph_digest, _table(version, seats)) for version in versions]
    graph = next((graph for graph, table in made if all(table.candidates.values())), made[0][0] if made else "")
    return [table for of_graph, table in made if of_graph == graph]


def _table(version: Version, seats: dict[str, list[tuple[NodeRecord, orchestrator_pb2.SeatReport, VerifiedDelegation]]]) -> Table:
    def candidates(vnode: str) -> list[Candidate]:
        step = int(version.states[vnode].step)
        return [
            Candidate(
                record.node_id, vnode, worker.envelope, state_digest=seat.state_digest, step=step, queued=int(seat.queued),
                compute_s=bounded_s(seat.compute_s), owner=record.owner,
            )
            for record, seat, worker in seats.get(vnode, ())
            if version.serves(vnode, seat.state_digest)
        ]  # fmt: skip

    return Table(version.manifest_digest, version.stages, {stage.id: candidates(stage.id) for stage in version.stages})


def live_tables(runtime: ModelRuntime, workers: Workers) -> list[Table]:
    """That of the training replicas that the plan names and that are at work; none where nothing is planned."""
    view = runtime.view
    if view is None or view.plan is None or view.job is None:
        return []
    inventory, now = runtime.shared.inventory, runtime.shared.clock.monotonic()
    found: dict[str, list[Candidate]] = {}
    for item in view.plan.assignments:
        record, report = inventory.nodes().get(item.pnode_id), inventory.report(item.pnode_id, item.replica, now)
        if record is None or report is None or not may_serve(record):
            continue
        worker = workers.of(record)
        if worker is not None and report[0].state == orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE:
            one = Candidate(
                item.pnode_id, item.vnode, worker.envelope, replica=item.replica, step=int(report[0].num_learned),
                compute_s=bounded_s(report[0].step_s), owner=record.owner,
            )  # fmt: skip
            found.setdefault(item.vnode, []).append(one)
    return [Table("", view.job.stages, {stage.id: found.get(stage.id, ()) for stage in view.job.stages})]
