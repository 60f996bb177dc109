"""The rules of manifests, pure: which recorded checkpoints the next manifest names, which states it condemns, and why a record is refused.

A manifest is whole: it has an entry for every VNode of its parent, and names only states that the caller found in the store with their size.
Until audits exist every sane durable checkpoint counts as cleared (``audits = "none"``). What is condemned is never named again, and may be
deleted once the head names that manifest; nothing younger than a grant's lifetime is condemned, because its upload may just have been allowed.

A manifest is bounded: every VNode has an equal share of `MANIFEST_BYTES`, so that no reader ever refuses what was written and no VNode with a lineage in
very many pieces takes the room of the others. A checkpoint that does not fit its share is refused; the replica learns on, which joins the pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from dcnr import limits
from dcnr.ids import Digest
from dcnr.intervals import IntervalSet
from dcnr.v1 import common_pb2, model_pb2

AUDITS_NONE: Final = "none"
UNAUDITED: Final = "unaudited"
MAX_CONDEMNED: Final = 8_192
"""Digests remembered as condemned; beyond it the oldest whose objects are gone from the store are forgotten."""
DIGEST_BYTES: Final = 66
"""One digest in a repeated field."""
ENVELOPE_BYTES: Final = 16 * limits.KIB
"""Kept free for the signature and for what a manifest says of itself."""
MANIFEST_BYTES: Final = limits.MAX_MANIFEST_BYTES - ENVELOPE_BYTES - MAX_CONDEMNED * DIGEST_BYTES
"""For entries, contributions and retracted digests."""


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One durable checkpoint. Fields as in ``dcnr.v1.Checkpoint``; ``job_id`` and ``commit_digest`` are empty for checkpoint 0."""

    vnode: str
    replica: str
    pnode_id: str
    incarnation: int
    digest: Digest
    size_bytes: int
    lineage: IntervalSet
    step: int
    parent_digest: str
    commit_digest: str
    epoch: int
    job_id: str
    recorded_unix_ms: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A VNode's checkpoints: ``working`` newest first, at most the last few kept; ``cleared`` for serving."""

    working: tuple[CheckpointRecord, ...]
    cleared: CheckpointRecord | None


@dataclass(frozen=True, slots=True)
class Contribution:
    """Batches that this manifest adds, and who learned them."""

    vnode: str
    replica: str
    pnode_id: str
    batches: IntervalSet
    verdict: str = UNAUDITED


@dataclass(frozen=True, slots=True)
class Manifest:
    """See ``dcnr.v1.Manifest``. ``entries`` is by VNode, sorted on the wire; ``condemned`` is in the order of condemning."""

    network_id: str
    model: str
    number: int
    parent_digest: str
    job_id: str
    epoch: int
    holder: str
    graph_digest: str
    entries: Mapping[str, Entry]
    retracted: tuple[Digest, ...] = ()
    condemned: tuple[Digest, ...] = ()
    contributions: tuple[Contribution, ...] = ()
    audits: str = AUDITS_NONE

    def named(self) -> frozenset[Digest]:
        """Every state that this manifest names."""
        return frozenset(
            one.digest for entry in self.entries.values() for one in (*entry.working, *((entry.cleared,) if entry.cleared else ()))
        )


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
    lost: frozenset[Digest] = frozenset()
    """States that the parent names and that the store does not have any more: they are named no longer."""
    first: Mapping[str, CheckpointRecord] = field(default_factory=dict)
    """What the job began with, by VNode: named again where nothing else is left."""


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
    room = share_bytes(parent)
    accepted: list[CheckpointRecord] = []
    refused: list[Refusal] = []
    contributions: list[Contribution] = []
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
        credited = (replace(one, batches=one.batches & added) for one in learned.get(record.digest, everything))
        new = sorted((one for one in credited if one.batches), key=lambda one: (one.replica, one.pnode_id))
        entry = _fitting(record, before, new, room)
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
        contributions=tuple(contributions),
        audits=parent.audits,
    )
    condemned = condemn(manifest, parent.condemned, rules)
    if not accepted and condemned == parent.condemned and entries == parent.entries:
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


def share_bytes(manifest: Manifest) -> int:
    """What one VNode's entry and contribution may take of any successor of ``manifest``."""
    return (MANIFEST_BYTES - DIGEST_BYTES * len(manifest.retracted)) // max(1, len(manifest.entries))


