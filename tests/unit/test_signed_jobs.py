"""Goal: a PNode works for jobs that maintainers signed, and with the graph that they signed, whatever orchestrators name and send."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dataservice.datasets import LocalCache
from dcnr.errors import Corrupt, Refused, Unavailable
from dcnr.graph import Graph
from dcnr.ids import Digest, check_digest, digest_of
from dcnr.specs import TensorSpec
from dcnr.v1 import data_pb2, identity_pb2, model_pb2
from pnode.provision import Provisioner
from pnode.snapshots import Shelf
from trust.envelope import seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, verify_chain
from vnode.registry import default_registry

MAINTAINER, HOLDER = NodeKey.generate(), NodeKey.generate()
POLICY = verify_chain([create_document(MAINTAINER, name="test", now_wall=1_700_000_000.0, orchestrator_ids=[HOLDER.node_id])])


def graph_of(rate: float) -> bytes:
    """A graph of one stage, as it lies in the store."""
    graph = Graph(
        "m", input=TensorSpec("float32", (8,)), target=TensorSpec("int64", ()), num_classes=2, train={"passes": 1, "batch_size": 4},
        data={use: f"dataset:toy#{use}" for use in ("train", "validation", "test")},
    )  # fmt: skip
    objective, optimizer = {"name": "local_ce", "config": {}}, {"name": "sgd", "lr": rate}
    graph.vnode("v", "linear", {"out_features": 8}, inputs=["input"], objective=objective, optimizer=optimizer)
    return graph.build().SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("signer", "given", "code"),
    [(MAINTAINER, graph_of(0.1), ""), (HOLDER, graph_of(0.1), "unsigned_job"), (MAINTAINER, graph_of(0.2), "wrong_digest")],
    ids=["what maintainers signed", "what an orchestrator signed", "another graph than the signed one"],
)
def test_a_job_is_one_that_maintainers_signed_with_the_graph_that_it_names(
    tmp_path: Path, signer: NodeKey, given: bytes, code: str
) -> None:
    """What orchestrators signed themselves begins nothing, and of another graph nothing is used."""
    signed, data = digest_of(graph_of(0.1)), b"the data set's manifest"
    request = model_pb2.JobRequest(
        network_id=POLICY.network_id, model="m", job_id="j", graph_digest=signed, dataset_name="toy", dataset_digest=digest_of(data)
    )
    envelope = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, signer).SerializeToString(deterministic=True)
    objects = {digest_of(envelope): envelope, signed: given, digest_of(data): data}
    asked: list[Digest] = []

    async def bring(digest: Digest, destination: Path, max_bytes: int) -> None:
        asked.append(digest)
        destination.write_bytes(objects[digest])

    cache = LocalCache(tmp_path / "cache", 1 << 20, bring)

    async def fetch(ref: data_pb2.ObjectRef, max_bytes: int) -> Path:
        return await cache.path(check_digest(ref.digest))

    mine = Provisioner(policy=lambda: POLICY, registry=default_registry(), fetch=fetch, shelf=Shelf(tmp_path))
    wanted = model_pb2.DesiredState(model="m", job_id="j", request_digest=digest_of(envelope))
    if not code:
        assert asyncio.run(mine.job(wanted)).graph_bytes == graph_of(0.1)
        return
    with pytest.raises((Refused, Corrupt)) as refused:
        asyncio.run(mine.job(wanted))
    assert refused.value.code == code
    assert (signed in asked) is (signer is MAINTAINER), "an unsigned request is followed no further"
    assert digest_of(data) not in asked


def test_a_job_that_is_known_has_its_data_set_manifest_on_the_disk_for_whoever_reads_it(tmp_path: Path) -> None:
    """The cache lets go of what was asked for longest ago; who reads no data waits for no store."""
    data, shard, quota = b"the data set's manifest", b"s" * 4096, 4096
    request = model_pb2.JobRequest(
        network_id=POLICY.network_id, model="m", job_id="j", graph_digest=digest_of(graph_of(0.1)), dataset_name="toy",
        dataset_digest=digest_of(data),
    )  # fmt: skip
    envelope = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, MAINTAINER).SerializeToString(deterministic=True)
    objects = {digest_of(one): one for one in (envelope, graph_of(0.1), data, shard)}

    async def bring(digest: Digest, destination: Path, max_bytes: int) -> None:
        if digest not in objects:
            raise Unavailable("the store is away", code="store_unavailable")
        destination.write_bytes(objects[digest])

    cache = LocalCache(tmp_path / "cache", quota, bring)

    async def fetch(ref: data_pb2.ObjectRef, max_bytes: int) -> Path:
        return await cache.path(check_digest(ref.digest))

    async def story() -> None:
        mine = Provisioner(policy=lambda: POLICY, registry=default_registry(), fetch=fetch, shelf=Shelf(tmp_path))
        wanted = model_pb2.DesiredState(model="m", job_id="j", request_digest=digest_of(envelope))
        first = await mine.job(wanted)
        await cache.path(digest_of(shard))
        assert not first.dataset_manifest.exists()
        assert (await mine.job(wanted)).dataset_manifest.read_bytes() == data
        await cache.path(digest_of(shard))
        del objects[digest_of(data)]
        with pytest.raises(Unavailable):
            await mine.job(wanted)
        assert await mine.job(wanted, reads_data=False) is first

    asyncio.run(story())


def network(**limits: Any) -> NetworkPolicy:
    """Whose document sets these limits."""
    document = create_document(MAINTAINER, name="test", now_wall=1_700_000_000.0, orchestrator_ids=[HOLDER.node_id], **limits)
    return verify_chain([document])


def test_a_signed_job_is_hosted_only_within_the_limits_of_the_network_document(tmp_path: Path) -> None:
    """Documents change while jobs run, and not every orchestrator admits by the same one."""
    graph, data = graph_of(0.1), b"the data set's manifest"

    def hosted(policy: NetworkPolicy) -> int:
        """Bytes of state of its only VNode."""
        request = model_pb2.JobRequest(
            network_id=policy.network_id,
            model="m",
            job_id="j",
            graph_digest=digest_of(graph),
            dataset_name="toy",
            dataset_digest=digest_of(data),
        )
        envelope = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, MAINTAINER).SerializeToString(deterministic=True)
        objects = {digest_of(one): one for one in (envelope, graph, data)}

        async def fetch(ref: data_pb2.ObjectRef, max_bytes: int) -> Path:
            path = tmp_path / ref.digest
            path.write_bytes(objects[check_digest(ref.digest)])
            return path

        mine = Provisioner(policy=lambda: policy, registry=default_registry(), fetch=fetch, shelf=Shelf(tmp_path))
        job = asyncio.run(mine.job(model_pb2.DesiredState(model="m", job_id="j", request_digest=digest_of(envelope))))
        return mine.cost(job, "v").state_bytes

    needed = hosted(network(components=["linear"]))
    assert hosted(network(max_vnode_state_bytes=needed)) == needed
    for limits, code in (
        ({"components": ["mean_pool"]}, "component_not_allowed"),
        ({"max_vnode_state_bytes": needed - 1}, "vnode_too_large"),
    ):
        with pytest.raises(Refused) as refused:
            hosted(network(**limits))
        assert refused.value.code == code
