"""An independent check of what a trained model learned from: every batch exactly once, by signed statements back to what the maintainers signed.

Shares no code with the orchestrator's decisions. For each VNode of a manifest it reads the stored state with the safetensors library, walks the commits by
their parents, and holds six things against each other: the lineage in the state file, the lineage in the manifest, the batches that the commits and the
deltas in them name in order, checkpoint 0 in the manifest that the signed request names, who is credited in the manifests in between, and who was to
lead and to contribute by the plans of the job. A batch is credited once, to whoever brought it into a named state first: where that state was left aside
for one that goes on from an older one, who learned it again has no credit for it. Every signature (worker keys, their delegations, maintainers) is verified
on the way.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dcnr import limits
from dcnr.errors import Corrupt
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.planned import PlannedCommits, newest_plan
from dcnr.stored import Read, StoredDocuments
from dcnr.v1 import data_pb2, model_pb2
from trust.commits import Ground, Place, ground_of, open_delta, unmet
from trust.envelope import parse
from trust.folding import AUDITS_DRAWN
from trust.network import NetworkPolicy

if TYPE_CHECKING:
    from dcnr.sdk.client import AsyncClient

MAX_COMMITS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class VNodeLineage:
    """What one VNode learned from. ``exact``: state, manifest and commits agree, and on exactly [0, N)."""

    vnode: str
    state_digest: str
    num_batches: int
    """Batches that the commits and the deltas in them name, repetitions included."""
    num_commits: int
    exact: bool
    reason: str
    """Why not; empty where ``exact``."""
    learned: tuple[tuple[str, str, int], ...]
    """Who contributed, in order of first contribution: replica, PNode, batches."""
    agrees: bool
    """State, manifest and commits name the same batches of the job, each once and credited, however many of them are there yet."""

    @property
    def pnodes(self) -> tuple[str, ...]:
        """The PNodes that contributed."""
        return tuple(dict.fromkeys(pnode_id for _, pnode_id, _ in self.learned))


@dataclass(frozen=True, slots=True)
class _Learned:
    replica: str
    pnode_id: str
    batches: list[int]


@dataclass(frozen=True, slots=True)
class _Walk:
    """What the commits from a checkpoint back to checkpoint 0 say, oldest first."""

    pieces: list[_Learned]
    num_commits: int
    parent: str
    """Of the newest state."""
    states: frozenset[str]
    """Digests of the states and anchors on the way."""


@dataclass(slots=True)
class _Chain:
    """What the manifests of one job say, from the newest back."""

    credited: dict[str, dict[tuple[str, str], IntervalSet]] = field(default_factory=dict)
    """By VNode, then by replica and PNode: batches."""
    named: dict[str, dict[str, IntervalSet]] = field(default_factory=dict)
    """By VNode and digest of a state that any of them names, the one named last first: its lineage."""

    def left_aside(self, vnode: str, states: frozenset[str]) -> IntervalSet:
        """Credited batches that came into a named state first with one that is none of ``states``."""
        seen = aside = credited = IntervalSet.empty()
        for digest, lineage in reversed(self.named.get(vnode, {}).items()):
            if digest not in states:
                aside |= lineage - seen
            seen |= lineage
        for batches in self.credited.get(vnode, {}).values():
            credited |= batches
        return aside & credited


async def audit_lineage(client: AsyncClient, model: str, *, manifest: str = "") -> list[VNodeLineage]:
    """The lineages of a model's newest manifest (or of the named one), read through a maintainer's client. Raises Corrupt, NotFound, Unavailable."""

    async def read(ref: data_pb2.ObjectRef, path: Path, max_bytes: int) -> None:
        await client.objects.read_file(ref, path, max_bytes=max_bytes)

    digest, _ = await client.manifest(model, manifest)
    return await LineageAudit(read, client.policy, model, client.scratch).run(digest, await newest_plan(client, model))


class LineageAudit:
    """Reads through ``read`` only; keeps temporary files in ``directory``."""

    def __init__(self, read: Read, policy: NetworkPolicy, model: str, directory: Path) -> None:
        self._read, self._policy, self._model, self._directory = read, policy, model, directory
        self._documents = StoredDocuments(read, policy, model, directory)

    async def run(self, manifest_digest: str, plan_digest: str) -> list[VNodeLineage]:
        """One result per VNode of the manifest. ``plan_digest``: of the newest plan. Raises Corrupt for what is not signed as it must be, does not have its
        digest, or tells of a primary or a merge that no plan had.
        """
        manifest = await self._documents.manifest(manifest_digest)
        request = await self._documents.request(manifest.job_id)
        if manifest.graph_digest != request.graph_digest:
            raise Corrupt("the manifest is of another graph than the signed request", code="wrong_graph")
        base = await self._documents.manifest(request.initial_manifest_digest)
        first = {entry.vnode: entry.working[0].digest for entry in base.entries if entry.working}
        if set(first) != {entry.vnode for entry in manifest.entries}:
            raise Corrupt(
                "the manifest does not have the VNodes of the manifest that the request names", code="incomplete_manifest"
            )
        chain = await self._chain(manifest, request)
        self._audited = manifest.audits == AUDITS_DRAWN
        self._planned = PlannedCommits(
            self._documents, plan_digest, Place(self._policy.network_id, self._model, request.job_id, "")
        )
        return [await self._vnode(entry, request, first[entry.vnode], chain) for entry in manifest.entries]

    async def _vnode(
        self,
        entry: model_pb2.ManifestEntry,
        request: model_pb2.JobRequest,
        first: str,
        chain: _Chain,
    ) -> VNodeLineage:
        if not entry.working:
            return VNodeLineage(entry.vnode, "", 0, 0, False, "the manifest names no checkpoint", (), False)
        checkpoint = entry.working[0]
        metadata, stored = await self._state(checkpoint)
        walk = await self._walk(checkpoint, request, first)
        batches = [batch for piece in walk.pieces for batch in piece.batches]
        named = [[int(interval.first), int(interval.end)] for interval in checkpoint.lineage.intervals]
        by_whom: dict[tuple[str, str], list[int]] = {}
        for piece in walk.pieces:
            by_whom.setdefault((piece.replica, piece.pnode_id), []).extend(piece.batches)
        wrong = _of_another(metadata, entry.vnode, request, walk) or _apart(stored, named, batches, int(request.num_batches))
        again = chain.left_aside(entry.vnode, walk.states)
        for (replica, pnode_id), own in by_whom.items():
            known = chain.credited.get(entry.vnode, {}).get((replica, pnode_id), IntervalSet.empty()) | again
            if not all(batch in known for batch in own):
                wrong = wrong or f"no manifest credits {replica} with what it learned"
        missing = int(request.num_batches) - len(batches)
        reason = wrong or (f"{missing} batches of {request.num_batches} are not learned" if missing else "")
        learned = tuple((replica, pnode_id, len(own)) for (replica, pnode_id), own in by_whom.items() if own)
        return VNodeLineage(
            entry.vnode, checkpoint.digest, len(batches), walk.num_commits, not reason, reason, learned, agrees=not wrong
        )

    async def _walk(self, checkpoint: model_pb2.Checkpoint, request: model_pb2.JobRequest, first: str) -> _Walk:
        """Raises Corrupt where the chain breaks. A commit begins where its parent ended: at its state, or without one at the anchor that contributors took."""
        newest_first: list[list[_Learned]] = []
        states: set[str] = {checkpoint.digest}
        grounds = frozenset[Ground]()
        state, commit_digest, parent, count = checkpoint.digest, checkpoint.commit_digest, "", 0
        while commit_digest:
            commit, pnode_id = await self._documents.commit(checkpoint.vnode, commit_digest, request.job_id)
            end = commit.state_digest or (commit.anchor_digest if count else "")
            if state != end:
                raise Corrupt(
                    f"{checkpoint.vnode}: commit {commit_digest[:12]} is about another state than {state[:12]}", code="broken_chain"
                )
            if not count:
                parent = commit.parent_digest
                if pnode_id != checkpoint.pnode_id or commit.replica != checkpoint.replica:
                    raise Corrupt(f"{checkpoint.vnode}: the manifest credits another PNode than the commit", code="wrong_signer")
            await self._planned.check(commit, pnode_id)
            grounds = unmet(grounds, end)
            if self._audited:
                grounds |= {ground_of(parse(model_pb2.Delta, merged.delta.payload)) for merged in commit.merges}
            newest_first.append(self._learned(commit, pnode_id, request))
            state, commit_digest, count = commit.parent_digest, commit.parent_commit, count + 1
            states |= {end, state}
            if count > MAX_COMMITS:
                raise Corrupt(f"{checkpoint.vnode}: more than {MAX_COMMITS} commits", code="broken_chain")
        if state != first:
            raise Corrupt(
                f"{checkpoint.vnode}: its ancestry ends in {state[:12]}, not in checkpoint 0 ({first[:12]})", code="broken_chain"
            )
        if grounds := unmet(grounds, first):
            raise Corrupt(
                f"{checkpoint.vnode}: a delta begins with or was measured against {min(grounds)[0][:12]}, to which no commit leads, or not in that order",
                code="broken_chain",
            )
        return _Walk([piece for pieces in reversed(newest_first) for piece in pieces], count, parent, frozenset(states))

    def _learned(self, commit: model_pb2.Commit, pnode_id: str, request: model_pb2.JobRequest) -> list[_Learned]:
        """What a commit says in the order in which it happened: own batches, and deltas in between."""
        pieces: list[_Learned] = []
        at = 0
        for merged in commit.merges:
            if not at <= merged.after <= len(commit.batches):
                raise Corrupt(f"{commit.vnode}: a delta out of order", code="broken_chain")
            pieces.append(_Learned(commit.replica, pnode_id, list(commit.batches[at : merged.after])))
            at = merged.after
            found = open_delta(merged.delta, Place(self._policy.network_id, self._model, request.job_id, commit.vnode))
            pieces.append(_Learned(found.replica, found.delegation.pnode_id, list(found.delta.batches)))
        pieces.append(_Learned(commit.replica, pnode_id, list(commit.batches[at:])))
        return pieces

    async def _chain(self, newest: model_pb2.Manifest, request: model_pb2.JobRequest) -> _Chain:
        """From ``newest`` back to where the job began."""
        chain = _Chain()
        manifest, count, total = newest, 0, int(request.num_batches)
        while manifest.job_id == request.job_id:
            for one in manifest.contributions:
                credited, whose = chain.credited.setdefault(one.vnode, {}), (one.replica, one.pnode_id)
                for interval in one.batches.intervals:
                    if not 0 <= interval.first < interval.end <= total:
                        raise Corrupt(
                            f"manifest {manifest.number} credits batches that the job does not have", code="bad_contribution"
                        )
                batches = IntervalSet.of(*((interval.first, interval.end) for interval in one.batches.intervals))
                credited[whose] = credited.get(whose, IntervalSet.empty()) | batches
            for entry in manifest.entries:
                for checkpoint in entry.working:
                    if checkpoint.job_id == request.job_id:
                        pairs = ((min(one.first, total), min(one.end, total)) for one in checkpoint.lineage.intervals)
                        named = chain.named.setdefault(entry.vnode, {})
                        named.pop(checkpoint.digest, None)  # its place is that of the manifest that named it first
                        named[checkpoint.digest] = IntervalSet.of(*pairs)
            count += 1
            if not manifest.parent_digest or count > MAX_COMMITS:
                break
            manifest = await self._documents.manifest(manifest.parent_digest)
        return chain

    async def _state(self, checkpoint: model_pb2.Checkpoint) -> tuple[dict[str, str], list[list[int]]]:
        """Metadata and lineage in the state file, as the safetensors library reads them."""
        ref = data_pb2.ObjectRef(
            kind=data_pb2.OBJECT_KIND_STATE, model=self._model, owner=checkpoint.vnode, digest=checkpoint.digest
        )
        path = self._directory / "audit.safetensors"
        await self._read(ref, path, limits.MAX_OBJECT_BYTES)
        try:
            return await asyncio.to_thread(_header, path, checkpoint.digest)
        finally:
            path.unlink(missing_ok=True)


def _of_another(metadata: dict[str, str], vnode: str, request: model_pb2.JobRequest, walk: _Walk) -> str:
    """Why the state file is not the one that the walk began at; empty where it is. Checkpoint 0, which no commit made, may descend from an earlier job."""
    if metadata.get("vnode") != vnode or metadata.get("graph") != request.graph_digest:
        return "the state file is of another VNode or graph"
    if walk.num_commits and metadata.get("parent") != walk.parent:
        return "the state file names another parent than its commit"
    return ""


def _apart(stored: list[list[int]], named: list[list[int]], batches: list[int], num_batches: int) -> str:
    """Where state file, manifest and commits do not name the same batches of the job, each once; empty where they do."""
    if stored != named:
        return f"the state file holds the lineage {stored}, the manifest says {named}"
    numbers = sorted(batches)
    if len(set(numbers)) != len(numbers):
        return "the commits name a batch twice"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1][1] = number + 1
        else:
            runs.append([number, number + 1])
    if runs != stored:
        return f"the commits name {len(numbers)} batches, and not those that the state file holds"
    return "the state file holds batches that the job does not have" if runs and runs[-1][1] > num_batches else ""


def _header(path: Path, digest: str) -> tuple[dict[str, str], list[list[int]]]:
    from safetensors import SafetensorError, safe_open

    if digest_of(path.read_bytes()) != digest:
        raise Corrupt(f"state {digest[:12]} does not have its digest", code="wrong_digest")
    try:
        file: Any
        with safe_open(str(path), framework="numpy") as file:
            lineage = [[int(low), int(high)] for low, high in file.get_tensor("lineage").tolist()]
            return dict(file.metadata() or {}), lineage
    except (SafetensorError, ValueError) as error:
        raise Corrupt(f"state {digest[:12]} is not what it should be: {error}", code="bad_state") from error
