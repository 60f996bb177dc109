"""What must hold in the control world, looked at from outside: every write of the store as it lands, every desired state as it is persisted, every
message before and after, and the whole at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from dataservice import keys
from dcnr.ids import digest_of
from dcnr.v1 import model_pb2
from orchestrator.documents import open_desired, open_end, open_plan
from simulation.control_identity import MODEL
from simulation.control_volunteer_checkers import VolunteerCheckers

if TYPE_CHECKING:
    from simulation.control_orchestrator import OrchestratorShell
    from simulation.control_pnode import PNodeShell
    from simulation.control_replica import Replica
    from simulation.control_worker import WorkerModel
    from simulation.control_world import ControlWorld

TAKEN_OVER_S: Final = 25.0
"""After the heal somebody holds the head within this time: 1.2 TTL of one ETag, two polls, a slow store."""
PLACED_S: Final = 60.0
"""After the heal a job that is active since has every VNode at work within this time."""
LOOKED_AT: Final = 100
"""PNodes that are looked at at once."""


class ControlCheckers(VolunteerCheckers):
    """See the module."""

    def __init__(self, world: ControlWorld) -> None:
        super().__init__(world)
        self._newest: dict[str, tuple[int, int]] = {}
        self._known_terms: dict[tuple[str, int], int] = {}
        self._at_work: list[tuple[PNodeShell, WorkerModel, Replica, int]] = []
        self._waiting_since: dict[str, float] = {}
        self._looked = self._checked = 0
        self.num_tampered = self.num_obeyed = 0
        self.num_refused: dict[str, int] = {}

    # ---- what others tell ------------------------------------------------------------------------------------------------

    def said(self, reporter: str, kind: str, subject: str, reason: str, facts: Mapping[str, Any]) -> None:
        """An event of an orchestrator or a PNode: every decision in it has a reason."""
        self._world.kernel.note("says", reporter[:8], kind, subject[:24], reason[:160])
        if kind in ("replica_placed", "replica_relocated", "plan_made", "checkpoint_refused", "job_ended"):
            self._world.require(bool(reason), "explain", f"{kind} of {subject} without a reason")
        if kind == "replica_relocated":
            self._world.require(bool(facts.get("from_pnode")), "explain", f"{subject} moved from nowhere")
        self._world.require(kind != "end_differs", "one_outcome", f"{subject}: {reason}")

    def refused(self, pnode: PNodeShell, checkpoint: model_pb2.Checkpoint, reason: str) -> None:
        """A checkpoint was refused."""
        key = reason.split(" ", 1)[-1][:40]
        self.num_refused[key] = self.num_refused.get(key, 0) + 1

    def died(self, pnode: PNodeShell, *, kept_disk: bool) -> None:
        """A machine died; what it had persisted is gone with its disk."""
        if not kept_disk:
            self._newest.pop(pnode.node_id, None)
            self.pauses.died(pnode)

    # ---- PNodes ----------------------------------------------------------------------------------------------------------

    def persisted(self, pnode: PNodeShell, path: str, data: bytes) -> None:
        """A PNode wrote a file: a desired state that it will obey, or a head that it takes as confirmed."""
        world = self._world
        if path.startswith("home/head-"):
            world.require(digest_of(data) in self._heads, "unconfirmed", f"{pnode.host} keeps a head that never lay in the store")
        if not path.startswith("home/desired-"):
            return
        desired = open_desired(data, world.community.policy, MODEL)
        who = f"{pnode.host}, epoch {desired.epoch} of {desired.holder[:8]}, plan {desired.plan_number}"
        world.require((int(desired.epoch), desired.holder) in self.terms, "obeys", f"{who}: a term that never was")
        landed = self._plans.get(desired.plan_digest)
        world.require(landed is not None, "act_after", f"{who}: a plan that no head names")
        assert landed is not None
        expected = (int(desired.sequence), int(desired.epoch), desired.holder)
        world.require(landed == expected, "obeys", f"{who}: sequence {desired.sequence} instead of {landed}")
        is_stored = self.backups.has_held(keys.desired(MODEL, desired.plan_digest, pnode.node_id), data)
        world.require(is_stored, "delivered_unchanged", f"{who}: not the stored desired state")
        last, now = self._newest.get(pnode.node_id, (0, 0)), (int(desired.epoch), int(desired.sequence))
        world.require(now > last, "obeys_older", f"{who}: sequence {desired.sequence} after epoch {last[0]}, sequence {last[1]}")
        self._newest[pnode.node_id] = now
        self.pauses.told(pnode, desired)
        self.num_obeyed += 1

    def before_message(self, pnode: PNodeShell, data: bytes) -> tuple[object, ...] | None:
        """What a tampered message must not change."""
        if not self._world.wire.was_changed(data):
            return None
        self.num_tampered += 1
        return self._believes(pnode)

    def after_message(self, pnode: PNodeShell, before: tuple[object, ...] | None) -> None:
        """After a message: nothing follows from a tampered one, and only confirmed terms are believed."""
        if before is not None:
            self._world.require(self._believes(pnode) == before, "tampered", f"{pnode.host} believes a tampered message")
        self._term(pnode)

    def attached(self, data: bytes) -> None:
        """An orchestrator took a greeting for good."""
        self._world.require(not self._world.wire.was_changed(data), "tampered", "a tampered greeting opened a control stream")

    def recorded(self, data: bytes, said: model_pb2.JobPause) -> None:
        """An orchestrator tells maintainers that their statement is recorded."""
        self._world.require(not self._world.wire.was_changed(data), "tampered", "a tampered statement was recorded")
        self.pauses.recorded(said)

    def _believes(self, pnode: PNodeShell) -> tuple[object, ...]:
        entry = pnode.duties._models.get(MODEL)
        if entry is None:
            return ()
        authority = entry.authority
        waiting = tuple(sorted(authority._pending))
        return authority.term, authority.newest, authority.head.sequence if authority.head else 0, waiting

    def _term(self, pnode: PNodeShell) -> None:
        entry = pnode.duties._models.get(MODEL)
        term = entry.authority.term if entry is not None else None
        if term is None:
            return
        is_real = (term.epoch, term.holder) in self.terms
        self._world.require(is_real, "unconfirmed", f"{pnode.host} believes in epoch {term.epoch} of {term.holder[:8]}")
        key = (pnode.node_id, pnode.lives)
        self._world.require(term.epoch >= self._known_terms.get(key, 0), "term_back", f"{pnode.host} goes back to {term.epoch}")
        self._known_terms[key] = term.epoch

    # ---- now and then ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Every half second: one decider at most; after the heal somebody decides, and every VNode works again within a bound."""
        world, now = self._world, self._world.kernel.now_s
        self.plans.look()
        holders = [shell.host for shell in world.honest() if shell.is_holder and not self.backups.may_hold_on(shell)]
        world.require(len(holders) <= 1, "two_holders", f"{holders} decide at once")
        for shell in self._inventories():
            if shell.is_alive:
                shell.shared.inventory.check()
        for pnode in self._some(world.pnodes):
            if pnode.process.alive and hasattr(pnode, "duties"):
                self._term(pnode)
                self.limits(pnode)
        for shell in world.honest():
            if shell.is_holder:
                self.explains(shell)
        self.useful()
        if world.is_unsafe:
            return
        if now > world.healed_s + TAKEN_OVER_S:
            world.require(len(holders) == 1, "takeover_bound", "nobody decides\n" + "\n".join(world.story()))
        self._placed(now)
        self.pauses.look()

    def _inventories(self) -> list[OrchestratorShell]:
        """All where they are small, else one in its turn."""
        shells = self._world.orchestrators
        if len(self._world.pnodes) <= LOOKED_AT:
            return shells
        self._checked += 1
        return [shells[self._checked % len(shells)]]

    def _some(self, pnodes: list[PNodeShell]) -> list[PNodeShell]:
        """All where they are few, else each in its turn."""
        if len(pnodes) <= LOOKED_AT:
            return pnodes
        self._looked = (self._looked + LOOKED_AT) % len(pnodes)
        return (pnodes + pnodes)[self._looked : self._looked + LOOKED_AT]

    def _placed(self, now: float) -> None:
        """Which VNodes of the active job are not at work, and for how long."""
        world, head = self._world, self._world.head()
        if head is None or not self._to_be_placed(head.active):
            self._waiting_since.clear()
            return
        working = {
            replica.vnode
            for pnode in world.pnodes
            if pnode.process.alive and pnode.worker.alive
            for replica in pnode.worker.replicas.values()
            if replica.job_id == head.active.job_id and replica.leads
        }
        for vnode in world.community.vnodes:
            if vnode in working:
                self._waiting_since.pop(vnode, None)
                continue
            since = self._waiting_since.setdefault(vnode, max(now, world.healed_s))
            if now - since > PLACED_S:
                world.fail("relocation_bound", f"{vnode} works nowhere for {now - since:.0f} s\n" + "\n".join(world.story()))

    def _to_be_placed(self, active: model_pb2.ActiveJob) -> bool:
        """Whether every VNode of that job has to be at work: one that was paused before it was placed is placed when it goes on."""
        if active.state == model_pb2.JOB_STATE_PAUSED:
            return self.plans.job_id == active.job_id
        return active.state in (model_pb2.JOB_STATE_PLACING, model_pb2.JOB_STATE_RUNNING)

    def blackout_began(self) -> None:
        """All orchestrators are dead: who has something to learn?"""
        self._at_work = [
            (pnode, pnode.worker, replica, len(replica.lineage))
            for pnode in self._world.pnodes
            if pnode.process.alive
            for replica in pnode.worker.replicas.values()
            if replica.lacks(pnode.loop.time())
        ]

    def blackout_over(self) -> None:
        """They learned meanwhile, those that lived."""
        survivors = [
            (len(replica.lineage), before)
            for pnode, worker, replica, before in self._at_work
            if pnode.worker is worker and pnode.process.alive and not pnode.process.paused and replica.replica in worker.replicas
            if not replica.halted
        ]
        works = not survivors or any(now > before for now, before in survivors)
        self._world.require(works, "works_on", "nothing was learned while all orchestrators were dead")

    def at_end(self) -> None:
        """Each job has exactly one outcome, in head and end alike; the manifest is whole; moves stay in proportion to what went wrong."""
        world, store = self._world, self._world.store.store
        head = world.head()
        assert head is not None
        decided = {item.job_id: item for item in head.decided}
        resting = {world.maintainers.resting} & set(world.maintainers.unfinished())
        for name in sorted(world.maintainers.accepted.keys() - resting):
            data = store.peek(keys.job_end(MODEL, name))
            world.require(data is not None, "job_lost", f"{name} has no end")
            assert data is not None
            end = open_end(data, world.community.policy, MODEL, name)[0]
            world.require(
                self._decided.get(name) == end, "one_outcome", f"{name} ends as {end}, decided was {self._decided.get(name)}"
            )
            world.require(decided.get(name, end) == end, "one_outcome", f"{name}: head and end differ")
            ran = self._decided[name].state == model_pb2.JOB_STATE_COMPLETED
            world.require(ran or name not in world.must_complete, "completes", f"{name} ended as\n{end}")
        manifest = self._read_manifest(head.manifest_digest)
        self._whole(manifest)
        self.pauses.at_end(head, manifest)
        behind = [pnode.host for pnode in world.pnodes if pnode.process.alive and not self._follows(pnode, head)]
        world.require(not behind, "follows", f"{behind} do not follow epoch {head.epoch}\n" + "\n".join(world.story()))
        self._settled(head)

    def _follows(self, pnode: PNodeShell, head: model_pb2.Head) -> bool:
        """A PNode that was told anything knows the head's term."""
        entry = pnode.duties._models.get(MODEL)
        return entry is None or entry.authority.term is None or entry.authority.term.epoch == head.epoch

    def _settled(self, head: model_pb2.Head) -> None:
        """Workers host exactly what the plan under the head names."""
        data = self._world.store.store.peek(keys.plan(MODEL, head.plan_digest)) if head.plan_digest else None
        if data is None:
            return
        plan = open_plan(data, self._world.community.policy, MODEL)
        wanted = {(item.pnode_id, item.replica) for item in plan.assignments}
        hosted = {
            (pnode.node_id, replica) for pnode in self._world.pnodes if pnode.process.alive for replica in pnode.worker.replicas
        }
        strays = sorted(replica for _, replica in hosted - wanted)
        self._world.require(not strays, "strays", f"{strays} are hosted though plan {plan.number} does not name them there")
        over = {name for name, outcome in self._decided.items() if outcome.state != model_pb2.JOB_STATE_COMPLETED}
        self._world.require(plan.job_id not in over, "strays", f"plan {plan.number} still places {plan.job_id}, which has ended")
