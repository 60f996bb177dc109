"""Judges a recorded checkpoint before any manifest may name it: made by the plan's primary, signed by its worker, whole in the store, and with a
lineage that follows exactly from its ancestors.

The ancestry is followed through stored commits until a state whose lineage is known: one that the manifest names, one judged before, or the one
that the job began with.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from dataservice import keys
from dcnr import limits
from dcnr.errors import Corrupt, DcnrError, NotFound, Refused, Stale, Unavailable
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.ports import Clock, ObjectStore
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.jobs import intervals
from orchestrator.view import ModelView
from trust.delegation import open_delegation
from trust.envelope import digest_of_envelope, open_single, parse, parse_envelope
from trust.network import NetworkPolicy

MAX_ANCESTORS: Final = 1024
"""Commits followed back to a known state; a longer chain is refused and the replica snapshots anew."""
MAX_KNOWN: Final = 16_384
MAX_COMMIT_BYTES: Final = limits.MAX_ENVELOPE_BYTES
STATE_MISSING: Final = "state_missing"
"""Code of the one refusal that an upload cures."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A checkpoint that may be named, with the batches that it adds to its parent's lineage."""

    checkpoint: model_pb2.Checkpoint
    batches: IntervalSet


class CheckpointJudge:
    """One per model. Every reason to refuse is a Refused (never, snapshot anew) or Unavailable (ask again)."""

    def __init__(self, store: ObjectStore, policy: NetworkPolicy, clock: Clock) -> None:
        self._store, self._policy, self._clock = store, policy, clock
        self._known: OrderedDict[tuple[str, str, str], IntervalSet] = OrderedDict()

    async def judge(self, view: ModelView, checkpoint: model_pb2.Checkpoint, envelope: identity_pb2.Envelope) -> Judged:
        """Raises Refused, Corrupt (both: never) or Unavailable."""
        job = view.job
        if job is None or view.plan is None or checkpoint.job_id != job.request.job_id:
            raise Refused("the checkpoint is not of the active job", code="wrong_job")
        _check_primary(view.plan, checkpoint)
        _check_digest(view, checkpoint)
        commit = self._open_commit(envelope, view.model, checkpoint.job_id, checkpoint.vnode, now_wall=self._clock.wall())
        if (
            digest_of_envelope(envelope) != checkpoint.commit_digest
            or commit.state_digest != checkpoint.digest
            or commit.parent_digest != checkpoint.parent_digest
            or commit.replica != checkpoint.replica
            or commit.incarnation != checkpoint.incarnation
            or open_pnode(commit) != checkpoint.pnode_id
        ):
            raise Refused("the commit is not about this checkpoint", code="wrong_commit")
        lineage = await self._lineage(view, commit)
        claimed = intervals(checkpoint.lineage)
        if claimed != lineage or len(lineage) != checkpoint.step:
            raise Refused(
                f"the lineage of {len(claimed)} batches does not follow from its ancestors, which give {len(lineage)}",
                code="bad_lineage",
            )
        if (highest := lineage.highest()) is not None and highest >= job.num_batches:
            raise Refused("the lineage holds batches that the job does not have", code="bad_lineage")
        await self._check_object(view.model, checkpoint)
        self._remember(checkpoint, lineage)
        return Judged(checkpoint, lineage - self._at(view, checkpoint))

    def _at(self, view: ModelView, checkpoint: model_pb2.Checkpoint) -> IntervalSet:
        """What the manifest's newest working checkpoint of the VNode holds already."""
        return view.durable(checkpoint.job_id).get(checkpoint.vnode, IntervalSet.empty())

    def _remember(self, checkpoint: model_pb2.Checkpoint, lineage: IntervalSet) -> None:
        self._known[(checkpoint.job_id, checkpoint.vnode, checkpoint.digest)] = lineage
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    async def _check_object(self, model: str, checkpoint: model_pb2.Checkpoint) -> None:
        try:
            info = await self._store.head(keys.state(model, checkpoint.vnode, checkpoint.digest))
        except NotFound as error:
            raise Unavailable("the state object is not in the store", code=STATE_MISSING) from error
        if info.size_bytes != checkpoint.size_bytes:
            raise Refused(f"the state object has {info.size_bytes} bytes, not {checkpoint.size_bytes}", code="wrong_size")

    def _open_commit(
        self, envelope: identity_pb2.Envelope, model: str, job_id: str, vnode: str, *, now_wall: float | None
    ) -> model_pb2.Commit:
        """A commit of that VNode in that job, signed by the worker that its delegation names. ``now_wall`` None: valid when it was made."""
        payload, signer = open_single(envelope, identity_pb2.DOMAIN_COMMIT, max_bytes=MAX_COMMIT_BYTES)
        commit = parse(model_pb2.Commit, payload, MAX_COMMIT_BYTES)
        if (commit.network_id, commit.model, commit.job_id, commit.vnode) != (self._policy.network_id, model, job_id, vnode):
            raise Refused("a commit of another network, model, job or VNode", code="wrong_commit")
        when = _not_before(commit.delegation) if now_wall is None else now_wall
        try:
            delegation = open_delegation(commit.delegation, network_id=self._policy.network_id, now_wall=when)
        except Stale as error:
            raise Refused(error.message, code="delegation_expired") from error
        if delegation.worker_public_der != signer.public_der:
            raise Refused("a commit that its delegated worker did not sign", code="wrong_signer")
        return commit

    async def _lineage(self, view: ModelView, commit: model_pb2.Commit) -> IntervalSet:
        """The lineage that follows from the commit and its ancestors."""
        chain: list[IntervalSet] = []
        current = commit
        while True:
            chain.append(_batches(current))
            known = self._lineage_of(view, current.job_id, current.vnode, current.parent_digest)
            if known is not None:
                break
            if len(chain) > MAX_ANCESTORS or not current.parent_commit:
                raise Refused("its ancestry does not lead to a known state", code="unknown_ancestor")
            current = await self._parent(view.model, current)
        lineage = known
        for batches in reversed(chain):
            if not lineage.isdisjoint(batches):
                raise Refused("a batch counts twice in its ancestry", code="bad_lineage")
            lineage = lineage | batches
        return lineage

    async def _parent(self, model: str, commit: model_pb2.Commit) -> model_pb2.Commit:
        key = keys.commit(model, commit.vnode, commit.parent_commit)
        try:
            data = (await self._store.get(key, max_bytes=MAX_COMMIT_BYTES)).data
        except NotFound as error:
            raise Refused("an ancestor's commit is not in the store", code="unknown_ancestor") from error
        if digest_of(data) != commit.parent_commit:
            raise Corrupt("a stored commit has another digest than its name", code="wrong_digest")
        parent = self._open_commit(parse_envelope(data, MAX_COMMIT_BYTES), model, commit.job_id, commit.vnode, now_wall=None)
        if parent.state_digest != commit.parent_digest:
            raise Refused("the parent's commit is about another state", code="wrong_commit")
        return parent

    def _lineage_of(self, view: ModelView, job_id: str, vnode: str, digest: str) -> IntervalSet | None:
        known = self._known.get((job_id, vnode, digest))
        if known is not None:
            return known
        entry = _entry(view.manifest, vnode)
        for checkpoint in (*entry.working, entry.cleared) if entry is not None else ():
            if checkpoint.digest == digest and checkpoint.job_id == job_id:
                return intervals(checkpoint.lineage)
        first = _entry(view.beginning, vnode)
        return IntervalSet.empty() if first is not None and first.working and first.working[0].digest == digest else None


