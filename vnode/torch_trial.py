"""What a stage names is tried before a job is signed: a PNode's first steps with two samples, on the machine of whoever signs.

A component from outside the tree may be wrong in any way, and what is wrong with it shows on every PNode alike, one after the other, where its maintainer
hears nothing of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from dcnr.errors import InvariantBroken
from dcnr.limits import MIB
from dcnr.specs import Registry, least_batch
from dcnr.stages import Stage
from vnode.costs import FLOAT_BYTES
from vnode.state import Array
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import StageModule, blamed, broken, initial_state, skeleton
from vnode.vocabulary import Mode

SAMPLES: Final = 2
FREE_BUFFER_BYTES: Final = 1 * MIB
"""Running statistics and the like, which nobody has to declare."""
_SEEDS: Final = (1, 2)
"""Of torch's own generator in the two runs that are compared: nothing may depend on it."""


def tried_state(
    stage: Stage,
    registry: Registry,
    *,
    seed: int,
    model: str,
    graph: str,
    num_batches: int,
    given: Mapping[str, Array] | None = None,
) -> bytes:
    """Checkpoint 0 as `vnode.torch_stage.initial_state` makes it, of a stage that was tried.

    Raises InvalidInput: ``weights_do_not_fit``; ``bad_component`` with the reason.
    """
    state = initial_state(stage, registry, seed=seed, model=model, graph=graph, num_batches=num_batches, given=given)
    with torch.random.fork_rng(devices=[]), _one_thread(), blamed(stage):
        _check_tensors(stage, registry)
        try:
            _Trial(stage, registry, num_batches, seed, state, _inputs(stage, registry)).check()
        except InvariantBroken as error:  # of a PNode's own checks: a loss or an output that is not finite
            raise broken(stage, error.message) from error
    return state


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Threads that share so little work wait for each other: on a busy machine that took ten times as long as the trial."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _inputs(stage: Stage, registry: Registry) -> list[Tensor]:
    """Values as data have them, above zero and below one: what divides by them, or takes their logarithm, works with most data."""
    count = max(SAMPLES, least_batch(registry.components[stage.component], stage.config, stage.component_input_specs))
    rng = np.random.default_rng(0)
    shapes = [((count, *item.spec.shape), item.spec.dtype) for item in stage.inputs]
    return [
        torch.from_numpy((rng.uniform(0.05, 0.95, shape) if dtype.startswith("float") else rng.integers(0, 2, shape)).astype(dtype))
        for shape, dtype in shapes
    ]


def _check_tensors(stage: Stage, registry: Registry) -> None:
    """They are as a checkpoint holds them, and no more than were declared: memory is planned and lent by what is declared."""
    module = skeleton(stage, registry)
    names: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(parameter), name)
        if first != name:
            raise broken(stage, f"{first} and {name} are one tensor; keep it once, and use it twice in forward()")
    loose = sorted(key for part in module.modules() for key, value in vars(part).items() if isinstance(value, Tensor))
    lost = [*loose, *sorted(dict(module.named_buffers()).keys() - module.state_dict().keys())]
    if lost:
        raise broken(
            stage, f"{lost[0]} is neither a parameter nor a persistent buffer: PNodes have nothing but what a checkpoint holds"
        )
    component = registry.components[stage.component].check(stage.config, stage.component_input_specs)
    objective = registry.objectives[stage.objective].check(stage.objective_config, stage.output, stage.target, stage.num_classes)
    for name, part, declared in (
        (stage.component, module.component, component.num_parameters),
        (stage.objective, module.objective, objective.num_parameters),
    ):
        held = _held(part)
        if held > declared:
            raise broken(
                stage,
                f"{name} holds {held} numbers, and its check() declares num_parameters = {declared}, by which memory is planned",
            )


def _held(module: nn.Module) -> int:
    """Numbers in parameters, and in buffers beyond what is free."""
    buffer_bytes = sum(buffer.numel() * buffer.element_size() for buffer in module.buffers())
    return sum(one.numel() for one in module.parameters()) + max(0, buffer_bytes - FREE_BUFFER_BYTES) // FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class _Trial:
    stage: Stage
    registry: Registry
    num_batches: int
    seed: int
    state: bytes
    inputs: Sequence[Tensor]

    def check(self) -> None:
        """One replica learns twice; another goes on from its checkpoint in between, and has to come to the same. Raises InvalidInput."""
        one = self._replica(self.state, 0)
        self._judge(one)
        info = one.restore(self.state)
        self._learned(one, 0)
        between = one.snapshot(info)
        went_on = self._learned(one, 1)
        resumed = self._learned(self._replica(between, 1), 1)
        if not np.allclose(went_on, resumed, rtol=1e-3, atol=1e-5):
            raise broken(
                self.stage,
                "who goes on from a checkpoint computes something else than who did not stop: what it keeps must be a parameter or a buffer, "
                "and what it draws must come from the draws of a vnode.torch_layers.Keyed",
            )

    def _replica(self, state: bytes, run: int) -> TorchCompute:
        torch.manual_seed(_SEEDS[run])
        compute = TorchCompute(self.stage, self.registry, num_batches=self.num_batches, seed=self.seed)
        compute.restore(state)
        return compute

    def _learned(self, compute: TorchCompute, batch: int) -> Array:
        """Output and loss of one step."""
        result = compute.learn(batch, self.inputs, self._target(), batch)
        return np.append(result.output.numpy(), result.loss)

    def _judge(self, compute: TorchCompute) -> None:
        """What comes out has the shape that was declared, inputs stay as they are, learning reaches the weights, and all works without learning."""
        module = compute.part("")
        assert isinstance(module, StageModule)
        module.train()
        module.key(self.seed, 0)
        with torch.enable_grad():
            output: object = module(self.inputs)
        if not isinstance(output, Tensor):
            raise broken(self.stage, f"forward() gives a {type(output).__name__}, not a tensor")
        count, wanted, dtype = len(self.inputs[0]), list(self.stage.output.shape), str(output.dtype).removeprefix("torch.")
        if dtype != self.stage.output.dtype:
            raise broken(self.stage, f"its output is {dtype}, and check() says {self.stage.output.dtype}")
        if list(output.shape) != [count, *wanted]:
            raise broken(self.stage, f"its output for {count} samples is {list(output.shape)}, and check() says {wanted} for each")
        if any(one._version for one in self.inputs):  # torch counts what is done in place
            raise broken(self.stage, "it changes its input in place, which others read too")
        if not output.requires_grad and any(True for _ in compute.part("component").parameters()):
            raise broken(self.stage, "no gradient reaches its weights: its output does not depend on them, or is cut off from them")
        compute.forward(0, self.inputs, Mode.EVAL, self._target())

    def _target(self) -> Tensor:
        return torch.zeros((len(self.inputs[0]), *self.stage.target.shape), dtype=torch.int64)
