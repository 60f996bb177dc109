"""Goal: what others are told of a machine's ports follows what testers agree on: no single one cuts it off, pushes it behind relays or makes it flap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.ids import NodeId
from dcnr.v1 import membership_pb2
from pnode.reach import (
    AGAIN_S,
    CLOSED_S,
    HOLD_S,
    MAX_HOLD_S,
    OPEN_S,
    REACHED,
    UNREACHED,
    UNSURE,
    UNTESTED_S,
    Look,
    Port,
    Where,
    from_outside,
    meant,
    verdict,
)

TESTER = NodeId("a" * 40)
HOME, ROUTER, VPN, NEIGHBOUR = "192.168.1.5", "8.8.4.4", "9.9.9.9", "192.168.1.9"
AT_HOME = Where(told={HOME}, own={HOME, "127.0.0.1", "10.8.0.2"})
ON_THE_NET = Where(told={ROUTER}, own={HOME, "127.0.0.1"})
ONLY_HERE = Where(told={"127.0.0.1"}, own={HOME, "127.0.0.1"})


def look(host: str, result: membership_pb2.ReachResult.ValueType = REACHED) -> Look:
    return Look(TESTER, host, result, result, 0.0)


@pytest.mark.parametrize(
    ("where", "host", "result", "says"),
    [
        (AT_HOME, HOME, REACHED, REACHED),
        (AT_HOME, HOME, UNREACHED, UNREACHED),
        (AT_HOME, HOME, UNSURE, UNSURE),
        (AT_HOME, ROUTER, UNREACHED, UNREACHED),
        (AT_HOME, ROUTER, REACHED, UNREACHED),  # forwarded, but nobody is told that address
        (AT_HOME, ROUTER, UNSURE, UNSURE),
        (AT_HOME, "10.8.0.2", UNREACHED, UNSURE),  # another network of this machine
        (AT_HOME, "127.0.0.1", REACHED, UNSURE),  # from this very machine nothing is seen from outside
        (ON_THE_NET, ROUTER, REACHED, REACHED),
        (ON_THE_NET, ROUTER, UNREACHED, UNREACHED),
        (ON_THE_NET, VPN, UNREACHED, UNSURE),  # it goes out elsewhere than it comes in
        (ON_THE_NET, HOME, REACHED, UNSURE),
        (ONLY_HERE, "127.0.0.1", REACHED, REACHED),
        (ONLY_HERE, HOME, REACHED, UNREACHED),  # an orchestrator beside it made it tell what no other machine dials
        (Where(told=set(), own=set()), ROUTER, UNREACHED, UNSURE),  # its name does not resolve
    ],
)  # fmt: skip
def test_a_result_counts_for_the_address_that_others_are_told_only(
    where: Where, host: str, result: membership_pb2.ReachResult.ValueType, says: membership_pb2.ReachResult.ValueType
) -> None:
    assert meant(look(host, result), result, where) == says


def test_testers_of_the_same_house_do_not_speak_for_those_outside() -> None:
    inside, outside = look(HOME), look(ROUTER, UNREACHED)
    assert from_outside([inside, outside]) == [outside]
    assert from_outside([inside]) == [inside], "a network of one house has no other testers"
    assert from_outside([]) == []
    assert from_outside([look("127.0.0.1"), inside]) == [inside], "one on this very machine does not speak for the house either"
    assert from_outside([look("127.0.0.1")]) == [look("127.0.0.1")]


def test_a_round_is_decided_by_most_of_those_that_are_certain() -> None:
    assert verdict([REACHED]) is True
    assert verdict([UNREACHED]) is False
    assert verdict([]) is verdict([UNSURE]) is verdict([REACHED, UNREACHED]) is None
    assert verdict([REACHED, REACHED, UNREACHED]) is True, "one liar pushes nobody behind relays"
    assert verdict([UNREACHED, UNREACHED, REACHED]) is False, "one liar cuts nobody off"
    assert verdict([UNREACHED, UNSURE, UNSURE]) is False


def test_a_port_is_given_up_by_two_rounds_in_a_row_and_told_again_after_a_while() -> None:
    port = Port()
    assert port.is_told
    assert not port.heard(False, 0.0)
    assert port.next_s == AGAIN_S, "who speaks against it is soon asked again"
    assert not port.heard(True, 5.0)
    assert port.next_s == OPEN_S
    assert not port.heard(False, 10.0), "the one before does not count any more"
    assert port.heard(False, 15.0)
    assert not port.is_told
    assert port.next_s == CLOSED_S
    assert not port.heard(True, 16.0)
    assert not port.heard(True, 21.0), "too soon"
    assert port.next_s == CLOSED_S, "and nobody is asked all the time meanwhile"
    assert port.heard(True, 15.0 + HOLD_S)
    assert port.is_told


def test_a_new_worker_does_not_inherit_what_was_said_against_the_one_before() -> None:
    port = Port()
    port.heard(False, 0.0)
    port.forget()
    assert not port.heard(False, 5.0)
    assert port.is_told


def test_where_nobody_says_anything_the_port_stays_as_it_is_and_is_asked_for_less_and_less() -> None:
    port, waits = Port(), []
    for _ in range(8):
        assert not port.heard(None, 0.0)
        waits.append(port.next_s)
    assert port.is_told
    assert waits[:3] == [UNTESTED_S, 2 * UNTESTED_S, 4 * UNTESTED_S]
    assert waits[-1] == OPEN_S
    port.heard(True, 0.0)
    port.heard(None, 0.0)
    assert port.next_s == UNTESTED_S


@given(st.lists(st.tuples(st.sampled_from([True, False, None]), st.floats(0.0, 100.0)), max_size=200))
def test_a_port_changes_only_when_told_so_twice_and_ever_more_rarely(rounds: list[tuple[bool | None, float]]) -> None:
    port, now, closed_at, held, against = Port(), 0.0, 0.0, HOLD_S / 2, 0
    for found, wait_s in rounds:
        now += wait_s
        before = port.is_told
        against = against if found is None else against + 1 if found != before else 0
        changed = port.heard(found, now)
        port.check()
        assert changed == (port.is_told != before)
        if changed:
            assert against >= 2
            against = 0
            if port.is_told:
                assert now >= closed_at + held  # the same sum: a difference is rounded otherwise
            else:
                closed_at, held = now, min(MAX_HOLD_S, 2 * held)
