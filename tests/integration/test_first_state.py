"""Goal: a job begins with the weights of what it is told to begin with, checkpoint 0 or the end of an earlier job, and with nothing else of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from worker_rig import MODEL, make_graph, make_job

from dcnr.errors import Corrupt
from dcnr.graph import graph_digest, graph_to_bytes, stages_of_graph
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import local_pb2, model_pb2
from pnode.hosting import Prepared, prepare
from vnode.registry import default_registry
from vnode.state import StateInfo, parse, serialise
from vnode.torch_stage import schema_of
from vnode.vocabulary import Mode

REGISTRY = default_registry()
PASSES = 2


def used_state(path: Path, vnode: str, graph: model_pb2.ModelGraph) -> Path:
    """What an earlier job of other length left of ``vnode``: changed weights, slots that are not zero, a lineage."""
    stage = next(stage for stage in stages_of_graph(graph, REGISTRY) if stage.id == vnode)
    schema = schema_of(stage, REGISTRY)
    info, tensors = parse(path.read_bytes(), schema)
    changed = {name: array + np.ones_like(array) if array.dtype.kind == "f" else array for name, array in tensors.items()}
    done = StateInfo(vnode, MODEL, "ab" * 32, info.parent, 3, 9, 7777, 99, IntervalSet.span(0, 7777), 7777)
    used = path.with_suffix(".used")
    used.write_bytes(serialise(schema, done, changed))
    return used


def hosted(tmp_path: Path, state: str, *, from_earlier_job: bool) -> tuple[Prepared, Path]:
    job = make_job(tmp_path, num_stages=1, passes=PASSES)
    path = job.states["s1"] if state == "checkpoint 0" else used_state(job.states["s1"], "s1", job.graph)
    host = local_pb2.HostReplica(
        assignment=model_pb2.DesiredAssignment(replica="s1.1", vnode="s1", role=model_pb2.ROLE_PRIMARY), model=MODEL, job_id="later",
        graph=graph_to_bytes(job.graph), num_batches=job.num_batches, dataset_manifest_path=str(job.manifest_path), shard_dir=str(job.shard_dir),
        state_path=str(path), state_digest=digest_of(path.read_bytes()), lead_batches=8, spool_bytes=1 << 20, work_dir=str(tmp_path / "work"),
        from_earlier_job=from_earlier_job, threads=1,
    )  # fmt: skip
    return prepare(host, registry=REGISTRY, network_id="n", pnode_id="p", incarnation=1, device="cpu"), path


@pytest.mark.parametrize("state", ["checkpoint 0", "the end of an earlier job"])
def test_a_job_begins_with_these_weights_and_an_empty_lineage(tmp_path: Path, state: str) -> None:
    prepared, path = hosted(tmp_path, state, from_earlier_job=True)
    info = prepared.info
    assert (len(info.lineage), info.step, info.updates) == (0, 0, 0)
    assert (info.num_batches, info.seed) == (prepared.samples.num_batches, 7)
    assert (info.graph, info.parent) == (graph_digest(prepared.graph), digest_of(path.read_bytes()))
    schema = schema_of(prepared.stage, REGISTRY)
    before, after = (parse(data, schema)[1] for data in (path.read_bytes(), prepared.compute.snapshot(info)))
    assert all(np.array_equal(before[name], after[name]) for name in before if name[:2] in ("w/", "b/"))
    assert not any(after[name].any() for name in after if name.startswith("o/"))
    output = prepared.compute.forward(0, [np.ones((8, 16), np.float32)], Mode.EVAL)
    assert output.count == 0


def test_a_state_of_another_job_is_refused_where_nobody_says_that_it_is_one(tmp_path: Path) -> None:
    """Its lineage would count for batches that this job has not learned."""
    with pytest.raises(Corrupt) as caught:
        hosted(tmp_path, "the end of an earlier job", from_earlier_job=False)
    assert caught.value.code == "bad_state_job"


def test_a_state_of_other_shapes_begins_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", num_stages=1, passes=PASSES)
    other = make_graph(1, 24, 8, PASSES)
    host = local_pb2.HostReplica(
        assignment=model_pb2.DesiredAssignment(replica="s1.1", vnode="s1"), model=MODEL, job_id="later", graph=graph_to_bytes(other),
        num_batches=job.num_batches, dataset_manifest_path=str(job.manifest_path), shard_dir=str(job.shard_dir),
        state_path=str(job.states["s1"]), from_earlier_job=True, threads=1,
    )  # fmt: skip
    with pytest.raises(Corrupt):
        prepare(host, registry=REGISTRY, network_id="n", pnode_id="p", incarnation=1, device="cpu")
