"""Fault records: evidence that anybody verifies again with own eyes; a claim that does not prove itself weighs nothing. Pure.

A record holds what the accused signed, the logs of steps named there, the tensors at which the fault shows, and the seed of the check. Whoever reads it opens
the signatures, measures the residual anew and holds it against a tolerance of its own. The residual in the record is for people. Measuring needs tensors
and is the caller's. Where the signed words contradict one another, nothing has to be measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from dcnr.errors import Corrupt, InvalidInput, Refused
from dcnr.ids import Digest, NodeId, check_digest, digest_of
from dcnr.limits import KIB, MIB
from dcnr.v1 import identity_pb2, model_pb2
from trust.commits import Place, follows, open_commit, open_delta
from trust.envelope import digest_of_envelope, parse
from trust.equivocation import equivocation_of
from trust.findings import finding_of
from trust.overturned import Finding
from trust.step_logs import Contradiction, Statement, contradiction_in, named_in, open_log

MAX_RECORD_BYTES: Final = 3 * MIB
"""Two commits of the largest size, and the rest."""
MAX_CHALLENGED: Final = 1024
MAX_WORDS_BYTES: Final = MAX_RECORD_BYTES - 128 * KIB
"""Of the statements of one interval and their logs together: so a record of it holds them, with as many challenged tensors as there may be."""
MAX_STATEMENTS: Final = 64
"""Commits of one interval: those of anchors, and that of the state."""
MAX_SOURCES: Final = 128
"""Lives of replicas that signed inputs of one interval: each report on it names all of them, and evidence that makes reports too large to be read would be
judged by nobody but whoever helps its maker.
"""
SEED_BYTES: Final = 32
DRAWN: Final = model_pb2.CHECK_KIND_REPLAY
"""The check that audits draw, and the only one that proves a computation wrong: whoever tells of a fault does not choose how it is looked for."""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """The signed statements of one interval, opened, with their logs."""

    accused: NodeId
    replica: str
    incarnation: int
    interval: Digest
    """Digest of the last statement: the interval's name."""
    named: frozenset[str]
    """Digests that they and their logs name: of these tensors and states alone can be said that the accused stated them."""
    statements: tuple[Statement, ...]
    logs: tuple[model_pb2.StepLog, ...]
    """One of each statement; none where no logs were brought."""
    broken: Contradiction | None
    """The first place, counted over all entries, at which a log contradicts itself or its statement: a fault that no tensor is needed to see."""


@dataclass(frozen=True, slots=True)
class Proven:
    """A fault that this process has verified itself."""

    kind: model_pb2.FaultKind.ValueType
    accused: NodeId
    interval: Digest
    """Of a computation: the interval that failed; of an equivocation: the first of the two statements."""
    record: Digest
    """Name of the evidence."""
    residual: float
    """As measured here; 0 for an equivocation, infinite for signed words that contradict one another."""


Measure = Callable[[Exhibit, model_pb2.FaultRecord], float]
"""The residual of the challenged tensors under the record's seed; raises what a missing tensor raises (then nothing is proven)."""


def verify(data: bytes, network_id: str, measure: Measure, tolerance: float) -> Proven:
    """What a record proves to this process. Raises Corrupt, Refused (``unproven``, ``wrong_network``, ``no_equivocation``, signers as for commits).

    The cheap checks come first: ``measure`` is called only for tensors that the accused has stated under a valid signature.
    """
    record = parse(model_pb2.FaultRecord, data, MAX_RECORD_BYTES)
    if record.network_id != network_id:
        raise Refused("evidence from another network", code="wrong_network")
    place = Place(network_id, record.model, record.job_id, record.vnode)
    if record.kind == model_pb2.FAULT_KIND_EQUIVOCATION:
        if len(record.statements) != 2 or record.challenged or record.seed:
            raise Corrupt("an equivocation is two statements and nothing else", code="bad_evidence")
        found = equivocation_of(record.statements[0], record.statements[1], place)
        return Proven(record.kind, found.pnode_id, found.statements[0], digest_of(data), 0.0)
    if record.kind != model_pb2.FAULT_KIND_COMPUTATION or len(record.seed) != SEED_BYTES:
        raise Corrupt("a record of no known kind or form", code="bad_evidence")
    exhibit = exhibit_of(record.statements, place, record.logs)
    _check_challenged(record, exhibit)
    if exhibit.broken is not None:
        return Proven(record.kind, exhibit.accused, exhibit.interval, digest_of(data), math.inf)
    if record.check != DRAWN:
        raise Refused("a fault that was found by a check which no audit draws", code="unproven")
    try:
        residual = measure(exhibit, record)
        finding = finding_of(residual, tolerance)
    except InvalidInput as error:
        raise Refused(f"the evidence cannot be measured: {error.message}", code="unproven") from error
    if finding is not Finding.FAULT:
        raise Refused(f"a residual of {residual:.3g} at a tolerance of {tolerance:.3g} is no fault", code="unproven")
    return Proven(record.kind, exhibit.accused, exhibit.interval, digest_of(data), residual)


