"""Failures that manifests tell, whoever decided them: believed here only as far as their evidence proves itself to this process, of the PNode and the
interval that it is told of. A record is measured only for these: told of others too, it costs reading its signatures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import structlog

from dcnr.errors import Corrupt, DcnrError, NotFound, Refused
from dcnr.v1 import model_pb2
from orchestrator.signal import Signal
from orchestrator.view import JobFacts, ModelView
from trust.commits import Place
from trust.equivocation import equivocation_of
from trust.evidence import exhibit_of
from trust.folding import Proof, Told

if TYPE_CHECKING:
    from orchestrator.runtime import Shared

LOOK_AGAIN_S: Final = 30.0
"""Evidence that could not be read or measured is tried again after this time."""
MAX_LOOKS: Final = 1024
"""Under way at once."""
_log = structlog.get_logger("orchestrator")


class OthersVerdicts:
    """One per model. ``stirred`` fires when something was looked at."""

    def __init__(self, model: str, shared: Shared, job: Callable[[str], Awaitable[JobFacts]], stirred: Signal) -> None:
        self._model, self._shared, self._job, self._stirred = model, shared, job, stirred
        self._looks: dict[Proof, float] = {}
        """Failures whose evidence is being looked at, or not to be looked at before that time."""

    def look(self, view: ModelView, group: asyncio.TaskGroup) -> None:
        """Begins to look at evidence that manifests name and that this process has not verified: first at what was looked at longest ago, or never, so
        that records which cannot be read, however many, keep no other from being verified.
        """
        now = self._shared.clock.monotonic()
        wanted: dict[Proof, Told] = {}
        for model, one in self._shared.standings.unverified():
            if model == self._model:
                wanted.setdefault(one.proof, one)
        self._looks = {proof: at for proof, at in self._looks.items() if proof in wanted or at == float("inf")}
        room = MAX_LOOKS - sum(at == float("inf") for at in self._looks.values())
        due = sorted((at, proof) for proof in wanted if (at := self._looks.get(proof, float("-inf"))) <= now)
        for _, proof in due[:room]:
            self._looks[proof] = float("inf")
            group.create_task(self._look(view, wanted[proof]))

    async def _look(self, view: ModelView, told: Told) -> None:
        eyes, standings = self._shared.own_eyes, self._shared.standings
        try:
            if eyes is None:
                return
            record, data = await self._found(view, told)
            _check_about(record, told, self._shared.policy.network_id)
            proven = await eyes.prove(record, data, lambda: self._job(record.job_id))
            if proven.kind == model_pb2.FAULT_KIND_EQUIVOCATION:
                standings.equivocated(told.pnode_id, told.evidence, told.decided_s)
            standings.verified(told.proof, record.bundle_digest)
            del self._looks[told.proof]
        except (Refused, Corrupt) as error:
            standings.refuted(told.proof)
            del self._looks[told.proof]
            self._shared.history.say(
                "evidence_refuted", told.pnode_id, error.message, interval=told.interval[:16], evidence=told.evidence
            )
        except DcnrError as error:
            _log.info("evidence_unread", evidence=told.evidence, reason=error.message)
        finally:
            if told.proof in self._looks:
                self._looks[told.proof] = self._shared.clock.monotonic() + LOOK_AGAIN_S
        self._stirred.fire()

    async def _found(self, view: ModelView, told: Told) -> tuple[model_pb2.FaultRecord, bytes]:
        """The record; of an earlier job it lies with one of the VNodes."""
        eyes = self._shared.own_eyes
        assert eyes is not None
        known = view.chain.ledger.intervals.get(told.interval) if view.chain is not None else None
        vnodes = [known.vnode] if known is not None else [entry.vnode for entry in view.manifest.entries] if view.manifest else []
        for vnode in vnodes:
            try:
                return await eyes.record(self._model, vnode, told.evidence)
            except NotFound:
                continue
        raise NotFound(f"no evidence {told.evidence[:12]}", code="no_evidence")


def _check_about(record: model_pb2.FaultRecord, told: Told, network_id: str) -> None:
    """Raises Refused (``unproven``) for what the accused has not signed, or what is about another interval; and what reading the statements raises."""
    place = Place(network_id, record.model, record.job_id, record.vnode)
    if record.kind == model_pb2.FAULT_KIND_EQUIVOCATION and len(record.statements) == 2:
        both = equivocation_of(record.statements[0], record.statements[1], place)
        accused, intervals = both.pnode_id, both.statements
    else:
        exhibit = exhibit_of(record.statements, place, record.logs)
        accused, intervals = exhibit.accused, (exhibit.interval, exhibit.interval)
    if accused != told.pnode_id or told.interval not in intervals:
        raise Refused("evidence against somebody or something else", code="unproven")
