"""Goal: reports that wait until plans are read are those that were asked for, one of each task: nobody else pushes them out."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest
from audited_rig import NODES, Job, drawn, judged, name_of, piece
from test_audit_memory import FIRST, Holder, opened, signed, store

from dcnr.errors import DcnrError, Refused, Unavailable
from dcnr.v1 import model_pb2
from orchestrator.audit_events import Sender
from trust.ledger import Verdict

NUM_STRANGE = 300


class Reading(Holder):
    """A holder whose store is away until ``plan`` is there."""

    plan: model_pb2.Plan | None = None

    async def _plan(self, digest: str) -> model_pb2.Plan:
        if self.plan is None:
            raise Unavailable("the store is away")
        return self.plan


def test_a_report_that_waits_for_plans_is_pushed_out_by_nobody_who_was_not_asked() -> None:
    async def scenario() -> None:
        job = Job()
        first = judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)])
        await asyncio.to_thread(lambda: job.named(first, draw=drawn("a-1")))
        holder = Reading(FIRST, store(), job)
        await holder.looks()
        holder.view.head.plan_digest = name_of("plan")
        auditing, interval = holder.auditing, name_of("a-1")
        await holder.until(lambda: auditing.knows(interval) and bool(auditing.waits()), "a desk is there")
        await holder.brings(NODES["x"], interval)
        await holder.until(lambda: bool(holder.tasks), "the auditor is asked")
        envelope = signed(interval, model_pb2.AUDIT_FINDING_PASS, holder.tasks[-1].task_id)
        asked = replace(opened(envelope), senders=(Sender("a", "a.0", NODES["x"]),))
        for _ in range(2):
            auditing.reported(asked, envelope)
        strange = [replace(asked, task_id=f"{at:032x}") for at in range(NUM_STRANGE)]
        strange += [replace(asked, auditor=NODES["y"])] * NUM_STRANGE
        for report in strange:
            with contextlib.suppress(DcnrError):
                auditing.reported(report)
        assert not auditing.decisions(holder.view)
        holder.plan = model_pb2.Plan(
            job_id="job", assignments=[model_pb2.Assignment(replica="a.0", vnode="a", pnode_id=NODES["x"])]
        )
        await holder.until(lambda: bool(auditing.decisions(holder.view)), "what was asked for is taken in")
        assert [one.verdict for one in auditing.decisions(holder.view)] == [Verdict.PASSED]
        with pytest.raises(Refused):
            auditing.reported(strange[0])
        await holder.dies()

    asyncio.run(scenario())
