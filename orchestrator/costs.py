"""What a stage costs on a node, as the planner sees it: the same figures by which the PNode admits it (`vnode.costs`).

Memory of a VNode with P parameters, an optimiser with s slots, batch size B and activations A bytes per sample::

    4·P·(2 + s)        weights, gradients and optimiser state
  + B·A                activations of the local backward pass, and outputs of the stateless VNodes evaluated with it
  + B·B·p              what the objective holds for each pair of samples (predsim: 16 bytes)
  + w·B·(I + O)        frames that wait at its edges: w batches, at most 16 and 16 MiB per edge, at least one
  + overhead           interpreter objects, queues and buffers of one replica

A replica of a VNode that has several needs five copies of the weights more (`vnode.costs.ReplicaCost.sharing_bytes`).

Disk: three states and a spool of at most 1 GiB and at most a quarter of the disk that is lent. A step costs three times its forward FLOPs, and
2e8 besides for all that is no arithmetic (`vnode.costs.STEP_BESIDE_FLOPS`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dcnr import limits
from dcnr.specs import Registry
from dcnr.stages import INPUT, Stage
from vnode.costs import replica_cost

KEPT_STATES: Final = limits.KEPT_WORKING_CHECKPOINTS
SPOOL_FRACTION: Final = 4
"""A replica's spool takes at most this fraction of the lent disk."""
MAX_CORRECTION: Final = 8.0
"""A measured step, or one that others of the device class measured, counts for at most this factor over or under the prediction."""
MIN_GFLOPS: Final = 0.01
"""A node that measured less counts as this slow, so that nothing divides by zero."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """A stage as the planner sees it; bytes per batch, FLOPs per batch."""

    vnode: str
    predecessors: tuple[str, ...]
    hosted: tuple[str, ...]
    """Stateless VNodes evaluated with it."""
    is_source: bool
    wanted_replicas: int
    """Primary and contributors; 0: as many as the planner finds useful."""
    step_flops: float
    state_bytes: int
    memory_bytes: int
    output_bytes: int
    sharing_bytes: int = 0
    """Memory that each replica needs beside ``memory_bytes`` where there are several."""
    component: str = ""
    """What the VNode is made of: machines are compared by it."""


def stage_costs(stages: tuple[Stage, ...], registry: Registry, batch_size: int) -> tuple[StageCost, ...]:
    """The costs of all stages, in the order given."""
    return tuple(_cost(stage, registry, batch_size) for stage in stages)


def _cost(stage: Stage, registry: Registry, batch_size: int) -> StageCost:
    cost = replica_cost(stage, registry, batch_size)
    return StageCost(
        vnode=stage.id,
        predecessors=tuple(item.id for item in stage.inputs if item.id != INPUT),
        hosted=tuple(operation.id for operation in (*stage.operations, *stage.sinks)),
        is_source=stage.is_source,
        wanted_replicas=stage.replicas,
        step_flops=cost.step_flops,
        state_bytes=cost.state_bytes,
        memory_bytes=cost.memory_bytes,
        output_bytes=cost.frame_bytes,
        sharing_bytes=cost.sharing_bytes,
        component=stage.component,
    )


def spool_bytes(node_disk_bytes: int) -> int:
    """Room for sent frames that each VNode on such a node has."""
    return min(limits.SPOOL_BYTES, node_disk_bytes // SPOOL_FRACTION)


def states_bytes(cost: StageCost) -> int:
    """Disk for the states that a VNode keeps."""
    return KEPT_STATES * cost.state_bytes


def disk_bytes(cost: StageCost, spool: int) -> int:
    """Disk that a VNode reserves on a node whose spools have so much room."""
    return states_bytes(cost) + max(spool, cost.output_bytes)


def spool_batches(cost: StageCost, node_disk_bytes: int) -> int:
    """Sent frames, in batches, that the VNode's spool holds."""
    return max(1, spool_bytes(node_disk_bytes) // max(cost.output_bytes, 1))


def predicted_step_s(cost: StageCost, gflops: float) -> float:
    """Seconds per batch when the stage has the node for itself."""
    return cost.step_flops * seconds_per_flop(gflops)


def seconds_per_flop(gflops: float) -> float:
    """Of a node that measured so much."""
    return 1e-9 / max(gflops, MIN_GFLOPS)
