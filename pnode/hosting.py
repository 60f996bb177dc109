"""From the daemon's word to a replica that is ready to run: graph, stage, restored state, core, spool. Weights come from the state file only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dcnr import limits
from dcnr.errors import Corrupt, InvalidInput, InvariantBroken, NotFound
from dcnr.graph import graph_digest, graph_from_bytes, stages_of_graph
from dcnr.ids import ReplicaId, VNodeId, check_replica_id
from dcnr.ports import Clock
from dcnr.specs import Registry
from dcnr.stages import INPUT, Stage, all_behind
from dcnr.tempo import Tempo
from dcnr.units import Share
from dcnr.v1 import local_pb2, model_pb2
from pnode.books import Books
from pnode.chain import Standing
from pnode.host import ReplicaHost
from pnode.hosted import Fixed, Neighbours, Planned
from pnode.infer_reads import Reads
from pnode.no_books import NoBooks
from pnode.outbox import Outbox
from pnode.samples import StagedSamples
from pnode.spool import Spool
from vnode.checks.plan import checks_of_stage
from vnode.compute import Compute
from vnode.core import ReplicaCore
from vnode.events import LearningHeld
from vnode.replica_config import ReplicaConfig
from vnode.state import StateInfo, for_new_job
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import schema_of
from vnode.vocabulary import Peer, Role

_ROLES: Final = {
    model_pb2.ROLE_PRIMARY: Role.PRIMARY, model_pb2.ROLE_CONTRIBUTOR: Role.CONTRIBUTOR, model_pb2.ROLE_STANDBY: Role.STANDBY,
}  # fmt: skip
VALIDATION_ROUNDS: Final = 8
"""Per job, where the graph names no interval."""
RESEND_S: Final = 15.0
"""A Link delivers or breaks, and breaking starts afresh: this only has to outlast what slow lines keep in their buffers."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything of a replica that does not depend on the worker's loop."""

    standing: Standing
    graph: model_pb2.ModelGraph
    stage: Stage
    depth: int
    successors: frozenset[VNodeId]
    compute: Compute
    info: StateInfo
    state_bytes: int
    samples: StagedSamples
    config: ReplicaConfig
    frame_bytes: int
    reads: Reads
    """What the stages of the graph read."""

    @property
    def batch_size(self) -> int:
        """Samples per batch."""
        return int(self.graph.train.batch_size)


def prepare(
    host: local_pb2.HostReplica, *, registry: Registry, network_id: str, pnode_id: str, incarnation: int, device: str,
    compute: Callable[..., TorchCompute] = TorchCompute,
) -> Prepared:  # fmt: skip
    """Blocks; to be called on the replica's compute thread. Raises InvalidInput, Corrupt, NotFound."""
    replica = check_replica_id(host.assignment.replica)
    graph = graph_from_bytes(host.graph)
    stages = stages_of_graph(graph, registry)
    depth, stage = next(((at, item) for at, item in enumerate(stages, 1) if item.id == host.assignment.vnode), (0, None))
    if stage is None:
        raise InvalidInput(f"the graph has no VNode {host.assignment.vnode!r:.80} with weights", code="bad_assignment")
    vnode = VNodeId(stage.id)
    maths = compute(
        stage,
        registry,
        num_batches=host.num_batches,
        seed=int(graph.train.seed),
        device=device,
        threads=host.threads,
        whole_anchors=host.audited,
    )
    state_bytes = Path(host.state_path).stat().st_size
    info = maths.restore(_first_state(host, graph, stage, registry) if host.from_earlier_job else Path(host.state_path))
    if role_of(host.assignment.role) is not Role.PRIMARY:
        maths.follow()
    if info.model != host.model:
        raise Corrupt(f"the state belongs to {info.model}", code="bad_state_model")
    samples = StagedSamples(Path(host.dataset_manifest_path), Path(host.shard_dir), graph)
    if samples.num_batches != host.num_batches:
        raise Corrupt(f"the data set gives {samples.num_batches} batches, the job has {host.num_batches}", code="wrong_dataset")
    standing = Standing(network_id, host.model, host.job_id, vnode, Peer(replica, incarnation), pnode_id, host.work_digest)
    return Prepared(
        standing=standing,
        graph=graph,
        stage=stage,
        depth=depth,
        successors=frozenset(map(VNodeId, _successors(stages, stage))),
        compute=maths,
        info=info,
        state_bytes=state_bytes,
        samples=samples,
        config=replica_config(host, graph, stages, stage, standing.peer, info, samples.eval_batches()),
        frame_bytes=stage.output.bytes_per_sample * int(graph.train.batch_size),
        reads=Reads.of(stages),
    )