def open_pnode(commit: model_pb2.Commit) -> str:
    """The PNode that delegated to the commit's worker (verified by the judge before)."""
    return identity_pb2.Delegation.FromString(commit.delegation.payload).pnode_id


def named(view: ModelView, checkpoint: model_pb2.Checkpoint) -> bool:
    """Whether the manifest under the head names the checkpoint, or a newer one of the same replica."""
    entry = next((item for item in view.manifest.entries if item.vnode == checkpoint.vnode), None) if view.manifest else None
    if entry is None:
        return False
    return any(
        item.digest == checkpoint.digest
        or (item.job_id == checkpoint.job_id and item.replica == checkpoint.replica and item.step >= checkpoint.step)
        for item in entry.working
    )


def condemned(view: ModelView, digest: str) -> bool:
    """Whether that state may never be named again."""
    return view.manifest is not None and (digest in view.manifest.condemned or digest in view.manifest.retracted)


def _check_primary(plan: model_pb2.Plan, checkpoint: model_pb2.Checkpoint) -> None:
    for item in plan.assignments:
        if item.replica == checkpoint.replica and item.role == model_pb2.ROLE_PRIMARY:
            if item.vnode == checkpoint.vnode and item.pnode_id == checkpoint.pnode_id:
                return
            break
    raise Refused(f"{checkpoint.replica} is not the primary of {checkpoint.vnode} in the plan", code="not_primary")


def _check_digest(view: ModelView, checkpoint: model_pb2.Checkpoint) -> None:
    if condemned(view, checkpoint.digest):
        raise Refused("its digest was condemned", code="condemned")


def _batches(commit: model_pb2.Commit) -> IntervalSet:
    batches = IntervalSet.of(*((number, number + 1) for number in commit.batches))
    if len(batches) != len(commit.batches):
        raise Refused("a batch stands twice in a commit", code="bad_lineage")
    return batches


def _entry(manifest: model_pb2.Manifest | None, vnode: str) -> model_pb2.ManifestEntry | None:
    return next((item for item in manifest.entries if item.vnode == vnode), None) if manifest is not None else None


def _not_before(envelope: identity_pb2.Envelope) -> float:
    try:
        return parse(identity_pb2.Delegation, envelope.payload).not_before_unix_ms / 1000
    except DcnrError:
        return 0.0
