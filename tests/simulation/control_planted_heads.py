"""Bugs in what heads, plans and manifests say, and in who goes by them: one for each checker of the control world that no other bug turns red alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dataservice import keys
from dataservice import manifests as manifests_module
from dcnr.ids import Digest
from dcnr.ports import ObjectStore
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator import changes
from orchestrator import decider as decider_module
from orchestrator import naming as naming_module
from orchestrator import planner as planner_module
from orchestrator.board import Board
from orchestrator.changes import Activate, Change, Decide, NamePlan
from orchestrator.decider import Decider
from orchestrator.delivery import DesiredReader
from orchestrator.documents import sealed
from orchestrator.head import HeadCore
from orchestrator.jobs import Progress
from orchestrator.loads import Seat
from orchestrator.view import ModelView
from pnode.duties import Duties
from pnode.told_heads import Told
from trust.identity import NodeKey
from trust.network import NetworkPolicy

# ---- heads and jobs ---------------------------------------------------------------------------------------------------------


def takeovers_count_anew(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: a term begins to count where it was taken, not above what it replaces."""
    takeover = HeadCore._takeover

    def fresh(self: HeadCore) -> model_pb2.Head:
        head = takeover(self)
        head.sequence = 1
        return head

    patch.setattr(HeadCore, "_takeover", fresh)


def what_is_called_off_just_goes(patch: pytest.MonkeyPatch) -> None:
    """Invariant 2: a job that is called off leaves the head, and its outcome is written nowhere."""
    decide = changes._decide

    def silent(change: Decide, head: model_pb2.Head) -> str:
        reason = decide(change, head)
        if not reason and head.decided[-1].state == model_pb2.JOB_STATE_CANCELLED:
            del head.decided[-1]
        return reason

    patch.setattr(changes, "_decide", silent)


def the_head_keeps_every_outcome(patch: pytest.MonkeyPatch) -> None:
    """Rule 8: no outcome ever leaves the head, which grows with every job."""
    patch.setattr(changes, "MAX_DECIDED", 1000)


def what_sources_have_counts_for_all(patch: pytest.MonkeyPatch) -> None:
    """Finished means durable, of every VNode: a job is completed as soon as its sources are."""

    def hasty(self: Progress) -> bool:
        return all(name in self.durable and self.durable[name].is_exactly(0, self.num_batches) for name in self.sources)

    patch.setattr(Progress, "manifest_complete", property(hasty))


def jobs_wait_in_the_queue_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Liveness: after the first job has ended nothing is activated any more."""
    decided = decider_module.next_change

    def sated(head: model_pb2.Head, *rest: Any) -> Change | None:
        change = decided(head, *rest)
        return None if isinstance(change, Activate) and head.decided else change

    patch.setattr(decider_module, "next_change", sated)


def nothing_is_released(patch: pytest.MonkeyPatch) -> None:
    """What a job that was called off had placed stays placed."""

    async def keep(self: Decider, view: ModelView) -> None:
        await asyncio.sleep(0)

    patch.setattr(Decider, "_release", keep)


def statements_replace_each_other(patch: pytest.MonkeyPatch) -> None:
    """A job has one statement, which the next one overwrites."""

    async def overwrite(
        envelope: identity_pb2.Envelope, *, policy: NetworkPolicy, store: ObjectStore
    ) -> tuple[model_pb2.JobPause, bool]:
        wish = policy.open_pause(envelope)
        await store.put(keys.job_pause(wish.model, wish.job_id, 1), envelope.SerializeToString(deterministic=True))
        return wish, True

    patch.setattr("simulation.control_orchestrator.record_pause", overwrite)


# ---- plans ------------------------------------------------------------------------------------------------------------------


def plans_follow_the_one_before_the_last(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: a plan names as its parent what the plan that it replaces named."""
    publish = Decider._publish

    async def older(self: Decider, view: ModelView, plan: model_pb2.Plan, request_digest: str) -> str:
        if view.plan is not None:
            plan.parent_digest = view.plan.parent_digest
        return await publish(self, view, plan, request_digest)

    patch.setattr(Decider, "_publish", older)


