"""Goal: real workers learn one VNode together, batch by batch exactly once, whoever of them dies; and nothing that a stranger says gets into a state."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replica_rig import CONTRIBUTOR, PRIMARY, STANDBY, Plan, Seat, Store
from worker_rig import JOB, MODEL, NETWORK_ID, DaemonEnd, Job, make_job, worker, workers

from dcnr.errors import Corrupt, DcnrError, NotFound, Refused, RemoteFault, TimedOut
from dcnr.ids import Digest, NodeId, digest_of
from dcnr.intervals import IntervalSet
from dcnr.rpc.dialer import Dialer
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, local_pb2, model_pb2, vnode_pb2
from pnode.donors import receive
from pnode.merge_calls import MergeCalls
from pnode.uplink import Uplink
from trust.delegation import VerifiedDelegation, make_delegation, open_delegation
from trust.envelope import seal
from trust.identity import NodeKey
from vnode.torch_compute import TorchCompute  # noqa: F401  imports torch once, before timing begins

WAIT_S = 120.0


async def until(ends: list[DaemonEnd], what: Callable[[], bool], within_s: float = WAIT_S) -> None:
    """Waits for a condition over what several workers said."""
    try:
        async with asyncio.timeout(within_s):
            while not what():
                for end in ends:
                    end.news.clear()
                waits = [asyncio.ensure_future(end.news.wait()) for end in ends]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for one in waits:
                        one.cancel()
    except TimeoutError:
        told = [(name, report) for end in ends for name, report in sorted(end.reports.items())]
        events = [(event.kind, event.reason) for end in ends for event in end.events[-5:]]
        raise AssertionError(f"not within {within_s} s: {told} {events}") from None


def whole(seat: Seat, job: Job) -> bool:
    """Whether that replica has handed over a state with every batch."""
    return any(ready.replica == seat.replica and ready.checkpoint.step == job.num_batches for ready in seat.end.snapshots)


async def judged(plan: Plan, seat: Seat, ends: list[DaemonEnd]) -> dict[str, IntervalSet]:
    job = plan.job
    store = Store(job)
    for end in ends:
        store.bring(end.snapshots)
    last = next(ready for ready in reversed(seat.end.snapshots) if ready.replica == seat.replica)
    assert last.checkpoint.step == job.num_batches
    return await store.judge(last, plan.told)


def exact(shares: dict[str, IntervalSet], job: Job) -> None:
    """Every batch once."""
    assert sum(len(batches) for batches in shares.values()) == job.num_batches
    together = IntervalSet.empty()
    for batches in shares.values():
        together = together | batches
    assert together == IntervalSet.span(0, job.num_batches)


def test_a_primary_two_contributors_and_a_standby_learn_every_batch_once(tmp_path: Path) -> None:
    job = make_job(tmp_path, samples=800, merge_every=5)  # 200 batches

    async def scenario() -> None:
        async with workers(tmp_path, 4) as ends:
            seats = [
                Seat("s1.1", ends[0], PRIMARY, 1.0), Seat("s1.2", ends[1], CONTRIBUTOR, 1.0), Seat("s1.3", ends[2], CONTRIBUTOR, 1.0),
                Seat("s1.4", ends[3], STANDBY, 0.0), Seat("s2.1", ends[3], PRIMARY, 1.0),
            ]  # fmt: skip
            plan = Plan(job, seats)
            await plan.tell()
            await until(ends, lambda: whole(seats[0], job) and whole(seats[4], job))
            shares = await judged(plan, seats[0], ends[:1])
            exact(shares, job)
            assert set(shares) == {"s1.1", "s1.2", "s1.3"}, "each of those that learn had a part in it, the standby had none"
            assert set(await judged(plan, seats[4], ends[3:])) == {"s2.1"}
            await until(ends, lambda: seats[3].learned == job.num_batches)  # the standby keeps a copy
            await until(ends, lambda: all(not seat.report.unmerged.intervals for seat in seats[1:3]))
            roles = {seat.replica: seat.report.role for seat in seats}
            assert roles == {"s1.1": PRIMARY, "s1.2": CONTRIBUTOR, "s1.3": CONTRIBUTOR, "s1.4": STANDBY, "s2.1": PRIMARY}
            assert seats[0].report.num_merged == seats[1].report.num_merged + seats[2].report.num_merged
            assert not any(end.lost for end in ends[:1])

    asyncio.run(scenario())


def test_a_promoted_contributor_ends_the_work_of_a_killed_primary(tmp_path: Path) -> None:
    job = make_job(tmp_path, samples=2400, merge_every=5)  # 600 batches

    async def scenario() -> None:
        async with workers(tmp_path, 3) as ends:
            first = Seat("s1.1", ends[0], PRIMARY, 1.0)
            second, third = Seat("s1.2", ends[1], CONTRIBUTOR, 1.0), Seat("s1.3", ends[2], CONTRIBUTOR, 1.0)
            behind = Seat("s2.1", ends[2], PRIMARY, 1.0)
            plan = Plan(job, [first, second, third, behind])
            await plan.tell()
            await until(ends, lambda: second.report is not None and second.report.num_merged >= 2 and third.report.num_merged >= 1)
            ends[0].process.kill()
            await ends[0].process.wait()
            assert not ends[0].snapshots, "nothing of the first primary is in the store"
            learned = second.learned
            assert 0 < learned < job.num_batches
            second.role = PRIMARY
            plan.seats.remove(first)
            await plan.tell()
            await until(ends[1:], lambda: whole(second, job) and whole(behind, job))
            shares = await judged(plan, second, ends[1:])
            exact(shares, job)
            assert set(shares) == {"s1.1", "s1.2", "s1.3"}, "what the dead one had merged counts, by its own commits"
            begun = next(ready for ready in ends[1].snapshots if ready.replica == "s1.2")
            assert begun.ancestors, "the first snapshot of a promoted one brings the commits of the one before it"
            assert begun.checkpoint.step >= 1
            assert second.report.role == PRIMARY

    asyncio.run(scenario())


# ---- what strangers say ---------------------------------------------------------------------------------------------------------


class Forger:
    """A node with a worker's key of its own, which speaks the data plane to a real worker."""

    def __init__(self, end: DaemonEnd, incarnation: int = 5) -> None:
        self.node, self.key, self.incarnation = NodeKey.generate(), NodeKey.generate(), incarnation
        self._end = end
        self.calls = MergeCalls(self.dial, Uplink(SystemClock()))

    @property
    def target(self) -> VerifiedDelegation:
        return open_delegation(self._end.delegation, network_id=NETWORK_ID, now_wall=time.time())

    def delegation(self, incarnation: int | None = None) -> identity_pb2.Envelope:
        number = self.incarnation if incarnation is None else incarnation
        return make_delegation(self.node, NETWORK_ID, self.key.public_der, number, ["127.0.0.1:1"], time.time())

    async def dial(self, worker_id: NodeId, addresses: Any) -> Any:
        dialer = Dialer(
            self.key, NETWORK_ID, clock=SystemClock(), rng=secrets.token_bytes, delegation=self.delegation, own_connections=True
        )
        return await dialer.connect(worker_id, addresses)

    def delta(
        self, data: bytes, *, signer: NodeKey | None = None, delegated: int | None = None, **changes: Any
    ) -> identity_pb2.Envelope:
        facts: dict[str, Any] = {
            "network_id": NETWORK_ID, "model": MODEL, "job_id": JOB, "vnode": "s1", "replica": "s1.2", "incarnation": self.incarnation, "sequence": 1,
            "batches": [150, 151], "losses": [1.0, 1.0], "codec": "raw", "digest": digest_of(data), "size_bytes": len(data),
            "anchor_digest": digest_of(b"anchor"),
        }  # fmt: skip
        facts.update(changes)
        message = model_pb2.Delta(delegation=self.delegation(delegated), **facts)
        return seal(identity_pb2.DOMAIN_DELTA, message, signer or self.key)

    async def ask(self, data: bytes, delta: identity_pb2.Envelope | None, **changes: Any) -> vnode_pb2.MergeAnswer:
        facts = {
            "network_id": NETWORK_ID, "model": MODEL, "job_id": JOB, "contributor": "s1.2", "incarnation": self.incarnation, "primary": "s1.1", **changes,
        }  # fmt: skip
        opening = vnode_pb2.MergeOpen(**facts)
        if delta is not None:
            opening.delta.CopyFrom(delta)
        return (await self.calls.ask(self.target, opening, data, max_anchor_bytes=1 << 24)).answer


