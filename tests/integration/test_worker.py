"""Goal: real worker processes train a chain to a complete lineage over real links, hand signed snapshots over, and end with their daemon."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from relay_rig import relays, tell_of_relays
from worker_rig import JOB, MODEL, NETWORK_ID, WORK, DaemonEnd, Job, make_job, order, worker, workers

from dcnr.errors import Refused
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.tempo import Tempo
from dcnr.v1 import identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from trust.commits import Place
from trust.envelope import digest_of_envelope, open_single
from trust.equivocation import equivocation_of
from vnode.torch_compute import TorchCompute  # noqa: F401  imports torch once, before timing begins


def complete(end: DaemonEnd, replica: str, job: Job) -> bool:
    report = end.reports.get(replica)
    return report is not None and report.num_learned == job.num_batches


def own_bytes(end: DaemonEnd) -> int:
    """Memory of the process itself, without the data set's files that it has mapped."""
    memory = psutil.Process(end.process.pid).memory_info()
    return int(memory.rss - memory.shared)


def check_snapshot(ready: local_pb2.SnapshotReady, end: DaemonEnd, job: Job) -> model_pb2.Commit:
    data = Path(ready.path).read_bytes()
    assert ready.work_digest == WORK, "what it learned, for whoever meets its job's name again"
    assert digest_of(data) == ready.checkpoint.digest
    assert len(data) == ready.checkpoint.size_bytes
    payload, signer = open_single(ready.commit, identity_pb2.DOMAIN_COMMIT)
    assert signer.public_der == end.hello.public_key
    assert digest_of_envelope(ready.commit) == ready.checkpoint.commit_digest
    commit = model_pb2.Commit.FromString(payload)
    assert commit.state_digest == ready.checkpoint.digest
    assert commit.parent_digest == ready.checkpoint.parent_digest
    assert len(commit.losses) == len(commit.batches)
    return commit


@pytest.mark.parametrize("outbound_only", [False, True], ids=["direct", "relayed"])
def test_two_workers_train_a_chain_to_a_complete_lineage(tmp_path: Path, outbound_only: bool) -> None:
    """Also where neither of them can be dialled."""
    job = make_job(tmp_path)

    async def scenario() -> None:
        async with relays(NETWORK_ID, int(outbound_only)) as known, workers(tmp_path, 2) as (first, second):
            for end in (first, second) if outbound_only else ():
                await tell_of_relays(end, known, outbound_only=True)
            places = {"s1": first, "s2": second}
            await first.host(job, "s1", places)
            await second.host(job, "s2", places)
            await second.introduce("s1", first)
            await second.until(lambda: complete(second, "s2.1", job) and bool(second.snapshots))
            await first.until(lambda: complete(first, "s1.1", job) and bool(first.snapshots))
            for end, vnode in ((first, "s1"), (second, "s2")):
                commit = check_snapshot(end.snapshots[-1], end, job)
                assert sorted(commit.batches) == list(range(job.num_batches))
                assert commit.parent_digest == digest_of(job.states[vnode].read_bytes())
                assert commit.losses[-1] < commit.losses[0]
                assert end.num_learned == job.num_batches, "each learned every batch itself, once"

    asyncio.run(scenario())


def test_one_worker_hosts_both_stages_and_evaluates_when_durable(tmp_path: Path) -> None:
    job = make_job(tmp_path, evaluate_every=10)

    async def scenario() -> None:
        async with worker(tmp_path) as end:
            for vnode in ("s1", "s2"):
                await end.host(job, vnode, {"s1": end, "s2": end})
            await end.until(
                lambda: {ready.replica for ready in end.snapshots if ready.checkpoint.step == job.num_batches} == {"s1.1", "s2.1"}
            )
            for ready in end.snapshots:
                durable = local_pb2.WorkerDurable(
                    replica=ready.replica, lineage=ready.checkpoint.lineage, digest=ready.checkpoint.digest
                )
                await end.pipe.send(local_pb2.ToWorker(durable=durable))
            await end.until(
                lambda: all(
                    any(result.split == "test" and result.complete and result.count == 20 for result in end.reports[name].exits)
                    for name in ("s1.1", "s2.1")
                )
            )
            assert {end.reports[name].num_durable for name in ("s1.1", "s2.1")} == {job.num_batches}
            exits = {
                result.vnode: result for name in ("s1.1", "s2.1") for result in end.reports[name].exits if result.split == "test"
            }
            assert (exits["s1"].depth, exits["s2"].depth) == (1, 2)
            assert exits["s2"].correct > 10
            assert any(result.split == "validation" and result.complete for result in end.reports["s2.1"].exits)

    asyncio.run(scenario())


