"""The referee of a dispute: each step alone, in float64, from the worker's own state before it to its own state after it.

It needs nothing but what the worker is bound to, so no drift of machines can be an excuse: what is left is the rounding of one step. The first entry over
its tolerance decides who is right.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dcnr.errors import Corrupt, InvariantBroken
from dcnr.specs import Registry
from dcnr.stages import Stage
from trust.comparison import Comparison
from vnode.checks import residuals
from vnode.checks.claims import Claim, ClaimedStep
from vnode.checks.replay import lineage_residual
from vnode.checks.tolerances import Tolerances
from vnode.state import Array, StateInfo, parse
from vnode.torch_stage import StageModule, optimizer_of, schema_of, skeleton
from vnode.vocabulary import Mode


class Referee:
    """Judges claims about ``stage`` that hold the state before every entry and after the last."""

    def __init__(self, stage: Stage, registry: Registry, *, num_batches: int, seed: int) -> None:
        self._stage, self._registry, self._num_batches, self._seed = stage, registry, num_batches, seed
        self._schema = schema_of(stage, registry)
        optimizer = optimizer_of(stage, registry)
        self._schedule = optimizer.schedule(stage.optimizer_config)
        self._update = optimizer.build(stage.optimizer_config)
        self._slot_names = optimizer.slots()

    def check(self, claim: Claim, tolerances: Tolerances) -> Iterator[Comparison]:
        """Every step. Raises Corrupt where the form of the claim does not hold or a state is missing or none of this stage."""
        claim.check()
        claim.check_is_alone()
        if len(claim.states) != len(claim.steps) + 1:
            raise Corrupt("a referee needs the state before every entry", code="bad_claim")
        after, arrays_after = parse(claim.states[0], self._schema)
        for index, step in enumerate(claim.steps):
            before, arrays = after, arrays_after
            if len(before.lineage) != step.num_learned:
                raise Corrupt("a state does not hold as many batches as its entry says", code="bad_claim")
            after, arrays_after = parse(claim.states[index + 1], self._schema)
            try:
                found = yield from self._step(index, step, before, arrays, tolerances)
            except InvariantBroken as error:
                if error.code != "not_finite":
                    raise
                yield tolerances.comparison(index, "loss", math.inf)
                return
            yield tolerances.comparison(index, "lineage", lineage_residual(before, after, (step,)))
            for item in residuals.state_residuals(arrays, arrays_after, found, 1):
                yield tolerances.comparison(index, item.part, item.residual, item.name)

    def _step(
        self, index: int, step: ClaimedStep, info: StateInfo, arrays: Mapping[str, Array], tolerances: Tolerances
    ) -> Generator[Comparison, None, dict[str, Array]]:
        """Compares what the step said; the state that should follow is what this generator returns."""
        module = self._module(arrays)
        learning = step.mode is Mode.TRAIN
        inputs, target = step.data()
        tensors = [_wide(value) for value in inputs]
        module.train(True)
        module.key(self._seed, step.batch)
        with torch.set_grad_enabled(learning):
            output = module(tensors)
            loss = module.objective.step(output, tensors, torch.tensor(target).long())[0] if learning else None
        for sent, codec in step.sent:
            yield tolerances.comparison(index, "output", residuals.output_residual(sent, output.detach().numpy(), codec))
        if loss is None:
            return dict(arrays)
        lr = self._schedule.rate(step.num_learned, self._num_batches)
        yield tolerances.comparison(index, "rate", residuals.rate_residual(step.lr, lr))
        yield tolerances.comparison(index, "loss", residuals.loss_residual(step.loss, float(loss.detach())))
        return self._updated(module, loss, arrays, lr, info.updates)

    def _module(self, arrays: Mapping[str, Array]) -> StageModule:
        module = skeleton(self._stage, self._registry)
        values = {name[2:]: _wide(array) for name, array in arrays.items() if name[:2] in ("w/", "b/")}
        module.load_state_dict(values, strict=True, assign=True)
        return module

    def _updated(self, module: StageModule, loss: Tensor, arrays: Mapping[str, Array], lr: float, updates: int) -> dict[str, Array]:
        named = dict(module.named_parameters())
        parameters: Sequence[Tensor] = list(named.values())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        slots = {slot: [_wide(arrays[f"o/{name}/{slot}"]) for name in named] for slot in self._slot_names}
        with torch.no_grad():
            self._update(parameters, [gradient.contiguous() for gradient in gradients], slots, lr, updates)
        found: dict[str, Array] = {f"w/{name}": value.detach().numpy() for name, value in named.items()}
        found.update({f"b/{name}": buffer.numpy() for name, buffer in module.named_buffers()})
        found.update({name: array for name, array in arrays.items() if name.startswith("m/")})  # no step moves the centre of merges
        for slot, values in slots.items():
            found.update({f"o/{name}/{slot}": value.numpy() for name, value in zip(named, values, strict=True)})
        return found


def _wide(array: Array) -> Tensor:
    """A copy in float64; integers as they are."""
    return torch.tensor(array, dtype=torch.float64) if np.asarray(array).dtype.kind == "f" else torch.tensor(array)
