"""Goal: a state that nobody can learn from is traced back through what the draw spared: newest first, a few at once, each once, until a fault takes it back;
and what was spared of a PNode is looked at when it is found out.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from audited_rig import NODES, NOW_MS, Job, judged, name_of, piece
from audited_rig import drawn as drawing

from dataservice.memory import MemoryStore
from dcnr.errors import InvariantBroken, RemoteFault
from dcnr.intervals import IntervalSet
from dcnr.system import SystemClock
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.audit_case import SOLE_S
from orchestrator.audit_doubters import Doubters, begins_with
from orchestrator.audit_events import (
    Bundle,
    Decision,
    People,
    Report,
    SendChallenge,
    SendTask,
    TakenBack,
    Unshown,
    VerifyRecord,
    Word,
)
from orchestrator.audit_people import left_of, people_of
from orchestrator.audits import AuditDesk
from orchestrator.exits import ExitBook
from orchestrator.history import History
from orchestrator.inventory import Inventory
from orchestrator.progress import progress_of
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.standings import Standings
from orchestrator.view import JobFacts, ModelView
from pnode.hosted import MAX_UNLEARNED, Averages
from trust.auditors import Candidate
from trust.draw import Secret
from trust.folding import Told
from trust.going_back import Cause
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.late_draw import (
    AT_ONCE,
    BURST_LOSS,
    MAX_OLD,
    MAX_SPARED,
    SPARED_KEPT_S,
    UNLEARNED,
    backwards,
    drawn_late,
    drawn_of_the_found_out,
    left_behind,
    spared_lately,
)
from trust.ledger import Interval, Ledger, Named, Verdict
from trust.network import create_document, verify_chain
from trust.separation import Party, Separation
from trust.standing import FIRST_QUARANTINE_S, State
from vnode.registry import default_registry
from vnode.vocabulary import TRAIN_LANE, Lane

NOW_S = NOW_MS / 1000
VERIFIER = Party("verifier")
HERE = {name: Candidate(Party(name), State.PROBATION, True) for name in NODES.values()}


def ledger(num: int, verdicts: dict[int, Verdict] | None = None, replica: str = "a.0") -> Ledger:
    """A line of so many checkpoints of VNode a, each of one interval, and one of VNode b; spared where nothing else is said."""
    told = verdicts or {}
    intervals = {
        str(at): Interval(str(at), at, "a", replica, "x", IntervalSet.span(at, at + 1), told.get(at, Verdict.SPARED))
        for at in range(num)
    }
    intervals["b"] = Interval("b", num, "b", "b.0", "y", IntervalSet.span(0, 1), Verdict.SPARED)
    lines = {
        "a": (Named("begin", ()), *(Named(f"s{at}", (str(at),)) for at in range(num))),
        "b": (Named("b0", ()), Named("b1", ("b",))),
    }
    return Ledger(lines, intervals)


def drawn(found: Ledger, state: str) -> tuple[str, ...]:
    return drawn_late(found, ("a", "b"), state, found.intervals)


def test_the_newest_come_first_from_the_broken_state_on_and_a_few_at_once() -> None:
    assert [one.name for one in backwards(ledger(3), "a")] == ["2", "1", "0"]
    assert drawn(ledger(9), "s5") == ("5", "4", "3", "2")
    assert len(drawn(ledger(9), "s5")) == AT_ONCE
    assert drawn(ledger(9, dict.fromkeys((4, 5), Verdict.OPEN)), "s5") == ("3", "2")
    assert drawn(ledger(9, dict.fromkeys((2, 3, 4, 5), Verdict.OPEN)), "s5") == ()


def test_those_before_follow_when_all_of_the_vnode_are_judged_and_then_nobody() -> None:
    passed = dict.fromkeys(range(3), Verdict.PASSED)
    assert drawn(ledger(3, {**passed, 0: Verdict.OPEN}), "s2") == ()
    assert drawn(ledger(3, passed), "s2") == ("b",)
    judged_all = replace(ledger(3, passed), lines={"a": ledger(3).lines["a"]})
    assert drawn(judged_all, "s2") == ()


def test_nothing_is_drawn_for_a_state_that_counts_no_more_or_whose_evidence_may_be_gone() -> None:
    assert drawn(ledger(3), "retracted") == ()
    assert drawn_late(ledger(3), ("a",), "s2", {"1"}) == ("1",)
    many = ledger(2 * MAX_SPARED + 4, dict.fromkeys(range(4, 2 * MAX_SPARED + 4), Verdict.PASSED))
    assert drawn(many, f"s{2 * MAX_SPARED + 3}") == ("3", "2", "1", "0"), "passed ones are not counted"
    spared = ledger(MAX_SPARED + 2)
    recent = {"0", "1", "2"}
    assert drawn_late(spared, ("a",), f"s{MAX_SPARED + 1}", recent) == ("2", "1", "0")


def told(found: Ledger, *, spared_s: float = NOW_S) -> list[Told]:
    """What the draw said, a second after another."""
    names = [str(at) for at in range(len(found.intervals) - 1)]
    return [Told("x", name, Verdict.SPARED, spared_s + at, spared_s + at, "") for at, name in enumerate(names)]


def test_small_intervals_put_no_large_one_out_of_sight() -> None:
    found = ledger(2 * MAX_SPARED)
    said = [replace(one, num_batches=4096 if one.interval == "0" else 1) for one in told(found)]
    lately = spared_lately(found, said, NOW_S + 60)
    assert list(lately) == [*(str(at) for at in range(2 * MAX_SPARED - 1, MAX_SPARED - 1, -1)), "0"]
    assert left_behind(found, said, {"x": NOW_S + 99}, NOW_S + 60)["a"][0].name == "0", "the oldest is drawn first"
    large = [replace(one, num_batches=1 if one.interval == "0" else 4096) for one in told(found)]
    assert "0" not in spared_lately(found, large, NOW_S + 60), "nor is a small one kept behind as many large ones"


def left(found: Ledger, found_out_s: dict[str, float], now_s: float = NOW_S + 60) -> dict[str, list[str]]:
    some = left_behind(found, told(found), found_out_s, now_s)
    return {vnode: [one.name for one in intervals] for vnode, intervals in some.items()}


def test_what_was_spared_of_a_pnode_before_it_was_found_out_is_left_behind_the_oldest_first() -> None:
    assert left(ledger(3), {}) == {}
    assert left(ledger(3), {"y": NOW_S + 9}) == {}, "nobody has told of what it did"
    assert left(ledger(3), {"x": NOW_S + 1}) == {"a": ["0", "1"]}, "what it did after its quarantine is no part of it"
    assert left(ledger(3), {"x": NOW_S - 1}) == {}
    assert left(ledger(3, {1: Verdict.PASSED, 2: Verdict.OPEN}), {"x": NOW_S + 9}) == {"a": ["0"]}
    assert left(replace(ledger(3), lines={"a": ledger(3).lines["a"][:2]}), {"x": NOW_S + 9}) == {"a": ["0"]}, "others count no more"


def test_it_is_left_alone_where_its_evidence_may_be_gone() -> None:
    half_s = SPARED_KEPT_S / 2
    assert left(ledger(3), {"x": NOW_S + 9}, NOW_S + half_s + 1) == {"a": ["2"]}
    assert left(ledger(3), {"x": NOW_S + 9}, NOW_S + half_s + 2) == {}
    old, new = told(ledger(1), spared_s=NOW_S - SPARED_KEPT_S), told(ledger(3))[1:]
    assert list(spared_lately(ledger(3), [*new, *old], NOW_S)) == ["2", "1"], "a clock that was wrong hides nothing before it"


class Long(list[Told]):
    """Which counts how far it is gone through from its end."""

    num_read = 0

    def __reversed__(self) -> Iterator[Told]:
        for one in super().__reversed__():
            self.num_read += 1
            yield one


def test_what_a_job_of_weeks_has_told_is_not_gone_through_in_each_look() -> None:
    """A doubt a few times a day kept every look of the holder, one a second, at all verdicts of the job: its beats waited for that."""
    found = ledger(3)
    old = [replace(told(found)[0], decided_s=NOW_S - SPARED_KEPT_S)] * (4 * MAX_OLD)
    said = Long([*old, *told(found)[1:]])
    assert list(spared_lately(found, said, NOW_S + 60)) == ["2", "1"]
    assert said.num_read <= MAX_OLD + 3


def test_of_a_replica_the_newest_that_were_ever_spared_are_kept_and_what_is_drawn_makes_no_room_for_older_ones() -> None:
    whole = ledger(MAX_SPARED + 4)
    kept = [str(at) for at in range(4, MAX_SPARED + 4)]
    assert left(whole, {"x": NOW_S + 99}) == {"a": kept}
    judged_some = ledger(MAX_SPARED + 4, {4: Verdict.OPEN, 5: Verdict.PASSED})
    assert left(judged_some, {"x": NOW_S + 99}) == {"a": kept[2:]}


def test_of_what_is_left_behind_no_more_is_drawn_than_may_be_open() -> None:
    many = ledger(9)
    behind = left_behind(many, told(many), {"x": NOW_S + 9}, NOW_S + 60)
    assert drawn_of_the_found_out(many, behind) == ("0", "1", "2", "3")
    assert drawn_of_the_found_out(ledger(9, {8: Verdict.OPEN}), behind) == ("0", "1", "2")
    assert drawn_of_the_found_out(ledger(9, dict.fromkeys((5, 6, 7, 8), Verdict.OPEN)), behind) == ()
    b = many.intervals["b"]
    assert drawn_of_the_found_out(many, {**behind, "b": (b,)}) == ("0", "1", "2", "3", "b"), "each VNode has its own"
    same = replace(many, intervals={**many.intervals, "b": replace(b, pnode_id="x")})
    assert drawn_of_the_found_out(same, {**behind, "b": (same.intervals["b"],)}) == ("0", "1", "2", "3"), "one line carries it all"


class Network:
    """A desk over manifests as in a network. x cheated in a-2, which was spared; y learned on from it. ``drawn``: what was not spared."""

    def __init__(self, *drawn: str) -> None:
        self.job, self.now_s = Job(), NOW_S
        self.job.named(
            judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]), judged("b1", "b0", piece("b-1", 0, 4, "z"), held=[(0, 4)])
        )
        self.job.named(judged("a2", "a1", piece("a-2", 4, 8), held=[(0, 8)]))
        self.job.named(judged("a3", "a2", piece("a-3", 8, 12, "y", "a.1"), held=[(0, 12)]), draw=drawing(*drawn))
        numbers = itertools.count()
        self.desk = AuditDesk(Secret(b"k" * 32), Separation(single_host=True), lambda: f"{next(numbers):032x}")
        self.told: dict[str, str] = {}
        """Intervals audited late, with the finding."""
        self.here, self.silent, self.ahead, self.has_time = dict(HERE), set[str](), dict[str, tuple[str, ...]](), True
        """``silent``: who shows no evidence, here or not, and what nobody answers for."""
        self.tells()

    def tells(self) -> None:
        self.desk.chronicle(self.job.chain().ledger, self.now_s)

    def verdict(self, name: str) -> Verdict:
        return self.job.chain().ledger.intervals[name_of(name)].verdict

    def round(
        self, broken: str, cheats: frozenset[str], found_out: frozenset[str] = frozenset(), *, unclear: frozenset[str] = frozenset()
    ) -> None:
        """One look of the holder: everybody answers, the verifier finds the truth, a manifest says what is decided. ``unclear``: where last bits grow."""
        self.now_s += SOLE_S / 2 if unclear else 1
        found = self.job.chain().ledger
        states = {"a": name_of(broken)} if broken else {}
        out_s = {NODES[name]: self.now_s for name in found_out}
        behind = left_behind(found, self.job.chain().chronicle.told, out_s, self.now_s)
        people = People(
            self.here, (VERIFIER,), broken=states, doubtful=dict(self.desk.doubters.taken_back), recent=frozenset(found.intervals), left=behind,
            ahead=self.ahead, has_time=self.has_time,
        )  # fmt: skip
        self.desk.tick(people, self.now_s)
        for action in self.desk.take():
            match action:
                case SendChallenge() if action.pnode_id in self.here.keys() - self.silent:
                    self.desk.answered(action.pnode_id, action.interval, Bundle("e" * 64, 1), self.now_s)
                case SendTask() if action.interval not in self.silent:
                    word = Word.FAULT if action.interval in cheats else Word.DOUBT if action.interval in unclear else Word.PASS
                    self.told[action.interval] = word.value
                    self.desk.reported(
                        Report(action.task_id, action.auditor, action.interval, word, "weights", "f" * 64), self.now_s
                    )
                case VerifyRecord():
                    self.desk.verified(action.interval, action.auditor, self.now_s, proven=True, part="weights")
        self.desk.check()
        self.job.named(decisions=self.desk.decisions())
        self.tells()


def test_a_cheat_that_was_not_drawn_is_found_when_its_state_breaks_and_goes_back_with_all_that_stands_on_it() -> None:
    network = Network()
    for _ in range(6):
        network.round("", frozenset())
    assert not network.told, "nobody looks at what was spared"
    for _ in range(8):
        network.round("a3", frozenset({name_of("a-2")}))
    assert network.told[name_of("a-2")] == "fault"
    assert (network.verdict("a-2"), network.verdict("a-1"), network.verdict("a-3")) == (
        Verdict.FAILED,
        Verdict.PASSED,
        Verdict.DROPPED,
    )
    assert network.verdict("b-1") is Verdict.SPARED, "it learned nothing of what goes back"
    assert network.job.working("a") == [name_of("a1"), name_of("a0")]
    assert network.job.newest.fences == {"a": 7, "b": 7}, "whoever is behind may have learned from it what no manifest names yet"


def test_a_cheat_that_was_not_drawn_is_found_where_last_bits_grow_from_its_state_on() -> None:
    """Whoever learns on from there is doubted for ever, and taken back to that state, and nobody would be blamed for it."""
    network = Network("a-3")
    for _ in range(12):
        network.round("", frozenset({name_of("a-2")}), unclear=frozenset({name_of("a-3")}))
    assert network.told == {name_of("a-3"): "doubt", name_of("a-2"): "fault", name_of("a-1"): "pass"}
    assert (network.verdict("a-3"), network.verdict("a-2"), network.verdict("a-1")) == (
        Verdict.UNVERIFIABLE, Verdict.FAILED, Verdict.PASSED,
    )  # fmt: skip
    assert network.job.working("a") == [name_of("a1"), name_of("a0")]


def test_where_rates_make_last_bits_grow_what_was_spared_is_looked_at_once_and_stays() -> None:
    network = Network("a-3")
    for _ in range(12):
        network.round("", frozenset(), unclear=frozenset({name_of("a-3")}))
    assert network.told == {name_of("a-3"): "doubt", name_of("a-2"): "pass", name_of("a-1"): "pass"}
    assert network.job.working("a")[0] == name_of("a2")


def test_where_nothing_was_measured_nothing_is_drawn_for_that() -> None:
    network = Network("a-3")
    case = network.desk._cases[name_of("a-3")]
    unshown = Decision(name_of("a-3"), Verdict.UNVERIFIABLE, "nobody has its inputs", Cause.UNVERIFIABLE)
    network.desk.doubters.decided(case, unshown, found := network.job.chain().ledger)
    assert not network.desk.doubters.held
    case.words["x"] = Report("t" * 32, "x", name_of("a-3"), Word.DOUBT)
    network.desk.doubters.decided(case, Decision(name_of("a-3"), Verdict.PASSED, "two others found nothing"), found)
    assert not network.desk.doubters.held
    assert begins_with(found, replace(case.interval, vnode="c")) == "", "a VNode of another job"
    assert begins_with(found, replace(case.interval, number=0)) == name_of("a0")


def test_a_good_state_that_somebody_calls_broken_costs_each_interval_one_audit_and_nobody_anything() -> None:
    network = Network()
    for _ in range(20):
        network.round("a3", frozenset())
    assert {network.verdict(f"a-{number}") for number in (1, 2, 3)} == {Verdict.PASSED}
    assert list(network.told.values()) == ["pass"] * 3
    assert network.job.working("a")[0] == name_of("a3")
    assert network.job.cleared("a") == name_of("a3")


def test_what_a_pnode_did_before_it_was_found_out_is_audited_and_what_was_wrong_goes_back() -> None:
    network = Network()
    for _ in range(8):
        network.round("", frozenset({name_of("a-2")}), frozenset("x"))
    assert network.told == {name_of("a-1"): "pass", name_of("a-2"): "fault"}, "what others did is not looked at"
    assert (network.verdict("a-2"), network.verdict("a-1"), network.verdict("a-3")) == (
        Verdict.FAILED,
        Verdict.PASSED,
        Verdict.DROPPED,
    )


def test_what_an_honest_pnode_did_before_a_single_fault_stays() -> None:
    network = Network()
    for _ in range(8):
        network.round("", frozenset(), frozenset("x"))
    assert network.told == {name_of("a-1"): "pass", name_of("a-2"): "pass"}
    assert network.job.working("a")[0] == name_of("a3")


def test_a_job_is_not_over_while_something_will_be_drawn_late() -> None:
    head = model_pb2.Head(active=model_pb2.ActiveJob(job_id="j"))
    job = JobFacts(model_pb2.JobRequest(job_id="j", num_batches=4), "0" * 64, model_pb2.ModelGraph(), b"", (), ())  # type: ignore[arg-type]
    network = Network()
    view = ModelView("m", head, b"", job=job, chain=network.job.chain())
    found = progress_of(view, lambda _: None, ExitBook(), 0.0, 2)
    assert found is not None
    assert found.num_open_audits == 2


def test_only_what_gives_nothing_finite_or_bursts_counts_as_tried_in_vain() -> None:
    found = Averages()
    broken = InvariantBroken("the local loss is not finite", code="not_finite")
    for batch in (1, 2, 2):
        found.failed(TRAIN_LANE, batch, broken)
    found.failed(Lane("validation", 1), 3, broken)
    found.failed(TRAIN_LANE, 4, RemoteFault("a neighbour's tensor", code="not_finite"))
    found.failed(TRAIN_LANE, 5, InvariantBroken("something else", code="bad_mode"))
    assert found.unlearned == {1, 2}
    found.add(6, 0.1, BURST_LOSS * 1.01)
    assert found.unlearned == {1, 2, 6}, "every number is finite, and yet nothing is left to learn from"
    for batch in range(2 * MAX_UNLEARNED):
        found.add(batch, 0.1, BURST_LOSS * 2)
        found.failed(TRAIN_LANE, -batch, broken)
    assert len(found.unlearned) == MAX_UNLEARNED
    found.add(7, 0.1, BURST_LOSS)
    assert not found.unlearned


def test_a_replica_of_the_plan_that_learns_nothing_finite_from_a_state_that_counts_is_seen() -> None:
    job, key = Job(), NodeKey.generate()
    job.named(judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]))
    policy = verify_chain([create_document(key, name="n", now_wall=NOW_S, orchestrator_ids=[key.node_id], audits="drawn")])
    clock = SystemClock()
    shared = Shared(
        key,
        InForce(policy),
        MemoryStore(clock, random.Random(1)),
        clock,
        default_registry(),
        Inventory(),
        History(None, key.node_id, clock),
    )
    plan = model_pb2.Plan(assignments=[model_pb2.Assignment(replica="a.0", vnode="a", pnode_id=NODES["x"])])
    view = ModelView("m", model_pb2.Head(), b"", plan=plan, chain=job.chain())

    def seen(**changes: Any) -> dict[str, str]:
        facts = {"replica": "a.0", "vnode": "a", "checkpoint_digest": name_of("a1"), "num_unlearned": UNLEARNED, **changes}
        report = orchestrator_pb2.ReplicaReport(**facts)
        shared.inventory.beat(NODES["x"], clock.monotonic(), orchestrator_pb2.Beat(worker_alive=True, replicas=[report]), 2.0)
        return dict(people_of(view, shared).broken)

    shared.inventory.attached(NODES["x"], clock.monotonic())
    assert seen() == {"a": name_of("a1")}
    assert seen(checkpoint_digest="", restored_from=name_of("a0")) == {"a": name_of("a0")}
    assert seen(num_unlearned=UNLEARNED - 1) == {}
    assert seen(checkpoint_digest=name_of("taken back")) == {}
    assert seen(replica="a.9") == {}, "it is in no plan"
    doubters = Doubters()
    assert view.chain is not None
    doubters.held = {name_of("a-1"): (view.chain.ledger.intervals[name_of("a-1")], 0.0)}
    assert people_of(view, shared, doubters).recent
    doubters.taken_back, doubters.held = {"a": TakenBack(0, name_of("a0"), 1, 0.0)}, {}
    assert people_of(view, shared, doubters).doubtful == doubters.taken_back
    assert people_of(view, shared, doubters).recent
    head = model_pb2.Head(active=model_pb2.ActiveJob(state=model_pb2.JOB_STATE_SETTLING, settling_s=1))
    request = JobFacts(model_pb2.JobRequest(num_batches=4), "0" * 64, model_pb2.ModelGraph(), b"", (), ())  # type: ignore[arg-type]
    settling = replace(view, head=head, job=request)
    assert [people_of(one, shared).has_time for one in (view, settling)] == [True, False]
    assert not people_of(settling, shared, doubters).doubtful, "what is open when the job ends has no credit, nor what stands on it"
    assert not people_of(settling, shared, doubters).recent
    doubters.taken_back = {"a": replace(doubters.taken_back["a"], is_again=True)}
    assert people_of(settling, shared, doubters).doubtful, "but what goes back again and again nobody learns before it ends"
    assert people_of(settling, shared, doubters).recent

    assert people_of(view, shared).left == left_of(view, shared.standings, NOW_S) == {}
    assert not people_of(view, shared).found_out
    shared.standings.lied(NODES["x"], "e" * 64, "it passed what is wrong", NOW_S + 60)
    assert view.chain is not None
    assert people_of(view, shared).left == {"a": (view.chain.ledger.intervals[name_of("a-1")],)}
    runtime = ModelRuntime("m", shared)
    assert runtime.decider.num_late(view) == 1, "whoever decides on the job asks the desk"
    runtime.auditing.unshown(Unshown(NODES["x"], "a", "a.0", 2, "it showed no evidence"))
    assert [one.kind for one in shared.history.since(0, 9)][-1] == "node_not_useful", "and is told who shows it nothing"
    for is_late in (True, False):
        action = Unshown(NODES["x"], "a", "a.0", 2, "everybody measures otherwise", is_late)
        runtime.auditing._desk, runtime.auditing._group = (
            SimpleNamespace(take=lambda one=action: [one], decisions=tuple),
            SimpleNamespace(),
        )  # type: ignore[assignment]
        runtime.auditing._act(view)
        assert len(shared.observer._found["m"]) == 1, "what is doubted was in time"
    assert left_of(view, shared.standings, NOW_S + 60 + SPARED_KEPT_S) == {}


def test_what_a_pnode_did_until_its_quarantine_was_over_is_suspect() -> None:
    standings = Standings()
    standings.lied("x", "e" * 64, "it passed what is wrong", NOW_S)
    assert standings.found_out_s(NOW_S - 1) == {"x": NOW_S + FIRST_QUARANTINE_S}
    assert standings.found_out_s(NOW_S) == {}
    standings.equivocated("x", "f" * 64, NOW_S + 1)
    assert standings.found_out_s(NOW_S) == {"x": math.inf}


def test_while_a_job_settles_nothing_is_drawn_that_nobody_has_time_to_show() -> None:
    network, standings = Network(), Standings()
    standings.lied(NODES["x"], "e" * 64, "it passed what is wrong", NOW_S)

    def seen(deadline_s: float, settling_s: float, state: model_pb2.JobState.ValueType = model_pb2.JOB_STATE_SETTLING) -> int:
        head = model_pb2.Head(active=model_pb2.ActiveJob(job_id="j", state=state, settling_s=settling_s))
        request = model_pb2.JobRequest(job_id="j", settling_deadline_s=deadline_s)
        job = JobFacts(request, "0" * 64, model_pb2.ModelGraph(), b"", (), ())  # type: ignore[arg-type]
        view = ModelView("m", head, b"", job=job, chain=network.job.chain())
        return len(left_of(view, standings, NOW_S + 60).get("a", ()))

    assert seen(900.0, 300.0) == 2
    assert seen(900.0, 301.0) == 0
    assert seen(900.0, 800.0, model_pb2.JOB_STATE_RUNNING) == 2
