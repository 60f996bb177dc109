"""The rules of manifests, pure: which recorded checkpoints the next manifest names, which states it condemns, and why a record is refused.

A manifest is whole: it has an entry for every VNode of its parent, and names only states that the caller found in the store with their size.
Where no audits are in force every sane durable checkpoint counts as cleared (``audits = "none"``). What is condemned is never named again, and may be
deleted once the head names that manifest; nothing younger than a grant's lifetime is condemned, because its upload may just have been allowed.

A manifest is bounded: every VNode has an equal share of `MANIFEST_BYTES`, so that no reader ever refuses what was written and no VNode with a lineage in
very many pieces takes the room of the others. A checkpoint that does not fit its share is refused; the replica learns on, which joins the pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from dataservice.manifest_form import (
    AUDITS_NONE,
    CheckpointRecord,
    Contribution,
    Entry,
    Manifest,
    contribution_to_proto,
    entry_to_proto,
)
from dcnr import limits
from dcnr.ids import Digest
from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2

MAX_CONDEMNED: Final = 8_192
"""Digests remembered as condemned, far more than go within a grant's lifetime; beyond it the oldest whose objects are gone from the store are forgotten."""
DIGEST_BYTES: Final = 66
"""One digest in a repeated field."""
FENCE_BYTES: Final = 16
"""A VNode's fence beside its name: any VNode may have one, at any time."""
ENVELOPE_BYTES: Final = 16 * limits.KIB
"""Kept free for the signature and for what a manifest says of itself."""
MANIFEST_BYTES: Final = limits.MAX_MANIFEST_BYTES - ENVELOPE_BYTES - MAX_CONDEMNED * DIGEST_BYTES
"""For entries, contributions and retracted digests."""
KEPT_AUDITED: Final = 5
"""Working checkpoints named of a VNode where audits are in force: a replica with more than four open intervals learns no more."""
VERDICT_BYTES: Final = 512 * limits.KIB
"""Kept free for verdicts where audits are in force."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state object as the store lists it; the age is by the store's own clock."""

    vnode: str
    digest: Digest
    size_bytes: int
    modified_unix_ms: int


@dataclass(frozen=True, slots=True)
class Rules:
    """What the next manifest is judged by: the plan's primaries, the term, the store's listing and the clock."""

    job_id: str
    epoch: int
    holder: str
    graph_digest: str
    primaries: Mapping[str, str]
    """VNode to the replica that the plan names as its primary."""
    stored: Sequence[StoredState]
    """All state objects of the model."""
    now_unix_ms: int
    grant_lifetime_ms: int
    kept: frozenset[Digest] = frozenset()
    """States that are never condemned though no longer named: checkpoint 0, those of releases, those kept for going back."""
    forgotten: frozenset[Digest] = frozenset()
    """What the parent condemns and the store has not had for longer than a grant lives: nobody can bring it any more as what it was."""
    lost: frozenset[Digest] = frozenset()
    """States that the parent names and that the store does not have any more: they are named no longer."""
    first: Mapping[str, CheckpointRecord] = field(default_factory=dict)
    """What the job began with, by VNode: named again where nothing else is left."""
    audits: str = AUDITS_NONE
    verdicts: tuple[Contribution, ...] = ()
    """What was decided about intervals that the chain knows; written into the manifest as they are."""
    is_due: bool = False
    """A manifest is written even if no checkpoint is accepted."""

    @property
    def is_audited(self) -> bool:
        """Whether intervals are named whole, and what is cleared follows from the ledger instead of being everything."""
        return self.audits != AUDITS_NONE

    @property
    def num_working(self) -> int:
        """How many working checkpoints of a VNode are named at most."""
        return KEPT_AUDITED if self.is_audited else limits.KEPT_WORKING_CHECKPOINTS


@dataclass(frozen=True, slots=True)
class Refusal:
    """A record that will not be named, and the word for why."""

    record: CheckpointRecord
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """``manifest`` is None where nothing is new: no manifest is written then."""

    manifest: Manifest | None
    accepted: tuple[CheckpointRecord, ...]
    refused: tuple[Refusal, ...]


def next_manifest(
    parent: Manifest,
    parent_digest: str,
    records: Iterable[CheckpointRecord],
    rules: Rules,
    learned: Mapping[Digest, Sequence[Contribution]] = MappingProxyType({}),
) -> Outcome:
    """The manifest after ``parent``; records are taken in order of progress, at most one per VNode, the others are refused as ``older``.

    ``learned``: by the digest of a state, who learned what on the way to it, where that was not all by its maker. Credited is what the parent does not hold.
    """
    entries = {vnode: without(entry, rules.lost, rules.first.get(vnode)) for vnode, entry in parent.entries.items()}
    room = share_bytes(parent, VERDICT_BYTES if rules.is_audited else 0)
    accepted, refused, contributions = list[CheckpointRecord](), list[Refusal](), list[Contribution]()
    taken: set[str] = set()
    sizes = {(state.vnode, state.digest): state.size_bytes for state in rules.stored}
    for record in sorted(records, key=lambda one: (one.vnode, -one.step, one.digest)):
        reason = "older" if record.vnode in taken else why_refused(parent, record, rules, sizes)
        if reason:
            refused.append(Refusal(record, reason))
            continue
        record = replace(record, recorded_unix_ms=rules.now_unix_ms)
        before = entries[record.vnode]
        added = record.lineage - lineage_of(before, rules.job_id)
        everything = (Contribution(record.vnode, record.replica, record.pnode_id, record.lineage),)
        credited = (
            one if one.interval else replace(one, batches=one.batches & added) for one in learned.get(record.digest, everything)
        )
        new = sorted(
            (one for one in credited if one.batches or one.interval), key=lambda one: (one.replica, one.pnode_id, one.interval)
        )
        entry = _fitting(record, before, new, room, rules)
        if entry is None:
            refused.append(Refusal(record, "too_fragmented"))
            continue
        contributions += new
        entries[record.vnode] = entry
        accepted.append(record)
        taken.add(record.vnode)
    manifest = Manifest(
        network_id=parent.network_id,
        model=parent.model,
        number=parent.number + 1,
        parent_digest=parent_digest,
        job_id=rules.job_id,
        epoch=rules.epoch,
        holder=rules.holder,
        graph_digest=rules.graph_digest,
        entries=entries,
        retracted=parent.retracted,
        contributions=(*rules.verdicts, *contributions),
        audits=rules.audits,
        fences=parent.fences,
    )
    condemned = condemn(manifest, parent.condemned, rules)
    more = set(condemned).difference(parent.condemned)  # forgetting alone can wait
    if not (accepted or rules.verdicts or rules.is_due or more or entries != parent.entries):
        return Outcome(None, (), tuple(refused))
    return Outcome(replace(manifest, condemned=condemned), tuple(accepted), tuple(refused))


