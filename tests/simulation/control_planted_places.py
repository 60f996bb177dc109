"""Bugs in who learns what where: plans, volunteers, evidence, clocks, disks and the checks of what volunteers say."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from dcnr import limits
from dcnr.ids import Digest, ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from membership.network_time import NetworkTime
from orchestrator import explain as explain_module
from orchestrator import inventory as inventory_module
from orchestrator import placement, publishing
from orchestrator import placement as placement_module
from orchestrator import planner as planner_module
from orchestrator.ancestry import Ancestry, contributions_of
from orchestrator.checkpoints import CheckpointJudge
from orchestrator.columns import Columns, Mask
from orchestrator.contribution import Contributions
from orchestrator.head import HeadCore
from orchestrator.inventory import Inventory
from orchestrator.jobbook import JobBook
from orchestrator.obstacles import Obstacle
from orchestrator.offers import PlanRequest
from orchestrator.planner import Made, Planner
from orchestrator.silence import Judgement
from orchestrator.ties import Ties
from pnode.budget import Budget, Reservation
from pnode.duties import Duties
from pnode.written import Written
from simulation.control_replica import Replica
from simulation.control_worker import WorkerModel
from trust.commits import Place, VerifiedCommit, VerifiedDelta
from trust.delegation import open_delegation
from trust.envelope import parse
from trust.network import NetworkPolicy


def workers_wait_for_orchestrators(patch: pytest.MonkeyPatch) -> None:
    """Invariant 9: without news of the head a replica stops."""
    advance = WorkerModel._advance

    def wait(self: WorkerModel, replica: Replica) -> None:
        replica.horizon_s = 2.0
        advance(self, replica)

    patch.setattr(WorkerModel, "_advance", wait)


def one_missing_read_ends_a_job(patch: pytest.MonkeyPatch) -> None:
    """Invariant 2: an object that is not found once never exists."""
    patch.setattr(JobBook, "_may_appear", lambda self, job_id: False)


def new_primaries_keep_quiet(patch: pytest.MonkeyPatch) -> None:
    """Data rule 9 as control sees it: a primary that restored a snapshot of its own disk does not checkpoint at once."""
    patch.setattr(WorkerModel, "checkpoint_at_once", lambda self, replica: None)


def placed_without_reason(patch: pytest.MonkeyPatch) -> None:
    """Invariant 11: plans do not say why."""
    make = Planner.make

    def silent(self: Planner, request: PlanRequest) -> Made:
        made = make(self, request)
        for item in made.plan.assignments:
            item.reason = ""
        return made

    patch.setattr(Planner, "make", silent)


def anybody_succeeds(patch: pytest.MonkeyPatch) -> None:
    """Data rule 10: whoever is first in the list becomes primary, whether it lives or what it holds."""
    patch.setattr(planner_module, "heir", lambda board, vnode: next(iter(board.seats[vnode]), None))


def siblings_share_a_node(patch: pytest.MonkeyPatch) -> None:
    """Replicas of one VNode go wherever it is quickest."""
    nowhere = placement_module._Siblings(frozenset(), frozenset(), frozenset())
    patch.setattr(placement_module, "_siblings", lambda board, cost: nowhere)
    patch.setattr(planner_module, "_check", lambda rows, vnodes, waiting: None)


def siblings_are_not_told(patch: pytest.MonkeyPatch) -> None:
    """Each replica is told of itself alone: all of them learn everything."""
    made = publishing.desired_states

    def alone(*args: Any) -> Any:
        states = made(*args)
        for state in states.values():
            for item in state.assignments:
                kept = [sibling for sibling in item.siblings if sibling.replica == item.replica]
                del item.siblings[:]
                item.siblings.extend(kept)
        return states

    patch.setattr(publishing, "desired_states", alone)


def contributors_are_swapped_for_fun(patch: pytest.MonkeyPatch) -> None:
    """Thrash: no contributor stays."""
    keep = planner_module.keep

    def forgetful(board: Any) -> Any:
        losses = keep(board)
        for seats in board.seats.values():
            for seat in [seat for seat in seats if seat.role == model_pb2.ROLE_CONTRIBUTOR]:
                board.leave(seat)
        return losses

    patch.setattr(planner_module, "keep", forgetful)


def restless_planner(patch: pytest.MonkeyPatch) -> None:
    """Thrash: nothing ever stays where it is."""
    patch.setattr(planner_module, "keep", lambda board: [])


def nobody_takes_over(patch: pytest.MonkeyPatch) -> None:
    """Liveness: only a head that is absent is taken."""
    patch.setattr(HeadCore, "_may_take", lambda self, now: self._absent)


def the_dead_look_alive(patch: pytest.MonkeyPatch) -> None:
    """Liveness: every node that was ever heard counts as active."""
    alive = Judgement(orchestrator_pb2.NODE_STATE_ACTIVE, "seen once")
    patch.setattr(inventory_module, "judge", lambda record, now: alive)


def names_of_strangers_are_kept(patch: pytest.MonkeyPatch) -> None:
    """Invariant 7, and what a PNode keeps of unproven claims: whoever names a model gets a place, whatever its name."""
    patch.setattr("pnode.models.check_name", lambda text: text)


def wall_clocks_are_believed(patch: pytest.MonkeyPatch) -> None:
    """Time: records are judged by each machine's own wall clock, whatever the others say."""
    patch.setattr(NetworkTime, "wall", lambda self: self._clock.wall())


