"""Goal: the only copy of a VNode moves by handing over first: another has its place only when nothing of it can be lost, and no move begins twice."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from planner_rig import ACTIVE, NODES, OFFLINE, POLICY, PRIMARY, STAGES, down, hosted, moved, node, of, request, stage, uneven

from dcnr.v1 import model_pb2
from orchestrator.costs import StageCost
from orchestrator.moving import AGAIN, NEWS_S
from orchestrator.offers import NodeOffer
from orchestrator.planner import make_plan, same_placement
from orchestrator.planning import plan_changes, plan_reason
from pnode.handing import HAND_OVER_S

NOBODY: frozenset[str] = frozenset()
TWO, PAIR = [stage(0, 1), stage(1, 1)], [node(0), node(1)]


def moving(plan: model_pb2.Plan) -> dict[str, str]:
    """By replica that hands over: to which node."""
    return {item.replica: item.hands_over_to for item in plan.assignments if item.hands_over_to}


def begun() -> model_pb2.Plan:
    """Two VNodes on one machine, and another one has come: one of them hands over."""
    plan = make_plan(request(TWO, PAIR[:1]), POLICY)
    return make_plan(request(TWO, PAIR, plan, since_s=6.0), POLICY)


def test_a_replica_that_moves_hands_over_before_another_takes_its_place() -> None:
    before = make_plan(request(TWO, PAIR[:1]), POLICY)
    plan = begun()
    [(replica, target)] = moving(plan).items()
    assert target == node(1).node_id
    assert {item.replica for item in plan.assignments} == {item.replica for item in before.assignments}, "nobody leaves"
    assert plan.next_replica == before.next_replica
    assert "hands over" in next(item.reason for item in plan.assignments if item.replica == replica)
    assert [change.kind for change in plan_changes(before, plan)] == ["replica_hands_over"]
    assert "hands over" in plan_reason(before, plan)
    for since_s in (0.5, 6.0, 15.0, POLICY.hand_over_s + HAND_OVER_S):
        waits = make_plan(request(TWO, PAIR, plan, since_s=since_s, handed_over=NOBODY), POLICY)
        assert same_placement(plan, waits), "nothing else begins meanwhile"
    after = make_plan(request(TWO, PAIR, plan, since_s=0.5), POLICY)
    assert not moving(after)
    [new] = [item for item in after.assignments if item.replica not in {one.replica for one in plan.assignments}]
    assert (new.pnode_id, new.role, new.vnode) == (target, PRIMARY, replica.rpartition(".")[0])
    assert f"{node(0).node_id[:8]}: has handed over" in new.reason
    [change] = plan_changes(plan, after)
    assert (change.kind, change.facts["from_replica"], change.facts["pnode"]) == ("replica_relocated", replica, target)


def test_a_move_whose_new_place_goes_away_is_called_off_and_may_begin_again() -> None:
    plan = begun()
    [replica] = moving(plan)
    stays = make_plan(request(TWO, down(PAIR, node(1).node_id), plan, since_s=1.0, handed_over=NOBODY), POLICY)
    assert not moving(stays)
    assert {item.replica for item in stays.assignments} == {item.replica for item in plan.assignments}
    assert "its new place is gone" in next(item.reason for item in stays.assignments if item.replica == replica)
    assert [change.kind for change in plan_changes(plan, stays)] == ["replica_kept"]
    again = make_plan(request(TWO, PAIR, stays, since_s=6.0), POLICY)
    assert len(moving(again)) == 1


def test_whoever_has_handed_over_when_its_new_place_goes_away_is_followed_all_the_same() -> None:
    """It learns nothing more: somebody has to begin with what it left, and it may be on the same machine."""
    plan = begun()
    [replica] = moving(plan)
    after = make_plan(request(TWO, down(PAIR, node(1).node_id), plan, since_s=1.0), POLICY)
    assert set(hosted(after)) == {node(0).node_id}
    assert replica not in {item.replica for item in after.assignments}
    assert not after.waiting


def test_what_was_to_move_is_placed_as_after_any_loss_where_its_machine_dies() -> None:
    plan = begun()
    [replica] = moving(plan)
    after = make_plan(request(TWO, down(PAIR, node(0).node_id), plan, since_s=1.0, handed_over=NOBODY), POLICY)
    assert set(hosted(after)) == {node(1).node_id}
    assert not moving(after)
    assert not {replica} & {item.replica for item in after.assignments}


def test_what_is_waited_for_hands_over_to_nobody() -> None:
    """Its machine is away and nobody else has room: whoever looks for moves that have come to an end would look, and plan anew, without a pause."""
    plan = begun()
    nodes = [replace(PAIR[0], state=OFFLINE, reason="silent", may_return=True), replace(PAIR[1], memory_bytes=0)]
    waits = make_plan(request(TWO, nodes, plan, since_s=1.0), POLICY)
    assert sorted(waits.waiting) == ["v0", "v1"]
    assert set(hosted(waits)) == {node(0).node_id}
    assert not moving(waits)


def in_vain() -> model_pb2.Plan:
    """Neither of the two could hand over in time."""
    plan = begun()
    for replica in sorted(item.replica for item in plan.assignments):
        plan = make_plan(request(TWO, PAIR, plan, since_s=POLICY.hand_over_s + NEWS_S + 1.0, handed_over=NOBODY), POLICY)
        assert replica not in moving(plan)
        assert next(item.stays for item in plan.assignments if item.replica == replica)
    return plan


def test_a_replica_that_cannot_hand_over_in_time_learns_on_and_is_moved_again_only_after_a_while() -> None:
    stays, while_s = in_vain(), AGAIN * POLICY.hand_over_s
    for since_s, now_s in ((6.0, 0.0), (1e9, 0.0), (6.0, while_s)):
        assert not moving(make_plan(request(TWO, PAIR, stays, since_s=since_s, now_s=now_s), POLICY))
    again = make_plan(request(TWO, PAIR, stays, since_s=6.0, now_s=while_s + 1.0), POLICY)
    [replica] = moving(again)  # what kept it then, a store that was away say, is over
    assert not next(item.stays for item in again.assignments if item.replica == replica)


def test_a_move_that_comes_to_nothing_ends_where_one_plan_follows_the_other() -> None:
    """Other machines come and go so often that no plan is old: what hands over keeps everything else waiting meanwhile."""
    plan = begun()
    [replica] = moving(plan)
    patience_s = POLICY.hand_over_s + NEWS_S
    waits = make_plan(request(TWO, [*PAIR, node(2)], plan, since_s=1.0, handed_over=NOBODY, now_s=patience_s), POLICY)
    assert replica in moving(waits)
    after = make_plan(request(TWO, [*PAIR, node(2)], waits, since_s=1.0, handed_over=NOBODY, now_s=patience_s + 1.0), POLICY)
    assert replica not in moving(after)


def test_a_trial_that_comes_to_nothing_changes_nothing() -> None:
    """A replica that may move again, but has nowhere better to go, is as it was: no plan is made for that."""
    stays, alone = in_vain(), [PAIR[0], replace(PAIR[1], memory_bytes=0)]
    assert same_placement(stays, make_plan(request(TWO, alone, stays, since_s=1e9, now_s=1e6), POLICY))


def test_a_large_state_on_a_slow_line_gets_the_time_that_it_takes() -> None:
    stages, nodes = [replace(one, state_bytes=30_000_000) for one in TWO], [replace(one, uplink_mbit=16.0) for one in PAIR]
    plan = make_plan(request(stages, nodes, make_plan(request(stages, nodes[:1]), POLICY), since_s=6.0), POLICY)
    assert [item.hand_over_s for item in plan.assignments if item.hands_over_to] == [POLICY.hand_over_s + 2 * 60.0]


def test_whoever_holds_the_others_up_hands_over_a_minute_after_the_last_plan() -> None:
    """No machine is idle: the one on the slowest moves, if it is at work."""
    stages = [stage(0, 1, 10.0), stage(1, 1, 10.0), stage(2, 1, 5.0)]
    plan = make_plan(request(stages, PAIR), POLICY)
    host = of(plan, "v2")[0].pnode_id
    other = next(item for item in plan.assignments if item.pnode_id != host).vnode
    slow = [
        replace(one, measured={name: 4.0 for name in ("v0", "v1", "v2") if name != other} if one.node_id == host else {other: 0.2})
        for one in PAIR
    ]
    assert same_placement(plan, make_plan(request(stages, slow, plan, since_s=59.0), POLICY))
    assert same_placement(plan, make_plan(request(stages, slow, plan, live={}, since_s=61.0), POLICY))
    assert len(moving(make_plan(request(stages, slow, plan, since_s=61.0), POLICY))) == 1


@given(STAGES, NODES, st.data())
@settings(max_examples=20)
def test_moves_end_and_each_makes_work_more_even(stages: list[StageCost], nodes: list[NodeOffer], data: st.DataObject) -> None:
    """However long handing over takes, and whether or not it can be done: each VNode has its one primary all the time, and it comes to rest."""
    plan = make_plan(request(stages, nodes), POLICY)
    for _ in range(2 * len(stages) + 8):
        in_time = data.draw(st.booleans())
        since_s = data.draw(st.sampled_from([6.0, 61.0])) if not moving(plan) or in_time else POLICY.hand_over_s * 100
        after = make_plan(request(stages, nodes, plan, since_s=since_s, handed_over=None if in_time else NOBODY), POLICY)
        for cost in stages:
            assert len(of(after, cost.vnode)) == (cost.vnode not in after.waiting)
        assert not (moving(plan) and moving(after)), "all end together, where nothing else happens"
        if in_time and moving(plan):
            assert uneven(after) < uneven(plan)
            kept = {item.replica for item in after.assignments}
            assert {item.replica for item in plan.assignments} - kept == set(moving(plan))
        plan = after
    still = {item.replica for item in make_plan(request(stages, nodes, plan, since_s=1e9), POLICY).assignments}
    assert still == {item.replica for item in moved(stages, nodes, plan).assignments} or nodes_are_lost(nodes)


def nodes_are_lost(nodes: list[NodeOffer]) -> bool:
    return any(item.state != ACTIVE for item in nodes)


def test_several_move_at_once_and_each_is_followed_when_it_has_handed_over() -> None:
    stages = [stage(index, 1) for index in range(10)]
    nodes = [node(index, memory_mib=4000) for index in range(5)]
    plan = make_plan(request(stages, nodes, make_plan(request(stages, nodes[:1]), POLICY), since_s=6.0), POLICY)
    left = dict(sorted(moving(plan).items()))
    assert len(left) > 1
    while left:
        replica, target = left.popitem()
        plan = make_plan(request(stages, nodes, plan, since_s=0.5, handed_over=frozenset({replica})), POLICY)
        assert moving(plan) == left
        assert of(plan, replica.rpartition(".")[0])[0].pnode_id == target
