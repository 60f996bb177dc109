"""What a PNode says of itself, within bounds, in the one place where it enters: whatever it sends, what is kept of it can be shown, added up and planned with.

A text is cut and printable, a name is a name or nothing, a number is finite and within what a machine can mean by it, an enum is one of its values, and
fields that the contract does not have are gone. `RULES` has every field that a beat can hold; what names no rule to hold it is read by somebody who checks it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from dcnr import limits
from dcnr.errors import InvalidInput
from dcnr.ids import is_name, is_replica_id
from dcnr.v1 import membership_pb2, model_pb2, orchestrator_pb2

MAX_BEAT_BYTES: Final = limits.MIB
MAX_REPLICAS: Final = 1024
"""Replicas that one machine reports."""
MAX_SEATS: Final = 64
"""Seats that one machine reports."""
MAX_EVIDENCE: Final = 32
MAX_EVENTS: Final = 64
MAX_NEEDS: Final = 16
MAX_NEED_INTERVALS: Final = 64
MAX_EXITS: Final = 16
MAX_REASON: Final = 200
"""Letters of a reason. It goes into plans, answers and logs, and from one machine into those of all."""
MAX_WORDS: Final = 80
"""Letters of what describes a machine."""
MAX_MARK: Final = 64
"""Letters and digits of a digest or an id."""
MAX_EVENT_REASON: Final = 500
MAX_WHOLE: Final = (1 << 53) - 1
"""Above this readers of JSON cannot tell one whole number from the next."""
MAX_BYTES: Final = 1 << 50
MAX_FIGURE: Final = 1e6
"""Cores, GFLOP/s, Mbit/s of one machine."""
MAX_S: Final = 1e9
MIN_RATE: Final = 1e-9
"""A batch in thirty years: a lower rate is none, and nothing is divided by it."""
MAX_RATE: Final = 1e9
MAX_LOSS: Final = 1e12
"""What is no number is as bad as this, in place of as good as nothing."""
MAX_TIME_UNIX_MS: Final = 253_402_300_799_000
"""The last second of the year 9999: no calendar goes further."""

Rule = Callable[[Message, str], None]
"""Brings one field within its bounds; given the message and the field's name."""


def bounded_beat(beat: orchestrator_pb2.Beat) -> orchestrator_pb2.Beat:
    """``beat`` itself, brought within bounds. Raises InvalidInput (``beat_too_large``) for one that is too long altogether: its stream ends."""
    if (
        beat.ByteSize() > MAX_BEAT_BYTES
        or len(beat.replicas) > MAX_REPLICAS
        or len(beat.evidence) > MAX_EVIDENCE
        or len(beat.events) > MAX_EVENTS
        or len(beat.seats) > MAX_SEATS
    ):
        raise InvalidInput("a beat with more than its bounds", code="beat_too_large")
    beat.DiscardUnknownFields()
    _bound(beat)
    return beat


def bounded_capability(said: membership_pb2.Capability) -> membership_pb2.Capability:
    """A copy of what an advert says that a machine lends, within the same bounds."""
    copy = membership_pb2.Capability()
    copy.CopyFrom(said)
    copy.DiscardUnknownFields()
    _bound(copy)
    return copy


def shown_text(said: str, most: int = MAX_WORDS) -> str:
    """A stranger's text as it may be shown: so many letters at most, each of them printable; what is not is named, as in ``\\n``."""
    cut = said[:most]
    return cut if cut.isprintable() else repr(cut)[1:-1][:most]


def _bound(message: Message) -> None:
    for name, rule in _BY_FIELD[message.DESCRIPTOR.full_name]:
        rule(message, name)


def _each(bounded: Callable[[Any], Any]) -> Rule:
    """The rule that keeps what ``bounded`` makes of a value; nothing and zero are within all bounds."""

    def rule(message: Message, name: str) -> None:
        said = getattr(message, name)
        if said and (kept := bounded(said)) != said:
            setattr(message, name, kept)

    return rule


def _text(most: int) -> Rule:
    return _each(lambda said: shown_text(said, most))


def _number(low: float, high: float, none: float = 0.0) -> Rule:
    """Within the two; ``none`` stands for what is no number."""
    return _each(lambda said: none if math.isnan(said) else min(high, max(low, said)))


def _whole(high: int) -> Rule:
    return _each(lambda said: min(high, said))


def _rate(said: float) -> float:
    return min(MAX_RATE, said) if said >= MIN_RATE else 0.0


def _mark(said: str) -> str:
    return said if len(said) <= MAX_MARK and said.isascii() and said.isalnum() else ""


def _name(said: str) -> str:
    return said if is_name(said) else ""


def _replica(said: str) -> str:
    return said if is_replica_id(said) else ""


def _known(values: Any) -> Rule:
    """One of an enum's values; unspecified for any other number."""
    numbers = frozenset(values.DESCRIPTOR.values_by_number)
    return _each(lambda said: said if said in numbers else 0)


def _rows(most: int) -> Rule:
    """So many messages at most, each of them bounded."""

    def rule(message: Message, name: str) -> None:
        rows = getattr(message, name)
        if len(rows) > most:
            del rows[most:]
        for row in rows:
            _bound(row)

    return rule


