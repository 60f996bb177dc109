"""Goal: a measured step time is that of the machine that reports it, over enough steps, and what is predicted of a small step is not its arithmetic alone."""

from __future__ import annotations

import pytest

from dcnr.graph import Graph, stages_of_graph
from dcnr.specs import TensorSpec
from dcnr.v1 import orchestrator_pb2
from orchestrator.costs import predicted_step_s, stage_costs
from orchestrator.lending import MEASURED_BATCHES, counted_steps
from vnode.registry import default_registry


def steps(**report: float) -> dict[str, float]:
    beat = orchestrator_pb2.Beat(replicas=[orchestrator_pb2.ReplicaReport(vnode="v", **report)])  # type: ignore[arg-type]
    return counted_steps({}, beat)


def test_a_copy_that_was_handed_over_shows_how_long_its_own_steps_take() -> None:
    learned = {"num_learned": 10 * MEASURED_BATCHES, "step_s": 0.5}
    assert steps(**learned, num_steps=MEASURED_BATCHES - 1) == {}
    assert steps(**learned, num_steps=MEASURED_BATCHES) == {"v": 0.5}
    assert steps(**learned) == {"v": 0.5}, "a PNode of before does not tell of how many"


@pytest.mark.parametrize(("width", "batch_size", "core_ms"), [(64, 32, 2.2), (256, 64, 3.0), (512, 256, 11.5)])
def test_steps_of_every_size_are_predicted_within_a_third(width: int, batch_size: int, core_ms: float) -> None:
    """``core_ms``: milliseconds of a core of 94 GFLOP/s that a worker was measured to take for a step of `linear_block`, all that it does included."""
    graph = Graph(
        "m", input=TensorSpec("float32", (width,)), target=TensorSpec("int64", ()), num_classes=4,
        train={"passes": 1, "batch_size": batch_size, "seed": 1}, data={use: f"dataset:m#{use}" for use in ("train", "validation", "test")},
    )  # fmt: skip
    graph.vnode(
        "v",
        "linear_block",
        {},
        inputs=["input"],
        objective={"name": "local_ce", "config": {}},
        optimizer={"name": "sgd", "lr": 0.1},
    )
    registry = default_registry()
    (cost,) = stage_costs(stages_of_graph(graph.build(), registry), registry, batch_size)
    assert 1e3 * predicted_step_s(cost, 94.0) == pytest.approx(core_ms, rel=1 / 3)
