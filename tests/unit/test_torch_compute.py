"""Goal: a VNode's step is a pure function of (state, input, seed); nothing leaks between modes, neighbours, or failed calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from dcnr.errors import Corrupt, InvariantBroken, RemoteFault
from dcnr.intervals import IntervalSet
from dcnr.specs import Config, TensorSpec
from dcnr.stages import Stage, VNodeSpec, stages_of
from vnode.registry import default_registry
from vnode.state import StateInfo
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import initial_state, skeleton
from vnode.vocabulary import Mode

REGISTRY = default_registry()
NUM_BATCHES = 20
SGD: Config = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "one_cycle"}
ADAMW: Config = {"lr": 4e-3, "weight_decay": 0.05, "schedule": "cosine", "clip": 1.0}


def image_stage(objective: str = "local_ce", optimizer: str = "sgd", config: Config = SGD) -> Stage:
    vnodes = [
        VNodeSpec("shift", "random_shift", {"pixels": 2}, ("input",)),
        VNodeSpec(
            "conv",
            "conv_block",
            {"out_channels": 6, "pool": 2, "dropout": 0.2},
            ("shift",),
            objective,
            {"pool": 2},
            optimizer,
            config,
        ),
        VNodeSpec("flat", "flatten", {}, ("conv",)),
    ]
    return stages_of(vnodes, REGISTRY, TensorSpec("float32", (1, 8, 8)), TensorSpec("int64", ()), 4)[0]


def text_stage() -> Stage:
    config: Config = {"width": 16, "blocks": 1, "heads": 2, "dropout": 0.1}
    vnode = VNodeSpec("bytes", "byte_embedding", config, ("input",), "local_ce", {}, "adamw", ADAMW)
    return stages_of([vnode], REGISTRY, TensorSpec("uint8", (12,)), TensorSpec("uint8", (12,)), 256)[0]


def vector_stage() -> Stage:
    vnode = VNodeSpec("block", "linear_block", {}, ("input",), "predsim", {"activation": "gelu"}, "sgd", SGD)
    return stages_of([vnode], REGISTRY, TensorSpec("float32", (10,)), TensorSpec("int64", ()), 4)[0]


STAGES = {
    "image-sgd": image_stage(),
    "image-predsim-adamw": image_stage("predsim", "adamw", ADAMW),
    "text": text_stage(),
    "vector": vector_stage(),
}


def batch_of(stage: Stage, number: int, size: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    spec = stage.inputs[0].spec
    shape = (size, *spec.shape)
    x = rng.integers(0, 256, shape, dtype=np.uint8) if spec.dtype == "uint8" else rng.standard_normal(shape, dtype=np.float32)
    return x, rng.integers(0, stage.num_classes, (size, *stage.target.shape)).astype(stage.target.dtype)


def fresh(stage: Stage, seed: int = 0) -> tuple[TorchCompute, StateInfo]:
    compute = TorchCompute(stage, REGISTRY, num_batches=NUM_BATCHES, seed=seed)
    state = initial_state(stage, REGISTRY, seed=seed, model="m", graph="", num_batches=NUM_BATCHES)
    return compute, compute.restore(state)


def learned(compute: TorchCompute, stage: Stage, numbers: range) -> list[Any]:
    return [compute.learn(n, [batch_of(stage, n)[0]], batch_of(stage, n)[1], n) for n in numbers]


@pytest.fixture(params=sorted(STAGES))
def stage(request: pytest.FixtureRequest) -> Stage:
    return STAGES[request.param]


class Calls(TorchFunctionMode):
    """What is called in torch, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(f"{getattr(func, '__module__', None) or ''}.{func.__name__}")
        return func(*args, **(kwargs or {}))


def test_a_skeleton_draws_no_values_and_a_first_state_does(stage: Stage) -> None:
    """A worker that starts pays for no initialisation: what torch imports for it takes longer than everything else."""
    with Calls() as first:
        initial_state(stage, REGISTRY, seed=0, model="m", graph="", num_batches=NUM_BATCHES)
    with Calls() as calls:
        skeleton(stage, REGISTRY)
    assert any(name.startswith("torch.nn.init.") for name in first.names)
    assert calls.names
    assert not any(name.startswith("torch.nn.init.") for name in calls.names)


