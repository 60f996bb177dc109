"""Goal: trust lowers the rate of whom maintainers vouch for, until a quarantine; what a job ends with is drawn at any rate."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from dataservice.manifest_form import Contribution
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.system import SystemClock
from dcnr.v1 import model_pb2
from orchestrator.drawing import Drawing
from orchestrator.view import JobFacts, ModelView
from tests.unit.audited_rig import Job, judged, name_of, piece
from trust.draw import LOWEST_FLOOR, Secret
from trust.identity import NodeKey
from trust.ledger import Verdict
from trust.network import create_document, verify_chain
from trust.standing import SHADOW_UNITS, Faulted, ShadowPassed, Standing, State, begun, folded
from vnode.checks.claims import MAX_STEPS

NOW, NODE = 1e9, digest_of(b"node")[:40]
POLICY = verify_chain([create_document(NodeKey.generate(), name="n", now_wall=NOW, orchestrator_ids=["ab" * 20], audits="drawn")])
VIEW = ModelView("m", model_pb2.Head(), b"")


def rate_of(standing: Standing, *, trusted: bool) -> float:
    drawing = Drawing(Secret(b"k" * 32), lambda: POLICY, SystemClock(), lambda node_id: trusted)
    drawing.standing = lambda view, pnode_id: standing
    return drawing.rate(VIEW, NODE, 4)


def test_trust_counts_until_a_quarantine() -> None:
    assert rate_of(begun(NOW), trusted=True) == 0.2
    assert rate_of(begun(NOW), trusted=False) == 1.0
    caught = folded(begun(NOW), [Faulted(NOW, NOW, "e" * 64, "wrong"), *[ShadowPassed(NOW + 1000.0)] * SHADOW_UNITS])
    assert caught.state is State.PROBATION
    assert rate_of(caught, trusted=True) == 1.0


def trusted_one() -> Drawing:
    """By which everybody is trusted, and has passed more audits than anybody."""
    drawing = Drawing(Secret(b"k" * 32), lambda: POLICY, SystemClock(), lambda node_id: True)
    much = begun(NOW).passes.plus(1e6, SystemClock().wall())
    drawing.standing = lambda view, pnode_id: replace(begun(NOW), state=State.ACTIVE, passes=much, batches=much)
    return drawing


def viewed(num_batches: int) -> ModelView:
    job = JobFacts(model_pb2.JobRequest(num_batches=num_batches), "0" * 64, model_pb2.ModelGraph(), b"", (), ())  # type: ignore[arg-type]
    return replace(VIEW, job=job)


def parted(first: int, end: int) -> list[Contribution]:
    """A checkpoint's intervals, of one batch each."""
    return [piece(f"a-{batch}", batch, batch + 1) for batch in range(first, end)]


def test_what_a_job_ends_with_is_drawn_whoever_did_it() -> None:
    drawing = trusted_one()
    assert drawing.rate(VIEW, NODE, 4) == LOWEST_FLOOR

    def said(first: int, end: int) -> list[Verdict]:
        pieces = (Contribution("a", "a.0", NODE, IntervalSet.span(first, end), interval=digest_of(bytes([at]))) for at in range(20))
        return [drawing.verdict(viewed(64), one, end - first) for one in pieces]

    assert said(60, 64) == [Verdict.OPEN] * 20
    assert Verdict.SPARED in said(59, 63)


def test_what_no_audit_can_open_is_drawn_for_certain() -> None:
    """It is unverifiable then, and counts for nothing, like whatever nobody can look at."""
    drawing = trusted_one()

    def said(num_batches: int) -> set[Verdict]:
        pieces = (
            Contribution("a", "a.0", NODE, IntervalSet.span(0, num_batches), interval=digest_of(bytes([at]))) for at in range(20)
        )
        return {drawing.verdict(viewed(10**6), one, num_batches) for one in pieces}

    assert Verdict.SPARED in said(MAX_STEPS)
    assert said(MAX_STEPS + 1) == {Verdict.OPEN}


def test_what_comes_last_is_drawn_whatever_it_holds() -> None:
    """Whoever leaves an early batch for the end, or has others learn the last ones and only merges, spoils the state with what comes last."""
    job, draw = Job(), partial(trusted_one().verdict, viewed(640))
    job.named(judged("a1", "a0", *parted(1, 630), held=[(1, 630)]), draw=draw)
    job.named(judged("a2", "a1", *parted(630, 640), held=[(1, 640)]), draw=draw)
    job.named(judged("a3", "a2", piece("a-last", 0, 1), held=[(0, 640)]), draw=draw)
    told = {name: one.verdict for name, one in job.chain().ledger.intervals.items()}
    assert Verdict.SPARED in [told[one.interval] for one in parted(1, 630)]
    assert {told[one.interval] for one in parted(630, 640)} == {Verdict.OPEN}
    assert told[name_of("a-last")] is Verdict.OPEN, "it holds batch 0 alone"
    merged = Job()
    merged.named(judged("a1", "a0", *parted(0, 620), held=[(0, 620)]), draw=draw)
    taken_in = piece("a-delta", 620, 640, "y", "a.1")
    merged.named(judged("a2", "a1", taken_in, piece("a-merge", 0, 0), held=[(0, 640)]), draw=draw)
    assert {name_of("a-delta"), name_of("a-merge")} <= {one.name for one in merged.chain().open_intervals()}
