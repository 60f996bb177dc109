"""A way is of one version, whole from the sources to its exit, and as deep as anybody can reach; the banned and their owners take no part."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import InvalidInput
from dcnr.specs import TensorSpec
from dcnr.stages import INPUT, Stage, StageInput
from dcnr.v1 import identity_pb2
from orchestrator.routing import Avoid, Candidate, Load, Table, find_way

SPEC = TensorSpec("float32", (4,))


def stage(name: str, *inputs: str) -> Stage:
    reads = inputs or (INPUT,)
    return Stage(
        name, "linear", {}, reads, tuple(SPEC for _ in reads), (), tuple(StageInput(item, SPEC) for item in reads), "cross_entropy", {}, "sgd",
        {}, SPEC, SPEC, 4,
    )  # fmt: skip


LINE = (stage("a"), stage("b", "a"), stage("c", "b"))
FORK = (stage("a"), stage("l", "a"), stage("r", "a"), stage("z", "l", "r"))


def at(pnode: str, vnode: str, *, owner: str = "", queued: int = 0, compute_s: float = 0.01) -> Candidate:
    return Candidate(pnode, vnode, identity_pb2.Envelope(), state_digest="d", queued=queued, compute_s=compute_s, owner=owner)


def table(stages: tuple[Stage, ...], name: str, *candidates: Candidate) -> Table:
    return Table(name, stages, {one.id: [item for item in candidates if item.vnode == one.id] for one in stages})


TABLES = st.lists(
    st.builds(
        lambda stages, places: (stages, places),
        st.sampled_from([LINE, FORK]),
        st.sets(st.tuples(st.sampled_from("pqrs"), st.integers(0, 3))),
    ),
    max_size=3,
).map(
    lambda rows: [
        table(stages, f"m{number}", *(at(pnode, stages[index].id, owner=pnode) for pnode, index in sorted(places) if index < len(stages)))
        for number, (stages, places) in enumerate(rows)
    ]
)  # fmt: skip


@given(TABLES, st.integers(), st.sets(st.sampled_from("pqrs"), max_size=2), st.sets(st.sampled_from("pqrs"), max_size=1))
def test_a_way_is_whole_and_nobody_could_go_deeper(tables: list[Table], seed: int, banned: set[str], owners: set[str]) -> None:
    way = find_way(tables, "", random.Random(seed), Load(), Avoid(banned, owners))
    away = banned | owners

    def lost(one: Table) -> int:
        whole = one.requires(one.stages[-1].id)
        able = {vnode for vnode in whole if any(item.pnode_id not in away for item in one.candidates[vnode])}
        return min(
            (len(whole) - len(one.requires(vnode)) for vnode in whole if able.issuperset(one.requires(vnode))), default=len(whole)
        )

    if way is None:
        assert all(lost(one) == len(one.requires(one.stages[-1].id)) for one in tables)
        return
    assert not way.pnodes & away
    assert tuple(hop.vnode for hop in way.hops) == way.table.requires(way.exit)
    assert all(hop in way.table.candidates[hop.vnode] for hop in way.hops)
    assert len(way.table.requires(way.table.stages[-1].id)) - len(way.hops) == min(map(lost, tables))
    assert bool(way.missing) == (way.exit != way.table.stages[-1].id)


def test_a_whole_older_version_is_better_than_half_of_the_newest() -> None:
    new = table(LINE, "new", at("p", "a"), at("p", "b"))
    old = table(LINE, "old", at("q", "a"), at("q", "b"), at("q", "c"))
    way = find_way([new, old], "", random.Random(1), Load())
    assert way is not None
    assert way.table is old
    shallow = find_way([new, old], "b", random.Random(1), Load())
    assert shallow is not None
    assert shallow.table is new


def test_with_the_tail_gone_the_deepest_exit_answers_and_says_what_is_missing() -> None:
    way = find_way([table(LINE, "m", at("p", "a"), at("p", "b"))], "", random.Random(1), Load())
    assert way is not None
    assert (way.exit, way.missing) == ("b", "c")
    assert find_way([table(LINE, "m", at("p", "b"), at("p", "c"))], "", random.Random(1), Load()) is None


def test_who_is_loaded_is_spared_and_a_hop_is_saved_where_that_is_quicker() -> None:
    busy = table(LINE, "m", at("p", "a"), at("p", "b", queued=50), at("q", "b"), at("q", "c"), at("p", "c"))
    way = find_way([busy], "", random.Random(1), Load({"p": 0.01, "q": 0.01}))
    assert way is not None
    assert [hop.pnode_id for hop in way.hops] == ["p", "q", "q"]
    even = table(LINE, "m", *(at(pnode, one.id) for pnode in "pqrs" for one in LINE))
    for seed in range(20):
        near = find_way([even], "", random.Random(seed), Load(dict.fromkeys("pqrs", 0.02)))
        assert near is not None
        assert len(near.pnodes) == 1


def test_who_disappointed_is_taken_only_where_nobody_else_is() -> None:
    two = table(LINE, "m", *(at(pnode, one.id) for pnode in "pq" for one in LINE))
    way = find_way([two], "", random.Random(1), Load(), Avoid(faults={"p": 1}))
    assert way is not None
    assert way.pnodes == {"q"}
    alone = replace(two, candidates={name: items[:1] for name, items in two.candidates.items()})
    assert find_way([alone], "", random.Random(1), Load(), Avoid(faults={"p": 3})) is not None


def test_who_took_part_before_stays_unless_they_were_at_fault() -> None:
    many = table(LINE, "m", *(at(pnode + one.id, one.id) for pnode in "pqrst" for one in LINE))
    for seed in range(20):
        shun = Avoid(banned={"qb"}, faults={"qb": 1}, kept=[{"pa", "qb", "rc"}])
        way = find_way([many], "", random.Random(seed), Load(), shun)
        assert way is not None
        assert [hop.pnode_id for hop in way.hops if hop.vnode != "b"] == ["pa", "rc"]
        assert way.hops[1].pnode_id != "qb"
        shun = replace(shun, kept=[{"pa", "qb", "rc"}, {"qa", "sb"}])
        way = find_way([many], "", random.Random(seed), Load(), shun)
        assert way is not None
        assert [hop.pnode_id for hop in way.hops] == ["pa", "sb", "rc"], "in whose place those come to whom connections are open"


def test_an_exit_that_no_version_has_is_named() -> None:
    with pytest.raises(InvalidInput) as caught:
        find_way([table(LINE, "m", at("p", "a"))], "nowhere", random.Random(1), Load())
    assert caught.value.code == "no_such_exit"
