"""The worker as a model: replicas that learn batch after batch in virtual time, take snapshots, and bring them into the store until a manifest names them.

Every state is real bytes with a real digest, every snapshot has a signed commit, so that the judge of checkpoints is met as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dataservice import keys
from dcnr.errors import DcnrError, Stale, Unavailable
from dcnr.ids import Digest, NodeId, ReplicaId, digest_of
from dcnr.v1 import common_pb2, data_pb2, identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from orchestrator.jobs import intervals
from pnode.chain import CommitChain, Standing
from pnode.snapshots import StartingState
from pnode.uploads import MOST_LOST
from simulation.control_disk import SimPath
from simulation.control_identity import MODEL, lineage_in, state_bytes
from simulation.control_merges import exchange
from simulation.control_replica import ALONE_S, MERGE_S, Replica
from trust.envelope import digest_of_envelope
from vnode.merging import Merging
from vnode.vocabulary import Peer

if TYPE_CHECKING:
    from simulation.control_pnode import PNodeShell

BRING_S: Final = 0.5
CHEAT_RATE: Final = 0.5
"""Of what a cheat commits so much is wrong."""


@dataclass(slots=True)
class Snapshot:
    """One snapshot with how far it has come."""

    checkpoint: model_pb2.Checkpoint
    commit: identity_pb2.Envelope
    data: bytes
    ancestors: list[identity_pb2.Envelope]
    """Commits of others that lead to it."""
    commit_stored: bool = False
    uploaded: bool = False
    num_lost: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Later ones are higher."""
        return int(self.checkpoint.incarnation), int(self.checkpoint.step)


