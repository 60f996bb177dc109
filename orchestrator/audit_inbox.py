"""Evidence and findings as they come in over the PNodes' control streams: bounded, verified, and brought to the desk that asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dcnr.errors import DcnrError, Refused, RemoteFault
from dcnr.v1 import orchestrator_pb2
from orchestrator.audit_words import bundle_of, open_report
from orchestrator.auditing import Auditing
from orchestrator.runtime import ModelRuntime, Shared
from trust.rates import Rate, TokenBuckets

WORD_RATE: Final = Rate(per_s=4.0, burst=256.0)
"""Per PNode: what comes faster answers no question of ours."""


class AuditInbox:
    """One per process."""

    def __init__(self, shared: Shared, models: Mapping[str, ModelRuntime]) -> None:
        self._shared, self._models = shared, models
        self._rate = TokenBuckets(WORD_RATE)

    def heard(self, pnode_id: str, message: orchestrator_pb2.PNodeMessage) -> None:
        """One word of that PNode. What does not hold is refused and told, and changes nothing: an audit may just be over.

        Raises RemoteFault (``words_too_often``): the stream ends.
        """
        if self._rate.wait_s(pnode_id, self._shared.clock.monotonic()):
            raise RemoteFault("words on audits come faster than any audit could", code="words_too_often")
        try:
            self._bring(pnode_id, message)
        except DcnrError as error:
            self._shared.history.say("audit_word_refused", pnode_id, error.message, code=error.code)

    def _bring(self, pnode_id: str, message: orchestrator_pb2.PNodeMessage) -> None:
        if message.WhichOneof("kind") == "evidence":
            bundle = bundle_of(message.evidence)
            if (desk := self._desk_of(message.evidence.interval)) is not None:
                desk.answered(pnode_id, message.evidence, bundle)
            return
        shared = self._shared
        model, report = open_report(message.audit_report, shared.policy.network_id, pnode_id, shared.clock.wall())
        if model not in self._models:
            raise Refused("a report on a model that is not known here", code="not_asked")
        self._models[model].auditing.reported(report, message.audit_report)

    def _desk_of(self, interval: str) -> Auditing | None:
        """Where that interval is audited; None where nothing is, since this orchestrator holds no head. Raises Refused (``not_challenged``)."""
        desks = [runtime.auditing for runtime in self._models.values() if runtime.auditing.has_desk]
        found = next((desk for desk in desks if desk.knows(interval)), None)
        if found is None and desks:
            raise Refused("evidence of an interval that no manifest names", code="not_challenged")
        return found
