"""Goal: a PNode is judged by what manifests come to name, never by its word; whoever waits for others is left alone, and who does not come to work
keeps nobody waiting for ever. Whether somebody else fits is the planner's to say.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

import pytest

from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, owned
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.audit_events import Bundle, People, Report, SendTask, Unshown, Word
from orchestrator.audits import AuditDesk
from orchestrator.chain import Chain
from orchestrator.contribution import LONGEST_PROVISION_S, PATIENCE_S, UNKNOWN_LINE_MBIT, Contributions
from orchestrator.costs import StageCost
from orchestrator.jobs import intervals_message
from orchestrator.observing import NEVER_S, Observer
from orchestrator.offers import NodeOffer
from orchestrator.results import Kind, Result
from orchestrator.silence import Judgement, NodeRecord
from orchestrator.track import TrackRecords
from orchestrator.view import JobFacts, ModelView
from trust.auditors import Candidate
from trust.draw import Secret
from trust.folding import Chronicle
from trust.ledger import Interval, Ledger, Named, Verdict
from trust.separation import Party, Separation
from trust.standing import State

ACTIVE = orchestrator_pb2.NODE_STATE_ACTIVE
PLACING, RUNNING = model_pb2.JOB_STATE_PLACING, model_pb2.JOB_STATE_RUNNING
REQUESTED, PROVISIONING, FAILED = (
    orchestrator_pb2.ASSIGNMENT_STATE_REQUESTED, orchestrator_pb2.ASSIGNMENT_STATE_PROVISIONING, orchestrator_pb2.ASSIGNMENT_STATE_FAILED,
)  # fmt: skip
BATCHES = 100
STATE_BYTES = 1_000_000_000


def view(durable: int, state: model_pb2.JobState.ValueType = model_pb2.JOB_STATE_RUNNING) -> ModelView:
    head = model_pb2.Head(active=model_pb2.ActiveJob(job_id="j", state=state))
    plan = model_pb2.Plan(job_id="j")
    plan.assignments.add(replica="v.1", vnode="v", pnode_id="a", role=model_pb2.ROLE_PRIMARY)
    manifest = model_pb2.Manifest()
    lineage = intervals_message(IntervalSet.span(0, durable))
    manifest.entries.add(vnode="v", working=[model_pb2.Checkpoint(vnode="v", job_id="j", lineage=lineage)])
    request = model_pb2.JobRequest(job_id="j", num_batches=BATCHES, checkpoint_s=1.0)
    cost = StageCost("v", (), (), True, 1, 1.0, STATE_BYTES, 1, 1)
    job = JobFacts(request, "0" * 64, model_pb2.ModelGraph(), b"", (), (cost,))
    return ModelView("m", head, b"", plan=plan, manifest=manifest, job=job)


def report(learned: int, source: str = "") -> orchestrator_pb2.ReplicaReport:
    made = orchestrator_pb2.ReplicaReport(
        replica="v.1", state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, lineage=intervals_message(IntervalSet.span(0, learned))
    )
    if source:
        made.needs.add(from_replica=source)
    return made


def offer(name: str) -> NodeOffer:
    return NodeOffer(name, ACTIVE, "beats", 1.0, 1 << 30, 1 << 30, True)


def record(name: str = "a", state: orchestrator_pb2.NodeState.ValueType = ACTIVE, *, downlink_mbit: float = 1000.0) -> NodeRecord:
    made = NodeRecord(name, 0.0, judgement=Judgement(state, ""))
    made.capability.accepts_work, made.capability.downlink_mbit = True, downlink_mbit
    return made


def found_after(
    seconds: float, said: orchestrator_pb2.ReplicaReport | None, shown: ModelView, node: NodeRecord | None = None
) -> tuple[list[str], Contributions]:
    contributions, found, nodes = Contributions(), [], {"a": node or record()}
    for second in range(int(seconds) + 1):
        found += [item.node_id for item in contributions.look(shown, lambda item: said, nodes, float(second), 0.0)]
    return found, contributions


def at(state: orchestrator_pb2.AssignmentState.ValueType) -> orchestrator_pb2.ReplicaReport:
    return orchestrator_pb2.ReplicaReport(replica="v.1", state=state, reason="disk_trouble")


def test_who_claims_and_brings_nothing_is_found_out_and_others_take_its_place() -> None:
    found, contributions = found_after(PATIENCE_S + 1, report(BATCHES), view(0))
    assert found == ["a"]
    other, again = offer("b"), offer("a")
    judged = contributions.judged([again, other], PATIENCE_S + 2)
    assert judged == (replace(again, useless={"v": judged[0].useless["v"]}), other), (
        "it is asked for nothing but that VNode, and nobody else for anything"
    )
    assert "no checkpoint" in judged[0].useless["v"]
    assert contributions.judged([again, other], 10_000.0) == (again, other), "not for ever"


def test_who_does_nothing_and_waits_for_nobody_is_found_out() -> None:
    assert found_after(PATIENCE_S + 1, report(0), view(0))[0] == ["a"]


def shared(brought: IntervalSet) -> ModelView:
    """Two replicas learn it, and so much is named."""
    made = view(0)
    assert made.plan is not None
    assert made.manifest is not None
    made.plan.assignments[0].weight = 1.0
    made.plan.assignments.add(replica="v.2", vnode="v", pnode_id="b", role=model_pb2.ROLE_CONTRIBUTOR, weight=1.0)
    made.manifest.entries[0].working[0].lineage.CopyFrom(intervals_message(brought))
    return made


def test_a_primary_is_not_blamed_for_what_its_siblings_do_not_bring() -> None:
    """It has learned and brought its whole share, waits for nobody, and another replica's deltas do not come."""
    mine = owned(ReplicaId("v.1"), [Share(ReplicaId("v.1"), 1.0), Share(ReplicaId("v.2"), 1.0)], BATCHES, 1)
    assert 0 < len(mine) < BATCHES
    for learned, found in ((mine, []), (mine.first(len(mine) - 1), ["a"])):
        said = report(0)
        said.lineage.CopyFrom(intervals_message(learned))
        assert found_after(PATIENCE_S + 1, said, shared(learned))[0] == found


