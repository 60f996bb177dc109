"""Goal: who is in probation hosts little, whoever is under suspicion gets nothing new, and a flood of names from a few subnets does not take a network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trust.caps import IDS_PER_SUBNET, PROBATION_VNODES, Cap, Host, Wanted, cap_of
from trust.separation import Party, Separation
from trust.standing import State

SPREAD = Separation()
COPY = Wanted(num_copies=1, others_can=True)


def host(state: State = State.ACTIVE, hosted: int = 0, subnet: str = "n", name: str = "a") -> Host:
    return Host(Party(name, "o", subnet), state, hosted)


@pytest.mark.parametrize("state", [State.SUSPECT, State.QUARANTINED, State.REHAB, State.BANNED])
def test_only_probation_and_active_get_more(state: State) -> None:
    assert cap_of(host(state), COPY, (), SPREAD) is Cap.STATE


def test_probation_hosts_two_and_active_hosts_more() -> None:
    assert [cap_of(host(State.PROBATION, count), COPY, (), SPREAD) for count in range(3)] == [Cap.NONE, Cap.NONE, Cap.VNODES]
    assert cap_of(host(State.ACTIVE, 50), COPY, (), SPREAD) is Cap.NONE


def test_an_only_copy_goes_to_probation_only_where_nobody_else_can() -> None:
    only = Wanted(num_copies=0, others_can=True)
    assert cap_of(host(State.PROBATION), only, (), SPREAD) is Cap.ONLY_COPY
    assert cap_of(host(State.PROBATION), Wanted(0, others_can=False), (), SPREAD) is Cap.NONE
    assert cap_of(host(State.ACTIVE), only, (), SPREAD) is Cap.NONE


def test_two_names_of_a_subnet_are_enough() -> None:
    others = [Party(f"p{number}", "o", "n") for number in range(IDS_PER_SUBNET)]
    assert cap_of(host(), COPY, others, SPREAD) is Cap.SUBNET
    assert cap_of(host(), COPY, others[1:], SPREAD) is Cap.NONE
    assert cap_of(host(name="p0"), COPY, others, SPREAD) is Cap.NONE, "who is there already adds no name"
    assert cap_of(host(subnet="m"), COPY, others, SPREAD) is Cap.NONE
    unknown = [Party(f"p{number}", "o", "") for number in range(IDS_PER_SUBNET)]
    assert cap_of(host(subnet=""), COPY, unknown, SPREAD) is Cap.SUBNET, "those of no known subnet share one"
    assert cap_of(host(), COPY, others, Separation(single_host=True)) is Cap.NONE


@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from(State)), max_size=200))
def test_a_flood_from_four_subnets_gets_at_most_two_names_each(wanted: list[tuple[int, State]]) -> None:
    placed: dict[str, tuple[Party, int]] = {}
    for number, state in wanted:
        party = Party(f"p{number}", f"o{number}", f"s{number % 4}")
        _, hosted = placed.get(party.node_id, (party, 0))
        if cap_of(Host(party, state, hosted), COPY, [one for one, _ in placed.values()], SPREAD) is Cap.NONE:
            placed[party.node_id] = (party, hosted + 1)
            assert state is not State.PROBATION or hosted < PROBATION_VNODES
    assert len(placed) <= 4 * IDS_PER_SUBNET
