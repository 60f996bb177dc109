"""The ledger and everybody's standing as a chain of manifests gives them: read from the oldest on, and the first entry that cannot be is named. Pure.

A contribution whose interval is new says what the draw said, and belongs to the checkpoint that the same manifest names newest of its VNode. One whose interval
is known changes its verdict; with the verdict that it has it is taken up again, since the checkpoint that brought it was lost or left aside: it belongs to its
VNode's newest checkpoint from now on. What a manifest retracts leaves its line, and so does what stands behind the checkpoint that it names newest. What leaves
a line where the same manifest brings new intervals of its VNode is left aside by these; elsewhere it went back, or is lost. So a process with an empty disk, or
one that distrusts its holder, finds the same as everybody.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from dcnr.errors import Corrupt, InvalidInput, InvariantBroken
from dcnr.ids import check_digest, check_node_id
from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2
from trust.layers import Layers
from trust.ledger import CLEAR, Interval, Ledger, Named, Verdict
from trust.standing import ORDINARY, Event, Faulted, Passed, Standing, Terms, Unverified, begun, folded

AUDITS_DRAWN: Final = "drawn"
"""What ``Manifest.audits`` says where audits are in force."""
FIRST: Final = frozenset((Verdict.OPEN, Verdict.SPARED))
"""What the draw can say."""
STANDING: Final = FIRST | {Verdict.PASSED}
"""With such a verdict an interval can be part of a checkpoint."""
NEXT: Final[Mapping[Verdict, frozenset[Verdict]]] = {
    Verdict.OPEN: frozenset((Verdict.PASSED, Verdict.FAILED, Verdict.UNVERIFIABLE, Verdict.VOID, Verdict.DROPPED)),
    Verdict.SPARED: frozenset((Verdict.OPEN, Verdict.FAILED, Verdict.VOID, Verdict.DROPPED)),
    Verdict.PASSED: frozenset((Verdict.OPEN, Verdict.FAILED, Verdict.VOID, Verdict.DROPPED)),
    Verdict.VOID: frozenset((Verdict.FAILED,)),
    Verdict.DROPPED: frozenset((Verdict.FAILED,)),
    Verdict.FAILED: frozenset(),
    Verdict.UNVERIFIABLE: frozenset(),
}
"""What a verdict may become. A passed one is open again where its auditor was found lying, a spared one where it is drawn late (`trust.late_draw`)."""


Proof = tuple[str, str, str]
"""A piece of evidence with the PNode and the interval that it convicts: one fault of one PNode, whatever else manifests tell by the same evidence."""


@dataclass(frozen=True, slots=True)
class Told:
    """A verdict as a manifest told it, for standings."""

    pnode_id: str
    interval: str
    verdict: Verdict
    decided_s: float
    committed_s: float
    """When a manifest first named the interval."""
    evidence: str
    num_batches: int = 1
    """Of the interval."""

    @property
    def proof(self) -> Proof:
        """What would have to be proven for a failure to count."""
        return self.evidence, self.pnode_id, self.interval

    def heard(self, now_s: float) -> Told:
        """The same, as somebody hears it at that time by a clock of its own: nothing that is told happened later."""
        if self.decided_s <= now_s and self.committed_s <= now_s:
            return self
        return replace(self, decided_s=min(self.decided_s, now_s), committed_s=min(self.committed_s, now_s))


@dataclass(frozen=True, slots=True)
class Chronicle:
    """Everything that follows from a chain."""

    ledger: Ledger
    told: tuple[Told, ...] = ()
    aside: frozenset[str] = frozenset()
    """Intervals in no line, since a checkpoint went on from before them: what is open of them is judged all the same."""
    open: frozenset[str] | None = None
    """Open intervals of checkpoints that count, as whoever read the chain kept count of them; None: nobody did."""
    lost: frozenset[str] = frozenset()
    """Open intervals that are in no line though nothing left them aside, where somebody kept count."""
    cleared: Mapping[str, int] = field(default_factory=dict)
    """By VNode: how many of its checkpoints are cleared; empty where nobody kept count."""


@dataclass(slots=True)
class _Reading:
    """What was read until now. A chain of days is long, and every manifest is read at once: each costs what it says, not what was said before it."""

    lines: dict[str, list[Named]]
    places: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of each line: the place of each digest."""
    intervals: dict[str, Interval] = field(default_factory=dict)
    changed: dict[str, Interval] = field(default_factory=dict)
    """What was said of intervals since this was asked for last."""
    committed_s: dict[str, float] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    aside: set[str] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    """Intervals that are open, in a line or not."""
    held: set[str] = field(default_factory=set)
    """Intervals in a line."""
    cleared: dict[str, int] = field(default_factory=dict)
    """Of each line: how many checkpoints are cleared, from the oldest on."""
    retracted: frozenset[str] = frozenset()
    """What the manifest before retracted: most of that the next one repeats."""
    appended: set[str] = field(default_factory=set)
    """Digests that the manifest before brought into a line."""
    gone: set[str] = field(default_factory=set)
    """Digests that have left a line since this was asked for last."""

    def __post_init__(self) -> None:
        for vnode in self.lines:
            self.index(vnode)

    def index(self, vnode: str) -> None:
        """A line has begun, or lost checkpoints in its midst."""
        self.places[vnode] = {one.digest: at for at, one in enumerate(self.lines[vnode])}
        self.cleared[vnode] = 0

    def say(self, one: Interval) -> None:
        """What is known of an interval from now on."""
        before = self.intervals.get(one.name)
        if before is not None and before.verdict in CLEAR and one.verdict not in CLEAR:
            self.cleared[one.vnode] = 0  # counted anew: which checkpoint it is in is not known
        self.intervals[one.name] = self.changed[one.name] = one
        (self.open.add if one.verdict is Verdict.OPEN else self.open.discard)(one.name)

    def append(self, vnode: str, named: Named) -> None:
        """A line has a checkpoint more."""
        self.places[vnode][named.digest] = len(self.lines[vnode])
        self.lines[vnode].append(named)
        self.appended.add(named.digest)
        self.held.update(named.intervals)

    def leave(self, vnode: str, left: Sequence[Named]) -> None:
        """These are in the line no more; all from the first of them on, or `index` follows."""
        self.cleared[vnode] = min(self.cleared.get(vnode, 0), len(self.lines[vnode]) - len(left))
        for one in left:
            self.places[vnode].pop(one.digest, None)
            self.gone.add(one.digest)
            self.held.difference_update(one.intervals)

    def count_cleared(self) -> None:
        """A manifest was read."""
        for vnode, line in self.lines.items():
            at = min(self.cleared.get(vnode, 0), len(line))
            while at < len(line) and all(self.intervals[name].verdict in CLEAR for name in line[at].intervals):
                at += 1
            self.cleared[vnode] = at