def _part(message: Message, name: str) -> None:
    if message.HasField(name):
        _bound(getattr(message, name))


def _few_intervals(message: Message, name: str) -> None:
    said = getattr(message, name).intervals
    if len(said) > MAX_NEED_INTERVALS:
        del said[MAX_NEED_INTERVALS:]


def _as_it_is(message: Message, name: str) -> None:
    """Nothing but a yes or no, a number that is only compared, or something that whoever reads it checks: envelopes, sets of batches."""


_SECONDS: Final = _number(0.0, MAX_S)
_FIGURE: Final = _number(0.0, MAX_FIGURE)
_LOSS: Final = _number(-MAX_LOSS, MAX_LOSS, none=MAX_LOSS)
_COUNT: Final = _whole(MAX_WHOLE)
_SIZE: Final = _whole(MAX_BYTES)
_WORDS: Final = _text(MAX_WORDS)
_REASON: Final = _text(MAX_REASON)
_NAME: Final = _each(_name)
_REPLICA: Final = _each(_replica)
_MARK: Final = _each(_mark)

RULES: Final[Mapping[str, Mapping[str, Rule]]] = {
    "dcnr.v1.Beat": {
        "sequence": _as_it_is, "desired_sequence": _as_it_is, "plan_digest": _MARK, "replicas": _rows(MAX_REPLICAS),
        "evidence": _rows(MAX_EVIDENCE), "capability": _part, "free_memory_bytes": _SIZE, "draining": _as_it_is, "worker_alive": _as_it_is,
        "worker_reason": _REASON, "incarnation": _as_it_is, "events": _rows(MAX_EVENTS), "advert": _as_it_is, "seats": _rows(MAX_SEATS),
        "round_trip_s": _SECONDS, "load": _as_it_is,  # what can be no load is none: `orchestrator.jobview.said_load`
    },
    "dcnr.v1.ReplicaReport": {
        "replica": _REPLICA, "vnode": _NAME, "incarnation": _as_it_is, "state": _known(orchestrator_pb2.AssignmentState), "reason": _REASON,
        "lineage": _as_it_is, "num_learned": _COUNT, "durable": _as_it_is, "step_s": _SECONDS, "rate": _each(_rate), "floor": _as_it_is,
        "floor_vnode": _NAME, "loss": _LOSS, "needs": _rows(MAX_NEEDS), "num_forwarded": _COUNT, "num_duplicates": _COUNT, "spool_bytes": _SIZE,
        "exits": _rows(MAX_EXITS), "checkpoint_digest": _MARK, "held_back_by": _NAME, "restored_from": _MARK, "role": _known(model_pb2.Role),
        "unmerged": _as_it_is, "num_merged": _COUNT, "num_refused": _COUNT, "num_unlearned": _as_it_is,
        "num_durable": _COUNT, "num_unmerged": _COUNT, "num_steps": _COUNT,
    },
    "dcnr.v1.NeedReport": {"from_replica": _REPLICA, "batches": _few_intervals, "since_s": _SECONDS, "why": _WORDS},
    "dcnr.v1.ExitResult": {
        "vnode": _NAME, "split": _NAME, "step": _COUNT, "count": _COUNT, "correct": _COUNT, "sum_loss": _LOSS, "complete": _as_it_is,
        "depth": _as_it_is, "round": _as_it_is,
    },
    "dcnr.v1.LinkEvidence": {"replica": _REPLICA, "pnode_id": _MARK, "broken": _as_it_is, "since_s": _SECONDS},
    "dcnr.v1.Capability": {
        "cores": _FIGURE, "memory_bytes": _SIZE, "disk_bytes": _SIZE, "device": _WORDS, "device_name": _WORDS, "gflops": _FIGURE,
        "uplink_mbit": _FIGURE, "downlink_mbit": _FIGURE, "architecture": _WORDS, "system": _WORDS, "accepts_work": _as_it_is,
        "relay_mbit": _FIGURE,
    },
    "dcnr.v1.Event": {
        "sequence": _as_it_is, "time_unix_ms": _each(lambda said: min(MAX_TIME_UNIX_MS, max(0, said))), "kind": _WORDS, "subject": _text(128),
        "reason": _text(MAX_EVENT_REASON), "facts": _as_it_is,  # cut as they are written down: `orchestrator.history.History.heard`
        "reporter": _MARK,
    },
    "dcnr.v1.SeatReport": {
        "model": _NAME, "vnode": _NAME, "state_digest": _MARK, "ready": _as_it_is, "reason": _REASON, "queued": _as_it_is, "compute_s": _SECONDS,
        "num_answered": _COUNT, "delegation": _as_it_is, "manifest_digest": _MARK, "num_sessions": _as_it_is, "session_bytes": _SIZE,
    },
}  # fmt: skip
_BY_FIELD: Final[Mapping[str, Sequence[tuple[str, Rule]]]] = {
    message: [(name, rule) for name, rule in rules.items() if rule is not _as_it_is] for message, rules in RULES.items()
}
"""Beats come by the thousand a second: each field is looked at by its name, and those that stay as they are by nobody."""
