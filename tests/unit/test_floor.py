"""Goal: a replica that a plan has just named, and one that began again, hold the floor where it stood, and nobody raises it before they are heard."""

from __future__ import annotations

from dcnr.ids import ReplicaId, VNodeId
from vnode.floor import Behind
from vnode.vocabulary import Peer

A, B = ReplicaId("b.0"), ReplicaId("b.1")
HERE, THERE = VNodeId("a"), VNodeId("b")


def behind() -> Behind:
    """With one successor, whose floor is 40."""
    known = Behind()
    known.plan(frozenset({A}))
    known.hear_floor(Peer(A, 1), 40, THERE)
    return known


def test_before_anybody_was_heard_it_is_zero() -> None:
    known = Behind()
    assert known.floor(70, HERE) == (0, HERE)
    known.plan(frozenset({A}))
    assert known.floor(70, HERE) == (0, THERE)


def test_a_newcomer_holds_it_where_it_stood_until_it_is_heard() -> None:
    known = behind()
    known.plan(frozenset({A, B}))
    known.hear_floor(Peer(A, 1), 90, THERE)
    assert known.floor(100, HERE) == (40, THERE)
    known.meet(Peer(B, 1))
    assert known.floor(100, HERE) == (40, THERE)
    known.hear_floor(Peer(B, 1), 10, THERE)
    assert known.floor(100, HERE) == (10, THERE)
    known.hear_floor(Peer(B, 1), 95, THERE)
    assert known.floor(100, HERE) == (90, THERE)


def test_who_follows_one_that_is_gone_holds_it_where_that_one_had_it() -> None:
    known = behind()
    known.plan(frozenset({B}))
    assert known.floor(100, HERE) == (40, THERE)


def test_who_began_again_holds_it_and_what_it_said_before_is_void() -> None:
    known = behind()
    known.plan(frozenset({A, B}))
    known.hear_floor(Peer(B, 1), 60, THERE)
    known.meet(Peer(B, 2))
    known.hear_floor(Peer(A, 1), 80, THERE)
    assert known.floor(100, HERE) == (40, THERE)
    known.hear_floor(Peer(B, 1), 99, THERE)
    assert known.floor(100, HERE) == (40, THERE)


def test_a_newcomer_that_came_before_the_plan_that_names_it_holds_it_where_it_stood() -> None:
    known = behind()
    known.meet(Peer(B, 1))
    known.plan(frozenset({A, B}))
    assert known.floor(100, HERE) == (40, THERE)


def test_it_is_known_once_every_successor_was_heard() -> None:
    """Who has just begun itself must not pass on for a floor what it does not know."""
    known = Behind()
    assert not known.is_known, "no plan yet"
    known.plan(frozenset({A, B}))
    known.meet(Peer(A, 1))
    known.hear_floor(Peer(B, 1), 60, THERE)
    assert not known.is_known, "A was met, and has said nothing"
    known.hear_floor(Peer(A, 1), 50, THERE)
    assert known.is_known
    known.meet(Peer(A, 2))
    assert known.is_known, "it holds the floor where it stood"
    assert known.floor(100, HERE) == (50, THERE)


def test_a_newcomer_named_while_another_was_never_heard_is_as_unknown() -> None:
    known = Behind()
    known.plan(frozenset({A}))
    known.plan(frozenset({A, B}))
    known.hear_floor(Peer(A, 1), 50, THERE)
    assert not known.is_known
    assert known.floor(100, HERE) == (0, THERE)


def test_a_sink_knows_all_there_is() -> None:
    known = Behind()
    known.plan(frozenset())
    assert known.is_known
