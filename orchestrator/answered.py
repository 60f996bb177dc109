"""Answers: what one is worth, whether two are the same, and how one is told. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dcnr.v1 import orchestrator_pb2
from orchestrator.routing import Way
from orchestrator.trying import Answer, bounded_s

TOLERANCE: Final = 1e-3
"""Relative difference of two answers, in the largest value: float32 on unlike machines stays far below."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer with the way that gave it."""

    way: Way
    answer: Answer
    num_ways: int
    """Tried for it."""


def alike(one: Answered, other: Answered) -> bool:
    """Whether two answers to one question are the same within `TOLERANCE` of their largest value."""
    left, right = one.answer.output, other.answer.output
    if one.way.exit != other.way.exit or left.shape != right.shape or left.dtype != right.dtype:
        return False
    wide, far = left.astype(np.float64), right.astype(np.float64)
    largest = max(float(np.abs(wide).max(initial=0.0)), float(np.abs(far).max(initial=0.0)))
    return float(np.abs(wide - far).max(initial=0.0)) <= TOLERANCE * largest


def response(model: str, exit_: str, found: Answered, *, num_agreeing: int, total_s: float) -> orchestrator_pb2.ForwardResponse:
    """What the caller of Forward is told; ``exit_``: the one that was asked for."""
    way, answer = found.way, found.answer
    live = not way.table.manifest_digest
    stages = []
    for hop in way.hops:
        timing = answer.timings.get(hop.vnode)
        stages.append(
            orchestrator_pb2.StageAnswer(
                vnode=hop.vnode, pnode_id=hop.pnode_id, replica=hop.replica, state_digest=hop.state_digest,
                step=int(timing.step) if live and timing is not None else hop.step,
                waited_s=bounded_s(timing.waited_s) if timing is not None else 0.0,
                computed_s=bounded_s(timing.computed_s) if timing is not None else 0.0,
            )
        )  # fmt: skip
    output = orchestrator_pb2.NamedTensor(
        vnode=way.exit, dtype=answer.output.dtype.name, shape=answer.output.shape, data=answer.output.tobytes()
    )
    degraded = way.exit != exit_
    return orchestrator_pb2.ForwardResponse(
        output=output, model=model, manifest_digest=way.table.manifest_digest,
        weights=orchestrator_pb2.WEIGHTS_LIVE if live else orchestrator_pb2.WEIGHTS_SERVED, stages=stages, exit=way.exit,
        deepest=way.table.stages[-1].id, degraded=degraded,
        degraded_reason=f"nobody serves {way.missing} now" if degraded else "", total_s=total_s, num_ways=found.num_ways,
        num_agreeing=num_agreeing, drafted=answer.drafted,
    )  # fmt: skip
