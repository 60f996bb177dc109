"""Goal: on a network of real processes several PNodes learn one VNode together, and who dies costs no batch: every lineage is exact in the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from network_rig import ACTIVE, BATCH_SIZE, SAMPLES, Rig, running_network

from dcnr.cli.local_door import ask
from dcnr.errors import DcnrError
from dcnr.testing import LocalPNode, Process
from dcnr.v1 import local_pb2, model_pb2, orchestrator_pb2

PER_PASS = SAMPLES // BATCH_SIZE
PASSES = 9
TEMPO = {"batches_per_s": 8.0}
"""With that a job of so many passes outlasts what is done to the network."""
LONG_S = 240.0
CHECKPOINT_S = 5.0
"""Seldom: between a look and a kill nothing more becomes durable."""
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


def reason_of(rig: Rig, process: Process) -> str:
    """Of its state, as an orchestrator sees it."""
    return next((node.reason for node in rig.ask(lambda client: client.nodes()) if node.node_id == process.node_id), "")


def has_merged(rig: Rig, job_id: str) -> bool:
    """Whether each VNode's primary in this job has taken a delta in, and a manifest names a checkpoint of it."""
    with contextlib.suppress(DcnrError):
        found = rig.job(job_id).vnodes
        return len(found) == len(rig.vnodes) and all(
            item.report.num_merged and item.working.replica == item.assignment.replica for item in found
        )
    return False


def primary_in(rig: Rig, job_id: str, vnode: str) -> model_pb2.Assignment:
    """As the job's plan has it."""
    return next(item.assignment for item in rig.job(job_id).vnodes if item.vnode == vnode)


def test_two_replicas_of_each_vnode_share_the_work_and_a_contributor_takes_the_place_of_a_killed_primary(rig: Rig) -> None:
    job_id = rig.submit("shared", passes=PASSES, replicas=2, checkpoint_s=CHECKPOINT_S, **TEMPO)
    rig.until(lambda: all(merges(rig, vnode) >= 2 for vnode in rig.vnodes), "both primaries have merged", LONG_S)
    views: list[orchestrator_pb2.VNodeView] = []

    def contributor_may_lead() -> bool:
        views[:] = [item for item in rig.job(job_id).vnodes if item.vnode == "b"]
        held = [one.report.num_learned for one in views[0].replicas if one.assignment.role == model_pb2.ROLE_CONTRIBUTOR]
        return held[0] >= views[0].working.step

    rig.until(contributor_may_lead, "the contributor of b holds what is durable: else a new replica restores that", LONG_S)
    [view] = views
    before = view.assignment
    assert {item.assignment.role for item in view.replicas} == {model_pb2.ROLE_PRIMARY, model_pb2.ROLE_CONTRIBUTOR}
    contributor = next(item.assignment.replica for item in view.replicas if item.assignment.role == model_pb2.ROLE_CONTRIBUTOR)
    process = rig.network.process_of(before.pnode_id)
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


def test_a_primary_that_leaves_politely_goes_by_itself_and_the_others_learn_on(rig: Rig) -> None:
    job_id = rig.submit("leaving", passes=PASSES, replicas=2, checkpoint_s=2.0, **TEMPO)
    rig.until(lambda: has_merged(rig, job_id), "both primaries of this job have merged and are durable", LONG_S)
    before = primary_in(rig, job_id, "b")
    leaving = rig.network.process_of(before.pnode_id)
    assert leaving is not None
    ask(leaving.home, "Stop", local_pb2.StopRequest(hand_over=True))
    rig.until(lambda: not leaving.alive, "it has gone", LONG_S)
    assert leaving.popen is not None
    assert leaving.popen.returncode == 0
    rig.until(lambda: "politely" in reason_of(rig, leaving), "it is known to have left politely", LONG_S)
    rig.network.kill(leaving)  # it is gone: this closes what we held of it
    rig.ended(job_id, LONG_S)
    for item in rig.audit():
        assert item.exact, (item.vnode, item.reason)
        assert item.num_batches == PASSES * PER_PASS
        assert item.vnode != "b" or before.replica in {replica for replica, _, _ in item.learned}, "what it learned counts"
