"""Fault records: evidence that anybody verifies again with own eyes; a claim that does not prove itself weighs nothing.

A record holds what the accused signed, which of the tensors named there the check reads, and its seed. Whoever reads it opens the signatures, measures the
residual anew and holds it against a tolerance of its own. The residual in the record is for people. Measuring needs tensors and is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dcnr.errors import Corrupt, InvalidInput, Refused
from dcnr.ids import Digest, NodeId, check_digest, digest_of
from dcnr.limits import MIB
from dcnr.v1 import identity_pb2, model_pb2
from trust.commits import Place, open_commit, open_delta
from trust.envelope import digest_of_envelope, parse
from trust.equivocation import equivocation_of
from trust.findings import finding_of
from trust.overturned import Finding

MAX_RECORD_BYTES: Final = 3 * MIB
"""Two commits of the largest size, and the rest."""
MAX_CHALLENGED: Final = 1024
SEED_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A signed statement that ends an interval, opened."""

    accused: NodeId
    replica: str
    incarnation: int
    interval: Digest
    """Digest of the statement: the interval's name."""
    named: frozenset[str]
    """Digests that it names: of these tensors and states alone can be said that the accused stated them."""


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
    """As measured here; 0 for an equivocation."""


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
    if record.kind != model_pb2.FAULT_KIND_COMPUTATION or len(record.statements) != 1 or len(record.seed) != SEED_BYTES:
        raise Corrupt("a record of no known kind or form", code="bad_evidence")
    exhibit = exhibit_of(record.statements[0], place)
    _check_challenged(record, exhibit)
    try:
        residual = measure(exhibit, record)
        finding = finding_of(residual, tolerance)
    except InvalidInput as error:
        raise Refused(f"the evidence cannot be measured: {error.message}", code="unproven") from error
    if finding is not Finding.FAULT:
        raise Refused(f"a residual of {residual:.3g} at a tolerance of {tolerance:.3g} is no fault", code="unproven")
    return Proven(record.kind, exhibit.accused, exhibit.interval, digest_of(data), residual)


def exhibit_of(envelope: identity_pb2.Envelope, place: Place) -> Exhibit:
    """The facts of a Commit or Delta that ends an interval. Raises Corrupt, Refused."""
    name = digest_of_envelope(envelope)
    if envelope.domain == identity_pb2.DOMAIN_DELTA:
        delta = open_delta(envelope, place)
        named = frozenset((delta.delta.anchor_digest, delta.digest))
        return Exhibit(delta.delegation.pnode_id, delta.replica, int(delta.delta.incarnation), name, named)
    found = open_commit(envelope, place)
    commit = found.commit
    named = frozenset((commit.parent_digest, commit.state_digest, commit.anchor_digest)) - {""}
    return Exhibit(found.delegation.pnode_id, commit.replica, int(commit.incarnation), name, named)


def _check_challenged(record: model_pb2.FaultRecord, exhibit: Exhibit) -> None:
    if not 0 < len(record.challenged) <= MAX_CHALLENGED:
        raise Corrupt(f"{len(record.challenged)} challenged tensors, 1 to {MAX_CHALLENGED} are allowed", code="bad_evidence")
    try:
        challenged = [check_digest(one) for one in record.challenged]
    except InvalidInput as error:
        raise Corrupt(f"a challenged tensor without a digest: {error.message}", code="bad_evidence") from error
    if foreign := [one for one in challenged if one not in exhibit.named]:
        raise Refused(f"the accused never stated {foreign[0][:12]}", code="unproven")
