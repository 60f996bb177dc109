"""Seats keep within what PNodes have free, a VNode goes without one only where nobody has room, two seats are on two PNodes, and nothing moves by itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.seating import MAX_SEATS, OVERLAP_S, STUCK_S, TAKE_S, Host, SeatCost, Served, next_served, seating, seating_kept

COSTS = st.lists(st.integers(1, 9), min_size=1, max_size=8).map(
    lambda sizes: [SeatCost(f"v{number}", size) for number, size in enumerate(sizes)]
)
HOSTS = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(["", "ann", "bob"]), st.integers(0, 3), st.sets(st.integers(0, 9), max_size=4)), max_size=7
).map(
    lambda rows: [
        Host(f"n{number}", free, owner, trained, frozenset(f"v{one}" for one in seats))
        for number, (free, owner, trained, seats) in enumerate(rows)
    ]
)  # fmt: skip


def counts(found: dict[str, tuple[str, ...]]) -> Counter[str]:
    return Counter(vnode for vnodes in found.values() for vnode in vnodes)


def settled(costs: list[SeatCost], hosts: list[Host]) -> dict[str, tuple[str, ...]]:
    """The seating that gives itself: second seats that stood in the way of first ones may go round by round."""
    found = seating(costs, hosts)
    for _ in range(len(costs) * len(hosts) + 1):
        following = seating(costs, [replace(host, seats=frozenset(found.get(host.node_id, ()))) for host in hosts])
        if following == found:
            return found
        assert sum(count > 0 for count in counts(following).values()) >= sum(count > 0 for count in counts(found).values())
        found = following
    raise AssertionError("seats move for ever")


@given(COSTS, HOSTS)
def test_seats_fit_and_nobody_lacks_one_that_has_room_somewhere(costs: list[SeatCost], hosts: list[Host]) -> None:
    found = settled(costs, hosts)
    bytes_of, free_of = {cost.vnode: cost.memory_bytes for cost in costs}, {host.node_id: host.free_bytes for host in hosts}
    count = counts(found)
    assert set(count) <= set(bytes_of)
    assert all(number <= 2 for number in count.values())
    left = {name: free - sum(bytes_of[vnode] for vnode in found.get(name, ())) for name, free in free_of.items()}
    assert all(free >= 0 for free in left.values())
    assert all(len(set(vnodes)) == len(vnodes) <= MAX_SEATS for vnodes in found.values())
    for vnode, size in bytes_of.items():
        if count[vnode] < 2:
            assert not any(free >= size for name, free in left.items() if vnode not in found.get(name, ()))
    assert seating(costs, list(reversed(hosts))) == seating(costs, hosts)
    serving = [replace(host, seats=frozenset(found[host.node_id])) for host in hosts if host.node_id in found]
    assert seating_kept(costs, serving) == (found if all(count[vnode] == 2 for vnode in bytes_of) else None)


@given(COSTS, st.integers(0, 5), st.integers(2, 6))
def test_a_model_that_fits_one_pnode_is_served_whole_by_two(costs: list[SeatCost], trained: int, num_hosts: int) -> None:
    room = sum(cost.memory_bytes for cost in costs)
    found = seating(costs, [Host(f"n{number}", room, "", trained) for number in range(num_hosts)])
    assert len(found) == 2
    assert all(len(vnodes) == len(costs) for vnodes in found.values())


def test_idle_machines_of_different_owners_come_first() -> None:
    costs = [SeatCost("a", 1), SeatCost("b", 1)]
    hosts = [Host("n1", 2, "ann", 3), Host("n2", 2, "ann"), Host("n3", 2, "ann"), Host("n4", 2, "bob")]
    assert set(seating(costs, hosts)) == {"n2", "n4"}


def test_a_second_seat_gives_way_to_a_first_one() -> None:
    costs = [SeatCost("a", 2), SeatCost("b", 2)]
    hosts = [Host("n1", 2, seats=frozenset("a")), Host("n2", 2, seats=frozenset("a"))]
    assert counts(seating(costs, hosts)) == {"a": 1, "b": 1}


def test_what_serves_goes_on_serving_and_only_what_is_lost_is_seated_anew() -> None:
    costs = [SeatCost("a", 2), SeatCost("b", 2)]
    hosts = [Host(f"n{number}", 4) for number in range(4)]
    first = seating(costs, hosts)
    gone, stays = sorted(first)
    again = seating(
        costs,
        [replace(host, seats=frozenset(first.get(host.node_id, ()))) for host in hosts if host.node_id != gone] + [Host("n9", 99)],
    )
    assert again[stays] == first[stays]
    assert len(again) == 2


def test_versions_are_taken_now_and_then_and_the_old_one_answers_until_the_new_one_is_whole() -> None:
    served = next_served(None, "m1", 0.0, is_whole=False, is_final=False)
    served = next_served(served, "m2", 1.0, is_whole=True, is_final=False)
    assert (served.manifest_digest, served.previous) == ("m1", "")
    served = next_served(served, "m9", TAKE_S, is_whole=True, is_final=False)
    assert served == Served("m9", TAKE_S, "m1")
    assert next_served(served, "m9", 2 * TAKE_S, is_whole=False, is_final=False).previous == "m1"
    whole = next_served(served, "m9", 2 * TAKE_S, is_whole=True, is_final=False)
    assert whole.previous == "m1"
    assert next_served(whole, "m9", 2 * TAKE_S + OVERLAP_S, is_whole=True, is_final=False).previous == ""
    assert next_served(served, "m10", TAKE_S + STUCK_S - 1, is_whole=False, is_final=False).manifest_digest == "m9"
    assert next_served(served, "m10", TAKE_S + STUCK_S, is_whole=False, is_final=False) == Served("m10", TAKE_S + STUCK_S, "m1")
    assert next_served(served, "m10", TAKE_S + 1, is_whole=False, is_final=True).manifest_digest == "m10"
