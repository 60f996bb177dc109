"""Goal: a replica knows from the signed graph who lies behind each of its successors, and takes nobody else's name for what holds their floor."""

from __future__ import annotations

from pathlib import Path

import pytest
from worker_rig import MODEL, make_job

from dcnr.graph import graph_to_bytes
from dcnr.v1 import local_pb2, model_pb2
from pnode.hosting import prepare
from vnode.registry import default_registry


@pytest.mark.parametrize(("vnode", "behind"), [("s1", {"s2": {"s2", "s3"}}), ("s2", {"s3": {"s3"}}), ("s3", {})])
def test_what_lies_behind_a_replica_is_that_of_its_graph(tmp_path: Path, vnode: str, behind: dict[str, set[str]]) -> None:
    job = make_job(tmp_path, num_stages=3, passes=1)
    host = local_pb2.HostReplica(
        assignment=model_pb2.DesiredAssignment(replica=f"{vnode}.1", vnode=vnode, role=model_pb2.ROLE_PRIMARY), model=MODEL, job_id="later",
        graph=graph_to_bytes(job.graph), num_batches=job.num_batches, dataset_manifest_path=str(job.manifest_path), shard_dir=str(job.shard_dir),
        state_path=str(job.states[vnode]), lead_batches=8, spool_bytes=1 << 20, work_dir=str(tmp_path / "work"), from_earlier_job=True, threads=1,
    )  # fmt: skip
    prepared = prepare(host, registry=default_registry(), network_id="n", pnode_id="p", incarnation=1, device="cpu")
    assert (prepared.config.behind, prepared.successors) == (behind, set(behind))
