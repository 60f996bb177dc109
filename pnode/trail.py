"""Where the states of one VNode lie: what each manifest of a job names, from the newest back to the one that the job began with.

The last step is always the manifest that the signed request names: its states are never deleted. A newest manifest that cannot be read ends the trail
at once, since falling back past it would throw durable work away for what may be a short trouble of the store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from dcnr import limits
from dcnr.errors import Corrupt, DcnrError, NotFound
from dcnr.ids import number_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import data_pb2, model_pb2
from pnode.frames import intervals_of
from pnode.home import read_whole
from pnode.snapshots import StartingState
from trust.envelope import parse_envelope
from trust.network import NetworkPolicy

MAX_MANIFESTS: Final = 64
"""Manifests read on the way back; then the one that the job began with."""
Fetch = Callable[[data_pb2.ObjectRef, int], Awaitable[Path]]
"""A local file with the object of that reference, verified by digest; the second argument bounds its size in bytes."""


class Trail:
    """The trail of ``vnode`` in the job of ``request``; what cannot be read is added to ``remarks``."""

    def __init__(self, fetch: Fetch, policy: NetworkPolicy, request: model_pb2.JobRequest, vnode: str, remarks: list[str]) -> None:
        self._fetch, self._policy, self._request, self._vnode, self._remarks = fetch, policy, request, vnode, remarks
        self._named: frozenset[str] = frozenset()
        self._retracted: frozenset[str] = frozenset()
        self._first_replica = 0
        self._was_read = False

    def counts(self, candidate: StartingState, replica: str) -> bool:
        """Whether ``replica`` may begin with that state, as the newest manifest says: not with what it takes back, nor with what another replica made that may
        hold such. Known from the first step of `walk` on; where that manifest cannot be read and audits are in force, with nothing that others made.
        """
        if candidate.digest in self._retracted:
            return False
        if not self._was_read and self._policy.audits_drawn:
            return candidate.replica in ("", replica)
        is_fenced = bool(candidate.replica) and number_of(candidate.replica) < self._first_replica
        return not is_fenced or candidate.digest in self._named

    async def walk(self, newest: str) -> AsyncIterator[list[StartingState]]:
        """The states that each manifest names, older and older; ``newest`` empty: the job has no manifest of its own yet.

        Raises Unavailable, Refused where an older manifest cannot be read now.
        """
        first = self._request.initial_manifest_digest
        digest = newest or first
        for step in range(MAX_MANIFESTS):
            if digest in ("", first):
                break
            try:
                manifest = await read_manifest(self._fetch, self._policy, self._request.model, digest)
            except DcnrError as error:
                self._remarks.append(f"manifest {digest[:12]} cannot be read: {error.message}")
                if step == 0:
                    yield []
                    return
                if not isinstance(error, (Corrupt, NotFound)):
                    raise
                break
            if step == 0:
                self._note(manifest)
            named = [one for entry in manifest.entries if entry.vnode == self._vnode for one in entry.working]
            mine = [one for one in named if one.job_id == self._request.job_id]
            yield self._readable(mine)
            if len(mine) < len(named):
                break  # older manifests name no more of this job
            digest = manifest.parent_digest
        yield await self._beginning(first)

    def _note(self, newest: model_pb2.Manifest) -> None:
        self._was_read = True
        self._named = frozenset(one.digest for entry in newest.entries for one in entry.working)
        self._retracted = frozenset(newest.retracted)
        self._first_replica = next((int(one.first_replica) for one in newest.fences if one.vnode == self._vnode), 0)

    def _readable(self, checkpoints: Sequence[model_pb2.Checkpoint]) -> list[StartingState]:
        states: list[StartingState] = []
        for one in checkpoints:
            try:
                states.append(_of_this_job(one))
            except Corrupt as error:
                self._remarks.append(f"checkpoint {one.digest[:12]} cannot be read: {error.message}")
        return states

    async def _beginning(self, digest: str) -> list[StartingState]:
        """The one state that the maintainers' request names for the VNode."""
        try:
            manifest = await read_manifest(self._fetch, self._policy, self._request.model, digest)
        except DcnrError as error:
            self._remarks.append(f"manifest {digest[:12]} cannot be read: {error.message}")
            return []
        entry = next((one for one in manifest.entries if one.vnode == self._vnode), None)
        if entry is None or not entry.working:
            return []
        one = entry.working[0]
        return [
            StartingState(
                Path(), one.digest, "", IntervalSet.empty(), "store", is_of_earlier_job=True, size_bytes=int(one.size_bytes)
            )
        ]


async def read_manifest(fetch: Fetch, policy: NetworkPolicy, model: str, digest: str) -> model_pb2.Manifest:
    """That manifest, verified. Raises Corrupt, NotFound, Refused, Unavailable."""
    ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_MANIFEST, model=model, digest=digest)
    path = await fetch(ref, limits.MAX_MANIFEST_BYTES)
    return policy.open_manifest(parse_envelope(read_whole(path), limits.MAX_MANIFEST_BYTES), model)


def _of_this_job(checkpoint: model_pb2.Checkpoint) -> StartingState:
    return StartingState(
        Path(),
        checkpoint.digest,
        checkpoint.commit_digest,
        intervals_of(checkpoint.lineage),
        "store",
        size_bytes=int(checkpoint.size_bytes),
        maker=checkpoint.pnode_id,
    )
