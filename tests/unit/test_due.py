"""Goal: by its job's tempo a source begins no batch before it is due, is woken exactly then, and waits with nothing else; nobody behind it waits at all."""

from __future__ import annotations

from typing import Any

import pytest

from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.tempo import Tempo
from dcnr.units import Share
from tests.unit.test_replica_core import BEFORE, EMPTY, NEXT, ask, config, give, learn, of, span
from vnode import events as ev
from vnode.core import ReplicaCore
from vnode.due import NetworkTime, WakeAt
from vnode.events import Instruction
from vnode.intake import LATE_S
from vnode.vocabulary import TRAIN_LANE, Lane, Peer

AHEAD_S = 1_000_000.0
"""Network time minus the clock of events."""
TEMPO = Tempo(2.0, AHEAD_S + 10.0, 0)
"""Batch 0 is due at 10 s by the clock of events, each further one half a second later."""


def planned(core: ReplicaCore, tempo: Tempo | None, now_s: float = 0.0, *owners: str) -> list[Instruction]:
    asked = tuple(Share(name, 1.0) for name in owners) or (Share(BEFORE.replica, 1.0),)  # type: ignore[arg-type]
    return core.handle(ev.PlanChanged(now_s, {0: asked}, frozenset({NEXT}), 100, tempo=tempo))


def paced(tempo: Tempo | None = TEMPO, lineage: IntervalSet = EMPTY, **changes: Any) -> ReplicaCore:
    core = ReplicaCore(config(**changes), lineage, 0.0)
    core.handle(NetworkTime(0.0, AHEAD_S))
    planned(core, tempo)
    return core


def test_a_source_reads_ahead_begins_when_a_batch_is_due_and_is_woken_then() -> None:
    core = paced()
    waits = give(core, 0, 1.0)
    assert (of(ev.Learn, waits), of(WakeAt, waits)) == ([], [WakeAt(10.0)])
    assert not give(core, 1, 2.0), "nothing new to say: it is woken for batch 0"
    view = core.view()
    assert "batch 0 is not due yet" in view.paused_why
    assert view.held_back_by is None
    assert not of(ev.Learn, core.handle(ev.Tick(9.999)))
    assert [item.batch for item in of(ev.Learn, core.handle(ev.Tick(10.0)))] == [0]
    assert of(WakeAt, core.handle(ev.Learned(10.1, 0, 1.0, 0.1))) == [WakeAt(10.5)]
    assert [item.batch for item in of(ev.Learn, core.handle(ev.Tick(10.5)))] == [1]
    assert core.view().paused_why == ""


def test_who_fell_behind_catches_up_to_the_schedule_and_no_further() -> None:
    core = paced()
    for batch in range(3):
        learn(core, batch, 11.0)
    assert not of(ev.Learn, give(core, 3, 11.0))
    assert of(ev.Learn, core.handle(ev.Tick(11.5)))


def test_what_is_asked_for_again_and_evaluations_are_not_waited_with() -> None:
    core = paced(lineage=span(0, 2), evaluate_every=2)
    core.handle(ev.LinkUp(1.0, 1, Peer(NEXT, 1)))
    ask(core, span(0, 10), 4, now_s=1.0)
    assert [item.batch for item in of(ev.Forward, give(core, 0, now_s=1.0))] == [0]
    core.handle(ev.Forwarded(1.0, TRAIN_LANE, 0, 0.1))
    validation = Lane("validation", 1)
    assert [item.lane for item in of(ev.Forward, give(core, 0, 1.0, validation))] == [validation]


def test_what_another_replica_is_to_learn_is_computed_for_nobody_before_it_is_due() -> None:
    """Who knows a newer plan asks for the other one's batches of all its window: what came too soon would be lacking when it is due."""
    core = paced()
    core.handle(
        ev.PlanChanged(
            0.0, {}, frozenset({NEXT}), 100, (Share(ReplicaId("here.1"), 1.0), Share(ReplicaId("here.0"), 0.0)), tempo=TEMPO
        )
    )
    core.handle(ev.LinkUp(1.0, 1, Peer(NEXT, 1)))
    ask(core, span(0, 10), 4, now_s=1.0)
    assert of(WakeAt, give(core, 0, now_s=1.0)) == [WakeAt(10.0)]
    assert [item.batch for item in of(ev.Forward, core.handle(ev.Tick(10.0)))] == [0]


def test_nobody_behind_a_source_waits() -> None:
    core = paced(input_edges=frozenset())
    assert of(ev.Learn, give(core, 0, 1.0))


def test_the_schedule_is_the_networks_and_follows_it() -> None:
    core = ReplicaCore(config(), EMPTY, 0.0)
    planned(core, TEMPO)
    assert not [item for item in give(core, 0, 50.0) if isinstance(item, ev.Learn | WakeAt)], "who does not know the time waits"
    assert of(WakeAt, core.handle(NetworkTime(50.0, AHEAD_S - 60.0))) == [WakeAt(70.0)]
    assert of(ev.Learn, core.handle(NetworkTime(51.0, AHEAD_S - 40.0))), "the machine slept, and its own clock with it"


def test_a_newer_plan_may_say_otherwise() -> None:
    core = paced()
    give(core, 0, 1.0)
    assert of(WakeAt, planned(core, Tempo(2.0, AHEAD_S + 20.0, 0), 2.0)) == [WakeAt(20.0)]
    assert of(ev.Learn, planned(core, None, 3.0))


def late(tempo: Tempo | None) -> IntervalSet:
    """What counts as late at a VNode behind, when it has had nothing to do for long, a second after batch 0 was due."""
    core = ReplicaCore(config(input_edges=frozenset()), EMPTY, 11.0)
    core.handle(NetworkTime(11.0, AHEAD_S))
    planned(core, tempo, 11.0, "before.0", "before.1")
    core.handle(ev.Tick(11.0))
    core.handle(ev.Tick(11.1 + LATE_S))
    return core._intake.late


def test_nobody_is_late_with_what_is_not_due() -> None:
    assert late(None) == span(0, 4)
    assert late(TEMPO) == span(0, 3)


@pytest.mark.parametrize("tempo", [None, TEMPO])
def test_only_the_tempo_makes_a_need_wait_by_name(tempo: Tempo | None) -> None:
    core = paced(tempo)
    whys = {need.why for need in core.view().needs}
    assert whys == ({"being read from the data set"} if tempo is None else {"not due yet by the job's tempo"})