class Folding:
    """A chain that is read manifest by manifest; each verified by the caller, the first is what the job began with."""

    def __init__(self, first: model_pb2.Manifest) -> None:
        self._reading = _Reading({entry.vnode: [Named(entry.working[0].digest, ())] for entry in first.entries if entry.working})
        self._shown: Layers[str, Interval] = Layers({})

    def read(self, manifest: model_pb2.Manifest) -> None:
        """The next one. Raises Corrupt (``bad_ledger``), naming manifest and entry; this object is of no use then."""
        try:
            _read(self._reading, manifest)
        except (Corrupt, InvalidInput) as error:
            raise Corrupt(f"manifest {manifest.number}: {error.message}", code="bad_ledger") from error

    def chronicle(self, stored: Collection[str] | None = None) -> Chronicle:
        """What was read until now. ``stored``: digests of the states that are still in the store; None: not asked."""
        reading = self._reading
        lines = {
            vnode: tuple(line) if stored is None else tuple(replace(one, is_kept=one.digest in stored) for one in line)
            for vnode, line in reading.lines.items()
        }
        reading.count_cleared()
        self._shown, reading.changed = self._shown.updated(reading.changed), {}
        opened = frozenset(name for name in reading.open if name in reading.held)
        lost = frozenset(name for name in reading.open if name not in reading.held and name not in reading.aside)
        told, aside = tuple(reading.told), frozenset(reading.aside)
        return Chronicle(Ledger(lines, self._shown), told, aside, opened, lost, dict(reading.cleared))

    def take_gone(self) -> set[str]:
        """Digests that lines named when this was asked last, or since, and that none names now."""
        gone, self._reading.gone = self._reading.gone, set()
        return {digest for digest in gone if not any(digest in places for places in self._reading.places.values())}


def chronicle_of(manifests: Sequence[model_pb2.Manifest], stored: Collection[str]) -> Chronicle:
    """What these manifests of one job say, oldest first, each verified by the caller; the first is what the job began with.

    ``stored``: digests of the states that are still in the store. Raises Corrupt (``bad_ledger``), naming manifest and entry.
    """
    if not manifests:
        raise Corrupt("a ledger begins with a manifest", code="bad_ledger")
    folding = Folding(manifests[0])
    for manifest in manifests[1:]:
        folding.read(manifest)
    chronicle = folding.chronicle(stored)
    try:
        chronicle.ledger.check()
    except InvariantBroken as error:
        raise Corrupt(error.message, code="bad_ledger") from error
    return chronicle