def test_a_source_keeps_to_the_tempo_of_its_job(tmp_path: Path) -> None:
    job = make_job(tmp_path)

    async def scenario() -> None:
        async with worker(tmp_path) as end:
            places = {"s1": end, "s2": end}
            for vnode in ("s1", "s2"):
                await end.host(job, vnode, places, tempo=Tempo(40.0, time.time() + 3600.0).message())
            await end.until(lambda: {"s1.1", "s2.1"} <= end.reports.keys() and "is not due yet" in end.reports["s1.1"].reason)
            tempo = Tempo(40.0, time.time())
            for vnode in ("s1", "s2"):
                await end.host(job, vnode, places, state_path="", plan_number=2, tempo=tempo.message())
            await end.until(lambda: complete(end, "s1.1", job) and complete(end, "s2.1", job))
            assert time.time() >= tempo.due_s(job.num_batches - 1) - 0.01, "the last batch was not begun before it was due"

    asyncio.run(scenario())


def test_a_killed_successor_comes_back_and_pulls_what_it_lacks(tmp_path: Path) -> None:
    job = make_job(tmp_path, samples=1600)

    async def scenario() -> None:
        async with worker(tmp_path) as first:
            async with worker(tmp_path) as second:
                places = {"s1": first, "s2": second}
                await first.host(job, "s1", places)
                await second.host(job, "s2", places)
                await second.introduce("s1", first)
                await second.until(lambda: second.reports.get("s2.1") is not None and second.reports["s2.1"].num_learned > 20)
                key = second.key
                second.process.kill()
                await second.process.wait()
            async with worker(tmp_path, incarnation=2, key=key) as again:
                await again.host(job, "s2", {"s1": first, "s2": again})
                await again.introduce("s1", first)
                await again.until(lambda: complete(again, "s2.1", job) and bool(again.snapshots))
                commit = check_snapshot(again.snapshots[-1], again, job)
                assert commit.incarnation == 2
                assert IntervalSet.of(*((batch, batch + 1) for batch in commit.batches)) == IntervalSet.span(0, job.num_batches)

    asyncio.run(scenario())


def test_drain_hands_over_a_snapshot_and_updates_do_not_disturb(tmp_path: Path) -> None:
    job = make_job(tmp_path, samples=16000)

    async def scenario() -> None:
        async with worker(tmp_path) as end:
            places = {"s1": end, "s2": end}
            for vnode in ("s1", "s2"):
                await end.host(job, vnode, places)
            await end.until(lambda: end.reports.get("s2.1") is not None and end.reports["s2.1"].num_learned > 5)
            await end.host(job, "s2", places, state_path="", plan_number=2, epoch=2)
            await end.pipe.send(local_pb2.ToWorker(drain=local_pb2.WorkerDrain(within_s=10)))
            await end.until(lambda: {ready.replica for ready in end.snapshots} == {"s1.1", "s2.1"})
            assert not end.drained  # not before others have what it has
            first, second = sorted(end.snapshots, key=lambda ready: ready.replica)
            assert second.checkpoint.lineage == first.checkpoint.lineage  # who reads has learned all that the one before it made
            for ready in end.snapshots:
                durable = local_pb2.WorkerDurable(
                    replica=ready.replica, lineage=ready.checkpoint.lineage, digest=ready.checkpoint.digest
                )
                await end.pipe.send(local_pb2.ToWorker(durable=durable))
            await end.until(lambda: end.drained)
            assert {item.state for item in end.reports.values()} == {orchestrator_pb2.ASSIGNMENT_STATE_RELEASED}
            for ready in end.snapshots:
                commit = check_snapshot(ready, end, job)
                assert len(commit.batches) == ready.checkpoint.step > 0
            assert {ready.replica: ready.checkpoint.epoch for ready in end.snapshots}["s2.1"] == 2

    asyncio.run(scenario())


