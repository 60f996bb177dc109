"""What manifests say of this PNode's own intervals: evidence of what is decided goes, and a replica with too much undecided waits.

Read is the chain from the newest manifest that a confirmed head names back to where it was read before. An interval that no manifest names goes when a
later one of its replica is named: what leads to a named state is named with it. The newest spared ones stay for a while, since they may be drawn late
(`trust.late_draw`). All that replicas leave behind counts as disk in use. Above one replica's room the spared goes first, then what is older than spared ones
get: intervals that no manifest named, and those whose job ended before somebody looked.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dcnr import limits
from dcnr.errors import DcnrError, Unavailable
from dcnr.ids import NodeId
from dcnr.v1 import data_pb2, local_pb2, model_pb2
from pnode.evidence import folders_in, forget, left_in, signed_in, told_by
from pnode.home import read_whole
from pnode.placing import Say
from pnode.trail import MAX_MANIFESTS, Fetch
from trust.envelope import parse_envelope
from trust.late_draw import SPARED_KEPT_S, Newer
from trust.ledger import Verdict
from trust.network import NetworkPolicy

LOOK_S: Final = 1.0
MAX_BACK: Final = 1024
"""Manifests read on the way back to those that name intervals of which evidence is here; without any `MAX_MANIFESTS`."""
COUNT_S: Final = 600.0
"""What others have left behind is counted again after so long; what they have not signed goes when nothing was added to it for as long."""
CALM_S: Final = 60.0
"""The same after a change of what is hosted: a worker that begins anew hosts nothing for a moment, and one that hands over still writes."""
LONGEST_KEPT_S: Final = 7 * 24 * 3600.0
"""Evidence that nobody has decided on by then goes at the next start: its job is gone."""


@dataclass(frozen=True, slots=True)
class Told:
    """The newest word of manifests on an interval."""

    verdict: str
    decided_s: float
    num_batches: int = 1


class Verdicts:
    """One per daemon. ``newest``: models with the digest of the manifest that their confirmed head names.

    ``hosted``: replicas that this PNode has to host, each with its present life, or None while it does not run. ``left``: is told how many bytes
    others have left behind, of which some goes above ``max_left_bytes``.
    """

    def __init__(
        self, *, node_id: NodeId, policy: Callable[[], NetworkPolicy], evidence: Path, fetch: Fetch, newest: Callable[[], Iterable[tuple[str, str]]],
        hosted: Callable[[], Mapping[str, object | None]], send: Callable[[local_pb2.ToWorker], Awaitable[bool]], tell: Say,
        now_wall: Callable[[], float], left: Callable[[int], None], max_left_bytes: int,
    ) -> None:  # fmt: skip
        self._node_id, self._policy, self._evidence, self._fetch = node_id, policy, evidence, fetch
        self._newest, self._hosted, self._send, self._tell, self._now_wall = newest, hosted, send, tell, now_wall
        self._left, self._max_left_bytes = left, max_left_bytes
        self._read: dict[str, str] = {}
        self._known: dict[str, dict[str, Told]] = {}
        """By replica, the newest verdict of each interval that is open or whose evidence is here."""
        self._settled: dict[str, object | None] = {}
        """By replica, the life that knows all of it; a replica that is not here was told news since."""
        self._look_again_s: dict[str, float] = {}
        """By replica, when evidence of a spared interval has been kept long enough."""
        self._seen: frozenset[str] | None = None
        """The replicas that were hosted at the last look."""
        self._count_s = math.inf
        """When it is counted what others have left behind."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Reads new manifests, and settles what they, or new lives of replicas, change."""
        for model, digest in self._newest():
            if digest and self._policy().audits_drawn and self._read.get(model) != digest:
                try:
                    await self._take(model, digest)
                except DcnrError as error:
                    self._tell("verdicts_unread", model, error.message)
        hosted, now_s = self._hosted(), self._now_wall()
        for replica in list(self._known):
            life = hosted.get(replica)
            is_due = now_s >= self._look_again_s.get(replica, math.inf)
            if is_due or replica not in self._settled or self._settled[replica] is not life:
                await self._settle(replica, life, now_s, is_hosted=replica in hosted)
        here = frozenset(hosted)
        if self._seen != here:
            self._seen, self._count_s = here, now_s + CALM_S
        if now_s >= self._count_s:
            await self._count_left(here, now_s)
            self._count_s = now_s + COUNT_S

    async def _take(self, model: str, newest: str) -> None:
        """Raises DcnrError where the newest manifest cannot be read, or an older one cannot be read now; older ones that are gone tell nothing."""
        unknown = await asyncio.to_thread(self._unknown) if model not in self._read else []
        told: list[list[model_pb2.Contribution]] = []
        digest = newest
        while digest and digest != self._read.get(model) and len(told) < (MAX_BACK if unknown else MAX_MANIFESTS):
            try:
                manifest = await self._manifest(model, digest)
            except DcnrError as error:
                if not told or isinstance(error, Unavailable):
                    raise
                break
            told.append([one for one in manifest.contributions if one.pnode_id == self._node_id])
            named = {one.interval for one in told[-1]}
            unknown = [names for names in unknown if named.isdisjoint(names)]
            digest = manifest.parent_digest
        for one in (one for some in reversed(told) for one in some):
            self._known.setdefault(one.replica, {})[one.interval] = Told(one.verdict, one.decided_unix_ms / 1000, _num_batches(one))
            self._settled.pop(one.replica, None)
        self._read[model] = newest

    def _unknown(self) -> list[list[str]]:
        """Intervals of which an earlier life of this daemon kept evidence, each with its names. Blocks."""
        return [names for directory in folders_in(self._evidence) for names in signed_in(directory).values()]

    async def _manifest(self, model: str, digest: str) -> model_pb2.Manifest:
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_MANIFEST, model=model, digest=digest)
        path = await self._fetch(ref, limits.MAX_MANIFEST_BYTES)
        return self._policy().open_manifest(parse_envelope(read_whole(path), limits.MAX_MANIFEST_BYTES), model)

    async def _settle(self, replica: str, life: object | None, now_s: float, *, is_hosted: bool) -> None:
        """Tells the worker what it may let go, or lets it go where no replica of that name is hosted."""
        known, directory = self._known[replica], self._evidence / replica
        is_open = {name for name, one in known.items() if one.verdict == Verdict.OPEN.value}
        kept = [told_by(names, is_open, known) for names in (await asyncio.to_thread(signed_in, directory)).values()]
        spared = spared_of(kept, known, now_s)
        decided = [name for name in decided_of(kept, {name: one.verdict for name, one in known.items()}) if name not in spared]
        num_open = len(is_open)
        self._settled[replica] = life
        self._look_again_s[replica] = min((known[name].decided_s for name in spared), default=math.inf) + SPARED_KEPT_S
        if life is not None:
            verdicts = local_pb2.WorkerVerdicts(replica=replica, decided=decided, num_open=num_open, spared=spared)
            if not await self._send(local_pb2.ToWorker(verdicts=verdicts)):
                del self._settled[replica]
        elif not is_hosted and decided:
            await asyncio.to_thread(forget, directory, decided)
            kept = [name for name in kept if name not in decided]
        for name in [name for name, one in known.items() if one.verdict != Verdict.OPEN.value and name not in kept]:
            del known[name]
        if not known and not is_hosted:
            del self._known[replica], self._settled[replica], self._look_again_s[replica]

    async def _count_left(self, hosted: frozenset[str], now_s: float) -> None:
        """What replicas that are not here any more have left, and what of it goes since it takes too much."""

        def read() -> dict[str, tuple[dict[str, tuple[int, float]], int]]:
            left = (path for path in folders_in(self._evidence) if path.name not in hosted)
            return {path.name: left_in(path, now_s - COUNT_S, self._known.get(path.name, ())) for path in left}

        left = await asyncio.to_thread(read)
        num_bytes = sum(rest + sum(size for size, _ in whole.values()) for whole, rest in left.values())
        may_go: list[tuple[bool, float, str, str]] = []
        for replica, (whole, _) in left.items():
            known = self._known.get(replica, {})
            for name, (_, signed_s) in whole.items():
                told = known.get(name)
                if told is not None and told.verdict == Verdict.SPARED.value:
                    may_go.append((False, told.decided_s, replica, name))
                elif signed_s < now_s - SPARED_KEPT_S:
                    may_go.append((True, signed_s, replica, name))
        gone: dict[str, list[str]] = {}
        for _, _, replica, name in sorted(may_go):
            if num_bytes <= self._max_left_bytes:
                break
            gone.setdefault(replica, []).append(name)
            num_bytes -= left[replica][0][name][0]
            self._known.get(replica, {}).pop(name, None)
        for replica, names in gone.items():
            await asyncio.to_thread(forget, self._evidence / replica, names)
        self._left(num_bytes)


