"""A stage as one torch module: its stateless operations, its component, its objective, its sinks.

`skeleton` builds it on the meta device: shapes without memory. Values come from a state (`vnode.torch_compute`) or, for
checkpoint 0 alone, from
`initial_state`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dcnr.errors import DcnrError, InvalidInput, InvariantBroken, for_others
from dcnr.intervals import IntervalSet
from dcnr.specs import Registry
from dcnr.stages import FAULTY, Operation, Stage
from vnode.optimizers import Optimizer
from vnode.randomness import Draws
from vnode.state import Array, StateInfo, StateSchema, TensorSlot, serialise
from vnode.torch_layers import Keyed
from vnode.torch_memory import Memory, Remembering
from vnode.torch_objective import LocalObjective


class StageModule(nn.Module):
    """``forward(inputs)`` gives the VNode's output; parameters are named ``component.…`` and ``objective.…``."""

    def __init__(self, stage: Stage, registry: Registry) -> None:
        super().__init__()
        self.component: nn.Module = registry.components[stage.component].build(stage.config, stage.component_input_specs)
        self.objective: LocalObjective = registry.objectives[stage.objective].build(
            stage.objective_config, stage.output, stage.target, stage.num_classes
        )
        self.operations = nn.ModuleList(
            _built(operation, registry) for operation in stage.operations
        )  # in order: ids are no names of attributes
        self.sinks = nn.ModuleList(_built(operation, registry) for operation in stage.sinks)
        self._stage = stage
        stateless = zip((one.id for one in (*stage.operations, *stage.sinks)), (*self.operations, *self.sinks), strict=True)
        layers = [
            (vnode, purpose, layer)
            for vnode, root in [(stage.id, self.component), *stateless]
            for purpose, layer in root.named_modules()
        ]
        self._keyed = [(vnode, purpose, layer) for vnode, purpose, layer in layers if isinstance(layer, Keyed)]
        self._remembering = [layer for _, _, layer in layers if isinstance(layer, Remembering)]
        for vnode, purpose, layer in layers:
            if isinstance(layer, Remembering):
                layer.purpose = f"{vnode}/{purpose}"

    def key(self, seed: int, batch: int | None) -> None:
        """Sets the draws of all layers with randomness to those of this batch; None switches randomness off."""
        for vnode, purpose, layer in self._keyed:
            layer.purpose = purpose
            layer.draws = None if batch is None else Draws(seed, vnode, batch)

    def remember(self, memory: Memory | None) -> None:
        """What the next pass goes on from, and adds to; None: it stands for itself."""
        for layer in self._remembering:
            layer.memory = memory

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """The component's output for external inputs in the stage's order."""
        values = dict(zip((item.id for item in self._stage.inputs), inputs, strict=True))
        for operation, module in zip(self._stage.operations, self.operations, strict=True):
            values[operation.id] = module(*(values[name] for name in operation.inputs))
        output: Tensor = self.component(*(values[name] for name in self._stage.component_inputs))
        return output

    def run_sinks(self, output: Tensor) -> dict[str, Tensor]:
        """Outputs of the stateless VNodes that follow."""
        values = {self._stage.id: output}
        for operation, module in zip(self._stage.sinks, self.sinks, strict=True):
            values[operation.id] = module(*(values[name] for name in operation.inputs))
        return {operation.id: values[operation.id] for operation in self._stage.sinks}


def skeleton(stage: Stage, registry: Registry) -> StageModule:
    """The module on the meta device: names and shapes, no memory, no values."""
    with torch.device("meta"), _NoValues():
        return StageModule(stage, registry)


