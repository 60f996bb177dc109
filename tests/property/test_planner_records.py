"""Goal: good records are preferred for a new seat, a machine that was never measured is taken for what its class takes, and no record moves anybody."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_rig import NODES, POLICY, STAGES, down, node, of, request, stage

from orchestrator.columns import Columns
from orchestrator.costs import StageCost, predicted_step_s
from orchestrator.loads import Load
from orchestrator.offers import ExpectedPace, NodeOffer, PlanRequest, TrackRecord
from orchestrator.planner import check_plan, make_plan

TRACKS = st.builds(
    TrackRecord,
    st.integers(0, 10).map(lambda tenths: tenths / 10),
    st.integers(0, 20).map(lambda steps: 30.0 * steps),
    st.sampled_from([0.2, 0.8, 1.0, 1.25, 5.0]),
    st.booleans(),
)
CLASSES = st.sampled_from(["", "cpu/old", "cpu/new"])


def with_records(data: st.DataObject, nodes: list[NodeOffer]) -> list[NodeOffer]:
    return [replace(item, track=data.draw(TRACKS), device_class=data.draw(CLASSES)) for item in nodes]


@given(STAGES, NODES, st.data())
@settings(max_examples=100)
def test_no_record_moves_what_is_seated(stages: list[StageCost], nodes: list[NodeOffer], data: st.DataObject) -> None:
    """Whatever the history comes to say, what stays without it stays with it, in the same role, and nobody leaves for it. After a loss it decides who gets the
    new seats, and with that what else finds room.
    """
    first = make_plan(request(stages, nodes), POLICY)
    since_s = data.draw(st.sampled_from([1.0, 6.0, 1e9]))
    later = down(nodes, *data.draw(st.lists(st.sampled_from([item.node_id for item in nodes]), max_size=2))) if nodes else nodes
    blind = make_plan(request(stages, later, first, since_s=since_s), POLICY)
    seen = make_plan(request(stages, with_records(data, later), first, since_s=since_s), POLICY)
    before = {item.replica for item in first.assignments}

    def stay(plan: object) -> set[tuple[str, str]]:
        return {(item.replica, item.pnode_id) for item in plan.assignments if item.replica in before}  # type: ignore[attr-defined]

    if later == nodes:
        assert stay(seen) == stay(blind)
        assert sorted(seen.waiting) == sorted(blind.waiting)
    check_plan(seen, stages)


@given(STAGES, NODES, st.data())
@settings(max_examples=40)
def test_equal_requests_with_records_get_equal_plans(stages: list[StageCost], nodes: list[NodeOffer], data: st.DataObject) -> None:
    asked = request(stages, with_records(data, nodes))
    assert make_plan(asked, POLICY) == make_plan(replace(asked, nodes=tuple(reversed(asked.nodes))), POLICY)


def test_of_equals_the_one_with_the_better_record_gets_the_seat() -> None:
    for good in range(4):
        nodes = [node(index, track=TrackRecord(0.9 if index == good else 0.4)) for index in range(4)]
        (seat,) = of(make_plan(request([stage(0)], nodes), POLICY), "v0")
        assert seat.pnode_id == nodes[good].node_id
        assert "score about 90" in seat.reason


def test_who_provisions_slowly_is_asked_later() -> None:
    nodes = [node(0, track=TrackRecord(1.0, provision_s=300.0)), node(1, track=TrackRecord(1.0))]
    (seat,) = of(make_plan(request([stage(0)], nodes), POLICY), "v0")
    assert seat.pnode_id == nodes[1].node_id


def test_a_much_faster_machine_outweighs_any_record() -> None:
    nodes = [node(0, gflops=50.0), node(1, gflops=10.0, track=TrackRecord(1.0))]
    (seat,) = of(make_plan(request([stage(0)], nodes), POLICY), "v0")
    assert seat.pnode_id == nodes[0].node_id


def test_a_machine_that_was_never_measured_is_taken_for_what_its_class_takes() -> None:
    """Both measured the same FLOP/s, but machines of the first one's class take six times as long for this component."""
    nodes = [node(0, device_class="cpu/old"), node(1, device_class="cpu/new")]
    (seat,) = of(make_plan(request([stage(0)], nodes), POLICY), "v0")
    assert seat.pnode_id == nodes[1].node_id
    turned = [replace(nodes[0], device_class="cpu/new"), replace(nodes[1], device_class="cpu/old")]
    (seat,) = of(make_plan(request([stage(0)], turned), POLICY), "v0")
    assert seat.pnode_id == nodes[0].node_id


def test_how_slow_a_machine_was_on_other_stages_counts_once() -> None:
    """Whoever was timed is taken for its pace times the median of its class, whatever its record; who never was, for more the less is known of it."""
    tracks = [
        TrackRecord(0.0, pace=1.25, is_timed=True),
        TrackRecord(1.0, pace=1.25, is_timed=True),
        TrackRecord(0.0),
        TrackRecord(1.0),
    ]
    offers = [node(index, track=track, device_class="x") for index, track in enumerate(tracks)]
    columns = Columns([Load(offer, 1.0) for offer in offers], 64)
    cost = stage(0)
    predicted_s = predicted_step_s(cost, offers[0].gflops)
    expected = {(cost.component, "x"): ExpectedPace(*(part * predicted_s / (cost.step_flops * 1e-9) for part in (1.0, 2.0)))}
    assert (columns.expected_s(cost, expected) / predicted_s).tolist() == pytest.approx([1.25, 1.25, 2.0, 1.0])


def test_what_a_node_measures_itself_counts_more_than_its_class() -> None:
    nodes = [node(0, device_class="cpu/old", measured={"v0": 0.02}), node(1, device_class="cpu/new")]
    (seat,) = of(make_plan(request([stage(0)], nodes), POLICY), "v0")
    assert seat.pnode_id == nodes[0].node_id


def test_a_class_counts_within_bounds_only() -> None:
    """Whatever a class is said to take, it is at most eight times slower or faster than what the machine itself measured."""
    asked: PlanRequest = request([stage(0)], [node(0, gflops=10.0, device_class="x"), node(1, gflops=100.0)])
    liar = replace(asked, expected={("Linear", "x"): ExpectedPace(1e-12, 1e-12)})
    (seat,) = of(make_plan(liar, POLICY), "v0")
    assert seat.pnode_id == node(1).node_id