def test_who_waits_for_others_or_has_brought_everything_is_left_alone() -> None:
    assert found_after(3 * PATIENCE_S, report(20, source="u.1"), view(20))[0] == []
    assert found_after(3 * PATIENCE_S, report(BATCHES), view(BATCHES))[0] == []


def test_a_source_that_waits_for_the_audit_of_what_it_brought_is_left_alone_and_no_other() -> None:
    """It names nobody in its needs. One machine after the other was sent away while auditors were slow."""
    shown = replace(view(20), chain=chain_with("v.1", Verdict.OPEN))
    assert found_after(3 * PATIENCE_S, report(20), shown)[0] == []
    assert found_after(PATIENCE_S + 1, report(21), shown)[0] == ["a"], "it claims what it does not bring"
    for other in (chain_with("v.0", Verdict.OPEN), chain_with("v.1", Verdict.PASSED)):
        assert found_after(PATIENCE_S + 1, report(20), replace(view(20), chain=other))[0] == ["a"]


def chain_with(replica: str, verdict: Verdict) -> Chain:
    one = Interval("i" * 64, 0, "v", replica, "a", IntervalSet.span(0, 20), verdict)
    ledger = Ledger({"v": (Named("c" * 64, (one.name,)),)}, {one.name: one})
    return Chain(Chronicle(ledger, ()), {})


def unshown(desk: AuditDesk, people: People, now_s: float, number: int) -> tuple[list[Unshown], float]:
    """What the desk says of an interval, of which its PNode, which is there, shows nothing until it is decided."""
    one = Interval(f"{number:064x}", number, "v", f"v.{number}", "a", IntervalSet.span(0, 20), Verdict.OPEN)
    desk.chronicle(Ledger({}, {one.name: one}), now_s)
    said: list[Unshown] = []
    while not desk.decisions():
        now_s += 5.0
        desk.tick(people, now_s)
        said += [action for action in desk.take() if isinstance(action, Unshown)]
    assert [decision.verdict for decision in desk.decisions()] == [Verdict.UNVERIFIABLE]
    desk.chronicle(Ledger({}, {one.name: replace(one, verdict=Verdict.UNVERIFIABLE)}), now_s)
    return said, now_s


def test_who_stays_and_shows_no_evidence_twice_in_a_row_is_sent_away_and_counts_as_less_reliable() -> None:
    """What it brings goes back each time, and counted as brought: it held its VNode still for ever."""
    desk = AuditDesk(Secret(b"k" * 32), Separation(), lambda: "0" * 32)
    people, now_s, contributions = People({"a": Candidate(Party("a"), State.ACTIVE, True)}), 0.0, Contributions()
    observer, records, found = Observer(), TrackRecords(), list[str]()
    cost = StageCost("v", (), (), True, 1, 1.0, 1, 1, 1)
    shown = view(0)
    assert shown.job is not None
    shown = replace(shown, job=replace(shown.job, costs=(cost,)))
    for number in range(4):
        records.take(Result(number, now_s, "a", "m", "j", "v", "v.0", "c", "cpu", Kind.PROVISIONED, on_time=True))
    for number in range(2):
        said, now_s = unshown(desk, people, now_s, number)
        for one in said:
            found += [useless.node_id for useless in [contributions.unshown(one, now_s)] if useless is not None]
            observer.showed_nothing("m", one)
        assert found == ["a"] * number
        results = observer.look(shown, {"a": NodeRecord("a", now_s)}, now_s, now_s, lambda *_: math.inf, is_holder=True)
        assert [(one.kind, one.vnode, one.on_time) for one in results] == [(Kind.UNSHOWN, "v", False)]
        records.take(replace(results[0], number=9 + number))
    judged = {item.node_id: item for item in contributions.judged([offer("a"), offer("b")], now_s + 1)}
    assert "no evidence" in judged["a"].useless["v"]
    assert not judged["b"].useless
    assert records.score("a", 100.0)[0].reliability < 0.7


