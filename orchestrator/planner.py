"""The planner: a pure function from (policy, nodes, stages, what is placed and lives) to a plan that says where every replica is and why.

Equal inputs give equal plans. In this order: what can stay stays (`orchestrator.succession`); a VNode without a primary gets one, by promotion of a living
replica, else on the node that is done soonest (`orchestrator.placement`; longest processing time first, Graham 1969); owed replicas are
added (`orchestrator.filling`); and where nothing was lost and nothing waits, idle nodes get their part (`orchestrator.spreading`), or one improvement is
made if it is worth it (`orchestrator.growth`). What no node can take is listed as waiting, with the reasons.
"""

from __future__ import annotations

from collections.abc import Sequence

from dcnr.errors import InvariantBroken
from dcnr.v1 import model_pb2
from orchestrator.board import Board, Seat, shares
from orchestrator.costs import StageCost, spool_batches
from orchestrator.filling import fill, say_short
from orchestrator.growth import grow, improve
from orchestrator.offers import PlanPolicy, PlanRequest
from orchestrator.placement import Rejections, best, cannot_share, make_room
from orchestrator.spreading import even_out, idle_nodes, spread
from orchestrator.succession import Loss, heir, keep, weakest


def make_plan(request: PlanRequest, policy: PlanPolicy) -> model_pb2.Plan:
    """The next plan. `same_placement` tells whether it differs from the previous one in anything that matters."""
    board, rejections = Board(request, policy), Rejections(len(request.stages))
    losses = keep(board)
    by_vnode = {loss.assignment.vnode: loss for loss in losses if loss.assignment.role == model_pb2.ROLE_PRIMARY}
    waiting: list[str] = []
    for cost in sorted(request.stages, key=lambda cost: (-cost.step_flops, cost.vnode)):
        loss = by_vnode.get(cost.vnode)
        if board.primary(cost.vnode) is None and not _give_primary(board, cost, loss, rejections):
            waiting.append(cost.vnode)
            if loss is not None and _may_wait(board, loss):
                board.away[cost.vnode] = loss.assignment
    if waiting:
        say_short(board, rejections, "until every VNode has a primary")
    else:
        fill(board, rejections)
        if not request.goes_on:
            even_out(board)
            grow(board)
        elif not losses and request.allow_moves:
            _without_a_fault(board)
    return _plan(board, rejections, waiting)


def same_placement(old: model_pb2.Plan | None, new: model_pb2.Plan) -> bool:
    """Whether ``new`` puts the same replicas of the same job on the same nodes, with the same roles, weights, lead and waiting list."""
    return old is not None and _shape(old) == _shape(new)


def seconds_per_batch(plan: model_pb2.Plan) -> float:
    """Of the slowest node, as planned: each replica takes its share of its VNode's batches."""
    part = shares(plan.assignments)
    per_node: dict[str, float] = {}
    for item in plan.assignments:
        per_node[item.pnode_id] = per_node.get(item.pnode_id, 0.0) + part[item.replica] * item.predicted_step_s
    return max(per_node.values(), default=0.0)


def check_plan(plan: model_pb2.Plan, stages: Sequence[StageCost]) -> None:
    """Asserts what every plan must keep: each VNode has one primary or waits, its replicas are on different nodes, and only standbys own nothing."""
    if len({item.replica for item in plan.assignments}) != len(plan.assignments):
        raise InvariantBroken("a plan names a replica twice", code="bad_plan")
    if len({(item.vnode, item.pnode_id) for item in plan.assignments}) != len(plan.assignments):
        raise InvariantBroken("a plan puts two replicas of a VNode on one node", code="bad_plan")
    primaries = [item.vnode for item in plan.assignments if item.role == model_pb2.ROLE_PRIMARY]
    if len(set(primaries)) != len(primaries):
        raise InvariantBroken("a plan names two primaries of a VNode", code="bad_plan")
    if any((item.weight > 0.0) == (item.role == model_pb2.ROLE_STANDBY) for item in plan.assignments):
        raise InvariantBroken("a plan gives units to a standby, or none to a replica that learns", code="bad_plan")
    missing = {cost.vnode for cost in stages} - set(primaries) - set(plan.waiting)
    if missing:
        raise InvariantBroken(f"a plan forgets {sorted(missing)}", code="bad_plan")


def _without_a_fault(board: Board) -> None:
    """Idle nodes get their part at once, everything else only when nothing has changed for a while."""
    since_s, policy = board.request.since_last_plan_s, board.policy
    idle = idle_nodes(board)
    if idle and spread(board, idle):
        return
    if since_s >= policy.min_move_interval_s:
        improve(board)
    elif idle and since_s >= policy.settled_s:
        grow(board)


