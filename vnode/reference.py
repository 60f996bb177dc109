"""One-process references for the demo and the benchmarks: the same stages trained with their local losses, or end to end by
backprop.

`train_local` does exactly what a network of single replicas does with a raw codec: `TorchCompute` per stage, batches in order.
`train_backprop` trains
the same graph on the same batches with the final objective only; the earlier exits learn on detached features, so that both
report every depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dcnr.errors import InvariantBroken
from dcnr.specs import Config, Registry
from dcnr.stages import INPUT, Stage
from vnode.state import parse
from vnode.torch_compute import TorchCompute
from vnode.torch_objective import cross_entropy
from vnode.torch_stage import StageModule, initial_state, optimizer_of, schema_of, skeleton
from vnode.vocabulary import Mode

Batches = Callable[[str, int], tuple[npt.NDArray[Any], npt.NDArray[Any]]]
"""(split, number) → (inputs, targets)."""

Seconds = Callable[[], float]
"""A clock for ``busy_s``; the entry point passes one."""

MODEL = "reference"


def no_clock() -> float:
    """For callers who measure nothing."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """One batch done.

    ``losses`` are the local losses per stage (backprop: the final one last, probes before it); ``busy_s`` the seconds per
    stage.
    """

    batch: int
    num_batches: int
    losses: tuple[float, ...]
    busy_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Exit:
    """What the network knows at one depth: mean cross-entropy in nats and the share of right predictions."""

    vnode: str
    loss: float
    accuracy: float
    count: int


class LocalReference:
    """All stages of one job in this process, each with its own state, made from the seed, and its own objective."""

    def __init__(
        self,
        stages: Sequence[Stage],
        registry: Registry,
        *,
        num_batches: int,
        seed: int,
        device: str = "cpu",
        threads: int = 0,
        clock: Seconds = no_clock,
    ) -> None:
        self.stages = tuple(stages)
        self.num_batches = num_batches
        self._clock = clock
        self.computes: list[TorchCompute] = []
        for stage in self.stages:
            compute = TorchCompute(stage, registry, num_batches=num_batches, seed=seed, device=device, threads=threads)
            compute.restore(_checkpoint_0(stage, registry, seed, num_batches))
            self.computes.append(compute)

    def train(self, batches: Batches) -> Iterator[Progress]:
        """Learns batches 0 … N−1 of the split ``train``, yielding after each."""
        for number in range(self.num_batches):
            x, y = batches("train", number)
            values: dict[str, Any] = {INPUT: x}
            losses, busy = [], []
            for stage, compute in zip(self.stages, self.computes, strict=True):
                started = self._clock()
                result = compute.learn(number, [values[item.id] for item in stage.inputs], y, number)
                busy.append(self._clock() - started)
                losses.append(result.loss)
                values[stage.id] = result.output
            yield Progress(number, self.num_batches, tuple(losses), tuple(busy))

    def evaluate(self, batches: Batches, split: str, num_batches: int) -> tuple[Exit, ...]:
        """Every exit over the first ``num_batches`` batches of ``split``."""
        return _exits(self.stages, self.computes, batches, split, num_batches)


def evaluate_states(
    stages: Sequence[Stage], registry: Registry, states: Sequence[bytes], batches: Batches, split: str, num_batches: int
) -> tuple[Exit, ...]:
    """Every exit of those states, one per stage, over the first ``num_batches`` batches of ``split``. They may be of several jobs: while one runs, the newest
    state of a VNode is its own or still that of the job before. Raises Corrupt.
    """
    computes = []
    for stage, state in zip(stages, states, strict=True):
        compute = TorchCompute(stage, registry, num_batches=0, seed=0)
        compute.serve(state)
        computes.append(compute)
    return _exits(stages, computes, batches, split, num_batches)


def _exits(
    stages: Sequence[Stage], computes: Sequence[TorchCompute], batches: Batches, split: str, num_batches: int
) -> tuple[Exit, ...]:
    tally = _Tally(stages)
    for number in range(num_batches):
        x, y = batches(split, number)
        values: dict[str, Any] = {INPUT: x}
        for stage, compute in zip(stages, computes, strict=True):
            result = compute.forward(number, [values[item.id] for item in stage.inputs], Mode.EVAL, y)
            values[stage.id] = result.output
            tally.add(stage.id, result.sum_loss, result.correct, result.count)
    return tally.exits()


class BackpropReference:
    """The same graph as one network: components learn from the last stage's objective; other heads are probes on detached features.

    ``optimizer_config`` replaces the configuration of the last stage's optimiser (for sweeps of its rate); one optimiser holds
    the network, each probe has its own.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        registry: Registry,
        *,
        num_batches: int,
        seed: int,
        optimizer_config: Config | None = None,
        threads: int = 0,
        clock: Seconds = no_clock,
    ) -> None:
        if threads:
            torch.set_num_threads(threads)
        self.stages = tuple(stages)
        self.num_batches, self._seed, self._clock = num_batches, seed, clock
        self._modules = [_module(stage, registry, seed, num_batches) for stage in self.stages]
        config = self.stages[-1].optimizer_config if optimizer_config is None else optimizer_config
        optimizer = optimizer_of(self.stages[-1], registry)
        optimizer.check(config)
        self._schedule, self._update = optimizer.schedule(config), optimizer.build(config)
        heads: list[list[Tensor]] = [list(module.objective.parameters()) for module in self._modules]
        body = [parameter for module in self._modules for parameter in module.component.parameters()]
        self._groups: list[list[Tensor]] = [[*body, *heads[-1]], *heads[:-1]]
        self._slots = [{slot: [torch.zeros_like(p) for p in group] for slot in optimizer.slots()} for group in self._groups]

    def train(self, batches: Batches) -> Iterator[Progress]:
        """Learns batches 0 … N−1 of the split ``train``, yielding after each. Raises InvariantBroken if it diverges."""
        for number in range(self.num_batches):
            started = self._clock()
            x, y = batches("train", number)
            outputs, target = self._outputs(number, x, learning=True), torch.from_numpy(np.asarray(y)).long()
            losses: list[Tensor] = []
            for index, module in enumerate(self._modules):
                last = index == len(self._modules) - 1
                losses.append(module.objective.local_loss(outputs[index] if last else outputs[index].detach(), (), target))
            self._step(torch.stack(losses).sum(), number)
            values = tuple(float(loss.detach()) for loss in losses)
            if not np.isfinite(values).all():
                raise InvariantBroken("backprop diverged", code="not_finite")
            yield Progress(number, self.num_batches, values, (self._clock() - started,))

    def evaluate(self, batches: Batches, split: str, num_batches: int) -> tuple[Exit, ...]:
        """Every exit over the first ``num_batches`` batches of ``split``."""
        tally = _Tally(self.stages)
        with torch.no_grad():
            for number in range(num_batches):
                x, y = batches(split, number)
                target = torch.from_numpy(np.asarray(y)).long()
                outputs = self._outputs(number, x, learning=False)
                for stage, module, output in zip(self.stages, self._modules, outputs, strict=True):
                    logits = module.objective.readout(output)
                    correct = int((logits.argmax(dim=-1) == target).sum())
                    tally.add(stage.id, float(cross_entropy(logits, target)) * target.numel(), correct, target.numel())
        return tally.exits()

    def _step(self, loss: Tensor, number: int) -> None:
        """The network and each probe are updated apart: clipping the one must not depend on the others."""
        parameters = [parameter for group in self._groups for parameter in group]
        gradients = iter(torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True))
        rate = self._schedule.rate(number, self.num_batches)
        with torch.no_grad():
            for group, slots in zip(self._groups, self._slots, strict=True):
                self._update(group, [next(gradients).contiguous() for _ in group], slots, rate, number)

    def _outputs(self, number: int, x: npt.NDArray[Any], *, learning: bool) -> list[Tensor]:
        values: dict[str, Tensor] = {INPUT: torch.from_numpy(np.asarray(x))}
        for stage, module in zip(self.stages, self._modules, strict=True):
            module.train(learning)
            module.key(self._seed, number if learning else None)
            values[stage.id] = module([values[item.id] for item in stage.inputs])
        return [values[stage.id] for stage in self.stages]


