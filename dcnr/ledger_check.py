"""The ledger of a model as anybody finds it who reads the chain of manifests: whether it contradicts itself, who did what, and what became of it.

Shares no code with the orchestrator's decisions. A correction is a new entry in a later manifest, so nothing that was told is ever lost from the chain.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dcnr.errors import Corrupt, InvariantBroken
from dcnr.v1 import model_pb2
from trust.exposure import Exposure
from trust.folding import AUDITS_DRAWN, Chronicle, Folding, Told, standings_of
from trust.ledger import Interval, Verdict
from trust.scores import credibility
from trust.unnoticed import DrawRules, exposure_of_job

MAX_MANIFESTS: Final = 100_000
"""Read on the way back; a longer chain is checked that far."""
ReadManifest = Callable[[str], Awaitable[model_pb2.Manifest]]
"""A manifest by its digest, its signature verified. Raises Corrupt, NotFound, Unavailable."""


@dataclass(frozen=True, slots=True)
class JobLedger:
    """What the manifests of one job say, as far as they hold together."""

    job_id: str
    num_manifests: int
    chronicle: Chronicle
    problem: str = ""
    """The first entry that cannot be, with its manifest; empty where all hold."""
    beginning: str = ""
    """Digest of the manifest that these go on from."""


@dataclass(frozen=True, slots=True)
class Account:
    """One PNode in the ledger; counts are batches."""

    pnode_id: str
    cleared: int = 0
    """Of checkpoints that count, back to the beginning without an open audit: what is credited."""
    waiting: int = 0
    """Behind an audit that is open."""
    taken_back: int = 0
    num_passed: int = 0
    num_failed: int = 0
    passes: float = 0.0
    """Passed audits that still count."""
    credibility: float = field(default=0.0)


class LedgerFold:
    """A chain of manifests as far as it was read, oldest first: what they say is kept, and of themselves only the newest."""

    def __init__(self, digest: str, first: model_pb2.Manifest) -> None:
        self.digest, self.num_manifests = digest, 1
        """Of the newest one, and how many were read."""
        self._digests, self._newest = {digest}, first
        self._ended: list[JobLedger] = []
        self._job: _JobFold | None = None

    def read(self, digest: str, manifest: model_pb2.Manifest) -> None:
        """The one that follows."""
        if self._job is None or self._newest.job_id != manifest.job_id:
            if self._job is not None:
                self._ended.append(self._job.ledger())
            self._job = _JobFold(self.digest, self._newest)
        self._job.read(manifest)
        self.digest, self._newest, self.num_manifests = digest, manifest, self.num_manifests + 1
        self._digests.add(digest)

    def __contains__(self, digest: str) -> bool:
        """Whether the manifest of that digest was read."""
        return digest in self._digests

    def ledgers(self) -> list[JobLedger]:
        """The jobs, oldest first."""
        return [*self._ended, self._job.ledger()] if self._job is not None else []


async def read_ledgers(newest: str, read: ReadManifest) -> list[JobLedger]:
    """The jobs in which audits were in force, oldest first, back from the manifest of that digest. Raises what ``read`` raises."""
    return (await read_on(None, newest, read)).ledgers()


async def read_on(known: LedgerFold | None, newest: str, read: ReadManifest) -> LedgerFold:
    """The chain back from the manifest of that digest, while audits were in force. Of one that goes on from what is ``known`` only what is new is read, and
    ``known`` goes on with it; where ``known`` has gone further already, it is the answer. Raises what ``read`` raises; ``known`` is then what it was.
    """
    if known is not None and newest in known:
        return known
    chain: list[tuple[str, model_pb2.Manifest]] = []
    wanted = newest
    while (known is None or wanted != known.digest) and len(chain) < MAX_MANIFESTS:
        chain.append((wanted, await read(wanted)))
        manifest = chain[-1][1]
        if manifest.audits != AUDITS_DRAWN or not manifest.parent_digest:
            break
        wanted = manifest.parent_digest
    fold = known if known is not None and wanted == known.digest else LedgerFold(*chain.pop())
    for digest, manifest in reversed(chain):
        fold.read(digest, manifest)
    return fold


def folded_job(beginning: str, job: Sequence[model_pb2.Manifest]) -> JobLedger:
    """What the manifests of one job say, oldest first; the first, of digest ``beginning``, is what the job began with."""
    fold = _JobFold(beginning, job[0])
    for manifest in job[1:]:
        fold.read(manifest)
    return fold.ledger()


class _JobFold:
    """The manifests of one job up to the first that cannot be; ``first``, of digest ``beginning``, is what the job began with."""

    def __init__(self, beginning: str, first: model_pb2.Manifest) -> None:
        self._beginning, self._folding, self._newest = beginning, Folding(first), first
        self._problem, self._count = "", 0

    def read(self, manifest: model_pb2.Manifest) -> None:
        before, self._newest = self._newest, manifest
        if self._problem:
            return
        try:
            if manifest.number != before.number + 1:
                raise Corrupt(f"manifest {manifest.number} follows number {before.number}", code="bad_ledger")
            self._folding.read(manifest)
            self._count += 1
        except (Corrupt, InvariantBroken) as error:
            self._problem = error.message

    def ledger(self) -> JobLedger:
        chronicle, problem = self._folding.chronicle(), self._problem
        try:
            if not problem:
                chronicle.ledger.check()
        except (Corrupt, InvariantBroken) as error:
            problem = error.message
        return JobLedger(self._newest.job_id, self._count, chronicle, problem, self._beginning)


def accounts_of(ledgers: Sequence[JobLedger], since_s: float = -math.inf, *, now_s: float = math.inf) -> list[Account]:
    """By PNode, most credited first: of the work that manifests named since then, by the clock of who decided. Faults move no standing here: nobody has
    looked at their evidence. ``now_s``: by the reader's clock; what is told for later happened then.
    """
    found: dict[str, dict[str, int]] = {}
    told = tuple(one for ledger in ledgers for one in ledger.chronicle.told)
    for ledger in ledgers:
        book = ledger.chronicle.ledger
        cleared = {name for vnode, line in book.lines.items() for one in line[: book.num_cleared(vnode)] for name in one.intervals}
        named_s = {one.interval: one.committed_s for one in ledger.chronicle.told}
        counting = {name for line in book.lines.values() for one in line for name in one.intervals}
        for name, one in book.intervals.items():
            if named_s[name] < since_s:
                continue
            row = found.setdefault(one.pnode_id, {"cleared": 0, "waiting": 0, "taken_back": 0, "num_passed": 0, "num_failed": 0})
            where = "cleared" if name in cleared else "waiting" if name in counting else "taken_back"
            row[where] += len(one.batches)
            row["num_passed"] += one.verdict is Verdict.PASSED
            row["num_failed"] += one.verdict is Verdict.FAILED
    standings = standings_of(Chronicle(ledgers[-1].chronicle.ledger, told), frozenset(), now_s=now_s) if ledgers else {}
    accounts = [
        Account(
            pnode_id, **row, passes=standings[pnode_id].passes.amount, credibility=credibility(standings[pnode_id].passes.amount)
        )
        for pnode_id, row in found.items()
    ]
    return sorted(accounts, key=lambda one: (-one.cleared, one.pnode_id))


def exposures_of(ledgers: Sequence[JobLedger], rules: DrawRules) -> list[Exposure]:
    """Of each job, oldest first: how many of its cleared steps may be wrong without anybody having noticed. A release is made of all of them."""
    found: list[Exposure] = []
    earlier: list[Told] = []
    for ledger in ledgers:
        found.append(exposure_of_job(ledger.chronicle, rules, earlier))
        earlier += ledger.chronicle.told
    return found


def entries_of(ledger: JobLedger) -> list[dict[str, object]]:
    """Every interval of a job with its last verdict, as plain values, in the order in which the chain names them."""
    evidence = {one.interval: one.evidence for one in ledger.chronicle.told if one.evidence}
    committed = {one.interval: one.committed_s for one in ledger.chronicle.told}
    decided = {one.interval: one.decided_s for one in ledger.chronicle.told}

    def plain(one: Interval) -> dict[str, object]:
        return {
            "job": ledger.job_id, "interval": one.name, "vnode": one.vnode, "replica": one.replica, "pnode": one.pnode_id,
            "batches": [list(pair) for pair in one.batches.pairs()], "verdict": one.verdict.value, "named_s": committed[one.name],
            "decided_s": decided[one.name], "evidence": evidence.get(one.name, ""),
        }  # fmt: skip

    return [plain(one) for one in sorted(ledger.chronicle.ledger.intervals.values(), key=lambda one: one.number)]
