"""All replicas of one worker: each is prepared, run, updated and let go on its own, and each has a report at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final
from weakref import WeakSet, ref

from dcnr import logs
from dcnr.errors import DcnrError, NotFound
from dcnr.ids import Digest, ReplicaId, check_replica_id
from dcnr.intervals import IntervalSet
from dcnr.ports import Clock
from dcnr.specs import Registry
from dcnr.v1 import identity_pb2, local_pb2, orchestrator_pb2
from pnode import hosting
from pnode.gathering import Gatherings, Means
from pnode.host import ReplicaHost
from pnode.hosted import codec_in_force
from pnode.hosting import Prepared
from pnode.hub import LinkHub
from pnode.infer_live import LivePlace
from pnode.inputs import Inputs
from pnode.making import Making
from pnode.member import ACTIVE, FAILED, PROVISIONING, RELEASE_FAILED, RELEASED, RELEASING, Member
from pnode.merge_calls import MergeCalls
from pnode.merge_desk import MergeDesk
from pnode.pace import Pace
from pnode.reports import Measured, bare_report, replica_report
from trust.identity import NodeKey
from vnode.events import Leave

MAX_REASON: Final = 512
MAX_LEFT: Final = 16
"""Replicas that were let go of and have ended, the newest: they are reported, and whoever restores them elsewhere gets their states here. Of older ones only
the number of the last commit is kept.
"""


@dataclass(frozen=True, slots=True)
class Acting:
    """For whom this worker acts."""

    network_id: str
    pnode_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Outlets:
    """What the crew tells the daemon."""

    snapshot: Callable[[local_pb2.SnapshotReady], None]
    shards: Callable[[str, Mapping[str, int]], None]
    news: Callable[[], None]
    told: Callable[[str, str, str], None]


class Crew:
    """Lives inside the worker's task group."""

    def __init__(
        self, acting: Acting, *, key: NodeKey, delegation: Callable[[], identity_pb2.Envelope], hub: LinkHub, registry: Registry,
        clock: Clock, executor: Executor, pace: Pace, calls: MergeCalls, device: str, outlets: Outlets, group: asyncio.TaskGroup, making: Making,
    ) -> None:  # fmt: skip
        self._acting, self._key, self._delegation, self._hub, self._registry = acting, key, delegation, hub, registry
        self._clock, self._executor, self._device, self._outlets, self._group = clock, executor, device, outlets, group
        self._pace, self._calls, self._making = pace, calls, making
        self._members: dict[ReplicaId, Member] = {}
        self._left: dict[ReplicaId, Member] = {}
        self._sequences: dict[ReplicaId, int] = {}
        self._reading: WeakSet[Inputs] = WeakSet()
        self._num_learned_before = 0
        self._gatherings = Gatherings()

    def host(self, order: local_pb2.HostReplica) -> None:
        """Begins a replica, or takes over the newest plan around one that runs."""
        replica = check_replica_id(order.assignment.replica)
        self._pace.limit(order.cpu_share * max(1, order.threads))
        self._calls.uplink.limit(order.bulk_bytes_s)
        member = self._members.get(replica)
        if member is not None and (member.has_place or (member.state == RELEASING and not order.state_path)):
            if not order.state_path:
                order.state_path, order.state_digest = member.order.state_path, member.order.state_digest
                order.state_commit, order.from_earlier_job = member.order.state_commit, member.order.from_earlier_job
            member.order = order
            self._replan(member)
            return
        if not order.state_path:
            self._outlets.told("unknown_replica", replica, "an update for a replica that is not hosted here")
            return
        before = member or self._left.pop(replica, None)
        self._num_learned_before += before.num_learned if before is not None else 0
        self._members[replica] = member = Member(order, sequence=self._sequences.pop(replica, 0))
        self._group.create_task(self._life(replica, member, before))

    def release(self, replica: str, *, hand_over: bool) -> None:
        """Lets a replica go."""
        member = self._members.get(ReplicaId(replica))
        if member is None:
            return
        member.is_let_go = True
        if member.state == FAILED or member.has_place:
            member.forget_handing()
            member.state = FAILED if member.state == FAILED else RELEASING  # at once: an order that follows begins another life
            self._group.create_task(self._release(member, hand_over=hand_over))
        self._leave_behind(ReplicaId(replica), member)

    async def drain(self, order: local_pb2.WorkerDrain) -> None:
        """Hands everything over; returns when it is, or when the time is up. A replica learns on until those before it on this machine have given
        it what they made, so that nothing has to be computed again elsewhere.
        """
        self._calls.uplink.limit(order.bulk_bytes_s)
        leaving = {name: member for name, member in self._members.items() if member.has_place and member.state != RELEASED}
        deadline_s = self._clock.monotonic() + order.within_s
        async with asyncio.TaskGroup() as group:
            for member in (one for one in self._members.values() if one.host and one.state == RELEASING and not one.has_place):
                group.create_task(member.gone(order.within_s))  # it was let go of before, and is not done yet
            for member in leaving.values():
                member.forget_handing()
                member.state = RELEASING
                before = [leaving.get(ReplicaId(item.replica)) for item in member.order.assignment.predecessors]
                group.create_task(self._leave(member, [item.host for item in before if item is not None and item.host], deadline_s))
            self._outlets.news()

    def named(self, replica: str, lineage: IntervalSet, digest: str) -> None:
        """A manifest names a checkpoint of that replica's VNode."""
        member = self._members.get(ReplicaId(replica))
        if member is not None and member.host is not None and member.state in (ACTIVE, RELEASING):
            member.host.named(lineage, digest)

    def snapshot(self, replica: str, reason: str) -> None:
        """A snapshot is wanted anew."""
        if (host := self._hosted(replica)) is not None:
            host.snapshot_again(reason)

    def head_seen(self) -> None:
        """The horizon of all starts anew."""
        for member in self._members.values():
            if member.host is not None:
                member.host.head_seen()

    def shard_ready(self, digest: str, error: str) -> None:
        """A shard came, or could not."""
        for inputs in list(self._reading):
            inputs.shard_ready(digest, error)

    async def gather(self, wish: local_pb2.GatherEvidence) -> local_pb2.EvidenceGathered:
        """The bundle of an interval of a replica that is hosted here, or was once; or why it cannot be had."""
        answer = local_pb2.EvidenceGathered(interval=wish.interval, path=wish.path)
        try:
            means = Means(self._prepare, self._inputs, self._pace)
            made = await self._gatherings.gather(Path(wish.evidence_dir), wish.replica, wish.interval, Path(wish.path), means)
            answer.digest, answer.size_bytes = made.digest, made.size_bytes
        except Exception as error:  # noqa: BLE001  VNode boundary: whoever asked gets an answer, and the worker lives
            answer.reason = logs.told("evidence_missing", error, replica=wish.replica)[:MAX_REASON]
        return answer

    async def decided(self, verdicts: local_pb2.WorkerVerdicts) -> None:
        """Evidence of these intervals may go."""
        host = self._hosted(verdicts.replica)
        if host is not None:
            await host.books.decided(verdicts.decided, verdicts.num_open, verdicts.spared)

    def desk(self, replica: str) -> MergeDesk:
        """Where siblings of that replica ask. Raises NotFound (``not_here``)."""
        host = self._hosted(replica)
        if host is None:
            raise NotFound("this replica is not hosted here", code="not_here")
        return host.merges.desk

    def place(self, model: str, vnode: str, replica: str) -> LivePlace:
        """Where that replica's weights answer questions as they are now. Raises NotFound (``not_here``)."""
        member = self._members.get(ReplicaId(replica))
        place = member.place if member is not None and member.state in (ACTIVE, RELEASING) else None
        if place is None or (place.model, place.asking.vnode) != (model, vnode):
            raise NotFound("this replica is not hosted here", code="not_here")
        return place

    def state_file(self, model: str, vnode: str, digest: Digest) -> Path:
        """Where the file of such a state should lie: that of a replica of the VNode which is hosted here, or was lately. Raises NotFound."""
        for member in (*self._members.values(), *self._left.values()):
            fixed = member.fixed
            if fixed is not None and (fixed.standing.model, fixed.standing.vnode) == (model, vnode):
                path = fixed.state_file(digest)
                if path.exists():
                    return path
        raise NotFound("no such state lies here", code="no_such_state")

    def reports(self) -> list[orchestrator_pb2.ReplicaReport]:
        """One of each replica; of those that were let go of, only of the last few."""
        return [self._report(replica, member) for replica, member in sorted({**self._left, **self._members}.items())]

    @property
    def num_learned(self) -> int:
        """Batches that replicas here learned themselves, as far as the newest reports go."""
        return self._num_learned_before + sum(member.num_learned for member in (*self._members.values(), *self._left.values()))

    def jobs(self) -> dict[str, str]:
        """By replica, the job that it works for."""
        return {replica: member.order.job_id for replica, member in self._members.items()}

    def readers(self) -> frozenset[str]:
        """PNodes of the replicas that read from those here, as the newest plans say."""
        return frozenset(one.pnode_id for member in self._members.values() for one in member.order.assignment.successors)

    # ---- one life -----------------------------------------------------------------------------------------------------------

    async def _life(self, replica: ReplicaId, member: Member, before: Member | None) -> None:
        if before is not None:
            await before.ended.wait()  # it uses the same directory
            member.sequence = before.sequence
        thread = hosting.compute_thread(replica)
        try:
            await self._live(replica, member, thread)
        except Exception as error:  # noqa: BLE001  VNode boundary: whatever goes wrong with one replica, the worker lives
            member.state, member.reason = FAILED, logs.told("replica_failed", error, replica=replica)
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
            member.end(self._report(replica, member))
            self._leave_behind(replica, member)
            self._outlets.news()
        member.free()

    async def _live(self, replica: ReplicaId, member: Member, thread: ThreadPoolExecutor) -> None:
        prepared = await asyncio.get_running_loop().run_in_executor(thread, self._prepare, member.order)
        member.compute = ref(prepared.compute)
        if member.state is not PROVISIONING:
            return
        member.prepared = prepared
        member.host = host = self._ready(member, prepared, thread)
        member.fixed = host.fixed
        member.place = LivePlace(prepared, host, self._pace, self._clock)
        member.state = ACTIVE
        self._replan(member)
        self._outlets.news()
        await host.run()
        if host.failed:
            member.state, member.reason = FAILED, host.failed
            self._outlets.told("replica_failed", replica, host.failed)

    def _leave_behind(self, replica: ReplicaId, member: Member) -> None:
        """One that was let go of and has ended is among the last few from now on; one that follows it here stays what it is."""
        if not (member.is_let_go and member.ended.is_set()) or self._members.get(replica) is not member:
            return
        self._left[replica] = self._members.pop(replica)
        while len(self._left) > MAX_LEFT:
            oldest = next(iter(self._left))
            gone = self._left.pop(oldest)
            self._sequences[oldest] = gone.sequence
            self._num_learned_before += gone.num_learned

    def _prepare(self, order: local_pb2.HostReplica) -> Prepared:
        acting = self._acting
        return hosting.prepare(
            order,
            compute=self._making.compute,
            registry=self._registry,
            network_id=acting.network_id,
            pnode_id=acting.pnode_id,
            incarnation=acting.incarnation,
            device=self._device,
        )

    def _ready(self, member: Member, prepared: Prepared, thread: ThreadPoolExecutor) -> ReplicaHost:
        order, standing = member.order, prepared.standing
        wanted = str(prepared.graph.train.codec)

        def codec() -> str:
            host = member.host
            if host is None:
                return "raw"
            return codec_in_force(
                wanted, link_bytes_s=host.slowest_bytes_s, frame_bytes=prepared.frame_bytes, step_s=host.averages.step_s
            )

        member.chain = chain = self._making.chain(
            standing, self._key, self._delegation, order.state_digest, order.state_commit, sequence=member.sequence
        )
        return ReplicaHost(
            hosting.fixed_of(prepared, order),
            core=hosting.core_of(prepared, self._clock),
            compute=prepared.compute,
            info=prepared.info,
            chain=chain,
            inputs=self._inputs(prepared, evaluations=prepared.config.eval_batches),
            outbox=hosting.outbox_of(prepared, order, self._executor, codec),
            hub=self._hub,
            clock=self._clock,
            executor=self._executor,
            thread=thread,
            pace=self._pace,
            epoch=int(order.epoch),
            snapshot=self._outlets.snapshot,
            news=self._outlets.news,
            told=self._outlets.told,
            calls=self._calls,
            books=lambda host: hosting.books_of(prepared, order, self._registry, host, self._clock),
        )

    def _inputs(self, prepared: Prepared, *, evaluations: Mapping[str, int] = MappingProxyType({})) -> Inputs:
        inputs = Inputs(
            prepared.samples, self._executor, lambda digests: self._outlets.shards(prepared.samples.dataset, prepared.samples.sizes(digests)),
            with_input=prepared.stage.is_source, evaluations=evaluations,
        )  # fmt: skip
        self._reading.add(inputs)
        return inputs

    def _replan(self, member: Member) -> None:
        if member.host is None or member.prepared is None:
            return
        member.host.epoch = int(member.order.epoch)
        try:
            member.host.plan(hosting.neighbours_of(member.order, member.prepared.stage))
        except DcnrError as error:
            self._outlets.told("bad_plan", member.order.assignment.replica, error.message)
        within_s = float(member.order.assignment.hand_over_s)
        if within_s > 0.0 and member.handing is None and member.state == ACTIVE:
            member.state = RELEASING
            member.handing = self._group.create_task(self._hand_over(member, member.host, within_s))
        elif within_s <= 0.0 and member.handing is not None:
            member.forget_handing()
            self._learn_on(member, member.host)

    async def _hand_over(self, member: Member, host: ReplicaHost, within_s: float) -> None:
        """In place: others go on asking it, and where it cannot be done in time it learns on."""
        self._outlets.news()
        host.post(Leave(self._clock.monotonic()))
        if await host.handing.given(host.view, within_s):
            member.state = RELEASED
            self._outlets.news()
        elif not host.failed:
            self._learn_on(member, host)

    def _learn_on(self, member: Member, host: ReplicaHost) -> None:
        if member.state in (RELEASING, RELEASED):
            member.state = ACTIVE
            host.post(Leave(self._clock.monotonic(), is_off=True))
            self._outlets.news()

    async def _leave(self, member: Member, before: Sequence[ReplicaHost], deadline_s: float) -> None:
        """Lets a replica go once it has learned all that those in ``before`` have made."""
        try:
            async with asyncio.timeout(max(0.0, deadline_s - self._clock.monotonic()) / 2):
                if member.host is not None:
                    await member.host.handing.caught_up(member.host.view, [host.view for host in before])
        except TimeoutError:
            pass  # what is still lacking is computed again by the replica that follows
        await self._release(member, hand_over=True, within_s=max(0.0, deadline_s - self._clock.monotonic()))

    async def _release(self, member: Member, *, hand_over: bool, within_s: float | None = None) -> None:
        """``within_s``: this machine leaves; the replica stays so long at most, until others have taken over what it has."""
        host, handed = member.host, member.state != FAILED
        member.state = RELEASING
        self._outlets.news()
        if host is None and within_s is None:
            await member.gone()  # until what was begun is over, it takes the memory that was admitted for it
        elif host is not None:
            try:
                async with asyncio.timeout(within_s):
                    handed = await host.release(hand_over=hand_over, until_taken=within_s is not None)
            except TimeoutError:
                handed = await host.release(hand_over=False) and False
        member.state = RELEASED if handed else RELEASE_FAILED
        self._outlets.news()

    def _hosted(self, replica: str) -> ReplicaHost | None:
        member = self._members.get(ReplicaId(replica))
        return member.host if member is not None and (member.state == ACTIVE or member.handing is not None) else None

    def _report(self, replica: ReplicaId, member: Member) -> orchestrator_pb2.ReplicaReport:
        host, prepared = member.host, member.prepared
        if member.last is not None:
            member.last.state = member.state
            return member.last
        if host is None or prepared is None:
            order = member.order
            return bare_report(
                replica, order.assignment.vnode, self._acting.incarnation, member.state, member.reason, role=order.assignment.role,
                restored_from=order.state_digest,
            )  # fmt: skip
        now_s = self._clock.monotonic()
        view = host.view()
        member.num_learned = view.counters.learned
        measured = Measured(
            step_s=host.averages.step_s, loss=host.averages.loss, num_unlearned=host.averages.num_unlearned, num_steps=host.averages.num_steps,
            rate=member.rate.seen(view.counters.learned, now_s),
            spool_bytes=host.outbox.num_bytes,
            restored_from=member.order.state_digest,
            checkpoint_digest=host.durable_digest,
            depth=prepared.depth,
        )  # fmt: skip
        return replica_report(view, measured, member.state, member.reason or host.trouble, now_s)