def test_a_restored_replica_continues_bit_for_bit(stage: Stage) -> None:
    one, info = fresh(stage)
    learned(one, stage, range(5))
    middle = one.snapshot(replace(info, lineage=IntervalSet.span(0, 5), step=5))
    rest = learned(one, stage, range(5, 10))
    two = TorchCompute(stage, REGISTRY, num_batches=NUM_BATCHES, seed=0)
    assert len(two.restore(memoryview(middle)).lineage) == 5
    torch.rand(3)  # torch's own generator must not matter
    again = learned(two, stage, range(5, 10))
    assert [r.loss for r in rest] == [r.loss for r in again]
    assert all(torch.equal(a.output, b.output) for a, b in zip(rest, again, strict=True))
    end = replace(info, lineage=IntervalSet.span(0, 10), step=10)
    assert one.snapshot(end) == two.snapshot(end)


def test_forward_only_gives_what_train_would_and_changes_nothing(stage: Stage) -> None:
    compute, info = fresh(stage)
    learned(compute, stage, range(3))
    before = compute.snapshot(info)
    x, y = batch_of(stage, 7)
    ahead = compute.forward(7, [x], Mode.FORWARD_ONLY, y)
    compute.forward(7, [x], Mode.EVAL, y)
    compute.forward(7, [x], Mode.INFER)
    assert compute.snapshot(info) == before
    result = compute.learn(7, [x], y, 3)
    assert torch.equal(ahead.output, result.output)
    assert (ahead.correct, ahead.count) == (result.correct, result.count)
    assert compute.snapshot(info) != before


def test_evaluation_has_no_randomness_and_no_batch_statistics(stage: Stage) -> None:
    compute, _ = fresh(stage)
    learned(compute, stage, range(3))
    x, y = batch_of(stage, 1)
    whole = compute.forward(1, [x], Mode.EVAL, y)
    parts = [compute.forward(number, [x[number : number + 1]], Mode.EVAL, y[number : number + 1]) for number in range(len(x))]
    assert torch.allclose(whole.output, torch.cat([part.output for part in parts]), atol=1e-5)
    assert sum(part.sum_loss for part in parts) == pytest.approx(whole.sum_loss, rel=1e-4)
    assert whole.count == y.size


def test_no_gradient_crosses(stage: Stage) -> None:
    compute, _ = fresh(stage)
    x, y = batch_of(stage, 0)
    given = torch.from_numpy(x).requires_grad_() if x.dtype == np.float32 else torch.from_numpy(x)
    result = compute.learn(0, [given], torch.from_numpy(y), 0)
    assert given.grad is None
    assert result.output.grad_fn is None
    assert not result.output.requires_grad
    assert compute.forward(0, [given], Mode.FORWARD_ONLY).output.grad_fn is None


def test_a_step_learns(stage: Stage) -> None:
    compute, _ = fresh(stage)
    x, y = batch_of(stage, 0)
    losses = [compute.learn(0, [x], y, 6).loss for _ in range(30)]
    assert losses[-1] < losses[0]


def test_read_only_arrays_are_taken_without_copy_and_stay_as_they_are(stage: Stage) -> None:
    compute, _ = fresh(stage)
    x, y = batch_of(stage, 0)
    wire = np.frombuffer(x.tobytes(), dtype=x.dtype).reshape(x.shape)
    kept = wire.copy()
    assert torch.equal(compute.learn(0, [wire], y, 0).output, fresh(stage)[0].learn(0, [x], y, 0).output)
    assert np.array_equal(wire, kept)


