"""Bugs to plant, at least one for each rule of the control plane that is built: each breaks the rule and nothing else, and the checkers must notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dataservice import keys
from dataservice.memory import etag_of
from dcnr.ids import NodeId
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator import changes, publishing
from orchestrator.changes import Decide
from orchestrator.checkpoints import CheckpointJudge
from orchestrator.decider import Decider
from orchestrator.documents import put_once, sealed
from orchestrator.ends import Ends
from orchestrator.head import HeadCore
from orchestrator.head_events import HeadEvent, HeadInstruction, HeadTimes, PutAnswered, PutUnknown
from orchestrator.jobs import next_change
from pnode.authority import Accepted, Authority, Source, Term, Verdict
from pnode.headcheck import HeadCheck
from simulation.control_keys import Keyring
from simulation.control_worker import WorkerModel
from trust.envelope import open_single, parse

Plant = Callable[[pytest.MonkeyPatch], None]


def body_composed_once(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: a taker composes its body from the first head that it sees, and sends it under whatever ETag is there."""
    takeover, learn = HeadCore._takeover, HeadCore._learn

    def remember(self: Any, *args: Any) -> None:
        learn(self, *args)
        if not hasattr(self, "prepared"):
            self.prepared = takeover(self)

    def prepared(self: Any) -> model_pb2.Head:
        return self.prepared if hasattr(self, "prepared") else takeover(self)

    patch.setattr(HeadCore, "_learn", remember)
    patch.setattr(HeadCore, "_takeover", prepared)


def takeover_begins_anew(patch: pytest.MonkeyPatch) -> None:
    """Rule 1: a takeover drops what the head said of the active job."""
    takeover = HeadCore._takeover

    def fresh(self: HeadCore) -> model_pb2.Head:
        head = takeover(self)
        head.active.running_s = 0.0
        head.ClearField("plan_digest")
        return head

    patch.setattr(HeadCore, "_takeover", fresh)


def unknown_is_success(patch: pytest.MonkeyPatch) -> None:
    """Rule 2: a write that was not answered counts as landed."""
    step = HeadCore.step

    def believe(self: HeadCore, event: HeadEvent) -> list[HeadInstruction]:
        if isinstance(event, PutUnknown) and self._busy is not None:
            event = PutAnswered(event.now, etag_of(self._busy.data))  # type: ignore[union-attr]
        return step(self, event)

    patch.setattr(HeadCore, "step", believe)


def ends_before_the_head(patch: pytest.MonkeyPatch) -> None:
    """Rule 3: `end` is written when the outcome is found, not when a head has it."""
    once = Decider._round

    async def hasty(self: Decider) -> None:
        view = self._current()
        change = None
        if view is not None:
            change = next_change(view.head, self._jobs.records, None, int(self._clock.wall() * 1000))
        if view is not None and isinstance(change, Decide):
            outcome = model_pb2.Outcome.FromString(change.outcome)
            end = sealed(identity_pb2.DOMAIN_JOB_END, model_pb2.JobEnd(outcome=outcome), self._key)
            await put_once(self._store, keys.job_end(view.model, outcome.job_id), end.data)
        await once(self)

    patch.setattr(Decider, "_round", hasty)


def holder_never_stops(patch: pytest.MonkeyPatch) -> None:
    """Rule 4: whoever held the head once decides until it hears of somebody else."""
    patch.setattr(HeadCore, "is_holder", lambda self, now: self._epoch is not None)


def impatient_taker(patch: pytest.MonkeyPatch) -> None:
    """Rule 4: a taker waits for a quarter of the TTL."""
    patch.setattr(HeadTimes, "take_s", property(lambda self: self.ttl_s / 4))


def equal_epoch_is_enough(patch: pytest.MonkeyPatch) -> None:
    """Rule 5: whoever names the present epoch is obeyed."""
    offered = Authority.offered

    def lax(self: Authority, desired: model_pb2.DesiredState, signer: NodeId) -> Verdict:
        if (
            self.term is not None
            and self.term.epoch == desired.epoch
            and signer == desired.holder
            and signer in self._orchestrators()
        ):
            return self._newer(desired)
        return offered(self, desired, signer)

    patch.setattr(Authority, "offered", lax)


