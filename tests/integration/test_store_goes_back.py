"""A store that was restored from a backup, with real runtimes: what is decided from there on is obeyed, and no job ends twice."""

from __future__ import annotations

import asyncio

import pytest
from runtime_rig import MODEL, Orchestrator, until, world

from dataservice import keys
from dcnr.ids import NodeId
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator import shown_heads
from orchestrator.documents import sealed
from pnode.authority import Accepted, Authority, Source


def test_where_only_the_head_goes_back_a_job_ends_as_it_had_ended() -> None:
    """As where a backup is older than what was copied beside it: the job would be run once more, and end in two ways."""

    async def story() -> None:
        async with world() as made:
            await made.submit()
            holder = await made.running()
            backup = made.store.peek(keys.head(MODEL))
            for worker in made.workers:
                worker.learn_all()
            await made.record_all(holder)
            await until(lambda: made.end() is not None, "the job has ended")
            first, epoch = made.end(), holder.runtime.head.epoch if holder.runtime.head is not None else 0
            made.store.rewind(keys.head(MODEL), backup)

            def repeated() -> bool:
                head = holder.runtime.head
                return head is not None and head.epoch > epoch and not head.active.job_id

            await until(repeated, "the head says so again")
            assert holder.runtime.head is not None
            assert list(holder.runtime.head.decided) == [first] == [made.end()]
            said = {event.kind: event.reason for event in holder.shared.history.since(0, 1000)}
            assert "had been seen" in said["store_rolled_back"]
            assert said["term_lost"].startswith("the store went back to epoch")
            assert "end_differs" not in said
            await made.submit("another")
            await until(lambda: holder.state("another") == model_pb2.JOB_STATE_RUNNING, "the next job runs")

    asyncio.run(story())


@pytest.mark.parametrize("epochs_ahead", [3, 0], ids=["of a lower epoch", "of a higher epoch and a lower sequence"])
def test_a_fresh_orchestrator_is_obeyed_though_pnodes_know_a_newer_head(epochs_ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not there when the store held that head, so PNodes have to show it; they obey neither a lower epoch nor a lower sequence."""
    monkeypatch.setattr(shown_heads, "SHOWN_S", 0.2)

    async def story() -> None:
        async with world() as made:
            await made.submit()
            old = await made.running()
            assert old.runtime.head is not None
            newer = model_pb2.Head()
            newer.CopyFrom(old.runtime.head)
            newer.epoch, newer.sequence = old.runtime.head.epoch + epochs_ahead, old.runtime.head.sequence + 5000
            envelope = identity_pb2.Envelope.FromString(sealed(identity_pb2.DOMAIN_HEAD, newer, old.shared.key).data)
            await old.stop()
            made.orchestrators[:] = [fresh := Orchestrator(old.shared.key, made.policy, made.store, made.workers)]
            fresh.start()
            pnode = NodeId(made.workers[0].node_id)
            obeys = Authority(
                network_id=made.policy.network_id, pnode_id=pnode, model=MODEL, orchestrators=lambda: [old.shared.key.node_id]
            )  # fmt: skip
            obeys.applied(model_pb2.DesiredState(epoch=newer.epoch, sequence=newer.sequence))
            obeys.head_read(newer, NodeId(newer.holder), Source.OWN_GET)
            await until(lambda: fresh.runtime.is_holder, "the fresh one holds the head")
            fresh.runtime.shown(envelope)

            def obeyed() -> bool:
                head = fresh.runtime.head
                if head is None or not fresh.runtime.is_holder or fresh.plan is None or fresh.plan.epoch != head.epoch:
                    return False
                obeys.head_read(head, NodeId(head.holder), Source.OWN_GET)
                desired = model_pb2.DesiredState(
                    network_id=made.policy.network_id, model=MODEL, pnode_id=pnode, epoch=fresh.plan.epoch, holder=fresh.plan.holder,
                    sequence=head.plan_sequence,
                )  # fmt: skip
                return isinstance(obeys.offered(desired, NodeId(head.holder)), Accepted)

            await until(obeyed, "PNodes obey its plan", within_s=20.0)
            said = {event.kind: event.reason for event in fresh.shared.history.since(0, 1000)}
            assert "obeys none that is older" in said["store_rolled_back"]
            assert said["term_lost"].startswith("PNodes know epoch")

    asyncio.run(story())