def plans_keep_the_sequence_of_the_first(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: a new plan comes under the head, and the sequence beside it stays that of the plan before."""
    name_plan = changes._name_plan

    def forgetful(change: NamePlan, head: model_pb2.Head) -> str:
        before = head.plan_sequence
        reason = name_plan(change, head)
        head.plan_sequence = before
        return reason

    patch.setattr(changes, "_name_plan", forgetful)


def what_waits_is_not_said(patch: pytest.MonkeyPatch) -> None:
    """A VNode for which no node has room is in no plan, and no plan says that it waits."""
    decide = planner_module._decide

    def quiet(*args: Any) -> list[str]:
        decide(*args)
        return []

    patch.setattr(planner_module, "_decide", quiet)
    patch.setattr(planner_module, "_check", lambda rows, vnodes, waiting: None)


def names_are_used_again(patch: pytest.MonkeyPatch) -> None:
    """A replica that takes the place of a lost one has its name."""
    seat = Board.seat

    def again(self: Board, cost: Any, load: Any, role: Any, reason: str, *, replica: str = "") -> Seat:
        return seat(self, cost, load, role, reason, replica=replica or f"{cost.vnode}.{len(self.seats[cost.vnode])}")

    patch.setattr(Board, "seat", again)


def contributors_step_down(patch: pytest.MonkeyPatch) -> None:
    """Who has contributed once only stands by from the next plan on."""
    decide = planner_module._decide

    def relieve(board: Board, *rest: Any) -> list[str]:
        for seats in board.seats.values():
            for seat in seats:
                if seat.role == model_pb2.ROLE_CONTRIBUTOR:
                    seat.role = model_pb2.ROLE_STANDBY
                    board._settle(seat.cost.vnode)
        return decide(board, *rest)

    patch.setattr(planner_module, "_decide", relieve)


def only_primaries_weigh(patch: pytest.MonkeyPatch) -> None:
    """Contributors are placed, and own nothing."""
    fresh = Board.fresh_weights

    def alone(self: Board, vnode: str) -> dict[str, float]:
        led = self.primary(vnode)
        return {name: weight for name, weight in fresh(self, vnode).items() if led is None or name == led.replica}

    patch.setattr(Board, "fresh_weights", alone)
    patch.setattr(planner_module, "_check", lambda rows, vnodes, waiting: None)


# ---- manifests --------------------------------------------------------------------------------------------------------------


def who_is_condemned_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Invariant 4: a manifest condemns what is old now, and not what the one before it condemned."""
    condemn = manifests_module.condemn
    patch.setattr(manifests_module, "condemn", lambda manifest, before, rules: condemn(manifest, (), rules))


def what_came_last_is_named(patch: pytest.MonkeyPatch) -> None:
    """Data rule 9: the checkpoint that came last is named, also where it is older."""
    why_refused = manifests_module.why_refused

    def lax(*args: Any) -> str:
        reason = why_refused(*args)
        return "" if reason == "older" else reason

    def by_digest(view: ModelView, checkpoint: model_pb2.Checkpoint) -> bool:
        entries = view.manifest.entries if view.manifest is not None else ()
        return any(item.digest == checkpoint.digest for entry in entries for item in entry.working)

    patch.setattr(manifests_module, "why_refused", lax)
    for module in ("naming", "runtime"):
        patch.setattr(f"orchestrator.{module}.named", by_digest)


def primaries_are_credited_with_everything(patch: pytest.MonkeyPatch) -> None:
    """Who brings a checkpoint has learned all that is in it, whoever brought it the deltas."""
    following = naming_module.next_manifest

    def alone(parent: Any, digest: str, records: Any, rules: Any, learned: dict[Digest, Any]) -> Any:
        return following(parent, digest, records, rules)

    patch.setattr(naming_module, "next_manifest", alone)


# ---- PNodes -----------------------------------------------------------------------------------------------------------------


def delivered_as_made_anew(patch: pytest.MonkeyPatch) -> None:
    """The holder delivers desired states that it makes anew, with a lead of its own, beside those that lie in the store."""
    publish, of = Decider._publish, DesiredReader.of
    held: dict[str, NodeKey] = {}

    async def remember(self: Decider, *args: Any) -> str:
        held[self._key.node_id] = self._key
        return await publish(self, *args)

    async def anew(self: DesiredReader, view: ModelView, pnode_id: str) -> identity_pb2.Envelope | None:
        stored = await of(self, view, pnode_id)
        if stored is None or view.head.holder not in held:
            return stored
        desired = model_pb2.DesiredState.FromString(stored.payload)
        desired.lead_batches += 1
        return sealed(identity_pb2.DOMAIN_DESIRED_STATE, desired, held[view.head.holder]).envelope

    patch.setattr(Decider, "_publish", remember)
    patch.setattr(DesiredReader, "of", anew)


def new_terms_are_asked_for_only_by_plans(patch: pytest.MonkeyPatch) -> None:
    """A PNode that is told of a head with a newer term leaves it alone until somebody has work for it."""
    received, confirm = Duties.head_received, Duties._confirm
    told: list[bool] = []

    async def leave_alone(self: Duties, *args: Any) -> Told | None:
        told.append(True)
        try:
            return await received(self, *args)
        finally:
            told.pop()

    def unless_told(self: Duties, *args: Any) -> None:
        if not told:
            confirm(self, *args)

    patch.setattr(Duties, "head_received", leave_alone)
    patch.setattr(Duties, "_confirm", unless_told)
