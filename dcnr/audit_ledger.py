"""An independent check of the trust ledger of a model: the whole chain of manifests, the receipts behind what is credited, the evidence behind what failed.

Shares no code with the orchestrator's decisions. The chains come from `dcnr.ledger_check`, of every job in which audits were in force; each must begin with
the manifest that its signed request names. A receipt is what was signed of an interval: its commits in the store, or the delta inside one. All states that the
newest manifest names must still be there. Of all that does not hold what the chain tells first is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dcnr import limits
from dcnr.errors import Corrupt, InvalidInput, NotFound, Refused
from dcnr.ids import digest_of
from dcnr.interval_statements import Statements
from dcnr.ledger_check import JobLedger, exposures_of, read_ledgers
from dcnr.planned import PlannedCommits, newest_plan
from dcnr.stored import Read, StoredDocuments
from dcnr.v1 import data_pb2, model_pb2
from trust.commits import Place
from trust.envelope import parse
from trust.equivocation import equivocation_of
from trust.evidence import MAX_RECORD_BYTES, exhibit_of
from trust.exposure import Exposure
from trust.ledger import Interval, Verdict
from trust.network import NetworkPolicy
from trust.unnoticed import rules_of

if TYPE_CHECKING:
    from pathlib import Path

    from dcnr.sdk.client import AsyncClient

BEGINNING: Final = -1.0
END: Final = math.inf


@dataclass(slots=True)
class LedgerAudit:
    """What was found. ``ledgers``: of every job in the chain, the oldest first; all is about all of them, but for `counts`, `cleared` and `num_states`."""

    ledgers: tuple[JobLedger, ...]
    exposures: tuple[Exposure, ...]
    """Of each of them: how much may be wrong without anybody having noticed."""
    trouble: str = ""
    """The first entry that does not hold, in the order of the chain; empty if all do."""
    num_receipts: int = 0
    num_gone: int = 0
    """Intervals that do not count any more, whose statement is not kept."""
    num_states: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    """By digest of the evidence: the PNode that it accuses, by its own signature."""

    @property
    def ledger(self) -> JobLedger:
        """Of the newest job."""
        return self.ledgers[-1]

    @property
    def holds(self) -> bool:
        """Whether everything did."""
        return not self.trouble

    def counts(self) -> dict[str, int]:
        """Intervals by verdict."""
        found = dict.fromkeys((verdict.value for verdict in Verdict), 0)
        for one in self.ledger.chronicle.ledger.intervals.values():
            found[one.verdict.value] += 1
        return found

    def cleared(self) -> dict[str, tuple[int, int]]:
        """By VNode: batches in the newest cleared checkpoint, and in the newest one."""
        ledger = self.ledger.chronicle.ledger
        return {
            vnode: (len(ledger.held(vnode, ledger.num_cleared(vnode) - 1)), len(ledger.held(vnode, len(line) - 1)))
            for vnode, line in ledger.lines.items()
        }


async def audit_ledger(client: AsyncClient, model: str, *, manifest: str = "") -> LedgerAudit:
    """The ledger of the job of a model's newest manifest, or of the named one. Raises NotFound where no audits are in force, Corrupt, Unavailable."""

    async def read(ref: data_pb2.ObjectRef, path: Path, max_bytes: int) -> None:
        await client.objects.read_file(ref, path, max_bytes=max_bytes)

    digest, _ = await client.manifest(model, manifest)
    return await LedgerReader(read, client.policy, model, client.scratch).run(digest, await newest_plan(client, model))


