"""Goal: seats stay within the memory that replicas leave, the state before answers until the next one is loaded, and holders go before newcomers."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dcnr.limits import MIB
from pnode.seating import Held, Wanted, settle

OLD, NEW = "1" * 64, "2" * 64


def wanted(vnode: str = "a", digest: str = NEW, keeps: str = "", alone: int = 10 * MIB) -> Wanted:
    return Wanted("m", vnode, digest, f"manifest {digest[0]}", keeps, 2 * alone, alone)


def held(vnode: str = "a", digest: str = OLD, *, is_ready: bool = True) -> Held:
    return Held(("m", vnode, digest), f"manifest {digest[0]}", is_ready)


def test_the_state_before_answers_until_the_next_one_is_loaded() -> None:
    begun = settle([wanted()], [held()], 20 * MIB)
    assert (begun.load, begun.drop) == ([wanted()], [])
    assert settle([wanted()], [held(), held(digest=NEW, is_ready=False)], 20 * MIB).drop == []
    assert settle([wanted()], [held(), held(digest=NEW)], 20 * MIB).drop == [("m", "a", OLD)]


def test_what_the_wish_keeps_stays_beside_until_the_wish_names_it_no_longer() -> None:
    keeping = wanted(keeps="manifest 1")
    assert settle([keeping], [held(), held(digest=NEW)], 20 * MIB).drop == []
    assert settle([wanted(keeps="manifest 0")], [held(), held(digest=NEW)], 20 * MIB).drop == [("m", "a", OLD)]


def test_where_there_is_room_for_one_the_one_before_goes_first() -> None:
    tight = settle([wanted()], [held()], 15 * MIB)
    assert (tight.load, tight.drop) == ([wanted()], [("m", "a", OLD)])
    none = settle([wanted()], [held()], 5 * MIB)
    assert (none.load, none.drop) == ([], [("m", "a", OLD)])
    assert none.refused == {("m", "a"): "too_little_memory: a seat needs 10 MiB, 5 are free"}


def test_holders_keep_their_seats_before_newcomers_get_one() -> None:
    both = [wanted("a"), wanted("b", digest=OLD)]
    settled = settle(both, [held("b")], 20 * MIB)
    assert (settled.load, settled.drop, set(settled.refused)) == ([], [], {("m", "a")})


def test_what_nobody_wishes_goes() -> None:
    assert settle([], [held("a"), held("b", is_ready=False)], 100 * MIB).drop == [("m", "a", OLD), ("m", "b", OLD)]


SEATS = st.lists(
    st.builds(held, st.sampled_from("abc"), st.sampled_from([OLD, NEW, "3" * 64]), is_ready=st.booleans()), unique_by=lambda one: one.key
)  # fmt: skip
WISHES = st.lists(
    st.builds(wanted, st.sampled_from("abc"), st.sampled_from([OLD, NEW]), st.sampled_from(["", "manifest 1"]), st.integers(1, 30 * MIB)),
    unique_by=lambda one: one.vnode,
)  # fmt: skip


@given(WISHES, SEATS, st.integers(0, 100 * MIB))
def test_any_wish_stays_within_the_memory_and_settles(wishes: list[Wanted], seats: list[Held], free_bytes: int) -> None:
    alone = {one.vnode: one.alone_bytes for one in wishes}
    for _ in range(3):
        settled = settle(wishes, seats, free_bytes)
        kept = [one for one in seats if one.key not in settled.drop]
        assert set(settled.drop) <= {one.key for one in seats}
        seats = [*kept, *(Held(one.key, one.manifest_digest, is_ready=False) for one in settled.load)]
        assert sum(alone[one.key[1]] for one in seats) <= free_bytes
        seats = [replace(one, is_ready=True) for one in seats]
    last = settle(wishes, seats, free_bytes)
    assert (last.load, last.drop) == ([], [])
    assert {one.key[1] for one in seats} | {vnode for _, vnode in last.refused} == {one.vnode for one in wishes}