def why_refused(parent: Manifest, record: CheckpointRecord, rules: Rules, sizes: Mapping[tuple[str, Digest], int]) -> str:
    """Empty if the record may be named, else the reason. ``sizes``: of the stored states by (VNode, digest)."""
    entry = parent.entries.get(record.vnode)
    if entry is None:
        return "unknown_vnode"
    entry = without(entry, rules.lost, rules.first.get(record.vnode))
    if len(record.lineage.pairs()) > limits.MAX_INTERVALS:
        return "too_fragmented"
    if record.digest in parent.condemned:
        return "condemned"
    if record.digest in parent.retracted:
        return "retracted"
    if record.job_id != rules.job_id:
        return "wrong_job"
    if rules.primaries.get(record.vnode) != record.replica:
        return "not_primary"
    if len(record.lineage) != record.step:
        return "bad_lineage"
    if sizes.get((record.vnode, record.digest)) != record.size_bytes:
        return "missing_object"
    newest = entry.working[0] if entry.working else None
    if any(one.digest == record.digest for one in entry.working):
        return "named"
    if newest is not None and (newest.job_id, newest.replica) == (record.job_id, record.replica):
        if record.incarnation < newest.incarnation:
            return "older_incarnation"
        if record.incarnation == newest.incarnation and record.step <= newest.step:
            return "older"
    return ""


def without(entry: Entry, lost: frozenset[Digest], first: CheckpointRecord | None) -> Entry:
    """The entry without states that are lost; where none is left, with the one that the job began with, whether or not that is there."""
    working = tuple(one for one in entry.working if one.digest not in lost)
    if len(working) == len(entry.working) and (entry.cleared is None or entry.cleared.digest not in lost):
        return entry
    if not working:
        if first is None:
            return entry
        working = (first,)
    return Entry(working, working[0] if entry.cleared is not None and entry.cleared.digest in lost else entry.cleared)


def share_bytes(manifest: Manifest, reserved_bytes: int = 0) -> int:
    """What one VNode's entry and contribution may take of any successor of ``manifest``."""
    fences = sum(FENCE_BYTES + len(vnode) for vnode in manifest.entries)
    return (MANIFEST_BYTES - reserved_bytes - fences - DIGEST_BYTES * len(manifest.retracted)) // max(1, len(manifest.entries))


def _fitting(
    record: CheckpointRecord, before: Entry, contributions: Sequence[Contribution], room: int, rules: Rules
) -> Entry | None:
    """The entry with ``record`` as its newest and as many older ones as fit, at most the last few; None if not even it fits alone."""
    cleared = before.cleared if rules.is_audited else record
    for kept in range(rules.num_working - 1, -1, -1):
        entry = Entry((record, *before.working[:kept]), cleared)
        alone = model_pb2.Manifest(
            entries=[entry_to_proto(record.vnode, entry)], contributions=[contribution_to_proto(one) for one in contributions]
        )
        if alone.ByteSize() <= room:
            return entry
    return None


def condemn(manifest: Manifest, before: Sequence[Digest], rules: Rules) -> tuple[Digest, ...]:
    """``before``, but for what may be forgotten, and every stored state that nothing names or keeps and whose upload is older than a grant's lifetime.

    Sorted by age then digest, so that any holder condemns the same.
    """
    before = tuple(digest for digest in before if digest not in rules.forgotten)
    kept, known = manifest.named() | rules.kept, set(before)
    old = sorted(
        (state.modified_unix_ms, state.digest)
        for state in rules.stored
        if state.digest not in kept
        and state.digest not in known
        and rules.now_unix_ms - state.modified_unix_ms > rules.grant_lifetime_ms
    )
    condemned = (*before, *dict.fromkeys(digest for _, digest in old))
    present = {state.digest for state in rules.stored}
    surplus = len(condemned) - MAX_CONDEMNED
    if surplus > 0:
        gone = set([one for one in condemned if one not in present][:surplus])
        condemned = tuple(digest for digest in condemned if digest not in gone)[:MAX_CONDEMNED]
    return condemned


def lineage_of(entry: Entry, job_id: str) -> IntervalSet:
    """What is durable of a VNode in that job: a later job starts from an empty lineage."""
    newest = entry.working[0] if entry.working else None
    return newest.lineage if newest is not None and newest.job_id == job_id else IntervalSet.empty()
