"""One open interval at the audit desk: who was asked, what was said, and what follows from that. Pure.

A pass is believed from whom it was asked. A fault whose record does not hold counts as a doubt, and is looked at with own eyes. Where there are none, one whose
record holds as far as it can be read without them is a doubt that somebody measured. A doubt is over when two others find nothing; where two others share it
own eyes decide, and where these cannot, the interval is taken back and nobody is blamed. So it is where the verifier finds a fault that it cannot prove: what
it found wrong never passes. That an interval cannot be verified is believed of the verifier, and of two where it cannot look, unless somebody could.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dcnr.errors import InvariantBroken, Refused
from orchestrator.accounts import FINDINGS
from orchestrator.audit_events import Bundle, Decision, Doubt, Report, Wait, Word
from trust.auditors import Candidate
from trust.going_back import Cause
from trust.ledger import Interval, Verdict
from trust.separation import Party
from trust.standing import REAUDIT_S, REAUDITORS

AUDIT_S: Final = 120.0
"""Within this time an auditor answers; then another one is asked."""
MAX_DOUBLED: Final = 5
"""Each audit of an interval that came too late doubles the time of the next one, so many times: some replays are long."""
LATE_S: Final = 10.0
"""Who refuses so shortly before its time is over ran out of it: an auditor stops at that moment by its own clock, before anybody can find it late."""
CHALLENGE_S: Final = 45.0
"""So long an accused that is gone may take to come back with its evidence: a restart. What others build on the interval meanwhile goes back with it."""
LONGEST_CHALLENGE_S: Final = 600.0
"""So long an accused that is here has to show its evidence: that leaves many homes slowly."""
LOOK_S: Final = 5.0
"""Where nobody can audit now, somebody is looked for again after this time."""
GIVE_UP_S: Final = 300.0
"""What was said counts after this time, where nobody is left whose word would be worth waiting for."""
BLIND_S: Final = 3600.0
"""A verifier that has not come to an end with an interval for so long, each time with twice as much, never will; then it counts as not being here."""
SOLE_S: Final = 60.0
"""So long a doubt of own eyes waits where no PNode is here that could look as well: whoever restarts is back by then. A job settles for ten minutes."""
UNREAD_S: Final = 600.0
"""So long the store may say that it does not have the commits of an interval; then nobody will ever know whether what is shown of it is all of it."""
GONE: Final = frozenset(("state_missing", "commit_unread"))
"""Codes of a plain answer to that. A store that is away says nothing."""
NOT_MEASURED: Final = frozenset(("no_verifier", "verifier_stuck"))
"""Codes of an orchestrator that cannot work out what an auditor's record holds. All else that fails may be mended."""
LACKING: Final = 2
"""So many auditors say that an interval cannot be verified, and it is, or own eyes look."""
SETTLED: Final = frozenset((Verdict.PASSED, Verdict.FAILED, Verdict.UNVERIFIABLE))
"""What a case ends with."""
UNBEGUN: Final = "the store does not have the commits that say where it begins"
UNCLEAR: Final = "its evidence does not show what was done"
UNENDED: Final = "the verifier was to repeat it and came to no end with it"
UNPROVEN: Final = "the verifier found a fault that its record does not prove"


@dataclass(frozen=True, slots=True)
class Asked:
    """An audit under way."""

    auditor: str
    is_verifier: bool
    until_s: float


