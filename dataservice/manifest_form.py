"""Manifests as values and as they travel. Pure; the rules by which one follows another are in `dataservice.manifests`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dcnr.ids import Digest
from dcnr.intervals import IntervalSet
from dcnr.v1 import common_pb2, model_pb2

AUDITS_NONE: Final = "none"
AUDITS_DRAWN: Final = "drawn"
UNAUDITED: Final = "unaudited"


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
    interval: str = ""
    """Digest of the statement that ends it; empty where audits are not in force."""
    evidence: str = ""
    decided_unix_ms: int = 0


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
    fences: Mapping[str, int] = field(default_factory=dict)
    """By VNode: replicas of lower numbers hold what was taken back."""

    def named(self) -> frozenset[Digest]:
        """Every state that this manifest names."""
        return frozenset(
            one.digest for entry in self.entries.values() for one in (*entry.working, *((entry.cleared,) if entry.cleared else ()))
        )


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
        fences=[model_pb2.Fence(vnode=vnode, first_replica=first) for vnode, first in sorted(manifest.fences.items())],
    )
    message.entries.extend(entry_to_proto(vnode, entry) for vnode, entry in sorted(manifest.entries.items()))
    message.contributions.extend(contribution_to_proto(one) for one in manifest.contributions)
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
            Contribution(
                one.vnode,
                one.replica,
                one.pnode_id,
                _set_from_proto(one.batches),
                one.verdict,
                one.interval,
                one.evidence,
                one.decided_unix_ms,
            )
            for one in message.contributions
        ),
        audits=message.audits,
        fences={one.vnode: int(one.first_replica) for one in message.fences},
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


def entry_to_proto(vnode: str, entry: Entry) -> model_pb2.ManifestEntry:
    return model_pb2.ManifestEntry(
        vnode=vnode,
        working=[_checkpoint_to_proto(one) for one in entry.working],
        cleared=_checkpoint_to_proto(entry.cleared) if entry.cleared else None,
    )


def contribution_to_proto(one: Contribution) -> model_pb2.Contribution:
    return model_pb2.Contribution(
        vnode=one.vnode, replica=one.replica, pnode_id=one.pnode_id, batches=_set_to_proto(one.batches), verdict=one.verdict,
        interval=one.interval, evidence=one.evidence, decided_unix_ms=one.decided_unix_ms,
    )  # fmt: skip


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
