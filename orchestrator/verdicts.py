"""What the audit desk has decided about intervals, and what of it goes into the next manifest: verdicts, and with a failure the way back. Pure.

A way back can be longer than a manifest has room for. What leaves the lines then follows from the entries, which name where each VNode goes on from, and fences
keep out everything else that was taken back. So verdicts of what went back are told as far as they fit, those first that mean something beside the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dataservice.manifest_form import Contribution, Entry, Manifest, contribution_to_proto, record_from_proto
from dataservice.manifests import VERDICT_BYTES
from dcnr.ids import Digest
from orchestrator.audit_events import Decision
from orchestrator.chain import Chain
from orchestrator.costs import StageCost
from trust.folding import NEXT
from trust.going_back import Cause, WayBack, gone_back, way_back
from trust.layers import updated
from trust.ledger import Interval, Ledger, Verdict

if TYPE_CHECKING:
    from orchestrator.view import ModelView

MAX_AT_ONCE: Final = 512
"""Verdicts taken into one manifest; the rest follow in the next."""
JUDGED_BYTES: Final = VERDICT_BYTES // 2
"""What they may take, by which fewer are taken; the rest of `VERDICT_BYTES` is a way back's."""
FIELD_BYTES: Final = 8
"""A contribution in a manifest is longer than alone by less."""
MAX_RETRACTED: Final = 4096
"""Digests remembered as retracted; the oldest are forgotten, and fences keep them out all the same."""


BACK: Final = frozenset((Verdict.FAILED, Verdict.UNVERIFIABLE))
"""Verdicts with a way back."""
Verdicts = Callable[["ModelView"], Iterable[Decision]]
"""What the desk has decided, by the view it is asked with; asked in every round of the holder."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a manifest says of verdicts, and where VNodes return to."""

    decisions: tuple[Decision, ...] = ()
    contributions: tuple[Contribution, ...] = ()
    ledger: Ledger | None = None
    """Afterwards; None where nothing was decided."""
    way: WayBack | None = None
    fenced: frozenset[str] = frozenset()
    """VNodes whose replicas hold what is taken back, or may."""

    @property
    def found_fault(self) -> bool:
        """Whether checkpoints are taken back because of somebody's fault."""
        return self.way is not None and bool(self.way.accused and self.way.returns)


def news(chain: Chain, decisions: Iterable[Decision]) -> list[Decision]:
    """Those that the chain allows and does not say yet, one per interval, at most one failure or unverifiable one: it comes last. A failure has precedence:
    what goes back with an unverifiable one is looked at no more.
    """
    found: dict[str, Decision] = {}
    back: list[Decision] = []
    for one in decisions:
        known = chain.ledger.intervals.get(one.interval)
        if known is None or one.interval in found or one.verdict not in NEXT[known.verdict]:
            continue
        if one.verdict is Verdict.FAILED and (one.cause in (None, Cause.UNVERIFIABLE) or not one.evidence):
            continue
        if one.verdict in (Verdict.VOID, Verdict.DROPPED):
            continue
        if one.verdict in BACK:
            back.append(one)
        elif len(found) < MAX_AT_ONCE:
            found[one.interval] = one
    back.sort(key=lambda one: one.verdict is not Verdict.FAILED)
    last = next((one for one in back if one.interval not in found), None)
    return [*found.values(), *((last,) if last is not None else ())]


def take(
    ledger: Ledger, decisions: Sequence[Decision], behind: Mapping[str, frozenset[str]], kept: frozenset[str], now_unix_ms: int
) -> Taken:
    """What follows from ``decisions``, as `news` gives them, and as many of them as fit. ``kept``: digests of states that can be returned to; asked only
    where something goes back.

    Raises InvariantBroken where a VNode has no checkpoint left to return to.
    """
    contributions: list[Contribution] = []
    way: WayBack | None = None
    taken: list[Decision] = []
    room = JUDGED_BYTES
    for one in decisions:
        known = ledger.intervals[one.interval]
        if one.verdict in BACK:
            cause = one.cause if one.verdict is Verdict.FAILED and one.cause is not None else Cause.UNVERIFIABLE
            way = way_back(_with_kept(ledger, kept), one.interval, cause, behind)
            if known.verdict is not way.verdict:
                contributions.append(contribution(known, way.verdict, now_unix_ms, one.evidence))
            went = _went_back(ledger, way, now_unix_ms)
            contributions += went
            told = {item.interval for item in went}
            ledger = gone_back(ledger, replace(way, void=way.void & told, dropped=way.dropped & told))
        else:
            said = contribution(known, one.verdict, now_unix_ms)
            room -= _num_bytes(said)
            if room < 0 and taken:
                continue
            contributions.append(said)
            ledger = replace(ledger, intervals=updated(ledger.intervals, {one.interval: replace(known, verdict=one.verdict)}))
        taken.append(one)
    return Taken(tuple(taken), tuple(contributions), ledger, way, _fenced(ledger, taken, way, behind))


