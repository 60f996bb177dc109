"""Goal: with audits, VNodes have contributors: what they learn is audited like anybody's work and cleared; one that brings what it never learned is caught with
evidence, the primary that took it in is not blamed, and the job completes with everything checked.

Three PNodes host a VNode each, and contribute to others once they have left probation. One of them is honest as a primary only.
"""

from __future__ import annotations

import pytest
from network_rig import BATCH_SIZE, SAMPLES, running_network
from test_audited_network import manifests

from dcnr.testing import LocalPNode
from dcnr.v1 import model_pb2, orchestrator_pb2
from trust.folding import AUDITS_DRAWN
from trust.ledger import Verdict

VNODES = ("a", "b", "c")
PASSES = 20
HONEST = tuple(LocalPNode(f"p{number}", 1.0, 360, ("--cpu-percent", "20")) for number in range(1, 3))
LIAR = LocalPNode(
    "liar", 1.0, 560, ("--cpu-percent", "40", "--behaviour", "turned_deltas"), program=("-m", "examples.byzantine", "pnode")
)
"""It lends more than the others, so that it is chosen to contribute, and has room for that while it audits: they have room for two replicas, or for one and an
audit.
"""


def contributed(chain: list[model_pb2.Manifest]) -> list[model_pb2.Contribution]:
    """The last word on each interval of a replica that closed no state: it ended with a delta."""
    primaries = {one.replica for manifest in chain for entry in manifest.entries for one in (*entry.working, entry.cleared)}
    last = {one.interval: one for manifest in chain for one in manifest.contributions}
    return [one for one in last.values() if one.replica not in primaries]


@pytest.mark.long
def test_contributors_are_audited_and_one_that_brings_what_it_never_learned_is_caught() -> None:
    with running_network((*HONEST, LIAR), num_orchestrators=1, vnodes=VNODES, audits=AUDITS_DRAWN) as rig:
        liar = rig.network.pnodes[-1]
        job_id = rig.submit("together", passes=PASSES, replicas=2, checkpoint_s=0.5, checkpoint_steps=16)

        def is_quarantined() -> bool:
            with rig.client() as client:
                return any(
                    one.node_id == liar.node_id and one.state == orchestrator_pb2.NODE_STATE_QUARANTINED for one in client.nodes()
                )

        rig.until(is_quarantined, "the liar is quarantined", 300.0, pause_s=1.0)
        done = rig.ended(job_id, 400.0)
        chain = manifests(rig, done.outcome.manifest_digest)
        told = [one for manifest in chain for one in manifest.contributions]
        failed = [one for one in told if one.verdict == Verdict.FAILED.value]
        assert {one.pnode_id for one in failed} == {liar.node_id}, "its primary is not blamed"
        found = contributed(chain)
        assert {one.interval for one in failed} <= {one.interval for one in found}, "it lied in deltas alone"
        assert all(one.evidence for one in failed)
        assert {one.vnode for one in rig.audit()} == set(VNODES)
        num_batches = PASSES * SAMPLES // BATCH_SIZE
        for entry in chain[-1].entries:
            assert [(one.first, one.end) for one in entry.working[0].lineage.intervals] == [(0, num_batches)]
            assert entry.cleared.digest == entry.working[0].digest, "everything in the release is checked"
