"""Network document, model and jobs of the control world: all made from the seed, so that equal seeds give equal bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from dcnr.graph import graph_from_toml, graph_to_bytes, stages_of_graph
from dcnr.ids import Digest, digest_of
from dcnr.intervals import IntervalSet
from dcnr.specs import Registry
from dcnr.v1 import identity_pb2, model_pb2
from simulation.control_keys import Keyring
from trust.envelope import seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, verify_chain
from vnode.costs import ReplicaCost, replica_cost
from vnode.registry import default_registry
from vnode.state import StateInfo, StateSchema, TensorSlot, parse, serialise

MODEL = "chain"
EPOCH_WALL_S = 1_800_000_000.0
"""The wall clock when virtual time is 0."""
STORE_ADDRESS = "store.example:9000"
BUCKET = "dcnr"


def chain_graph(num_vnodes: int, replicas: tuple[int, ...] = (1,)) -> model_pb2.ModelGraph:
    """A chain of small linear VNodes; ``replicas`` are wanted by one after the other, over and over, 0 for the planner's choice."""
    text = """
[model]
name = "chain"
version = 1
input = { dtype = "float32", shape = [8] }
target = { dtype = "int64", shape = [] }
num_classes = 4

[data]
train = "dataset:toy#train"
validation = "dataset:toy#validation"
test = "dataset:toy#test"

[train]
passes = 1
batch_size = 4
seed = 0
codec = "raw"
"""
    for index in range(num_vnodes):
        wanted = replicas[index % len(replicas)] or '"auto"'
        text += f"""
[[vnode]]
id = "v{index}"
replicas = {wanted}
component = "linear"
config = {{ out_features = 8 }}
inputs = ["{f"v{index - 1}" if index else "input"}"]
objective = {{ name = "local_ce" }}
optimizer = {{ name = "sgd", lr = 0.1 }}
"""
    return graph_from_toml(text)


@dataclass(frozen=True, slots=True)
class Community:
    """What everybody in a world agrees on."""

    policy: NetworkPolicy
    maintainer: NodeKey
    orchestrators: tuple[NodeKey, ...]
    registry: Registry
    graph_bytes: bytes
    vnodes: tuple[str, ...]
    costs: dict[str, ReplicaCost]
    initial: dict[str, bytes]
    """Object key suffixes of checkpoint 0: VNode to bytes."""
    manifest0: bytes

    @property
    def graph_digest(self) -> Digest:
        """Names the graph."""
        return digest_of(self.graph_bytes)


def state_bytes(vnode: str, graph: str, job_id: str, lineage: IntervalSet, *, num_batches: int, parent: str, mark: str) -> bytes:
    """A state of that VNode as a replica would write it, with a mark instead of weights."""
    info = StateInfo(vnode, MODEL, graph, parent, epoch=0, step=0, num_batches=num_batches, seed=0, lineage=lineage)
    texts = {"b/job": job_id, "b/mark": mark}
    return serialise(
        state_schema(vnode),
        info,
        {name: np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8) for name, text in texts.items()},
    )


def lineage_in(data: bytes, vnode: str, job_id: str) -> IntervalSet:
    """What a state holds of that job. Raises Corrupt."""
    info, tensors = parse(data, state_schema(vnode))
    same = tensors["b/job"].tobytes() == hashlib.sha256(job_id.encode()).digest()
    return info.lineage if same else IntervalSet.empty()


def state_schema(vnode: str) -> StateSchema:
    """The tensors of all states here."""
    return StateSchema(vnode, {"b/job": TensorSlot("uint8", (32,)), "b/mark": TensorSlot("uint8", (32,))})


def community(
    keyring: Keyring, num_orchestrators: int, num_vnodes: int, replicas: tuple[int, ...] = (1,), audits: str = "none"
) -> Community:
    """The community of a world with those keys."""
    maintainer = keyring.key("maintainer")
    orchestrators = tuple(keyring.key(f"orchestrator-{index}") for index in range(num_orchestrators))
    document = create_document(
        maintainer,
        name="simulated",
        now_wall=EPOCH_WALL_S - 1000.0,
        orchestrator_ids=[key.node_id for key in orchestrators],
        locality=identity_pb2.LOCALITY_SINGLE_HOST,
        store_address=STORE_ADDRESS,
        store_bucket=BUCKET,
        store_scheme="http",
        audits=audits,
    )
    policy = verify_chain([document])
    registry = default_registry()
    graph = chain_graph(num_vnodes, replicas)
    graph_bytes = graph_to_bytes(graph)
    stages = stages_of_graph(graph, registry)
    costs = {stage.id: replica_cost(stage, registry, 4) for stage in stages}
    graph_name = digest_of(graph_bytes)
    initial = {
        stage.id: state_bytes(stage.id, graph_name, "", IntervalSet.empty(), num_batches=0, parent="", mark="checkpoint 0")
        for stage in stages
    }
    manifest = model_pb2.Manifest(
        network_id=policy.network_id, model=MODEL, number=0, graph_digest=digest_of(graph_bytes), audits="none"
    )
    for vnode, data in sorted(initial.items()):
        checkpoint = model_pb2.Checkpoint(vnode=vnode, digest=digest_of(data), size_bytes=len(data))
        manifest.entries.add(vnode=vnode, working=[checkpoint], cleared=checkpoint)
    sealed = seal(identity_pb2.DOMAIN_MANIFEST, manifest, maintainer).SerializeToString(deterministic=True)
    return Community(
        policy, maintainer, orchestrators, registry, graph_bytes, tuple(stage.id for stage in stages), costs, initial, sealed
    )


def job_request(
    world: Community, job_id: str, *, num_batches: int, expires_unix_ms: int, checkpoint_s: float, settling_deadline_s: float,
    signer: NodeKey | None = None,
) -> bytes:  # fmt: skip
    """A request as it is stored, signed by the maintainer or by somebody who is none."""
    request = model_pb2.JobRequest(
        network_id=world.policy.network_id,
        job_id=job_id,
        model=MODEL,
        graph_digest=world.graph_digest,
        initial_manifest_digest=digest_of(world.manifest0),
        dataset_digest="0" * 64,
        dataset_name="toy",
        num_batches=num_batches,
        unit_batches=4,
        lead_batches=64,
        horizon_s=600.0,
        settling_deadline_s=settling_deadline_s,
        expires_unix_ms=expires_unix_ms,
        checkpoint_s=checkpoint_s,
        checkpoint_steps=1000,
    )
    return seal(identity_pb2.DOMAIN_JOB_REQUEST, request, signer or world.maintainer).SerializeToString(deterministic=True)


def job_cancel(world: Community, job_id: str) -> bytes:
    """A signed cancellation, as it is stored."""
    cancel = model_pb2.JobCancel(
        network_id=world.policy.network_id, job_id=job_id, model=MODEL, reason="called off by its maintainer"
    )
    return seal(identity_pb2.DOMAIN_JOB_CANCEL, cancel, world.maintainer).SerializeToString(deterministic=True)


def job_pause(world: Community, job_id: str, number: int, *, paused: bool) -> bytes:
    """A signed statement that a job pauses or goes on, as it is stored."""
    pause = model_pb2.JobPause(
        network_id=world.policy.network_id,
        job_id=job_id,
        model=MODEL,
        number=number,
        paused=paused,
        reason="its maintainers say so",
    )
    return seal(identity_pb2.DOMAIN_JOB_PAUSE, pause, world.maintainer).SerializeToString(deterministic=True)
