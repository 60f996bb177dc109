"""What one replica of a stage costs: the planner reserves by these numbers, the PNode admits by the same. Pure, torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from dcnr import limits
from dcnr.specs import Registry, kept_per_place
from dcnr.stages import Stage

FLOAT_BYTES = 4
SHARING_COPIES = 5
STEP_FACTOR = 3
"""A local step costs about three forward passes: forward, gradient of the weights, gradient of the activations."""
STEP_BESIDE_FLOPS = 2e8
"""What a step takes beside its arithmetic, as if it were arithmetic too: to read, decode, check, sign, encode and send. Measured: about 2 ms of a core that
computes 94 GFLOP/s, whatever the size of the step (ADR 0113)."""
OVERHEAD_BYTES = 48 * limits.MIB
"""Interpreter objects, queues and library buffers of one replica."""

SEAT_COPIES = 2
"""A seat holds the weights that it serves, and beside them for a while those that it serves next."""
SEAT_OVERHEAD_BYTES = 16 * limits.MIB
"""Questions on their way through a seat, and what is computed for them."""


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    """Of one replica at one batch size."""

    state_bytes: int
    """Weights and optimiser slots: what a checkpoint holds, without its header."""
    memory_bytes: int
    """weights x (2 + slots) x 4 + batch x activations + batch x batch x what pairs of samples take + a full window of inputs + the frames kept for
    sending + overhead.
    """
    sharing_bytes: int
    """What a replica with siblings needs beside that: five copies of the weights. A contributor keeps its anchor and its open delta, and has the bytes of the
    next of both beside them for a while; a primary the anchor and the weights before and after a merge, and a delta as it arrives and decoded.
    """
    frame_bytes: int
    """One output batch, raw."""
    step_flops: float
    """One local step on one batch, with what it takes beside its arithmetic."""


def window_batches(input_bytes: int) -> int:
    """Batches that a window of `limits.WINDOW_BYTES` holds, at least one and at most `limits.WINDOW_BATCHES`."""
    return max(1, min(limits.WINDOW_BATCHES, limits.WINDOW_BYTES // max(1, input_bytes)))


def seat_bytes(stage: Stage, batch_size: int) -> int:
    """Memory of a seat: what a PNode needs to answer questions of at most ``batch_size`` samples for ``stage`` besides its training."""
    return seat_alone_bytes(stage, batch_size) + (SEAT_COPIES - 1) * stage.num_parameters * FLOAT_BYTES


def seat_alone_bytes(stage: Stage, batch_size: int) -> int:
    """The same for a seat that lets go of its state before it loads the next one."""
    return stage.num_parameters * FLOAT_BYTES + batch_size * stage.activation_bytes + SEAT_OVERHEAD_BYTES


def session_bytes(stage: Stage, registry: Registry) -> int | None:
    """Memory of what a seat keeps of one text between its passes, whole contexts allowed for; None where the stage does not work place by place."""
    shapes = [item.spec for item in stage.inputs]
    if not all(spec.is_sequence and spec.shape[0] == stage.output.shape[0] for spec in shapes) or not stage.output.is_sequence:
        return None
    parts = [
        kept_per_place(registry.components[stage.component], stage.config, stage.component_input_specs),
        kept_per_place(registry.objectives[stage.objective], stage.objective_config, (stage.output,)),
        *(kept_per_place(registry.components[item.component], item.config, item.input_specs) for item in stage.operations),
    ]
    kept = 0
    for part in parts:
        if part is None:
            return None
        kept += part
    return kept * FLOAT_BYTES * stage.output.shape[0]


def replica_cost(stage: Stage, registry: Registry, batch_size: int) -> ReplicaCost:
    """The cost of hosting ``stage``."""
    slots = registry.optimizers[stage.optimizer].slots_per_parameter
    weights = stage.num_parameters * FLOAT_BYTES
    input_bytes = batch_size * sum(item.spec.bytes_per_sample for item in stage.inputs)
    frame_bytes = batch_size * stage.output.bytes_per_sample
    memory = (
        weights * (2 + slots)
        + batch_size * stage.activation_bytes
        + batch_size * batch_size * stage.pair_bytes
        + window_batches(input_bytes) * input_bytes
        + window_batches(frame_bytes) * frame_bytes
        + OVERHEAD_BYTES
    )
    return ReplicaCost(
        state_bytes=weights * (1 + slots),
        memory_bytes=memory,
        sharing_bytes=SHARING_COPIES * weights,
        frame_bytes=frame_bytes,
        step_flops=float(STEP_FACTOR) * stage.forward_flops * batch_size + STEP_BESIDE_FLOPS,
    )
