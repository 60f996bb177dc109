"""A model's signed documents as they lie in the store, each read by its digest and verified: manifests, plans, job requests, commits, fault records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from dcnr import limits
from dcnr.errors import Corrupt, NotFound
from dcnr.ids import digest_of
from dcnr.v1 import data_pb2, identity_pb2, model_pb2
from trust.delegation import open_delegation
from trust.envelope import digest_of_envelope, open_single, parse, parse_envelope
from trust.evidence import MAX_RECORD_BYTES
from trust.network import NetworkPolicy

Read = Callable[[data_pb2.ObjectRef, Path, int], Awaitable[None]]
"""Writes the object of that reference to the path; the last argument bounds its size in bytes."""


class StoredDocuments:
    """Reads through ``read`` only; keeps temporary files in ``directory``. All raise Corrupt for what is not what its name says, and what ``read`` raises."""

    def __init__(self, read: Read, policy: NetworkPolicy, model: str, directory: Path) -> None:
        self._read, self._policy, self._model, self._directory = read, policy, model, directory

    async def manifest(self, digest: str) -> model_pb2.Manifest:
        """By the digest of its envelope."""
        return self._policy.open_manifest(await self.manifest_envelope(digest), self._model)

    async def manifest_envelope(self, digest: str) -> identity_pb2.Envelope:
        """A manifest as it was signed; only its digest is checked."""
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_MANIFEST, model=self._model, digest=digest)
        envelope = parse_envelope(await self.data(ref, limits.MAX_MANIFEST_BYTES), limits.MAX_MANIFEST_BYTES)
        if digest_of_envelope(envelope) != digest:
            raise Corrupt(f"manifest {digest[:12]} does not have its digest", code="wrong_digest")
        return envelope

    async def plan(self, digest: str) -> model_pb2.Plan:
        """By the digest of its envelope, signed by an orchestrator that some version of the network document listed."""
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_PLAN, model=self._model, digest=digest)
        envelope = parse_envelope(await self.data(ref, limits.MAX_PLAN_BYTES), limits.MAX_PLAN_BYTES)
        if digest_of_envelope(envelope) != digest:
            raise Corrupt(f"plan {digest[:12]} does not have its digest", code="wrong_digest")
        payload, signer = open_single(envelope, identity_pb2.DOMAIN_PLAN, max_bytes=limits.MAX_PLAN_BYTES)
        plan = parse(model_pb2.Plan, payload, limits.MAX_PLAN_BYTES)
        if (plan.network_id, plan.model, plan.holder) != (self._policy.network_id, self._model, signer.node_id):
            raise Corrupt(f"plan {digest[:12]} is of another network, model or holder", code="wrong_network")
        if not self._policy.has_listed(signer.node_id):
            raise Corrupt(
                f"plan {digest[:12]} is signed by a node that never was an orchestrator of this network", code="wrong_signer"
            )
        return plan

    async def request(self, job_id: str) -> model_pb2.JobRequest:
        """The verified request of a job."""
        request = self._policy.read_job_request(await self.request_envelope(job_id))
        if request.job_id != job_id or request.model != self._model:
            raise Corrupt("the stored request is of another job", code="wrong_job")
        return request

    async def request_envelope(self, job_id: str) -> identity_pb2.Envelope:
        """The request of a job as it was signed; nothing of it is checked."""
        if not job_id:
            raise NotFound("the manifest belongs to no job: nothing was learned yet", code="no_job")
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_JOB_REQUEST, model=self._model, owner=job_id)
        return parse_envelope(await self.data(ref, limits.MAX_ENVELOPE_BYTES))

    async def data(self, ref: data_pb2.ObjectRef, max_bytes: int) -> bytes:
        """An object of at most ``max_bytes``, as it is."""
        path = self._directory / "document.part"
        try:
            await self._read(ref, path, max_bytes)
            return await asyncio.to_thread(path.read_bytes)
        finally:
            path.unlink(missing_ok=True)

    async def commit(self, vnode: str, digest: str, job_id: str) -> tuple[model_pb2.Commit, str]:
        """A replica's signed commit and the PNode whose worker signed it."""
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_COMMIT, model=self._model, owner=vnode, digest=digest)
        envelope = parse_envelope(await self.data(ref, limits.MAX_ENVELOPE_BYTES))
        if digest_of_envelope(envelope) != digest:
            raise Corrupt(f"commit {digest[:12]} does not have its digest", code="wrong_digest")
        payload, signer = open_single(envelope, identity_pb2.DOMAIN_COMMIT)
        commit = parse(model_pb2.Commit, payload)
        stated = (commit.network_id, commit.model, commit.job_id, commit.vnode)
        if stated != (self._policy.network_id, self._model, job_id, vnode):
            raise Corrupt(f"commit {digest[:12]} is about another network, model, job or VNode", code="wrong_network")
        unverified = parse(identity_pb2.Delegation, commit.delegation.payload)
        delegation = open_delegation(
            commit.delegation, network_id=self._policy.network_id, now_wall=unverified.not_before_unix_ms / 1000
        )
        if delegation.worker_public_der != signer.public_der:
            raise Corrupt(f"commit {digest[:12]} is signed by a key that no PNode delegated", code="wrong_signer")
        return commit, delegation.pnode_id

    async def record(self, vnode: str, digest: str) -> bytes:
        """A fault record."""
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_EVIDENCE, model=self._model, owner=vnode, digest=digest)
        data = await self.data(ref, MAX_RECORD_BYTES)
        if digest_of(data) != digest:
            raise Corrupt(f"evidence {digest[:12]} does not have its digest", code="wrong_digest")
        return data
