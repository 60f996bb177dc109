"""Goal: places that are computed one after the other on kept keys and values come out as in one pass, also after going back; what cannot go on is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from dcnr.errors import InvariantBroken, RemoteFault
from dcnr.specs import TensorSpec, kept_per_place
from dcnr.stages import Stage, VNodeSpec, stages_of
from vnode.costs import session_bytes
from vnode.registry import default_registry
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import initial_state
from vnode.vocabulary import Mode

REGISTRY = default_registry()
CONTEXT, WIDTH = 12, 16
BOTH: Any = ("local_ce", {}, "adamw", {"lr": 1e-3})
HEAD = VNodeSpec("head", "byte_embedding", {"width": WIDTH, "blocks": 2, "heads": 2, "dropout": 0.1}, ("input",), *BOTH)
DEEP = (
    HEAD,
    VNodeSpec("both", "concat", {"dim": 1}, ("head", "head")),
    VNodeSpec("bent", "gelu", {}, ("both",)),
    VNodeSpec("sum", "add", {}, ("bent", "both")),
    VNodeSpec("narrow", "linear", {"out_features": WIDTH}, ("sum",), *BOTH),
    VNodeSpec("joined", "add", {}, ("narrow", "head")),
    VNodeSpec("tail", "transformer_block", {"heads": 4}, ("joined",), *BOTH),
)


def stages(vnodes: Sequence[VNodeSpec] = DEEP) -> tuple[Stage, ...]:
    return stages_of(vnodes, REGISTRY, TensorSpec("uint8", (CONTEXT,)), TensorSpec("uint8", (CONTEXT,)), 256)


def compute_of(stage: Stage) -> TorchCompute:
    compute = TorchCompute(stage, REGISTRY, num_batches=1, seed=3)
    compute.serve(initial_state(stage, REGISTRY, seed=3, model="m", graph="", num_batches=1))
    return compute


def asked(stage: Stage, seed: int = 1) -> list[Any]:
    rng = np.random.Generator(np.random.Philox(key=seed))
    return [
        rng.integers(0, 256, (1, CONTEXT), dtype=np.uint8)
        if item.spec.dtype == "uint8"
        else rng.standard_normal((1, *item.spec.shape)).astype(np.float32)
        for item in stage.inputs
    ]


def part(values: Sequence[Any], begin: int, end: int) -> list[Any]:
    return [value[:, begin:end] for value in values]


@pytest.mark.parametrize("stage", stages(), ids=lambda stage: stage.id)
@pytest.mark.parametrize("cuts", [(1, 2, 3, 12), (5, 6, 12), (4, 9, 12), (11, 12)])
def test_places_come_out_as_in_one_pass(stage: Stage, cuts: tuple[int, ...]) -> None:
    compute, values = compute_of(stage), asked(stage)
    whole = compute.forward(0, values, Mode.INFER).output
    memory = compute.memory()
    outputs = [compute.extend(memory, part(values, begin, end)) for begin, end in zip((0, *cuts), cuts, strict=False)]
    assert torch.allclose(torch.cat(outputs, dim=1), whole, atol=1e-5)
    assert memory.length == CONTEXT
    assert torch.equal(compute.forward(0, values, Mode.INFER).output, whole), "the stage itself remembers nothing"


@pytest.mark.parametrize("stage", stages(), ids=lambda stage: stage.id)
def test_what_was_forgotten_leaves_no_trace(stage: Stage) -> None:
    compute, values, others = compute_of(stage), asked(stage), asked(stage, seed=2)
    memory = compute.memory()
    compute.extend(memory, part(values, 0, 5))
    compute.extend(memory, part(others, 5, 10))
    memory.back_to(4)
    again = compute.extend(memory, part(values, 4, 9))
    assert torch.allclose(again, compute.forward(0, part(values, 0, 9), Mode.INFER).output[:, 4:], atol=1e-5)
    with pytest.raises(InvariantBroken):
        memory.back_to(10)


@pytest.mark.parametrize("stage", stages(), ids=lambda stage: stage.id)
def test_a_pass_that_fails_keeps_what_was_kept(stage: Stage) -> None:
    compute, values = compute_of(stage), asked(stage)
    memory = compute.memory()
    compute.extend(memory, part(values, 0, 7))
    for wrong in (part(values, 0, 6), [np.repeat(value, 2, axis=0)[:, :1] for value in values], part(values, 0, 0)):
        with pytest.raises(RemoteFault):
            compute.extend(memory, wrong)
    assert memory.length == 7
    rest = compute.extend(memory, part(values, 7, CONTEXT))
    assert torch.allclose(rest, compute.forward(0, values, Mode.INFER).output[:, 7:], atol=1e-5)


@pytest.mark.parametrize("stage", stages(), ids=lambda stage: stage.id)
def test_the_size_is_known_before_and_never_more(stage: Stage) -> None:
    compute, values = compute_of(stage), asked(stage)
    memory = compute.memory()
    wanted = session_bytes(stage, REGISTRY)
    assert memory.num_bytes == 0
    for place in range(CONTEXT):
        compute.extend(memory, part(values, place, place + 1))
    assert memory.num_bytes == wanted


def test_what_may_mix_places_keeps_nothing() -> None:
    mixed = VNodeSpec("mixed", "reshape", {"shape": (CONTEXT, WIDTH)}, ("head",))
    reader = VNodeSpec("reader", "transformer_block", {"heads": 2}, ("mixed",), *BOTH)
    assert [session_bytes(stage, REGISTRY) is None for stage in stages([HEAD, mixed, reader])] == [False, True]
    text, vector = TensorSpec("float32", (CONTEXT, WIDTH)), TensorSpec("float32", (WIDTH,))
    concat, linear = REGISTRY.components["concat"], REGISTRY.components["linear"]
    assert [kept_per_place(concat, {"dim": dim}, [text, text]) for dim in (0, 1)] == [None, 0]
    assert [kept_per_place(linear, {"out_features": 4}, [spec]) for spec in (vector, text)] == [None, 0]
    assert kept_per_place(REGISTRY.components["flatten"], {}, [text]) is None