def standings_of(
    chronicle: Chronicle,
    verified: Collection[Proof],
    own: Mapping[str, Sequence[Event]] = MappingProxyType({}),
    terms: Terms = ORDINARY,
    *,
    now_s: float,
) -> dict[str, Standing]:
    """By PNode: its standing as the chain gives it, `standing_of` everybody whom it names."""
    told: dict[str, list[Told]] = {}
    for one in chronicle.told:
        told.setdefault(one.pnode_id, []).append(one)
    return {
        pnode_id: standing_of([told[pnode_id]], verified, own.get(pnode_id, ()), terms, now_s=now_s) for pnode_id in sorted(told)
    }


def standing_of(
    chains: Iterable[Sequence[Told]], verified: Collection[Proof], own: Sequence[Event], terms: Terms = ORDINARY, *, now_s: float
) -> Standing:
    """Of one PNode, by what each chain tells of it, in the order of the chain, and what this orchestrator alone saw of it; one of both is not empty.

    ``verified``: faults that this process has verified itself; any other moves nothing. ``own``: such as units in rehab; where it was lost, rehab begins again.
    ``now_s``: by the reader's clock. Nothing that was told happens later than that, and in a chain nothing before what it tells earlier, whatever dates it
    gives; one that does not fit the others' moves none of them. An interval counts once, however often it is opened and judged.
    """
    placed: list[tuple[float, Event]] = [(event.at_s, event) for event in own]
    firsts_s: list[float] = []
    all_heard = [[one.heard(now_s) for one in chain] for chain in chains]
    again = _told_again(all_heard)
    for number, heard in enumerate(all_heard):
        firsts_s.append(heard[0].committed_s)
        for at, (place_s, one) in enumerate(zip(_places([one.decided_s for one in heard]), heard, strict=True)):
            event = _event_of(one, verified) if (number, at) not in again else None
            if event is not None:
                placed.append((place_s, event))
    placed.sort(key=lambda one: one[0])
    begun_s = min(firsts_s) if firsts_s else placed[0][0]
    return folded(begun(begun_s, terms), (event for _, event in placed))


def _told_again(chains: Sequence[Sequence[Told]]) -> set[tuple[int, int]]:
    """Which verdicts, by chain and place, count no more: a pass of what is opened again, and what is said of an interval a second time."""
    counted: dict[tuple[str, Verdict], tuple[int, int]] = {}
    again: set[tuple[int, int]] = set()
    for number, chain in enumerate(chains):
        for at, one in enumerate(chain):
            known = one.interval, one.verdict
            if one.verdict is Verdict.OPEN and (earlier := counted.pop((one.interval, Verdict.PASSED), None)) is not None:
                again.add(earlier)
            elif one.verdict in (Verdict.PASSED, Verdict.UNVERIFIABLE) and counted.setdefault(known, (number, at)) != (number, at):
                again.add((number, at))
    return again


def _places(dates_s: Sequence[float]) -> list[float]:
    """When what a chain tells in this order happened. Most dates follow one another (the longest such row of them, Schensted 1961); any other has the
    place of the one before it.
    """
    ends: list[int] = []
    """By length less one: where the row of that length ends whose end is earliest."""
    before: list[int] = []
    for at, date_s in enumerate(dates_s):
        length = bisect.bisect_right(ends, date_s, key=dates_s.__getitem__)
        before.append(ends[length - 1] if length else -1)
        ends[length : length + 1] = [at]
    row, at = set[int](), ends[-1]
    while at >= 0:
        row.add(at)
        at = before[at]
    places, place_s = list[float](), dates_s[min(row)]
    for at, date_s in enumerate(dates_s):
        place_s = date_s if at in row else place_s
        places.append(place_s)
    return places


def _event_of(told: Told, verified: Collection[Proof]) -> Event | None:
    match told.verdict:
        case Verdict.PASSED:
            return Passed(told.decided_s, told.committed_s, told.num_batches)
        case Verdict.UNVERIFIABLE:
            return Unverified(told.decided_s, told.committed_s)
        case Verdict.FAILED if told.proof in verified:
            return Faulted(told.decided_s, told.committed_s, told.evidence, f"interval {told.interval[:12]} failed its audit")
        case _:
            return None


def _read(reading: _Reading, manifest: model_pb2.Manifest) -> None:
    """One manifest more: verdicts, then what it retracts, then what it names."""
    if manifest.audits != AUDITS_DRAWN:
        raise Corrupt(f"audits are {manifest.audits!r:.20} in it", code="bad_ledger")
    fresh: dict[str, list[str]] = {}
    carried: list[tuple[str, str]] = []
    for one in manifest.contributions:
        name = check_digest(one.interval)
        before = reading.intervals.get(name)
        if before is not None and before.verdict.value == one.verdict:
            _check_same(before, one)
            carried.append((one.vnode, name))
        elif before is not None:
            _change(reading, name, one)
        else:
            _begin(reading, name, one)
            fresh.setdefault(one.vnode, []).append(name)
    left = _retract(reading, manifest.retracted)
    for vnode, again in carried:
        if any(again in one.intervals for one in reading.lines.get(vnode, ())) or reading.intervals[again].verdict not in STANDING:
            raise Corrupt(f"interval {again[:12]} is told twice alike", code="bad_ledger")
        fresh.setdefault(vnode, []).append(again)
    _name(reading, manifest.entries, fresh)
    reading.aside |= {name for vnode in left.keys() & fresh.keys() for name in left[vnode]}
    reading.aside -= {name for names in fresh.values() for name in names}


