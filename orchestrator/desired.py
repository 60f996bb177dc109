"""Turns a plan into what each PNode is told: its full list of replicas, each with the replicas, roles and weights of its neighbours and siblings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dcnr.v1 import model_pb2
from orchestrator.costs import StageCost


def desired_states(
    plan: model_pb2.Plan,
    plan_digest: str,
    sequence: int,
    costs: Sequence[StageCost],
    request_digest: str,
    pnodes: Iterable[str],
) -> dict[str, model_pb2.DesiredState]:
    """One per PNode of the plan and of ``pnodes`` (those get an empty list: what they still host is released)."""
    by_vnode: dict[str, list[model_pb2.Assignment]] = {}
    hosted: dict[str, list[model_pb2.Assignment]] = {}
    for item in plan.assignments:
        by_vnode.setdefault(item.vnode, []).append(item)
        hosted.setdefault(item.pnode_id, []).append(item)
    readers: dict[str, list[str]] = {}
    for cost in costs:
        for name in cost.predecessors:
            readers.setdefault(name, []).append(cost.vnode)
    predecessors: Mapping[str, tuple[str, ...]] = {cost.vnode: cost.predecessors for cost in costs}
    result: dict[str, model_pb2.DesiredState] = {}
    for pnode_id in sorted(hosted.keys() | set(pnodes)):
        desired = model_pb2.DesiredState(
            network_id=plan.network_id,
            model=plan.model,
            epoch=plan.epoch,
            holder=plan.holder,
            sequence=sequence,
            plan_digest=plan_digest,
            plan_number=plan.number,
            pnode_id=pnode_id,
            job_id=plan.job_id,
            request_digest=request_digest,
            lead_batches=plan.lead_batches,
            halted=plan.halted,
            widest_lead_batches=plan.widest_lead_batches,
            tempo=plan.tempo if plan.HasField("tempo") else None,
        )
        for item in hosted.get(pnode_id, ()):
            desired.assignments.add(
                replica=item.replica,
                vnode=item.vnode,
                role=item.role,
                predecessors=_neighbours(_learning(predecessors.get(item.vnode, ()), by_vnode)),
                successors=_neighbours(_learning(readers.get(item.vnode, ()), by_vnode)),
                siblings=_neighbours(by_vnode[item.vnode]),
                hand_over_s=item.hand_over_s if item.hands_over_to else 0.0,
            )
        result[pnode_id] = desired
    return result


def _neighbours(items: Iterable[model_pb2.Assignment]) -> list[model_pb2.Neighbour]:
    return [
        model_pb2.Neighbour(replica=item.replica, vnode=item.vnode, pnode_id=item.pnode_id, role=item.role, weight=item.weight)
        for item in items
    ]


def _learning(vnodes: Iterable[str], by_vnode: Mapping[str, Sequence[model_pb2.Assignment]]) -> list[model_pb2.Assignment]:
    """Replicas with units. A standby learns nothing: its floor would hold the sources for ever, and nobody asks it for frames."""
    return [item for vnode in vnodes for item in by_vnode.get(vnode, ()) if item.role != model_pb2.ROLE_STANDBY]
