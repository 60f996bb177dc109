"""Who lies in the control world: an orchestrator that claims what it never was, and PNodes that report what they never did."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from dataservice import keys
from dcnr.errors import DcnrError, NotFound
from dcnr.ids import ReplicaId, digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import data_pb2, identity_pb2, model_pb2, orchestrator_pb2
from orchestrator.documents import open_manifest, open_plan
from orchestrator.jobs import intervals, intervals_message
from simulation.control_identity import MODEL
from simulation.control_merges import answer
from simulation.control_orchestrator import HEAD_URL, ControlEnd, OrchestratorShell
from simulation.control_pnode import PNodeShell
from simulation.control_replica import Replica
from simulation.control_worker import WorkerModel
from trust.envelope import digest_of_envelope, seal
from vnode.vocabulary import Peer

if TYPE_CHECKING:
    pass

FAR_EPOCH: Final = 2**63
LIE_S: Final = 3.0
FORGE_S: Final = 7.0


class LiarShell(OrchestratorShell):
    """A listed orchestrator that claims terms it never had, passes on claims of an unlisted key, vouches for itself, and repeats what others said long ago,
    as one does that comes back from an old image. It never writes the head.
    """

    def run(self) -> None:
        """Lies, in place of working."""
        head = model_pb2.Head(
            network_id=self.world.community.policy.network_id, model=MODEL, epoch=FAR_EPOCH, holder=self.node_id, sequence=FAR_EPOCH
        )
        self._lies = self.world.kernel.rng(f"lies/{self.lives}")
        self._old: list[tuple[bytes, str]] = []
        self._head = seal(identity_pb2.DOMAIN_HEAD, head, self.key)
        self.loop.spawn(self._lie())

    async def _lie(self) -> None:
        while True:
            await asyncio.sleep(LIE_S)
            real = self.world.head()
            if real is not None:
                self._old.append((self.world.store.store.peek(keys.head(MODEL)) or b"", real.plan_digest))
            for end in list(self.ends):
                if end.told is None:
                    continue
                self._repeat(end, end.told.pnode_id)
                news = orchestrator_pb2.HeadNews(head=self._head, head_url=HEAD_URL)
                end.send(orchestrator_pb2.OrchestratorMessage(head=news))
                for epoch in (FAR_EPOCH, int(real.epoch) if real is not None else 1):
                    desired = self._claim(end.told.pnode_id, epoch)
                    end.send(
                        orchestrator_pb2.OrchestratorMessage(desired=seal(identity_pb2.DOMAIN_DESIRED_STATE, desired, self.key))
                    )
                    desired.model = self._lies.choice(["other", "another", "c(ain"])
                    end.send(
                        orchestrator_pb2.OrchestratorMessage(desired=seal(identity_pb2.DOMAIN_DESIRED_STATE, desired, self.key))
                    )
                    stranger = seal(identity_pb2.DOMAIN_DESIRED_STATE, desired, self.world.stranger)
                    end.send(orchestrator_pb2.OrchestratorMessage(desired=stranger))

    def _repeat(self, end: ControlEnd, pnode_id: str) -> None:
        """A head and a desired state of long ago, genuine in every byte."""
        if not self._old:
            return
        head, plan = self._lies.choice(self._old)
        old = orchestrator_pb2.HeadNews(head=identity_pb2.Envelope.FromString(head), head_url=HEAD_URL)
        end.send(orchestrator_pb2.OrchestratorMessage(head=old))
        desired = self.world.store.store.peek(keys.desired(MODEL, plan, pnode_id)) if plan else None
        if desired is not None:
            end.send(orchestrator_pb2.OrchestratorMessage(desired=identity_pb2.Envelope.FromString(desired)))

    def _claim(self, pnode_id: str, epoch: int) -> model_pb2.DesiredState:
        """A desired state of a term that it never had: far ahead, or the present epoch in its own name."""
        return model_pb2.DesiredState(
            network_id=self.world.community.policy.network_id, model=MODEL, epoch=epoch, holder=self.node_id, sequence=FAR_EPOCH,
            plan_digest="f" * 64, pnode_id=pnode_id,
        )  # fmt: skip

    async def record_checkpoint(self, data: bytes) -> bytes:
        """Says that it is named, which it is not."""
        raise NotFound("no such model here", code="no_model")

    async def pause_job(self, data: bytes) -> bytes:
        """Says that there is no such job."""
        raise NotFound("no such job here", code="job_not_found")

    async def confirm_head(self, data: bytes) -> bytes:
        """Vouches for its own claim."""
        request = orchestrator_pb2.ConfirmHeadRequest.FromString(data)
        return self._statement(request.nonce, self._head.SerializeToString())


class LyingWorker(WorkerModel):
    """Learns nothing, and says that it has learned everything and that it is durable."""

    def snapshot(self, replica: Replica) -> None:
        """There is nothing to keep."""

    def report(self, name: str) -> orchestrator_pb2.ReplicaReport | None:
        """Everything, at once, and fast."""
        report = super().report(name)
        if report is not None:
            everything = intervals_message(IntervalSet.span(0, self.replicas[name].num_batches))
            report.lineage.CopyFrom(everything)
            report.durable.CopyFrom(everything)
            report.num_learned, report.step_s, report.rate = self.replicas[name].num_batches, 1e-6, 1e6
        return report

    def _exchange(self, replica: Replica) -> None:
        """Brings everything that is missing as a sibling's work, under the sibling's own delegation, and then what it has itself."""
        pnode, world = self._pnode, self._pnode.world
        found = world.primary_of(pnode, replica)
        others = [one for one in replica.siblings if one.replica not in (replica.replica, replica.primary.replica)]
        other = world.pnode(others[0].pnode_id) if others else None
        if found is not None and other is not None and other.worker.alive:
            missing = IntervalSet.span(0, replica.num_batches) - found[1].lineage
            envelope = seal(identity_pb2.DOMAIN_DELTA, self._forged(replica, others[0], other, missing), pnode.worker_key)
            answer(*found, Peer(ReplicaId(others[0].replica), other.incarnation), envelope)
        super()._exchange(replica)

    def _forged(self, replica: Replica, named: model_pb2.Neighbour, other: PNodeShell, batches: IntervalSet) -> model_pb2.Delta:
        return model_pb2.Delta(
            network_id=replica.standing.network_id, model=MODEL, job_id=replica.job_id, vnode=replica.vnode, replica=named.replica,
            incarnation=other.incarnation, sequence=1_000_000, batches=list(batches), losses=[1.0] * len(batches), codec="raw",
            digest="0" * 64, size_bytes=1, delegation=other.worker.delegation,
        )  # fmt: skip


class LyingPNode(PNodeShell):
    """Hosts what it is told to, lies about it, accuses others, and offers their checkpoints as its own."""

    def make_worker(self) -> WorkerModel:
        """One that lies."""
        self.loop.spawn(self._forge())
        return LyingWorker(self)

    def evidence(self) -> list[orchestrator_pb2.LinkEvidence]:
        """Three others, chosen at random, are said to be unreachable."""
        others = self.rng.sample(self.world.pnodes, min(3, len(self.world.pnodes)))
        return [
            orchestrator_pb2.LinkEvidence(replica="v0.0", pnode_id=other.node_id, broken=False, since_s=60.0)
            for other in others
            if other is not self
        ]

    async def _forge(self) -> None:
        """Offers states that nobody has learned as those of replicas that others host: under its own name, and under theirs."""
        while True:
            await asyncio.sleep(FORGE_S)
            plan, newest = self._targets()
            for item in plan.assignments if plan is not None else ():
                parent = newest.get(item.vnode)
                if item.pnode_id == self.node_id or parent is None:
                    continue
                for name in (self.node_id, item.pnode_id):
                    with contextlib.suppress(DcnrError):
                        await self._offer(plan.job_id if plan is not None else "", item, parent, name)

    async def _offer(self, job_id: str, item: model_pb2.Assignment, parent: model_pb2.Checkpoint, pnode_id: str) -> None:
        data = f"never learned by {self.host} for {item.replica} at {self.loop.time():.3f}".encode()
        held = intervals(parent.lineage) if parent.job_id == job_id else IntervalSet.empty()
        everything = IntervalSet.span(0, self.world.knobs.num_batches)
        incarnation = max(self.incarnation, int(parent.incarnation)) + 1
        commit = model_pb2.Commit(
            network_id=self.world.community.policy.network_id, model=MODEL, job_id=job_id, vnode=item.vnode, replica=item.replica,
            incarnation=incarnation, parent_digest=parent.digest, state_digest=digest_of(data), batches=sorted(everything - held),
            parent_commit=parent.commit_digest, delegation=self.make_delegation(incarnation),
        )  # fmt: skip
        envelope = seal(identity_pb2.DOMAIN_COMMIT, commit, self.worker_key)
        checkpoint = model_pb2.Checkpoint(
            vnode=item.vnode, digest=digest_of(data), size_bytes=len(data), lineage=intervals_message(everything), replica=item.replica,
            pnode_id=pnode_id, incarnation=incarnation, step=len(everything), parent_digest=parent.digest,
            commit_digest=digest_of_envelope(envelope), job_id=job_id,
        )  # fmt: skip
        await self.store.put(keys.state(MODEL, item.vnode, digest_of(data)), data, if_none_match=True)
        name = keys.commit(MODEL, item.vnode, digest_of_envelope(envelope))
        await self.store.put(name, envelope.SerializeToString(deterministic=True), if_none_match=True)
        request = data_pb2.RecordCheckpointRequest(
            network_id=commit.network_id, model=MODEL, job_id=job_id, checkpoint=checkpoint, commit=envelope
        )
        await self.record(request, self.duties.holder())

    def _targets(self) -> tuple[model_pb2.Plan | None, dict[str, model_pb2.Checkpoint]]:
        """Who hosts what, and what the manifest names."""
        world, head = self.world, self.world.head()
        if head is None or not head.plan_digest or not head.manifest_digest:
            return None, {}
        plan = world.store.store.peek(keys.plan(MODEL, head.plan_digest)) or b""
        manifest = world.store.store.peek(keys.manifest(MODEL, head.manifest_digest)) or b""
        entries = open_manifest(manifest, world.community.policy, MODEL).entries
        return open_plan(plan, world.community.policy, MODEL), {entry.vnode: entry.working[0] for entry in entries if entry.working}
