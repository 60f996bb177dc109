"""Goal: what a PNode reports of batches that its job does not have, or of replicas that no plan gave anybody, moves nothing but its own replica, and is told
once; what an older or a newer plan gives, and everything honest, is no offence.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dcnr.errors import RemoteFault
from dcnr.ids import ReplicaId, vnode_of
from dcnr.intervals import END, IntervalSet
from dcnr.v1 import common_pb2, model_pb2, orchestrator_pb2
from orchestrator.attach import AttachService, _Stream
from orchestrator.costs import StageCost
from orchestrator.history import History
from orchestrator.inventory import Inventory
from orchestrator.jobs import intervals_message
from orchestrator.lending import REFUSED_AFTER_S
from orchestrator.offers import NodeOffer, PlanPolicy, PlanRequest
from orchestrator.planner import make_plan
from orchestrator.planning import LiveReplicas
from orchestrator.reported import MAX_TOLD, Reported
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.view import ModelView

NUM_BATCHES = 100
LOST, HONEST, LIAR, SPARE = (letter * 40 for letter in "abcd")
PLAN, JOB = "p" * 64, "j"
ACTIVE, FAILED = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, orchestrator_pb2.ASSIGNMENT_STATE_FAILED
RELEASING = orchestrator_pb2.ASSIGNMENT_STATE_RELEASING
BAD = common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=5, end=5)])
OVERLAPPING = common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=0, end=6), common_pb2.Interval(first=5, end=9)])
BACKWARDS = common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=5, end=9), common_pb2.Interval(first=0, end=4)])


def plan() -> model_pb2.Plan:
    """A primary and two contributors; replicas 0 to 3 were of plans before."""
    found = model_pb2.Plan(model="m", job_id=JOB, number=3, epoch=1, next_replica=7)
    for number, pnode_id in enumerate((LOST, HONEST, LIAR), start=4):
        role = model_pb2.ROLE_PRIMARY if pnode_id == LOST else model_pb2.ROLE_CONTRIBUTOR
        found.assignments.add(replica=f"v.{number}", vnode="v", pnode_id=pnode_id, role=role, weight=1.0)
    return found


def view(*, job_id: str = JOB) -> ModelView:
    """``job_id``: of the active job, of which N is known."""
    made = plan()
    job: Any = SimpleNamespace(num_batches=NUM_BATCHES, costs=(), request=SimpleNamespace(job_id=job_id))
    hosted = {item.pnode_id: (item,) for item in made.assignments}
    return ModelView("m", model_pb2.Head(plan_digest=PLAN), b"", made, job=job, hosted=hosted)


def span(first: int, end: int) -> common_pb2.IntervalSet:
    return intervals_message(IntervalSet.span(first, end))


def report(replica: str = "v.6", **fields: Any) -> orchestrator_pb2.ReplicaReport:
    return orchestrator_pb2.ReplicaReport(replica=replica, **{"vnode": vnode_of(ReplicaId(replica)), "state": ACTIVE, **fields})


def beat(*reports: orchestrator_pb2.ReplicaReport, plan_digest: str = PLAN) -> orchestrator_pb2.Beat:
    return orchestrator_pb2.Beat(sequence=1, worker_alive=True, plan_digest=plan_digest, replicas=reports)


def following(seen: ModelView | None = None) -> Reported:
    reported = Reported()
    reported.follow(seen or view())
    return reported


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"lineage": span(0, NUM_BATCHES + 1)}, "batches_out_of_range"),
        ({"lineage": span(END - 1, END)}, "batches_out_of_range"),
        ({"lineage": span(0, 9), "unmerged": span(NUM_BATCHES, NUM_BATCHES + 1)}, "batches_out_of_range"),
        ({"durable": span(0, NUM_BATCHES + 1)}, "batches_out_of_range"),
        ({"num_learned": NUM_BATCHES + 1}, "batches_out_of_range"),
        ({"lineage": BAD}, "bad_intervals"),
        ({"unmerged": BAD}, "bad_intervals"),
        ({"lineage": OVERLAPPING}, "bad_intervals"),
        ({"unmerged": OVERLAPPING}, "bad_intervals"),
        ({"durable": OVERLAPPING}, "bad_intervals"),
        ({"lineage": BACKWARDS}, "bad_intervals"),
    ],
)
def test_batches_that_the_job_does_not_have_fail_that_replica_alone_and_are_told_once(fields: dict[str, Any], code: str) -> None:
    reported, said = following(), beat(report(**fields), report("v.2", state=RELEASING))
    counted, refused = reported.counted(LIAR, said)
    assert [(one.pnode_id, one.replica, one.error.code) for one in refused] == [(LIAR, "v.6", code)]
    assert sorted(item.replica for item in counted.replicas) == ["v.2", "v.6"]
    [failed] = [item for item in counted.replicas if item.replica == "v.6"]
    assert (failed.state, failed.reason, failed.vnode) == (FAILED, refused[0].error.message, "v")
    assert not any(sets.intervals for sets in (failed.lineage, failed.unmerged, failed.durable))
    assert failed.num_learned == 0
    assert reported.counted(LIAR, said)[1] == [], "once"


@pytest.mark.parametrize("name", ["v.6", "v.3"])
def test_no_replica_is_reported_under_another_vnodes_name(name: str) -> None:
    """Whoever is lost is waited for with the VNodes that it reported: another one's would get its new replica later."""
    counted, refused = following().counted(LIAR, beat(report(name, vnode="w")))
    assert [one.error.code for one in refused] == ["wrong_vnode"]
    assert not [item for item in counted.replicas if item.vnode == "w"]


