"""Goal: who has much open is named no more until it is judged, and keeps nobody waiting who has little; an honest replica never comes to that."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

import pytest
from checkpoint_rig import PNODE, World, refused, run

from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.audit_events import Bundle, People, Report, SendTask, Word
from orchestrator.audits import AuditDesk
from orchestrator.chain import MAX_TO_JUDGE, Chain
from orchestrator.contribution import PATIENCE_S, Contributions
from orchestrator.jobs import intervals_message
from orchestrator.view import JobFacts, ModelView
from trust.auditors import Candidate
from trust.draw import Secret
from trust.folding import Chronicle
from trust.ledger import MAX_UNCLEARED, Interval, Ledger, Named, Verdict
from trust.separation import Party, Separation
from trust.standing import State

SPAN = IntervalSet.span


def chain_with(num: int, *, vnode: str = "a", num_aside: int = 0, verdict: Verdict = Verdict.OPEN) -> Chain:
    """A line of so many intervals of the PNode, and some that were left aside."""
    named = [Interval(f"{at:064x}", at, vnode, f"{vnode}.0", PNODE.node_id, SPAN(0, 0), verdict) for at in range(num + num_aside)]
    line = (Named("0", ()), *(Named(f"s{one.number}", (one.name,)) for one in named[:num]))
    ledger = Ledger({vnode: line}, {one.name: one for one in named})
    return Chain(Chronicle(ledger, (), frozenset(one.name for one in named[num:])), {})


@pytest.mark.parametrize(
    ("chain", "waits"),
    [
        (chain_with(MAX_TO_JUDGE + 1), True), (chain_with(MAX_TO_JUDGE), False), (chain_with(0, num_aside=MAX_TO_JUDGE + 1), True),
        (chain_with(MAX_TO_JUDGE + 1, vnode="b"), False), (chain_with(MAX_TO_JUDGE + 1, verdict=Verdict.PASSED), False),
    ],
)  # fmt: skip
def test_with_nine_open_at_a_vnode_the_tenth_record_waits(chain: Chain, waits: bool) -> None:
    """What is open at another VNode is another replica's, which stops by itself."""

    async def story(world: World) -> None:
        world.audited()
        made = world.checkpoint(SPAN(0, 2), [0, 1])
        assert world.chain is not None
        known = world.chain.ledger.lines["a"]
        lines = {vnode: (*known, *line[1:]) for vnode, line in chain.ledger.lines.items()}
        world.chain = replace(world.chain, chronicle=replace(chain.chronicle, ledger=replace(chain.ledger, lines=lines)))
        if waits:
            assert await refused(world, made) == "waiting_for_audit"
        else:
            assert await world.learned(made) == {("a.0", PNODE.node_id): SPAN(0, 2)}

    assert MAX_TO_JUDGE == 2 * MAX_UNCLEARED == 8
    run(story)


def test_whoever_is_not_taken_in_for_its_open_intervals_is_not_useless() -> None:
    request = model_pb2.JobRequest(job_id="j", num_batches=100, checkpoint_s=1.0)
    job = JobFacts(request, "0" * 64, model_pb2.ModelGraph(), b"", (), ())  # type: ignore[arg-type]
    plan = model_pb2.Plan(job_id="j")
    plan.assignments.add(replica="a.0", vnode="a", pnode_id=PNODE.node_id, role=model_pb2.ROLE_PRIMARY)
    head = model_pb2.Head(active=model_pb2.ActiveJob(job_id="j", state=model_pb2.JOB_STATE_RUNNING))
    said = orchestrator_pb2.ReplicaReport(
        replica="a.0", state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, lineage=intervals_message(SPAN(0, 9))
    )
    for num, useless in ((MAX_TO_JUDGE + 1, 0), (MAX_TO_JUDGE, 1)):
        view = ModelView("m", head, b"", plan=plan, manifest=model_pb2.Manifest(), job=job, chain=chain_with(num))
        contributions = Contributions()
        found = [one for at in range(int(PATIENCE_S) + 2) for one in contributions.look(view, lambda _: said, {}, float(at), 0.0)]
        assert len(found) == useless


@pytest.mark.parametrize(
    ("first", "then", "useless"),
    [(MAX_TO_JUDGE + 5, 1, ["a.1"]), (MAX_TO_JUDGE + 5, 0, []), (MAX_TO_JUDGE - 3, 3, [])],
    ids=["goes on", "stops as an honest one does", "has few open"],
)
def test_a_contributor_that_goes_on_with_much_open_loses_its_place(first: int, then: int, useless: list[str]) -> None:
    """A delta of each batch is an audit of each: the VNode was not cleared, and its job ended before they were done. Who merges it in is not to blame."""
    request = model_pb2.JobRequest(job_id="j", num_batches=100, checkpoint_s=1.0)
    job = JobFacts(request, "0" * 64, model_pb2.ModelGraph(), b"", (), ())  # type: ignore[arg-type]
    plan = model_pb2.Plan(job_id="j")
    plan.assignments.add(replica="a.0", vnode="a", pnode_id="primary", role=model_pb2.ROLE_PRIMARY)
    plan.assignments.add(replica="a.1", vnode="a", pnode_id=PNODE.node_id, role=model_pb2.ROLE_CONTRIBUTOR)
    head = model_pb2.Head(active=model_pb2.ActiveJob(job_id="j", state=model_pb2.JOB_STATE_RUNNING))
    contributions, found = Contributions(), list[str]()
    for at in range(int(PATIENCE_S) + 10):
        chain = chain_with(first + then * (at > PATIENCE_S))
        view = ModelView("m", head, b"", plan=plan, manifest=model_pb2.Manifest(), job=job, chain=chain)
        found += [one.replica for one in contributions.look(view, lambda _: None, {}, float(at), 0.0)]
    assert found == useless


def test_who_has_a_hundred_open_keeps_nobody_waiting_who_has_one() -> None:
    intervals = [Interval(digest_of(f"{at}".encode()), at, "a", "a.0", "many", SPAN(at, at + 1), Verdict.OPEN) for at in range(100)]
    intervals += [
        Interval(digest_of(name.encode()), 200 + at, name, f"{name}.0", name, SPAN(0, 1), Verdict.OPEN)
        for at, name in enumerate(("one", "two"))
    ]
    by_name = {one.name: one for one in intervals}
    desk = AuditDesk(Secret(b"k" * 32), Separation(single_host=True), map("{:032x}".format, count()).__next__)
    people = People({"auditor": Candidate(Party("auditor"), State.ACTIVE, True)})
    now_s, audited = 0.0, list[str]()
    desk.tick(people, now_s)
    desk.chronicle(Ledger({}, by_name), now_s)
    for one in intervals:
        desk.answered(one.pnode_id, one.name, Bundle("b" * 64, 9), now_s)
    while len(audited) < 6:
        for task in [action for action in desk.take() if isinstance(action, SendTask)]:
            audited.append(by_name[task.interval].pnode_id)
            desk.reported(Report(task.task_id, task.auditor, task.interval, Word.PASS, digest="d" * 64), now_s)
        for one in desk.decisions():
            by_name[one.interval] = replace(by_name[one.interval], verdict=one.verdict)
        desk.chronicle(Ledger({}, by_name), now_s)
        now_s += 1.0
        desk.tick(people, now_s)
    assert Counter(audited[:3]) == Counter(("many", "one", "two"))
    assert set(audited[3:]) == {"many"}
