"""Goal: the example graphs are valid, the references learn on them, and the restricted reader builds arrays and nothing else."""

from __future__ import annotations

import importlib.util
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dcnr.graph import graph_from_toml, stages_of_graph
from dcnr.specs import TensorSpec
from dcnr.stages import VNodeSpec, stages_of
from vnode.reference import Exit, LocalReference, evaluate_states, train_backprop, train_local
from vnode.registry import default_registry
from vnode.torch_stage import initial_state

EXAMPLES = Path(__file__).parents[2] / "examples"
REGISTRY = default_registry()
CENTRES = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


def blobs(split: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([number, split == "test"])
    y = rng.integers(0, 4, 32)
    return CENTRES[y] + 0.3 * rng.standard_normal((32, 8)).astype(np.float32), y


def small_stages(activation: str = "none", clip: float = 0.0) -> Any:
    def block(name: str, source: str, activation: str) -> VNodeSpec:
        config = {"lr": 0.1, "schedule": "one_cycle", "clip": clip}
        return VNodeSpec(name, "linear_block", {"dropout": 0.1}, (source,), "local_ce", {"activation": activation}, "sgd", config)

    return stages_of(
        [block("a", "input", activation), block("b", "a", "none")],
        REGISTRY,
        TensorSpec("float32", (8,)),
        TensorSpec("int64", ()),
        4,
    )


@pytest.mark.parametrize("train", [train_local, train_backprop])
def test_both_references_learn_and_repeat(train: Callable[..., tuple[Exit, ...]]) -> None:
    seen: list[int] = []
    exits = [
        train(
            small_stages(),
            REGISTRY,
            blobs,
            num_batches=60,
            seed=0,
            split="test",
            num_eval_batches=4,
            watch=lambda p: seen.append(p.batch),
        )
        for _ in range(2)
    ]
    assert exits[0] == exits[1]
    assert seen == [*range(60), *range(60)]
    assert [item.vnode for item in exits[0]] == ["a", "b"]
    assert all(item.accuracy > 0.9 and item.count == 128 for item in exits[0])


def test_states_of_different_jobs_are_evaluated_together() -> None:
    """While a job runs, the newest states of some VNodes are its own, and those of others still of a job with another number of batches or seed."""
    stages = small_stages()

    def exits(num_batches: int, job_seed: int) -> tuple[Exit, ...]:
        states = [initial_state(stages[0], REGISTRY, seed=0, model="m", graph="", num_batches=200)]
        second = initial_state(stages[1], REGISTRY, seed=job_seed, model="m", graph="", num_batches=num_batches)
        return evaluate_states(stages, REGISTRY, [*states, second], blobs, "test", 2)

    assert exits(100, 0) == exits(200, 0) == LocalReference(stages, REGISTRY, num_batches=200, seed=0).evaluate(blobs, "test", 2)
    assert exits(200, 1)[0] == exits(200, 0)[0]
    assert exits(200, 1)[1] != exits(200, 0)[1]


def test_probes_do_not_touch_the_network_that_backprop_trains() -> None:
    one, other = (
        train_backprop(
            small_stages(activation, clip=0.01), REGISTRY, blobs, num_batches=20, seed=0, split="test", num_eval_batches=2
        )
        for activation in ("none", "relu")
    )
    assert one[0] != other[0]
    assert one[1] == other[1]


@pytest.mark.parametrize("name", ["mnist", "text"])
def test_example_graphs_train(name: str) -> None:
    graph = graph_from_toml((EXAMPLES / name / "model.toml").read_text())
    stages = stages_of_graph(graph, REGISTRY)
    spec, target = stages[0].inputs[0].spec, stages[0].target
    x = np.random.default_rng(0).integers(0, 2, (4, *spec.shape)).astype(spec.dtype)
    y = np.random.default_rng(1).integers(0, stages[0].num_classes, (4, *target.shape)).astype(target.dtype)
    reference = LocalReference(stages, REGISTRY, num_batches=2, seed=int(graph.train.seed))
    steps = list(reference.train(lambda split, number: (x, y)))
    assert len(stages) == len(steps[0].losses) == 4


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"prepare_{name}", EXAMPLES / name / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_mnist_reader_builds_arrays_only() -> None:
    reader = example("mnist").ArraysOnly
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for protocol in (2, 4, 5):
        assert np.array_equal(reader(io.BytesIO(pickle.dumps({"a": array}, protocol))).load()["a"], array)

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return (print, ("run",))

    with pytest.raises(pickle.UnpicklingError, match="not part of a numpy array"):
        reader(io.BytesIO(pickle.dumps(Attack()))).load()


def test_text_targets_are_the_next_bytes() -> None:
    x, y = example("text").sequences(bytes(range(11)), length=5)
    assert x.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert y.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
