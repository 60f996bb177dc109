"""The planner: a pure function from (policy, nodes, stages, what is placed and lives) to a plan that says where every replica is and why.

Equal inputs give equal plans. In this order: what can stay stays (`orchestrator.succession`), but for what is of no use where it is and has another place
(`orchestrator.displacing`); a VNode without a primary gets one, by promotion of a living replica, else on the node that is done soonest
(`orchestrator.placement`; longest processing time first, Graham 1969); owed replicas are added (`orchestrator.filling`); and where nothing was lost, nothing
waits and no standby took room just now, idle nodes get their part (`orchestrator.spreading`), or one improvement is made if it is worth it
(`orchestrator.growth`). What no node can take is listed as waiting, with the reasons.

`Planner` makes plans that follow each other, and gives the very same ones: it keeps the board on which the plan before was made, and looks only at
the nodes whose offers changed since, at their VNodes, and at those that lacked something.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dcnr.errors import InvariantBroken
from dcnr.v1 import model_pb2
from orchestrator.board import Board, shares
from orchestrator.costs import StageCost
from orchestrator.displacing import displaced
from orchestrator.filling import fill, is_finished, say_short
from orchestrator.growth import grow, improve
from orchestrator.making_way import make_way
from orchestrator.moving import follow_moves, new_place
from orchestrator.offers import PlanPolicy, PlanRequest
from orchestrator.placement import Rejections, best, cannot_share, is_only_copy, last_resort, make_room, scored
from orchestrator.spreading import begin_even, even_out, idle_nodes, spread
from orchestrator.succession import Loss, follow, heir, keep, weakest
from orchestrator.writing import PlanWriter, shape_of

_Beginning = tuple[Board, Rejections, list[str]]
"""A board, why others were not taken, and the VNodes that wait."""


@dataclass(frozen=True, slots=True)
class Made:
    """A plan, and whether it leaves everything where the plan before had it."""

    plan: model_pb2.Plan
    stays: bool


class Planner:
    """Plans that follow each other. Equal requests get equal plans, whatever was planned before: remembering only saves work."""

    def __init__(self, policy: PlanPolicy) -> None:
        self._policy = policy
        self._kept: tuple[Board, PlanWriter] | None = None
        self._digest = ""
        """The plan that the board stands for."""

    def make(self, request: PlanRequest) -> Made:
        """The next plan. Where it changes anything, say with `named` under which digest it came into force, or the next one begins anew."""
        kept, self._kept = self._kept, None
        losses: list[Loss] | None = None
        if kept is not None and request.previous_digest and request.previous_digest == self._digest:
            board, writer = kept
            losses = follow(board, request)
        has_followed = losses is not None
        if losses is None:
            board, writer = Board(request, self._policy), PlanWriter(request.stages)
            losses = keep(board)
        losses += follow_moves(board)
        losses += displaced(board)
        rejections = Rejections(len(request.stages))
        waiting = _decide(board, losses, rejections)
        if waiting and not request.goes_on:
            board, rejections, waiting = _begun_anew(request, self._policy, (board, rejections, waiting))
        rows, changed = writer.rewrite(board)
        _check(rows, board.touched, waiting)
        plan = writer.plan(board, rejections, waiting)
        if has_followed:
            assert request.previous is not None
            before = request.previous
            stays = not changed and not waiting and (plan.lead_batches, plan.halted) == (before.lead_batches, before.halted)
        else:
            stays = same_placement(request.previous, plan)
        board.unfinished = {cost.vnode for cost in board.open_questions() if not is_finished(board, cost)}
        board.close()
        self._kept, self._digest = (board, writer), request.previous_digest if stays else ""
        return Made(plan, stays)

    def named(self, digest: str) -> None:
        """The plan that was made last is in force under this digest."""
        self._digest = digest


def make_plan(request: PlanRequest, policy: PlanPolicy) -> model_pb2.Plan:
    """The next plan. `same_placement` tells whether it differs from the previous one in anything that matters."""
    return Planner(policy).make(request).plan


def same_placement(old: model_pb2.Plan | None, new: model_pb2.Plan) -> bool:
    """Whether ``new`` puts the same replicas of the same job on the same nodes, with the same roles, weights, moves, lead and waiting list, halted or not."""
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
    _check(plan.assignments, {cost.vnode for cost in stages}, plan.waiting)


def _check(rows: Sequence[model_pb2.Assignment], vnodes: Iterable[str], waiting: Iterable[str]) -> None:
    """`check_plan` for these VNodes; a replica's name begins with its VNode's, so none is named twice for two of them."""
    if len({item.replica for item in rows}) != len(rows):
        raise InvariantBroken("a plan names a replica twice", code="bad_plan")
    if len({(item.vnode, item.pnode_id) for item in rows}) != len(rows):
        raise InvariantBroken("a plan puts two replicas of a VNode on one node", code="bad_plan")
    primaries = [item.vnode for item in rows if item.role == model_pb2.ROLE_PRIMARY]
    if len(set(primaries)) != len(primaries):
        raise InvariantBroken("a plan names two primaries of a VNode", code="bad_plan")
    if any((item.weight > 0.0) == (item.role == model_pb2.ROLE_STANDBY) for item in rows):
        raise InvariantBroken("a plan gives units to a standby, or none to a replica that learns", code="bad_plan")
    missing = set(vnodes) - set(primaries) - set(waiting)
    if missing:
        raise InvariantBroken(f"a plan forgets {sorted(missing)}", code="bad_plan")


def _begun_anew(request: PlanRequest, policy: PlanPolicy, found: _Beginning) -> _Beginning:
    """A job's first plan with fewer VNodes that wait, if one is found: those that waited are placed first, until they are the same again.

    Nothing is placed yet, so nobody is disturbed. Where the nodes lend less than everything takes one try is enough.
    """
    first: frozenset[str] = frozenset()
    if sum(cost.memory_bytes for cost in request.stages) > sum(
        load.offer.memory_bytes for load in found[0].loads.values() if load.is_open
    ):
        return found
    fewest = found
    while found[2] and not first.issuperset(found[2]):
        first |= frozenset(found[2])
        board, rejections = Board(request, policy), Rejections(len(request.stages))
        found = board, rejections, _decide(board, (), rejections, first)
        fewest = min(fewest, found, key=lambda one: len(one[2]))
    return fewest


def _decide(board: Board, losses: Sequence[Loss], rejections: Rejections, first: frozenset[str] = frozenset()) -> list[str]:
    """Who sits where. Returns the VNodes that wait. ``first``: VNodes that are placed before all others, the largest first."""
    request = board.request
    by_vnode = {loss.assignment.vnode: loss for loss in losses if loss.assignment.role == model_pb2.ROLE_PRIMARY}
    waiting: list[str] = []
    for cost in sorted(
        board.open_questions(), key=lambda cost: (cost.vnode not in first, -cost.memory_bytes * (cost.vnode in first))
    ):
        loss = by_vnode.get(cost.vnode)
        if board.primary(cost.vnode) is None and not _give_primary(board, cost, loss, rejections):
            waiting.append(cost.vnode)
            if loss is not None and _may_wait(board, loss):
                board.away[cost.vnode] = _away(loss.assignment)
    if waiting and (waiting := make_way(board, waiting)):
        say_short(board, rejections, "until every VNode has a primary")
        return waiting
    has_new_standby = fill(board, rejections)
    if not request.goes_on:
        begin_even(board)
        grow(board)
    elif not losses and not has_new_standby and request.allow_moves and not board.moving:
        _without_a_fault(board)
    return []


def _without_a_fault(board: Board) -> None:
    """Idle nodes get their part at once, contributors are evened out soon, everything else changes only when nothing has for a while."""
    since_s, policy = board.request.since_last_plan_s, board.policy
    idle = idle_nodes(board)
    if (idle and spread(board, idle)) or even_out(board):
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
    planned = new_place(board, cost, loss)
    load = planned or best(board, cost, model_pb2.ROLE_PRIMARY, rejections)
    if load is None and (sibling := weakest(board, cost.vnode)) is not None:
        board.leave(sibling)
        load, why = sibling.load, f"{why}in place of {sibling.replica}; "
    if load is None and (load := make_room(board, cost)) is not None:
        why += "others' contributors made room; "
    if load is None and (load := last_resort(board, cost)) is not None:
        why += "of no use lately, but nobody else fits; "
    if load is None:
        return False
    if load.is_young and is_only_copy(board, cost):
        why += "in probation, and nobody else can hold this only copy; "
    seconds = load.seconds + board.share_s(cost, load)
    board.seat(
        cost,
        load,
        model_pb2.ROLE_PRIMARY,
        f"{why}{'moved as planned' if planned is not None else 'least loaded of those that fit'}: {1000 * seconds:.3g} ms per batch with it{scored(load)}",
    )
    return True


def _may_wait(board: Board, loss: Loss) -> bool:
    load = board.loads.get(loss.assignment.pnode_id)
    return load is not None and load.offer.may_return


def _away(lost: model_pb2.Assignment) -> model_pb2.Assignment:
    """A lost primary that is waited for."""
    kept = model_pb2.Assignment()
    kept.CopyFrom(lost)
    kept.reason = "kept: nobody else fits, it may come back"
    kept.hands_over_to, kept.hand_over_s = "", 0.0
    return kept


def _shape(plan: model_pb2.Plan) -> tuple[object, ...]:
    places = tuple(sorted(shape_of(item) for item in plan.assignments))
    return plan.job_id, plan.graph_digest, places, tuple(sorted(plan.waiting)), plan.lead_batches, plan.halted
