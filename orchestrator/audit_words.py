"""What auditors say over their control streams, believed only from the worker of the PNode whose stream it is, and bounded before it is read. Pure."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Final

from dcnr import limits
from dcnr.errors import Corrupt, InvalidInput, Refused
from dcnr.ids import check_digest, check_name, check_node_id, check_replica_id, vnode_of
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.audit_events import Bundle, Report, Sender, Word
from trust.delegation import open_delegation
from trust.envelope import digest_of_envelope, open_single, parse

MAX_REPORT_BYTES: Final = 32 * limits.KIB
"""With `trust.evidence.MAX_SOURCES` of the longest names, and some more."""
MAX_EVIDENCE_BYTES: Final = 4 * limits.KIB
"""Of the message that names a bundle."""
MAX_TEXT: Final = 500
WORDS: Final[Mapping[int, Word]] = {
    model_pb2.AUDIT_FINDING_PASS: Word.PASS,
    model_pb2.AUDIT_FINDING_DOUBT: Word.DOUBT,
    model_pb2.AUDIT_FINDING_FAULT: Word.FAULT,
    model_pb2.AUDIT_FINDING_UNVERIFIABLE: Word.UNVERIFIABLE,
    model_pb2.AUDIT_FINDING_REFUSED: Word.REFUSED,
}
TASK_ID_CHARS: Final = 32


def open_report(envelope: identity_pb2.Envelope, network_id: str, pnode_id: str, now_wall: float) -> tuple[str, Report]:
    """The model and the finding that the worker of ``pnode_id`` signed now.

    Raises Corrupt (``bad_report``, signatures), Refused (``wrong_network``, ``wrong_signer``), Stale (an expired delegation).
    """
    payload, signer = open_single(envelope, identity_pb2.DOMAIN_AUDIT_REPORT, max_bytes=MAX_REPORT_BYTES)
    report = parse(model_pb2.AuditReport, payload, MAX_REPORT_BYTES)
    if report.network_id != network_id:
        raise Refused("a report of another network", code="wrong_network")
    delegation = open_delegation(report.delegation, network_id=network_id, now_wall=now_wall)
    if report.pnode_id != pnode_id or delegation.pnode_id != pnode_id or delegation.worker_public_der != signer.public_der:
        raise Refused("a report that the worker of the PNode that brings it did not sign", code="wrong_signer")
    return report.model, report_of(report, digest_of_envelope(envelope))


def open_past_report(envelope: identity_pb2.Envelope, network_id: str) -> tuple[str, Report]:
    """The same for a report that a desk acted on some time ago: its delegation need only have been valid then. Raises Corrupt, Refused, Stale."""
    pnode_id = parse(model_pb2.AuditReport, envelope.payload, MAX_REPORT_BYTES).pnode_id
    delegation = parse(model_pb2.AuditReport, envelope.payload, MAX_REPORT_BYTES).delegation
    begins_s = parse(identity_pb2.Delegation, delegation.payload).not_before_unix_ms / 1000
    return open_report(envelope, network_id, pnode_id, begins_s)


def report_of(report: model_pb2.AuditReport, digest: str) -> Report:
    """A finding, its form checked. Raises Corrupt (``bad_report``). ``digest``: of the signed report."""
    word = WORDS.get(report.finding)
    if word is None or not report.residual >= 0.0 or max(len(report.part), len(report.reason)) > MAX_TEXT:
        raise Corrupt("a report without a readable finding", code="bad_report")
    if len(report.task_id) != TASK_ID_CHARS or not set(report.task_id) <= set(string.hexdigits):
        raise Corrupt("a report without the name of a task", code="bad_report")
    try:
        if report.interval or word in (Word.PASS, Word.DOUBT, Word.FAULT):
            check_digest(report.interval)
        if report.record_digest or word is Word.FAULT:
            check_digest(report.record_digest)
        if report.bundle_digest:
            check_digest(report.bundle_digest)
    except InvalidInput as error:
        raise Corrupt(f"a report without an interval or record: {error.message}", code="bad_report") from error
    return Report(
        report.task_id, report.pnode_id, report.interval, word, report.part, report.record_digest, digest, _senders(report),
        report.bundle_digest,
    )  # fmt: skip


def _senders(report: model_pb2.AuditReport) -> tuple[Sender, ...]:
    try:
        for one in report.sources:
            check_name(one.vnode)
            if one.replica:
                check_node_id(one.pnode_id)
                if vnode_of(check_replica_id(one.replica)) != one.vnode:
                    raise Corrupt("a report whose inputs come from a replica of another VNode", code="bad_report")
    except InvalidInput as error:
        raise Corrupt(f"a report with senders that are none: {error.message}", code="bad_report") from error
    return tuple(Sender(one.vnode, one.replica, one.pnode_id if one.replica else "") for one in report.sources)


def bundle_of(evidence: model_pb2.Evidence) -> Bundle | None:
    """The bundle that an answer to a challenge names; None where there is none. Raises Corrupt (``bad_evidence``)."""
    if evidence.ByteSize() > MAX_EVIDENCE_BYTES or len(evidence.reason) > MAX_TEXT:
        raise Corrupt("an answer to a challenge with more than its bounds", code="bad_evidence")
    try:
        check_digest(evidence.interval)
        if not evidence.digest:
            return None
        check_digest(evidence.digest)
    except InvalidInput as error:
        raise Corrupt(f"an answer to a challenge that names nothing: {error.message}", code="bad_evidence") from error
    if not 0 < evidence.size_bytes <= limits.MAX_OBJECT_BYTES:
        raise Corrupt(f"evidence of {evidence.size_bytes} bytes", code="bad_evidence")
    return Bundle(evidence.digest, int(evidence.size_bytes))
