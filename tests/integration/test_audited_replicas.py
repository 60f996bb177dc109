"""Goal: with audits, VNodes have contributors: what they learn is audited like anybody's work and cleared, and one that brings what it never learned is caught
with evidence, while the primary that took it in is not blamed.

Three PNodes host a VNode each, and contribute to others once they have left probation.
"""

from __future__ import annotations

from network_rig import BATCH_SIZE, SAMPLES, Rig, running_network
from test_audited_network import manifests

from dcnr.sdk.client import connect_async  # noqa: F401  imports what the rig needs once, before timing begins
from dcnr.testing import LocalPNode
from dcnr.v1 import model_pb2, orchestrator_pb2
from trust.folding import AUDITS_DRAWN
from trust.ledger import Verdict

VNODES = ("a", "b", "c")
PASSES = 40
HONEST = tuple(LocalPNode(f"p{number}", 1.0, 360, ("--cpu-percent", "20")) for number in range(1, 4))
LIAR = LocalPNode(
    "liar", 1.0, 360, ("--cpu-percent", "20", "--behaviour", "turned_deltas"), program=("-m", "examples.byzantine", "pnode")
)


def contributed(chain: list[model_pb2.Manifest]) -> list[model_pb2.Contribution]:
    """The last word on each interval of a replica that closed no state: it ended with a delta."""
    primaries = {one.replica for manifest in chain for entry in manifest.entries for one in (*entry.working, entry.cleared)}
    last = {one.interval: one for manifest in chain for one in manifest.contributions}
    return [one for one in last.values() if one.replica not in primaries]


def submit(rig: Rig) -> str:
    return rig.submit("together", passes=PASSES, replicas=2, checkpoint_s=0.5, checkpoint_steps=16)


def test_contributors_that_have_left_probation_learn_and_all_of_it_is_cleared() -> None:
    with running_network(HONEST, num_orchestrators=1, vnodes=VNODES, audits=AUDITS_DRAWN) as rig:
        done = rig.ended(submit(rig), 400.0)
        chain = manifests(rig, done.outcome.manifest_digest)
        found = contributed(chain)
        assert found, "somebody contributed"
        assert {one.verdict for one in found} <= {Verdict.PASSED.value, Verdict.SPARED.value}
        assert Verdict.PASSED.value in {one.verdict for one in found}
        told = [one for manifest in chain for one in manifest.contributions]
        assert not [one for one in told if one.verdict == Verdict.FAILED.value]
        assert {one.vnode for one in rig.audit()} == set(VNODES)
        num_batches = PASSES * SAMPLES // BATCH_SIZE
        for entry in chain[-1].entries:
            assert [(one.first, one.end) for one in entry.working[0].lineage.intervals] == [(0, num_batches)]
            assert entry.cleared.digest == entry.working[0].digest


def test_a_contributor_that_brings_what_it_never_learned_is_caught_and_its_primary_is_not_blamed() -> None:
    with running_network((*HONEST[:2], LIAR), num_orchestrators=1, vnodes=VNODES, audits=AUDITS_DRAWN) as rig:
        liar = rig.network.pnodes[-1]
        job_id = submit(rig)

        def is_quarantined() -> bool:
            with rig.client() as client:
                return any(
                    one.node_id == liar.node_id and one.state == orchestrator_pb2.NODE_STATE_QUARANTINED for one in client.nodes()
                )

        rig.until(is_quarantined, "the liar is quarantined", 300.0, pause_s=1.0)
        done = rig.ended(job_id, 300.0)
        chain = manifests(rig, done.outcome.manifest_digest)
        failed = [one for manifest in chain for one in manifest.contributions if one.verdict == Verdict.FAILED.value]
        assert {one.pnode_id for one in failed} == {liar.node_id}
        assert {one.interval for one in failed} <= {one.interval for one in contributed(chain)}, "it lied in deltas alone"
        assert all(one.evidence for one in failed)