@dataclass(slots=True)
class Case:
    """One open interval."""

    interval: Interval
    since_s: float
    until_s: float
    """Deadline of the evidence; later the time of the next look."""
    bundle: Bundle | None = None
    challenged_s: float = float("-inf")
    tasks: dict[str, Asked] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    parties: dict[str, Party] = field(default_factory=dict)
    """Of whom was asked and is no verifier, and of its accused when it brought its evidence: where each belonged then."""
    words: dict[str, Report] = field(default_factory=dict)
    """Of each auditor; a fault counts as a doubt until its record is verified."""
    own: set[str] = field(default_factory=set)
    """Auditors that are verifiers."""
    verifying: set[str] = field(default_factory=set)
    """Auditors whose records are being verified."""
    unmeasured: set[str] = field(default_factory=set)
    """Auditors that tell of a fault which nobody here can measure: what their records say is signed by the accused, and about this interval."""
    word_s: float = 0.0
    doubt_s: float = 0.0
    fault_s: float = float("-inf")
    """When a fault record was verified."""
    alone_s: float = 0.0
    """Since when nobody is found who may audit it; 0: somebody was, or nobody was looked for."""
    sole_s: float = 0.0
    """Since when no PNode is here that could still look; 0: one is."""
    counts_s: float = 0.0
    """When what was said counts, if nobody else comes; 0: somebody is at work on it, or nothing was said."""
    blind_s: float = 0.0
    """When a verifier that was asked first said nothing."""
    unread_s: float = 0.0
    """Since when the store says that it does not have its commits."""
    num_held: int = 0
    """Batches that the VNode has with the checkpoint that brought it; 0: it was left aside."""
    num_late: int = 0
    num_vain: int = 0
    """How often all that were here were asked, and none of them said anything."""
    is_again: bool = False
    """Whether it had passed, or was spared: the verifier repeats it whatever the auditor says, which anybody can tell. Some of its evidence may be gone."""
    is_drawn: bool = False
    """Whether the verifier repeats it for another reason, which nobody can tell."""
    decision: Decision | None = None

    @property
    def longest_until_s(self) -> float:
        """Until then an accused that is here may show its evidence."""
        return self.since_s + LONGEST_CHALLENGE_S

    @property
    def accused(self) -> Party:
        """Where its accused belonged, who may have left."""
        return self.parties.get(self.interval.pnode_id, Party(self.interval.pnode_id))

    @property
    def auditors(self) -> set[str]:
        """Who is at work on it."""
        return {asked.auditor for asked in self.tasks.values()}

    @property
    def is_withheld(self) -> bool:
        """Whether its accused, which must have the evidence, was here when its first time was over."""
        return self.until_s > self.since_s + CHALLENGE_S and not self.is_again

    def ask(self, task_id: str, asked: Asked, known: Candidate | None) -> None:
        """That auditor has it now. ``known``: None for a verifier."""
        self.tasks[task_id] = asked
        self.asked.add(asked.auditor)
        self.sole_s = self.counts_s = 0.0
        if known is not None:
            self.parties[asked.auditor] = known.party

    def beside(self, candidates: Mapping[str, Candidate]) -> tuple[Party, ...]:
        """Whose words count: who has said something, and who is asked now. Whom an earlier desk asked is known while it is here."""
        names = sorted({*self.words, *self.auditors} - self.own)
        here = {name: candidates[name].party for name in names if name in candidates}
        known = here | {name: self.parties[name] for name in names if name in self.parties}
        return tuple(known[name] for name in names if name in known)

    def check(self, verdict: Verdict | None) -> None:
        """Raises InvariantBroken unless it fits itself and the chain's word on its interval."""
        accused, told = self.interval.pnode_id, f"the case of {self.interval.name[:12]}"
        if accused in self.asked or accused in self.words or verdict is not Verdict.OPEN:
            raise InvariantBroken(f"{told} is audited by its accused, or is not open", code="bad_desk")
        if self.decision is not None and (self.tasks or self.decision.verdict not in SETTLED):
            raise InvariantBroken(f"{told} is decided and goes on", code="bad_desk")


def given_s(case: Case, *, is_verifier: bool) -> float:
    """So long whoever is asked now may take."""
    return (REAUDIT_S if case.doubt_s and not is_verifier else AUDIT_S) * 2.0 ** min(case.num_late, MAX_DOUBLED)


def doubted_before(case: Case, report: Report) -> None:
    """What an earlier desk heard of it: whoever is under doubt stays so."""
    if case.decision is not None or report.word is not Word.DOUBT or report.auditor in {case.interval.pnode_id, *case.words}:
        return
    case.words[report.auditor] = report
    case.asked.add(report.auditor)
    case.word_s, case.doubt_s = case.word_s or case.since_s, case.doubt_s or case.since_s


def unread(case: Case, auditor: str, now_s: float) -> None:
    """Its record cannot be had: as if it had said nothing."""
    case.verifying.discard(auditor)
    case.words.pop(auditor, None)


def unmeasured(case: Case, auditor: str, now_s: float) -> None:
    """What its record holds is signed by the accused and about this interval, and nobody here can measure it."""
    case.verifying.discard(auditor)
    case.unmeasured.add(auditor)
    case.doubt_s = case.doubt_s or now_s


def ended_without(case: Case, asked: Asked, now_s: float, *, is_late: bool) -> None:
    """An audit ended, and nothing was said. ``is_late``: its time was too short. A verifier may be asked again a little later."""
    case.num_late, case.unread_s = case.num_late + is_late, 0.0
    if asked.is_verifier:
        case.asked.discard(asked.auditor)
        case.blind_s = case.blind_s or now_s
        case.until_s = now_s + LOOK_S


