"""Goal: a read that fails never makes a job one without audits, and whoever looks at a job sees that nobody audits it."""

from __future__ import annotations

import asyncio
import random

import pytest
from orchestrator_parts import VNODES, small_graph, stage
from runtime_rig import until, world

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.cli.watching import headline
from dcnr.errors import NotFound
from dcnr.graph import graph_digest
from dcnr.ids import Digest, digest_of
from dcnr.ports import StoredObject
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator import audit_missing
from orchestrator.audit_events import Bundle
from orchestrator.explain import explain_model
from orchestrator.jobview import job_view
from orchestrator.view import ViewLoader
from trust.envelope import digest_of_envelope, seal
from trust.identity import NodeKey
from trust.network import create_document, verify_chain
from vnode.registry import default_registry

CLOCK, MODEL, JOB = SystemClock(), "m", "job"
MAINTAINER, HOLDER = NodeKey.generate(), NodeKey.generate()
POLICY = verify_chain(
    [create_document(MAINTAINER, name="n", now_wall=CLOCK.wall(), orchestrator_ids=[HOLDER.node_id], audits="drawn")]
)


class Store(MemoryStore):
    """Now and then a read does not find what is there."""

    hidden = ""

    async def get(self, key: str, *, max_bytes: int) -> StoredObject:
        if key == self.hidden:
            raise NotFound("a stale read", code="no_such_object")
        return await super().get(key, max_bytes=max_bytes)


def test_a_beginning_that_is_not_found_at_once_is_looked_for_again() -> None:
    async def story() -> None:
        store = Store(CLOCK, random.Random(1))
        request = await stage(store, POLICY, MAINTAINER, MODEL, CLOCK, JOB)
        await store.put(keys.job_request(MODEL, JOB), request.SerializeToString(deterministic=True))
        beginning = POLICY.read_job_request(request).initial_manifest_digest
        manifest = model_pb2.Manifest(
            network_id=POLICY.network_id, model=MODEL, number=1, parent_digest=beginning, job_id=JOB, epoch=1, holder=HOLDER.node_id,
            graph_digest=graph_digest(small_graph(MODEL)), audits="drawn", entries=[model_pb2.ManifestEntry(vnode=name) for name in VNODES],
        )  # fmt: skip
        envelope = seal(identity_pb2.DOMAIN_MANIFEST, manifest, HOLDER)
        await store.put(keys.manifest(MODEL, digest_of_envelope(envelope)), envelope.SerializeToString(deterministic=True))
        head = model_pb2.Head(
            network_id=POLICY.network_id, model=MODEL, epoch=1, holder=HOLDER.node_id, sequence=1,
            manifest_digest=digest_of_envelope(envelope), active=model_pb2.ActiveJob(job_id=JOB),
        )  # fmt: skip
        loader = ViewLoader(store, lambda: POLICY, default_registry(), CLOCK)
        store.hidden = keys.manifest(MODEL, beginning)
        with pytest.raises(NotFound):
            await loader.load(MODEL, head, b"")
        store.hidden = ""
        view = await loader.load(MODEL, head, b"")
        assert view.chain is not None
        assert view.beginning is not None

    asyncio.run(story())


def test_what_nobody_may_audit_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a young network whose orchestrators have no verifier does not stand still without a word."""
    monkeypatch.setattr(audit_missing, "ALONE_S", 0.0)

    async def story() -> None:
        async with world(audits="drawn") as made:
            await made.submit()
            holder = await made.running()
            await made.record_all(holder)
            runtime = holder.runtime
            await until(lambda: len(runtime.waits()) == len(VNODES), "what the PNodes did is to be audited")
            assert not job_view(runtime, "job-1", with_vnodes=False).held_up
            bundle = Bundle(digest_of(b"evidence"), len(b"evidence"))
            for one in runtime.waits():
                await made.store.put(keys.evidence(runtime.model, one.vnode, Digest(bundle.digest)), b"evidence")
                runtime.auditing.answered(one.accused, model_pb2.Evidence(interval=one.interval), bundle)
            await until(lambda: bool(job_view(runtime, "job-1", with_vnodes=False).held_up), "the job says why it does not end")
            shown = job_view(runtime, "job-1", with_vnodes=False)
            assert "--verifier" in shown.held_up
            assert shown.held_up in headline(shown), "who follows the job reads it"
            [event] = [one for one in holder.shared.history.since(0, 64) if one.kind == "audit_waits"]
            assert event.reason == shown.held_up
            lines = [one.reason for one in explain_model(runtime, "", None) if one.verdict == "audit open"]
            assert lines
            assert all("--verifier" in reason for reason in lines)

    asyncio.run(story())
