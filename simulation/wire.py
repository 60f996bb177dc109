"""Words of the data plane as messages, and back."""

from __future__ import annotations

from dcnr.intervals import IntervalSet
from dcnr.v1 import common_pb2, vnode_pb2
from vnode.vocabulary import Lane, Mode, Verdict

MODES = {
    Mode.TRAIN: vnode_pb2.MODE_TRAIN,
    Mode.FORWARD_ONLY: vnode_pb2.MODE_FORWARD_ONLY,
    Mode.EVAL: vnode_pb2.MODE_EVAL,
}


VERDICTS = {
    Verdict.MERGED: vnode_pb2.MERGE_VERDICT_MERGED,
    Verdict.REFUSED: vnode_pb2.MERGE_VERDICT_REFUSED,
    Verdict.ANCHOR: vnode_pb2.MERGE_VERDICT_ANCHOR,
}


def to_wire(batches: IntervalSet) -> common_pb2.IntervalSet:
    """An interval set as a message."""
    return common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=lo, end=hi) for lo, hi in batches.pairs()])


def from_wire(message: common_pb2.IntervalSet) -> IntervalSet:
    """A checked interval set."""
    return IntervalSet.from_pairs((interval.first, interval.end) for interval in message.intervals)


def lane_to_wire(lane: Lane) -> vnode_pb2.Lane:
    """A lane as a message."""
    return vnode_pb2.Lane(split=lane.split, round=lane.round)


def lane_from_wire(message: vnode_pb2.Lane) -> Lane:
    """A lane."""
    return Lane(message.split, message.round)