def exhibit_of(envelopes: Sequence[identity_pb2.Envelope], place: Place, logs: Sequence[bytes] = ()) -> Exhibit:
    """The facts of a Delta, or of the commits of anchors and the commit of a state that end an interval, oldest first, with their logs.

    Raises Corrupt, Refused (``unproven``: statements that are not one interval of one replica).
    """
    if not 0 < len(envelopes) <= MAX_STATEMENTS or (logs and len(logs) != len(envelopes)):
        raise Corrupt(f"{len(envelopes)} statements with {len(logs)} logs", code="bad_evidence")
    opened = [_opened(envelope, place) for envelope in envelopes]
    if len(opened) > 1:
        _check_one_interval(opened, envelopes)
    statements = tuple(statement for statement, _ in opened)
    found = tuple(open_log(log, statement) for log, statement in zip(logs, statements, strict=False))
    named = frozenset[str]().union(*map(_named_by, statements), *map(named_in, found))
    last, accused = opened[-1]
    return Exhibit(
        accused, last.replica, int(last.incarnation), digest_of_envelope(envelopes[-1]), named, statements, found,
        _first_broken(statements, found),
    )  # fmt: skip


def _opened(envelope: identity_pb2.Envelope, place: Place) -> tuple[Statement, NodeId]:
    if envelope.domain == identity_pb2.DOMAIN_DELTA:
        delta = open_delta(envelope, place)
        return delta.delta, delta.delegation.pnode_id
    commit = open_commit(envelope, place)
    return commit.commit, commit.delegation.pnode_id


def _check_one_interval(opened: Sequence[tuple[Statement, NodeId]], envelopes: Sequence[identity_pb2.Envelope]) -> None:
    """Commits of one replica that follow one another, of which only the last one names a state."""
    for at, ((before, accused), (after, again)) in enumerate(pairwise(opened)):
        if not (isinstance(before, model_pb2.Commit) and isinstance(after, model_pb2.Commit)):
            raise Refused("a delta is an interval of its own", code="unproven")
        one_life = (before.replica, before.incarnation, accused) == (after.replica, after.incarnation, again)
        if (
            not one_life
            or before.state_digest
            or after.parent_commit != digest_of_envelope(envelopes[at])
            or not follows(after, before)
        ):
            raise Refused("commits that are not one interval of one replica", code="unproven")


def _named_by(statement: Statement) -> frozenset[str]:
    if isinstance(statement, model_pb2.Delta):
        return frozenset((statement.anchor_digest, statement.measured_digest, statement.digest, statement.steps_digest)) - {""}
    deltas = (parse(model_pb2.Delta, merged.delta.payload).digest for merged in statement.merges)
    own = (statement.parent_digest, statement.state_digest, statement.anchor_digest, statement.steps_digest)
    return frozenset((*own, *deltas)) - {""}


def _first_broken(statements: Sequence[Statement], logs: Sequence[model_pb2.StepLog]) -> Contradiction | None:
    before = 0
    for statement, log in zip(statements, logs, strict=False):
        found = contradiction_in(statement, log)
        if found is not None:
            return Contradiction(before + found.entry, found.reason)
        before += len(log.steps)
    return None


def _check_challenged(record: model_pb2.FaultRecord, exhibit: Exhibit) -> None:
    if not 0 < len(record.challenged) <= MAX_CHALLENGED:
        raise Corrupt(f"{len(record.challenged)} challenged tensors, 1 to {MAX_CHALLENGED} are allowed", code="bad_evidence")
    try:
        challenged = [check_digest(one) for one in record.challenged]
    except InvalidInput as error:
        raise Corrupt(f"a challenged tensor without a digest: {error.message}", code="bad_evidence") from error
    if foreign := [one for one in challenged if one not in exhibit.named]:
        raise Refused(f"the accused never stated {foreign[0][:12]}", code="unproven")
