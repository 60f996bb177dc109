"""Goal: whatever way takes over, the connections that it needs are named beforehand, of a bounded number; and only for ways that are asked again."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from test_routing import FORK, LINE, at, table

from orchestrator.infer_streams import SAID_S
from orchestrator.routing import Avoid, Load, Table, Way, find_way
from orchestrator.spares import AGAIN_S, ASKED_S, CHANGED_S, MAX_PER_STAGE, Spares, onward
from pnode.infer_ways import IDLE_S

TABLES = st.tuples(
    st.sampled_from([LINE, FORK]),
    st.lists(st.sets(st.sampled_from("pqrstuv"), min_size=1, max_size=MAX_PER_STAGE), min_size=4, max_size=4),
).map(
    lambda drawn: table(
        drawn[0], "m", *(at(pnode, one.id) for one, places in zip(drawn[0], drawn[1], strict=False) for pnode in places)
    )
)
"""With as many PNodes per stage as are kept ready at most."""


def way_of(one: Table, seed: int, avoid: Avoid | None = None) -> Way:
    way = find_way([one], "", random.Random(seed), Load(), avoid)
    assert way is not None
    return way


@given(TABLES, st.integers(0, 9), st.sets(st.sampled_from("pqrstuv"), max_size=3))
def test_the_way_that_takes_over_needs_no_other_connection(one: Table, seed: int, gone: set[str]) -> None:
    ready = onward(way_of(one, seed), Load())
    other = find_way([one], "", random.Random(seed + 1), Load(), Avoid(banned=gone))
    for before, after in pairwise(other.hops if other is not None and not other.missing else ()):
        assert before.pnode_id in ready
        assert after.pnode_id == before.pnode_id or after.pnode_id in ready[before.pnode_id]


def test_of_many_a_few_are_ready_those_of_the_way_among_them() -> None:
    many = table(LINE, "m", *(at(f"{pnode}{one.id}", one.id) for pnode in "pqrstuv" for one in LINE))
    for seed in range(10):
        way = way_of(many, seed)
        ready = onward(way, Load())
        assert len(ready) == MAX_PER_STAGE * len(LINE)
        assert all(len(others) == (0 if name.endswith("c") else MAX_PER_STAGE) for name, others in ready.items())
        assert all(after.pnode_id in ready[before.pnode_id] for before, after in pairwise(way.hops))


def test_the_quickest_are_ready_and_who_is_stays_so() -> None:
    many = table(LINE, "m", *(at(f"{pnode}{one.id}", one.id) for pnode in "pqrstuv" for one in LINE))
    way = way_of(many, 1)
    spare = [next(f"{pnode}{hop.vnode}" for pnode in "vut" if f"{pnode}{hop.vnode}" != hop.pnode_id) for hop in way.hops]
    near = onward(way, Load(dict.fromkeys(spare, 0.001)))
    assert set(spare) < set(near)
    assert set(onward(way, Load(), set(near))) == set(near), "else connections would come and go with every measurement"


class Moved:
    """A clock that stands where the test puts it."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s


def test_only_who_asks_again_has_connections_opened_and_they_stay() -> None:
    two = table(LINE, "m", *(at(pnode, one.id) for pnode in "pq" for one in LINE))
    three = table(LINE, "m", *(at(pnode, one.id) for pnode in "pqr" for one in LINE))
    clock = Moved()
    spares = Spares(clock)

    def due(at_s: float, one: Table = two) -> bool:
        clock.now_s = at_s
        way = way_of(one, 1)
        plan = spares.due("m", way, Load())
        assert not plan or spares.ready("m", way.exit) == set(plan)
        return bool(plan)

    assert not due(0.0)
    assert due(1.0)
    assert not due(1.5)
    assert due(1.0 + CHANGED_S, three), "who computes has changed"
    assert not due(1.5 + CHANGED_S, three)
    assert not due(1.0 + 2 * CHANGED_S, three)
    assert not due(1.5 + 2 * CHANGED_S, two), "looked at half a second ago"
    assert due(1.0 + CHANGED_S + AGAIN_S, three), "else nobody would keep them open"
    assert not due(10.0 + ASKED_S + AGAIN_S, three), "nobody asked for long"
    assert due(11.0 + ASKED_S + AGAIN_S, three)
    assert SAID_S < AGAIN_S < IDLE_S
