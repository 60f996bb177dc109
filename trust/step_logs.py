"""Logs of steps: what a signed statement binds a replica to, entry by entry. Pure; a log is believed only through the statement that names its digest."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Final

from dcnr.errors import Corrupt
from dcnr.ids import digest_of
from dcnr.limits import MIB
from dcnr.v1 import model_pb2
from trust.envelope import parse

MAX_LOG_BYTES: Final = 2 * MIB
MAX_ENTRIES: Final = 4096
TENSOR_DIGEST_BYTES: Final = 32

Statement = model_pb2.Commit | model_pb2.Delta


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Where a replica's own signed words do not fit one another: no tensor is needed to see it."""

    entry: int
    """Of the log."""
    reason: str


def open_log(data: bytes, statement: Statement) -> model_pb2.StepLog:
    """The log that ``statement``, whose signature was verified, names. Raises Corrupt (``wrong_log``, and what is too large or no log)."""
    if digest_of(data) != statement.steps_digest:
        raise Corrupt("this is not the log that the statement names", code="wrong_log")
    return parse(model_pb2.StepLog, data, MAX_LOG_BYTES)


def begins_with(statement: Statement) -> str:
    """Digest of the state or anchor that a statement begins with."""
    return statement.anchor_digest if isinstance(statement, model_pb2.Delta) else statement.parent_digest


def named_in(log: model_pb2.StepLog) -> frozenset[str]:
    """All digests that a log names: of states (SHA-256), inputs and outputs (BLAKE3)."""
    tensors = {digest.hex() for step in log.steps for digest in (*step.inputs, *(output.digest for output in step.outputs))}
    return frozenset((*tensors, log.begin_digest, *(step.state_digest for step in log.steps))) - {""}


def contradiction_in(statement: Statement, log: model_pb2.StepLog) -> Contradiction | None:
    """The first place where a log does not fit itself or the statement that names it; None if all of it fits.

    Only what no honest replica ever signs counts: the same facts stated twice, in two ways.
    """
    if any(getattr(log, name) != getattr(statement, name) for name in _SHARED) or log.begin_digest != begins_with(statement):
        return Contradiction(0, "it is about something else than the statement that names it")
    if len(log.steps) > MAX_ENTRIES:
        return Contradiction(MAX_ENTRIES, f"it has {len(log.steps)} entries")
    learned = 0
    for entry, step in enumerate(log.steps):
        reason = _bad_form(step)
        if not reason and not step.forward_only:
            reason = _other_batch(statement, learned, step)
            learned += 1
        if not reason and entry and not _follows(statement, log.steps[entry - 1], step):
            reason = "it does not learn on from the entry before it"
        if reason:
            return Contradiction(entry, reason)
    if learned != len(statement.batches):
        return Contradiction(len(log.steps), f"{learned} batches were learned in it, {len(statement.batches)} in its statement")
    return None


_SHARED: Final = ("network_id", "model", "job_id", "vnode", "replica", "incarnation")


def _bad_form(step: model_pb2.Step) -> str:
    digests = (*step.inputs, *(output.digest for output in step.outputs))
    if any(len(digest) != TENSOR_DIGEST_BYTES for digest in digests):
        return "a tensor without a digest"
    if not (math.isfinite(step.loss) and math.isfinite(step.lr)):
        return "a loss or learning rate that is not finite"
    if step.forward_only and (step.loss or step.lr):
        return "a loss where nothing was learned"
    return ""


def _other_batch(statement: Statement, learned: int, step: model_pb2.Step) -> str:
    """Losses of statements are single precision."""
    if learned >= len(statement.batches) or statement.batches[learned] != step.batch:
        return f"batch {step.batch} is not what the statement says was learned"
    if learned >= len(statement.losses) or _single(statement.losses[learned]) != _single(step.loss):
        return f"another loss for batch {step.batch} than the statement has"
    return ""


def _single(value: float) -> bytes:
    """As single precision holds it."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _follows(statement: Statement, before: model_pb2.Step, step: model_pb2.Step) -> bool:
    """Merges, and new anchors of a contributor, change the lineage between two entries; what they held, the log does not say."""
    expected = before.num_learned + (not before.forward_only)
    if isinstance(statement, model_pb2.Delta):
        return True
    return step.num_learned >= expected if statement.merges else step.num_learned == expected
