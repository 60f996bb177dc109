"""Goal: what only one holder heard outlives it: a successor that knows the store alone finds a lying auditor, and counts units of a way back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from audited_rig import NODES, Job, drawn, judged, name_of, piece

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.errors import NotFound
from dcnr.ids import Digest, digest_of
from dcnr.limits import SETTLING_DEADLINE_S
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, membership_pb2, model_pb2, orchestrator_pb2
from orchestrator.audit_case import AUDIT_S
from orchestrator.audit_events import Bundle, Decision, Pay, Report, Word
from orchestrator.audit_memory import MAX_REMEMBERED, AuditMemory, Remembered, proven_in, units_in
from orchestrator.audit_people import people_of
from orchestrator.audit_words import open_report
from orchestrator.auditing import Auditing
from orchestrator.audits import AuditDesk
from orchestrator.history import History
from orchestrator.inventory import Inventory
from orchestrator.runtime import Shared
from orchestrator.signal import Signal
from orchestrator.standings import Standings
from orchestrator.view import JobFacts, ModelView
from trust.delegation import make_delegation
from trust.draw import Secret, Task, task_of
from trust.envelope import seal
from trust.folding import Told
from trust.going_back import Cause
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.ledger import Verdict
from trust.network import create_document, verify_chain
from trust.separation import Separation
from trust.standing import ACTIVE_PASSES, State
from vnode.registry import default_registry

CLOCK = SystemClock()
FIRST, SECOND, STRANGER, AUDITOR, WORKER = (NodeKey.generate() for _ in range(5))
POLICY = verify_chain(
    [
        create_document(
            STRANGER,
            name="n",
            now_wall=CLOCK.wall(),
            orchestrator_ids=[FIRST.node_id, SECOND.node_id],
            audits="drawn",
            locality=identity_pb2.LOCALITY_SINGLE_HOST,
        )
    ]
)
EVIDENCE = name_of("evidence")
BUNDLE_BYTES = b"evidence"
BUNDLE = Bundle(digest_of(BUNDLE_BYTES), len(BUNDLE_BYTES))
SECRET = next(
    secret
    for secret in (Secret(bytes([number]) * 32) for number in range(256))
    if all(task_of(secret, name_of(one), AUDITOR.node_id, 0, 0) is Task.REAL for one in ("a-1", "b-1"))
)


def signed(
    interval: str, finding: model_pb2.AuditFinding.ValueType, task_id: str = "a" * 32, key: NodeKey = WORKER
) -> identity_pb2.Envelope:
    report = model_pb2.AuditReport(
        network_id=POLICY.network_id, model="m", task_id=task_id, interval=interval, pnode_id=AUDITOR.node_id, finding=finding,
        delegation=make_delegation(AUDITOR, POLICY.network_id, WORKER.public_der, 1, ["127.0.0.1:1"], CLOCK.wall()),
    )  # fmt: skip
    return seal(identity_pb2.DOMAIN_AUDIT_REPORT, report, key)


def opened(envelope: identity_pb2.Envelope) -> Report:
    return open_report(envelope, POLICY.network_id, AUDITOR.node_id, CLOCK.wall())[1]


def memory(store: MemoryStore, key: NodeKey = FIRST, job: str = "job") -> AuditMemory:
    return AuditMemory(store, lambda: POLICY, key, "m", job)


def store() -> MemoryStore:
    return MemoryStore(CLOCK, random.Random(1))


def hear(found: AuditMemory, interval: str, at_ms: int, *, is_unit: bool = False) -> Report:
    envelope = signed(interval, model_pb2.AUDIT_FINDING_PASS)
    report = opened(envelope)
    found.heard(report, envelope, at_ms, is_unit=is_unit)
    return report


def test_every_desk_reads_what_all_have_heard_and_keeps_its_own_over_a_restart() -> None:
    async def scenario() -> None:
        place = store()
        first, second = memory(place), memory(place, SECOND)
        one = hear(first, name_of("a-1"), 3)
        await first.write()
        assert await first.recall() == [], "nothing is written before what was there has been read"
        await first.write()
        await second.recall()
        two = hear(second, name_of("a-2"), 2, is_unit=True)
        await second.write()
        again = memory(place)
        assert await again.recall() == [Remembered(two, 2, True), Remembered(one, 3, False)]
        three = hear(again, name_of("a-3"), 4)
        await again.write()
        assert [item.report for item in await memory(place, SECOND).recall()] == [two, one, three]
        assert await memory(place, job="other").recall() == []

    asyncio.run(scenario())


def test_what_a_listed_orchestrator_did_not_sign_or_no_auditor_said_is_not_remembered() -> None:
    async def scenario() -> None:
        place = store()
        genuine = signed(name_of("a-1"), model_pb2.AUDIT_FINDING_PASS)
        forged = signed(name_of("a-2"), model_pb2.AUDIT_FINDING_PASS, key=STRANGER)
        facts = {"network_id": POLICY.network_id, "model": "m", "job_id": "job", "holder": FIRST.node_id}
        reports = [model_pb2.RememberedReport(report=one, heard_unix_ms=1) for one in (forged, genuine)]
        key = keys.desk_memory("m", "job", FIRST.node_id)

        async def recalled(signer: NodeKey, **changes: str) -> list[str]:
            message = model_pb2.DeskMemory(**{**facts, **changes}, reports=reports)  # type: ignore[arg-type]
            await place.put(key, seal(identity_pb2.DOMAIN_DESK_MEMORY, message, signer).SerializeToString(deterministic=True))
            return [one.report.interval for one in await memory(place, SECOND).recall()]

        assert await recalled(FIRST) == [name_of("a-1")]
        assert await recalled(SECOND) == []
        assert await recalled(STRANGER) == []
        assert await recalled(FIRST, job_id="other") == []
        assert await recalled(FIRST, holder=SECOND.node_id) == []
        await place.put(key, b"garbage")
        assert await memory(place, SECOND).recall() == []

    asyncio.run(scenario())


def test_the_newest_are_kept() -> None:
    async def scenario() -> None:
        place = store()
        found = memory(place)
        await found.recall()
        for number in range(MAX_REMEMBERED + 2):
            hear(found, name_of(str(number)), number)
        await found.write()
        assert [one.heard_ms for one in await memory(place).recall()] == list(range(2, MAX_REMEMBERED + 2))

    asyncio.run(scenario())


def test_whoever_is_under_doubt_stays_so() -> None:
    job = Job()
    job.named(judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]), draw=drawn("a-1"))
    desk = AuditDesk(SECRET, Separation(single_host=True), lambda: "0" * 32)
    desk.chronicle(job.chain().ledger, 5.0)
    doubt = Report("t" * 32, "auditor", name_of("a-1"), Word.DOUBT)
    desk.recalled([doubt, replace(doubt, auditor=NODES["x"]), replace(doubt, interval="9" * 64)], [0.0] * 3)
    [found] = desk.doubts()
    assert (found.accused, found.auditor, found.at_s) == (NODES["x"], "auditor", 5.0)
    desk.check()


def test_units_of_a_way_back_count_by_what_the_chain_says() -> None:
    job = Job()
    job.named(
        judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]), judged("b1", "b0", piece("b-1", 4, 8, "z"), held=[(4, 8)]), draw=drawn("a-1", "b-1")
    )  # fmt: skip
    job.named(decisions=[Decision(name_of("b-1"), Verdict.PASSED, "why")])
    job.named(decisions=[Decision(name_of("a-1"), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE)])

    def unit(name: str, word: Word) -> Remembered:
        return Remembered(Report("t" * 32, "p", name_of(name), word), 1, True)

    told = [
        unit("a-1", Word.FAULT),
        unit("a-1", Word.PASS),
        unit("b-1", Word.PASS),
        unit("b-1", Word.FAULT),
        unit("b-1", Word.DOUBT),
    ]
    assert [right for _, right in units_in(told, job.chain(), {name_of("a-1"): ""})] == [True, False, True, False]
    assert [right for _, right in units_in(told, job.chain(), {})] == [True, False], "a failure counts when it was verified here"
    assert units_in([replace(one, is_unit=False) for one in told], job.chain(), {}) == []


@pytest.mark.parametrize("is_equivocation", [True, False])
def test_evidence_of_two_stories_is_none_that_a_pass_or_a_unit_was_wrong(is_equivocation: bool) -> None:
    job, standings = Job(), Standings()
    job.named(judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]), draw=drawn("a-1"))
    job.named(decisions=[Decision(name_of("a-1"), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE)])
    if is_equivocation:
        standings.equivocated(NODES["x"], "7" * 64, 1.0)
        standings.equivocated(NODES["x"], EVIDENCE, 2.0)  # found again: its key is banned already
    standings.verified((EVIDENCE, NODES["x"], name_of("a-1")))
    told = [Remembered(Report("t" * 32, "p", name_of("a-1"), Word.PASS, digest="d" * 64), 1, is_unit) for is_unit in (False, True)]
    proven = proven_in(told, job.chain(), standings.has_seen_wrong)
    desk = AuditDesk(SECRET, Separation(single_host=True), lambda: "0" * 32)
    desk.chronicle(job.chain().ledger, 5.0)
    desk.recalled([told[0].report], [0.0])
    desk.proven(dict.fromkeys(proven, ""))
    pays = [one.auditor for one in desk.take() if isinstance(one, Pay)]
    assert (pays, [right for _, right in units_in(told, job.chain(), dict.fromkeys(proven, ""))]) == (
        ([], []) if is_equivocation else (["p"], [False])
    )


@pytest.mark.parametrize(("passed", "failed", "pays"), [("b", "c", False), ("b", "b", True), ("", "c", True), ("b", "", True)])
def test_a_pass_is_held_against_what_the_same_evidence_shows(passed: str, failed: str, pays: bool) -> None:
    """An accused may show a successor something else. Who does not say what it audited is judged by whatever there is."""
    job, standings = Job(), Standings()
    job.named(judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]), draw=drawn("a-1"))
    job.named(decisions=[Decision(name_of("a-1"), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE)])
    standings.verified((EVIDENCE, NODES["x"], name_of("a-1")), failed * 64)
    word = Report("t" * 32, "p", name_of("a-1"), Word.PASS, digest="d" * 64, bundle=passed * 64)
    told = [Remembered(word, 1, is_unit) for is_unit in (False, True)]
    wrong = {
        name: standings.bundle_of(one.evidence) for name, one in proven_in(told, job.chain(), standings.has_seen_wrong).items()
    }
    desk = AuditDesk(SECRET, Separation(single_host=True), lambda: "0" * 32)
    desk.chronicle(job.chain().ledger, 5.0)
    desk.recalled([word], [0.0])
    desk.proven(wrong)
    assert bool([one for one in desk.take() if isinstance(one, Pay)]) is pays
    assert [right for _, right in units_in(told, job.chain(), wrong)] == ([False] if pays else [])


class Holder:
    """One orchestrator's audits, around a real shell; PNodes and manifests are this test's."""

    def __init__(self, key: NodeKey, place: MemoryStore, job: Job) -> None:
        self.job, self.tasks = job, list[model_pb2.AuditTask]()
        history = History(None, key.node_id, CLOCK)
        self.shared = Shared(key, InForce(POLICY), place, CLOCK, default_registry(), Inventory(), history, draw_secret=SECRET)
        self.joins(AUDITOR.node_id)
        self.auditing = Auditing(
            "m", self.shared, view=lambda: self.view, job=self._job, plan=self._plan, is_holder=lambda: True, wake=Signal()
        )
        self.view = ModelView("m", model_pb2.Head(), b"")
        self.work = asyncio.create_task(self.auditing.run())

    def joins(self, node_id: str) -> None:
        """An active PNode is here from now on."""
        now_s = CLOCK.wall()
        passed = [Told(node_id, f"{at:064x}", Verdict.PASSED, now_s, now_s, "") for at in range(int(ACTIVE_PASSES) + 1)]
        self.shared.standings.chain(f"another of {node_id}", tuple(passed))
        self.shared.inventory.attached(node_id, CLOCK.monotonic())
        beat = orchestrator_pb2.Beat(worker_alive=True, capability=membership_pb2.Capability(accepts_work=True))
        self.shared.inventory.beat(node_id, CLOCK.monotonic(), beat, 60.0)
        self.shared.mailbox.opened(node_id, self._mail)

    async def looks(self, epoch: int = 1) -> None:
        """The newest manifest is read."""
        active = model_pb2.ActiveJob(job_id="job")
        head = model_pb2.Head(holder=self.shared.key.node_id, epoch=epoch, active=active, manifest_digest=self.job.digest(-1))
        chain = replace(await asyncio.to_thread(self.job.chain), checkpoints={})  # whose commits are in no store here
        self.view = ModelView("m", head, b"", chain=chain)

    def state(self) -> State:
        return self.shared.standings.of(AUDITOR.node_id, CLOCK.wall()).state

    async def until(self, what: Callable[[], bool], why: str) -> None:
        """Waits for it; the inventory is judged meanwhile, as by its own loop."""
        async with asyncio.timeout(120):
            while not what():
                assert not self.work.done(), why
                self.shared.inventory.tick(CLOCK.monotonic())
                await asyncio.sleep(0.02)

    async def brings(self, accused: str, interval: str) -> None:
        """An accused shows its evidence."""
        vnode = self.view.chain.ledger.intervals[interval].vnode if self.view.chain is not None else ""
        await self.shared.store.put(keys.evidence("m", vnode, Digest(BUNDLE.digest)), BUNDLE_BYTES)
        self.auditing.answered(accused, model_pb2.Evidence(interval=interval), BUNDLE)

    async def audits(self, interval: str, accused: str) -> None:
        """The auditor is asked about an interval, and passes it."""
        await self.until(lambda: self.auditing.knows(interval) and bool(self.auditing.waits()), "a desk is there")
        count = len(self.tasks)
        await self.brings(accused, interval)
        await self.until(lambda: len(self.tasks) > count, "the auditor is asked")
        assert self.tasks[-1].first_statement == interval, "behind which no commit lies"
        envelope = signed(interval, model_pb2.AUDIT_FINDING_PASS, self.tasks[-1].task_id)
        self.auditing.reported(opened(envelope), envelope)

    async def dies(self) -> None:
        """It is gone."""
        self.work.cancel()
        await asyncio.gather(self.work, return_exceptions=True)

    def _mail(self, message: orchestrator_pb2.OrchestratorMessage) -> None:
        self.tasks.append(model_pb2.AuditTask.FromString(message.audit_task.payload))

    async def _job(self, job_id: str) -> JobFacts:
        raise NotFound("no job is looked at here", code="no_job")

    async def _plan(self, digest: str) -> model_pb2.Plan:
        raise NotFound("no plan is looked at here", code="no_plan")


def test_a_successor_finds_the_lie_that_only_its_predecessor_heard() -> None:
    """The auditor passes two intervals; the holder dies; then one of them fails by evidence that the successor has verified."""

    async def scenario() -> None:
        place, job = store(), Job()
        await asyncio.to_thread(
            job.named, judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]), judged("b1", "b0", piece("b-1", 4, 8, "z"), held=[(4, 8)]),
            draw=drawn("a-1", "b-1"),
        )  # fmt: skip
        first = Holder(FIRST, place, job)
        await first.looks()
        for name, accused in (("a-1", "x"), ("b-1", "z")):
            await first.audits(name_of(name), NODES[accused])
        passed = [one for one in first.auditing.decisions(first.view) if one.verdict is Verdict.PASSED]
        assert len(passed) == 2
        await asyncio.to_thread(lambda: job.named(decisions=passed))

        def written() -> int:
            data = place.peek(keys.desk_memory("m", "job", FIRST.node_id)) or b""
            return len(model_pb2.DeskMemory.FromString(identity_pb2.Envelope.FromString(data).payload).reports)

        await first.until(lambda: written() == 2, "both reports are in the store")
        await first.dies()
        fault = Decision(name_of("a-1"), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE)
        await asyncio.to_thread(lambda: job.named(decisions=[fault]))
        second = Holder(SECOND, place, job)
        assert second.state() is State.ACTIVE
        second.joins(NODES["y"])
        second.shared.standings.verified((EVIDENCE, NODES["x"], name_of("a-1")))
        await second.looks()
        await second.until(lambda: second.state() is State.QUARANTINED, "the lie is found")

        def again() -> list[str]:
            return [one.interval for one in second.auditing.decisions(second.view) if one.verdict is Verdict.OPEN]

        await second.until(lambda: again() == [name_of("b-1")], "what passed on its word alone is open again")
        await second.looks(epoch=2)
        await second.until(lambda: bool(second.auditing.decisions(second.view)), "the next term finds it too")
        assert second.shared.standings.of(AUDITOR.node_id, CLOCK.wall()).num_quarantines == 1, (
            "one offence, however often it is found"
        )
        await second.dies()

    asyncio.run(scenario())


def test_what_an_auditor_passed_is_open_again_once_it_is_found_out_and_somebody_else_can_look() -> None:
    """Whatever it was found out for. The job waits for it."""

    async def scenario() -> None:
        job = Job()
        first = judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)])
        await asyncio.to_thread(lambda: job.named(first, draw=drawn("a-1")))
        holder = Holder(FIRST, store(), job)
        await holder.looks()
        await holder.audits(name_of("a-1"), NODES["x"])
        passed = [one for one in holder.auditing.decisions(holder.view) if one.verdict is Verdict.PASSED]
        await asyncio.to_thread(lambda: job.named(decisions=passed))
        await holder.looks()
        holder.shared.standings.lied(AUDITOR.node_id, EVIDENCE, "what it learned is wrong", CLOCK.wall())
        await holder.until(lambda: holder.state() is State.QUARANTINED, "it is found out")
        people = people_of(holder.view, holder.shared)
        assert (people.found_out, holder.auditing.num_late(holder.view)) == (frozenset(), 0), "nobody could look"
        holder.joins(NODES["y"])
        assert people_of(holder.view, holder.shared).found_out == {AUDITOR.node_id}

        def again() -> list[str]:
            return [one.interval for one in holder.auditing.decisions(holder.view) if one.verdict is Verdict.OPEN]

        await holder.until(lambda: again() == [name_of("a-1")], "what it passed is open again")
        assert holder.auditing.num_late(holder.view) == 1
        settling = model_pb2.ActiveJob(
            job_id="job", state=model_pb2.JOB_STATE_SETTLING, settling_s=SETTLING_DEADLINE_S - 2 * AUDIT_S
        )
        facts = JobFacts(model_pb2.JobRequest(job_id="job", num_batches=4), "0" * 64, model_pb2.ModelGraph(), b"", (), ())  # type: ignore[arg-type]
        late = replace(holder.view, head=model_pb2.Head(active=settling), job=facts)
        assert (people_of(late, holder.shared).found_out, people_of(late, holder.shared).num_batches) == ({AUDITOR.node_id}, 4)
        late.head.active.settling_s += 1
        assert not people_of(late, holder.shared).found_out, "there is no time for it"
        await holder.dies()

    asyncio.run(scenario())


def test_what_is_open_and_was_left_aside_is_audited_to_the_end() -> None:
    """Whoever goes on from before it, before its audit began or in the middle."""

    async def scenario() -> None:
        job = Job()
        first = judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)])
        await asyncio.to_thread(lambda: job.named(first, draw=drawn("a-1")))
        job.primaries["a"] = "a.1"
        beside = judged("a2", "a0", piece("a-2", 4, 6, "y", "a.1"), held=[(4, 6)], replica="a.1", node="y")
        await asyncio.to_thread(lambda: job.named(beside))
        holder = Holder(FIRST, store(), job)
        await holder.looks()
        await holder.audits(name_of("a-1"), NODES["x"])
        [passed] = holder.auditing.decisions(holder.view)
        assert (passed.interval, passed.verdict) == (name_of("a-1"), Verdict.PASSED)
        await asyncio.to_thread(lambda: job.named(decisions=[passed]))
        await holder.looks()
        await holder.until(lambda: not holder.auditing.waits(), "it is over")
        await holder.dies()

    asyncio.run(scenario())
