"""Goal: trust lowers the rate of whom maintainers vouch for, until a quarantine; what a job ends with is drawn at any rate."""

from __future__ import annotations

from dataclasses import replace

from dataservice.manifest_form import Contribution
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.system import SystemClock
from dcnr.v1 import model_pb2
from orchestrator.drawing import Drawing
from orchestrator.view import JobFacts, ModelView
from trust.draw import LOWEST_FLOOR, Secret
from trust.identity import NodeKey
from trust.ledger import Verdict
from trust.network import create_document, verify_chain
from trust.standing import SHADOW_UNITS, Faulted, ShadowPassed, Standing, State, begun, folded

NOW, NODE = 1e9, digest_of(b"node")[:40]
POLICY = verify_chain([create_document(NodeKey.generate(), name="n", now_wall=NOW, orchestrator_ids=["ab" * 20], audits="drawn")])
VIEW = ModelView("m", model_pb2.Head(), b"")


def rate_of(standing: Standing, *, trusted: bool) -> float:
    drawing = Drawing(Secret(b"k" * 32), lambda: POLICY, SystemClock(), lambda node_id: trusted)
    drawing.standing = lambda view, pnode_id: standing
    return drawing.rate(VIEW, NODE)


def test_trust_counts_until_a_quarantine() -> None:
    assert rate_of(begun(NOW), trusted=True) == 0.2
    assert rate_of(begun(NOW), trusted=False) == 1.0
    caught = folded(begun(NOW), [Faulted(NOW, NOW, "e" * 64, "wrong"), *[ShadowPassed(NOW + 1000.0)] * SHADOW_UNITS])
    assert caught.state is State.PROBATION
    assert rate_of(caught, trusted=True) == 1.0


def test_what_a_job_ends_with_is_drawn_whoever_did_it() -> None:
    drawing = Drawing(Secret(b"k" * 32), lambda: POLICY, SystemClock(), lambda node_id: True)
    drawing.standing = lambda view, pnode_id: replace(
        begun(NOW), state=State.ACTIVE, passes=begun(NOW).passes.plus(1e6, SystemClock().wall())
    )
    assert drawing.rate(VIEW, NODE) == LOWEST_FLOOR
    job = JobFacts(model_pb2.JobRequest(num_batches=64), "0" * 64, model_pb2.ModelGraph(), b"", (), ())  # type: ignore[arg-type]

    def said(first: int, end: int) -> list[Verdict]:
        pieces = (Contribution("a", "a.0", NODE, IntervalSet.span(first, end), interval=digest_of(bytes([at]))) for at in range(20))
        return [drawing.verdict(replace(VIEW, job=job), one) for one in pieces]

    assert said(60, 64) == [Verdict.OPEN] * 20
    assert Verdict.SPARED in said(59, 63)
