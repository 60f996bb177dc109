"""Replica cores that share a VNode, at the points where their tests begin."""

from __future__ import annotations

from typing import Any, TypeVar

from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, split
from vnode import events as ev
from vnode import merge_events as mev
from vnode.core import ReplicaCore
from vnode.events import Instruction
from vnode.replica_config import ReplicaConfig
from vnode.vocabulary import TRAIN_LANE, Peer, Role, Verdict

PRIMARY, ME, THIRD = (ReplicaId(f"here.{number}") for number in range(3))
SHARES = (Share(PRIMARY, 1.0), Share(ME, 1.0), Share(THIRD, 0.0))
NUM_BATCHES = 24
OWNED = split(SHARES, NUM_BATCHES, 2)
MINE, THEIRS = OWNED[ME], OWNED[PRIMARY]
NONE = IntervalSet.empty()
T = TypeVar("T")


def config(replica: ReplicaId, role: Role, **changes: Any) -> ReplicaConfig:
    values: dict[str, Any] = {
        "vnode": VNodeId("here"), "replica": replica, "incarnation": 1, "num_inputs": 1, "input_edges": frozenset({0}),
        "num_batches": NUM_BATCHES, "spool_batches": 8, "window_batches": 4, "lead_batches": 100, "unit_batches": 2, "merge_every": 3,
        "eval_batches": {"validation": 2, "test": 2}, "role": role, "checkpoint_steps": 1000, "checkpoint_s": 50.0,
    }  # fmt: skip
    return ReplicaConfig(**(values | changes))


def of(kind: type[T], instructions: list[Instruction]) -> list[T]:
    return [instruction for instruction in instructions if isinstance(instruction, kind)]


def plan(role: Role, now_s: float = 0.0, primary: ReplicaId = PRIMARY, shares: tuple[Share, ...] = SHARES) -> ev.PlanChanged:
    return ev.PlanChanged(now_s, {}, frozenset(), 100, shares, role, primary)


def anchored(lineage: IntervalSet = NONE, **changes: Any) -> ReplicaCore:
    """A contributor that has the primary's anchor."""
    core = ReplicaCore(config(ME, Role.CONTRIBUTOR, **changes), NONE, 0.0)
    (ask,) = of(mev.AskMerge, core.handle(plan(Role.CONTRIBUTOR)))
    assert ask.sequence is None
    answer(core, ask, lineage)
    return core


def arrived(
    core: ReplicaCore, ask: mev.AskMerge, lineage: IntervalSet, now_s: float = 0.0, incarnation: int = 1
) -> list[Instruction]:
    """What follows when the anchor that was asked for is there."""
    return core.handle(mev.AnchorArrived(now_s, ask.ask, Peer(ask.primary, incarnation), lineage, "anchor"))


def answer(
    core: ReplicaCore, ask: mev.AskMerge, lineage: IntervalSet, now_s: float = 0.0, incarnation: int = 1
) -> tuple[mev.Rebase, list[Instruction]]:
    (rebase,) = of(mev.Rebase, arrived(core, ask, lineage, now_s, incarnation))
    return rebase, core.handle(mev.Rebased(now_s))


def judged(core: ReplicaCore, ask: mev.AskMerge, verdict: Verdict, incarnation: int = 1) -> list[Instruction]:
    """What follows from the verdict on its delta."""
    return core.handle(mev.DeltaAnswered(0.0, ask.ask, Peer(ask.primary, incarnation), verdict))


def made(core: ReplicaCore, ask: mev.AskMerge, lineage: IntervalSet, now_s: float = 0.0) -> tuple[mev.MakeDelta, list[Instruction]]:
    """A delta is measured against the anchor that was asked for."""
    (make,) = of(mev.MakeDelta, arrived(core, ask, lineage, now_s))
    return make, core.handle(mev.DeltaMade(now_s, make.sequence, make.batches))


def learn(core: ReplicaCore, batch: int, now_s: float = 0.0) -> list[Instruction]:
    assert [item.batch for item in of(ev.Learn, core.handle(ev.FrameArrived(now_s, 0, TRAIN_LANE, batch, "x")))] == [batch]
    return core.handle(ev.Learned(now_s, batch, 1.0, 0.1))


def with_delta(**changes: Any) -> tuple[ReplicaCore, mev.AskMerge, IntervalSet]:
    """A contributor whose first delta is on its way."""
    core = anchored(**changes)
    batches = list(MINE)[:3]
    for batch in batches:
        out = learn(core, batch)
    (ask,) = of(mev.AskMerge, out)
    assert ask.sequence is None
    make, out = made(core, ask, NONE)
    (ask,) = of(mev.AskMerge, out)
    return core, ask, make.batches


def primary(lineage: IntervalSet = NONE, **changes: Any) -> ReplicaCore:
    core = ReplicaCore(config(PRIMARY, Role.PRIMARY, **changes), lineage, 0.0)
    core.handle(plan(Role.PRIMARY))
    return core
