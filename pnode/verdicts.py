"""What manifests say of this PNode's own intervals: evidence of what is decided goes, and a replica with too much undecided waits.

Read is the chain from the newest manifest that a confirmed head names back to where it was read before. An interval that no manifest names goes when a
later one of its replica is named: what leads to a named state is named with it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from dcnr import limits
from dcnr.errors import DcnrError
from dcnr.ids import NodeId
from dcnr.v1 import data_pb2, local_pb2, model_pb2
from pnode.duties import Say
from pnode.evidence import closed_in, forget
from pnode.trail import MAX_MANIFESTS, Fetch
from trust.envelope import parse_envelope
from trust.ledger import Verdict
from trust.network import NetworkPolicy

LOOK_S: Final = 1.0
LONGEST_KEPT_S: Final = 7 * 24 * 3600.0
"""Evidence that nobody has decided on by then goes at the next start: its job is gone."""


class Verdicts:
    """One per daemon. ``newest``: models with the digest of the manifest that their confirmed head names; ``hosted``: replicas that the worker has."""

    def __init__(
        self, *, node_id: NodeId, policy: Callable[[], NetworkPolicy], evidence: Path, fetch: Fetch, newest: Callable[[], Iterable[tuple[str, str]]],
        hosted: Callable[[], Collection[str]], send: Callable[[local_pb2.ToWorker], Awaitable[bool]], tell: Say,
    ) -> None:  # fmt: skip
        self._node_id, self._policy, self._evidence, self._fetch = node_id, policy, evidence, fetch
        self._newest, self._hosted, self._send, self._tell = newest, hosted, send, tell
        self._read: dict[str, str] = {}
        self._known: dict[str, dict[str, str]] = {}
        """By replica, the newest verdict of each interval that is open or whose evidence is here."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for model, digest in self._newest():
                if digest and self._policy().audits_drawn and self._read.get(model) != digest:
                    try:
                        await self._take(model, digest)
                    except DcnrError as error:
                        self._tell("verdicts_unread", model, error.message)
            for replica in list(self._known):
                await self._settle(replica)
            await asyncio.sleep(LOOK_S)

    async def _take(self, model: str, newest: str) -> None:
        """Raises DcnrError where the newest manifest cannot be read now; older ones that cannot be read tell nothing."""
        chain: list[model_pb2.Manifest] = []
        digest = newest
        while digest and digest != self._read.get(model) and len(chain) < MAX_MANIFESTS:
            try:
                manifest = await self._manifest(model, digest)
            except DcnrError:
                if not chain:
                    raise
                break
            chain.append(manifest)
            digest = manifest.parent_digest
        for manifest in reversed(chain):
            for one in manifest.contributions:
                if one.pnode_id == self._node_id:
                    self._known.setdefault(one.replica, {})[one.interval] = one.verdict
        self._read[model] = newest

    async def _manifest(self, model: str, digest: str) -> model_pb2.Manifest:
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_MANIFEST, model=model, digest=digest)
        path = await self._fetch(ref, limits.MAX_MANIFEST_BYTES)
        return self._policy().open_manifest(parse_envelope(path.read_bytes(), limits.MAX_MANIFEST_BYTES), model)

    async def _settle(self, replica: str) -> None:
        """Tells the worker what it may let go, or lets it go where no replica of that name runs."""
        known, directory = self._known[replica], self._evidence / replica
        kept = await asyncio.to_thread(closed_in, directory)
        decided = decided_of(list(kept), known)
        num_open = sum(verdict == Verdict.OPEN.value for verdict in known.values())
        if replica in self._hosted():
            verdicts = local_pb2.WorkerVerdicts(replica=replica, decided=decided, num_open=num_open)
            await self._send(local_pb2.ToWorker(verdicts=verdicts))
        elif decided:
            await asyncio.to_thread(forget, directory, decided)
        for name in [name for name, verdict in known.items() if verdict != Verdict.OPEN.value and name not in kept]:
            del known[name]
        if not known and replica not in self._hosted():
            del self._known[replica]


def decided_of(kept: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Of the intervals ``kept``, oldest first, those that nobody will ask for: with another verdict than open, or passed over."""
    last = max((at for at, name in enumerate(kept) if name in known), default=-1)
    return [name for at, name in enumerate(kept) if known.get(name, "" if at < last else Verdict.OPEN.value) != Verdict.OPEN.value]


def sweep(evidence: Path, now_wall: float) -> None:
    """Removes bundles that an earlier life did not finish with, and what is older than `LONGEST_KEPT_S`. Blocks."""
    for path in evidence.glob("*.bundle*"):
        path.unlink(missing_ok=True)
    oldest_s = now_wall - LONGEST_KEPT_S
    for path in evidence.glob("*/*"):
        if path.is_dir() and path.stat().st_mtime < oldest_s:
            shutil.rmtree(path, ignore_errors=True)
