"""Goal: of any node, however many there are, it is said VNode by VNode why it hosts none: what stands in the way now, or that it would fit."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from planner_rig import NODES, OFFLINE, POLICY, STAGES, node, request, stage

from dcnr.limits import MIB
from orchestrator.costs import StageCost
from orchestrator.offers import NodeOffer
from orchestrator.planner import make_plan
from orchestrator.why_not import why_not


def test_the_smallest_of_hundreds_is_told_what_it_lacks() -> None:
    """A plan names eight candidates of a VNode at most, the nearest misses."""
    stages = [stage(0, memory_mib=100), stage(1, memory_mib=300)]
    nodes = [node(0, 10.0, 2000), *(node(index, 10.0, 90 - index % 40) for index in range(1, 300))]
    plan = make_plan(request(stages, nodes), POLICY)
    small = nodes[39]
    assert small.node_id not in {row.pnode_id for row in plan.rejections}
    now = replace(request(stages, nodes, plan), allow_moves=False)
    told = {one.vnode: one for one in why_not(now, POLICY, small.node_id)}
    assert set(told) == {"v0", "v1"}
    assert not any(one.fits for one in told.values())
    free = small.memory_bytes // MIB
    assert told["v0"].reason == f"needs 120 MiB of memory, {free} of {free} MiB are free", "and 20 to share it with who has it"
    assert why_not(now, POLICY, nodes[0].node_id) == [], "it hosts all of them"
    assert why_not(now, POLICY, "f" * 40) == [], "nobody knows it"


def test_who_is_away_and_who_would_fit_are_told_apart() -> None:
    stages, nodes = [stage(0)], [node(0, 50.0), node(1), node(2)]
    plan = make_plan(request(stages, nodes), POLICY)
    host = plan.assignments[0].pnode_id
    free, away = [one.node_id for one in nodes if one.node_id != host]
    nodes = [replace(one, state=OFFLINE, reason="silent") if one.node_id == away else one for one in nodes]
    (fits,), (silent,) = (why_not(request(stages, nodes, plan), POLICY, node_id) for node_id in (free, away))
    assert fits.fits
    assert host[:8] in fits.reason
    assert (silent.fits, silent.reason) == (False, "offline: silent")


@given(STAGES, NODES)
def test_every_node_is_told_of_every_vnode_that_it_does_not_host(stages: list[StageCost], nodes: list[NodeOffer]) -> None:
    plan = make_plan(request(stages, nodes), POLICY)
    for offer in nodes:
        told = why_not(request(stages, nodes, plan), POLICY, offer.node_id)
        assert all(one.reason for one in told)
        here = {row.vnode for row in plan.assignments if row.pnode_id == offer.node_id}
        assert {one.vnode for one in told} >= {cost.vnode for cost in stages} - here