def acts_without_persisting(patch: pytest.MonkeyPatch) -> None:
    """Persist, then act: a disk that takes nothing is no reason to wait."""
    write = Written.desired

    async def careless(self: Written, model: str, envelope: identity_pb2.Envelope) -> bool:
        await write(self, model, envelope)
        return True

    patch.setattr(Written, "desired", careless)


def what_the_disk_refused_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Invariant 9: a PNode whose disk was full for a moment waits for the next plan."""

    async def never(self: Duties, entry: Any) -> None:
        await asyncio.sleep(0)

    patch.setattr(Duties, "_write_again", never)


def evidence_is_a_verdict(patch: pytest.MonkeyPatch) -> None:
    """Design, Fail: anybody may accuse anybody, and whoever is accused counts as not answering our own probe either."""
    probed = Inventory.probed

    def believe(self: Inventory, node_id: str, now: float, *, reachable: bool, asked_at: float = math.inf) -> bool:
        probed(self, node_id, now, reachable=True)
        return probed(self, node_id, now, reachable=False)

    patch.setattr(Inventory, "probed", believe)
    patch.setattr(Ties, "tied", lambda self, pnode_id, others: set(others) - {pnode_id})


def an_ended_stream_is_a_failed_look(patch: pytest.MonkeyPatch) -> None:
    """ADR 0018: whose stream ends counts as not answering us, before anybody has looked."""
    detached = Inventory.detached

    def give_up(self: Inventory, node_id: str, now: float, reason: str) -> None:
        detached(self, node_id, now, reason)
        self.probed(node_id, now, reachable=False)

    patch.setattr(Inventory, "detached", give_up)


def anybody_speaks_for_a_replica(patch: pytest.MonkeyPatch) -> None:
    """Data rule 9: records of any PNode are taken for the plan's primary, and nobody holds its commits against plans or looks into its states."""

    async def unseen(self: CheckpointJudge, *_: Any) -> None: ...

    patch.setattr("orchestrator.checkpoints._check_primary", lambda plan, checkpoint: None)
    patch.setattr(CheckpointJudge, "_check_planned", unseen)
    patch.setattr(CheckpointJudge, "_check_state", unseen)


