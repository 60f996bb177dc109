"""Goal: of what workers record only that is named which holds, and a job ends when it is all there."""

from __future__ import annotations

import asyncio

import pytest
from orchestrator_parts import BATCHES
from runtime_rig import CLOCK, JOB, MODEL, until, world

from dataservice import keys, manifests
from dcnr.v1 import data_pb2, identity_pb2, model_pb2
from trust.envelope import seal
from trust.identity import NodeKey


def test_records_that_do_not_hold_are_refused() -> None:
    async def story() -> None:
        async with world() as made:
            await made.submit()
            holder = await made.running()
            view = holder.runtime.view
            assert view is not None
            assert view.plan is not None
            item = view.plan.assignments[0]
            worker = next(one for one in made.workers if one.node_id == item.pnode_id)
            parent = view.working(item.vnode)
            assert parent is not None
            checkpoint, commit = await worker.checkpoint(MODEL, JOB, item.replica, parent)

            async def status(changed: model_pb2.Checkpoint, envelope: identity_pb2.Envelope) -> int:
                request = data_pb2.RecordCheckpointRequest(
                    network_id=made.policy.network_id, model=MODEL, job_id=JOB, checkpoint=changed
                )
                request.commit.CopyFrom(envelope)
                return (await holder.runtime.record(request)).status

            less = model_pb2.Checkpoint()
            less.CopyFrom(checkpoint)
            less.lineage.intervals[0].end, less.step = BATCHES - 1, BATCHES - 1
            assert await status(less, commit) == data_pb2.RECORD_STATUS_REFUSED
            other = model_pb2.Checkpoint()
            other.CopyFrom(checkpoint)
            other.replica = f"{item.vnode}.99"
            assert await status(other, commit) == data_pb2.RECORD_STATUS_REFUSED
            stranger = seal(identity_pb2.DOMAIN_COMMIT, commit.payload, NodeKey.generate())
            forged = model_pb2.Checkpoint()
            forged.CopyFrom(checkpoint)
            from trust.envelope import digest_of_envelope

            forged.commit_digest = digest_of_envelope(stranger)
            assert await status(forged, stranger) == data_pb2.RECORD_STATUS_REFUSED
            assert await status(checkpoint, commit) == data_pb2.RECORD_STATUS_PENDING
            told = [event.subject for event in holder.shared.history.since(0, 1000) if event.kind == "checkpoint_refused"]
            assert told == [item.replica, item.replica], "of what nobody was given nothing is told"

    asyncio.run(story())


def test_a_state_that_is_absent_is_asked_for_and_one_of_another_size_is_refused() -> None:
    """A torn upload: what lies under the digest is not what was announced."""

    async def story() -> None:
        async with world() as made:
            await made.submit()
            holder = await made.running()
            request = await made.request(holder, 0)
            key = keys.state(MODEL, request.checkpoint.vnode, request.checkpoint.digest)
            state = made.store.peek(key)
            assert state is not None
            made.store.rewind(key, None)
            assert (await holder.runtime.record(request)).status == data_pb2.RECORD_STATUS_MISSING
            made.store.rewind(key, state[:-1])
            assert (await holder.runtime.record(request)).status == data_pb2.RECORD_STATUS_REFUSED
            made.store.rewind(key, state)
            assert (await holder.runtime.record(request)).status == data_pb2.RECORD_STATUS_PENDING

    asyncio.run(story())


def test_a_job_whose_last_states_vanish_is_not_completed_before_they_are_back() -> None:
    """Finished means durable: the manifest lets go of what the store lost, tells it, and names it again when it is brought again."""

    async def story() -> None:
        async with world() as made:
            await made.submit()
            holder = await made.running()
            for worker in made.workers:
                worker.learn_all()
            requests = [await made.request(holder, number) for number in range(2)]
            await made.record(holder, requests[0])
            key = keys.state(MODEL, requests[0].checkpoint.vnode, requests[0].checkpoint.digest)
            state = made.store.peek(key)
            made.store.rewind(key, None)
            await made.record(holder, requests[1])
            told = lambda: [event for event in holder.shared.history.since(0, 1000) if event.kind == "checkpoint_lost"]  # noqa: E731
            await until(lambda: bool(told()), "the loss is told")
            assert made.end() is None

            def begins_anew() -> bool:  # the loss is told when it is noticed, before what follows from it is written
                view = holder.runtime.view
                working = view.working(requests[0].checkpoint.vnode) if view is not None else None
                return working is not None and working.step == 0

            await until(begins_anew, "what the job began with is named again")
            assert (await holder.runtime.record(requests[0])).status == data_pb2.RECORD_STATUS_MISSING
            made.store.rewind(key, state)
            await made.record(holder, requests[0])
            await until(lambda: made.end() is not None, "the job has ended")
            assert made.end().state == model_pb2.JOB_STATE_COMPLETED  # type: ignore[union-attr]
            assert [event.subject for event in told()] == [requests[0].checkpoint.vnode]

    asyncio.run(story())


def test_a_checkpoint_in_too_many_pieces_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica is told, learns on, and its next checkpoint is named."""

    async def story() -> None:
        async with world() as made:
            await made.submit()
            holder = await made.running()
            request = await made.request(holder, 0)
            monkeypatch.setattr(manifests, "share_bytes", lambda manifest, reserved_bytes=0: 100)
            assert (await holder.runtime.record(request)).status == data_pb2.RECORD_STATUS_PENDING
            answer = data_pb2.RecordCheckpointResponse()
            deadline = CLOCK.monotonic() + 40
            while answer.status != data_pb2.RECORD_STATUS_REFUSED:
                assert CLOCK.monotonic() < deadline
                await asyncio.sleep(0.05)
                answer = await holder.runtime.record(request)
            assert "too many pieces" in answer.reason
            events = [event for event in holder.shared.history.since(0, 1000) if event.kind == "checkpoint_refused"]
            assert len(events) == 1
            monkeypatch.undo()
            await made.record(holder, await made.request(holder, 1))

    asyncio.run(story())