def test_everything_up_to_n_counts_unchanged() -> None:
    said = beat(report(lineage=span(0, 60), unmerged=span(60, NUM_BATCHES), durable=span(0, 50), num_learned=NUM_BATCHES))
    counted, refused = following().counted(LIAR, said)
    assert counted is said
    assert refused == []


def test_replicas_of_older_and_of_newer_plans_are_no_offence() -> None:
    reported = following()
    older = beat(report("v.3", lineage=span(0, 9000)), report("v.1", state=RELEASING))
    assert reported.counted(LIAR, older) == (older, []), "of a job before, or about to be let go: the numbers are lower"
    newer = beat(report("v.7", lineage=BAD), plan_digest="q" * 64)
    assert reported.counted(LIAR, newer) == (newer, []), "its PNode obeys a plan that was not read here yet"
    later = view()
    later.hosted[LIAR][0].replica = "v.7"
    [refused] = following(later).counted(LIAR, newer)[1]
    assert refused.error.code == "bad_intervals", "what it says is read as soon as that plan is"
    next_job = beat(report(lineage=span(0, NUM_BATCHES + 1)))
    assert following(view(job_id="next")).counted(LIAR, next_job) == (next_job, []), "N is that of another job"
    assert Reported().counted(LIAR, newer) == (newer, []), "nothing was read yet"
    other = ModelView("n", model_pb2.Head(plan_digest="r" * 64), b"", model_pb2.Plan(model="n", next_replica=10))
    reported.follow(other)
    assert reported.counted(LIAR, beat(report("w.9")))[1] == [], "another model's plan can have given it"


@pytest.mark.parametrize("name", ["v.7", "v", "", "v.x", "v.99999999999999999999"])
def test_a_replica_that_no_plan_gave_anybody_is_left_out(name: str) -> None:
    counted, refused = following().counted(HONEST, beat(report("v.5"), report(name)))
    assert [item.replica for item in counted.replicas] == ["v.5"]
    assert [(one.replica, one.error.code) for one in refused] == [(name, "unknown_replica")]


def test_made_up_names_do_not_flood_the_history() -> None:
    reported = following()
    made_up = [report(f"v.{number}") for number in range(1000, 2000)]
    assert len(reported.counted(LIAR, beat(*made_up))[1]) == 1
    assert reported.counted(LIAR, beat(report("v.5000")))[1] == []
    assert len(reported.counted(HONEST, beat(*made_up))[1]) == 1, "each PNode is told of"
    for number in range(MAX_TOLD):
        reported.counted(f"{number:040x}", beat(made_up[0]))
    assert len(reported._told) == MAX_TOLD


def test_an_inflated_report_wins_no_succession() -> None:
    def successor(said: common_pb2.IntervalSet) -> str:
        seen, inventory, reported = view(), Inventory(), following()
        for pnode_id, one in ((HONEST, report("v.5", lineage=span(0, 60))), (LIAR, report("v.6", lineage=said))):
            inventory.beat(pnode_id, 0.0, reported.counted(pnode_id, beat(one))[0], 2.0)
        live = LiveReplicas(seen.hosted, inventory.nodes())
        [led] = [item for item in make_plan(request(seen, live), PlanPolicy()).assignments if item.role == model_pb2.ROLE_PRIMARY]
        return led.pnode_id

    assert successor(span(0, 61)) == LIAR, "whoever says that it holds most goes on"
    assert successor(span(0, NUM_BATCHES + 1)) == HONEST
    assert successor(BAD) == HONEST


