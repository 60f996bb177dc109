"""Goal: exchanges go to few nodes for long, in turn to everybody, at once to those that are tried again, and news reaches everybody as soon as before."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from dcnr.ids import NodeId
from dcnr.v1 import identity_pb2, membership_pb2
from membership.circle import CIRCLE, TURN_S, Circle
from trust.records import VerifiedAdvert

ROUND_S = 1.5


def nodes(count: int) -> list[VerifiedAdvert]:
    """Of which only the ids are looked at."""
    return [
        VerifiedAdvert(membership_pb2.Advert(), NodeId(f"{number:040x}"), None, identity_pb2.Envelope()) for number in range(count)
    ]


def ids(adverts: Sequence[VerifiedAdvert]) -> set[str]:
    return {advert.node_id for advert in adverts}


def test_of_many_nodes_few_are_spoken_to_at_a_time_and_everybody_in_turn() -> None:
    rng, circle, everybody = random.Random(1), Circle(), nodes(40)
    rounds = [ids(circle.partners(rng, everybody, (), 2, number * ROUND_S)) for number in range(8_000)]
    a_turn = round(TURN_S / ROUND_S)
    for begin in range(0, len(rounds), a_turn):
        assert len(set().union(*rounds[begin : begin + a_turn])) <= CIRCLE + 2, "a turn brings one other node"
    assert all(len(one) == 2 for one in rounds)
    assert set().union(*rounds) == ids(everybody)


def test_who_is_not_willing_any_more_is_not_asked_and_another_comes_in_its_place() -> None:
    rng, circle, everybody = random.Random(2), Circle(), nodes(CIRCLE + 1)
    before = ids(circle.partners(rng, everybody, (), CIRCLE, 0.0))
    gone = next(one for one in everybody if one.node_id in before)
    after = ids(circle.partners(rng, [one for one in everybody if one is not gone], (), CIRCLE, 1.0))
    assert len(after) == CIRCLE
    assert gone.node_id not in after


def test_nobody_stays_for_longer_because_others_fail() -> None:
    """Those that are drawn later are asked, fail and go without end: the first eight never fail, and each makes room in its time."""
    rng, circle, everybody = random.Random(5), Circle(), nodes(400)
    first = ids(circle.partners(rng, everybody, (), CIRCLE, 0.0))
    stayed, failed = set(first), set[str]()
    for number in range(1, round(CIRCLE * TURN_S / ROUND_S) + 1):
        willing = [one for one in everybody if one.node_id not in failed]
        stayed &= ids(circle.partners(rng, willing, (), CIRCLE, number * ROUND_S))
        failed |= ids(circle.partners(rng, willing, (), 2, number * ROUND_S)) - first
    assert not stayed


def test_who_did_not_answer_and_is_due_again_is_asked_first_wherever_it_is() -> None:
    rng, circle, everybody = random.Random(3), Circle(), nodes(40)
    circle.partners(rng, everybody, (), 2, 0.0)
    for one in everybody:
        chosen = circle.partners(rng, everybody, [one.node_id], 2, 1.0)
        assert chosen[0] is one
        assert len(ids(chosen)) == 2
    assert circle.partners(rng, everybody, ["f" * 40], 1, 1.0)[0].node_id != "f" * 40, "it is not there any more"
    assert circle.partners(rng, [], [everybody[0].node_id], 2, 1.0) == []


def test_news_spreads_over_circles_almost_as_fast_as_over_everybody() -> None:
    """Push and pull with two partners a round: the last one of 200 nodes knows at most two rounds later than if partners were drawn anew."""

    def rounds_of(seed: int, *, anew: bool) -> int:
        rng, everybody = random.Random(seed), nodes(200)
        circles = {one.node_id: Circle() for one in everybody}
        knowing, count = {everybody[0].node_id}, 0
        while len(knowing) < len(everybody):
            count += 1
            before = set(knowing)
            for one in everybody:
                others = [other for other in everybody if other is not one]
                chosen = rng.sample(others, 2) if anew else circles[one.node_id].partners(rng, others, (), 2, count * ROUND_S)
                if one.node_id in before:
                    knowing |= ids(chosen)
                elif ids(chosen) & before:
                    knowing.add(one.node_id)
        return count

    for seed in range(5):
        assert rounds_of(seed, anew=False) <= rounds_of(seed, anew=True) + 2


def test_a_circle_turns_slowly_enough_that_connections_are_worth_keeping() -> None:
    rng, circle, everybody = random.Random(4), Circle(), nodes(300)
    circles = [ids(circle.partners(rng, everybody, (), CIRCLE, number * TURN_S)) for number in range(50)]
    assert all(len(now - before) == 1 for before, now in pairwise(circles))
