"""Audits in one model of one orchestrator: while it holds the head it keeps the audit desk going, and always it reads what manifests say of others' work.

The desk decides (`orchestrator.audits`), by the monotonic clock: nobody's time is over where the wall clock is set, or the machine slept. This shell signs and
sends, brings answers in, verifies records with own eyes, and hands decisions to the next manifest. What others named is believed as far as its evidence holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from dcnr.errors import Corrupt, DcnrError, NotFound, Refused
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from orchestrator.audit_events import (
    Bundle,
    Decision,
    Known,
    Late,
    Pay,
    Report,
    SendChallenge,
    SendTask,
    Unshown,
    VerifyRecord,
    Wait,
    Word,
)  # fmt: skip
from orchestrator.audit_memory import WRITE_S, AuditMemory, Remembered, proven_in, units_in
from orchestrator.audit_messages import audit_task_of, challenge_of, past_s_of, unix_ms_of
from orchestrator.audit_missing import Missing
from orchestrator.audit_people import left_of, people_of
from orchestrator.audit_shown import Shown
from orchestrator.audits import AuditDesk
from orchestrator.beginnings import Beginnings
from orchestrator.chain import Chain
from orchestrator.equivocations import Equivocations
from orchestrator.others_verdicts import OthersVerdicts
from orchestrator.rehab import Rehab
from orchestrator.senders import ReadPlan, Seats, held
from orchestrator.signal import Signal
from orchestrator.standings import judgement_of
from orchestrator.view import JobFacts, ModelView
from trust.envelope import seal
from trust.ledger import Verdict
from trust.separation import Separation
from trust.standing import Standing, begun

if TYPE_CHECKING:
    from orchestrator.runtime import Shared

TICK_S: Final = 1.0
SEED_BYTES: Final = 32
TASK_ID_BYTES: Final = 16
_log = structlog.get_logger("orchestrator")


class Auditing:
    """One per model. ``is_holder`` says whether this process decides now; ``wake`` calls for a round of the decider."""

    def __init__(
        self, model: str, shared: Shared, *, view: Callable[[], ModelView | None], job: Callable[[str], Awaitable[JobFacts]],
        plan: ReadPlan, is_holder: Callable[[], bool], wake: Signal,
    ) -> None:  # fmt: skip
        self._model, self._shared, self._view, self._job, self._plan = model, shared, view, job, plan
        self._is_holder, self._wake = is_holder, wake
        self._separation = Separation(single_host=shared.policy.single_host)
        self._desk: AuditDesk | None = None
        self.missing = Missing(self._separation, lambda words: shared.history.say("audit_waits", model, words))
        self._term: tuple[int, str] = (0, "")
        self._manifest = ""
        self._decided: set[str] = set()
        self._doubted: dict[tuple[str, str], float] = {}  # by interval and auditor: when it was told of first, by the wall clock
        self._rehab = Rehab(self._task_id)
        self._equivocations = Equivocations(shared.policy.network_id, model)
        self._memory: AuditMemory | None = None
        self._recalled: list[Remembered] = []
        """What earlier desks heard, as far as it may still matter."""
        self._beginnings = Beginnings(shared.store, lambda: shared.policy, model)
        self._seats = Seats("")
        self._unheld: dict[str, tuple[Report, identity_pb2.Envelope | None]] = {}
        """Reports on tasks under way, one of each, that wait until the plans are read that their senders are held against."""
        self._reads_plans = False
        self._stirred = Signal()
        self._shown = Shown(model, shared, self._stirred)
        self._others = OthersVerdicts(model, shared, job, self._stirred)
        self._group: asyncio.TaskGroup | None = None
        self.unshown: Callable[[Unshown], None] = lambda _: None
        """Told of who shows no evidence; the decider puts itself here."""

    @property
    def is_on(self) -> bool:
        """Whether audits are in force in this network."""
        return self._shared.policy.audits_drawn

    async def run(self) -> None:
        """Runs until cancelled; ends at once where audits are not in force."""
        if not self.is_on:
            return
        seen = -1
        async with asyncio.TaskGroup() as group:
            self._group = group
            while True:
                seen = await self._stirred.wait(seen, TICK_S)
                self._tick()

    # What is heard

    @property
    def has_desk(self) -> bool:
        """Whether this process audits now: it holds the head of a job."""
        return self._desk is not None

    def knows(self, interval: str) -> bool:
        """Whether a manifest of this job names that interval."""
        view = self._view()
        return view is not None and view.chain is not None and interval in view.chain.ledger.intervals

    def asks(self, pnode_id: str, vnode: str) -> bool | None:
        """Whether that PNode was given an audit of that VNode; None where this process gives none."""
        return None if self._desk is None else self._desk.asks(pnode_id, vnode) or self._rehab.asks(pnode_id, vnode)

    def answered(self, pnode_id: str, evidence: model_pb2.Evidence, bundle: Bundle | None) -> None:
        """An answer to a challenge, from the session of that PNode: what it names counts once it is found. Raises Refused."""
        view = self._view()
        if self._desk is not None and self._group is not None and view is not None and view.chain is not None:
            self._shown.answered(self._desk, view.chain, pnode_id, evidence, bundle, self._group)

    def reported(self, report: Report, envelope: identity_pb2.Envelope | None = None) -> None:
        """An auditor's finding, verified; one that names senders waits until all plans of the job are known. Raises Refused, Stale."""
        view = self._view()
        if self._desk is None or view is None or view.chain is None:
            return
        if report.senders and not self._seats.covers(view.head.plan_digest):
            if not self._gives(report):
                return self._desk.reported(report, self._shared.clock.monotonic())  # which refuses it
            waiting = {task_id: one for task_id, one in self._unheld.items() if self._gives(one[0])}
            self._unheld = {**waiting, report.task_id: (report, envelope)}
            return self._stirred.fire()
        known = view.chain.ledger.intervals.get(report.interval)
        if known is not None and (stranger := self._seats.stranger(report.senders, known.pnode_id)):
            self._say("sender_unknown", known.pnode_id, f"it learned from what came from {stranger}", report.interval)
            report = held(report, self._seats, known.pnode_id)
        now_ms = round(self._shared.clock.wall() * 1000)
        shadow = self._rehab.reported(report)
        if shadow is None:
            self._desk.reported(report, self._shared.clock.monotonic())
        elif shadow.is_right is not None:
            self._shared.standings.shadowed(shadow.pnode_id, shadow.evidence, now_ms / 1000, is_right=shadow.is_right)
        if envelope is not None and self._memory is not None:
            self._memory.heard(report, envelope, now_ms, is_unit=shadow is not None)
        if report.word is not Word.UNREAD:
            self._say("audit_reported", report.auditor, f"{report.word.value} {report.part}".strip(), report.interval)
        self._stirred.fire()

    async def committed(self, checkpoint: model_pb2.Checkpoint, commit: identity_pb2.Envelope) -> None:
        """A commit as the PNode brought it on which the plan has its replica: of what others bring nothing is kept. Two of one number ban its key.

        Raises Unavailable where the evidence cannot be stored.
        """
        view, eyes, shared = self._view(), self._shared.own_eyes, self._shared
        if not self.is_on or eyes is None or view is None or not view.has_placed(checkpoint):
            return
        found = self._equivocations.brought(checkpoint, commit)
        if found is None:
            return
        proof, data = found
        evidence = await eyes.keep(self._model, checkpoint.vnode, data)
        if shared.standings.equivocated(proof.pnode_id, evidence, shared.clock.wall()):
            reason = "it signed two statements about one step"
            self._say("equivocation_found", proof.pnode_id, reason, proof.statements[0], evidence=evidence)
        if self._desk is not None:
            self._desk.equivocated(proof.statements, evidence)
        self._stirred.fire()

    # What is told

    def decisions(self, view: ModelView) -> list[Decision]:
        """For the next manifest."""
        if self._desk is None or (int(view.head.epoch), view.head.active.job_id) != self._term:
            return []
        return list(self._desk.decisions())

    def standing(self, view: ModelView, pnode_id: str) -> Standing:
        """Where a PNode stands with this orchestrator, the newest manifest included."""
        if view.chain is not None:
            self._shared.standings.chain(self._model, view.chain.told)
        return self._shared.standings.of(pnode_id, self._shared.clock.wall())

    def num_late(self, view: ModelView) -> int:
        """Intervals that will be open though they are not yet: of PNodes that were found out since, and what is audited again."""
        if view.chain is not None:
            self._shared.standings.chain(self._model, view.chain.told)
        again = {one.interval for one in self.decisions(view) if one.verdict is Verdict.OPEN}
        left = left_of(view, self._shared.standings, self._shared.clock.wall())
        return len(again | {one.name for some in left.values() for one in some})

    def waits(self) -> list[Wait]:
        """Open intervals, with who has to act, and until when by this process's monotonic clock; at the holder only."""
        view, now_s = self._view(), self._shared.clock.monotonic()
        if self._desk is None or view is None:
            return []
        return self.missing.explained(self._desk.waits(now_s), people_of(view, self._shared), now_s)

    # What follows

    def _tick(self) -> None:
        view, standings = self._view(), self._shared.standings
        now_s, wall_s = self._shared.clock.monotonic(), self._shared.clock.wall()
        if view is None or view.chain is None:
            self._desk = None
        else:
            standings.chain(self._model, view.chain.told)
            self._keep_desk(view, now_s)
            if self._desk is not None:
                people = people_of(view, self._shared, self._desk.doubters)
                self._take_up(view.chain, self._desk)
                self._desk.tick(people, now_s)
                self._act(view)
                self._hold(view)
                settles = view.head.active.state == model_pb2.JOB_STATE_SETTLING
                self.missing.look(self._desk.waits(now_s), people, now_s, settles=settles)
                for task in self._rehab.tick(people.candidates.values(), now_s):
                    self._ask(view, task)
        found = {(one.interval, one.auditor): one for one in (self._desk.doubts() if self._desk is not None else ())}
        self._doubted = {name: self._doubted.get(name, wall_s) for name in found}
        standings.doubted(self._model, [replace(one, at_s=self._doubted[name]) for name, one in found.items()])
        assert self._group is not None
        if view is not None:
            self._others.look(view, self._group)
        known = {node_id: judgement_of(standings.of(node_id, wall_s)) for node_id in standings.known()}
        self._shared.inventory.stand(known, judgement_of(begun(wall_s)))

    async def _remember(self, memory: AuditMemory) -> None:
        """Takes in what earlier desks heard, then keeps what this one hears, until the next one begins."""
        is_recalled = False
        while memory is self._memory:
            try:
                reports = [] if is_recalled else await memory.recall()
                if memory is self._memory and self._desk is not None and not is_recalled:
                    self._recalled, is_recalled = reports, True
                    told = [one for one in reports if not one.is_unit]
                    self._desk.recalled([one.report for one in told], [past_s_of(one.heard_ms, self._shared.clock) for one in told])
                    for one in reports:
                        if one.is_unit:
                            self._rehab.recalled(one.report.auditor, one.report.interval)
                await memory.write()
            except DcnrError as error:
                _log.info("desk_memory_waits", reason=error.message)
            await asyncio.sleep(WRITE_S)

    def _take_up(self, chain: Chain, desk: AuditDesk) -> None:
        """What follows from earlier desks' reports, now that the chain and what is verified here say more."""
        if not self._recalled:
            return
        standings = self._shared.standings
        failed = proven_in(self._recalled, chain, standings.has_seen_wrong)
        proven = {name: standings.bundle_of(told.evidence) for name, told in failed.items()}
        desk.proven(proven)
        for one, right in units_in(self._recalled, chain, proven):
            standings.shadowed(one.report.auditor, one.report.digest, one.heard_ms / 1000, is_right=right)
            self._recalled.remove(one)

    def _gives(self, report: Report) -> bool:
        return self._desk is not None and (self._desk.gives(report) or self._rehab.gives(report))

    def _hold(self, view: ModelView) -> None:
        """Reports that wait for plans are taken in once these are read."""
        assert self._group is not None
        if self._seats.covers(view.head.plan_digest):
            waiting, self._unheld = self._unheld, {}
            for report, envelope in waiting.values():
                try:
                    self.reported(report, envelope)
                except DcnrError as error:
                    self._shared.history.say("audit_word_refused", report.auditor, error.message, code=error.code)
        elif self._unheld and not self._reads_plans:
            self._reads_plans = True
            self._group.create_task(self._read_plans(view))

    async def _read_plans(self, view: ModelView) -> None:
        try:
            await self._seats.follow(view.head.plan_digest, self._plan)
        except DcnrError as error:
            _log.info("plans_unread", reason=error.message)
        finally:
            self._reads_plans = False
        self._stirred.fire()

    def _keep_desk(self, view: ModelView, now_s: float) -> None:
        shared = self._shared
        decides = self._is_holder() and view.head.holder == shared.key.node_id and bool(view.head.active.job_id)
        if not decides or shared.draw_secret is None or view.chain is None:
            self._desk = None
            return
        term = (int(view.head.epoch), view.head.active.job_id)
        if self._desk is None or term != self._term:
            self._desk = AuditDesk(shared.draw_secret, self._separation, self._task_id)
            self._rehab = Rehab(self._task_id)
            self._term, self._manifest = term, ""
            self._seats, self._unheld, self._recalled = Seats(term[1]), {}, []
            self._memory = AuditMemory(shared.store, lambda: shared.policy, shared.key, self._model, term[1])
            assert self._group is not None
            self._group.create_task(self._remember(self._memory))
        if view.head.manifest_digest != self._manifest:
            self._manifest = view.head.manifest_digest
            self._desk.chronicle(view.chain.audited(), now_s, frozenset(one.name for one in view.chain.to_judge()))

    def _task_id(self) -> str:
        return self._shared.random_bytes(TASK_ID_BYTES).hex()

    def _act(self, view: ModelView) -> None:
        assert self._desk is not None
        assert self._group is not None
        for action in self._desk.take():
            match action:
                case SendChallenge():
                    self._challenge(view, action)
                case SendTask():
                    self._ask(view, action)
                case VerifyRecord():
                    self._group.create_task(self._verify(action))
                case Pay():
                    assert view.chain is not None
                    told = proven_in(self._recalled, view.chain, self._shared.standings.has_seen_wrong).get(action.interval)
                    at_s = told.decided_s if told is not None else self._shared.clock.wall()
                    self._shared.standings.lied(action.auditor, action.evidence, f"as an auditor: {action.payment.value}", at_s)
                    self._say("auditor_overturned", action.auditor, action.payment.value, action.interval)
                case Known():
                    self._rehab.known(action)
                case Late():
                    self._say("audit_late", action.node_id, "it did not answer in time", action.interval)
                case Unshown():
                    self._shared.observer.showed_nothing(self._model, action)
                    self.unshown(action)
        if any(one.interval not in self._decided for one in self._desk.decisions()):
            self._wake.fire()
        self._decided = {one.interval for one in self._desk.decisions()}

    def _challenge(self, view: ModelView, action: SendChallenge) -> None:
        until_ms = unix_ms_of(action.until_s, self._shared.clock)
        message = challenge_of(action, view, self._shared.policy.network_id, self._term[1], self._manifest, until_ms)
        envelope = seal(identity_pb2.DOMAIN_CHALLENGE, message, self._shared.key)
        self._shared.mailbox.send(action.pnode_id, orchestrator_pb2.OrchestratorMessage(challenge=envelope))

    def _ask(self, view: ModelView, action: SendTask) -> None:
        assert self._group is not None
        seed, until_ms = self._shared.random_bytes(SEED_BYTES), unix_ms_of(action.until_s, self._shared.clock)
        task = audit_task_of(action, view, self._shared.policy.network_id, self._term[1], seed, until_ms)
        self._group.create_task(self._give(task, action, view.chain))

    async def _give(self, task: model_pb2.AuditTask, action: SendTask, chain: Chain | None) -> None:
        """Has it audited, by the verifier or by whoever was chosen: nobody, while it cannot be read where the interval begins, or its evidence is gone."""
        eyes, nothing = self._shared.own_eyes, Report(task.task_id, task.pnode_id, action.interval, Word.UNREAD)
        try:
            task.first_statement = await self._beginnings.of(task.job_id, task.vnode, action.interval, chain)
            if not action.is_verifier:
                await self._shown.look(action.vnode, action.bundle)
            nothing = replace(nothing, word=Word.REFUSED)
            self._say("audit_asked", action.auditor, action.reason, action.interval, vnode=action.vnode)
            if not action.is_verifier:
                envelope = seal(identity_pb2.DOMAIN_AUDIT_TASK, task, self._shared.key)
                self._shared.mailbox.send(action.auditor, orchestrator_pb2.OrchestratorMessage(audit_task=envelope))
                return
            assert eyes is not None
            report = await eyes.word(task, await self._job(task.job_id))
        except (Corrupt, NotFound) as error:
            report = replace(nothing, word=Word.UNVERIFIABLE, part=error.code)
        except DcnrError as error:
            _log.warning("audit_not_begun", vnode=task.vnode, reason=error.message)
            report = replace(nothing, part=error.code)
        try:
            self.reported(report)
        except DcnrError as error:
            _log.info("verifier_late", vnode=task.vnode, reason=error.message)

    async def _verify(self, action: VerifyRecord) -> None:
        """Looks at a fault that an auditor tells of."""
        desk, eyes, now = self._desk, self._shared.own_eyes, self._shared.clock.monotonic
        assert desk is not None
        assert eyes is not None
        ledger_vnode = next((one.vnode for one in desk.waits(now()) if one.interval == action.interval), "")
        try:
            record, proven = await eyes.fault(self._model, ledger_vnode, action, self._job)
        except DcnrError as error:
            self._say("fault_not_proven", action.auditor, error.message, action.interval)
            if isinstance(error, Refused | Corrupt | NotFound):  # it was in the store before its auditor told of it
                desk.verified(action.interval, action.auditor, now(), proven=False)
            else:
                desk.unverified(action.interval, action.auditor, now(), error.code)
        else:
            self._shared.standings.verified((action.record, proven.accused, proven.interval), record.bundle_digest)
            desk.verified(action.interval, action.auditor, now(), proven=True, part=record.part)
        self._stirred.fire()

    def _say(self, kind: str, subject: str, reason: str, interval: str, **facts: object) -> None:
        self._shared.history.say(kind, subject, reason, interval=interval[:16], **facts)
