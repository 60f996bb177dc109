"""Goal: what is wrong with a component from outside the tree is told before a job is signed, in words that its author can act on; what is right passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dcnr.errors import InvalidInput
from dcnr.specs import ComponentPlan, TensorSpec
from dcnr.stages import VNodeSpec, stages_of
from vnode.registry import default_registry
from vnode.torch_layers import KeyedDropout
from vnode.torch_trial import FREE_BUFFER_BYTES, tried_state

WIDTH = 3
NUM_PARAMETERS = WIDTH * WIDTH + WIDTH
NUM_BATCHES = 4


class Linear(nn.Module):
    """What each mistake begins with: it has none."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        return self.map(x)


class ChangesItsInput(Linear):
    def forward(self, x: Tensor) -> Any:
        return self.map(nn.functional.relu(x, inplace=True))


class DrawsOfItsOwn(Linear):
    def forward(self, x: Tensor) -> Any:
        return self.map(x) + torch.randn_like(x)


class Counts(Linear):
    count = 0

    def forward(self, x: Tensor) -> Any:
        self.count += 1
        return self.map(x) * self.count


class Divides(Linear):
    def forward(self, x: Tensor) -> Any:
        return self.map(x) / 0


class CutsItselfOff(Linear):
    def forward(self, x: Tensor) -> Any:
        return self.map(x).detach()


class GivesTwo(Linear):
    def forward(self, x: Tensor) -> Any:
        return self.map(x), x


class MixesSamples(Linear):
    def forward(self, x: Tensor) -> Any:
        return self.map(x).mean(0)


class FailsWhileItLearns(Linear):
    def forward(self, x: Tensor) -> Any:
        return torch.from_numpy(self.map(x).numpy())


class Tied(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.back = nn.Linear(WIDTH, WIDTH, bias=False)
        self.back.weight = self.map.weight


class KeepsATensor(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(WIDTH)


class KeepsABuffer(Linear):
    def __init__(self, size: int = WIDTH, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(size), persistent=persistent)


class CountsInABuffer(KeepsABuffer):
    def forward(self, x: Tensor) -> Any:
        self.scale += 1
        return self.map(x) * self.scale


@dataclass(frozen=True)
class Spec:
    """A component as its author declares it."""

    module: Any
    num_parameters: int = NUM_PARAMETERS
    name: str = "mine"
    stateful: bool = True

    def check(self, config: Any, inputs: Any) -> ComponentPlan:
        return ComponentPlan(inputs[0], self.num_parameters)

    def build(self, config: Any, inputs: Any) -> Any:
        return self.module()


def tried(spec: Spec) -> None:
    ours = default_registry()
    registry = replace(ours, components={**ours.components, spec.name: spec})
    vnode = VNodeSpec("a", "mine", {}, ("input",), "local_ce", {}, "sgd", {"lr": 0.1})
    (stage,) = stages_of([vnode], registry, TensorSpec("float32", (WIDTH,)), TensorSpec("int64", ()), 2)
    tried_state(stage, registry, seed=0, model="m", graph="", num_batches=NUM_BATCHES)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (Spec(Linear, NUM_PARAMETERS - 1), "holds 12 numbers, and its check() declares num_parameters = 11"),
        (Spec(lambda: KeepsABuffer(FREE_BUFFER_BYTES)), "declares num_parameters = 12"),
        (Spec(ChangesItsInput), "changes its input in place"),
        (Spec(DrawsOfItsOwn), "what it draws must come from the draws"),
        (Spec(Counts), "what it keeps must be a parameter or a buffer"),
        (Spec(Divides), "not finite"),
        (Spec(CutsItselfOff), "no gradient reaches its weights"),
        (Spec(lambda: Linear().requires_grad_(False)), "no gradient reaches its weights"),
        (Spec(GivesTwo), "a tuple, not a tensor"),
        (Spec(MixesSamples), "its output for 2 samples is [3], and check() says [3] for each"),
        (Spec(FailsWhileItLearns), "RuntimeError"),
        (Spec(Tied), "component.map.weight and component.back.weight are one tensor"),
        (Spec(KeepsATensor), "scale is neither a parameter nor a persistent buffer"),
        (Spec(lambda: KeepsABuffer(persistent=False)), "scale is neither a parameter nor a persistent buffer"),
    ],
)
def test_a_mistake_is_told_before_anything_is_signed(spec: Spec, told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        tried(spec)
    assert caught.value.code == "bad_component"
    assert told in caught.value.message
    assert caught.value.remedy


def test_what_keeps_to_the_rules_passes() -> None:
    """Also running statistics, statistics of its own, and draws that belong to the batch."""
    tried(Spec(Linear))
    tried(Spec(CountsInABuffer))
    tried(Spec(lambda: nn.Sequential(Linear(), nn.BatchNorm1d(WIDTH), KeyedDropout(0.5)), NUM_PARAMETERS + 2 * WIDTH))


def test_nothing_outside_is_changed_by_a_trial() -> None:
    """Nor by one that finds a mistake."""
    torch.manual_seed(7)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    tried(Spec(Linear))
    with pytest.raises(InvalidInput):
        tried(Spec(DrawsOfItsOwn))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def node(name: str, component: str, reads: str, objective: str = "", **config: Any) -> VNodeSpec:
    optimizer = "adamw" if objective else ""
    return VNodeSpec(name, component, config, (reads,), objective, {}, optimizer, {"lr": 0.1} if objective else {})


FLOATS, TEXTS = TensorSpec("float32", (1, 6, 6)), TensorSpec("uint8", (8,))


@pytest.mark.parametrize(
    ("given", "target", "vnodes"),
    [
        (
            FLOATS,
            TensorSpec("int64", ()),
            [
                node("shift", "random_shift", "input", pixels=1),
                node("a", "conv_block", "shift", "predsim", out_channels=4, dropout=0.3, pool=2),
                node("drop", "dropout", "a", dropout=0.5),
                node("b", "conv_block", "drop", "local_ce", out_channels=4, kernel=3, stride=3),
                node("sink", "flatten", "b"),
            ],
        ),
        (
            TEXTS,
            TensorSpec("uint8", (8,)),
            [
                node("a", "byte_embedding", "input", "local_ce", width=8, blocks=1, heads=2, dropout=0.3),
                node("b", "transformer_block", "a", "local_ce", heads=2, dropout=0.3),
                node("c", "linear_block", "b", "local_ce", dropout=0.3),
            ],
        ),
    ],
)
def test_our_own_components_pass(given: TensorSpec, target: TensorSpec, vnodes: list[VNodeSpec]) -> None:
    registry = default_registry()
    for stage in stages_of(vnodes, registry, given, target, 256):
        tried_state(stage, registry, seed=0, model="m", graph="", num_batches=NUM_BATCHES)
