"""Goal: the parts of the replica core keep their bounds and their word under any order of events, also absurd ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from dcnr.units import Share
from vnode import events as ev
from vnode.core import ReplicaCore
from vnode.evaluation import Rounds
from vnode.replica_config import ReplicaConfig
from vnode.spool import Spool
from vnode.vocabulary import TRAIN_LANE, Lane, Peer

NUM_BATCHES = 12
LANES = st.sampled_from([TRAIN_LANE, Lane("validation", 1), Lane("validation", 2), Lane("test")])
BATCHES = st.integers(0, NUM_BATCHES - 1)
SETS = st.builds(lambda lo, length: IntervalSet.span(lo, lo + length), BATCHES, st.integers(0, NUM_BATCHES))
LINKS = st.integers(1, 3)
EDGES = st.integers(0, 1)
SEQUENCES = st.integers(0, 20)
PEERS = st.builds(Peer, st.sampled_from([ReplicaId("next.0"), ReplicaId("other.0")]), st.integers(1, 3))


def config(**changes: Any) -> ReplicaConfig:
    values: dict[str, Any] = {
        "vnode": VNodeId("here"), "replica": ReplicaId("here.0"), "incarnation": 1, "num_inputs": 2, "input_edges": frozenset({1}),
        "num_batches": NUM_BATCHES, "spool_batches": 4, "window_batches": 3, "lead_batches": 6, "checkpoint_steps": 4,
        "eval_batches": {"validation": 2, "test": 3}, "evaluate_every": 3,
    }  # fmt: skip
    return ReplicaConfig(**(values | changes))


AT = st.just(0.0)
HEARD: st.SearchStrategy[ev.Event] = st.one_of(
    st.builds(ev.Tick, AT),
    st.builds(ev.HeadSeen, AT),
    st.builds(ev.EdgeUp, AT, EDGES, PEERS),
    st.builds(ev.EdgeDown, AT, EDGES, st.sampled_from([ReplicaId("next.0"), ReplicaId("other.0")])),
    st.builds(ev.FrameArrived, AT, EDGES, LANES, BATCHES, st.just("tensor")),
    st.builds(ev.InputFailed, AT, st.just(1), LANES, BATCHES),
    st.builds(ev.LinkUp, AT, LINKS, PEERS),
    st.builds(ev.LinkDown, AT, LINKS),
    st.builds(ev.NeedHeard, AT, LINKS, SEQUENCES, LANES, SETS, SETS, SETS),
    st.builds(ev.WindowHeard, AT, LINKS, SEQUENCES, LANES, st.integers(0, 2 * NUM_BATCHES)),
    st.builds(ev.AckHeard, AT, LINKS, SEQUENCES, BATCHES, BATCHES, st.just(VNodeId("next"))),
    st.builds(ev.DurableHeard, AT, LINKS, SETS),
    st.builds(ev.FrameSent, AT, LINKS, LANES, BATCHES),
    st.builds(ev.FrameMissing, AT, LANES, BATCHES),
    st.builds(ev.CheckpointNamed, AT, SETS),
    st.builds(ev.CheckpointLost, AT, st.just("condemned")),
    st.builds(ev.Leave, AT),
    st.builds(
        ev.PlanChanged, AT, st.just({0: (Share(ReplicaId("before.0"), 1.0),)}),
        st.sets(st.sampled_from([ReplicaId("next.0"), ReplicaId("other.0")])).map(frozenset), st.integers(0, 9),
    ),
)  # fmt: skip
"""Anything that may come over the wire or from the shell, except answers to computations."""


def answer(draw: Any, now_s: float, busy: ev.Instruction, lineage: IntervalSet) -> ev.Event:
    if draw(st.booleans()) and draw(st.booleans()):
        lane = busy.lane if isinstance(busy, ev.Forward) else TRAIN_LANE
        return ev.ComputeFailed(now_s, lane, getattr(busy, "batch", 0), "bad luck", fatal=False)
    match busy:
        case ev.Learn():
            return ev.Learned(now_s, busy.batch, 1.0, 0.1)
        case ev.Forward():
            return ev.Forwarded(now_s, busy.lane, busy.batch, 0.1, 1.0, 1, 2)
        case _:
            return ev.SnapshotTaken(now_s, lineage, "digest")


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_events_keep_the_bounds_and_learn_once(data: st.DataObject) -> None:
    core = ReplicaCore(config(is_new_primary=True), IntervalSet.empty(), 0.0)
    busy: ev.Instruction | None = None
    learned: list[int] = []
    kept: set[tuple[Lane, int]] = set()
    now_s = 0.0
    for _ in range(data.draw(st.integers(1, 60))):
        now_s += data.draw(st.sampled_from([0.0, 0.01, 0.5, 3.0]))
        event: ev.Event = replace(data.draw(HEARD), now_s=now_s)
        if busy is not None and data.draw(st.booleans()):
            event = answer(data.draw, now_s, busy, IntervalSet.of(*((batch, batch + 1) for batch in learned)))
            if isinstance(event, ev.Learned):
                learned.append(event.batch)
            if isinstance(event, ev.Learned | ev.Forwarded) and isinstance(busy, ev.Learn | ev.Forward) and busy.keep:
                kept.add((getattr(event, "lane", TRAIN_LANE), event.batch))
            busy = None
        for instruction in core.handle(event):
            if isinstance(instruction, ev.Learn | ev.Forward | ev.TakeSnapshot):
                assert busy is None
                busy = instruction
            elif isinstance(instruction, ev.DropFrames):
                kept -= {(instruction.lane, batch) for batch in instruction.batches}
            elif isinstance(instruction, ev.SendFrame):
                assert (instruction.lane, instruction.batch) in kept
        core.check()
        view = core.view()
        assert list(view.lineage) == sorted(learned)
        assert view.durable_behind - view.lineage == IntervalSet.empty()


@given(st.lists(st.tuples(LANES, BATCHES), max_size=60), SETS, st.sets(st.tuples(LANES, BATCHES), max_size=3))
def test_spool_drops_what_is_asked_for_only_when_all_is(
    frames: list[tuple[Lane, int]], asked: IntervalSet, pinned: set[tuple[Lane, int]]
) -> None:
    spool = Spool(4, 2)
    wanted = dict.fromkeys([TRAIN_LANE], asked)
    for lane, batch in frames:
        before = [(TRAIN_LANE, number) for number in spool.available(TRAIN_LANE)]
        for dropped in spool.put(lane, batch, pinned, wanted):
            (number,) = dropped.batches
            was_here = [*before, (lane, batch)]
            if dropped.lane.is_train and number in asked and (dropped.lane, number) not in pinned:
                free = [frame for frame in was_here if frame not in pinned and frame[0].is_train]
                assert all(frame[1] in asked and frame[1] <= number for frame in free)
        spool.check()


@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=10))
def test_evaluation_counts_each_batch_once_in_any_order(order: list[int], again: list[int]) -> None:
    rounds = Rounds(config(eval_batches={"validation": 6, "test": 0}))
    rounds.open(3, is_final=False)
    lane = Lane("validation", 1)
    for step, batch in enumerate([*order, *again]):
        rounds.count(ev.Forwarded(0.0, lane, batch, 0.1, 0.1 * (batch + 1) / 3, 1, 2), 10 + step)
    (result,) = rounds.evaluations()
    assert result.complete
    assert (result.correct, result.count, result.num_batches, result.step) == (6, 12, 6, 10)
    assert result.sum_loss == math.fsum(0.1 * (batch + 1) / 3 for batch in range(6))