def _fitting(record: CheckpointRecord, before: Entry, contributions: Sequence[Contribution], room: int) -> Entry | None:
    """The entry with ``record`` as its newest and as many older ones as fit, at most the last few; None if not even it fits alone."""
    for kept in range(limits.KEPT_WORKING_CHECKPOINTS - 1, -1, -1):
        entry = Entry((record, *before.working[:kept]), cleared=record)
        alone = model_pb2.Manifest(
            entries=[_entry_to_proto(record.vnode, entry)], contributions=[_contribution_to_proto(one) for one in contributions]
        )
        if alone.ByteSize() <= room:
            return entry
    return None


def condemn(manifest: Manifest, before: Sequence[Digest], rules: Rules) -> tuple[Digest, ...]:
    """``before`` and every stored state that nothing names or keeps and whose upload is older than a grant's lifetime.

    Sorted by age then digest, so that any holder condemns the same.
    """
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


def to_proto(manifest: Manifest) -> model_pb2.Manifest:
    """As it travels."""
    message = model_pb2.Manifest(
        network_id=manifest.network_id,
        model=manifest.model,
        number=manifest.number,
        parent_digest=manifest.parent_digest,
        job_id=manifest.job_id,
        epoch=manifest.epoch,
        holder=manifest.holder,
        graph_digest=manifest.graph_digest,
        retracted=manifest.retracted,
        condemned=manifest.condemned,
        audits=manifest.audits,
    )
    message.entries.extend(_entry_to_proto(vnode, entry) for vnode, entry in sorted(manifest.entries.items()))
    message.contributions.extend(_contribution_to_proto(one) for one in manifest.contributions)
    return message


def from_proto(message: model_pb2.Manifest) -> Manifest:
    """A manifest whose envelope was verified. Raises Corrupt for interval sets that are not canonical."""
    return Manifest(
        network_id=message.network_id,
        model=message.model,
        number=message.number,
        parent_digest=message.parent_digest,
        job_id=message.job_id,
        epoch=message.epoch,
        holder=message.holder,
        graph_digest=message.graph_digest,
        entries={
            entry.vnode: Entry(
                tuple(record_from_proto(one) for one in entry.working),
                record_from_proto(entry.cleared) if entry.HasField("cleared") else None,
            )
            for entry in message.entries
        },
        retracted=tuple(map(Digest, message.retracted)),
        condemned=tuple(map(Digest, message.condemned)),
        contributions=tuple(
            Contribution(one.vnode, one.replica, one.pnode_id, _set_from_proto(one.batches), one.verdict)
            for one in message.contributions
        ),
        audits=message.audits,
    )


def record_from_proto(message: model_pb2.Checkpoint) -> CheckpointRecord:
    """One checkpoint. Raises Corrupt for a lineage that is not canonical."""
    return CheckpointRecord(
        vnode=message.vnode,
        replica=message.replica,
        pnode_id=message.pnode_id,
        incarnation=message.incarnation,
        digest=Digest(message.digest),
        size_bytes=message.size_bytes,
        lineage=_set_from_proto(message.lineage),
        step=message.step,
        parent_digest=message.parent_digest,
        commit_digest=message.commit_digest,
        epoch=message.epoch,
        job_id=message.job_id,
        recorded_unix_ms=message.recorded_unix_ms,
    )


def _entry_to_proto(vnode: str, entry: Entry) -> model_pb2.ManifestEntry:
    return model_pb2.ManifestEntry(
        vnode=vnode,
        working=[_checkpoint_to_proto(one) for one in entry.working],
        cleared=_checkpoint_to_proto(entry.cleared) if entry.cleared else None,
    )


def _contribution_to_proto(one: Contribution) -> model_pb2.Contribution:
    return model_pb2.Contribution(
        vnode=one.vnode, replica=one.replica, pnode_id=one.pnode_id, batches=_set_to_proto(one.batches), verdict=one.verdict
    )


def _checkpoint_to_proto(record: CheckpointRecord) -> model_pb2.Checkpoint:
    return model_pb2.Checkpoint(
        vnode=record.vnode,
        digest=record.digest,
        size_bytes=record.size_bytes,
        lineage=_set_to_proto(record.lineage),
        replica=record.replica,
        pnode_id=record.pnode_id,
        incarnation=record.incarnation,
        step=record.step,
        parent_digest=record.parent_digest,
        commit_digest=record.commit_digest,
        epoch=record.epoch,
        recorded_unix_ms=record.recorded_unix_ms,
        job_id=record.job_id,
    )


def _set_to_proto(batches: IntervalSet) -> common_pb2.IntervalSet:
    return common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=first, end=end) for first, end in batches.pairs()])


def _set_from_proto(message: common_pb2.IntervalSet) -> IntervalSet:
    return IntervalSet.from_pairs((one.first, one.end) for one in message.intervals)