def test_bad_inputs_are_a_remote_fault_and_change_nothing() -> None:
    stage = STAGES["image-sgd"]
    compute, info = fresh(stage)
    before = compute.snapshot(info)
    x, y = batch_of(stage, 0)
    wrong = [x[:, :, :7], x.astype(np.float64), x[:0], x[0]]
    for value in (np.nan, np.inf, -np.inf):
        for index in (0, x.size // 2, x.size - 1):
            bad = x.copy()
            bad.reshape(-1)[index] = value
            wrong.append(bad)
    for bad in wrong:
        for call in (lambda b=bad: compute.learn(0, [b], y, 0), lambda b=bad: compute.forward(0, [b], Mode.EVAL, y)):
            with pytest.raises(RemoteFault):
                call()
    for target in (y + 4, y - 4, y[:-1], y[:, None]):
        with pytest.raises(Corrupt):
            compute.learn(0, [x], target, 0)
    assert compute.snapshot(info) == before


@pytest.mark.parametrize("name", ["image-sgd", "image-predsim-adamw", "vector"])
def test_a_batch_that_overflows_is_skipped_whole(name: str) -> None:
    stage = STAGES[name]
    compute, info = fresh(stage)
    learned(compute, stage, range(2))
    before = compute.snapshot(info)
    x, y = batch_of(stage, 0)
    with pytest.raises(InvariantBroken) as caught:
        compute.learn(2, [np.full_like(x, 3e38) * np.sign(x)], y, 2)
    assert caught.value.code == "not_finite"
    assert compute.snapshot(info) == before


@pytest.mark.parametrize("wrong", [[np.nan], [np.inf], [-np.inf], [np.inf, -np.inf]])
def test_one_value_that_is_not_finite_is_refused_and_large_ones_are_not(wrong: list[float]) -> None:
    stage = STAGES["vector"]
    compute, _ = fresh(stage)
    x, _ = batch_of(stage, 0)
    large = np.full_like(x, 3e38)  # their sum is not finite
    compute.forward(0, [large], Mode.INFER)
    large.reshape(-1)[-len(wrong) :] = wrong
    with pytest.raises(RemoteFault) as caught:
        compute.forward(0, [large], Mode.INFER)
    assert caught.value.code == "not_finite"


def test_nothing_computes_before_restore() -> None:
    stage = STAGES["vector"]
    compute = TorchCompute(stage, REGISTRY, num_batches=NUM_BATCHES, seed=0)
    x, y = batch_of(stage, 0)
    for call in (lambda: compute.learn(0, [x], y, 0), lambda: compute.forward(0, [x], Mode.EVAL), lambda: compute.readout(x)):
        with pytest.raises(InvariantBroken) as caught:
            call()
        assert caught.value.code == "not_restored"


def test_checkpoint_0_is_a_function_of_seed_and_vnode(stage: Stage, tmp_path: Path) -> None:
    states = [initial_state(stage, REGISTRY, seed=seed, model="m", graph="", num_batches=NUM_BATCHES) for seed in (0, 0, 1)]
    assert states[0] == states[1] != states[2]
    path = tmp_path / "state.safetensors"
    path.write_bytes(states[0])
    assert TorchCompute(stage, REGISTRY, num_batches=NUM_BATCHES, seed=0).restore(path).parent == ""
    with pytest.raises(Corrupt, match="another job"):
        TorchCompute(stage, REGISTRY, num_batches=NUM_BATCHES, seed=5).restore(path)


def test_readout_and_sinks_follow_the_output() -> None:
    stage = STAGES["image-sgd"]
    compute, _ = fresh(stage)
    result = compute.forward(0, [batch_of(stage, 0)[0]], Mode.INFER)
    assert torch.equal(result.sinks["flat"], result.output.flatten(1))
    assert compute.readout(result.output).shape == (6, 4)


def test_vnodes_may_be_named_like_what_a_module_has() -> None:
    """Ids of VNodes are the maintainer's; a module of torch has attributes of its own."""
    for name in ("half", "values", "items", "type", "pop", "update", "train", "forward", "float", "keys", "training"):
        vnodes = [
            VNodeSpec(name, "relu", {}, ("input",)),
            VNodeSpec("a", "linear", {"out_features": 3}, (name,), "local_ce", {}, "sgd", SGD),
            VNodeSpec(f"{name}-", "dropout", {"dropout": 0.5}, ("a",)),
        ]
        stage = stages_of(vnodes, REGISTRY, TensorSpec("float32", (10,)), TensorSpec("int64", ()), 4)[0]
        compute, _ = fresh(stage)
        learned(compute, stage, range(1))


def test_inference_takes_shorter_texts_and_is_causal() -> None:
    stage = STAGES["text"]
    compute, _ = fresh(stage)
    x, _ = batch_of(stage, 0)
    long, short = (compute.forward(0, [x[:, :n]], Mode.INFER).output for n in (12, 5))
    assert torch.allclose(long[:, :5], short, atol=1e-5)
    with pytest.raises(RemoteFault):
        compute.forward(0, [x[:, :5]], Mode.EVAL)


def test_predicted_costs_are_the_real_ones(stage: Stage) -> None:
    from vnode.torch_stage import skeleton

    assert stage.num_parameters == sum(parameter.numel() for parameter in skeleton(stage, REGISTRY).parameters())
    compute, _ = fresh(stage)
    assert compute.forward(0, [batch_of(stage, 0)[0]], Mode.EVAL).output.shape[1:] == stage.output.shape
