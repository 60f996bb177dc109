"""The maths of a worker that cheats: `vnode.torch_compute.TorchCompute` with one of `examples.byzantine.behaviours` inside. Its claims look like anybody's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dcnr.specs import Registry
from dcnr.stages import Stage
from examples.byzantine.behaviours import Behaviour, Past
from vnode.compute import StepResult
from vnode.torch_compute import TorchCompute


class CheatingCompute(TorchCompute):
    """Learns ``num_steps`` batches after it was made, cheating where ``behaviour`` says."""

    def __init__(
        self, stage: Stage, registry: Registry, behaviour: Behaviour, *, num_batches: int, seed: int, num_steps: int, device: str = "cpu", threads: int = 0,
        whole_anchors: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            stage, registry, num_batches=num_batches, seed=seed, device=device, threads=threads, whole_anchors=whole_anchors
        )
        self._behaviour, self._num_steps = behaviour, num_steps
        self._honest_update, self._update = self._update, self._cheating_update
        self._index = 0
        self._past = Past()
        self._now: list[Tensor] = []
        self._before: list[Tensor] = []
        """Weights of this step and of the one before it."""

    @property
    def num_cheated(self) -> int:
        """Steps so far in which it cheated."""
        return sum(self._behaviour.when(index, self._num_steps) for index in range(self._index))

    def learn(self, batch: int, inputs: Sequence[Any], target: Any, num_learned: int) -> StepResult:
        """A step, honest or not."""
        behaviour = self._behaviour
        self._now = [parameter.detach().clone() for parameter in self._parameters]
        given, y = [self._as_tensor(value) for value in inputs], self._as_tensor(target)
        if self._cheats:
            given, y = [behaviour.batch(value) for value in given], behaviour.batch(y)
            if behaviour.is_stale and self._before:
                self._set_weights(self._before)
        result = super().learn(batch, given, y, num_learned)
        output = behaviour.output(result.output, self._past) if self._cheats else result.output
        self._past = replace(self._past, output=result.output)
        self._before, self._index = self._now, self._index + 1
        return replace(result, output=output)

    @property
    def _cheats(self) -> bool:
        return self._behaviour.when(self._index, self._num_steps)

    def _set_weights(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self._parameters, values, strict=True):
                parameter.copy_(value)

    def _cheating_update(self, parameters: Any, gradients: Any, slots: Any, lr: float, updates: int) -> None:
        self._set_weights(self._now)
        honest = tuple(gradient.clone() for gradient in gradients)
        used = self._behaviour.gradients(honest, self._past) if self._cheats else honest
        self._past = replace(self._past, gradients=honest)
        if used is not None:
            self._honest_update(parameters, used, slots, lr, updates)