def claims_are_stored(patch: pytest.MonkeyPatch) -> None:
    """Rule 5: a claimed epoch counts before it is confirmed."""
    offered = Authority.offered

    def credulous(self: Authority, desired: model_pb2.DesiredState, signer: NodeId) -> Verdict:
        verdict = offered(self, desired, signer)
        if signer in self._orchestrators() and (self.term is None or desired.epoch > self.term.epoch):
            self.term = Term(int(desired.epoch), signer)
        return verdict

    patch.setattr(Authority, "offered", credulous)


def lower_epoch_goes_down(patch: pytest.MonkeyPatch) -> None:
    """Rule 5: whatever head was read last is the term."""
    read = Authority.head_read

    def down(self: Authority, head: model_pb2.Head, signer: NodeId, source: Source) -> list[Verdict]:
        if source is not Source.ORCHESTRATOR:
            self.term = None
        return read(self, head, signer, source)

    patch.setattr(Authority, "head_read", down)


def an_orchestrators_word(patch: pytest.MonkeyPatch) -> None:
    """Rule 6: a head that an orchestrator tells confirms it."""
    read = Authority.head_read

    def believe(self: Authority, head: model_pb2.Head, signer: NodeId, source: Source) -> list[Verdict]:
        return read(self, head, signer, Source.OWN_GET)

    patch.setattr(Authority, "head_read", believe)


def ones_own_word(patch: pytest.MonkeyPatch) -> None:
    """Rule 6: a holder may vouch for itself when it is asked about another."""

    def statement(
        self: HeadCheck, envelope: identity_pb2.Envelope, asked: NodeId, model: str, nonce: bytes
    ) -> identity_pb2.Envelope:
        payload, _ = open_single(envelope, identity_pb2.DOMAIN_HEAD_STATEMENT)
        return parse(model_pb2.HeadStatement, payload).head

    patch.setattr(HeadCheck, "_statement", statement)


def local_counter(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: desired states count for themselves."""
    made = publishing.desired_states

    def counted(plan: Any, digest: str, sequence: int, *rest: Any) -> Any:
        return made(plan, digest, plan.number, *rest)

    patch.setattr(publishing, "desired_states", counted)


def older_desired_states(patch: pytest.MonkeyPatch) -> None:
    """Rule 7: a PNode obeys whatever came last."""
    patch.setattr(Authority, "_newer", lambda self, desired: Accepted(desired))


def outcome_leaves_without_end(patch: pytest.MonkeyPatch) -> None:
    """Rule 8: the oldest outcome leaves the head, and `end` objects are written when there is time."""

    async def later(self: Ends, view: Any) -> None:
        await asyncio.sleep(0)

    def decide(change: Decide, head: model_pb2.Head) -> str:
        if len(head.decided) >= changes.MAX_DECIDED:
            del head.decided[0]
        return before(change, head)

    before = changes._decide
    patch.setattr(Ends, "write", later)
    patch.setattr(changes, "_decide", decide)


def decided_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """Rule 8: what the head has decided is forgotten while its `end` is not written."""

    async def later(self: Ends, view: Any) -> None:
        await asyncio.sleep(0)

    patch.setattr(Ends, "write", later)
    patch.setattr("orchestrator.jobs.outcomes", lambda head: {})
    patch.setattr(changes, "outcomes", lambda head: {})


def unnamed_is_deleted(patch: pytest.MonkeyPatch) -> None:
    """Rule 9: what no manifest names is deleted without being condemned first."""

    async def delete(store: Any, model: str, manifest: model_pb2.Manifest, states: Any, kept: Any) -> bool:
        named = {item.digest for entry in manifest.entries for item in (*entry.working, entry.cleared)}
        for state in states:
            if state.digest not in named:
                await store.delete(keys.state(model, state.vnode, state.digest))
        return False

    patch.setattr("orchestrator.retention.delete_condemned", delete)


def unseen_states_are_named(patch: pytest.MonkeyPatch) -> None:
    """Invariant 4: a checkpoint is named although nobody looked whether its state is there, and some PNode lied."""
    put = WorkerModel._put

    async def sometimes(self: WorkerModel, key: str, data: bytes) -> None:
        if "/state/" not in key:
            await put(self, key, data)

    async def trust(self: CheckpointJudge, *told: object) -> None:
        await asyncio.sleep(0)

    patch.setattr(WorkerModel, "_put", sometimes)
    patch.setattr(CheckpointJudge, "_check_object", trust)
    patch.setattr(CheckpointJudge, "_check_state", trust)


def signatures_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Invariant 7: whoever is named as the signer is the signer."""
    patch.setattr(Keyring, "verify", lambda self, public_der, data, signature: True)