class _Tally:
    def __init__(self, stages: Sequence[Stage]) -> None:
        self._sums = {stage.id: (0.0, 0, 0) for stage in stages}

    def add(self, vnode: str, sum_loss: float, correct: int, count: int) -> None:
        old = self._sums[vnode]
        self._sums[vnode] = (old[0] + sum_loss, old[1] + correct, old[2] + count)

    def exits(self) -> tuple[Exit, ...]:
        return tuple(
            Exit(vnode, loss / max(count, 1), right / max(count, 1), count) for vnode, (loss, right, count) in self._sums.items()
        )


def train_local(
    stages: Sequence[Stage],
    registry: Registry,
    batches: Batches,
    *,
    num_batches: int,
    seed: int,
    split: str,
    num_eval_batches: int,
    threads: int = 0,
    watch: Callable[[Progress], None] = lambda progress: None,
    clock: Seconds = no_clock,
) -> tuple[Exit, ...]:
    """Trains with local losses from checkpoint 0 and evaluates every exit on ``split``."""
    reference = LocalReference(stages, registry, num_batches=num_batches, seed=seed, threads=threads, clock=clock)
    for progress in reference.train(batches):
        watch(progress)
    return reference.evaluate(batches, split, num_eval_batches)


def train_backprop(
    stages: Sequence[Stage],
    registry: Registry,
    batches: Batches,
    *,
    num_batches: int,
    seed: int,
    split: str,
    num_eval_batches: int,
    optimizer_config: Config | None = None,
    threads: int = 0,
    watch: Callable[[Progress], None] = lambda progress: None,
    clock: Seconds = no_clock,
) -> tuple[Exit, ...]:
    """Trains the same graph end to end on the same batches and evaluates every exit on ``split``."""
    reference = BackpropReference(
        stages, registry, num_batches=num_batches, seed=seed, optimizer_config=optimizer_config, threads=threads, clock=clock
    )
    for progress in reference.train(batches):
        watch(progress)
    return reference.evaluate(batches, split, num_eval_batches)


def _checkpoint_0(stage: Stage, registry: Registry, seed: int, num_batches: int) -> bytes:
    return initial_state(stage, registry, seed=seed, model=MODEL, graph="", num_batches=num_batches)


def _module(stage: Stage, registry: Registry, seed: int, num_batches: int) -> StageModule:
    """The stage with the values of checkpoint 0."""
    _, arrays = parse(_checkpoint_0(stage, registry, seed, num_batches), schema_of(stage, registry))
    module = skeleton(stage, registry)
    module.load_state_dict(
        {name[2:]: torch.tensor(array) for name, array in arrays.items() if name[:2] in ("w/", "b/")}, strict=True, assign=True
    )
    return module
