"""Goal: where a holder's wall clock is set, or its machine slept, nobody's time at the audit desk is over, and what others are told is by the wall clock."""

from __future__ import annotations

import asyncio

import pytest
import test_audit_memory
from audited_rig import NODES, Job, drawn, judged, name_of, piece
from test_audit_memory import FIRST, Holder, store

from dcnr.system import SystemClock
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.audit_case import AUDIT_S


class SetClock(SystemClock):
    """This machine's, whose wall clock is set."""

    ahead_s = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead_s


def test_an_hour_of_the_wall_clock_takes_nothing_back_and_ends_no_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SetClock()
    monkeypatch.setattr(test_audit_memory, "CLOCK", clock)

    async def scenario() -> None:
        job = Job()
        pieces = piece("a-1", 0, 4), piece("a-2", 4, 8)
        first, second = judged("a1", "a0", pieces[0], held=[(0, 4)]), judged("a2", "a1", pieces[1], held=[(0, 8)])
        await asyncio.to_thread(lambda: job.named(first, draw=drawn("a-1", "a-2")))
        await asyncio.to_thread(lambda: job.named(second, draw=drawn("a-1", "a-2")))
        holder = Holder(FIRST, store(), job)
        await holder.looks()
        auditing = holder.auditing
        await holder.until(lambda: len(auditing.waits()) == 2, "both are asked for")
        await holder.brings(NODES["x"], name_of("a-1"))
        await holder.until(lambda: bool(holder.tasks), "the auditor is asked")
        until_s = holder.tasks[-1].until_unix_ms / 1000 - clock.wall()
        assert AUDIT_S - 60.0 < until_s <= AUDIT_S, "as others read it"
        before = {one.interval: (one.owner, one.until_s) for one in auditing.waits()}
        for ahead_s in (3600.0, -3600.0):
            clock.ahead_s = ahead_s
            auditing._tick()
            assert not auditing.decisions(holder.view)
            assert {one.interval: (one.owner, one.until_s) for one in auditing.waits()} == before
        await holder.dies()

    asyncio.run(scenario())


def test_a_challenge_is_dated_by_the_wall_clock() -> None:
    async def scenario() -> None:
        job, told = Job(), list[orchestrator_pb2.OrchestratorMessage]()
        await asyncio.to_thread(lambda: job.named(judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]), draw=drawn("a-1")))
        holder = Holder(FIRST, store(), job)
        holder.shared.mailbox.opened(NODES["x"], told.append)
        await holder.looks()
        await holder.until(lambda: bool(told), "it is asked for its evidence")
        challenge = model_pb2.Challenge.FromString(told[0].challenge.payload)
        assert 0.0 < challenge.until_unix_ms / 1000 - test_audit_memory.CLOCK.wall() <= 45.0
        await holder.dies()

    asyncio.run(scenario())
