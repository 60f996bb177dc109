"""Whole jobs through real runtimes over one store: placed, run, recorded, completed, taken over, relocated, cancelled, each outcome once."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace

import pytest
from orchestrator_parts import BATCHES, VNODES, stage
from runtime_rig import CLOCK, JOB, MAINTAINER, MODEL, World, until, world

from dataservice import keys
from dcnr import limits
from dcnr.errors import InvalidInput, NotFound, Refused, Stale
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from orchestrator import decider
from orchestrator.admission import admit, record_cancel
from orchestrator.changes import MAX_DECIDED
from orchestrator.explain import explain_model
from orchestrator.pauses import record_pause
from trust.envelope import seal
from trust.identity import NodeKey


def test_a_job_runs_to_its_end() -> None:
    async def story() -> None:
        async with world() as made:
            await made.submit()
            holder = await made.running()
            plan = holder.plan
            assert plan is not None
            assert {item.vnode for item in plan.assignments} == set(VNODES)
            assert len({item.pnode_id for item in plan.assignments}) == 2
            for worker in made.workers:
                worker.learn_all()
            await made.record_all(holder)
            await until(lambda: made.end() is not None, "the job has ended")
            moved = [event.facts["state"] for event in holder.shared.history.since(0, 1000) if event.kind == "job_state_changed"]
            assert moved == ["placing", "running", "settling"]
            outcome = made.end()
            assert outcome is not None
            assert outcome.state == model_pb2.JOB_STATE_COMPLETED
            assert [item.depth for item in outcome.exits] == [1, 2]
            manifest, _ = await holder.runtime.loader.manifest(MODEL, outcome.manifest_digest)
            assert all(entry.working[0].step == BATCHES for entry in manifest.entries)

    asyncio.run(story())


def test_a_takeover_goes_on_with_the_plan_and_ends_the_job_once() -> None:
    async def story() -> None:
        async with world(orchestrators=2) as made:
            await made.submit()
            first = await made.running()
            replicas = {item.replica for item in first.plan.assignments} if first.plan else set()
            await first.stop()
            made.orchestrators.remove(first)
            [second] = made.orchestrators
            await until(lambda: second.runtime.is_holder, "the other takes over")
            head = second.runtime.head
            assert head is not None
            assert head.epoch == 2
            await until(lambda: second.plan is not None and second.plan.epoch == 2, "the plan is renewed in the new term")
            assert {item.replica for item in second.plan.assignments} == replicas  # type: ignore[union-attr]
            for worker in made.workers:
                worker.learn_all()
            await made.record_all(second)
            await until(lambda: made.end() is not None, "the job has ended")
            assert made.end().state == model_pb2.JOB_STATE_COMPLETED  # type: ignore[union-attr]

    asyncio.run(story())


def test_a_killed_pnode_is_replaced_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The news itself begins the round, no clock."""

    async def story() -> None:
        async with world(workers=3) as made:
            await made.submit()
            holder = await made.running()
            monkeypatch.setattr(decider, "ROUND_S", 60.0)
            plan = holder.plan
            assert plan is not None
            victim = next(worker for worker in made.workers if worker.node_id == plan.assignments[0].pnode_id)
            made.workers.remove(victim)
            started = CLOCK.monotonic()
            await until(
                lambda: holder.plan is not None and all(item.pnode_id != victim.node_id for item in holder.plan.assignments),
                "the replica has moved",
            )
            assert CLOCK.monotonic() - started < 20
            assert holder.plan is not None
            kept = {item.replica for item in holder.plan.assignments} & {item.replica for item in plan.assignments}
            assert len(kept) == 1
            events = [event.kind for event in holder.shared.history.since(0, 1000)]
            assert "replica_relocated" in events

    asyncio.run(story())


