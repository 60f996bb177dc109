"""What the inventory tells the planner of a node: a function of its record and the time, and whether time alone may change it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.offers import USABLE, NodeOffer
from orchestrator.results import device_class_of
from orchestrator.silence import NodeRecord

MAY_RETURN_S: Final = 120.0
"""For this long a lost node's VNodes wait for it where nobody else fits."""
AWAITED_S: Final = 30.0
"""For this long what a lost node helped with waits for it where only busy nodes could take it: killed processes are back sooner."""
REFUSED_AFTER_S: Final = 3.0
"""An assignment that failed for this long under a living worker goes elsewhere."""
REFUSED_FOR_S: Final = 120.0
"""For this long the node is not asked again to host that VNode."""
MAX_REFUSED: Final = 256
"""VNodes that a node has refused, four times what one plan gives it. Of more, those that it refused longest ago are forgotten: they would be asked for again
first anyhow.
"""
HAND_OVER_S: Final = 15.0
"""A node that leaves politely keeps what it hosts for at most this long, until its last checkpoints are durable and its frames are taken."""
RECORD_S: Final = 3600.0
"""Losses count against a node's record for this long."""
MEASURED_BATCHES: Final = 32
"""A measured step time counts once the replica has learned this many batches."""
STEP_CHANGE: Final = 1.1
"""A step time counts anew when it differs from the one that counts by more than this factor: it is never exact, and each change is looked at."""
_UNTOLD_BYTES: Final = 1 << 62
MAX_GFLOPS: Final = 1e6
MAX_UPLINK_MBIT: Final = 1e6
MAX_LENT_BYTES: Final = 1 << 50
"""A volunteer may say anything of its machine. More than these counts as these, and what is no number as nothing: one machine that lent 2^64 bytes, or computed
NaN operations a second, stopped the planner for all. Step times are held against what these say (`orchestrator.loads.bounded`).
"""


def offer_of(record: NodeRecord, now: float) -> NodeOffer | None:
    """What the planner sees of a node; None for one that was never attached here and is not expected."""
    if record.beat_at is None and record.expected_until <= 0.0:
        return None
    is_told = _is_told(record)
    judged = record.standing if record.is_barred and record.standing is not None else record.judgement
    return NodeOffer(
        node_id=record.node_id,
        state=judged.state,
        reason=judged.reason,
        gflops=_within(record.capability.gflops, MAX_GFLOPS),
        memory_bytes=min(MAX_LENT_BYTES, record.capability.memory_bytes) if is_told else _UNTOLD_BYTES,
        disk_bytes=min(MAX_LENT_BYTES, record.capability.disk_bytes) if is_told else _UNTOLD_BYTES,
        accepts_work=record.capability.accepts_work or record.judgement.state == orchestrator_pb2.NODE_STATE_SUSPECT,
        handing_over=_handing_over(record, now),
        may_return=_may_return(record, now),
        measured=record.steps,
        refused={vnode: why for vnode, (when, why) in record.refused.items() if now - when < REFUSED_FOR_S},
        owner=record.owner,
        subnet=record.subnet,
        uplink_mbit=_within(record.capability.uplink_mbit, MAX_UPLINK_MBIT),
        awaited=_awaited(record, now),
        num_losses=_num_losses(record, now),
        device_class=device_class_of(record.capability),
        track=record.track,
        builds=record.builds,
    )


def is_passing(record: NodeRecord, now: float) -> bool:
    """Whether the offer may change without any news of the node."""
    return (
        record.draining_since is not None
        or _may_return(record, now)
        or _num_losses(record, now) > 0
        or any(now - when < REFUSED_FOR_S for when, _ in record.refused.values())
    )


def refused_anew(record: NodeRecord, now: float, failed: Mapping[str, str]) -> bool:
    """Notes that these VNodes of a plan stand as failed in the node's newest beat, each with its reason, and forgets what is past. Whether it refuses any."""
    record.failing_since = {vnode: record.failing_since.get(vnode, now) for vnode in failed}
    refused = [vnode for vnode, since in record.failing_since.items() if now - since >= REFUSED_AFTER_S]
    if refused:
        record.refused = {
            vnode: known for vnode, known in record.refused.items() if now - known[0] < REFUSED_FOR_S and vnode not in refused
        }
        record.refused.update((vnode, (now, failed[vnode])) for vnode in refused)
        for vnode in [*record.refused][:-MAX_REFUSED]:
            del record.refused[vnode]
    return bool(refused)


def counted_steps(known: Mapping[str, float], beat: orchestrator_pb2.Beat) -> dict[str, float]:
    """Seconds per batch by VNode as a beat reports them; those that count already stay while they are about right.

    Counted are steps of this copy: one that was handed over after many batches has still to show how long they take here. Who does not tell is believed.
    """
    steps: dict[str, float] = {}
    for item in beat.replicas:
        step_s = item.step_s
        if step_s > 0.0 and (item.num_steps or item.num_learned) >= MEASURED_BATCHES:
            old = known.get(item.vnode, 0.0)
            steps[item.vnode] = old if old / STEP_CHANGE <= step_s <= old * STEP_CHANGE else step_s
    return steps


def _within(said: float, most: float) -> float:
    """A number that can be reckoned with: 0 for one that is none."""
    return min(most, said) if said > 0.0 else 0.0


def _may_return(record: NodeRecord, now: float) -> bool:
    """Whether it is gone, but not for long, or back without its worker."""
    if record.is_barred:
        return False
    joins = record.judgement.state == orchestrator_pb2.NODE_STATE_JOINING and record.lost_at
    gone_at = record.lost_at[-1] if joins else record.gone_at
    return gone_at is not None and now - gone_at < MAY_RETURN_S


def _awaited(record: NodeRecord, now: float) -> frozenset[str]:
    """What it had when it was lost, until it takes work again or has been away for too long."""
    if (
        record.is_barred
        or record.judgement.state in USABLE
        or record.beat.draining
        or not record.lost_at
        or now - record.lost_at[-1] >= AWAITED_S
    ):
        return frozenset()
    return record.lost_with


def _num_losses(record: NodeRecord, now: float) -> int:
    return sum(now - when < RECORD_S for when in record.lost_at)


def _is_told(record: NodeRecord) -> bool:
    """Whether what the node lends is known here. One that the plan names and nobody has heard of yet is not said to lend nothing."""
    return record.beat_at is not None or record.capability.ByteSize() > 0


def _handing_over(record: NodeRecord, now: float) -> bool:
    """Whether a leaving node still brings its last checkpoints into the store, or frames to its successors.

    Its own word counts from the beat that says so, before anybody has judged the node anew: what it lends is none from the same beat on.
    """
    if record.draining_since is None or record.is_barred or record.judgement.state == orchestrator_pb2.NODE_STATE_OFFLINE:
        return False
    if now - record.draining_since >= HAND_OVER_S or record.worker_dead:
        return False
    giving = (orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, orchestrator_pb2.ASSIGNMENT_STATE_RELEASING)
    released = orchestrator_pb2.ASSIGNMENT_STATE_RELEASED
    return any(item.state in giving or (item.state == released and _brings(item)) for item in record.beat.replicas)


def _brings(report: orchestrator_pb2.ReplicaReport) -> bool:
    """Whether a replica holds something that nobody else has yet: a primary what is not durable, a contributor what is not merged."""
    if report.role in (model_pb2.ROLE_CONTRIBUTOR, model_pb2.ROLE_STANDBY):
        return bool(report.unmerged.intervals)
    return report.durable != report.lineage