class WorkerModel:
    """One worker and the daemon's shelf beside it."""

    def __init__(self, pnode: PNodeShell) -> None:
        self._pnode = pnode
        self._answers = pnode.world.kernel.rng(f"merges/{pnode.host}/{pnode.lives}")
        self.delegation = identity_pb2.Envelope()
        self.alive = False
        self.replicas: dict[str, Replica] = {}
        self._head_seen_s = pnode.loop.time()
        self._told: NodeId | None = None
        self._wake = asyncio.Event()
        self._line_free_s = 0.0
        self.pending: list[Snapshot] = pnode.shelf
        """Snapshots that no manifest names yet; they lie on disk."""
        self._named: dict[str, Snapshot] = pnode.named
        """By VNode: the newest snapshot that a manifest has named; it lies on disk too."""
        self._sequences: dict[str, int] = {}
        """By replica that this life let go of: the number of its last commit."""

    async def start(self) -> None:
        """A new worker process."""
        self._pnode.next_incarnation()
        self.delegation = self._pnode.make_delegation()
        self.alive = True
        await self._pnode.duties.worker_up()

    def die(self) -> None:
        """The worker is killed; the daemon lives."""
        self.alive = False
        self.replicas.clear()
        self._pnode.duties.worker_down("killed")
        self._pnode.tell()

    # -- what the daemon says --------------------------------------------------------------------------------------------------

    async def receive(self, message: local_pb2.ToWorker) -> bool:
        """From the daemon; False where no worker runs."""
        if not self.alive:
            return False
        match message.WhichOneof("kind"):
            case "host":
                self._host(message.host)
            case "release":
                replica = self.replicas.pop(message.release.replica, None)
                if replica is not None:
                    self._advance(replica)
                    self._exchange(replica)
                    self.snapshot(replica)
                    self._sequences[replica.replica] = replica.chain.sequence
                released = orchestrator_pb2.ASSIGNMENT_STATE_RELEASED
                self._pnode.duties.worker_reported(orchestrator_pb2.ReplicaReport(replica=message.release.replica, state=released))
            case "head_seen":
                self._head_seen_s = self._pnode.loop.time()
        return True

    def _host(self, message: local_pb2.HostReplica) -> None:
        pnode, now, name = self._pnode, self._pnode.loop.time(), message.assignment.replica
        known = self.replicas.get(name)
        if known is not None and known.job_id == message.job_id:
            self._advance(known)
            if known.told(message, now):
                self.checkpoint_at_once(known)
            if known.hands_over(now):
                self.snapshot(known)
            return
        data = pnode.disk.get(message.state_path, b"")
        if digest_of(data) != message.state_digest:
            return
        lineage = lineage_in(data, message.assignment.vnode, message.job_id)
        standing = Standing(
            pnode.world.community.policy.network_id, MODEL, message.job_id, message.assignment.vnode,
            Peer(ReplicaId(name), pnode.incarnation), pnode.node_id,
        )  # fmt: skip
        chain = CommitChain(
            standing, pnode.worker_key, lambda: self.delegation, message.state_digest, message.state_commit,
            sequence=self._sequences.pop(name, 0),
        )  # fmt: skip
        replica = Replica(
            name, message.assignment.vnode, message.job_id, int(message.num_batches), max(1, int(message.unit_batches)),
            message.checkpoint_s, message.horizon_s, pnode.incarnation, pnode.world.knobs.learn_rate * pnode.factor, lineage,
            standing, chain, Merging(int(message.num_batches)), now + pnode.rng.uniform(0.2, 1.0), now, anchor=lineage, kept=lineage, snapshot_s=now,
            exchanged_s=now, steps=digest_of(b"steps") if pnode.world.knobs.audited else "",
        )  # fmt: skip
        replica.restored_from = message.state_digest
        replica.is_broken = message.state_digest in pnode.world.broken
        replica.is_tainted = replica.is_broken or message.state_digest in pnode.world.growing
        replica.told(message, now)
        self.replicas[name] = replica
        if (donor := pnode.world.primary_of(pnode, replica)) is not None:
            replica.ready_s = max(replica.ready_s, now + donor[0].worker.leaves_after_s(pnode.world.knobs.state_bytes))
        if lineage and replica.leads:
            self.checkpoint_at_once(replica)
        self._wake.set()
        pnode.world.checkers.hosting(pnode, message)

    def leaves_after_s(self, num_bytes: int) -> float:
        """How long so many bytes of bulk take to leave now: after everything before them, at the rate that bulk may take of this PNode's line."""
        bytes_s, now = self._pnode.world.knobs.bulk_bytes_s, self._pnode.loop.time()
        if not bytes_s:
            return 0.0
        self._line_free_s = max(now, self._line_free_s) + num_bytes / bytes_s
        return self._line_free_s - now

    def checkpoint_at_once(self, replica: Replica) -> None:
        """What a new primary restored may be in no manifest yet."""
        replica.anew, replica.snapshot_s = True, -replica.checkpoint_s

    def heard(self, checkpoint: model_pb2.Checkpoint) -> None:
        """A manifest has that as its VNode's newest: a newer one of a replica that is at work here, which was named before, is brought again."""
        held = self._named.get(checkpoint.vnode)
        if held is not None and self._is_unnamed(held, checkpoint):
            del self._named[checkpoint.vnode]
            held.commit_stored = held.uploaded = False
            held.num_lost += 1
            self.pending.append(held)
            self._wake.set()
        self.durable(checkpoint.replica, checkpoint.lineage, checkpoint.digest)

    def _is_unnamed(self, held: Snapshot, newest: model_pb2.Checkpoint) -> bool:
        mine = held.checkpoint
        waits = any(other.checkpoint.vnode == mine.vnode and other.order > held.order for other in self.pending)
        step = int(newest.step) if newest.job_id == mine.job_id else 0
        return mine.replica in self.replicas and not waits and mine.digest != newest.digest and int(mine.step) > step

    def _note_named(self, item: Snapshot) -> None:
        before = self._named.get(item.checkpoint.vnode)
        if before is None or before.checkpoint.replica != item.checkpoint.replica or before.order < item.order:
            self._named[item.checkpoint.vnode] = item

    def durable(self, replica: str, lineage: common_pb2.IntervalSet, digest: str) -> None:
        """A manifest names a checkpoint."""
        found = self.replicas.get(replica)
        if found is not None:
            had_handed_over, found.durable = found.has_handed_over, found.durable | intervals(lineage)
            if found.has_handed_over and not had_handed_over:
                self._pnode.tell()
            found.chain.named(digest)
        count = len(intervals(lineage))
        self.pending[:] = [
            item
            for item in self.pending
            if item.checkpoint.replica != replica or (int(item.checkpoint.step) > count or not item.commit_stored)
        ]

    def places(self, _model: str, _job_id: str, _replicas: Iterable[str]) -> None:
        """The disk of this model has room for what released replicas left."""

    async def candidates(self, _model: str, job_id: str, vnode: str) -> list[StartingState]:
        """States of that VNode on this disk, for the provisioner."""
        found: list[StartingState] = []
        for path in sorted(self._pnode.disk):
            if path.startswith(f"home/snapshots/{job_id}/{vnode}/"):
                digest, commit, replica = path.rsplit("/", 1)[-1].split("-")
                data = self._pnode.disk[path]
                where: Any = SimPath(self._pnode.disk, path)
                found.append(StartingState(where, digest, commit, lineage_in(data, vnode, job_id), "local", replica=replica))
        return found

    # -- learning --------------------------------------------------------------------------------------------------------------

    def _advance(self, replica: Replica) -> None:
        now = self._pnode.loop.time()
        until_s = min(now, self._head_seen_s + replica.horizon_s)
        from_s = max(replica.advanced_s, replica.ready_s)
        replica.advanced_s = now
        if until_s <= from_s or replica.is_broken:
            return
        replica.part += (until_s - from_s) * replica.rate
        whole = int(replica.part)
        replica.part -= whole
        fresh = replica.learn(whole, now)
        if fresh:
            self._pnode.world.checkers.learned(self._pnode, replica, fresh)

    def report(self, name: str) -> orchestrator_pb2.ReplicaReport | None:
        """A replica's report."""
        replica = self.replicas.get(name)
        if replica is None or self._pnode.loop.time() < replica.ready_s:
            return None
        self._advance(replica)
        self._pnode.world.checkers.plans.held(name, len(replica.lineage))
        return replica.report(self._pnode.world.step_s(self._pnode, replica.vnode), self._pnode.loop.time())

    def _exchange(self, replica: Replica) -> None:
        """A contributor or standby and its primary, where they reach each other."""
        now = self._pnode.loop.time()
        if replica.leads or now < replica.ready_s:
            return
        world = self._pnode.world
        found = world.primary_of(self._pnode, replica)
        is_heard = not (world.is_unsafe and self._answers.random() < world.knobs.call_loss_rate)
        if found is not None and exchange(replica, *found, is_heard=is_heard):
            replica.exchanged_s = now
            replica.asks_from_s = now + max(one.leaves_after_s(world.knobs.delta_bytes) for one in (self, found[0].worker))
        elif now - replica.exchanged_s > ALONE_S:
            replica.anchored = True

    def snapshot(self, replica: Replica) -> None:
        """What was learned since the last one, onto the disk and on its way."""
        if not replica.leads:
            return
        fresh = replica.lineage - replica.kept
        replica.snapshot_s = self._pnode.loop.time()
        if not fresh and not replica.anew:
            return
        was_asked, replica.anew = replica.anew, False
        pnode = self._pnode
        data = state_bytes(
            replica.vnode, pnode.world.community.graph_digest, replica.job_id, replica.lineage, num_batches=replica.num_batches,
            parent=replica.chain.state_digest, mark=f"{replica.replica} {replica.incarnation} {pnode.loop.time():.3f}",
        )  # fmt: skip
        link = replica.chain.close(state=digest_of(data), steps=replica.steps)
        pnode.world.checkers.made(replica, link.state, link.parent_state)
        path = f"home/snapshots/{replica.job_id}/{replica.vnode}/{link.state}-{link.digest}-{replica.replica}"
        try:
            pnode.disk[path] = data
        except Unavailable:  # the disk is full: the next snapshot holds this one's batches too
            replica.anew = was_asked
            return
        ready = replica.chain.ready(link, path=path, size_bytes=len(data), lineage=replica.lineage, epoch=replica.epoch)
        replica.kept = replica.lineage
        if pnode.cheats and pnode.world.is_unsafe and pnode.rng.random() < CHEAT_RATE:
            pnode.world.cheats.add(link.digest)
            replica.is_tainted = pnode.world.knobs.cheats_break or pnode.world.knobs.cheats_grow
        elif replica.is_tainted and not pnode.world.knobs.cheats_break:
            pnode.world.doubtful.add(link.digest)
        if replica.is_tainted:
            (pnode.world.broken if pnode.world.knobs.cheats_break else pnode.world.growing).add(link.state)
        self.pending.append(Snapshot(ready.checkpoint, ready.commit, data, list(ready.ancestors)))
        self._wake.set()

    # -- bringing --------------------------------------------------------------------------------------------------------------

    async def bring(self) -> None:
        """Learns, snapshots and brings, until cancelled."""
        while True:
            now = self._pnode.loop.time()
            for replica in list(self.replicas.values()):
                self._advance(replica)
                if now - replica.exchanged_s >= MERGE_S and now >= replica.asks_from_s:
                    self._exchange(replica)
                finished = replica.leads and len(replica.lineage) == replica.num_batches
                if (finished and not replica.finished) or now - replica.snapshot_s >= replica.checkpoint_s:
                    self.snapshot(replica)
                if finished and not replica.finished:
                    replica.finished = True
                    self._pnode.tell()
                self._tell_daemon(replica)
            for item in list(self.pending):
                try:
                    if await self._bring(item) and item in self.pending:
                        self.pending.remove(item)
                except DcnrError:
                    break
            self._wake.clear()
            try:
                async with asyncio.timeout(BRING_S if self.pending or self.replicas else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _tell_daemon(self, replica: Replica) -> None:
        report = self.report(replica.replica)
        if report is not None:
            self._pnode.duties.worker_reported(report)

    async def _bring(self, item: Snapshot) -> bool:
        """One snapshot as far as it goes now; True when nothing is left to do for it."""
        checkpoint = item.checkpoint
        if not item.commit_stored:
            for envelope in (*item.ancestors, item.commit):
                name = keys.commit(MODEL, checkpoint.vnode, digest_of_envelope(envelope))
                await self._put(name, envelope.SerializeToString(deterministic=True))
            item.commit_stored = True
        if any(other.checkpoint.replica == checkpoint.replica and other.order > item.order for other in self.pending):
            return True
        if not item.uploaded:
            await self._put(keys.state(MODEL, checkpoint.vnode, Digest(checkpoint.digest)), item.data)
            item.uploaded = True
        request = data_pb2.RecordCheckpointRequest(
            network_id=self._pnode.world.community.policy.network_id, model=MODEL, job_id=checkpoint.job_id, checkpoint=checkpoint,
            commit=item.commit,
        )  # fmt: skip
        prefer, self._told = self._told or self._pnode.duties.holder(), None
        answer = await self._pnode.record(request, prefer)
        match answer.status:
            case data_pb2.RECORD_STATUS_NAMED:
                self._note_named(item)
                self.durable(checkpoint.replica, answer.durable_lineage, checkpoint.digest)
                return True
            case data_pb2.RECORD_STATUS_REFUSED | data_pb2.RECORD_STATUS_CONDEMNED:
                self._give_up(checkpoint, answer.reason)
                return True
            case data_pb2.RECORD_STATUS_NOTHING_NEW:
                return True
            case data_pb2.RECORD_STATUS_MISSING:
                item.commit_stored = item.uploaded = False
                item.num_lost += 1
                if item.num_lost >= MOST_LOST:
                    self._give_up(checkpoint, answer.reason)
                    return True
            case data_pb2.RECORD_STATUS_NOT_HOLDER if answer.holder:
                self._told = NodeId(answer.holder)
        return False

    def _give_up(self, checkpoint: model_pb2.Checkpoint, reason: str) -> None:
        self._pnode.world.checkers.refused(self._pnode, checkpoint, reason)
        replica = self.replicas.get(checkpoint.replica)
        if replica is not None:
            replica.chain.hand_over_anew()
            self.checkpoint_at_once(replica)

    async def _put(self, key: str, data: bytes) -> None:
        """An upload under a grant for exactly that object: size and digest are enforced by the store, 412 means that it is there."""
        try:
            await self._pnode.store.put(key, data, if_none_match=True)
        except Stale as error:
            if error.code != "precondition_failed":
                raise
