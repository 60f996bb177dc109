"""Goal: whatever successors ask of a contributor, its interval ends in time, and the log of it stays one that a statement may name."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from merges_rig import ME, NONE, PRIMARY, config, of
from test_evidence_kept import STANDING, Rig, run

from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from dcnr.units import Share
from dcnr.v1 import model_pb2
from pnode import books as books_module
from trust import step_logs
from trust.step_logs import contradiction_in
from vnode import contributing, entries
from vnode import events as ev
from vnode import merge_events as mev
from vnode.compute import StepResult
from vnode.core import ReplicaCore
from vnode.events import Instruction
from vnode.vocabulary import TRAIN_LANE, Peer, Role

NUM_BATCHES: Final = 4000
HELD: Final = IntervalSet.span(0, 3000)
"""What the primary's anchor holds, and a successor asks for."""
NEXT: Final = ReplicaId("next.0")
MOST: Final = 64


@pytest.fixture(autouse=True)
def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_logs, "MAX_ENTRIES", MOST)
    monkeypatch.setattr(books_module, "CROWDED_ENTRIES", MOST * 3 // 4)
    monkeypatch.setattr(entries, "FULL_ENTRIES", MOST * 7 // 8)
    monkeypatch.setattr(contributing, "MAX_AUDITED_BATCHES", MOST // 2)


class Worker:
    """A contributor's core with its books, and a successor that asks for one batch after the other of what was learned long ago.

    ``has_data``: whether inputs of what is still to be learned can be read.
    """

    def __init__(self, root: Path, *, has_data: bool) -> None:
        self.rig = Rig(root, is_read=True, max_bytes=1 << 26)
        values = config(
            ME, Role.CONTRIBUTOR, num_batches=NUM_BATCHES, audited=True, evaluate=False, merge_every=NUM_BATCHES, checkpoint_s=1e9,
            lead_batches=NUM_BATCHES, horizon_s=1e9,
        )  # fmt: skip
        self.core = ReplicaCore(values, NONE, 0.0)
        self.now_s, self.next, self.sequence, self.num_computed = 0.0, 0, 1, 0
        self.asks = list[mev.AskMerge]()
        self.has_data = has_data
        shares = (Share(PRIMARY, 0.0), Share(ME, 1.0))
        self.work = deque[Instruction]()
        self.hear(
            ev.PlanChanged(0.0, {}, frozenset({NEXT}), NUM_BATCHES, shares, Role.CONTRIBUTOR, PRIMARY),
            ev.LinkUp(0.0, 1, Peer(NEXT, 1)),
        )
        self.hear(ev.AckHeard(0.0, 1, 1, NUM_BATCHES, NUM_BATCHES, VNodeId("next")))

    def hear(self, *events: ev.Event) -> None:
        for event in events:
            self.work += self.core.handle(event)
            self.core.check()

    async def stand_on(self, lineage: IntervalSet) -> None:
        """The newest question is answered."""
        self.hear(mev.AnchorArrived(self.now_s, self.asks[-1].ask, Peer(PRIMARY, 1), lineage, "anchor"))
        (rebase,) = of(mev.Rebase, list(self.work))
        self.work.remove(rebase)
        await self.rig.books.rebased(b"anchor", self.rig.books._info)
        self.hear(mev.Rebased(self.now_s))

    def hand_in(self, lineage: IntervalSet) -> mev.MakeDelta:
        """The newest question is answered, and a delta is to be measured against that anchor."""
        self.hear(mev.AnchorArrived(self.now_s, self.asks[-1].ask, Peer(PRIMARY, 1), lineage, "anchor"))
        (made,) = of(mev.MakeDelta, list(self.work))
        return made

    def ask_on(self) -> None:
        """The successor asks for the next batches of what is held."""
        self.hear(
            ev.NeedHeard(self.now_s, 1, self.sequence, TRAIN_LANE, HELD.above(self.next - 1), NONE, NONE),
            ev.WindowHeard(self.now_s, 1, self.sequence + 1, TRAIN_LANE, self.next + 4),
        )
        self.sequence += 2

    async def go_on(self, most: int) -> None:
        """Until so many batches were computed, or nothing moves any more. Nobody answers but this replica's own shell."""
        end, idle = self.num_computed + most, 0
        while self.num_computed < end and idle < MOST:
            if self.work:
                idle = 0
                await self.carry_out(self.work.popleft())
            else:
                idle += 1
                self.now_s += 1.0
                self.ask_on()
            while self.rig.crowded:
                self.hear(ev.CheckpointLost(self.now_s, self.rig.crowded.pop()))

    async def carry_out(self, instruction: Instruction) -> None:
        tensor, books = np.zeros(4, np.float32), self.rig.books
        match instruction:
            case ev.ReadInput() if instruction.batch in HELD or self.has_data:
                self.hear(ev.FrameArrived(self.now_s, instruction.edge, instruction.lane, instruction.batch, tensor))
            case ev.Forward():
                await books.forwarded(instruction.batch, [tensor], tensor, len(self.core.view().lineage), None)
                self.num_computed += 1
                self.hear(ev.Forwarded(self.now_s, TRAIN_LANE, instruction.batch, 0.01))
            case ev.Learn():
                await books.before_learning()
                await books.learned(
                    instruction.batch, [tensor], StepResult(tensor, 0.5, 1, 1, 1, 0.1), instruction.num_learned, None
                )
                self.num_computed += 1
                self.hear(ev.Learned(self.now_s, instruction.batch, 0.5, 0.01))
            case ev.SendFrame():
                self.next = max(self.next, instruction.batch + 1)
                self.hear(ev.FrameSent(self.now_s, instruction.link, instruction.lane, instruction.batch))
            case mev.AskMerge():
                self.asks.append(instruction)
            case _:
                pass

    async def log(self) -> model_pb2.StepLog:
        return model_pb2.StepLog.FromString(await self.rig.books.log("begin"))


def delta_of(log: model_pb2.StepLog) -> model_pb2.Delta:
    learned = [step for step in log.steps if not step.forward_only]
    return model_pb2.Delta(
        network_id=STANDING.network_id, model=STANDING.model, job_id=STANDING.job_id, vnode=STANDING.vnode, replica=STANDING.peer.replica,
        incarnation=STANDING.peer.incarnation, anchor_digest="begin", batches=[step.batch for step in learned], losses=[step.loss for step in learned],
    )  # fmt: skip


def forwards(log: model_pb2.StepLog) -> int:
    return sum(step.forward_only for step in log.steps)


def sequences(asks: Sequence[mev.AskMerge]) -> list[int | None]:
    return [ask.sequence for ask in asks]


async def anchored(root: Path, *, has_data: bool) -> Worker:
    worker = Worker(root, has_data=has_data)
    await worker.go_on(1)
    await worker.stand_on(HELD)
    worker.asks.clear()
    return worker


def test_who_has_learned_nothing_asks_for_the_anchor_with_which_its_next_interval_begins(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = await anchored(tmp_path, has_data=False)
        await worker.go_on(500)
        assert sequences(worker.asks) == [None]
        assert forwards(await worker.log()) == entries.FULL_ENTRIES, "and computes no more until it is answered"
        assert "their interval" in worker.core.view().paused_why
        await worker.stand_on(HELD)
        await worker.go_on(20)
        assert forwards(await worker.log()) == 20
        assert not worker.core.view().paused_why
        worker.rig.books.close()

    run(scenario)


def test_who_has_learned_makes_a_delta_and_its_log_is_one_that_a_statement_may_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contributing, "MAX_AUDITED_BATCHES", NUM_BATCHES)

    async def scenario() -> None:
        worker = await anchored(tmp_path, has_data=True)
        await worker.go_on(500)
        assert sequences(worker.asks) == [None]
        made, log = worker.hand_in(HELD), await worker.log()
        assert [step.batch for step in log.steps if not step.forward_only] == list(made.batches)
        assert forwards(log)
        assert contradiction_in(delta_of(log), log) is None
        worker.rig.books.close()

    run(scenario)


def test_nobody_gathers_more_for_one_delta_than_its_log_holds(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = await anchored(tmp_path, has_data=True)
        worker.next = HELD.highest() or 0
        await worker.go_on(MOST // 2)
        assert not worker.asks
        await worker.go_on(500)
        assert sequences(worker.asks) == [None]
        made, log = worker.hand_in(HELD), await worker.log()
        assert len(made.batches) + forwards(log) == entries.FULL_ENTRIES < MOST, "also where the anchor is long in coming"
        worker.rig.books.close()

    run(scenario)
