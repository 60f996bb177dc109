"""The audit desk of a term: what is asked of whom about each open interval, and what is decided of it. Pure.

Only the holder has one, and a new one with each term: what is open stands in the chain of manifests, what auditors said is recalled, and everything else is
asked again. The accused is asked for its evidence, again and again until a deadline; what nobody can show is unverifiable, and nobody is blamed. Then an
auditor is chosen (`trust.auditors`), another one where it does not answer. What its words mean is `orchestrator.audit_case.weighed`: a pass is believed from
whom it was asked; a fault only when this orchestrator has verified the record, and where it cannot, as one of three words that take back and blame nobody.
Some passes are repeated by the verifier, whose own finding settles everything. Every open interval is decided, or has an owner and a deadline (`waits`). A
decision is made once, and stands until a manifest shows it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dcnr.errors import InvariantBroken, Refused, Stale
from orchestrator.accounts import FINDINGS, Accounts
from orchestrator.audit_bundles import Bundles
from orchestrator.audit_case import (
    CHALLENGE_S,
    LOOK_S,
    NOT_MEASURED,
    Asked,
    Case,
    about,
    doubt_of,
    doubted_before,
    ended_without,
    given_s,
    given_up,
    goes_back,
    looked_in_vain,
    said_nothing,
    shown,
    unmeasured,
    unread,
    wait_of,
    waits_for_auditor,
)
from orchestrator.audit_doubters import Doubters
from orchestrator.audit_events import (
    Action,
    Bundle,
    Decision,
    Doubt,
    Known,
    Late,
    People,
    Report,
    SendChallenge,
    SendTask,
    VerifyRecord,
    Wait,
    Word,
)
from orchestrator.audit_lapses import Lapses
from orchestrator.audit_needs import needs_of
from orchestrator.audit_order import chosen, in_turns, is_repeated, is_sole
from orchestrator.audit_silent import Silent
from orchestrator.audited_late import opened_late
from trust.auditors import Choice
from trust.draw import Secret
from trust.going_back import Cause
from trust.ledger import Ledger, Verdict
from trust.overturned import Truth
from trust.separation import Separation

ASK_AGAIN_S: Final = 15.0
ASKS_AT_ONCE: Final = 64
"""Auditors chosen in one go: with very many open intervals a round stays short."""
MAX_LATE_TASKS: Final = 1024
"""Tasks remembered whose answer may still come."""
REOPENED: Final = frozenset((Verdict.PASSED, Verdict.SPARED))


class AuditDesk:
    """See the module. Call a method with what happened, then `take` what is to be done. ``draw_id`` gives the name of a task: 32 hex characters."""

    def __init__(self, secret: Secret, separation: Separation, draw_id: Callable[[], str]) -> None:
        self._secret, self._separation, self._draw_id = secret, separation, draw_id
        self._people, self._ledger = People(), Ledger({}, {})
        self._cases: dict[str, Case] = {}
        self._tasks: dict[str, str] = {}
        """The interval of each audit under way, by task."""
        self._late: OrderedDict[str, str] = OrderedDict()
        """Auditors of tasks that are over, by task."""
        self._accounts, self._bundles = Accounts(), Bundles()
        self._again: dict[str, Decision] = {}
        """Passed intervals that are open again, and spared ones that are drawn late."""
        self._found: dict[str, Decision] = {}
        """Intervals that failed by a proof of their own."""
        self._unnamed: dict[str, str] = {}
        """Statements that no manifest names yet, with the evidence against them."""
        self._lapses, self.doubters, self._silent = Lapses(), Doubters(), Silent()
        self._num_sent, self._served = 0, dict[str, int]()
        """Audits given out, and which of them was the last of each PNode that has an interval open."""
        self._actions: list[Action] = []

    # What happened

    def chronicle(self, ledger: Ledger, now_s: float, known: frozenset[str] | None = None) -> None:
        """A manifest is under the head: what it says is open is audited, what it says is judged is done. ``known``: all that is open, if that is known."""
        self._ledger = ledger
        opened = known if known is not None else frozenset(n for n, one in ledger.intervals.items() if one.verdict is Verdict.OPEN)
        for name in self._cases.keys() - opened:
            self._close(name)
        for name in sorted(opened - self._cases.keys(), key=lambda name: ledger.intervals[name].number):
            bundle = self._bundles.of(name)
            case = self._cases[name] = Case(ledger.intervals[name], now_s, now_s if bundle else now_s + CHALLENGE_S, bundle)
            case.is_again, case.num_held = name in self._again, ledger.num_held(case.interval)
        accused = {case.interval.pnode_id for case in self._cases.values()}
        self._served = {name: at for name, at in self._served.items() if name in accused}
        self._again = {name: one for name, one in self._again.items() if self._verdict(name) in REOPENED}
        self._found = {name: one for name, one in self._found.items() if self._verdict(name) is Verdict.OPEN}
        for name in sorted(name for name in self._unnamed if name in ledger.intervals):
            self.equivocated([name], self._unnamed.pop(name))
        self._advance(now_s)

    def tick(self, people: People, now_s: float) -> None:
        """Time has passed, and these are here."""
        self._people = people
        self._draw_late(now_s)
        for case in self._cases.values():
            for task_id, asked in list(case.tasks.items()):
                gone = not asked.is_verifier and asked.auditor not in people.candidates
                if gone or now_s >= asked.until_s:
                    self._end_task(case, task_id)
                    self._actions.append(Late(asked.auditor, case.interval.name))
                    ended_without(case, asked, now_s, is_late=not gone)
                    if not gone:
                        self._silent.late(asked, now_s)
        self._advance(now_s)

    def answered(self, pnode_id: str, interval: str, bundle: Bundle | None, now_s: float) -> None:
        """A PNode hands its evidence over, or (None) says that it cannot be had now. Raises Refused (``not_challenged``) for what it was not asked."""
        case = self._cases.get(interval)
        if case is None and self._verdict(interval) is not None:
            return  # judged meanwhile
        if case is None or case.interval.pnode_id != pnode_id:
            raise Refused("evidence that this PNode was not asked for", code="not_challenged")
        if bundle is not None and case.bundle is None and case.decision is None:
            case.bundle = bundle
            if (known := self._people.candidates.get(pnode_id)) is not None:
                case.parties[pnode_id] = known.party
            self._lapses.brought(case.interval)
            self._bundles.came(interval, bundle, now_s)
            case.until_s = now_s
            self._advance(now_s)

    def gives(self, report: Report) -> bool:
        """Whether that report is on a task that is under way, by whom it was given to."""
        case = self._cases.get(self._tasks.get(report.task_id, ""))
        return case is not None and case.tasks[report.task_id].auditor == report.auditor

    def reported(self, report: Report, now_s: float) -> None:
        """An auditor's finding. Raises Refused (``not_asked``) for a task that it was never given, Stale (``task_over``) for one that is over."""
        name = self._tasks.get(report.task_id)
        if name is None and self._late.get(report.task_id) == report.auditor:
            raise Stale("this audit is over: another one was asked, or it is decided", code="task_over")
        if name is None or not self.gives(report):
            raise Refused("a report on a task that was not given to whom it is from", code="not_asked")
        case = self._cases[name]
        asked = case.tasks[report.task_id]
        report = about(case, report)
        self._end_task(case, report.task_id)
        self._silent.answered(report, asked, now_s)
        if report.word in (Word.REFUSED, Word.UNREAD):
            if (found := said_nothing(case, asked, report, now_s)) is not None:
                self._decide(case, found)
        else:
            self._note(case, report, asked, now_s)
            waiting = in_turns(filter(waits_for_auditor, self._cases.values()), self._served)
            for one in waiting if asked.is_verifier else waiting[:1]:
                one.until_s = min(one.until_s, now_s)  # somebody is free: nobody whose turn it is waits for the next look
        self._advance(now_s)

    def verified(self, interval: str, auditor: str, now_s: float, *, proven: bool, part: str = "") -> None:
        """What came of `VerifyRecord`; ``part``: what is worst, as measured here."""
        case = self._cases.get(interval)
        if case is None or auditor not in case.verifying:
            return
        case.verifying.discard(auditor)
        if proven and case.decision is None:
            self._see(case, Truth.WRONG)
            record, case.fault_s = case.words[auditor].record, now_s
            self._decide(case, Decision(interval, Verdict.FAILED, f"{part or 'it'} is wrong", Cause.FAULT, record))
        self._advance(now_s)

    def unverified(self, interval: str, auditor: str, now_s: float, code: str) -> None:
        """The record cannot be had, as if that auditor had said nothing; or by this code it can, and nobody here can measure it: its word stands beside those
        of others.
        """
        case = self._cases.get(interval)
        if case is not None and auditor in case.verifying:
            (unmeasured if code in NOT_MEASURED else unread)(case, auditor, now_s)
            self._advance(now_s)

    def equivocated(self, statements: Iterable[str], evidence: str) -> None:
        """A PNode signed both: the interval that a manifest names by either, now or later, fails while it waits for its audit. Who audited it is not to blame.

        What was spared is drawn late, as of anybody who is found out: failed unseen, of whatever age, it would take back all that others learned since.
        """
        for name in sorted(statements):
            if self._verdict(name) is None and len(self._unnamed) < MAX_LATE_TASKS:
                self._unnamed[name] = evidence
            if self._verdict(name) is Verdict.OPEN:
                self._found[name] = Decision(
                    name, Verdict.FAILED, "its PNode signed two statements about one step", Cause.FAULT, evidence
                )

    def recalled(self, reports: Sequence[Report], heard_s: Sequence[float]) -> None:
        """What earlier desks heard, oldest first, and when: payments follow from it, and whoever is under doubt stays so. All else is asked anew."""
        self._accounts.recall(reports)
        for report, at_s in zip(reports, heard_s, strict=True):
            if report.word is Word.PASS:
                self._bundles.told(report.interval, at_s)
            if (case := self._cases.get(report.interval)) is not None:
                doubted_before(case, report)
            self.doubters.recalled(report, self._ledger, at_s)
        self._actions += self._accounts.settle()

    def proven(self, intervals: Mapping[str, str]) -> None:
        """These failed by evidence that this process has verified, whoever decided it; each with the bundle that shows it, if that is known."""
        if [name for name, bundle in intervals.items() if self._accounts.see(name, Truth.WRONG, bundle)]:
            self._actions += self._accounts.settle()

    # What follows

    def take(self) -> list[Action]:
        """What is to be done since the last call, in order."""
        actions, self._actions = self._actions, []
        return actions

    def decisions(self) -> tuple[Decision, ...]:
        """Everything that is decided and that no manifest shows yet, by the interval's place in the chain."""
        made = {name: found for name, case in self._cases.items() if (found := self.doubters.let_go(case)) is not None}
        made |= self._again | self._found
        return tuple(sorted(made.values(), key=lambda one: self._ledger.intervals[one.interval].number))

    def asks(self, pnode_id: str, vnode: str) -> bool:
        """Whether that PNode was given an audit of that VNode lately: one that is over may be on its way."""
        at_work = (one.auditors for one in self._cases.values() if one.interval.vnode == vnode)
        return pnode_id in self._late.values() or any(pnode_id in names for names in at_work)

    def waits(self, now_s: float) -> list[Wait]:
        """Of every open interval: who has to act, and until when."""
        return [wait_of(case, now_s) for case in self._cases.values()]

    def doubts(self) -> list[Doubt]:
        """Who is under doubt, and by whose word."""
        return [doubt for case in self._cases.values() if (doubt := doubt_of(case)) is not None]

    def check(self) -> None:
        """Raises InvariantBroken unless the parts fit each other."""
        busy = [asked.auditor for case in self._cases.values() for asked in case.tasks.values() if not asked.is_verifier]
        if len(set(busy)) != len(busy):
            raise InvariantBroken("an auditor has two tasks at once", code="bad_desk")
        if {task_id for case in self._cases.values() for task_id in case.tasks} != self._tasks.keys():
            raise InvariantBroken("a task belongs to no case", code="bad_desk")
        for name, case in self._cases.items():
            case.check(self._verdict(name))

    # Inside

    def _verdict(self, name: str) -> Verdict | None:
        return one.verdict if (one := self._ledger.intervals.get(name)) is not None else None

    def _close(self, name: str) -> None:
        case = self._cases.pop(name)
        self._lapses.closed(name)
        for task_id in list(case.tasks):
            self._end_task(case, task_id)

    def _end_task(self, case: Case, task_id: str) -> None:
        del self._tasks[task_id]
        self._late[task_id] = case.tasks.pop(task_id).auditor
        while len(self._late) > MAX_LATE_TASKS:
            self._late.popitem(last=False)

    def _note(self, case: Case, report: Report, asked: Asked, now_s: float) -> None:
        name = case.interval.name
        case.words[report.auditor] = report
        case.word_s = case.word_s or now_s
        if report.word is Word.DOUBT:
            case.doubt_s = case.doubt_s or now_s
        if asked.is_verifier:
            case.own.add(report.auditor)
            if report.word is Word.PASS:
                self._see(case, Truth.RIGHT)
        elif report.word in FINDINGS:
            self._accounts.heard(replace(report, interval=name, bundle=shown(case)), is_canary=case.is_drawn and not case.is_again)
        if report.word is Word.FAULT:
            case.verifying.add(report.auditor)
            self._actions.append(VerifyRecord(name, report.record, report.auditor, report.part, shown(case)))

    def _see(self, case: Case, truth: Truth) -> None:
        one = case.interval
        self._accounts.see(one.name, truth, shown(case))
        if case.bundle is not None:
            self._actions.append(Known(one.name, one.vnode, one.pnode_id, case.bundle, truth))

    def _decide(self, case: Case, decision: Decision) -> None:
        case.decision = decision
        self.doubters.decided(case, decision, self._ledger)
        for task_id in list(case.tasks):
            self._end_task(case, task_id)
        self._actions += self._accounts.settle()

    def _draw_late(self, now_s: float) -> None:
        """Spared intervals behind a state that nobody can learn from, and those of who was found out since, are audited after all; what these passed, again."""
        for one in opened_late(self._ledger, self._people, self.doubters.held):
            self._again.setdefault(one.interval, one)
        self.doubters.look(self._ledger, self._cases, self._again, now_s, waits=self._people.has_time)
        for name, auditor in self._accounts.passed_alone(self._people.found_out).items():
            lied = auditor in self._accounts.liars
            if self._verdict(name) is Verdict.PASSED and self._bundles.take_again(name, now_s, also_told=lied):
                self._again.setdefault(name, Decision(name, Verdict.OPEN, f"{auditor[:8]} passed it, and was found out since"))

    def _advance(self, now_s: float) -> None:
        """Brings every case as far as it gets now."""
        asks = ASKS_AT_ONCE
        going_back = {case.interval.vnode for case in self._cases.values() if goes_back(case, now_s)}
        for case in in_turns(self._cases.values(), self._served):
            if case.decision is not None or case.interval.vnode in going_back:  # the next manifest decides most of these
                continue
            if case.bundle is None:
                self._challenge(case, now_s)
            elif not case.verifying:
                asks -= self._audit(case, now_s, asks)

    def _challenge(self, case: Case, now_s: float) -> None:
        one = case.interval
        if now_s >= case.until_s and one.pnode_id in self._people.candidates:
            case.until_s = min(now_s + CHALLENGE_S, case.longest_until_s)
        if now_s >= case.until_s:
            reason = f"its PNode showed no evidence within {now_s - case.since_s:.0f} s"
            self._actions.append(Late(one.pnode_id, one.name))
            if case.is_withheld and one.pnode_id in self._people.candidates:
                self._actions += self._lapses.withheld(case, now_s, reason)
            self._decide(case, Decision(one.name, Verdict.UNVERIFIABLE, reason, Cause.UNVERIFIABLE))
        elif now_s - case.challenged_s >= ASK_AGAIN_S:
            case.challenged_s = now_s
            until_s = min(now_s + CHALLENGE_S, case.longest_until_s)  # who is asked again has that much longer
            self._actions.append(SendChallenge(one.name, one.vnode, one.replica, one.pnode_id, until_s))

    def _conclude(self, case: Case, found: Decision, now_s: float) -> None:
        """What was said of it is enough."""
        self._actions += self._lapses.concluded(case, found, now_s)
        self.doubters.judged(case, found, now_s)
        self._decide(case, found)

    def _audit(self, case: Case, now_s: float, asks: int) -> int:
        """Decides the case, or asks whoever is still needed; returns how many were looked for."""
        needs = needs_of(case, self._people, now_s)
        people, found = needs.people, needs.weigh(case)
        if isinstance(found, Decision):
            self._conclude(case, found, now_s)
            return 0
        wanted, own_eyes = found
        asked = 0
        while len(case.tasks) < wanted and asked < asks and now_s >= case.until_s:
            asked += 1
            busy = self.doubters.resting(now_s).union(*(other.auditors for other in self._cases.values()))
            last = self._silent.resting(now_s)
            choice = chosen(case, people, busy, self._secret, self._separation, last=last, own_eyes=own_eyes, waits=needs.waits)
            if choice is None:
                self._without(case, people, now_s, needs.executions)
                break
            self._send(case, choice, now_s)
        return asked

    def _send(self, case: Case, choice: Choice, now_s: float) -> None:
        assert case.bundle is not None
        one, task_id, until_s = case.interval, self._draw_id(), now_s + given_s(case, is_verifier=choice.is_verifier)
        case.is_drawn |= is_repeated(self._secret, case, choice, self._accounts.num_passes[choice.node_id])
        known = None if choice.is_verifier else self._people.candidates[choice.node_id]
        case.ask(task_id, Asked(choice.node_id, choice.is_verifier, until_s), known)
        self._tasks[task_id], case.alone_s = one.name, 0.0
        self._num_sent = self._served[one.pnode_id] = self._num_sent + 1
        task = SendTask(task_id, one.name, one.vnode, choice.node_id, choice.is_verifier, case.bundle, until_s, choice.reason)
        self._actions.append(task)

    def _without(self, case: Case, people: People, now_s: float, executions: int) -> None:
        """Nobody can audit it now: after a while what was said counts, and who only did not answer may be asked again."""
        case.until_s = now_s + LOOK_S
        if case.tasks or any(party.node_id not in case.asked for party in people.verifiers):
            return  # a verifier that is busy with another one has this one next
        looked_in_vain(case, now_s, is_sole=is_sole(case, people, self._separation))
        if case.words and now_s >= case.counts_s:
            self._conclude(case, given_up(case, executions), now_s)