def spared_of(kept: Sequence[str], known: Mapping[str, Told], now_s: float) -> list[str]:
    """Of the intervals ``kept``, oldest first, those that were not drawn, not long ago: the newest (`Newer`)."""
    spared = [name for name in kept if name in known and known[name].verdict == Verdict.SPARED.value]
    newer = Newer()
    found = [name for name in reversed(spared) if newer.keeps(known[name].num_batches)]
    return [name for name in reversed(found) if now_s - known[name].decided_s < SPARED_KEPT_S]


def _num_batches(one: model_pb2.Contribution) -> int:
    return sum(int(pair.end) - int(pair.first) for pair in one.batches.intervals)


def decided_of(kept: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Of the intervals ``kept``, oldest first, those that nobody has drawn: with another verdict than open, or passed over."""
    last = max((at for at, name in enumerate(kept) if name in known), default=-1)
    return [name for at, name in enumerate(kept) if known.get(name, "" if at < last else Verdict.OPEN.value) != Verdict.OPEN.value]


def sweep(evidence: Path, now_wall: float) -> None:
    """Removes bundles that an earlier life did not finish with, and what is older than `LONGEST_KEPT_S`; what the disk keeps goes at a later start. Blocks."""
    oldest_s = now_wall - LONGEST_KEPT_S
    with contextlib.suppress(OSError):
        for path in [*evidence.glob("*.bundle*"), *evidence.glob("*/*")]:
            with contextlib.suppress(OSError):
                if path.parent == evidence:
                    path.unlink(missing_ok=True)
                elif path.is_dir() and path.stat().st_mtime < oldest_s:
                    shutil.rmtree(path, ignore_errors=True)
