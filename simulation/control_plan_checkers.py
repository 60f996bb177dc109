"""What must hold of every plan as the head names it: one primary per VNode, replicas apart, successors that live and hold enough, neighbours told."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from dcnr.v1 import model_pb2
from orchestrator.jobs import intervals

if TYPE_CHECKING:
    from simulation.control_world import ControlWorld

KEPT_LOOKS: Final = 160
"""Of each replica: looks and reports, 20 s at least."""
SEEN_S: Final = 45.0
"""A replica that is promoted was at work at most so long ago: silence, a slow store, a takeover in between."""


class PlanCheckers:
    """Follows the plans of one world."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self._last: model_pb2.Plan | None = None
        self._seen: dict[str, deque[tuple[float, int]]] = {}
        """By replica: when it was at work, and how much its state held then. It may have held more when it reported: a restarted primary goes back."""
        self.num_moves = self.num_promotions = self.num_contributors = 0

    @property
    def job_id(self) -> str:
        """Whose VNodes the newest plan places; empty for nobody's."""
        return self._last.job_id if self._last is not None else ""

    def look(self) -> None:
        """Now and then: who is at work."""
        now = self._world.kernel.now_s
        for pnode in self._world.pnodes:
            if pnode.process.alive and pnode.worker.alive:
                for replica in pnode.worker.replicas.values():
                    if now >= replica.ready_s:
                        self.held(replica.replica, len(replica.lineage))

    def held(self, replica: str, count: int) -> None:
        """A replica is at work and its state holds so much: seen from outside, or as it reports."""
        self._seen.setdefault(replica, deque(maxlen=KEPT_LOOKS)).append((self._world.kernel.now_s, count))

    def landed(self, plan: model_pb2.Plan, desired: Mapping[str, model_pb2.DesiredState], manifest: model_pb2.Manifest) -> None:
        """The head names this plan from now on; ``desired`` are its desired states by PNode, ``manifest`` the one beside it."""
        self._shape(plan)
        for state in desired.values():
            self._told(plan, state)
        known = {item.replica for item in self._last.assignments} if self._last is not None else set()
        self.num_contributors += sum(
            item.role == model_pb2.ROLE_CONTRIBUTOR and item.replica not in known for item in plan.assignments
        )
        before = self._last if self._last is not None and self._last.job_id == plan.job_id else None
        self._last = plan
        if before is None or not plan.job_id:
            return
        self._roles(before, plan, manifest)
        self._moves(before, plan)

    @property
    def last(self) -> model_pb2.Plan | None:
        """The plan under the head."""
        return self._last

    def restored(self, plan: model_pb2.Plan | None) -> None:
        """The store went back to that plan, or to none: the next one follows it."""
        self._last = plan

    def _shape(self, plan: model_pb2.Plan) -> None:
        world = self._world
        for vnode in world.community.vnodes if plan.job_id else ():
            crew = [item for item in plan.assignments if item.vnode == vnode]
            led = sum(item.role == model_pb2.ROLE_PRIMARY for item in crew)
            world.require(led == 1 or (led == 0 and vnode in plan.waiting), "one_primary", f"plan {plan.number}: {led} of {vnode}")
            nodes = {item.pnode_id for item in crew}
            world.require(len(nodes) == len(crew), "apart", f"plan {plan.number} puts two replicas of {vnode} on one node")
            fair = all((item.weight > 0.0) == (item.role != model_pb2.ROLE_STANDBY) for item in crew)
            world.require(fair, "weights", f"plan {plan.number}: {[(item.replica, item.role, item.weight) for item in crew]}")

    def _told(self, plan: model_pb2.Plan, state: model_pb2.DesiredState) -> None:
        """Each replica is told all its siblings as the plan has them, and no neighbour that never learns."""
        crews: dict[str, set[tuple[str, str, int, float]]] = {}
        for item in plan.assignments:
            crews.setdefault(item.vnode, set()).add((item.replica, item.pnode_id, item.role, item.weight))
        for assignment in state.assignments:
            siblings = {(item.replica, item.pnode_id, item.role, item.weight) for item in assignment.siblings}
            self._world.require(siblings == crews[assignment.vnode], "siblings", f"{assignment.replica} is told {sorted(siblings)}")
            for other in (*assignment.predecessors, *assignment.successors):
                known = (other.replica, other.pnode_id, other.role, other.weight) in crews[other.vnode]
                self._world.require(known and other.weight > 0.0, "siblings", f"{assignment.replica} is told of {other.replica}")

    def _roles(self, before: model_pb2.Plan, plan: model_pb2.Plan, manifest: model_pb2.Manifest) -> None:
        world, now = self._world, self._world.kernel.now_s
        old = {item.replica: item for item in before.assignments}
        durable = {
            entry.vnode: len(intervals(entry.working[0].lineage))
            for entry in manifest.entries
            if entry.working and entry.working[0].job_id == plan.job_id
        }
        for item in plan.assignments:
            was = old.get(item.replica)
            if was is None:
                continue
            same = (was.vnode, was.pnode_id) == (item.vnode, item.pnode_id)
            world.require(same, "one_place", f"{item.replica} changes its place")
            if was.role == item.role:
                continue
            world.require(item.role == model_pb2.ROLE_PRIMARY, "demoted", f"{item.replica} was {was.role}, is {item.role}")
            self.num_promotions += 1
            led = next((one for one in before.assignments if one.vnode == item.vnode and one.role == model_pb2.ROLE_PRIMARY), None)
            gone = led is None or all(one.replica != led.replica for one in plan.assignments)
            world.require(gone, "successor", f"{item.replica} is promoted beside its primary")
            row = self._seen.get(item.replica) or deque([(float("-inf"), 0)])
            seen_s, held = row[-1][0], max(count for _, count in row)
            world.require(
                now - seen_s <= SEEN_S, "successor", f"{item.replica} is promoted, and was last at work at {seen_s:.1f} s"
            )
            is_word = item.pnode_id in world.liars  # what a contributor says it holds is its word (THREAT_MODEL.md, open)
            enough = is_word or held >= durable.get(item.vnode, 0)
            world.require(
                enough,
                "successor",
                f"{item.replica} is promoted with {held} batches, {durable[item.vnode]} are durable" if not enough else "",
            )

    def _moves(self, before: model_pb2.Plan, plan: model_pb2.Plan) -> None:
        """Counts what is placed anew beyond what was lacking: never more than what has gone wrong so far explains."""
        world = self._world
        old = {item.replica for item in before.assignments}
        placed = {item.vnode for item in before.assignments}
        for vnode in sorted(placed):
            fresh = [item for item in plan.assignments if item.vnode == vnode and item.replica not in old]
            working = sum(item.vnode == vnode and item.weight > 0.0 for item in before.assignments)
            lacking = max(0, world.wanted(vnode) - working)
            self.num_moves += max(0, len(fresh) - lacking)
        by_choice = world.knobs.num_pnodes * world.knobs.jobs if 0 in world.knobs.replicas else 0
        went_back = world.checkers.ledger.num_back * world.knobs.num_vnodes * max(world.knobs.replicas)
        allowed = 2 * world.faults.num_shocks + world.knobs.num_vnodes + by_choice + went_back
        world.require(
            self.num_moves <= allowed,
            "thrash",
            f"{self.num_moves} moves, {allowed} allowed for {world.faults.num_shocks} shocks",
        )
        self.num_contributors += sum(
            item.role == model_pb2.ROLE_CONTRIBUTOR and item.replica not in old for item in plan.assignments
        )
