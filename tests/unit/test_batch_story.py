"""Goal: for any batch that is missing, somebody is named: who needs it, from whom, since when, or who has learned it and not handed it in."""

from __future__ import annotations

from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, owner_of
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.batch_story import Reports, batch_lines
from orchestrator.jobs import intervals_message

UNIT = 4
P = model_pb2.Assignment(replica="v.1", vnode="v", pnode_id="a" * 40, role=model_pb2.ROLE_PRIMARY, weight=2.0)
C = model_pb2.Assignment(replica="v.2", vnode="v", pnode_id="b" * 40, role=model_pb2.ROLE_CONTRIBUTOR, weight=1.0)
S = model_pb2.Assignment(replica="v.3", vnode="v", pnode_id="c" * 40, role=model_pb2.ROLE_STANDBY)
SHARES = [Share(ReplicaId(item.replica), item.weight) for item in (P, C, S)]


def report(lineage: IntervalSet, unmerged: IntervalSet | None = None) -> orchestrator_pb2.ReplicaReport:
    return orchestrator_pb2.ReplicaReport(
        lineage=intervals_message(lineage), unmerged=intervals_message(unmerged or IntervalSet.empty())
    )


def told(batch: int, reports: Reports, durable: IntervalSet | None = None) -> list[tuple[str, str]]:
    lines = batch_lines([P, C, S], reports, durable or IntervalSet.empty(), UNIT, batch)
    assert all(line.subject == f"v batch {batch}" for line in lines)
    return [(line.verdict, line.inputs.get("replica", "")) for line in lines]


def test_each_stage_of_a_batch_has_its_line() -> None:
    empty, some = IntervalSet.empty(), IntervalSet.span(0, 8)
    assert told(3, {}, durable=some) == [("durable", "")]
    assert told(3, {"v.1": report(some), "v.2": report(some)}) == [("learned", "v.1")]
    assert told(9, {"v.1": report(some), "v.2": report(some | IntervalSet.span(8, 12), IntervalSet.span(8, 12))}) == [
        ("unmerged", "v.2")
    ]
    assert told(3, {"v.2": report(some), "v.3": report(some)}) == [("held", "v.2"), ("held", "v.3")], "the primary is silent"
    [line] = batch_lines([P, C, S], {"v.1": report(empty), "v.2": report(some, some)}, empty, UNIT, 5)
    assert "8 batches" in line.reason


def test_the_owner_is_answerable_for_what_nobody_has() -> None:
    nothing = {"v.1": report(IntervalSet.empty()), "v.2": report(IntervalSet.empty())}
    for batch in range(0, 80, UNIT):
        owner = owner_of(batch // UNIT, SHARES)
        assert told(batch, nothing) == [("not reached", owner)]
        assert told(batch, {name: item for name, item in nothing.items() if name != owner}) == [("unknown", owner)]
    batch = next(UNIT * unit for unit in range(20) if owner_of(unit, SHARES) == "v.2")
    nothing["v.2"].needs.add(
        from_replica="u.7", since_s=2.5, why="restore", batches=intervals_message(IntervalSet.span(batch, batch + 2))
    )
    [line] = batch_lines([P, C, S], nothing, IntervalSet.empty(), UNIT, batch)
    assert (line.verdict, line.inputs["replica"], line.inputs["source"]) == ("needed", "v.2", "u.7")
    assert "2.5 s" in line.reason
    assert told(batch + 2, nothing) == [("not reached", "v.2")]