def test_a_replica_whose_vnode_moves_hands_over_in_its_place_and_learns_on_where_it_need_not_go(tmp_path: Path) -> None:
    job = make_job(tmp_path, samples=16000)
    states = orchestrator_pb2.AssignmentState

    async def scenario() -> None:
        async with worker(tmp_path) as end:
            places = {"s1": end, "s2": end}

            async def told(number: int, within_s: float) -> None:
                update = order(job, "s2", places, state_path="", plan_number=number)
                update.assignment.hand_over_s = within_s
                await end.pipe.send(local_pb2.ToWorker(host=update))

            def stands_at(state: states.ValueType) -> bool:
                return end.reports["s2.1"].state == state

            for vnode in ("s1", "s2"):
                await end.host(job, vnode, places)
            await end.until(lambda: end.reports.get("s2.1") is not None and end.reports["s2.1"].num_learned > 5)
            await told(2, 20.0)
            await end.until(lambda: bool(end.snapshots) and not stands_at(states.ASSIGNMENT_STATE_ACTIVE))
            ready = end.snapshots[-1]
            assert ready.replica == "s2.1"
            assert stands_at(states.ASSIGNMENT_STATE_RELEASING), "not before what it learned is durable"
            done = local_pb2.WorkerDurable(replica="s2.1", lineage=ready.checkpoint.lineage, digest=ready.checkpoint.digest)
            await end.pipe.send(local_pb2.ToWorker(durable=done))
            await end.until(lambda: stands_at(states.ASSIGNMENT_STATE_RELEASED))
            assert end.reports["s2.1"].num_learned == ready.checkpoint.step
            await told(3, 0.0)
            await end.until(lambda: end.reports["s2.1"].num_learned > ready.checkpoint.step)
            assert stands_at(states.ASSIGNMENT_STATE_ACTIVE)
            await told(4, 0.3)
            await end.until(lambda: len(end.snapshots) > 1 and end.snapshots[-1].checkpoint.step > ready.checkpoint.step)
            late = int(end.snapshots[-1].checkpoint.step)
            await end.until(lambda: end.reports["s2.1"].num_learned > late)
            assert stands_at(states.ASSIGNMENT_STATE_ACTIVE), "nobody made it durable in time: it learns on"
            await told(5, 0.3)
            await end.pipe.send(local_pb2.ToWorker(release=local_pb2.ReleaseReplica(replica="s2.1", hand_over=True)))
            await end.until(lambda: stands_at(states.ASSIGNMENT_STATE_RELEASED))

    asyncio.run(scenario())


def test_a_replica_given_anew_to_the_same_worker_numbers_its_commits_on(tmp_path: Path) -> None:
    """Two honest commits with one parent: they must not look like an equivocation."""
    job = make_job(tmp_path)

    async def scenario() -> None:
        commits: list[identity_pb2.Envelope] = []
        async with worker(tmp_path) as end:
            for _ in range(2):
                end.snapshots.clear()
                for vnode in ("s1", "s2"):
                    await end.host(job, vnode, {"s1": end, "s2": end})
                await end.until(
                    lambda: any(one.replica == "s1.1" and one.checkpoint.step == job.num_batches for one in end.snapshots)
                )
                commits += [one.commit for one in end.snapshots if one.replica == "s1.1"][-1:]
                for vnode in ("s1", "s2"):
                    await end.pipe.send(local_pb2.ToWorker(release=local_pb2.ReleaseReplica(replica=f"{vnode}.1")))
                await end.until(
                    lambda: {item.state for item in end.reports.values()} == {orchestrator_pb2.ASSIGNMENT_STATE_RELEASED}
                )
        first, second = (model_pb2.Commit.FromString(one.payload) for one in commits)
        assert (first.parent_digest, first.incarnation) == (second.parent_digest, second.incarnation)
        assert 0 < first.sequence < second.sequence
        with pytest.raises(Refused) as refused:
            equivocation_of(commits[0], commits[1], Place(NETWORK_ID, MODEL, JOB, "s1"))
        assert refused.value.code == "no_equivocation"

    asyncio.run(scenario())