def test_a_paused_job_stands_still_through_a_takeover_and_goes_on_where_it_was() -> None:
    """Its replicas stay and are told to learn nothing, no clock of it runs, and who takes the head over knows; resumed, the same replicas end it."""

    async def said(made: World, number: int, paused: bool) -> bool:
        wish = model_pb2.JobPause(network_id=made.policy.network_id, job_id=JOB, model=MODEL, number=number, paused=paused)
        envelope = seal(identity_pb2.DOMAIN_JOB_PAUSE, wish, MAINTAINER)
        return (await record_pause(envelope, policy=made.policy, store=made.store))[1]

    async def story() -> None:
        async with world(orchestrators=2) as made:
            await made.submit(batches_per_s=1000.0)
            first = await made.running()
            assert first.plan is not None
            replicas, tempo = {item.replica for item in first.plan.assignments}, first.plan.tempo
            assert (tempo.batches_per_s, tempo.from_batch) == (1000.0, 0)
            assert await said(made, 1, True)
            assert not await said(made, 1, True), "the same statement again"
            assert not await said(made, 2, True), "what is paused is not paused twice"
            await until(lambda: first.plan is not None and first.plan.halted, "the plan is halted")
            await until(lambda: all(worker.halted for worker in made.workers), "every PNode is told")
            halted = first.plan.tempo
            due = 1 + halted.from_unix_ms - tempo.from_unix_ms
            assert abs(halted.from_batch - due) <= 1, "the schedule stands where it had come to"
            head = first.runtime.head
            assert head is not None
            assert head.active.state == model_pb2.JOB_STATE_PAUSED
            ran_s = head.active.running_s
            for worker in made.workers:
                worker.learn_all()
            await made.record(first, await made.request(first, 0))  # were it running, it would settle now
            await first.stop()
            made.orchestrators.remove(first)
            [second] = made.orchestrators
            await until(lambda: second.runtime.is_holder, "the other takes over")
            await until(lambda: second.plan is not None and second.plan.epoch == 2, "the plan is renewed in the new term")
            head = second.runtime.head
            assert head is not None
            assert (head.active.state, head.active.running_s) == (model_pb2.JOB_STATE_PAUSED, ran_s)
            assert second.plan is not None
            assert second.plan.halted
            assert second.plan.tempo == halted
            assert await said(made, 2, False)
            await until(
                lambda: second.state() == model_pb2.JOB_STATE_SETTLING, "it goes on, and what its source learned is durable"
            )
            await until(lambda: second.plan is not None and not second.plan.halted, "the plan goes on")
            assert {item.replica for item in second.plan.assignments} == replicas
            assert second.plan.tempo.from_batch == halted.from_batch
            assert second.plan.tempo.from_unix_ms > halted.from_unix_ms
            assert await said(made, 3, True)
            await until(lambda: second.state() == model_pb2.JOB_STATE_PAUSED, "it pauses while it settles")
            await made.record(second, await made.request(second, 1))
            assert made.end() is None
            assert await said(made, 4, False)
            await until(lambda: made.end() is not None, "the job has ended")
            assert made.end().state == model_pb2.JOB_STATE_COMPLETED  # type: ignore[union-attr]
            with pytest.raises(Stale) as ended:
                await said(made, 5, True)
            assert ended.value.code == "job_ended"

    asyncio.run(story())


@pytest.mark.parametrize("bounds", [(64, limits.MAX_ENVELOPE_BYTES), (limits.MAX_PLAN_BYTES, 64)])
def test_a_plan_that_nobody_could_read_is_not_named_and_its_maintainers_see_why(
    monkeypatch: pytest.MonkeyPatch, bounds: tuple[int, int]
) -> None:
    monkeypatch.setattr("orchestrator.publishing.limits", SimpleNamespace(MAX_PLAN_BYTES=bounds[0], MAX_ENVELOPE_BYTES=bounds[1]))

    async def story() -> None:
        async with world() as made:
            await made.submit()
            [one] = made.orchestrators
            await until(lambda: "fewer replicas" in one.runtime.decider.trouble, "it is told")
            assert one.runtime.head is not None
            assert one.runtime.head.plan_digest == ""
            assert "fewer replicas" in explain_model(one.runtime, "", None)[0].reason
            assert [event.kind for event in one.shared.history.since(0, 1000)].count("placement_refused") == 1
            monkeypatch.undo()
            await made.running()
            await until(lambda: one.runtime.decider.trouble == "", "the trouble is over")

    asyncio.run(story())


def test_cancelling_ends_the_job_and_releases_its_replicas() -> None:
    async def story() -> None:
        async with world() as made:
            await made.submit()
            holder = await made.running()
            cancel = model_pb2.JobCancel(network_id=made.policy.network_id, job_id=JOB, model=MODEL, reason="enough")
            await record_cancel(seal(identity_pb2.DOMAIN_JOB_CANCEL, cancel, MAINTAINER), policy=made.policy, store=made.store)
            await until(lambda: made.end() is not None, "the job has ended")
            assert made.end().state == model_pb2.JOB_STATE_CANCELLED  # type: ignore[union-attr]
            await until(lambda: not any(worker.reports for worker in made.workers), "nothing is hosted any more")
            await until(lambda: holder.plan is not None and not holder.plan.assignments, "the plan is empty")

    asyncio.run(story())


def test_what_a_job_had_placed_is_released_also_where_its_outcome_has_left_the_head() -> None:
    """A head keeps its last outcomes only: whoever calls everything off, a long queue included, leaves nothing placed."""

    async def story() -> None:
        async with world(orchestrators=2) as made:
            await made.submit()
            first = await made.running()
            jobs = [JOB, *(f"queued-{number}" for number in range(MAX_DECIDED))]
            for job in jobs[1:]:
                await made.submit(job)
            await first.stop()
            for job in jobs:
                cancel = model_pb2.JobCancel(network_id=made.policy.network_id, job_id=job, model=MODEL, reason="enough")
                await record_cancel(seal(identity_pb2.DOMAIN_JOB_CANCEL, cancel, MAINTAINER), policy=made.policy, store=made.store)
            second = next(one for one in made.orchestrators if one is not first)
            await until(lambda: second.runtime.is_holder, "the other one holds the head")
            await until(lambda: all(second.state(job) == model_pb2.JOB_STATE_CANCELLED for job in jobs), "all jobs have ended")
            head = second.runtime.head
            assert head is not None
            assert JOB not in {outcome.job_id for outcome in head.decided}
            await until(lambda: second.plan is not None and not second.plan.assignments, "the plan is empty", 10.0)

    asyncio.run(story())


