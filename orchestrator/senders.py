"""Which PNode hosts which replica, as the plans of a job say: what an audited interval was learned from has to come from there. Pure, but for reading plans.

Everything in a bundle is signed by somebody, but an accused can have friends, or be two PNodes: values that a replica of no plan signed, or that it says it
handed over to itself though it hosted no replica of that VNode, are its own word. Nobody can say then what it should have computed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final

from dcnr.ids import ReplicaId, vnode_of
from dcnr.v1 import model_pb2
from orchestrator.audit_events import Report, Sender, Word

MAX_PLANS: Final = 4096
"""Of one job that are read."""
UNKNOWN_SENDER: Final = "sender"
"""The part of a report whose inputs came from elsewhere."""
ReadPlan = Callable[[str], Awaitable[model_pb2.Plan]]
"""A verified plan by its digest. Raises NotFound, Corrupt, Unavailable."""


class Seats:
    """Of one job. A replica has its place for ever: numbers are given once."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._seats: dict[str, str] = {}
        self._read: set[str] = set()

    def covers(self, plan_digest: str) -> bool:
        """Whether that plan and all before it are known."""
        return plan_digest in self._read

    async def follow(self, newest: str, read: ReadPlan) -> None:
        """Reads plan ``newest`` and those before it, as far as they are of the job and not known. What ``read`` raises leaves everything as it was."""
        fresh: dict[str, model_pb2.Plan] = {}
        digest = newest
        while digest and digest not in self._read and len(fresh) < MAX_PLANS:
            plan = await read(digest)
            if plan.job_id != self._job_id:
                break
            fresh[digest], digest = plan, plan.parent_digest
        for plan in fresh.values():
            self._seats.update((item.replica, item.pnode_id) for item in plan.assignments)
        self._read.update(fresh)

    def stranger(self, senders: Iterable[Sender], accused: str) -> str:
        """The first sender that no plan has there; empty where all are."""
        own = {vnode_of(ReplicaId(replica)) for replica, pnode_id in self._seats.items() if pnode_id == accused}
        for one in senders:
            if not one.replica and one.vnode not in own:
                return f"{one.vnode}, which it never hosted"
            if one.replica and self._seats.get(one.replica) != one.pnode_id:
                return f"{one.replica} on {one.pnode_id[:8]}"
        return ""


def held(report: Report, seats: Seats, accused: str) -> Report:
    """What a report says once its senders are held against the plans: what rests on strangers cannot be verified. A fault stands: it is one whoever sent."""
    if report.word not in (Word.PASS, Word.DOUBT) or not seats.stranger(report.senders, accused):
        return report
    return replace(report, word=Word.UNVERIFIABLE, part=UNKNOWN_SENDER)