def delta_values(job: Job, fill: float = 0.0) -> bytes:
    """Weights of stage s1 in codec raw."""
    from dcnr.graph import stages_of_graph
    from vnode.registry import default_registry
    from vnode.torch_stage import schema_of

    stage = next(item for item in stages_of_graph(job.graph, default_registry()) if item.id == "s1")
    import numpy as np

    tensors = schema_of(stage, default_registry()).tensors
    weights = sum(slot.num_values for name, slot in tensors.items() if name.startswith("w/"))
    others = sum(slot.num_bytes for name, slot in tensors.items() if name.startswith("b/"))
    return np.full(weights, fill, "<f4").tobytes() + bytes(others)


def test_forged_deltas_are_refused_with_their_code_and_change_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path, samples=800, merge_every=5)
    data = delta_values(job, 1e-4)

    async def scenario() -> None:
        async with workers(tmp_path, 2) as ends:
            forger = Forger(ends[0])
            # The plan has the forger's PNode as a contributor without weight: the primary learns everything itself, and has to end up exactly there.
            helper = DaemonEnd(ends[0].pipe, forger.node, ends[0].process, forger.incarnation)
            helper.delegation = forger.delegation()
            primary = Seat("s1.1", ends[0], PRIMARY, 1.0)
            plan = Plan(job, [primary, Seat("s1.2", helper, CONTRIBUTOR, 0.0), Seat("s2.1", ends[1], PRIMARY, 1.0)])
            plan.name()
            await ends[0].pipe.send(local_pb2.ToWorker(host=plan.order(primary)))
            await until(ends, lambda: primary.learned >= 3)

            async def code(delta: identity_pb2.Envelope | None, sent: bytes = data, **changes: Any) -> str:
                with pytest.raises(DcnrError) as refused:
                    await forger.ask(sent, delta, **changes)
                return refused.value.code

            stranger = Forger(ends[0])
            assert await code(forger.delta(data, signer=NodeKey.generate())) == "wrong_signer"
            large = bytes(3 << 20)  # most of it is still on its way when it is refused
            assert await code(forger.delta(large, signer=NodeKey.generate()), large) == "wrong_signer"
            assert await code(stranger.delta(data)) == "wrong_pnode"
            assert await code(forger.delta(data, batches=[job.num_batches, 3])) == "foreign_batches"
            assert await code(forger.delta(data, job_id="another")) == "wrong_job"
            assert await code(forger.delta(data), job_id="another") == "wrong_job"
            assert await code(forger.delta(data, replica="s1.9"), contributor="s1.9") == "unknown_replica"
            assert await code(forger.delta(data, incarnation=3, sequence=9), incarnation=3) == "stale_incarnation"
            assert await code(forger.delta(data), b"\1" * len(data)) == "wrong_digest"
            assert await code(forger.delta(data[:-4]), data[:-4]) == "bad_delta"
            assert await code(forger.delta(delta_values(job, float("nan"))), delta_values(job, float("nan"))) == "bad_state_values"
            assert await code(None, contributor="s1.1") == "unknown_replica"
            with pytest.raises(DcnrError) as elsewhere:
                await stranger.ask(data, None)
            assert elsewhere.value.code == "wrong_pnode"
            overlap = await forger.ask(data, forger.delta(data, batches=[0, 1]))
            assert (overlap.verdict, overlap.code) == (vnode_pb2.MERGE_VERDICT_REFUSED, "overlap")
            newer = Forger(ends[0], incarnation=6)
            newer.node = forger.node
            assert (await newer.ask(b"", None)).verdict == vnode_pb2.MERGE_VERDICT_ANCHOR
            assert await code(forger.delta(data, sequence=2)) == "stale_incarnation"

            second = plan.seats[2]
            await plan.of("s2")[0].end.pipe.send(local_pb2.ToWorker(host=plan.order(second)))
            await second.end.pipe.send(
                local_pb2.ToWorker(
                    neighbour=local_pb2.NeighbourAddress(replica="s1.1", pnode_id=ends[0].pnode_id, delegation=ends[0].delegation)
                )
            )
            await until(ends, lambda: whole(primary, job))
            assert await judged(plan, primary, ends[:1]) == {"s1.1": IntervalSet.span(0, job.num_batches)}
            assert primary.report.num_merged == 0

    asyncio.run(scenario())


