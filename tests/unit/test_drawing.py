"""Goal: trust lowers the rate of whom maintainers vouch for, until a quarantine."""

from __future__ import annotations

from dcnr.ids import digest_of
from dcnr.system import SystemClock
from dcnr.v1 import model_pb2
from orchestrator.drawing import Drawing
from orchestrator.view import ModelView
from trust.draw import Secret
from trust.identity import NodeKey
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