class LedgerReader:
    """Reads through ``read`` only; keeps temporary files in ``directory``."""

    def __init__(self, read: Read, policy: NetworkPolicy, model: str, directory: Path) -> None:
        self._read, self._policy, self._model, self._directory = read, policy, model, directory
        self._documents = StoredDocuments(read, policy, model, directory)

    async def run(self, newest: str, newest_plan: str) -> LedgerAudit:
        """``newest``, ``newest_plan``: digests of a manifest and of the model's newest plan. What does not hold is in the result.

        Raises NotFound (``no_ledger``) where no audits are in force, and Unavailable.
        """
        ledgers = await read_ledgers(newest, self._documents.manifest)
        if not ledgers:
            raise NotFound(
                "the manifest was written without audits: there is no ledger", code="no_ledger",
                remedy="audits are in force where the network document says audits = drawn",
            )  # fmt: skip
        audit = LedgerAudit(tuple(ledgers), tuple(exposures_of(ledgers, rules_of(self._policy))))
        ends = [*(one.beginning for one in ledgers[1:]), newest]
        for ledger, end in zip(ledgers, ends, strict=True):
            found = await self._job(audit, ledger, end, newest_plan, is_newest=end == newest)
            if found.first:
                audit.trouble = found.first if ledger is audit.ledger else f"{ledger.job_id}: {found.first}"
                break  # what the chain tells later comes later
        return audit

    async def _job(self, audit: LedgerAudit, ledger: JobLedger, end: str, newest_plan: str, *, is_newest: bool) -> _Findings:
        """All that does not hold of one job, whose last manifest has that digest."""
        found = _Findings(ledger)
        with found.at(BEGINNING):
            request = await self._documents.request(ledger.job_id)
            if ledger.beginning != request.initial_manifest_digest:
                raise Corrupt(f"the chain does not lead to the manifest that job {ledger.job_id} began with", code="broken_chain")
        if found.first:
            return found
        await self._receipts(audit, found, newest_plan)
        await self._evidence(audit, found)
        with found.at(END):
            if ledger.problem:
                raise Corrupt(ledger.problem, code="bad_ledger")
            last = await self._documents.manifest(end)
            _check_head(ledger, last)
            if is_newest:
                await self._states(audit, last)
        return found

    async def _receipts(self, audit: LedgerAudit, found: _Findings, newest_plan: str) -> None:
        """Every interval that counts has statements of its own replica, about just those batches, and plans had who signed them and what they took in."""
        place = Place(self._policy.network_id, self._model, found.job_id, "")
        statements = Statements(self._documents, PlannedCommits(self._documents, newest_plan, place), place)
        ledger, missing = found.ledger, list[Interval]()
        counting = {name for line in ledger.lines.values() for one in line for name in one.intervals}
        for one in sorted(ledger.intervals.values(), key=lambda one: one.number):
            with found.at(found.named[one.name]):
                try:
                    if await statements.check(one, counts=one.name in counting):
                        audit.num_receipts += 1
                    else:
                        missing.append(one)
                except NotFound as error:
                    if error.code != "no_statement" or one.name in counting:
                        raise
                    audit.num_gone += 1
        for one in missing:
            with found.at(found.named[one.name]):
                if statements.check_delta(one):
                    audit.num_receipts += 1
                elif one.name in counting:
                    raise Corrupt(f"interval {one.name[:12]} of {one.vnode}: its statement is not in the store", code="bad_ledger")
                else:
                    audit.num_gone += 1

    async def _evidence(self, audit: LedgerAudit, found: _Findings) -> None:
        """Every failure has a record about that interval that its accused signed itself. What the record measures is for whoever has torch."""
        for number, one in enumerate(found.told):
            if one.verdict is Verdict.FAILED:
                with found.at(number):
                    vnode = found.ledger.intervals[one.interval].vnode
                    accused, intervals = _convicted(await self._documents.record(vnode, one.evidence), self._policy.network_id)
                    if accused != one.pnode_id:
                        raise Corrupt(
                            f"interval {one.interval[:12]}: its evidence accuses {accused[:8]}, not {one.pnode_id[:8]}",
                            code="bad_ledger",
                        )
                    if one.interval not in intervals:
                        raise Corrupt(f"interval {one.interval[:12]}: its evidence is about another one", code="bad_ledger")
                    audit.faults[one.evidence] = accused

    async def _states(self, audit: LedgerAudit, last: model_pb2.Manifest) -> None:
        """What the newest manifest names is there, with its digest."""
        for entry in last.entries:
            for one in {item.digest: item for item in (*entry.working, entry.cleared) if item.digest}.values():
                ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_STATE, model=self._model, owner=entry.vnode, digest=one.digest)
                data = await self._documents.data(ref, limits.MAX_OBJECT_BYTES)
                if digest_of(data) != one.digest:
                    raise Corrupt(f"the state {one.digest[:12]} of {entry.vnode} does not have its digest", code="bad_ledger")
                audit.num_states += 1


class _Findings:
    """What does not hold of one job, by its place in the chain: the number of the entry that tells of it, `BEGINNING` or `END`."""

    def __init__(self, ledger: JobLedger) -> None:
        self.job_id, self.ledger, self.told = ledger.job_id, ledger.chronicle.ledger, ledger.chronicle.told
        self.named: dict[str, float] = {}
        """By interval: where the chain names it first."""
        for number, one in enumerate(self.told):
            self.named.setdefault(one.interval, number)
        self.first, self._place = "", math.inf

    @contextmanager
    def at(self, place: float) -> Iterator[None]:
        """What does not hold in here is noted there; a store that does not answer is no finding."""
        try:
            yield
        except (Corrupt, InvalidInput, NotFound, Refused) as error:
            if not self.first or place < self._place:
                self.first, self._place = error.message, place


def _check_head(job: JobLedger, last: model_pb2.Manifest) -> None:
    """The last manifest of a job names what the folded lines end with, and as cleared what is. Raises Corrupt."""
    ledger = job.chronicle.ledger
    for entry in last.entries:
        line = ledger.lines.get(entry.vnode, ())
        if not line or not entry.working or line[-1].digest != entry.working[0].digest:
            raise Corrupt(f"{entry.vnode}: the newest manifest goes on from what its line does not end with", code="bad_ledger")
        cleared = {one.digest for one in line[: ledger.num_cleared(entry.vnode)]}
        if entry.cleared.digest and entry.cleared.digest not in cleared:
            raise Corrupt(f"{entry.vnode}: {entry.cleared.digest[:12]} is called cleared and is not", code="bad_ledger")


def _convicted(data: bytes, network_id: str) -> tuple[str, tuple[str, ...]]:
    """The PNode that signed what the record holds, and the intervals that it may be about."""
    record = parse(model_pb2.FaultRecord, data, MAX_RECORD_BYTES)
    place = Place(network_id, record.model, record.job_id, record.vnode)
    if record.kind == model_pb2.FAULT_KIND_EQUIVOCATION and len(record.statements) == 2:
        both = equivocation_of(record.statements[0], record.statements[1], place)
        return both.pnode_id, both.statements
    exhibit = exhibit_of(record.statements, place, record.logs)
    return exhibit.accused, (exhibit.interval,)
