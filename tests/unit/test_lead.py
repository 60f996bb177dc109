"""Goal: a source keeps to its lead, goes on to the widest one where a hole holds the floor, and is back at its lead once the floor came up again."""

from __future__ import annotations

from dcnr.ids import ReplicaId, VNodeId
from dcnr.intervals import IntervalSet
from vnode.lead import LATE_S, Lead
from vnode.replica_config import ReplicaConfig

REST = IntervalSet.span(100, 1000)
"""What it has still to learn."""


def lead(widest: int = 200) -> Lead:
    """At a floor of 0 and a lead of 100, with nothing in reach."""
    config = ReplicaConfig(
        vnode=VNodeId("a"), replica=ReplicaId("a.0"), incarnation=1, num_inputs=1, input_edges=frozenset({0}), num_batches=1000,
        spool_batches=500, lead_batches=100,
    )  # fmt: skip
    source = Lead(config, 0.0)
    source.plan(100, widest)
    return source


def test_a_floor_that_stands_still_holds_a_source_no_longer() -> None:
    source = lead()
    assert not source.look(LATE_S / 2, 0, REST)
    assert source.end(0) == 100
    assert source.look(LATE_S, 0, REST)
    assert source.end(0) == 200
    assert not source.look(2 * LATE_S, 0, IntervalSet.span(200, 1000))
    assert source.end(30) == 200
    assert source.end(150) == 250


def test_who_has_something_to_do_keeps_to_the_lead() -> None:
    source = lead()
    assert not source.look(9.0, 0, IntervalSet.span(50, 1000))
    assert not source.look(9.0, 0, IntervalSet.empty())
    assert source.end(0) == 100


def test_a_floor_that_falls_is_a_hole_at_once() -> None:
    source = lead()
    source.look(0.01, 60, IntervalSet.span(160, 1000))
    assert source.look(0.02, 20, IntervalSet.span(160, 1000))
    assert source.end(20) == 220


def test_a_floor_that_always_rises_slowly_is_no_sign_of_anything() -> None:
    source = lead()
    for step in range(1, 30):
        assert not source.look(2.0 * step, step, IntervalSet.span(100 + step, 1000)) or step < 5
    assert not source.look(2.0 * 29 + 5 * LATE_S, 29, IntervalSet.span(source.end(29), 1000))


def test_no_plan_widens_it_beyond_its_own_spool_or_below_its_lead() -> None:
    source = lead(widest=0)
    assert not source.look(LATE_S, 0, REST)
    source.plan(100, 10_000)
    assert source.look(2 * LATE_S, 0, REST)
    assert source.end(0) == 500
