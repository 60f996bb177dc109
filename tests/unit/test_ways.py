"""Goal: whoever starves asks others for what a replica owes to which no way is open, at once and without a plan, and nobody twice where nothing is wrong."""

from __future__ import annotations

import pytest

from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, split
from tests.unit.test_replica_core import EMPTY, config, give, learn, of, span
from vnode import events as ev
from vnode.core import ReplicaCore
from vnode.events import Instruction
from vnode.vocabulary import Peer

NUM_BATCHES = 60
NAMES = tuple(ReplicaId(f"before.{number}") for number in range(4))
SHARES = tuple(Share(name, 1.0) for name in NAMES[:3])
LOST = NAMES[1]
OWED = split(SHARES, NUM_BATCHES, 1)


def planned(core: ReplicaCore, shares: tuple[Share, ...]) -> list[Instruction]:
    return core.handle(ev.PlanChanged(0.0, {0: shares}, frozenset(), 100))


def behind(*open_ways: ReplicaId) -> ReplicaCore:
    """One that three replicas feed, with ways to some of them."""
    core = ReplicaCore(config(input_edges=frozenset(), num_batches=NUM_BATCHES), EMPTY, 0.0)
    planned(core, SHARES)
    for name in open_ways:
        core.handle(ev.EdgeUp(0.0, 0, Peer(name, 1)))
    return core


def asked(instructions: list[Instruction]) -> dict[ReplicaId, IntervalSet]:
    return {item.source: item.wanted for item in of(ev.SendNeed, instructions)}


def broken(core: ReplicaCore, name: ReplicaId) -> list[Instruction]:
    return core.handle(ev.EdgeDown(1.0, 0, name))


def test_who_starves_asks_the_siblings_of_one_whose_way_broke_until_it_opens_again() -> None:
    core = behind(*NAMES[:3])
    without = split([share for share in SHARES if share.replica != LOST], NUM_BATCHES, 1)
    assert asked(broken(core, LOST)) == {name: without[name] for name in (NAMES[0], NAMES[2])}
    back = asked(core.handle(ev.EdgeUp(10.0, 0, Peer(LOST, 1))))
    assert back == {name: OWED[name] for name in NAMES[:3]}


def test_who_has_something_to_learn_asks_nobody_else_before_that_is_learned() -> None:
    core = behind(*NAMES[:3])
    mine = OWED[NAMES[0]].first(1).lowest() or 0
    give(core, mine, 0.5)
    assert not asked(broken(core, LOST))
    instructions = core.handle(ev.Learned(1.1, mine, 1.0, 0.1))
    others = asked(instructions)
    assert not OWED[LOST] - (others[NAMES[0]] | others[NAMES[2]])


def test_ways_that_open_one_after_the_other_in_the_beginning_have_nobody_asked_for_others() -> None:
    core = ReplicaCore(config(input_edges=frozenset(), num_batches=NUM_BATCHES), EMPTY, 0.0)
    planned(core, SHARES)
    for name in NAMES[:3]:
        assert asked(core.handle(ev.EdgeUp(0.0, 0, Peer(name, 1))))[name] == OWED[name]


def test_a_newcomer_is_asked_once_a_way_to_it_is_open() -> None:
    core = behind(*NAMES[:3])
    later = (*SHARES, Share(NAMES[3], 1.0))
    planned(core, later)
    assert asked(core.handle(ev.Tick(3.0))) == {name: OWED[name] for name in NAMES[:3]}, (
        "what it owns is asked of the others meanwhile"
    )
    assert asked(core.handle(ev.EdgeUp(5.0, 0, Peer(NAMES[3], 1))))[NAMES[3]] == split(later, NUM_BATCHES, 1)[NAMES[3]]


@pytest.mark.parametrize("shares", [SHARES[:1], (SHARES[0], Share(NAMES[1], 0.0))])
def test_where_there_is_no_other_that_one_is_waited_for(shares: tuple[Share, ...]) -> None:
    core = ReplicaCore(config(input_edges=frozenset(), num_batches=NUM_BATCHES), EMPTY, 0.0)
    planned(core, shares)
    core.handle(ev.EdgeUp(0.0, 0, Peer(NAMES[0], 1)))
    assert not asked(broken(core, NAMES[0]))
    assert [item.source for item in of(ev.SendNeed, core.handle(ev.EdgeUp(2.0, 0, Peer(NAMES[0], 1))))] == [NAMES[0]]


def test_what_came_from_the_one_in_its_place_is_learned_and_asked_of_nobody_more() -> None:
    core = behind(*NAMES[:3])
    broken(core, LOST)
    batch = OWED[LOST].lowest() or 0
    learn(core, batch, 1.5)
    assert asked(core.handle(ev.EdgeUp(4.0, 0, Peer(LOST, 1))))[LOST] == OWED[LOST] - span(batch, batch + 1)


def test_who_was_asked_in_its_place_hears_at_once_that_the_way_is_open_again() -> None:
    core = behind(*NAMES[:3])
    broken(core, LOST)
    others = asked(core.handle(ev.EdgeUp(1.2, 0, Peer(LOST, 1))))
    assert others == {name: OWED[name] for name in NAMES[:3]}, "else they would compute what it owes until the next repetition"


def test_who_owes_less_by_a_newer_plan_hears_it_at_once() -> None:
    core = behind(*NAMES[:2])
    later = split((*SHARES, Share(NAMES[3], 1.0)), NUM_BATCHES, 1)
    core.handle(ev.EdgeUp(0.0, 0, Peer(NAMES[2], 1)))
    core.handle(ev.EdgeUp(0.0, 0, Peer(NAMES[3], 1)))
    assert asked(planned(core, (*SHARES, Share(NAMES[3], 1.0)))) == later
