"""What an audit desk heard and no manifest says, kept for its successors: the reports that it acted on, as their auditors signed them.

From them and the chain of manifests a new desk works out the rest anew: who passed what failed, and what has to be audited again because of that; what is under
doubt; how many units of a way back somebody has done. So nothing is believed here that its signer did not say, but that the desk had asked for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dataservice import keys
from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, DcnrError, NotFound, Refused
from dcnr.ids import digest_of
from dcnr.ports import ObjectStore
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.audit_events import Report, Word
from orchestrator.audit_words import MAX_REPORT_BYTES, open_past_report
from orchestrator.chain import Chain
from orchestrator.documents import sealed
from orchestrator.rehab import is_right
from trust.envelope import open_single, parse, parse_envelope
from trust.folding import Proof, Told
from trust.identity import NodeKey
from trust.ledger import Verdict
from trust.network import NetworkPolicy
from trust.overturned import Truth

MAX_REMEMBERED: Final = 256
MAX_MEMORY_BYTES: Final = MAX_REMEMBERED * (MAX_REPORT_BYTES + limits.KIB)
WRITE_S: Final = 2.0
"""News are written at most this often."""
KEPT: Final = frozenset((Word.PASS, Word.DOUBT, Word.FAULT))


@dataclass(frozen=True, slots=True)
class Remembered:
    """A report that a desk acted on."""

    report: Report
    heard_ms: int
    is_unit: bool
    """Of a way back: it decided nothing about its interval."""


class AuditMemory:
    """Of one term of one orchestrator. Nothing is written before what was there has been read."""

    def __init__(self, store: ObjectStore, policy: Callable[[], NetworkPolicy], key: NodeKey, model: str, job_id: str) -> None:
        self._store, self._policy, self._key, self._model, self._job_id = store, policy, key, model, job_id
        self._reports: OrderedDict[str, model_pb2.RememberedReport] = OrderedDict()
        self._is_read = self._is_new = False

    def heard(self, report: Report, envelope: identity_pb2.Envelope, heard_ms: int, *, is_unit: bool) -> None:
        """A report, verified and taken in."""
        if report.word in KEPT:
            self._add(model_pb2.RememberedReport(report=envelope, heard_unix_ms=heard_ms, is_unit=is_unit))
            self._is_new = True

    async def recall(self) -> list[Remembered]:
        """What all desks of the job heard, oldest first, each report once. Raises Unavailable (try again)."""
        found: dict[str, Remembered] = {}
        for orchestrator in sorted(self._policy().document.orchestrator_ids):
            try:
                stored = await self._store.get(
                    keys.desk_memory(self._model, self._job_id, orchestrator), max_bytes=MAX_MEMORY_BYTES
                )
                memory = self._opened(stored.data, orchestrator)
            except (NotFound, Corrupt, Refused):
                continue
            for one in memory.reports[-MAX_REMEMBERED:]:
                try:
                    model, report = open_past_report(one.report, self._policy().network_id)
                except DcnrError:
                    continue
                if model == self._model and report.word in KEPT:
                    found.setdefault(report.digest, Remembered(report, int(one.heard_unix_ms), one.is_unit))
                    if orchestrator == self._key.node_id:
                        self._add(one)
        self._is_read = True
        return sorted(found.values(), key=lambda one: (one.heard_ms, one.report.digest))

    async def write(self) -> None:
        """What is new is in the store. Raises Unavailable."""
        if not (self._is_read and self._is_new):
            return
        self._is_new = False
        memory = model_pb2.DeskMemory(
            network_id=self._policy().network_id, model=self._model, job_id=self._job_id, holder=self._key.node_id,
            reports=sorted(self._reports.values(), key=lambda one: one.heard_unix_ms),
        )  # fmt: skip
        try:
            data = sealed(identity_pb2.DOMAIN_DESK_MEMORY, memory, self._key).data
            await self._store.put(keys.desk_memory(self._model, self._job_id, self._key.node_id), data)
            reached("memory.stored")
        except DcnrError:
            self._is_new = True
            raise

    def _opened(self, data: bytes, orchestrator: str) -> model_pb2.DeskMemory:
        payload, signer = open_single(
            parse_envelope(data, MAX_MEMORY_BYTES), identity_pb2.DOMAIN_DESK_MEMORY, max_bytes=MAX_MEMORY_BYTES
        )
        memory = parse(model_pb2.DeskMemory, payload, MAX_MEMORY_BYTES)
        said = (memory.network_id, memory.model, memory.job_id, memory.holder)
        if said != (self._policy().network_id, self._model, self._job_id, orchestrator) or signer.node_id != orchestrator:
            raise Corrupt("the memory of another desk than its place says", code="bad_memory")
        return memory

    def _add(self, one: model_pb2.RememberedReport) -> None:
        self._reports.setdefault(digest_of(one.report.SerializeToString(deterministic=True)), one)
        while len(self._reports) > MAX_REMEMBERED:
            self._reports.popitem(last=False)


def proven_in(reports: Sequence[Remembered], chain: Chain, is_wrong: Callable[[Proof], bool]) -> dict[str, Told]:
    """Intervals of these reports that failed by evidence that this process has verified, each with what the chain said. ``is_wrong``: of a computation;
    two signed statements about one step say nothing of whoever passed it.
    """
    failed = {one.report.interval for one in reports if chain.verdict(one.report.interval) is Verdict.FAILED}
    if not failed:
        return {}
    told = (one for one in chain.chronicle.told if one.interval in failed and one.verdict is Verdict.FAILED)
    return {one.interval: one for one in told if is_wrong(one.proof)}


def units_in(reports: Sequence[Remembered], chain: Chain, proven: Mapping[str, str]) -> list[tuple[Remembered, bool]]:
    """Units of ways back whose truth the chain tells, each with whether it was right. ``proven``: what failed, each with the bundle that shows it, if that
    is known: a unit about another one tells nothing.
    """
    found: list[tuple[Remembered, bool]] = []
    for one in reports:
        name = one.report.interval
        truth = Truth.WRONG if name in proven else Truth.RIGHT if chain.verdict(name) is Verdict.PASSED else None
        alike = not one.report.bundle or proven.get(name, "") in ("", one.report.bundle)
        right = is_right(one.report.word, truth) if one.is_unit and alike and truth is not None else None
        if right is not None:
            found.append((one, right))
    return found
