"""Goal: a PNode for which every VNode is too large is told what it would have to lend; one that some VNode fits, or of which nothing is
asked, is told nothing."""

from __future__ import annotations

import pytest

from dcnr.graph import Graph, stages_of_graph
from dcnr.limits import MIB
from dcnr.specs import TensorSpec
from dcnr.v1 import membership_pb2, model_pb2
from orchestrator.costs import disk_bytes, spool_bytes, stage_costs
from orchestrator.smallest import too_small
from orchestrator.view import JobFacts, ModelView
from vnode.registry import default_registry

REGISTRY = default_registry()
WIDTHS = {"wide": 900, "narrow": 400}


def view(model: str = "m", *, active: bool = True) -> ModelView:
    """A job of two VNodes, the wide one first."""
    graph = Graph(
        model, input=TensorSpec("float32", (500,)), target=TensorSpec("int64", ()), num_classes=2, train={"batch_size": 4},
        data=dict.fromkeys(("train", "validation", "test"), "dataset:d#train"),
    )  # fmt: skip
    for name, width in WIDTHS.items():
        graph.vnode(
            name, "linear", inputs=["input"], config={"out_features": width}, objective={"name": "local_ce"},
            optimizer={"name": "sgd", "lr": 0.1},
        )  # fmt: skip
    built = graph.build()
    stages = stages_of_graph(built, REGISTRY)
    job = JobFacts(model_pb2.JobRequest(), "", built, b"", stages, stage_costs(stages, REGISTRY, 4))
    head = model_pb2.Head(active=model_pb2.ActiveJob(job_id="j" if active else ""))
    return ModelView(model, head, b"", job=job)


def lent(memory_bytes: int, disk_bytes: int) -> membership_pb2.Capability:
    return membership_pb2.Capability(memory_bytes=memory_bytes, disk_bytes=disk_bytes)


def narrow() -> tuple[int, int]:
    """Memory and disk that the narrow one needs."""
    job = view().job
    assert job is not None
    cost = next(cost for cost in job.costs if cost.vnode == "narrow")
    return cost.memory_bytes, disk_bytes(cost, spool_bytes(1 << 40))


def test_what_the_least_vnode_needs_is_told_in_memory_and_in_disk() -> None:
    memory, disk = narrow()
    mib = -(-memory // MIB)
    assert too_small(lent(memory - 1, 1 << 40), [view()]) == (
        f"m: no VNode needs less than {mib} MiB of memory (narrow), {(memory - 1) // MIB} MiB are lent"
    )
    assert "MiB of disk (narrow), 1 MiB are lent" in too_small(lent(1 << 40, MIB), [view()])
    assert too_small(lent(memory, disk * 100), [view()]) == "", "the narrow one fits"


def test_who_fits_one_model_is_told_nothing_of_another() -> None:
    memory, _ = narrow()
    small = lent(memory - 1, 1 << 40)
    assert too_small(small, [view("m"), view("n")]).count("no VNode needs less") == 2
    fitting = ModelView("n", view().head, b"", job=view().job)
    assert too_small(lent(memory, 1 << 40), [view("m"), fitting, None]) == ""


@pytest.mark.parametrize("case", ["no job", "a job that is over", "nothing said yet"])
def test_where_nothing_is_asked_for_nothing_is_too_small(case: str) -> None:
    asked = [ModelView("m", model_pb2.Head(), b"")] if case == "no job" else [view(active=case != "a job that is over")]
    capability = membership_pb2.Capability() if case == "nothing said yet" else lent(MIB, MIB)
    assert too_small(capability, asked) == ""