def _give_primary(board: Board, cost: StageCost, loss: Loss | None, rejections: Rejections) -> bool:
    """Finds a primary for a VNode that has none; False if it has to wait."""
    why = f"{loss.told}; " if loss is not None else ""
    held = board.request.durable.get(cost.vnode, 0)
    successor = heir(board, cost.vnode)
    if successor is not None:
        learned = board.request.live.get(successor.replica, 0)
        board.promote(successor, f"{why}promoted: its state holds {learned} batches, the newest checkpoint {held}")
        return True
    if board.seats[cost.vnode]:
        why += f"the newest checkpoint holds more than any living replica, {held} batches; "
        board.unsettled.add(cost.vnode)
        if cannot_share(board, cost):
            board.leave(board.seats[cost.vnode][0])
    load = best(board, cost, model_pb2.ROLE_PRIMARY, rejections)
    if load is None and (sibling := weakest(board, cost.vnode)) is not None:
        board.leave(sibling)
        load, why = sibling.load, f"{why}in place of {sibling.replica}; "
    if load is None and (load := make_room(board, cost)) is not None:
        why += "others' contributors made room; "
    if load is None:
        return False
    seconds = load.seconds + board.share_s(cost, load)
    board.seat(cost, load, model_pb2.ROLE_PRIMARY, f"{why}least loaded of those that fit: {seconds:.3g} s per batch with it")
    return True


def _may_wait(board: Board, loss: Loss) -> bool:
    load = board.loads.get(loss.assignment.pnode_id)
    return load is not None and load.offer.may_return


def _shape(plan: model_pb2.Plan) -> tuple[object, ...]:
    places = tuple(sorted((item.replica, item.pnode_id, item.role, item.weight) for item in plan.assignments))
    return plan.job_id, plan.graph_digest, places, tuple(sorted(plan.waiting)), plan.lead_batches


def _lead_in_force(board: Board) -> tuple[int, str]:
    """The smaller of the job's lead (at least one unit) and what the smallest spool that anyone reads from holds."""
    request = board.request
    lead = max(request.lead_batches, request.unit_batches, 1)
    reason = "set by the job"
    read = {name for cost in request.stages for name in cost.predecessors}
    for cost in request.stages:
        for seat in board.working(cost.vnode) if cost.vnode in read else ():
            held = spool_batches(cost, seat.load.offer.disk_bytes)
            if held < lead:
                lead = held
                reason = f"the spool of {cost.vnode} on {seat.load.offer.node_id[:8]} holds {held} batches"
    return lead, reason


def _plan(board: Board, rejections: Rejections, waiting: Sequence[str]) -> model_pb2.Plan:
    request = board.request
    lead, lead_reason = _lead_in_force(board)
    taken = {(vnode, seat.load.offer.node_id) for vnode, seats in board.seats.items() for seat in seats}
    plan = model_pb2.Plan(
        network_id=request.network_id,
        model=request.model,
        number=request.previous.number + 1 if request.previous is not None else 1,
        parent_digest=request.previous_digest,
        job_id=request.job_id,
        graph_digest=request.graph_digest,
        epoch=request.epoch,
        holder=request.holder,
        rejections=[row for row in rejections.rows() if (row.vnode, row.pnode_id) not in taken],
        waiting=sorted(waiting),
        lead_batches=lead,
        lead_reason=lead_reason,
        reason=request.reason,
        next_replica=board.next_replica,
    )
    for cost in request.stages:
        if cost.vnode in board.away:
            plan.assignments.append(_away(board.away[cost.vnode]))
        plan.assignments.extend(_assignment(seat) for seat in sorted(board.seats[cost.vnode], key=_rank))
    check_plan(plan, request.stages)
    return plan


def _rank(seat: Seat) -> tuple[int, int]:
    return int(seat.role), int(seat.replica.rpartition(".")[2])


def _assignment(seat: Seat) -> model_pb2.Assignment:
    return model_pb2.Assignment(
        replica=seat.replica,
        vnode=seat.cost.vnode,
        pnode_id=seat.load.offer.node_id,
        role=seat.role,
        weight=seat.weight,
        reason=seat.reason,
        hosted=seat.cost.hosted,
        predicted_step_s=seat.load.step_s(seat.cost),
        memory_bytes=seat.memory_bytes,
    )


def _away(lost: model_pb2.Assignment) -> model_pb2.Assignment:
    """A lost primary that is waited for."""
    kept = model_pb2.Assignment()
    kept.CopyFrom(lost)
    kept.reason = "kept: nobody else fits, it may come back"
    return kept
