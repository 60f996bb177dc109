"""Goal: on a network of real processes several PNodes learn one VNode together, and who dies costs no batch: every lineage is exact in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from network_rig import ACTIVE, BATCH_SIZE, SAMPLES, Rig, running_network

from dcnr.testing import LocalPNode
from dcnr.v1 import model_pb2, orchestrator_pb2

PER_PASS = SAMPLES // BATCH_SIZE
PASSES = 60
LONG_S = 240.0
PNODES = tuple(LocalPNode(f"p{number}", 1.0, 400, ("--cpu-percent", "20")) for number in range(1, 5))


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running_network(PNODES, num_orchestrators=2, vnodes=("a", "b")) as running:
        yield running


def replicas_of(rig: Rig, vnode: str) -> list[orchestrator_pb2.ReplicaReport]:
    """What the living PNodes say of the active replicas of a VNode."""
    told = [status for process in rig.network.pnodes if (status := rig.status(process)) is not None]
    return [report for status in told for report in status.replicas if report.vnode == vnode and report.state == ACTIVE]


def primary_of(rig: Rig, vnode: str) -> orchestrator_pb2.ReplicaReport | None:
    return next((report for report in replicas_of(rig, vnode) if report.role == model_pb2.ROLE_PRIMARY), None)


def merges(rig: Rig, vnode: str) -> int:
    """Deltas that the VNode's present primary has taken in."""
    primary = primary_of(rig, vnode)
    return int(primary.num_merged) if primary is not None else 0


def test_two_replicas_of_each_vnode_share_the_work_and_a_contributor_takes_the_place_of_a_killed_primary(rig: Rig) -> None:
    job_id = rig.submit("shared", passes=PASSES, replicas=2)
    rig.until(lambda: all(merges(rig, vnode) >= 2 for vnode in rig.vnodes), "both primaries have merged", LONG_S)
    before = primary_of(rig, "b")
    view = next(item for item in rig.job(job_id).vnodes if item.vnode == "b")
    assert before is not None
    assert {item.assignment.role for item in view.replicas} == {model_pb2.ROLE_PRIMARY, model_pb2.ROLE_CONTRIBUTOR}
    contributor = next(item.assignment.replica for item in view.replicas if item.assignment.role == model_pb2.ROLE_CONTRIBUTOR)
    process = rig.network.process_of(view.replicas[0].assignment.pnode_id)
    assert process is not None
    rig.network.kill(process)

    def promoted() -> bool:
        now = primary_of(rig, "b")
        return now is not None and now.replica != before.replica

    rig.until(promoted, "b has another primary", LONG_S)
    now = primary_of(rig, "b")
    assert now is not None
    assert now.replica == contributor, "it stays what it is, with what it has learned"
    assert rig.job(job_id).state == model_pb2.JOB_STATE_RUNNING, "most of the job is still to be done"
    rig.network.restart(process)
    rig.ended(job_id, LONG_S)
    for item in rig.audit():
        assert item.exact, (item.vnode, item.reason)
        assert item.num_batches == PASSES * PER_PASS
        assert len({replica for replica, _, _ in item.learned}) >= 2, item.learned
