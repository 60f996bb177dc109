"""The next manifest where audits are in force: verdicts with their way back, then checkpoints that continue their VNode's line, then what is cleared. Pure.

A line is linear. A checkpoint that goes on from an older one of its line than the newest leaves the newer ones aside: they are retracted, and what they brought
counts only as far as the new one holds it too. So is a state that the store has lost. Nobody is blamed for that, and no verdict changes. What of it waits for
its audit is judged all the same, and until then whatever its PNode brings as a primary is drawn for certain: nobody is drawn anew for going on from before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dataservice.manifest_form import AUDITS_DRAWN, CheckpointRecord, Contribution, Entry, Manifest, record_from_proto
from dataservice.manifests import Outcome, Refusal, Rules, next_manifest, without
from dcnr.ids import Digest
from orchestrator.chain import Chain
from orchestrator.checkpoints import NOTHING_NEW, Judged
from orchestrator.verdicts import MAX_RETRACTED, Taken, gone_back_to
from trust.folding import STANDING
from trust.layers import updated
from trust.ledger import CLEAR, Interval, Ledger, Named, Verdict

Draw = Callable[[Contribution, int], Verdict]
"""Of a new interval, and of how many batches the checkpoint that brings it has."""


@dataclass(frozen=True, slots=True)
class _Continued:
    """Where a checkpoint goes on from: the place in its line, and what it brings."""

    judged: Judged
    at: int
    brings: tuple[Contribution, ...]
    aside: tuple[str, ...]
    """Digests of newer checkpoints that it leaves aside."""
    drawn: str = ""
    """Its maker, where open intervals of that one are left aside, by this checkpoint or an earlier one."""


def audited_manifest(
    chain: Chain,
    parent: Manifest,
    parent_digest: str,
    judged: Sequence[Judged],
    taken: Taken,
    rules: Rules,
    draw: Draw,
    next_replica: int,
) -> Outcome:
    """The manifest after ``parent``; refused are also records of VNodes that go back in it. ``next_replica``: of the plan, for fences."""
    rules = replace(rules, audits=AUDITS_DRAWN, verdicts=taken.contributions)
    ledger = taken.ledger if taken.ledger is not None else chain.ledger
    before, parent = parent, gone_back_to(parent, chain, taken, next_replica, rules.num_working)
    parent, ledger = _without_lost(parent, chain, ledger, rules)
    rules = replace(rules, lost=frozenset(), is_due=parent != before)
    unjudged = frozenset(one.pnode_id for one in chain.left_open() if ledger.intervals[one.name].verdict is Verdict.OPEN)
    continued: dict[Digest, _Continued] = {}
    refused: list[Refusal] = []
    for one in judged:
        record = record_from_proto(one.checkpoint)
        found = "retracted" if record.vnode in taken.fenced else _continued(ledger, one, unjudged)
        if isinstance(found, str):
            refused.append(Refusal(record, found))
        else:
            continued[record.digest] = found
    while True:
        outcome = _named(chain, parent, parent_digest, ledger, continued, rules, draw)
        again = [one.record.digest for one in outcome.refused if continued[one.record.digest].aside]
        refused += [one for one in outcome.refused if one.record.digest in again]
        if not again:
            break
        for digest in again:  # what it would leave aside stays
            del continued[digest]
    outcome = replace(outcome, refused=(*refused, *outcome.refused))
    manifest = outcome.manifest
    if manifest is None:
        return outcome
    after = _ledger_after(ledger, outcome.accepted, continued, manifest.contributions)
    fresh, doomed, known = (
        {one.digest: one for one in outcome.accepted},
        frozenset(parent.condemned),
        _known_cleared(chain, after, manifest),
    )

    def record_of(digest: Digest) -> CheckpointRecord | None:
        named = chain.checkpoints.get(digest)
        return None if digest in doomed else fresh.get(digest) or (record_from_proto(named) if named is not None else None)

    entries = {vnode: _cleared(entry, after, vnode, record_of, known.get(vnode, 0)) for vnode, entry in manifest.entries.items()}
    return replace(outcome, manifest=replace(manifest, entries=entries))


def _continued(ledger: Ledger, judged: Judged, unjudged: frozenset[str]) -> _Continued | str:
    """Where it goes on from, or why it cannot be named. ``unjudged``: PNodes with open intervals that were left aside before."""
    line = ledger.lines.get(judged.checkpoint.vnode, ())
    at = next((place for place in range(len(line) - 1, -1, -1) if line[place].digest == judged.base), None)
    if at is None:
        return "retracted"
    names = {one.interval for one in judged.contributions}
    while at + 1 < len(line) and names.issuperset(line[at + 1].intervals):
        at += 1
    known_names = {one.interval for one in judged.contributions if one.interval in ledger.intervals}
    held = known_names and {name for one in line[: at + 1] for name in one.intervals}
    brings = tuple(one for one in judged.contributions if one.interval not in held)
    known = [ledger.intervals[one.interval] for one in brings if one.interval in ledger.intervals]
    if any(one.verdict not in STANDING for one in known):
        return "retracted"
    if not any(one.batches for one in brings):
        return NOTHING_NEW
    left = (ledger.intervals[name] for one in line[at + 1 :] for name in one.intervals if name not in names)
    unjudged |= {one.pnode_id for one in left if one.verdict is Verdict.OPEN}
    maker = judged.checkpoint.pnode_id
    return _Continued(judged, at, brings, tuple(one.digest for one in line[at + 1 :]), maker if maker in unjudged else "")


def _named(
    chain: Chain,
    parent: Manifest,
    parent_digest: str,
    ledger: Ledger,
    continued: Mapping[Digest, _Continued],
    rules: Rules,
    draw: Draw,
) -> Outcome:
    aside = {one.judged.checkpoint.vnode: one for one in continued.values() if one.aside}
    entries, gone = dict(parent.entries), [Digest(digest) for one in aside.values() for digest in one.aside]
    for vnode, one in aside.items():
        working = tuple(item for item in entries[vnode].working if item.digest not in one.aside)
        base = chain.checkpoints[ledger.lines[vnode][one.at].digest]
        entries[vnode] = Entry(working or (record_from_proto(base),), entries[vnode].cleared)
    parent = replace(parent, entries=entries, retracted=_retracted(parent, gone))
    learned = {
        digest: [
            _told(
                ledger, item, rules.now_unix_ms, _certain if item.pnode_id == one.drawn else draw, int(one.judged.checkpoint.step)
            )
            for item in one.brings
        ]
        for digest, one in continued.items()
    }
    return next_manifest(
        parent, parent_digest, [record_from_proto(one.judged.checkpoint) for one in continued.values()], rules, learned
    )


def _certain(_: Contribution, __: int) -> Verdict:
    return Verdict.OPEN


def _told(ledger: Ledger, one: Contribution, now_unix_ms: int, draw: Draw, num_held: int) -> Contribution:
    """A new interval with what the draw says; one that is known, with its verdict, is taken up again."""
    known = ledger.intervals.get(one.interval)
    verdict = known.verdict if known is not None else draw(one, num_held)
    return replace(one, verdict=verdict.value, decided_unix_ms=now_unix_ms)


def _without_lost(parent: Manifest, chain: Chain, ledger: Ledger, rules: Rules) -> tuple[Manifest, Ledger]:
    """States that the store has lost leave their line, with all that stand on them."""
    entries, lines, gone = dict(parent.entries), dict(ledger.lines), list[Digest]()
    for vnode, entry in parent.entries.items():
        kept = without(entry, rules.lost, rules.first.get(vnode))
        entries[vnode] = kept
        if kept is entry or kept == entry:
            continue
        line = lines.get(vnode, ())
        place = next((at for at, one in enumerate(line) if kept.working and one.digest == kept.working[0].digest), None)
        if place is not None:
            gone += [Digest(one.digest) for one in line[place + 1 :]]
            lines[vnode] = line[: place + 1]
    if not gone:
        return replace(parent, entries=entries), ledger
    return replace(parent, entries=entries, retracted=_retracted(parent, gone)), replace(ledger, lines=lines)


def _retracted(parent: Manifest, gone: Sequence[Digest]) -> tuple[Digest, ...]:
    return tuple(dict.fromkeys((*parent.retracted, *gone)))[-MAX_RETRACTED:]


def _ledger_after(
    ledger: Ledger, accepted: Sequence[CheckpointRecord], continued: Mapping[Digest, _Continued], told: Sequence[Contribution]
) -> Ledger:
    lines, fresh = dict(ledger.lines), dict[str, Interval]()
    for one in told:
        if one.interval not in ledger.intervals and one.interval not in fresh:
            number = len(ledger.intervals) + len(fresh)
            fresh[one.interval] = Interval(
                one.interval, number, one.vnode, one.replica, one.pnode_id, one.batches, Verdict(one.verdict)
            )
    for record in accepted:
        found = continued[record.digest]
        names = tuple(one.interval for one in found.brings)
        lines[record.vnode] = (*lines[record.vnode][: found.at + 1], Named(record.digest, names))
    return Ledger(lines, updated(ledger.intervals, fresh))


def _known_cleared(chain: Chain, after: Ledger, manifest: Manifest) -> dict[str, int]:
    """By VNode: of so many checkpoints the chain says that they are cleared, and this manifest says nothing else: what a day of them says is not read again."""
    doubtful = {
        one.vnode for one in manifest.contributions if Verdict(one.verdict) not in CLEAR and one.interval in chain.ledger.intervals
    }
    known: dict[str, int] = {}
    for vnode, count in chain.chronicle.cleared.items():
        line, before = after.lines.get(vnode, ()), chain.ledger.lines[vnode]
        goes_on = 0 < count <= len(line) and line[count - 1] is before[count - 1]
        known[vnode] = count if goes_on and vnode not in doubtful else 0
    return known


def _cleared(entry: Entry, ledger: Ledger, vnode: str, record: Callable[[Digest], CheckpointRecord | None], known: int) -> Entry:
    """With the newest cleared checkpoint whose object stays in the store. ``known``: so many are known to be cleared."""
    line = ledger.lines.get(vnode, ())
    for at in range(ledger.num_cleared(vnode, known) - 1 if line else -1, -1, -1):
        found = record(Digest(line[at].digest))
        if found is not None:
            return replace(entry, cleared=found)
    return entry