def looked_in_vain(case: Case, now_s: float, *, is_sole: bool) -> None:
    """Nobody is left to ask. Who was asked, and refused or was silent, may be asked again, each time after twice as long. ``is_sole``: no PNode is here that
    could look, now or later. What was said counts after a while, of which what the verifier measured is not worth so much where nobody could end its doubt.
    """
    if case.asked - case.words.keys():
        case.num_vain += 1
        case.until_s = now_s + LOOK_S * 2.0 ** min(case.num_vain, MAX_DOUBLED)
    case.asked, case.alone_s = set(case.words), case.alone_s or now_s
    case.sole_s = (case.sole_s or now_s) if is_sole else 0.0
    if case.words:
        case.counts_s = case.word_s + GIVE_UP_S
        if case.sole_s and any(case.words[name].word is Word.DOUBT for name in case.own & case.words.keys()):
            case.counts_s = min(case.counts_s, case.sole_s + SOLE_S)


def about(case: Case, report: Report) -> Report:
    """As it counts of that interval: a finding on another one, of the evidence that was shown, says that this shows another, which may begin alike.

    Raises Refused (``wrong_interval``) where it does not say of what evidence, or of other.
    """
    is_about, is_of = report.interval == case.interval.name, report.bundle == shown(case)
    if report.word not in FINDINGS or (is_about and (is_of or not report.bundle)):
        return report
    if not is_of:
        raise Refused("a report on another interval or other evidence than the task's", code="wrong_interval")
    return replace(report, word=Word.UNVERIFIABLE)


def said_nothing(case: Case, asked: Asked, report: Report, now_s: float) -> Decision | None:
    """What follows where who was asked cannot say anything, or nobody was asked since the store does not give the commits: that is tried again a little later,
    not with everybody at once.
    """
    if report.word is not Word.UNREAD:
        ended_without(case, asked, now_s, is_late=now_s >= asked.until_s - LATE_S)
        return None
    case.asked.discard(asked.auditor)
    case.until_s, case.unread_s = now_s + LOOK_S, (case.unread_s or now_s) if report.part in GONE else 0.0
    return _not_accepted(case, UNBEGUN) if case.unread_s and now_s >= case.unread_s + UNREAD_S else None


def weighed(
    case: Case, *, can_look: bool, wanted: int = 1, executions: int = 0, gives_up: bool = False, is_blind: bool = False
) -> Decision | tuple[int, bool]:
    """The decision, or how many auditors have to be at work and whether only own eyes will do. ``can_look``: this orchestrator is a verifier.
    ``gives_up``: it has not looked for so long that two who cannot verify are believed. ``is_blind``: for so long that it never will; what it was to repeat
    is not accepted unseen then.

    ``wanted``: auditors that must find nothing where no verifier does: two of what a job ends with. ``executions``: how many must find nothing, the verifier
    among them, where a graph asks for redundant ones.
    """
    name, words = case.interval.name, case.words
    own = {words[auditor].word for auditor in case.own if auditor in words}
    passes = sum(one.word is Word.PASS for one in words.values())
    doubts = sum(one.word in (Word.DOUBT, Word.FAULT) for one in words.values())
    lacks = sum(one.word is Word.UNVERIFIABLE for one in words.values())
    if Word.PASS in own:
        return (
            Decision(name, Verdict.PASSED, "the verifier found nothing") if passes >= executions else (executions - passes, False)
        )
    if Word.FAULT in own:
        return _not_accepted(case, UNPROVEN)
    can_look = can_look and not own
    if Word.UNVERIFIABLE in own or (lacks >= LACKING and not passes and not doubts):
        if can_look and not gives_up:
            return 1, True
        return Decision(name, Verdict.UNVERIFIABLE, UNCLEAR, Cause.UNVERIFIABLE)
    if doubts:
        others = max(REAUDITORS, executions)
        if passes >= others:
            return Decision(name, Verdict.PASSED, f"{others} others found nothing")
        is_accused = any(one.word is Word.FAULT for one in words.values())
        num_over = _num_over(case)
        is_shared = num_over > REAUDITORS
        if can_look and (is_accused or is_shared):
            return 1, True
        if is_shared:
            return _not_accepted(case, f"{num_over} auditors measured more than the tolerance{_unlooked(case)}")
        return max(1, min(others - passes, REAUDITORS + 1 - num_over)), False
    if passes:
        if (case.is_again or case.is_drawn) and (can_look or is_blind):
            return _not_accepted(case, UNENDED) if is_blind else (1, True)
        if passes < (wanted := max(wanted, executions)):
            return wanted - passes, False
        found = "its auditor" if passes == 1 else f"each of {passes} auditors"
        return Decision(name, Verdict.PASSED, f"{found} found nothing")
    return 1, False


