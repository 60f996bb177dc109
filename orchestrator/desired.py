"""Turns a plan into what each PNode is told: its full list of replicas, each with the replicas and roles of its neighbours. Pure."""

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
    for item in plan.assignments:
        by_vnode.setdefault(item.vnode, []).append(item)
    readers: dict[str, list[str]] = {}
    for cost in costs:
        for name in cost.predecessors:
            readers.setdefault(name, []).append(cost.vnode)
    predecessors: Mapping[str, tuple[str, ...]] = {cost.vnode: cost.predecessors for cost in costs}
    result: dict[str, model_pb2.DesiredState] = {}
    for pnode_id in sorted({item.pnode_id for item in plan.assignments} | set(pnodes)):
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
        )
        for item in plan.assignments:
            if item.pnode_id == pnode_id:
                desired.assignments.add(
                    replica=item.replica,
                    vnode=item.vnode,
                    role=item.role,
                    predecessors=_neighbours(predecessors.get(item.vnode, ()), by_vnode),
                    successors=_neighbours(readers.get(item.vnode, ()), by_vnode),
                )
        result[pnode_id] = desired
    return result


def plan_reason(before: model_pb2.Plan | None, after: model_pb2.Plan) -> str:
    """In words: why ``after`` replaces ``before``."""
    if before is None or before.job_id != after.job_id:
        return f"job {after.job_id} begins"
    old = {item.vnode: item.replica for item in before.assignments}
    moved = [item for item in after.assignments if old.get(item.vnode) not in (None, item.replica)]
    if moved:
        return "; ".join(f"{item.vnode}: {item.reason}" for item in moved[:4])[:500]
    if list(before.waiting) != list(after.waiting):
        return f"now waiting: {', '.join(after.waiting) or 'nothing'}"
    if before.epoch != after.epoch:
        return "the head has a new holder; nothing moves"
    return f"the lead in force is {after.lead_batches}"


def _neighbours(vnodes: Iterable[str], by_vnode: Mapping[str, Sequence[model_pb2.Assignment]]) -> list[model_pb2.Neighbour]:
    return [
        model_pb2.Neighbour(replica=item.replica, vnode=item.vnode, pnode_id=item.pnode_id, role=item.role)
        for vnode in vnodes
        for item in by_vnode.get(vnode, ())
    ]