def _retract(reading: _Reading, retracted: Iterable[str]) -> dict[str, set[str]]:
    """Takes these digests out of their lines. Returns, by VNode, the intervals that left. A manifest repeats what those before it retracted."""
    left: dict[str, set[str]] = {}
    everything = frozenset(retracted)
    doomed = (everything - reading.retracted) | (everything & reading.appended)
    reading.retracted, reading.appended = everything, set()
    for vnode, places in reading.places.items() if doomed else ():
        if places.keys().isdisjoint(doomed):
            continue
        line = reading.lines[vnode]
        leaving = [one for one in line if one.digest in doomed]
        left[vnode] = {name for one in leaving for name in one.intervals}
        reading.leave(vnode, leaving)
        reading.lines[vnode] = [one for one in line if one.digest not in doomed]
        reading.index(vnode)
    return left


def _begin(reading: _Reading, name: str, one: model_pb2.Contribution) -> None:
    verdict, decided_s = _verdict(one), one.decided_unix_ms / 1000
    if verdict not in FIRST:
        raise Corrupt(f"interval {name[:12]} begins as {verdict.value}", code="bad_ledger")
    batches = _batches(one)
    reading.say(Interval(name, len(reading.intervals), one.vnode, one.replica, check_node_id(one.pnode_id), batches, verdict))
    reading.committed_s[name] = decided_s
    reading.told.append(Told(one.pnode_id, name, verdict, decided_s, decided_s, "", len(reading.intervals[name].batches)))


def _change(reading: _Reading, name: str, one: model_pb2.Contribution) -> None:
    before, verdict = reading.intervals[name], _verdict(one)
    _check_same(before, one)
    if verdict not in NEXT[before.verdict]:
        raise Corrupt(f"interval {name[:12]} was {before.verdict.value} and becomes {verdict.value}", code="bad_ledger")
    if verdict is Verdict.FAILED and not one.evidence:
        raise Corrupt(f"interval {name[:12]} failed without evidence", code="bad_ledger")
    reading.say(replace(before, verdict=verdict))
    committed_s = reading.committed_s[name]
    reading.told.append(
        Told(one.pnode_id, name, verdict, one.decided_unix_ms / 1000, committed_s, one.evidence, len(before.batches))
    )


def _check_same(before: Interval, one: model_pb2.Contribution) -> None:
    same = (one.vnode, one.replica, one.pnode_id, _batches(one)) == (before.vnode, before.replica, before.pnode_id, before.batches)
    if not same:
        raise Corrupt(f"interval {before.name[:12]} is another than before", code="bad_ledger")


def _name(reading: _Reading, entries: Iterable[model_pb2.ManifestEntry], fresh: Mapping[str, Sequence[str]]) -> None:
    """Appends the checkpoint that brings each VNode's new intervals; anything else that is newest must be in its line already, which ends there then."""
    named = {entry.vnode: entry.working[0].digest for entry in entries if entry.working}
    if missing := set(fresh) - named.keys():
        raise Corrupt(f"{min(missing)} has new intervals and no checkpoint", code="bad_ledger")
    for vnode, digest in sorted(named.items()):
        line = reading.lines.setdefault(vnode, [])
        place = reading.places.setdefault(vnode, {}).get(digest)
        if vnode in fresh:
            if place is not None or not line:
                raise Corrupt(f"the new intervals of {vnode} come with no checkpoint of their own", code="bad_ledger")
            reading.append(vnode, Named(check_digest(digest), tuple(fresh[vnode])))
        elif place is None:
            raise Corrupt(f"{vnode} goes on from {digest[:12]}, which nothing leads to", code="bad_ledger")
        else:
            reading.leave(vnode, line[place + 1 :])
            del line[place + 1 :]


def _verdict(one: model_pb2.Contribution) -> Verdict:
    try:
        return Verdict(one.verdict)
    except ValueError as error:
        raise Corrupt(f"{one.verdict!r:.20} is no verdict", code="bad_ledger") from error


def _batches(one: model_pb2.Contribution) -> IntervalSet:
    return IntervalSet.from_pairs((int(pair.first), int(pair.end)) for pair in one.batches.intervals)