def _went_back(ledger: Ledger, way: WayBack, now_unix_ms: int) -> list[Contribution]:
    """What is told of intervals that go back with another, as far as there is room: of the accused first, then of what waits for an audit."""
    verdicts = {**dict.fromkeys(way.dropped, Verdict.DROPPED), **dict.fromkeys(way.void, Verdict.VOID)}
    changed = (one for name, verdict in verdicts.items() if (one := ledger.intervals[name]).verdict is not verdict)
    told: list[Contribution] = []
    room = VERDICT_BYTES - JUDGED_BYTES
    for one in sorted(changed, key=lambda one: (one.name not in way.void, one.verdict is not Verdict.OPEN, -one.number)):
        said = contribution(one, verdicts[one.name], now_unix_ms)
        room -= _num_bytes(said)
        if room < 0:
            break
        told.append(said)
    return told


def _num_bytes(one: Contribution) -> int:
    return contribution_to_proto(one).ByteSize() + FIELD_BYTES


def contribution(one: Interval, verdict: Verdict, now_unix_ms: int, evidence: str = "") -> Contribution:
    """What a manifest says of an interval that the chain knows."""
    return Contribution(one.vnode, one.replica, one.pnode_id, one.batches, verdict.value, one.name, evidence, now_unix_ms)


def gone_back_to(parent: Manifest, chain: Chain, taken: Taken, next_replica: int, num_working: int) -> Manifest:
    """``parent`` with the entries of VNodes that go back replaced by what counts from now on, retracted digests added, and fences set."""
    if not taken.fenced:
        return parent
    entries, returns = dict(parent.entries), taken.way.returns if taken.way is not None else {}
    retracted = [digest for one in returns.values() for digest in one.retracted]
    for vnode, back in returns.items():
        assert taken.ledger is not None
        digests = [one.digest for one in taken.ledger.lines[vnode] if one.digest in chain.checkpoints]
        digests = digests[: digests.index(back.target) + 1][-num_working:]
        before = {one.digest: one for one in parent.entries[vnode].working}
        named = [before.get(Digest(one)) or record_from_proto(chain.checkpoints[one]) for one in reversed(digests)]
        entries[vnode] = Entry((named[0], *(one for one in named[1:] if one.digest in before)), named[0])
    fences = {**parent.fences, **dict.fromkeys(taken.fenced, next_replica)}
    known = dict.fromkeys((*parent.retracted, *map(Digest, retracted)))
    return replace(parent, entries=entries, retracted=tuple(known)[-MAX_RETRACTED:], fences=fences)


def behind_of(costs: Iterable[StageCost]) -> dict[str, frozenset[str]]:
    """Of each stateful VNode all that its outputs reach, over any number of VNodes in between."""
    readers: dict[str, set[str]] = {}
    for cost in costs:
        readers.setdefault(cost.vnode, set())
        for name in cost.predecessors:
            readers.setdefault(name, set()).add(cost.vnode)

    def all_behind(vnode: str) -> frozenset[str]:
        found: set[str] = set()
        rest = list(readers[vnode])
        while rest:
            one = rest.pop()
            if one not in found:
                found.add(one)
                rest += readers[one]
        return frozenset(found)

    return {vnode: all_behind(vnode) for vnode in readers}


def _fenced(
    ledger: Ledger, decisions: Sequence[Decision], way: WayBack | None, behind: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    """Whoever goes back, and after a fault everybody behind: what was learned from it may be in states that no manifest names yet."""
    if way is None:
        return frozenset()
    vnodes = set(way.returns)
    last = decisions[-1]
    if last.verdict is Verdict.FAILED:
        accused = ledger.intervals[way.interval].vnode
        vnodes.add(accused)
        vnodes |= behind.get(accused, frozenset()) & ledger.lines.keys()
    return frozenset(vnodes)


def _with_kept(ledger: Ledger, kept: frozenset[str]) -> Ledger:
    lines = {vnode: tuple(replace(one, is_kept=one.digest in kept) for one in line) for vnode, line in ledger.lines.items()}
    return replace(ledger, lines=lines)