def test_a_state_is_given_away_only_whole_and_by_its_digest(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    state = job.states["s1"].read_bytes()

    async def scenario() -> None:
        async with worker(tmp_path) as end:
            await end.host(job, "s1", {"s1": end, "s2": end}, bulk_bytes_s=64e6)
            await end.until(lambda: end.reports.get("s1.1") is not None and end.reports["s1.1"].num_learned > 0)
            taker = Forger(end)

            async def take(size_bytes: int = len(state), **changes: str) -> bytes:
                facts = {"network_id": NETWORK_ID, "model": MODEL, "vnode": "s1", "digest": digest_of(state), **changes}
                path = tmp_path / "taken"
                request = vnode_pb2.DonateRequest(**facts)
                async with asyncio.timeout(WAIT_S):
                    while True:  # a busy machine may need longer for a handshake than any donor is waited for
                        try:
                            await receive(taker.dial, taker.target, request, size_bytes=size_bytes, destination=path)
                        except TimedOut as late:
                            if late.code != "connect_timeout":
                                raise
                        else:
                            return path.read_bytes()

            assert await take() == state
            for size in (len(state) - 1, len(state) + 1):
                with pytest.raises(RemoteFault):
                    await take(size)
            for changes in ({"digest": Digest("0" * 64)}, {"vnode": "s2"}, {"model": "other"}):
                with pytest.raises(NotFound):
                    await take(**changes)
            with pytest.raises(Refused):
                await take(network_id="6" * 40)
            with pytest.raises((DcnrError, Corrupt)):
                await take(digest="../../etc")

    asyncio.run(scenario())
