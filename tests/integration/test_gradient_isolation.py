"""Goal: no gradient crosses from one VNode to another, also inside one worker.

What is handed over has no history and is no copy, and a step downstream leaves upstream alone.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from worker_rig import NETWORK_ID, Job, make_job, order

from dcnr.graph import stages_of_graph
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from pnode.crew import Acting, Crew, Outlets
from pnode.hub import LinkHub
from pnode.links import PeerLinks
from pnode.making import Making
from pnode.merge_calls import MergeCalls
from pnode.pace import Pace
from pnode.samples import StagedSamples
from pnode.uplink import Uplink
from trust.delegation import make_delegation
from trust.identity import NodeKey
from vnode.registry import default_registry
from vnode.state import parse
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import schema_of
from vnode.vocabulary import TRAIN_LANE


class Place:
    """What `order` asks of a daemon: where a VNode lives."""

    def __init__(self, pnode_id: str) -> None:
        self.pnode_id = pnode_id


async def train_in_one_process(job: Job) -> list[local_pb2.SnapshotReady]:
    """Both stages in this process's crew until both have handed a complete state over."""
    clock, key, node = SystemClock(), NodeKey.generate(), NodeKey.generate()
    delegation: identity_pb2.Envelope = make_delegation(node, NETWORK_ID, key.public_der, 1, ["127.0.0.1:1"], time.time())
    executor = ThreadPoolExecutor(2)
    ready: list[local_pb2.SnapshotReady] = []
    news = asyncio.Event()

    async def nobody(*_: Any) -> Any:
        raise AssertionError("everything is local")

    peers = PeerLinks(clock, random.Random(1), executor, nobody, lambda *_: None, lambda *_: None)
    hub = LinkHub(clock, node.node_id, peers, lambda *_: None)

    def snapshot(made: local_pb2.SnapshotReady) -> None:
        ready.append(made)
        news.set()

    async with asyncio.TaskGroup() as group:
        crew: Crew

        def shards(_: str, digests: Sequence[str]) -> None:
            for digest in digests:
                crew.shard_ready(digest, "")

        outlets = Outlets(snapshot, shards, lambda: None, lambda *_: None)
        crew = Crew(
            Acting(NETWORK_ID, node.node_id, 1), key=key, delegation=lambda: delegation, hub=hub, registry=default_registry(),
            clock=clock, executor=executor, pace=Pace(clock, lambda: 0.0), device="cpu", outlets=outlets, group=group,
            calls=MergeCalls(nobody, Uplink(clock)), making=Making(),
        )  # fmt: skip
        running = group.create_task(hub.run())
        places: Any = {"s1": Place(node.node_id), "s2": Place(node.node_id)}
        for vnode in places:
            crew.host(order(job, vnode, places))
        async with asyncio.timeout(60):
            while len({made.replica for made in ready if made.checkpoint.step == job.num_batches}) < 2:
                news.clear()
                await news.wait()
        for vnode in places:
            crew.release(f"{vnode}.1", hand_over=False)
        running.cancel()
    executor.shutdown()
    return ready


def test_handed_over_tensors_have_no_history_and_steps_downstream_leave_upstream_alone(tmp_path: Path, monkeypatch: Any) -> None:
    job = make_job(tmp_path)
    computes: list[TorchCompute] = []
    handed: list[torch.Tensor] = []
    made: list[torch.Tensor] = []
    learn = TorchCompute.learn

    def watched(self: TorchCompute, batch: int, inputs: Any, target: Any, num_learned: int) -> Any:
        if self not in computes:
            computes.append(self)
        others = [other for other in computes if other is not self]
        result = learn(self, batch, inputs, target, num_learned)
        handed.extend(value for value in inputs if isinstance(value, torch.Tensor))
        for other in others:
            assert all(parameter.grad is None for parameter in other._parameters)
        assert result.output.grad_fn is None
        assert not result.output.requires_grad
        made.append(result.output)
        return result

    monkeypatch.setattr(TorchCompute, "learn", watched)
    ready = asyncio.run(train_in_one_process(job))
    assert len(computes) == 2
    assert len(handed) == job.num_batches
    own = {tensor.data_ptr() for tensor in made}  # all of them still live, so no address stands for two
    assert {tensor.data_ptr() for tensor in handed} <= own, "the second stage reads the first one's own memory: nothing was copied"
    assert all(tensor.grad_fn is None and not tensor.requires_grad and tensor.grad is None for tensor in handed)
    assert {made.replica for made in ready} == {"s1.1", "s2.1"}


def test_a_stage_ends_in_the_state_that_it_reaches_alone(tmp_path: Path) -> None:
    """Replaying the first stage's committed batches without any second stage gives its final weights: nothing flowed back."""
    job = make_job(tmp_path)
    ready = asyncio.run(train_in_one_process(job))
    (made,) = [one for one in ready if one.replica == "s1.1" and one.checkpoint.step == job.num_batches]
    batches = model_pb2.Commit.FromString(made.commit.payload).batches
    stage = stages_of_graph(job.graph, default_registry())[0]
    samples = StagedSamples(job.manifest_path, job.shard_dir, job.graph)
    alone = TorchCompute(stage, default_registry(), num_batches=job.num_batches, seed=7, threads=1)
    alone.restore(job.states["s1"])
    for num_learned, batch in enumerate(batches):
        alone.learn(batch, [samples.read_input(TRAIN_LANE, batch)], samples.read_target(TRAIN_LANE, batch), num_learned)
    info, found = parse(Path(made.path).read_bytes(), schema_of(stage, default_registry()))
    _, expected = parse(alone.snapshot(info), schema_of(stage, default_registry()))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