class _NoValues(TorchFunctionMode):
    """Leaves out `torch.nn.init`: drawing values for a tensor that holds none would import torch's compiler, more than a second of a worker's start."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def schema_of(stage: Stage, registry: Registry) -> StateSchema:
    """Exactly the tensors that a state of this stage holds."""
    module = skeleton(stage, registry)
    tensors: dict[str, TensorSlot] = {}
    slots = optimizer_of(stage, registry).slots()
    for name, parameter in module.named_parameters():
        tensors[f"w/{name}"] = _slot(parameter)
        for slot in slots:
            tensors[f"o/{name}/{slot}"] = _slot(parameter)
    for name, buffer in module.named_buffers():
        tensors[f"b/{name}"] = _slot(buffer)
    return StateSchema(stage.id, tensors, may_hold_centre=True)


def optimizer_of(stage: Stage, registry: Registry) -> Optimizer:
    """The stage's optimiser."""
    optimizer: Optimizer = registry.optimizers[stage.optimizer]  # type: ignore[assignment]
    return optimizer


def initial_state(
    stage: Stage,
    registry: Registry,
    *,
    seed: int,
    model: str,
    graph: str,
    num_batches: int,
    given: Mapping[str, Array] | None = None,
) -> bytes:
    """Checkpoint 0 of one VNode, a function of (stage, seed, ``given``): made once by the maintainer; PNodes only ever restore.

    ``given`` replaces what the seed gives, by the names of parameters and buffers. Raises InvalidInput (``weights_do_not_fit``; ``bad_component``: it
    cannot be built). Whether it works as well: `vnode.torch_trial`.
    """
    derived = hashlib.sha256(f"dcnr checkpoint 0\0{seed}\0{stage.id}".encode()).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(derived[:8], "little") >> 1)
        with blamed(stage):
            module = StageModule(stage, registry)
        filled(module, given or {})
    values: dict[str, Tensor] = {f"w/{name}": value for name, value in module.named_parameters()}
    values.update({f"b/{name}": value for name, value in module.named_buffers()})
    with blamed(stage):
        schema = schema_of(stage, registry)
    arrays: Mapping[str, Array] = {
        name: values[name].detach().numpy() if name in values else torch.zeros(slot.shape).numpy()
        for name, slot in schema.tensors.items()
    }
    info = StateInfo(
        vnode=stage.id,
        model=model,
        graph=graph,
        parent="",
        epoch=0,
        step=0,
        num_batches=num_batches,
        seed=seed,
        lineage=IntervalSet.empty(),
    )
    return serialise(schema, info, arrays)


@contextlib.contextmanager
def blamed(stage: Stage) -> Iterator[None]:
    """Whatever is raised inside is a fault of what the stage names, which may be from outside the tree."""
    try:
        yield
    except DcnrError:
        raise
    except Exception as error:  # somebody else's code: whoever named it is told
        raise broken(stage, for_others(error)) from error


def broken(stage: Stage, why: str) -> InvalidInput:
    """The refusal (``bad_component``) of what the stage names."""
    message = f"{stage.id}: {stage.component} with {stage.objective} does not work: {why}"
    return InvalidInput(message, code="bad_component", remedy=FAULTY, vnode=stage.id, field="component")


def filled(module: StageModule, given: Mapping[str, Array]) -> StageModule:
    """``module`` with these values of parameters and buffers, by their names. Raises InvalidInput (``weights_do_not_fit``)."""
    places = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, array in given.items():
        place = places.get(name)
        if place is None or tuple(array.shape) != tuple(place.shape) or array.dtype.name != str(place.dtype).removeprefix("torch."):
            wanted = f"{place.dtype} {list(place.shape)}" if place is not None else f"one of {', '.join(places)}"
            raise InvalidInput(f"{name} is {array.dtype} {list(array.shape)}, not {wanted}", code="weights_do_not_fit", field=name)
        with torch.no_grad():
            place.copy_(torch.from_numpy(np.array(array)))
    return module


def _slot(tensor: Tensor) -> TensorSlot:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ("float32", "int64", "uint8"):
        raise InvalidInput(f"components keep float32, int64 or uint8, not {dtype}", code="bad_component", field="component")
    return TensorSlot(dtype, tuple(tensor.shape))


def _built(operation: Operation, registry: Registry) -> nn.Module:
    module: nn.Module = registry.components[operation.component].build(operation.config, operation.input_specs)
    if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
        raise InvariantBroken(f"{operation.component!r} says it is stateless and holds tensors", code="bad_component")
    return module