def brought(desk: AuditDesk, now_s: float, number: int, word: Word) -> tuple[list[Unshown], float]:
    """The same where its PNode brings something, of which the verifier says that."""
    here, one = Candidate(Party("a"), State.ACTIVE, True), interval(number)
    desk.chronicle(Ledger({}, {one.name: one}), now_s)
    desk.tick(People({"a": here}, (Party("v"),)), now_s)
    desk.answered("a", one.name, Bundle("b" * 64, 9), now_s)
    said: list[Unshown] = []
    while not desk.decisions():
        for action in desk.take():
            if isinstance(action, SendTask):
                desk.reported(Report(action.task_id, action.auditor, one.name, word), now_s)
        now_s += 1.0
        desk.tick(People({"a": here}, (Party("v"),)), now_s)
    said += [action for action in desk.take() if isinstance(action, Unshown)]
    [decision] = desk.decisions()
    desk.chronicle(Ledger({}, {one.name: replace(one, verdict=decision.verdict)}), now_s)
    return said, now_s


def interval(number: int, verdict: Verdict = Verdict.OPEN) -> Interval:
    return Interval(f"{number:064x}", number, "v", f"v.{number}", "a", IntervalSet.span(0, 20), verdict)


def numbered() -> AuditDesk:
    return AuditDesk(Secret(b"k" * 32), Separation(), map("{:032x}".format, count()).__next__)


def test_only_who_is_there_and_shows_nothing_is_meant_and_what_passes_ends_the_row() -> None:
    desk, here = numbered(), Candidate(Party("a"), State.ACTIVE, True)
    gone, now_s = unshown(desk, People(), 0.0, 0)
    assert gone == [], "who is gone may come back, and costs nobody its place by that"
    for number in (1, 3):
        [one], now_s = unshown(desk, People({"a": here}), now_s, number)
        assert one.num == 1
        said, now_s = brought(desk, now_s, number + 1, Word.PASS)
        assert said == []


def test_what_shows_nothing_of_what_was_done_is_no_evidence_and_does_not_end_the_row() -> None:
    """Whoever brought any bytes at all held its VNode still for ever: each interval went back, and each time another replica of it began."""
    desk, here = numbered(), Candidate(Party("a"), State.ACTIVE, True)
    [one], now_s = unshown(desk, People({"a": here}), 0.0, 0)
    assert one.num == 1
    [one], now_s = brought(desk, now_s, 1, Word.UNVERIFIABLE)
    assert (one.num, one.replica) == (2, "v.1")
    [one], now_s = brought(desk, now_s, 2, Word.UNVERIFIABLE)
    assert one.num == 3
    said, now_s = brought(desk, now_s, 3, Word.PASS)
    assert said == []
    [one], now_s = brought(desk, now_s, 4, Word.UNVERIFIABLE)
    assert one.num == 1


def test_what_was_spared_and_is_drawn_late_is_not_meant() -> None:
    """Some of its evidence may be gone."""
    desk, spared = numbered(), interval(0, Verdict.SPARED)
    desk.chronicle(Ledger({"v": (Named("s", (spared.name,)),)}, {spared.name: spared}), 0.0)
    desk.tick(People(left={"v": (spared,)}), 1.0)
    assert [one.verdict for one in desk.decisions()] == [Verdict.OPEN]
    assert brought(desk, 2.0, 0, Word.UNVERIFIABLE)[0] == []


def test_what_is_not_looked_at_yet_ends_the_row_until_it_is() -> None:
    """Nobody is sent away for evidence that waits for an auditor."""
    desk, here = numbered(), Candidate(Party("a"), State.ACTIVE, True)
    _, now_s = unshown(desk, People({"a": here}), 0.0, 0)
    both = {one.name: one for one in (interval(1), interval(2))}
    desk.chronicle(Ledger({}, both), now_s)
    desk.answered("a", interval(1).name, Bundle("b" * 64, 9), now_s)
    said = list[Unshown]()
    while not desk.decisions():
        now_s += 5.0
        desk.tick(People({"a": here}), now_s)
        said += [action for action in desk.take() if isinstance(action, Unshown)]
    assert [one.num for one in said] == [1]