def weights_from_nowhere(patch: pytest.MonkeyPatch) -> None:
    """Invariant 5: a worker begins with weights of its own making, and nobody follows commits back."""
    host = WorkerModel._host

    def initialise(self: WorkerModel, message: Any) -> None:
        host(self, message)
        replica = self.replicas.get(message.assignment.replica)
        if replica is not None:
            replica.chain._state, replica.chain._commit = "0" * 64, ""

    async def believe(
        self: CheckpointJudge, view: Any, _job: Any, place: Place, _checkpoint: Any, newest: VerifiedCommit
    ) -> Ancestry:
        known = Ancestry(view.durable(place.job_id).get(place.vnode, IntervalSet.empty()))
        return known.after(contributions_of(newest, place))

    patch.setattr(WorkerModel, "_host", initialise)
    patch.setattr(CheckpointJudge, "_ancestry", believe)


def deltas_need_no_signature(patch: pytest.MonkeyPatch) -> None:
    """Invariant 7: whoever holds a sibling's delegation speaks for it."""

    def believe(envelope: identity_pb2.Envelope, place: Place, *, now_wall: float | None = None) -> VerifiedDelta:
        delta = parse(model_pb2.Delta, envelope.payload)
        wall = parse(identity_pb2.Delegation, delta.delegation.payload).not_before_unix_ms / 1000
        delegation = open_delegation(delta.delegation, network_id=place.network_id, now_wall=wall)
        batches = IntervalSet.of(*((number, number + 1) for number in delta.batches))
        return VerifiedDelta(delta, delegation, ReplicaId(delta.replica), batches, Digest(delta.digest))

    patch.setattr("simulation.control_merges.open_delta", believe)
    for module in ("ancestry", "checkpoints"):
        patch.setattr(f"orchestrator.{module}.open_delta", believe)


def limits_are_a_wish(patch: pytest.MonkeyPatch) -> None:
    """Invariant 8: orchestrators place what does not fit, and the machine takes it."""

    def admit(self: Budget, replica: str, wanted: Reservation, **measured: object) -> None:
        self._reserved[replica] = wanted

    def obstacle(*arguments: Any) -> Obstacle:
        found = before(*arguments)
        return Obstacle.NONE if found in (Obstacle.MEMORY, Obstacle.DISK) else found

    def fitting(self: Columns, vnode: str, *wanted_bytes: int) -> Mask:
        return measured(self, vnode, *(-limits.MAX_OBJECT_BYTES for _ in wanted_bytes))

    before, measured = placement._obstacle, Columns.fitting
    patch.setattr(Budget, "admit", admit)
    patch.setattr(placement, "_obstacle", obstacle)
    patch.setattr(Columns, "fitting", fitting)
    patch.setattr("orchestrator.succession._why_lost", lambda cost, load, board: "")


def bulk_on_the_control_stream(patch: pytest.MonkeyPatch) -> None:
    """Invariant 10: uploads go where beats go."""
    put = WorkerModel._put

    async def crowd(self: WorkerModel, key: str, data: bytes) -> None:
        for end in self._pnode.ends.values():
            if end.stream is not None:
                end.stream.send(0, b"", transfer_s=6.0)
        await put(self, key, data)

    patch.setattr(WorkerModel, "_put", crowd)


def strangers_submit(patch: pytest.MonkeyPatch) -> None:
    """Invariants 6 and 7: a job request counts whoever signed it."""
    for name in ("open_job_request", "read_job_request"):
        patch.setattr(NetworkPolicy, name, lambda self, envelope: parse(model_pb2.JobRequest, envelope.payload))


def nobody_says_why(patch: pytest.MonkeyPatch) -> None:
    """Invariant 11: for a missing batch there is no answer."""
    patch.setattr(explain_module, "_batch", lambda runtime, plan, vnode, batch: [])


def alive_is_enough(patch: pytest.MonkeyPatch) -> None:
    """Invariant 12: whoever beats keeps what it has."""
    patch.setattr(Contributions, "look", lambda self, *seen: [])
