"""What must hold of every write of the store, checked at the moment it lands: who decides, what the head may change, what a manifest may name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dataservice import keys
from dcnr.ids import digest_of
from dcnr.v1 import model_pb2
from orchestrator.changes import MAX_DECIDED, TERMINAL
from orchestrator.documents import open_desired, open_end, open_head, open_manifest, open_plan
from orchestrator.jobs import intervals
from simulation.control_backup_checkers import BackupCheckers
from simulation.control_identity import MODEL
from simulation.control_ledger_checkers import LedgerCheckers
from simulation.control_pause_checkers import PauseCheckers
from simulation.control_plan_checkers import PlanCheckers

if TYPE_CHECKING:
    from simulation.control_world import ControlWorld


class StoreCheckers:
    """Knows every head that ever lay in the store, and what it named."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self.terms: set[tuple[int, str]] = set()
        self._heads: set[str] = set()
        self._plans: dict[str, tuple[int, int, str]] = {}
        self._decided: dict[str, model_pb2.Outcome] = {}
        self._condemned: dict[str, float] = {}
        """By digest: when it was condemned, until it is forgotten."""
        self._planned = ""
        """The plan under the head."""
        self.plans = PlanCheckers(world)
        self.ledger = LedgerCheckers(world)
        self.pauses = PauseCheckers(world)
        self.backups = BackupCheckers(world)
        self.num_head_writes = self.num_takeovers = self.num_manifests = self.num_deleted = 0

    def stored(self, key: str, old: bytes | None, new: bytes | None) -> None:
        """A write or deletion landed."""
        if key == keys.head(MODEL):
            assert new is not None
            self._head(old, new)
        elif key.endswith("/end"):
            self._end(key.split("/")[-2], old, new)
        elif new is None and "/desired/" in key:
            self._world.require(
                f"/{self._planned}/" not in key, "deletion", f"{key} is deleted, which the plan under the head told"
            )
        elif new is None:
            digest = key.rsplit("/", 1)[-1].removesuffix(".safetensors")
            self.num_deleted += 1
            is_condemned = "/state/" in key and digest in self._condemned
            self._world.require(is_condemned, "deletion", f"{key} is deleted, which no head's manifest had condemned")
        else:
            self._world.require(old is None or old == new, "immutable", f"{key} was written twice")

    def _end(self, job_id: str, old: bytes | None, new: bytes | None) -> None:
        """An end repeats what a landed head has decided, and is written once."""
        world = self._world
        world.require(new is not None and old in (None, new), "one_outcome", f"the end of {job_id} was changed")
        assert new is not None
        outcome = open_end(new, world.community.policy, MODEL, job_id)[0]
        decided = self._decided.get(job_id)
        known = outcome in (decided, self.backups.undone.get(job_id))
        world.require(known, "act_after", f"the end of {job_id} is written, the head had decided {decided}")
        self._decided[job_id] = outcome

    def restored(self, before: Mapping[str, bytes]) -> None:
        """The store went back, and held that before: what it holds now counts, and of what was decided since its head was written the ends that are there."""
        world, store, head = self._world, self._world.store.store, self._world.head()
        assert head is not None
        self.backups.restored(before, self._decided, max(epoch for epoch, _ in self.terms))
        ended = {name: one for name, one in self._decided.items() if store.peek(keys.job_end(MODEL, name)) is not None}
        self._decided = {**ended, **{item.job_id: item for item in head.decided}}
        self._condemned = dict.fromkeys(self._read_manifest(head.manifest_digest).condemned if head.manifest_digest else (), 0.0)
        self._planned = head.plan_digest
        data = store.peek(keys.plan(MODEL, head.plan_digest)) if head.plan_digest else None
        self.plans.restored(open_plan(data, world.community.policy, MODEL) if data is not None else None)

    def _head(self, old_bytes: bytes | None, new_bytes: bytes) -> None:
        """A head write landed: compare it with the one it replaced."""
        world, policy = self._world, self._world.community.policy
        new = open_head(new_bytes, policy, MODEL)
        old = open_head(old_bytes, policy, MODEL) if old_bytes is not None else model_pb2.Head()
        self.num_head_writes += 1
        self._heads.add(digest_of(new_bytes))
        world.require(new.sequence > old.sequence, "sequence", f"sequence {old.sequence} then {new.sequence}")
        self.backups.landed(new)
        if new.epoch != old.epoch or new.holder != old.holder:
            self.num_takeovers += 1
            is_next = new.epoch == old.epoch + 1 or old.epoch < new.epoch <= self.backups.highest_epoch + 1
            world.require(is_next, "takeover", f"({old.epoch}, {old.holder[:8]}) then ({new.epoch}, {new.holder[:8]})")
            if old_bytes is not None:
                copy = model_pb2.Head()
                copy.CopyFrom(new)
                copy.epoch, copy.holder, copy.sequence = old.epoch, old.holder, old.sequence
                world.require(copy == old, "takeover", f"the takeover of epoch {new.epoch} changes more than the term")
            self.terms.add((int(new.epoch), new.holder))
        self._planned = new.plan_digest
        self._jobs(old, new)
        self._plan(old, new)
        self._manifest(old, new)

    def _jobs(self, old: model_pb2.Head, new: model_pb2.Head) -> None:
        """Outcomes are for ever; what leaves the head has its end; times only grow."""
        world = self._world
        before = {item.job_id: item for item in old.decided}
        after = {item.job_id: item for item in new.decided}
        world.require(len(after) == len(new.decided) <= MAX_DECIDED, "decided_books", f"{len(new.decided)} outcomes")
        for job_id in before.keys() - after.keys():
            has_end = world.store.store.peek(keys.job_end(MODEL, job_id)) is not None
            world.require(has_end, "decided_lost", f"{job_id} leaves the head before its end exists")
        for job_id, outcome in after.items():
            known = self._decided.get(job_id)
            again = known == outcome and (job_id in before or self.backups.may_repeat(job_id))
            world.require(known is None or again, "one_outcome", f"{job_id} is decided again")
            if known is None:
                self._outcome(outcome)
                if job_id == old.active.job_id:
                    self.pauses.ended(old.active, outcome)
            self._decided[job_id] = outcome
        was, now = old.active, new.active
        if was.job_id and was.job_id != now.job_id:
            world.require(was.job_id in after, "job_lost", f"{was.job_id} leaves the head without an outcome")
        if now.job_id and now.job_id != was.job_id:
            world.require(now.job_id not in self._decided, "one_outcome", f"{now.job_id} runs again")
            world.require(
                now.job_id in world.maintainers.accepted or world.store.store.peek(keys.job_request(MODEL, now.job_id)) is not None,
                "job_lost",
                now.job_id,
            )
        if now.job_id == was.job_id and now.job_id:
            self.pauses.moved(was, now, may_begin_anew=new.manifest_digest != old.manifest_digest)

    def _outcome(self, outcome: model_pb2.Outcome) -> None:
        self._world.require(outcome.state in TERMINAL, "decided_books", f"{outcome.job_id} ends as {outcome.state}")
        if outcome.state == model_pb2.JOB_STATE_COMPLETED:
            manifest = self._read_manifest(outcome.manifest_digest)
            for entry in manifest.entries:
                newest = entry.working[0]
                whole = newest.job_id == outcome.job_id and intervals(newest.lineage).is_exactly(0, self._world.knobs.num_batches)
                if self._world.knobs.audited:
                    self.ledger.completed(outcome.job_id, outcome.reason)
                self._world.require(whole, "completed_whole", f"{outcome.job_id}: {entry.vnode} has {intervals(newest.lineage)}")

    def _plan(self, old: model_pb2.Head, new: model_pb2.Head) -> None:
        """A plan that the head names is in the store with all its desired states, follows the one before, and explains itself."""
        if new.plan_digest == old.plan_digest:
            self._world.require(
                new.plan_sequence == old.plan_sequence, "plan_sequence", "the plan's sequence changed without a plan"
            )
            return
        world, store = self._world, self._world.store.store
        data = store.peek(keys.plan(MODEL, new.plan_digest))
        world.require(
            data is not None and digest_of(data) == new.plan_digest, "plan_whole", "the head names a plan that is not there"
        )
        assert data is not None
        plan = open_plan(data, world.community.policy, MODEL)
        world.require(
            plan.parent_digest == old.plan_digest, "composed_anew", f"plan {plan.number} was made for another predecessor"
        )
        world.require((plan.epoch, plan.holder) == (new.epoch, new.holder), "takeover", f"plan {plan.number} is of another term")
        world.require(plan.sequence == new.sequence, "plan_sequence", f"plan {plan.number} was made for sequence {plan.sequence}")
        world.require(new.plan_sequence == new.sequence, "plan_sequence", f"plan {plan.number} has another sequence than its head")
        self.backups.planned(new, plan, self.plans.last)
        desired: dict[str, model_pb2.DesiredState] = {}
        for pnode_id in sorted({item.pnode_id for item in plan.assignments}):
            found = store.peek(keys.desired(MODEL, new.plan_digest, pnode_id))
            if found is not None:
                desired[pnode_id] = open_desired(found, world.community.policy, MODEL)
            there = pnode_id in desired and desired[pnode_id].sequence == new.sequence
            world.require(there, "plan_whole", f"plan {plan.number}: no desired state of that sequence for {pnode_id[:8]}")
        self._plans[new.plan_digest] = (int(new.sequence), int(new.epoch), new.holder)
        for item in plan.assignments:
            world.require(bool(item.reason), "explain", f"{item.replica} is placed without a reason")
        explained = {item.vnode for item in plan.rejections if item.reason}
        unexplained = [vnode for vnode in plan.waiting if vnode not in explained]
        world.require(not unexplained, "explain", f"{unexplained} wait in plan {plan.number}, no rejection says why")
        manifest = self._read_manifest(new.manifest_digest) if new.manifest_digest else model_pb2.Manifest()
        self.plans.landed(plan, desired, manifest)
        self.backups.given(plan)

    def _manifest(self, old: model_pb2.Head, new: model_pb2.Head) -> None:
        """A manifest under the head names what exists, follows the one before, and never goes back."""
        if new.manifest_digest == old.manifest_digest:
            return
        world = self._world
        manifest = self._read_manifest(new.manifest_digest)
        self.num_manifests += 1
        self._whole(manifest)
        if not world.knobs.audited:
            self._credited(manifest)
        elif new.active.job_id != old.active.job_id:
            self.ledger.begin(manifest)
        else:
            self.ledger.landed(manifest, settles=new.active.state == model_pb2.JOB_STATE_SETTLING)
        if new.active.job_id == old.active.job_id and old.manifest_digest:
            world.require(
                manifest.parent_digest == old.manifest_digest, "composed_anew", f"manifest {manifest.number} has another parent"
            )
            self._never_back(self._read_manifest(old.manifest_digest), manifest)
        for digest in manifest.condemned:
            self._condemned.setdefault(digest, world.kernel.now_s)

    def _whole(self, manifest: model_pb2.Manifest) -> None:
        for entry in manifest.entries:
            for checkpoint in (*entry.working, entry.cleared):
                if checkpoint.digest:
                    self._exists(entry.vnode, checkpoint)

    def _exists(self, vnode: str, checkpoint: model_pb2.Checkpoint) -> None:
        data = self._world.store.store.peek(keys.state(MODEL, vnode, checkpoint.digest))
        there = data is not None and digest_of(data) == checkpoint.digest and len(data) == checkpoint.size_bytes
        self._world.require(there, "manifest_whole", f"{vnode}: the manifest names {checkpoint.digest[:12]}, which is not there")
        self._named(vnode, checkpoint)
        again = checkpoint.digest in self._condemned
        self._world.require(not again, "condemned", f"{vnode}: {checkpoint.digest[:12]} was condemned and is named again")

    def _named(self, vnode: str, checkpoint: model_pb2.Checkpoint) -> None:
        """A manifest names a checkpoint: who made it is known elsewhere."""

    def _credited(self, manifest: model_pb2.Manifest) -> None:
        """A manifest says who learned what: who did is known elsewhere."""

    def _never_back(self, before: model_pb2.Manifest, after: model_pb2.Manifest) -> None:
        old = {entry.vnode: entry.working[0] for entry in before.entries}
        self._world.require(set(old) == {entry.vnode for entry in after.entries}, "manifest_whole", "a VNode is missing")
        for entry in after.entries:
            was, now = old[entry.vnode], entry.working[0]
            same = (was.job_id, was.replica, was.incarnation) == (now.job_id, now.replica, now.incarnation)
            same = same and was.digest not in after.retracted
            lost = intervals(was.lineage) - intervals(now.lineage)
            self._world.require(
                not (same and lost), "manifest_back", f"{entry.vnode}: step {was.step} then {now.step} of one incarnation"
            )
        for entry in before.entries:
            for digest in set(before.condemned) - set(after.condemned):
                is_there = self._world.store.store.peek(keys.state(MODEL, entry.vnode, digest)) is not None
                self._world.require(not is_there, "condemned", "a condemned digest was forgotten whose state is there")
        for digest in set(before.condemned) - set(after.condemned):
            age_s = self._world.kernel.now_s - self._condemned.pop(digest)
            self._world.require(
                age_s >= self._world.knobs.grant_lifetime_s, "condemned", "a condemned digest was forgotten too soon"
            )

    def _read_manifest(self, digest: str) -> model_pb2.Manifest:
        data = self._world.store.store.peek(keys.manifest(MODEL, digest))
        self._world.require(data is not None and digest_of(data) == digest, "manifest_whole", f"no manifest {digest[:12]}")
        assert data is not None
        return open_manifest(data, self._world.community.policy, MODEL)
