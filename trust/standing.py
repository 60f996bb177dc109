"""Where a PNode stands with one orchestrator: a function of what audits found and of time, so that anybody folds the same facts to the same standing.

probation → active → suspect → quarantined → rehab → probation; banned is the end of a key. Only what can be checked again moves a standing: slow, late,
crashed or gone is none of its business (`trust.scores` keeps that). Ours. Times are seconds of network time.

Probation and active differ by the record alone: k, the passed audits that still count. Of how much they were counts too: for an interval the record is worth
no more than the batches that passed are of those that it has (`Standing.record`), since a PNode says itself where its intervals end. A fault, found at any
time, ends the record. What is found later about intervals committed before a quarantine is the same offence and lengthens nothing. An interval that could not
be verified blames nobody, since people leave; but it halves the record, else whoever hands over nothing when a cheat is drawn would never be caught.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, assert_never

from dcnr.errors import InvariantBroken
from trust.decay import DAY_S, Faded

PASSES_HALF_LIFE_S: Final = 30.0 * DAY_S
ACTIVE_PASSES: Final = 10.0
"""With fewer passed audits that still count a PNode is in probation."""
FIRST_QUARANTINE_S: Final = 900.0
"""Where the network document says nothing else."""
QUARANTINE_GROWTH: Final = 4.0
LONGEST_QUARANTINE_S: Final = 7.0 * DAY_S
SHADOW_UNITS: Final = 20
"""Units done for nothing in rehab, all of them right, where the network document says nothing else."""
USUAL: Final = 2.0
"""An interval of up to so many times the size of those that passed is covered by each of them: how much is learned between two checkpoints varies."""
UNVERIFIED_PART: Final = 0.5
"""Of its passes a PNode keeps so much when one of its intervals cannot be verified."""
REAUDITORS: Final = 2
"""Others that must find nothing before a doubt is over."""
REAUDIT_S: Final = 60.0
"""Within this time they are to answer; who does not is replaced by another."""
DOUBTED: Final = "a residual is a little over the tolerance: others are asked for a second opinion, and it gets nothing new before that is settled"
MAX_DOUBTS: Final = 64
"""Open doubts remembered of one PNode; it is suspect anyway."""


class State(Enum):
    """What a PNode may do; see the module."""

    PROBATION = "probation"
    ACTIVE = "active"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"
    REHAB = "rehab"
    BANNED = "banned"


WORKING: Final = frozenset((State.PROBATION, State.ACTIVE, State.SUSPECT))
"""Keep what they host."""
PLACEABLE: Final = frozenset((State.PROBATION, State.ACTIVE))
"""Get more."""


@dataclass(frozen=True, slots=True)
class Passed:
    """An audit of an interval that was in a manifest at ``committed_s`` found nothing."""

    at_s: float
    committed_s: float
    num_batches: int = 1
    """Of the interval: where it learned none itself the audit counts for nothing."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """An interval that was drawn could not be verified: nobody had its inputs in time, the PNode itself included."""

    at_s: float
    committed_s: float


@dataclass(frozen=True, slots=True)
class Doubted:
    """An auditor measured a residual a little over the tolerance: neither a pass nor a fault."""

    at_s: float
    interval: str
    auditor: str


@dataclass(frozen=True, slots=True)
class Assured:
    """Another auditor found nothing in an interval under doubt."""

    at_s: float
    interval: str
    auditor: str


@dataclass(frozen=True, slots=True)
class Faulted:
    """A fault record about what was in a manifest at ``committed_s`` holds: this orchestrator has verified it itself."""

    at_s: float
    committed_s: float
    evidence: str
    reason: str


@dataclass(frozen=True, slots=True)
class Equivocated:
    """Two signed commits for one step."""

    at_s: float
    evidence: str


@dataclass(frozen=True, slots=True)
class ShadowPassed:
    """A unit in rehab was right."""

    at_s: float


@dataclass(frozen=True, slots=True)
class ShadowFailed:
    """A unit in rehab was wrong."""

    at_s: float
    evidence: str


@dataclass(frozen=True, slots=True)
class Waited:
    """Time has passed."""

    at_s: float


Event = Passed | Unverified | Doubted | Assured | Faulted | Equivocated | ShadowPassed | ShadowFailed | Waited


@dataclass(frozen=True, slots=True)
class Terms:
    """What a fault costs in a network: seconds of the first quarantine, and units in rehab."""

    first_quarantine_s: float = FIRST_QUARANTINE_S
    shadow_units: int = SHADOW_UNITS

    def quarantine_s(self, number: int) -> float:
        """How long the ``number``-th quarantine lasts: four times as long each time, at most seven days."""
        growth: float = QUARANTINE_GROWTH ** min(max(0, number - 1), 16)
        return min(LONGEST_QUARANTINE_S, self.first_quarantine_s * growth)


ORDINARY: Final = Terms()


@dataclass(frozen=True, slots=True)
class Standing:
    """See the module. `begun` makes a new one, `after` the next."""

    state: State
    since_s: float
    reason: str
    terms: Terms = ORDINARY
    passes: Faded = field(default_factory=lambda: Faded(PASSES_HALF_LIFE_S))
    batches: Faded = field(default_factory=lambda: Faded(PASSES_HALF_LIFE_S))
    """Of the intervals that passed."""
    clean_from_s: float = float("-inf")
    """Start of the last quarantine: what was committed before it neither counts for the PNode nor against it any more."""
    until_s: float = 0.0
    """End of the quarantine."""
    num_quarantines: int = 0
    num_shadows: int = 0
    """Units passed in this rehab."""
    doubts: tuple[tuple[str, frozenset[str]], ...] = ()
    """Intervals under doubt, each with the auditors heard: who doubted first, then who found nothing."""
    evidence: str = ""
    """Digest of the fault record behind a quarantine or ban."""

    @property
    def key_is_dead(self) -> bool:
        """Whether nothing can change this standing any more."""
        return self.state is State.BANNED

    @property
    def suspect_until_s(self) -> float:
        """What was named by then is suspect since it was found out: until its last quarantine is over, since whoever decides meanwhile may not know of it."""
        return math.inf if self.key_is_dead else max(self.clean_from_s, self.until_s)

    def record(self, now_s: float, num_batches: int) -> float:
        """Passed audits that count for an interval of so many batches: none for more than `USUAL` times as many as it covered itself, on average."""
        passes = self.passes.seen(now_s)
        return min(passes, USUAL * self.batches.seen(now_s) / num_batches) if num_batches > 0 else passes

    def check(self) -> None:
        """Raises InvariantBroken unless the parts fit each other."""
        fits = (
            (self.state is State.SUSPECT) == bool(self.doubts)
            and (self.state is not State.QUARANTINED or 0.0 < self.until_s - self.clean_from_s <= LONGEST_QUARANTINE_S + 1.0)
            and (self.state not in (State.QUARANTINED, State.BANNED) or bool(self.evidence))
            and (self.state in WORKING or self.passes.amount == self.batches.amount == 0.0)
            and 0 <= self.num_shadows < self.terms.shadow_units
            and len(self.doubts) <= MAX_DOUBTS
        )
        if not fits:
            raise InvariantBroken(f"a standing that contradicts itself: {self!r:.300}", code="bad_standing")


def begun(now_s: float, terms: Terms = ORDINARY) -> Standing:
    """Of a PNode about which nothing is known."""
    return Standing(
        State.PROBATION, now_s, f"new: everything it does is checked until {ACTIVE_PASSES:.0f} audits have passed", terms
    )


def folded(first: Standing, events: Iterable[Event]) -> Standing:
    """The standing after these events, in order."""
    for event in events:
        first = after(first, event)
    return first


def after(before: Standing, event: Event) -> Standing:
    """The next standing. An event older than the standing happened, for it, when the standing began."""
    now_s = max(event.at_s, before.since_s)
    standing = _waited(before, now_s)
    if standing.key_is_dead:
        return standing
    match event:
        case Waited():
            return standing
        case Passed(committed_s=committed_s, num_batches=num_batches):
            return _passed(standing, now_s, committed_s, num_batches)
        case Unverified(committed_s=committed_s):
            return _unverified(standing, now_s, committed_s)
        case Doubted(interval=interval, auditor=auditor):
            return _doubted(standing, now_s, interval, auditor)
        case Assured(interval=interval, auditor=auditor):
            return _assured(standing, now_s, interval, auditor)
        case Faulted(committed_s=committed_s, evidence=evidence, reason=reason):
            return standing if committed_s < standing.clean_from_s else _quarantined(standing, now_s, evidence, reason)
        case Equivocated(evidence=evidence):
            return Standing(
                State.BANNED, now_s, "it signed two statements about one step", standing.terms,
                clean_from_s=now_s, num_quarantines=standing.num_quarantines, evidence=evidence,
            )  # fmt: skip
        case ShadowPassed():
            return _shadow_passed(standing, now_s)
        case ShadowFailed(evidence=evidence):
            if standing.state is not State.REHAB:
                return standing
            return _quarantined(standing, now_s, evidence, "a unit in rehab was wrong")
        case _ as never:
            assert_never(never)


def _waited(standing: Standing, now_s: float) -> Standing:
    """What time alone changes: a quarantine ends, a record fades."""
    if standing.state is State.QUARANTINED and now_s >= standing.until_s:
        told = f"{standing.terms.shadow_units} units for nothing, then probation"
        return replace(standing, state=State.REHAB, since_s=standing.until_s, reason=told, num_shadows=0)
    return _by_record(standing, now_s)


def _by_record(standing: Standing, now_s: float) -> Standing:
    """Probation or active, whichever the record gives; other states stay."""
    passes = standing.passes.seen(now_s)
    if standing.state is State.PROBATION and passes >= ACTIVE_PASSES:
        return replace(standing, state=State.ACTIVE, since_s=now_s, reason=f"{passes:.0f} audits passed")
    if standing.state is State.ACTIVE and passes < ACTIVE_PASSES:
        return replace(standing, state=State.PROBATION, since_s=now_s, reason="what it passed is too long ago")
    return standing


def _passed(standing: Standing, now_s: float, committed_s: float, num_batches: int) -> Standing:
    if standing.state not in WORKING or committed_s < standing.clean_from_s or not num_batches:
        return standing  # statements about nothing cost nothing, and any number of them can be made
    passes, batches = standing.passes.plus(1.0, now_s), standing.batches.plus(float(num_batches), now_s)
    return _by_record(replace(standing, passes=passes, batches=batches), now_s)


def _unverified(standing: Standing, now_s: float, committed_s: float) -> Standing:
    """Where nothing was passed nothing is taken away."""
    if committed_s < standing.clean_from_s:
        return standing
    passes, batches = (replace(one, amount=UNVERIFIED_PART * one.amount) for one in (standing.passes, standing.batches))
    return _by_record(replace(standing, passes=passes, batches=batches), now_s)


def _doubted(standing: Standing, now_s: float, interval: str, auditor: str) -> Standing:
    known = dict(standing.doubts)
    if standing.state not in WORKING or interval in known or len(known) >= MAX_DOUBTS:
        return standing
    doubts = (*standing.doubts, (interval, frozenset((auditor,))))
    since_s = standing.since_s if standing.state is State.SUSPECT else now_s
    return replace(standing, state=State.SUSPECT, since_s=since_s, reason=DOUBTED, doubts=doubts)


def _assured(standing: Standing, now_s: float, interval: str, auditor: str) -> Standing:
    if standing.state is not State.SUSPECT:
        return standing
    heard = {name: auditors | {auditor} if name == interval else auditors for name, auditors in standing.doubts}
    doubts = tuple((name, auditors) for name, auditors in heard.items() if len(auditors) <= REAUDITORS)
    if doubts:
        return replace(standing, doubts=doubts)
    reason = f"{REAUDITORS} others found nothing"
    return _by_record(replace(standing, state=State.PROBATION, since_s=now_s, reason=reason, doubts=()), now_s)


def _quarantined(standing: Standing, now_s: float, evidence: str, reason: str) -> Standing:
    number = standing.num_quarantines + 1
    return Standing(
        State.QUARANTINED, now_s, reason, standing.terms, clean_from_s=now_s, until_s=now_s + standing.terms.quarantine_s(number),
        num_quarantines=number, evidence=evidence,
    )  # fmt: skip


def _shadow_passed(standing: Standing, now_s: float) -> Standing:
    if standing.state is not State.REHAB:
        return standing
    num_units = standing.terms.shadow_units
    if standing.num_shadows + 1 < num_units:
        return replace(standing, num_shadows=standing.num_shadows + 1)
    return replace(standing, state=State.PROBATION, since_s=now_s, reason=f"{num_units} units in rehab were right", num_shadows=0)
