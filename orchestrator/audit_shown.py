"""What an accused names as its evidence counts once the store has it: else an auditor after the other would be sent for what nobody can read, for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dataservice import keys
from dcnr.errors import DcnrError, NotFound
from dcnr.ids import check_digest
from dcnr.v1 import model_pb2
from orchestrator.audit_events import Bundle
from orchestrator.audits import AuditDesk
from orchestrator.chain import Chain
from orchestrator.signal import Signal
from trust.ledger import Interval, Verdict

if TYPE_CHECKING:
    from orchestrator.runtime import Shared


class Shown:
    """Of one model. ``stirred`` is fired when the desk has heard something."""

    def __init__(self, model: str, shared: Shared, stirred: Signal) -> None:
        self._model, self._shared, self._stirred = model, shared, stirred
        self._looked_for: set[str] = set()
        """Intervals; whoever repeats itself meanwhile is asked again anyway."""

    async def look(self, vnode: str, bundle: Bundle) -> None:
        """Returns if it is there, as large as it was said to be. Raises NotFound, Unavailable."""
        found = await self._shared.store.head(keys.evidence(self._model, vnode, check_digest(bundle.digest)))
        if found.size_bytes != bundle.size_bytes:
            raise NotFound(f"evidence of {bundle.size_bytes} bytes is not there, but one of {found.size_bytes}", code="no_evidence")

    def answered(
        self, desk: AuditDesk, chain: Chain, pnode_id: str, evidence: model_pb2.Evidence, bundle: Bundle | None, group: asyncio.TaskGroup
    ) -> None:  # fmt: skip
        """A PNode names its evidence, or (None) says that it cannot be had now. Raises Refused (``not_challenged``) for what it was not asked."""
        name = evidence.interval
        desk.answered(pnode_id, name, None, self._shared.clock.monotonic())
        if bundle is None:
            self._say("evidence_missing", pnode_id, evidence.reason or "it says that it has none", name)
        elif (
            (known := chain.ledger.intervals.get(name)) is not None
            and known.verdict is Verdict.OPEN
            and name not in self._looked_for
        ):
            self._looked_for.add(name)
            group.create_task(self._believed(desk, known, bundle))

    async def _believed(self, desk: AuditDesk, one: Interval, bundle: Bundle) -> None:
        """What is not found is as if nothing had been said: the accused is asked again until its time is over."""
        try:
            await self.look(one.vnode, bundle)
            desk.answered(one.pnode_id, one.name, bundle, self._shared.clock.monotonic())
        except DcnrError as error:
            self._say("evidence_missing", one.pnode_id, f"what it names is not read: {error.message}", one.name)
        else:
            self._say("evidence_brought", one.pnode_id, "what it was asked for came", one.name)
            self._stirred.fire()
        finally:
            self._looked_for.discard(one.name)

    def _say(self, kind: str, pnode_id: str, reason: str, interval: str) -> None:
        self._shared.history.say(kind, pnode_id, reason, interval=interval[:16])
