"""An independent check of the trust ledger of a job: the whole chain of manifests, the receipts behind what is credited, the evidence behind what failed.

Shares no code with the orchestrator's decisions. The chains come from `dcnr.ledger_check`; the newest must begin with the manifest that the signed request
names. A receipt is what was signed of an interval: its commits in the store, or the delta inside one. States that the newest manifest names must
still be there. The first entry that does not hold is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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


@dataclass(slots=True)
class LedgerAudit:
    """What was found. ``ledgers``: of every job in the chain, the oldest first; the rest is about the last one."""

    ledgers: tuple[JobLedger, ...]
    exposures: tuple[Exposure, ...]
    """Of each of them: how much may be wrong without anybody having noticed."""
    trouble: str = ""
    """The first entry that does not hold; empty if all do."""
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
        last = await self._documents.manifest(newest)
        request = await self._documents.request(last.job_id)
        ledgers = await read_ledgers(newest, self._documents.manifest)
        if not ledgers:
            raise NotFound(
                "the manifest was written without audits: there is no ledger", code="no_ledger",
                remedy="audits are in force where the network document says audits = drawn",
            )  # fmt: skip
        audit = LedgerAudit(tuple(ledgers), tuple(exposures_of(ledgers, rules_of(self._policy))))
        try:
            self._chains(audit, request)
            self._heads(audit, last)
            await self._receipts(audit, newest_plan)
            await self._evidence(audit)
            await self._states(audit, last)
        except (Corrupt, InvalidInput, NotFound, Refused) as error:
            audit.trouble = error.message
        return audit

    def _chains(self, audit: LedgerAudit, request: model_pb2.JobRequest) -> None:
        """The newest begins with the manifest that its signed request names, and each chain holds together."""
        if audit.ledger.beginning != request.initial_manifest_digest:
            raise Corrupt(f"the chain does not lead to the manifest that job {request.job_id} began with", code="broken_chain")
        for one in audit.ledgers:
            if one.problem:
                raise Corrupt(f"{one.job_id}: {one.problem}", code="bad_ledger")

    def _heads(self, audit: LedgerAudit, last: model_pb2.Manifest) -> None:
        """The newest manifest names what the folded lines end with, and as cleared what is."""
        ledger = audit.ledger.chronicle.ledger
        for entry in last.entries:
            line = ledger.lines.get(entry.vnode, ())
            if not line or not entry.working or line[-1].digest != entry.working[0].digest:
                raise Corrupt(f"{entry.vnode}: the newest manifest goes on from what its line does not end with", code="bad_ledger")
            cleared = {one.digest for one in line[: ledger.num_cleared(entry.vnode)]}
            if entry.cleared.digest and entry.cleared.digest not in cleared:
                raise Corrupt(f"{entry.vnode}: {entry.cleared.digest[:12]} is called cleared and is not", code="bad_ledger")

    async def _receipts(self, audit: LedgerAudit, newest_plan: str) -> None:
        """Every interval that counts has statements of its own replica, about just those batches, and plans had who signed them and what they took in."""
        place = Place(self._policy.network_id, self._model, audit.ledger.job_id, "")
        statements = Statements(self._documents, PlannedCommits(self._documents, newest_plan, place), place)
        ledger, missing, broken = audit.ledger.chronicle.ledger, list[Interval](), list[NotFound]()
        counting = {name for line in ledger.lines.values() for one in line for name in one.intervals}
        for one in sorted(ledger.intervals.values(), key=lambda one: one.number):
            try:
                if await statements.check(one, counts=one.name in counting):
                    audit.num_receipts += 1
                else:
                    missing.append(one)
            except NotFound as error:
                if error.code != "no_statement":
                    raise
                broken += [error] if one.name in counting else []
                audit.num_gone += one.name not in counting
        gone = [one for one in missing if not statements.check_delta(one)]
        audit.num_receipts += len(missing) - len(gone)
        for one in gone:
            if one.name in counting:
                raise Corrupt(f"interval {one.name[:12]} of {one.vnode}: its statement is not in the store", code="bad_ledger")
        if broken:
            raise broken[0]
        audit.num_gone += len(gone)

    async def _evidence(self, audit: LedgerAudit) -> None:
        """Every failure has a record about that interval that its accused signed itself. What the record measures is for whoever has torch."""
        chronicle = audit.ledger.chronicle
        for one in chronicle.told:
            if one.verdict is Verdict.FAILED:
                vnode = chronicle.ledger.intervals[one.interval].vnode
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
            for one in {item.digest: item for item in (*entry.working[:1], entry.cleared) if item.digest}.values():
                ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_STATE, model=self._model, owner=entry.vnode, digest=one.digest)
                data = await self._documents.data(ref, limits.MAX_OBJECT_BYTES)
                if digest_of(data) != one.digest:
                    raise Corrupt(f"the state {one.digest[:12]} of {entry.vnode} does not have its digest", code="bad_ledger")
                audit.num_states += 1


def _convicted(data: bytes, network_id: str) -> tuple[str, tuple[str, ...]]:
    """The PNode that signed what the record holds, and the intervals that it may be about."""
    record = parse(model_pb2.FaultRecord, data, MAX_RECORD_BYTES)
    place = Place(network_id, record.model, record.job_id, record.vnode)
    if record.kind == model_pb2.FAULT_KIND_EQUIVOCATION and len(record.statements) == 2:
        both = equivocation_of(record.statements[0], record.statements[1], place)
        return both.pnode_id, both.statements
    exhibit = exhibit_of(record.statements, place, record.logs)
    return exhibit.accused, (exhibit.interval,)