def test_what_was_due_together_is_one_lapse() -> None:
    """A machine whose line is slow for once has several intervals open: it keeps its place."""
    desk, here = AuditDesk(Secret(b"k" * 32), Separation(), lambda: "0" * 32), Candidate(Party("a"), State.ACTIVE, True)
    both = [Interval(f"{at:064x}", at, "v", f"v.{at}", "a", IntervalSet.span(20 * at, 20 * at + 20), Verdict.OPEN) for at in (0, 1)]
    desk.chronicle(Ledger({}, {one.name: one for one in both}), 0.0)
    said, now_s = list[Unshown](), 0.0
    while len(desk.decisions()) < len(both):
        now_s += 5.0
        desk.tick(People({"a": here}), now_s)
        said += [action for action in desk.take() if isinstance(action, Unshown)]
    assert [one.num for one in said] == [1]


def test_each_new_checkpoint_begins_the_wait_anew() -> None:
    contributions, found = Contributions(), []
    for second in range(int(3 * PATIENCE_S)):
        shown = view(1 + second // int(PATIENCE_S / 2))
        found += contributions.look(shown, lambda item: report(BATCHES), {}, float(second), 0.0)
    assert found == []


def test_time_in_which_this_orchestrator_did_not_look_does_not_count() -> None:
    contributions = Contributions()
    assert contributions.look(view(0), lambda item: report(BATCHES), {}, 0.0, 0.0) == []
    assert contributions.look(view(0), lambda item: report(BATCHES), {}, 10 * PATIENCE_S, 0.0) == []


@pytest.mark.parametrize("state", [PLACING, RUNNING])
@pytest.mark.parametrize("said", [None, at(REQUESTED), at(PROVISIONING)], ids=["no report", "requested", "provisioning"])
def test_who_never_comes_to_work_is_found_out(
    said: orchestrator_pb2.ReplicaReport | None, state: model_pb2.JobState.ValueType
) -> None:
    """Its disk is full, or it does not obey: the job stood still without any deadline, with others idle beside it."""
    assert found_after(NEVER_S - 1, said, view(0, state))[0] == []
    found, contributions = found_after(NEVER_S + 1, said, view(0, state))
    assert found == ["a"]
    judged = contributions.judged([offer("a"), offer("b")], NEVER_S + 2)
    assert "has not come to work" in judged[0].useless["v"]
    assert ("disk_trouble" if said is not None else "says nothing") in judged[0].useless["v"]


def test_a_state_that_takes_long_to_get_there_has_the_time_and_no_word_of_a_slow_line_gives_more_than_hours() -> None:
    slow = record(downlink_mbit=20.0)  # 400 s for the state
    assert found_after(799, at(PROVISIONING), view(0), slow)[0] == []
    assert found_after(801, at(PROVISIONING), view(0), slow)[0] == ["a"]
    unknown = record(downlink_mbit=0.0)
    unknown_s = 2 * STATE_BYTES * 8 / (UNKNOWN_LINE_MBIT * 1e6)
    assert found_after(unknown_s - 1, at(PROVISIONING), view(0), unknown)[0] == []
    assert found_after(unknown_s + 1, at(PROVISIONING), view(0), unknown)[0] == ["a"]
    assert found_after(LONGEST_PROVISION_S + 1, at(PROVISIONING), view(0), record(downlink_mbit=1e-6))[0] == ["a"]


def test_who_cannot_come_to_work_now_is_a_matter_of_plans() -> None:
    paused, gone = record(), record(state=orchestrator_pb2.NODE_STATE_SUSPECT)
    paused.capability.accepts_work = False
    for node in (paused, gone):
        assert found_after(3 * NEVER_S, at(PROVISIONING), view(0), node)[0] == []
    assert found_after(3 * NEVER_S, at(FAILED), view(0))[0] == [], "it is placed elsewhere at once"
    leaving = view(0)
    assert leaving.plan is not None
    leaving.plan.assignments[0].hands_over_to = "b"
    assert found_after(3 * NEVER_S, at(orchestrator_pb2.ASSIGNMENT_STATE_RELEASED), leaving)[0] == []


def test_a_visit_at_work_does_not_begin_the_wait_anew_and_work_does() -> None:
    contributions, found = Contributions(), []
    for second in range(int(1.1 * NEVER_S)):
        said = report(0, source="u.1") if second % 100 == 99 else at(PROVISIONING)
        found += contributions.look(view(0), lambda item, said=said: said, {"a": record()}, float(second), 0.0)  # type: ignore[misc]
    assert [item.came_to_work for item in found] == [False]
    contributions, found = Contributions(), []
    for second in range(int(4 * NEVER_S)):
        said = report(0, source="u.1") if second // 200 % 2 else at(PROVISIONING)
        found += contributions.look(view(0), lambda item, said=said: said, {"a": record()}, float(second), 0.0)  # type: ignore[misc]
    assert found == []