def request(seen: ModelView, live: LiveReplicas) -> PlanRequest:
    """What the planner is asked when the primary's PNode is silent."""
    cost = StageCost("v", (), (), True, 3, 1e9, 1 << 20, 100 << 20, 1 << 20, sharing_bytes=1 << 20, component="Linear")
    up, down = orchestrator_pb2.NODE_STATE_ACTIVE, orchestrator_pb2.NODE_STATE_OFFLINE
    nodes = tuple(
        NodeOffer(
            node_id, down if node_id == LOST else up, "silent" if node_id == LOST else "", 10.0, 1 << 30, 1 << 36, accepts_work=True
        )
        for node_id in (LOST, HONEST, LIAR, SPARE)
    )
    return PlanRequest(
        "n" * 40,
        "m",
        JOB,
        "g" * 64,
        1,
        "h" * 40,
        (cost,),
        nodes,
        seen.plan,
        PLAN,
        256,
        8,
        1e9,
        True,
        "test",
        live=live,
        durable={"v": 50},
    )


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


def service() -> tuple[AttachService, Any]:
    """The streams' service, without a network."""
    clock: Any = Clock()
    nothing: Any = None
    shared = Shared(nothing, nothing, nothing, clock, nothing, Inventory(), History(None, "o" * 40, clock))
    return AttachService(shared, {}, head_url=lambda model: ("", 0), reach=lambda node, where: None), shared


def told(shared: Shared) -> list[tuple[str, str, str]]:
    events = [event for event in shared.history.since(0, 100) if event.kind == "report_refused"]
    return [(event.subject, event.facts["pnode"], event.facts["code"]) for event in events]


def test_a_beat_that_claims_too_much_costs_its_replica_and_nothing_else() -> None:
    streams, shared = service()
    shared.reported.follow(view())
    shared.inventory.planned("m", view().hosted)
    stream = _Stream(LIAR, "127.0.0.1:1")
    for _ in range(5):
        streams._beat(stream, beat(report(lineage=span(0, 10**9)), report("v.9", state=FAILED)))
        shared.clock.now += REFUSED_AFTER_S / 2
    assert told(shared) == [("v.6", LIAR, "batches_out_of_range"), ("v.9", LIAR, "unknown_replica")]
    assert stream.outbox.qsize() == 5, "it beats on"
    [offer] = shared.inventory.offers(shared.clock.now)
    assert list(offer.refused) == ["v"]
    assert str(NUM_BATCHES) in offer.refused["v"]


def num_heard(num_reports: int) -> int:
    """Beats in ten seconds of as many as there may be news, before the stream is closed for them."""
    streams, shared = service()
    said = beat(*(report(f"v.{number}") for number in range(num_reports)), plan_digest="q" * 64)
    stream: Any = SimpleNamespace(
        pnode_id=LIAR, events=0, serves=True, builds=None, outbox=SimpleNamespace(put_nowait=lambda message: None)
    )
    for count in range(200):
        try:
            streams._beat(stream, said)
        except RemoteFault as error:
            assert error.code == "beats_too_often"  # noqa: PT017
            return count
        shared.clock.now += 0.05
    return 200


def test_who_reports_more_than_a_plan_may_give_it_may_beat_less_often() -> None:
    """Each report is looked at, on the thread that everybody's beats wait for."""
    assert num_heard(64) == 200
    assert num_heard(1024) < 40


def test_beats_that_came_before_the_plan_was_read_are_held_against_it() -> None:
    streams, shared = service()
    streams._beat(_Stream(LIAR, "127.0.0.1:1"), beat(report(lineage=span(0, 10**9))))
    assert told(shared) == []
    looking: Any = SimpleNamespace(shared=shared, model="m")
    seen = view()
    ModelRuntime._look_again(looking, None, seen)
    record = shared.inventory.nodes()[LIAR]
    [failed] = record.beat.replicas
    assert failed.state == FAILED
    again, record.beat = record.beat, beat(report(lineage=span(0, 10**9)))
    ModelRuntime._look_again(looking, seen, replace(seen, manifest_bytes=b"newer"))
    assert record.beat.replicas[0].state == ACTIVE, "a new manifest is no reason to look at every beat"
    ModelRuntime._look_again(looking, seen, replace(seen, job=view().job))
    assert record.beat == again, "a job that is known now is one"
    assert told(shared) == [("v.6", LIAR, "batches_out_of_range")]
