"""What must hold for each volunteer's machine, looked at from outside: its limits, its beats, what it runs, what is said about it, and what it is good for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dataservice import keys
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import local_pb2, model_pb2, orchestrator_pb2
from orchestrator.documents import open_desired, open_plan
from orchestrator.explain import explain_model
from orchestrator.jobs import intervals
from simulation.control_identity import MODEL
from simulation.control_store_checkers import StoreCheckers

if TYPE_CHECKING:
    from simulation.control_orchestrator import OrchestratorShell
    from simulation.control_pnode import PNodeShell
    from simulation.control_replica import Replica
    from simulation.control_world import ControlWorld

BEAT_LATE_S: Final = 2.5
"""A beat arrives within this time: latency, and a repetition of it a second later."""
EVIDENCE_OLD_S: Final = 20.0
"""A probe that failed longer ago says nothing about now."""
OWN_LOOK: Final = ("nor this orchestrator reaches it", "does not answer this orchestrator any more")
"""What the reasons of judgements say that rest on a probe of our own."""
USELESS_S: Final = 240.0
"""A PNode that reports work and brings none keeps a VNode for at most so long where others fit."""
EXPLAINED: Final = 10
"""VNodes of which one missing batch is asked for at once."""


class VolunteerCheckers(StoreCheckers):
    """See the module."""

    def __init__(self, world: ControlWorld) -> None:
        super().__init__(world)
        self._useless_since: dict[tuple[str, str], float] = {}
        self._made: dict[str, tuple[str, str]] = {}
        self._descends: set[str] = set()
        self._learned: dict[tuple[str, str, str], IntervalSet] = {}
        """By job, replica and PNode."""
        self._turn = 0
        self.num_explained = self.num_beats = self.num_useless = self.num_merged = 0

    # ---- limits and code -------------------------------------------------------------------------------------------------------

    def hosting(self, pnode: PNodeShell, message: local_pb2.HostReplica) -> None:
        """A worker begins with a replica: only what the persisted desired state names, of a job that maintainers signed, with its graph."""
        world, name = self._world, message.assignment.replica
        data = pnode.disk.get(f"home/desired-{MODEL}.pb")
        held = open_desired(data, world.community.policy, MODEL).assignments if data is not None else ()
        named = any(item.replica == name for item in held)
        world.require(named, "persist_first", f"{pnode.host} hosts {name}, which its persisted state does not name")
        signed = message.job_id in world.maintainers.signed and message.graph == world.community.graph_bytes
        world.require(signed, "strangers_code", f"{pnode.host} hosts {name} of {message.job_id}, which no maintainer has signed")

    def limits(self, pnode: PNodeShell) -> None:
        """What a machine hosts is reserved, and all reservations together are within what its owner lends."""
        reserved = pnode.budget.reserved
        memory = sum(item.memory_bytes for item in reserved.values())
        disk = sum(item.disk_bytes for item in reserved.values())
        within = memory <= pnode.budget.usable_memory_bytes and disk <= pnode.allowed.disk_bytes
        self._world.require(within, "limits", f"{pnode.host}: {memory} bytes of memory, {disk} of disk are taken")
        more = sorted(set(pnode.worker.replicas) - set(reserved))
        self._world.require(not more, "limits", f"{pnode.host} hosts {more} without a reservation")

    # ---- beats and reputation --------------------------------------------------------------------------------------------------

    def beat(self, shell: OrchestratorShell, sent_s: float) -> None:
        """A beat arrived: whatever else is on the way, it did not wait for it."""
        self.num_beats += 1
        late_s = self._world.kernel.now_s - sent_s
        self._world.require(late_s <= BEAT_LATE_S, "beats_on_time", f"a beat reaches {shell.host} after {late_s:.1f} s")

    def judged(self, shell: OrchestratorShell, node_id: str, reason: str) -> None:
        """A PNode counts as gone because we do not reach it, with a word of others or without: then it cannot be reached indeed."""
        pnode = self._world.pnode(node_id)
        if pnode is None or not any(words in reason for words in OWN_LOOK):
            return
        failed_s = shell.unreached_s.get(node_id, -1e9)
        true = self._world.kernel.now_s - failed_s <= EVIDENCE_OLD_S
        self._world.require(true, "forged_evidence", f"{shell.host} gives up {pnode.host}, which it reaches: {reason}")

    # ---- contributions ---------------------------------------------------------------------------------------------------------

    def learned(self, pnode: PNodeShell, replica: Replica, batches: IntervalSet) -> None:
        """A replica took steps on those batches."""
        key = (replica.job_id, replica.replica, str(pnode.node_id))
        self._learned[key] = self._learned.get(key, IntervalSet.empty()) | batches
        self.pauses.learned(pnode, replica.replica, batches)

    def merges(self, primary: Replica, batches: IntervalSet) -> None:
        """A primary is about to take in a delta: nothing of it is in its state yet."""
        self.num_merged += 1
        twice = batches & primary.lineage
        self._world.require(not twice, "counted_twice", f"{primary.replica} takes in {twice} again")

    def _credited(self, manifest: model_pb2.Manifest) -> None:
        """Who a manifest says has learned something has learned it, on that machine."""
        for one in manifest.contributions:
            known = self._learned.get((manifest.job_id, one.replica, one.pnode_id), IntervalSet.empty())
            more = intervals(one.batches) - known
            self._world.require(not more, "credited", f"manifest {manifest.number}: {one.replica} never learned {more}")

    def made(self, replica: Replica, digest: str, parent: str) -> None:
        """A replica has made that state or anchor."""
        self._made[digest] = replica.replica, parent

    def _named(self, vnode: str, checkpoint: model_pb2.Checkpoint) -> None:
        """What a manifest names was made by a worker for that replica, from a state that descends from checkpoint 0."""
        if digest_of(self._world.community.initial[vnode]) == checkpoint.digest:
            return
        made = self._made.get(checkpoint.digest)
        honest = made is not None and made[0] == checkpoint.replica and made[1] == checkpoint.parent_digest
        self._world.require(
            honest, "forged_checkpoint", f"{vnode}: {checkpoint.digest[:12]} was made by nobody for {checkpoint.replica}"
        )
        digest = checkpoint.digest
        while digest not in self._descends and digest != digest_of(self._world.community.initial[vnode]):
            self._world.require(
                digest in self._made, "descends", f"{vnode}: {checkpoint.digest[:12]} does not descend from checkpoint 0"
            )
            digest = self._made[digest][1]
        self._descends.add(checkpoint.digest)

    def useful(self) -> None:
        """A PNode that lies about its work does not keep a VNode of a running job for ever. As one of several replicas it may: its share is others' soon."""
        if not self._world.knobs.lying_pnodes:
            return
        world, head, now = self._world, self._world.head(), self._world.kernel.now_s
        busy = head is not None and head.active.state in (model_pb2.JOB_STATE_RUNNING, model_pb2.JOB_STATE_SETTLING)
        data = (
            world.store.store.peek(keys.plan(MODEL, head.plan_digest)) if head is not None and busy and head.plan_digest else None
        )
        if data is None:
            self._useless_since.clear()
            return
        plan = open_plan(data, world.community.policy, MODEL)
        liars, primary = world.liars, model_pb2.ROLE_PRIMARY
        held = {(item.replica, item.pnode_id) for item in plan.assignments if item.pnode_id in liars and item.role == primary}
        self._useless_since = {key: self._useless_since.get(key, now) for key in held}
        for (replica, node_id), since in self._useless_since.items():
            kept = now - max(since, world.healed_s)
            world.require(
                world.is_unsafe or kept < USELESS_S, "useless", f"{node_id[:8]} keeps {replica} for {kept:.0f} s and brings nothing"
            )

    # ---- explanations ----------------------------------------------------------------------------------------------------------

    def explains(self, shell: OrchestratorShell) -> None:
        """For any batch that is missing from a VNode's durable lineage, the holder says who needs it and what it waits for."""
        world, view, head = self._world, shell.runtime.view, shell.runtime.head
        if view is None or head is None or not head.active.job_id or view.head.active.job_id != head.active.job_id:
            return
        durable = view.durable(head.active.job_id)
        for vnode in self._in_turn(world.community.vnodes):
            lowest = durable.get(vnode, IntervalSet.empty()).complement(0, world.knobs.num_batches).lowest()
            if lowest is None:
                continue
            lines = explain_model(shell.runtime, vnode, lowest)
            told = [line for line in lines if line.reason and line.verdict and line.verdict != "durable"]
            self.num_explained += 1
            world.require(bool(told), "explain_missing", f"nobody says why batch {lowest} of {vnode} is missing")
            self._has_owner(vnode, lowest, told)

    def _in_turn(self, vnodes: tuple[str, ...]) -> tuple[str, ...]:
        """All where they are few, else some at a time."""
        if len(vnodes) <= EXPLAINED:
            return vnodes
        self._turn = (self._turn + EXPLAINED) % len(vnodes)
        return (vnodes + vnodes)[self._turn : self._turn + EXPLAINED]

    def _has_owner(self, vnode: str, batch: int, told: list[orchestrator_pb2.Explanation]) -> None:
        """Of a VNode that is placed, a replica is named; of one that is not, why it is not."""
        owned = [line for line in told if line.subject.startswith(f"{vnode} ") or line.verdict in ("unplaced", "unknown", "store")]
        self._world.require(
            bool(owned), "explain_missing", f"{vnode} batch {batch}: {[line.verdict for line in told]} name no owner"
        )
