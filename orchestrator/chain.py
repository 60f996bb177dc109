"""What the chain of manifests of a job says where audits are in force: intervals, verdicts, what is cleared, and the checkpoints to return to.

Every orchestrator reads it for itself, from what the job began with to the manifest under the head; what was read once is carried on. Of jobs before this one
only verdicts are kept, for standings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dcnr.errors import Corrupt
from dcnr.v1 import model_pb2
from trust.folding import AUDITS_DRAWN, Chronicle, Folding, Told
from trust.ledger import Interval, Ledger, Verdict

MAX_CHAIN: Final = 100_000
"""Manifests of one job that are read; a longer chain is refused."""
MAX_EARLIER: Final = 100_000
"""Verdicts of earlier jobs that are kept, the newest."""
MAX_JOBS: Final = 4
"""Chains carried on: of the jobs looked at last."""
ReadManifest = Callable[[str], Awaitable[model_pb2.Manifest]]
"""A verified manifest by its digest. Raises NotFound, Corrupt, Unavailable."""


@dataclass(frozen=True, slots=True)
class Chain:
    """See the module. Immutable, like the view that it is part of."""

    chronicle: Chronicle
    checkpoints: Mapping[str, model_pb2.Checkpoint]
    """By digest: those that the lines of the ledger name."""
    earlier: tuple[Told, ...] = ()
    """Verdicts of earlier jobs of the model."""
    _open: list[tuple[Interval, ...]] = field(default_factory=list, repr=False, compare=False)
    """What `open_intervals` has found: it is asked in every round."""

    @property
    def ledger(self) -> Ledger:
        """Lines, intervals, verdicts."""
        return self.chronicle.ledger

    @property
    def told(self) -> tuple[Told, ...]:
        """Every verdict in the order in which it was told, over all jobs: what standings are folded from."""
        return (*self.earlier, *self.chronicle.told)

    def open_intervals(self) -> tuple[Interval, ...]:
        """Those that wait for their audit and are part of a checkpoint that counts, oldest first."""
        if not self._open:
            ledger = self.ledger
            names = {name for line in ledger.lines.values() for one in line for name in one.intervals}
            found = (ledger.intervals[name] for name in names)
            self._open.append(tuple(sorted((one for one in found if one.verdict is Verdict.OPEN), key=lambda one: one.number)))
        return self._open[0]

    def verdict(self, interval: str) -> Verdict | None:
        """The newest word on an interval of this job; None where no manifest names it."""
        found = self.ledger.intervals.get(interval)
        return found.verdict if found is not None else None

    def committed_s(self, interval: str) -> float:
        """When a manifest first named that interval, by its holder's clock; 0 where none does."""
        return next((one.committed_s for one in self.chronicle.told if one.interval == interval), 0.0)


@dataclass(slots=True)
class _Read:
    """A job's chain as far as it was read."""

    newest: str
    folding: Folding
    checkpoints: dict[str, model_pb2.Checkpoint]
    earlier: tuple[Told, ...]
    chain: Chain


class ChainReader:
    """One per model."""

    def __init__(self) -> None:
        self._read: OrderedDict[str, _Read] = OrderedDict()

    async def chain(self, newest: str, beginning: str, read: ReadManifest) -> Chain | None:
        """What manifest ``newest`` and those before it say, back to ``beginning``; None if one of them was written without audits, or does not lead there.

        Raises Corrupt (``bad_ledger``) where the chain contradicts itself, and what ``read`` raises.
        """
        known = self._read.get(beginning)
        fresh: list[tuple[str, model_pb2.Manifest]] = []
        digest = newest
        while digest != beginning and (known is None or digest != known.newest):
            manifest = await read(digest)
            if manifest.audits != AUDITS_DRAWN or not manifest.parent_digest:
                return None
            fresh.append((digest, manifest))
            if len(fresh) > MAX_CHAIN:
                raise Corrupt(f"a chain of more than {MAX_CHAIN} manifests", code="bad_ledger")
            digest = manifest.parent_digest
        if known is None or digest != known.newest:
            known = await self._begin(beginning, read)
        if not fresh:
            return known.chain
        self._read.pop(beginning, None)  # what was read in part is of no use
        for name, manifest in reversed(fresh):
            known.folding.read(manifest)
            known.newest = name
            known.checkpoints.update(_newest(manifest))
        known.chain = _chain(known)
        self._read[beginning] = known
        while len(self._read) > MAX_JOBS:
            self._read.popitem(last=False)
        return known.chain

    async def _begin(self, beginning: str, read: ReadManifest) -> _Read:
        first = await read(beginning)
        earlier = await self._earlier(first, read)
        folding = Folding(first)
        known = _Read(beginning, folding, _newest(first), earlier, Chain(folding.chronicle(), {}))
        known.chain = _chain(known)
        self._read[beginning] = known
        return known

    async def _earlier(self, first: model_pb2.Manifest, read: ReadManifest) -> tuple[Told, ...]:
        """Verdicts of the jobs that led to what this one began with, as far back as audits were in force."""
        jobs: list[list[model_pb2.Manifest]] = []
        current, count = first, 0
        while current.audits == AUDITS_DRAWN and current.parent_digest and count < MAX_CHAIN:
            before = await read(current.parent_digest)
            if not jobs or jobs[-1][-1].job_id != current.job_id:
                jobs.append([])
            jobs[-1].append(current)
            if before.job_id != current.job_id:
                jobs[-1].append(before)
            current, count = before, count + 1
        told: list[Told] = []
        for job in reversed(jobs):
            folding = Folding(job[-1])
            for manifest in reversed(job[:-1]):
                folding.read(manifest)
            told += folding.chronicle().told
        return tuple(told[-MAX_EARLIER:])


def _chain(read: _Read) -> Chain:
    chronicle = read.folding.chronicle()
    named = {one.digest for line in chronicle.ledger.lines.values() for one in line}
    read.checkpoints = {digest: one for digest, one in read.checkpoints.items() if digest in named}
    return Chain(chronicle, dict(read.checkpoints), read.earlier)


def _newest(manifest: model_pb2.Manifest) -> dict[str, model_pb2.Checkpoint]:
    return {entry.working[0].digest: entry.working[0] for entry in manifest.entries if entry.working}
