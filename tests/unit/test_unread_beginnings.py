"""Goal: an interval of which the store lacks the commits is nobody's to audit: nobody is asked, it is looked for now and then, and after minutes it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from audited_rig import NODES, Job, drawn, judged, name_of, piece
from test_audit_deadlines import NAME, desk, tasks_of
from test_audit_memory import FIRST, Holder, store

from orchestrator.audit_case import LOOK_S, UNBEGUN, UNREAD_S
from orchestrator.audit_events import Bundle, People, Report, Word
from orchestrator.audits import AuditDesk
from trust.auditors import Candidate
from trust.ledger import Verdict
from trust.separation import Party
from trust.standing import State

HERE = People({name: Candidate(Party(name), State.ACTIVE, True) for name in map(str, range(50))})


def shown() -> AuditDesk:
    """One whose accused has shown its evidence, after a second."""
    made = desk()
    made.tick(HERE, 0.5)
    made.answered("accused", NAME, Bundle("b" * 64, 1), 1.0)
    return made


def tried(made: AuditDesk, code: str, first_s: int, end_s: int) -> int:
    """How often somebody was chosen in these seconds, and nobody asked for that reason."""
    count = 0
    for now_s in range(first_s, end_s):
        made.tick(HERE, float(now_s))
        while chosen := tasks_of(made):
            count += len(chosen)
            for task in chosen:
                made.reported(Report(task.task_id, task.auditor, NAME, Word.UNREAD, code), float(now_s))
        made.check()
    return count


def test_it_is_looked_for_now_and_then_and_after_ten_minutes_it_is_unverifiable() -> None:
    """Everybody who was here was taken in turn, within a second and for ever: a VNode was never cleared again, and nobody could say whom it waited for."""
    made = shown()
    assert tried(made, "state_missing", 1, 301) == 300 / LOOK_S
    [wait] = made.waits(301.0)
    assert (wait.owner, wait.until_s) == ("holder", 1.0 + UNREAD_S)
    assert UNBEGUN in wait.why
    assert tried(made, "state_missing", 301, 1000) == 1 + (UNREAD_S - 300) / LOOK_S
    [decision] = made.decisions()
    assert (decision.verdict, decision.reason) == (Verdict.UNVERIFIABLE, UNBEGUN)


def test_while_the_store_is_away_no_time_of_it_passes() -> None:
    made = shown()
    tried(made, "state_missing", 1, 500)
    tried(made, "store_unavailable", 500, 2000)
    tried(made, "state_missing", 2000, 2500)
    now_s = 2500.0
    while not (chosen := tasks_of(made)):
        now_s += 1.0
        made.tick(HERE, now_s)
    [task] = chosen
    made.reported(Report(task.task_id, task.auditor, NAME, Word.PASS, digest="d" * 64), now_s)
    [decision] = made.decisions()
    assert decision.verdict is Verdict.PASSED, "it was found in time"


def test_no_auditor_hears_of_it() -> None:
    async def scenario() -> None:
        job = Job()
        first = judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)])
        await asyncio.to_thread(lambda: job.named(first, draw=drawn("a-1")))
        holder = Holder(FIRST, store(), job)
        await holder.looks()
        holder.view = replace(holder.view, chain=await asyncio.to_thread(job.chain))
        await holder.until(lambda: bool(holder.auditing.waits()), "a desk is there")
        await holder.brings(NODES["x"], name_of("a-1"))
        await holder.until(lambda: any(UNBEGUN in one.why for one in holder.auditing.waits()), "what it waits for is said")
        assert holder.tasks == []
        await holder.dies()

    asyncio.run(scenario())