def given_up(case: Case, executions: int = 0) -> Decision:
    """What was said counts, since nobody is left whose word would be worth waiting for. One doubt alone takes nothing back, unless it is the verifier's.

    ``executions``: what its graph asks for; where it passes with fewer, the reason says so.
    """
    words = [one.word for one in case.words.values()]
    own = {case.words[auditor].word for auditor in case.own if auditor in case.words}
    if Word.FAULT in own:
        return _not_accepted(case, UNPROVEN)
    if Word.UNVERIFIABLE in words:
        return _not_accepted(case, "its auditor could not, and nobody else is here")
    num_over, passes = _num_over(case), words.count(Word.PASS)
    if num_over > passes and (Word.DOUBT in own or num_over >= REAUDITORS):
        return _not_accepted(
            case,
            f"{num_over} of {len(words)} measured more than the tolerance{_where(case)}{_unlooked(case)}, and nobody else is here",
        )
    short = f": {passes} of {executions} executions by others that its graph asks for" if passes < executions else ""
    return Decision(case.interval.name, Verdict.PASSED, f"nobody proved a fault, and nobody else is here{short}")


def is_in_vain(case: Case, found: Decision) -> bool:
    """Whether it goes back for what its accused brought: evidence that shows nothing of what was done, or that everybody measures otherwise."""
    return found.verdict is Verdict.UNVERIFIABLE and not case.is_again and (found.reason == UNCLEAR or bool(_over(case)))


def _not_accepted(case: Case, reason: str) -> Decision:
    """Taken back, and nobody is blamed: none of this is evidence."""
    return Decision(case.interval.name, Verdict.UNVERIFIABLE, reason, Cause.UNVERIFIABLE)


def _num_over(case: Case) -> int:
    """Auditors that measured more than the tolerance. A fault whose record does not hold is no measurement."""
    return len(_over(case))


def _over(case: Case) -> list[str]:
    return sorted(name for name, one in case.words.items() if one.word is Word.DOUBT or name in case.unmeasured)


def _where(case: Case) -> str:
    parts = sorted({part for name in _over(case) if (part := case.words[name].part)})
    return f" in {', '.join(parts)}" if parts else ""


def _unlooked(case: Case) -> str:
    return ", and there is no verifier here to prove it" if case.unmeasured else ""


def shown(case: Case) -> str:
    """Digest of its evidence; empty where none is here."""
    return case.bundle.digest if case.bundle is not None else ""


def doubt_of(case: Case) -> Doubt | None:
    """Who measured more than the tolerance, if somebody did and nothing is decided."""
    doubtful = min(_over(case), default="")
    if not doubtful or case.decision is not None:
        return None
    return Doubt(case.interval.name, case.interval.pnode_id, doubtful, case.doubt_s)


def goes_back(case: Case, now_s: float) -> bool:
    """Whether a fault that own eyes found waits for its manifest, which takes most of its VNode back: nothing is begun there, for at most `LOOK_S` more."""
    return bool(case.verifying & case.own) or now_s < case.fault_s + LOOK_S


def waits_for_auditor(case: Case) -> bool:
    """Whether its evidence is here and nobody looks at it."""
    return case.bundle is not None and case.decision is None and not case.tasks and not case.verifying


def wait_of(case: Case, now_s: float) -> Wait:
    """Who has to act, and until when."""
    owner, until_s, why = _waits_for(case, now_s)
    one = case.interval
    alone_s = case.alone_s if waits_for_auditor(case) and not case.words else 0.0  # what was said counts after a while
    return Wait(one.name, one.vnode, one.replica, one.pnode_id, owner, until_s, why, alone_s, case.accused)


def _waits_for(case: Case, now_s: float) -> tuple[str, float, str]:
    if case.decision is not None:
        return "holder", now_s + LOOK_S, f"{case.decision.verdict.value}: the next manifest says so"
    if case.bundle is None:
        return case.interval.pnode_id, case.until_s, "its evidence; then it is unverifiable"
    if case.tasks:
        asked = min(case.tasks.values(), key=lambda asked: asked.until_s)
        return asked.auditor, asked.until_s, "an audit; then another one is asked"
    if case.verifying:
        return "holder", now_s + AUDIT_S, "a fault record is verified"
    if case.unread_s:
        return "holder", case.unread_s + UNREAD_S, f"{UNBEGUN}; then it is unverifiable"
    if case.counts_s and _over(case):
        outcome = "what was said counts" if case.own.isdisjoint(_over(case)) else "it is taken back, and nobody is blamed"
        why = f"a second opinion, since more than the tolerance was measured{_where(case)}: nobody is free to give one; then {outcome}"
        return "holder", max(case.counts_s, now_s), why
    return "holder", max(case.until_s, now_s), "an independent auditor that is free; then it is looked for again"