def test_only_who_hosts_what_no_plan_gave_it_is_told_to_host_nothing() -> None:
    """A PNode says one plan's digest whatever models it works for: what another model's plan gave it is no business of this one's holder."""
    busy, stray = "0" * 40, "f" * 40  # in the order in which they would be told

    def beat(replica: str) -> orchestrator_pb2.Beat:
        active = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE
        report = orchestrator_pb2.ReplicaReport(replica=replica, vnode=replica.partition(".")[0], state=active)
        return orchestrator_pb2.Beat(sequence=1, worker_alive=True, plan_digest="d" * 64, replicas=[report])

    async def story() -> None:
        async with world(workers=3) as made:
            await made.submit()
            holder = await made.running()
            inventory, now = holder.shared.inventory, CLOCK.monotonic()
            inventory.planned("another", {busy: (model_pb2.Assignment(replica="x.7", vnode="x", pnode_id=busy),)})
            for node_id, replica in ((busy, "x.7"), (stray, "x.6")):
                inventory.attached(node_id, now)
                inventory.beat(node_id, now, beat(replica), 1e6)

            def told() -> set[str]:
                assert holder.runtime.head is not None
                digest = holder.runtime.head.plan_digest
                return {one for one in (busy, stray) if made.store.peek(keys.desired(MODEL, digest, one)) is not None}

            await until(lambda: bool(told()), "somebody is told beside the plan")
            assert told() == {stray}
            before = holder.plan
            assert before is not None
            made.workers[:] = [worker for worker in made.workers if worker.node_id != before.assignments[0].pnode_id]
            await until(lambda: holder.plan is not None and holder.plan.number > before.number, "the next plan")
            assert told() == {stray}

    asyncio.run(story())


def test_only_jobs_that_can_run_are_taken_in() -> None:
    async def story() -> None:
        made = World(1, 0)
        loader = made.orchestrators[0].runtime.loader

        async def submit(envelope: identity_pb2.Envelope) -> bool:
            return (await admit(envelope, policy=made.policy, store=made.store, loader=loader, wall_unix_ms=0))[1]

        envelope = await stage(made.store, made.policy, MAINTAINER, MODEL, CLOCK, JOB)
        with pytest.raises(Refused):
            await submit(seal(identity_pb2.DOMAIN_JOB_REQUEST, envelope.payload, NodeKey.generate()))
        request = model_pb2.JobRequest.FromString(envelope.payload)
        request.initial_manifest_digest = "0" * 64
        with pytest.raises(NotFound):
            await submit(seal(identity_pb2.DOMAIN_JOB_REQUEST, request, MAINTAINER))
        request = model_pb2.JobRequest.FromString(envelope.payload)
        request.batches_per_s = math.nan
        with pytest.raises(InvalidInput) as bad:
            await submit(seal(identity_pb2.DOMAIN_JOB_REQUEST, request, MAINTAINER))
        assert (bad.value.code, bad.value.details["field"]) == ("bad_tempo", "batches_per_s")
        assert made.store.peek(keys.job_request(MODEL, JOB)) is None
        assert not await submit(envelope)
        assert await submit(envelope)
        request = model_pb2.JobRequest.FromString(envelope.payload)
        request.created_unix_ms += 5
        assert await submit(seal(identity_pb2.DOMAIN_JOB_REQUEST, request, MAINTAINER))
        signed_anew = (await stage(made.store, made.policy, MAINTAINER, MODEL, CLOCK, JOB)).payload
        begins = model_pb2.JobRequest.FromString(signed_anew).initial_manifest_digest
        assert begins != request.initial_manifest_digest
        assert await submit(seal(identity_pb2.DOMAIN_JOB_REQUEST, signed_anew, MAINTAINER)), (
            "the same first states, signed once more"
        )
        others = {
            "num_batches": BATCHES + 1, "unit_batches": 77, "lead_batches": 77, "horizon_s": 77.0, "settling_deadline_s": 77.0,
            "expires_unix_ms": request.created_unix_ms + 77_000, "checkpoint_s": 77.0, "checkpoint_steps": 77, "dataset_name": "other", "batches_per_s": 77.0,
            "graph_digest": "1" * 64, "dataset_digest": "1" * 64, "initial_manifest_digest": "1" * 64,
        }  # fmt: skip
        names = {field.name for field in model_pb2.JobRequest.DESCRIPTOR.fields}
        assert names - others.keys() == {"network_id", "job_id", "model", "created_unix_ms"}, (
            "every field that is signed is compared"
        )
        for name, value in others.items():
            other = model_pb2.JobRequest.FromString(envelope.payload)
            setattr(other, name, value)
            with pytest.raises(Stale) as taken:
                await submit(seal(identity_pb2.DOMAIN_JOB_REQUEST, other, MAINTAINER))
            assert (taken.value.code, taken.value.details["field"]) == ("job_id_taken", name)

    asyncio.run(story())
