"""The ledger of a model as anybody finds it who reads the chain of manifests: whether it contradicts itself, who did what, and what became of it.

Shares no code with the orchestrator's decisions. A correction is a new entry in a later manifest, so nothing that was told is ever lost from the chain.
"""

from __future__ import annotations

import itertools
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


async def read_ledgers(newest: str, read: ReadManifest) -> list[JobLedger]:
    """The jobs in which audits were in force, oldest first, back from the manifest of that digest. Raises what ``read`` raises."""
    digests, chain = [newest], [await read(newest)]
    while chain[-1].audits == AUDITS_DRAWN and chain[-1].parent_digest and len(chain) < MAX_MANIFESTS:
        digests.append(chain[-1].parent_digest)
        chain.append(await read(digests[-1]))
    chain.reverse()
    jobs: list[tuple[str, list[model_pb2.Manifest]]] = []
    for digest, (before, manifest) in zip(reversed(digests), itertools.pairwise(chain), strict=False):
        if not jobs or jobs[-1][1][-1].job_id != manifest.job_id:
            jobs.append((digest, [before]))
        jobs[-1][1].append(manifest)
    return [folded_job(beginning, job) for beginning, job in jobs]


def folded_job(beginning: str, job: Sequence[model_pb2.Manifest]) -> JobLedger:
    """What the manifests of one job say, oldest first; the first, of digest ``beginning``, is what the job began with."""
    folding, problem, count = Folding(job[0]), "", 0
    try:
        for before, manifest in itertools.pairwise(job):
            if manifest.number != before.number + 1:
                raise Corrupt(f"manifest {manifest.number} follows number {before.number}", code="bad_ledger")
            folding.read(manifest)
            count += 1
        folding.chronicle().ledger.check()
    except (Corrupt, InvariantBroken) as error:
        problem = error.message
    return JobLedger(job[-1].job_id, count, folding.chronicle(), problem, beginning)


def accounts_of(ledgers: Sequence[JobLedger], since_s: float = -math.inf) -> list[Account]:
    """By PNode, most credited first: of the work that manifests named since then, by the clock of who decided. Faults move no standing here: nobody has
    looked at their evidence.
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
    standings = standings_of(Chronicle(ledgers[-1].chronicle.ledger, told), frozenset()) if ledgers else {}
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