def _successors(stages: Sequence[Stage], stage: Stage) -> list[str]:
    """Those that read from a stage."""
    return [item.id for item in stages if any(read.id == stage.id for read in item.inputs)]


def _first_state(host: local_pb2.HostReplica, graph: model_pb2.ModelGraph, stage: Stage, registry: Registry) -> bytes:
    """What an earlier job left, as this job begins with it. Raises Corrupt, NotFound."""
    path = Path(host.state_path)
    try:
        if path.stat().st_size > limits.MAX_OBJECT_BYTES:
            raise Corrupt("the state is larger than any state may be", code="bad_state_size")
        data = path.read_bytes()
    except OSError as error:
        raise NotFound(f"the state cannot be read: {error.strerror}", code="no_state") from error
    return for_new_job(
        data, schema_of(stage, registry), num_batches=int(host.num_batches), seed=int(graph.train.seed), graph=graph_digest(graph),
        parent=host.state_digest,
    )  # fmt: skip


def replica_config(
    host: local_pb2.HostReplica,
    graph: model_pb2.ModelGraph,
    stages: Sequence[Stage],
    stage: Stage,
    peer: Peer,
    info: StateInfo,
    eval_batches: Mapping[str, int],
) -> ReplicaConfig:
    """The core's numbers. Windows and spools are counted in batches of this stage's own tensors."""
    batch_size = int(graph.train.batch_size)
    behind = all_behind({item.id: [read.id for read in item.inputs] for item in stages}, _successors(stages, stage))
    output_bytes = max(1, stage.output.bytes_per_sample * batch_size)
    input_bytes = max(1, *(item.spec.bytes_per_sample * batch_size for item in stage.inputs))
    window = max(1, min(limits.WINDOW_BATCHES, limits.WINDOW_BYTES // input_bytes))
    return ReplicaConfig(
        vnode=VNodeId(stage.id),
        replica=peer.replica,
        incarnation=peer.incarnation,
        num_inputs=len(stage.inputs),
        input_edges=frozenset(edge for edge, item in enumerate(stage.inputs) if item.id == INPUT),
        num_batches=host.num_batches,
        spool_batches=max(1, host.spool_bytes // output_bytes - window),
        frame_bytes=output_bytes,
        window_batches=window,
        lead_batches=max(1, host.lead_batches),
        checkpoint_s=host.checkpoint_s or limits.CHECKPOINT_S,
        checkpoint_steps=min(host.checkpoint_steps or limits.CHECKPOINT_STEPS, limits.MAX_COMMIT_BATCHES),
        eval_batches=eval_batches,
        evaluate_every=int(graph.train.evaluate_every) or max(1, host.num_batches // VALIDATION_ROUNDS),
        horizon_s=host.horizon_s or limits.HORIZON_S,
        resend_s=RESEND_S,
        is_new_primary=bool(info.lineage) and host.assignment.role == model_pb2.ROLE_PRIMARY,
        role=role_of(host.assignment.role),
        unit_batches=max(1, host.unit_batches),
        merge_every=int(graph.train.merge_every) or limits.MERGE_EVERY,
        behind={VNodeId(name): frozenset(map(VNodeId, others)) for name, others in behind.items()},
        audited=host.audited,
    )


def fixed_of(prepared: Prepared, host: local_pb2.HostReplica) -> Fixed:
    """What stays the same for the replica's shell."""
    return Fixed(
        prepared.standing,
        prepared.stage,
        prepared.batch_size,
        prepared.successors,
        Path(host.work_dir),
        num_batches=int(host.num_batches),
        state_path=Path(host.state_path),
        state_digest=host.state_digest,
        state_bytes=prepared.state_bytes,
        wanted_codec=str(prepared.graph.train.codec) or "auto",
        audited=host.audited,
    )


def core_of(prepared: Prepared, clock: Clock) -> ReplicaCore:
    """The core, with the restored lineage."""
    return ReplicaCore(prepared.config, prepared.info.lineage, clock.monotonic())


def outbox_of(prepared: Prepared, host: local_pb2.HostReplica, executor: Executor, codec: Callable[[], str]) -> Outbox:
    """An empty outbox over a spool in the replica's work directory."""
    room = max(host.spool_bytes, (1 + prepared.config.window_batches) * prepared.config.frame_bytes)
    return Outbox(Spool(Path(host.work_dir) / "spool", max_bytes=room), executor, codec)


def books_of(
    prepared: Prepared, order: local_pb2.HostReplica, registry: Registry, host: ReplicaHost, clock: Clock
) -> Books | NoBooks:
    """What this replica writes down for auditors; nothing where audits are not in force."""
    if not order.audited:
        return NoBooks()

    async def capture(info: StateInfo) -> bytes:
        state: bytes
        state, _ = await host.on_thread(lambda: prepared.compute.snapshot(info))
        return state

    try:
        span_steps = checks_of_stage(prepared.stage, registry).replay().span_steps
    except InvariantBroken:  # nothing was measured for its optimiser: nobody can check it, and nothing is asked for in between
        span_steps = limits.CHECKPOINT_STEPS
    return Books(
        prepared.standing, order, prepared.info,
        inputs=[port for port in range(len(prepared.stage.inputs)) if port not in prepared.config.input_edges],
        is_read=bool(prepared.successors), span_steps=span_steps, capture=capture, held=lambda why: host.post(LearningHeld(clock.monotonic(), why)),
        crowded=host.snapshot_again,
    )  # fmt: skip


def compute_thread(replica: ReplicaId) -> ThreadPoolExecutor:
    """The one thread on which a replica computes."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"compute-{replica}")


def neighbours_of(host: local_pb2.HostReplica, stage: Stage) -> Neighbours:
    """The plan around a replica; primaries come before others. Raises InvalidInput for names, weights and a tempo that are none."""
    assignment = host.assignment
    by_vnode: dict[str, list[Planned]] = {}
    for neighbour in assignment.predecessors:
        by_vnode.setdefault(neighbour.vnode, []).append(_planned(neighbour))
    predecessors = {
        edge: tuple(sorted(by_vnode[item.id], key=lambda one: (one.role is not Role.PRIMARY, one.replica)))
        for edge, item in enumerate(stage.inputs)
        if item.id != INPUT and item.id in by_vnode
    }
    successors = {check_replica_id(one.replica): one.pnode_id for one in assignment.successors}
    return Neighbours(
        predecessors,
        successors,
        max(1, host.lead_batches),
        role_of(assignment.role),
        tuple(_planned(one) for one in assignment.siblings),
        host.halted,
        host.widest_lead_batches,
        Tempo.of(host.tempo) if host.HasField("tempo") else None,
    )


def role_of(role: model_pb2.Role.ValueType) -> Role:
    """Raises InvalidInput for a role that is none."""
    if role not in _ROLES:
        raise InvalidInput(f"a replica cannot be of role {role}", code="bad_assignment")
    return _ROLES[role]


def _planned(neighbour: model_pb2.Neighbour) -> Planned:
    """A primary without a weight owns its share all the same: desired states said none before there were shares."""
    role = role_of(neighbour.role)
    weight = 0.0 if role is Role.STANDBY else neighbour.weight or float(role is Role.PRIMARY)
    share = Share(check_replica_id(neighbour.replica), weight)
    return Planned(share.replica, neighbour.pnode_id, role, share.weight)