def test_a_snapshot_that_is_wanted_anew_comes_with_all_commits_that_no_manifest_has_named(tmp_path: Path) -> None:
    """What was thought to be in the store may not be there: whoever refused the last one for that takes the next."""
    job = make_job(tmp_path)

    async def scenario() -> None:
        async with worker(tmp_path) as end:
            for vnode in ("s1", "s2"):
                await end.host(job, vnode, {"s1": end, "s2": end})

            def mine() -> list[local_pb2.SnapshotReady]:
                return [one for one in end.snapshots if one.replica == "s1.1"]

            def more_than(num: int) -> Callable[[], bool]:
                return lambda: len(mine()) > num

            await end.until(lambda: bool(mine()) and mine()[-1].checkpoint.step == job.num_batches)
            for number in range(2):
                before = mine()
                anew = local_pb2.Snapshot(replica="s1.1", reason="an ancestor's commit is not in the store")
                await end.pipe.send(local_pb2.ToWorker(snapshot=anew))
                await end.until(more_than(len(before)))
                commits = {digest_of_envelope(one.commit): one for one in before}
                told = [digest_of_envelope(commit) for commit in mine()[len(before)].ancestors]
                assert commits.keys() <= set(told), number

    asyncio.run(scenario())


def test_a_replica_that_cannot_be_restored_fails_alone(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    broken = tmp_path / "broken.state"
    broken.write_bytes(job.states["s2"].read_bytes()[:-4])

    async def scenario() -> None:
        async with worker(tmp_path) as end:
            await end.host(job, "s2", {"s1": end, "s2": end}, state_path=str(broken))
            await end.until(lambda: end.reports.get("s2.1") is not None and "bad_state" in end.reports["s2.1"].reason)
            await end.host(job, "s1", {"s1": end, "s2": end})
            await end.host(job, "s2", {"s1": end, "s2": end})
            await end.until(lambda: complete(end, "s1.1", job) and complete(end, "s2.1", job))

    asyncio.run(scenario())


def test_a_stopped_successor_makes_no_memory_grow_and_stops_nobody_upstream(tmp_path: Path) -> None:
    job = make_job(tmp_path, width=512, batch_size=64, samples=64 * 600, passes=1)  # 75 MiB of frames
    half = 64 * 512 * 4 * 300  # more than memory may grow by

    async def scenario() -> None:
        async with workers(tmp_path, 2) as (first, second):
            places = {"s1": first, "s2": second}
            await first.host(job, "s1", places, lead_batches=10_000, checkpoint_steps=100_000, spool_bytes=96 << 20)
            await second.host(job, "s2", places)
            await second.introduce("s1", first)
            await second.until(lambda: second.reports.get("s2.1") is not None and second.reports["s2.1"].num_learned > 0)
            second.process.send_signal(signal.SIGSTOP)
            before = own_bytes(first)
            await first.until(lambda: complete(first, "s1.1", job), 120)
            await first.until(lambda: first.reports["s1.1"].spool_bytes > half)  # whatever the other had taken before it stopped
            assert own_bytes(first) - before <= 32 << 20
            second.process.send_signal(signal.SIGCONT)
            await second.until(lambda: complete(second, "s2.1", job), 120)

    asyncio.run(scenario())
