"""What the chain of manifests of a job says where audits are in force: intervals, verdicts, what is cleared, and the checkpoints to return to.

Every orchestrator reads it for itself, from what the job began with to the manifest under the head; what was read once is carried on, also where reading ended
with an error: a chain of days is longer than a store answers without one. Manifests name their parents, so the way down is read first, and only so many of
them are held as fit into `MAX_HELD_BYTES`: the others are read again on the way up. Of jobs before this one only verdicts are kept, for standings.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dcnr import limits
from dcnr.errors import Corrupt
from dcnr.v1 import model_pb2
from trust.folding import AUDITS_DRAWN, Chronicle, Folding, Told
from trust.layers import Layers
from trust.ledger import MAX_UNCLEARED, Interval, Ledger, Verdict

MAX_CHAIN: Final = 4_000_000
"""Manifests of one job that are read, two a second for weeks; a longer chain is refused."""
MAX_BEFORE: Final = 100_000
"""Manifests of earlier jobs that are read, the newest."""
MAX_HELD_BYTES: Final = 64 * limits.MIB
"""Of manifests between the way down and the way up."""
MAX_TO_JUDGE: Final = 2 * MAX_UNCLEARED
"""Intervals of a PNode at a VNode that may wait for their audit while more of its are named there. An honest replica stops itself at half of that."""
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
            ledger, names = self.ledger, self.chronicle.open
            if names is None:
                names = frozenset(name for line in ledger.lines.values() for one in line for name in one.intervals)
            found = (ledger.intervals[name] for name in names)
            self._open.append(tuple(sorted((one for one in found if one.verdict is Verdict.OPEN), key=lambda one: one.number)))
        return self._open[0]

    def left_open(self) -> tuple[Interval, ...]:
        """Those that wait for their audit though no checkpoint that counts holds them: one that went on from before them left them aside."""
        found = (self.ledger.intervals[name] for name in self.chronicle.aside)
        return tuple(sorted((one for one in found if one.verdict is Verdict.OPEN), key=lambda one: one.number))

    def to_judge(self) -> tuple[Interval, ...]:
        """All that are to be audited, oldest first: `open_intervals`, for which others wait, and `left_open`, for which nobody does."""
        return tuple(sorted((*self.open_intervals(), *self.left_open()), key=lambda one: one.number))

    def crowded(self) -> frozenset[tuple[str, str]]:
        """PNodes, each with a VNode, of whose work there so much is to be judged that no record of theirs is taken in there until less is (`MAX_TO_JUDGE`).
        What they contribute is in records of others, which is no reason to hold these up: who goes on with that loses its place (`orchestrator.contribution`).
        """
        num = Counter((one.pnode_id, one.vnode) for one in self.to_judge())
        return frozenset(who for who, count in num.items() if count > MAX_TO_JUDGE)

    def audited(self) -> Ledger:
        """The ledger without open intervals that nobody is to judge."""
        ledger, lost = self.ledger, self.chronicle.lost
        if self.chronicle.open is None:
            counts = {one.name for one in self.to_judge()}
            lost = frozenset(name for name, one in ledger.intervals.items() if one.verdict is Verdict.OPEN and name not in counts)
        return Ledger(ledger.lines, {name: one for name, one in ledger.intervals.items() if name not in lost}) if lost else ledger

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
    earlier: tuple[Told, ...]
    checkpoints: dict[str, model_pb2.Checkpoint] = field(default_factory=dict)
    added: dict[str, model_pb2.Checkpoint] = field(default_factory=dict)
    """Of these, what was read since they were shown."""
    shown: Layers[str, model_pb2.Checkpoint] = field(default_factory=lambda: Layers({}))
    chain: Chain | None = None
    """None where more was read since."""

    def take(self, digest: str, manifest: model_pb2.Manifest) -> None:
        """The next one. Raises Corrupt (``bad_ledger``); this is of no use then."""
        self.folding.read(manifest)
        self.newest, self.chain = digest, None
        self.add_newest(manifest)

    def add_newest(self, manifest: model_pb2.Manifest) -> None:
        """What is newest there. Copies: a part of a message holds all of it."""
        for entry in manifest.entries:
            if entry.working and self.checkpoints.get(entry.working[0].digest) != entry.working[0]:
                one = model_pb2.Checkpoint()
                one.CopyFrom(entry.working[0])
                self.checkpoints[one.digest] = self.added[one.digest] = one

    def show(self) -> Chain:
        """What was read, as a chain: of checkpoints those that a line names."""
        chronicle, gone = self.folding.chronicle(), self.folding.take_gone()
        for digest in gone:
            self.checkpoints.pop(digest, None)
        self.shown = Layers(self.checkpoints) if gone else self.shown.updated(self.added)
        self.added = {}
        return Chain(chronicle, self.shown, self.earlier)


@dataclass(slots=True)
class _Way:
    """From manifest ``newest`` down, as far as it is known: ``digests``, newest first, which are not taken in yet, and what comes ``next``."""

    newest: str
    digests: list[bytes]
    next: str


@dataclass(slots=True)
class _Before:
    """The way down through earlier jobs: of each its manifests, newest first, and behind them the one that it began with."""

    at: str
    jobs: list[list[str]] = field(default_factory=list)
    job_id: str | None = None
    count: int = 0


class ChainReader:
    """One per model, for one caller at a time."""

    def __init__(self) -> None:
        self._read: OrderedDict[str, _Read] = OrderedDict()
        self._ways: OrderedDict[str, _Way] = OrderedDict()
        self._before: OrderedDict[str, _Before] = OrderedDict()
        """What an error left of the way down, by what the job began with."""
        self._held: OrderedDict[str, model_pb2.Manifest] = OrderedDict()
        self._held_bytes = 0

    async def chain(self, newest: str, beginning: str, read: ReadManifest) -> Chain | None:
        """What manifest ``newest`` and those before it say, back to ``beginning``; None if one of them was written without audits, or does not lead there.

        Raises Corrupt (``bad_ledger``) where the chain contradicts itself, and what ``read`` raises: called again it goes on from there.
        """
        known = self._read.get(beginning)
        way = await self._down(newest, beginning, known.newest if known is not None else beginning, read)
        if way is None:
            return None
        if known is None or way.next != known.newest:
            known = await self._begin(beginning, read)
        while way.digests:
            digest = way.digests[-1].hex()
            manifest = await self._get(digest, read)
            try:
                known.take(digest, manifest)
            except Corrupt:
                del self._read[beginning], self._ways[beginning]
                raise
            way.digests.pop()
            way.next = digest
        self._forget(beginning)
        if known.chain is None:
            known.chain = known.show()
        self._read.move_to_end(beginning)
        _bound(self._read)
        return known.chain

    async def _down(self, newest: str, beginning: str, known: str, read: ReadManifest) -> _Way | None:
        """The way to what is known, or to the beginning; kept until it was gone up."""
        older, way = self._ways.get(beginning), _Way(newest, [], newest)
        if older is None:
            self._keep(beginning, way)
        while way.next not in (beginning, known):
            if older is not None and way.next == older.newest:
                way.digests += older.digests
                way.next, older = older.next, None
                self._keep(beginning, way)
                continue
            manifest = await self._get(way.next, read)
            if manifest.audits != AUDITS_DRAWN or not manifest.parent_digest:
                self._forget(beginning)
                return None
            if len(way.digests) >= MAX_CHAIN:
                raise Corrupt(f"a chain of more than {MAX_CHAIN} manifests", code="bad_ledger")
            way.digests.append(bytes.fromhex(way.next))
            way.next = manifest.parent_digest
        self._keep(beginning, way)
        return way

    async def _begin(self, beginning: str, read: ReadManifest) -> _Read:
        first = await self._get(beginning, read)
        earlier = await self._earlier(beginning, first, read)
        known = self._read[beginning] = _Read(beginning, Folding(first), earlier)
        known.add_newest(first)
        return known

    async def _earlier(self, beginning: str, first: model_pb2.Manifest, read: ReadManifest) -> tuple[Told, ...]:
        """Verdicts of the jobs that led to what this one began with, as far back as audits were in force."""
        before = self._before.setdefault(beginning, _Before(beginning))
        _bound(self._before)
        current = first if before.at == beginning else await self._get(before.at, read)
        while current.audits == AUDITS_DRAWN and current.parent_digest and before.count < MAX_BEFORE:
            parent = await self._get(current.parent_digest, read)
            if current.job_id != before.job_id:
                before.jobs.append([])
            before.jobs[-1].append(before.at)
            if parent.job_id != current.job_id:
                before.jobs[-1].append(current.parent_digest)
            before.at, before.job_id, before.count = current.parent_digest, current.job_id, before.count + 1
            current = parent
        told: list[Told] = []
        for job in reversed(before.jobs):
            folding = Folding(await self._get(job[-1], read))
            for digest in reversed(job[:-1]):
                folding.read(await self._get(digest, read))
            told += folding.chronicle().told
        return tuple(told[-MAX_EARLIER:])

    async def _get(self, digest: str, read: ReadManifest) -> model_pb2.Manifest:
        """A manifest, which is held for a while."""
        found = self._held.get(digest)
        if found is None:
            found = self._held[digest] = await read(digest)
            self._held_bytes += found.ByteSize()
            while self._held_bytes > MAX_HELD_BYTES:
                self._held_bytes -= self._held.popitem(last=False)[1].ByteSize()
        return found

    def _keep(self, beginning: str, way: _Way) -> None:
        self._ways[beginning] = way
        self._ways.move_to_end(beginning)
        _bound(self._ways)

    def _forget(self, beginning: str) -> None:
        """Everything was read."""
        self._ways.pop(beginning, None)
        self._before.pop(beginning, None)
        self._held.clear()
        self._held_bytes = 0


def _bound(table: OrderedDict[str, Any]) -> None:
    while len(table) > MAX_JOBS:
        table.popitem(last=False)
