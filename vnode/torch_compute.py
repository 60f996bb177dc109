"""`vnode.compute.Compute` with torch: one VNode's forward pass, local step and state, on one device, in float32.

Nothing flows back: inputs are detached, outputs carry no graph, gradients exist only inside `learn`. A call that fails leaves weights, optimiser slots and
running statistics as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dcnr.errors import Corrupt, InvariantBroken, Refused, RemoteFault
from dcnr.limits import MAX_OBJECT_BYTES
from dcnr.specs import Registry
from dcnr.stages import Stage
from vnode.clipping import Centre, begun
from vnode.compute import EvalResult, StepResult
from vnode.state import DISTANCES, Array, StateInfo, StateSchema, anchor_schema, counted, parse, serialise
from vnode.torch_inputs import check_inputs, check_output, is_finite
from vnode.torch_memory import Memory
from vnode.torch_merging import DeltaValues, Merged, decode, measured, outer_step
from vnode.torch_objective import cross_entropy
from vnode.torch_stage import StageModule, optimizer_of, schema_of, skeleton
from vnode.vocabulary import Mode


class TorchCompute:
    """The maths of one replica of ``stage``. Computes nothing before `restore`. ``threads`` 0 leaves torch's setting; it holds for the process."""

    ROOM = 1.0
    """How far above the bound of what another stage may send its values may lie."""

    def __init__(
        self,
        stage: Stage,
        registry: Registry,
        *,
        num_batches: int,
        seed: int,
        device: str = "cpu",
        threads: int = 0,
        whole_anchors: bool = False,
    ) -> None:
        if threads:
            torch.set_num_threads(threads)
        self._stage, self._registry = stage, registry
        self._num_batches, self._seed = num_batches, seed
        self._device = torch.device(device)
        self._schema = schema_of(stage, registry)
        self._whole_anchors = whole_anchors
        self._anchor_schema = self._schema if whole_anchors else anchor_schema(self._schema)
        optimizer = optimizer_of(stage, registry)
        self._schedule = optimizer.schedule(stage.optimizer_config)
        self._update = optimizer.build(stage.optimizer_config)
        self._slot_names = optimizer.slots()
        self._module: StageModule | None = None
        self._names: list[str] = []
        self._parameters: list[Tensor] = []
        self._slots: dict[str, list[Tensor]] = {}
        self._updates = 0
        self._base: list[Tensor] | None = None
        self._centre: Centre | None = None

    def restore(self, state: bytes | memoryview | Path) -> StateInfo:
        """Takes over a state of this stage and job. Raises Corrupt; on an error the former state stays."""
        info, arrays = self._parsed(_whole(state), self._schema)
        module = self._filled(arrays)
        named = dict(module.named_parameters())
        self._names = list(named)
        self._parameters = list(named.values())
        self._take_slots(info, arrays)
        self._module, self._base = module, None
        return info

    def serve(self, state: bytes | memoryview | Path) -> StateInfo:
        """Takes over weights and running statistics of a state of this stage, of whichever job: for INFER, EVAL and `readout` only. Raises Corrupt."""
        info, arrays = parse(_whole(state), self._schema)
        self._module = self._filled(arrays)
        return info

    def _filled(self, arrays: Mapping[str, Array]) -> StageModule:
        module = skeleton(self._stage, self._registry)
        values = {name[2:]: self._tensor(array) for name, array in arrays.items() if name[:2] in ("w/", "b/")}
        module.load_state_dict(values, strict=True, assign=True)
        return module

    def learn(self, batch: int, inputs: Sequence[Any], target: Any, num_learned: int) -> StepResult:
        """One local step. The output is that of the weights before it."""
        module = self._ready()
        tensors = self._inputs(inputs, Mode.TRAIN)
        y = self._target(target, len(tensors[0]))
        lr = self._schedule.rate(num_learned, self._num_batches)
        with self._statistics(module) as keep:
            self._set(module, batch, Mode.TRAIN)
            with torch.enable_grad():
                output = module(tensors)
                loss, logits = module.objective.step(output, tensors, y)
            value = float(loss.detach())
            if not np.isfinite(value):
                raise InvariantBroken("the local loss is not finite: the batch is skipped", code="not_finite", vnode=self._stage.id)
            check_output(output.detach(), self._stage.id)
            gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
            with torch.no_grad():
                contiguous = [gradient.contiguous() for gradient in gradients]
                self._update(self._parameters, contiguous, self._slots, lr, self._updates)
            self._updates = counted(self._updates)
            keep()
        correct, count = _correct(logits.detach(), y)
        return StepResult(output.detach(), value, len(tensors[0]), correct, count, lr)

    def forward(self, batch: int, inputs: Sequence[Any], mode: Mode, target: Any | None = None) -> EvalResult:
        """FORWARD_ONLY, EVAL or INFER. Raises InvariantBroken for TRAIN."""
        if mode is Mode.TRAIN:
            raise InvariantBroken("TRAIN frames are learned, not forwarded", code="bad_mode")
        module = self._ready()
        tensors = self._inputs(inputs, mode)
        with self._statistics(module), torch.no_grad():
            self._set(module, batch, mode)
            output = module(tensors)
            sinks = module.run_sinks(output)
            if mode is Mode.FORWARD_ONLY:
                check_output(output, self._stage.id)
            elif not is_finite(output):
                raise InvariantBroken("the output is not finite", code="not_finite", vnode=self._stage.id)
            if target is None:
                return EvalResult(output, 0.0, 0, 0, sinks)
            y = self._target(target, len(tensors[0]))
            logits = module.objective.readout(output)
            correct, count = _correct(logits, y)
            return EvalResult(output, float(cross_entropy(logits, y)) * count, correct, count, sinks)

    def memory(self) -> Memory:
        """Of one sequence that is to come."""
        return Memory(self._stage.output.shape[0])

    def extend(self, memory: Memory, inputs: Sequence[Any]) -> Tensor:
        """INFER of the places of one sequence that follow those in ``memory``, which has them, too, afterwards; on an error it has what it had.

        For stages that `vnode.costs.session_bytes` knows. Raises RemoteFault for more than one sequence, or more places than the stage takes.
        """
        module = self._ready()
        tensors = self._inputs(inputs, Mode.INFER)
        count = tensors[0].shape[1]
        if len(tensors[0]) != 1 or any(tensor.shape[1] != count for tensor in tensors) or memory.length + count > memory.context:
            raise RemoteFault(
                f"{count} places of {len(tensors[0])} sequences after {memory.length}; there is room for one of {memory.context}",
                code="bad_frame", vnode=self._stage.id,
            )  # fmt: skip
        with self._statistics(module), torch.no_grad():
            self._set(module, 0, Mode.INFER)
            module.remember(memory)
            try:
                output: Tensor = module(tensors)
            finally:
                module.remember(None)
            if not is_finite(output):
                raise InvariantBroken("the output is not finite", code="not_finite", vnode=self._stage.id)
        memory.advance(count)
        return output

    def readout(self, output: Any) -> Tensor:
        """Logits of this VNode's own head."""
        module = self._ready()
        with torch.no_grad():
            self._set(module, 0, Mode.INFER)
            return module.objective.readout(self._as_tensor(output))

    def part(self, name: str) -> torch.nn.Module:
        """A part of the restored stage's module, to look on while it computes."""
        return self._ready().get_submodule(name)

    def snapshot(self, info: StateInfo) -> bytes:
        """The whole state. ``info.updates`` is replaced by this adapter's own count."""
        tensors = self._weights_and_buffers()
        if self._centre is not None:
            tensors[DISTANCES] = _array(self._centre.distances)
            tensors.update({f"m/{name}": _array(value) for name, value in self._centre.moved.items()})
        for index, name in enumerate(self._names):
            for slot, values in self._slots.items():
                tensors[f"o/{name}/{slot}"] = _array(values[index])
        return serialise(self._schema, replace(info, updates=self._updates), tensors)

    # ---- several replicas of one VNode ------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """What is learned from here on lies above the weights as they are now."""
        self._ready()
        self._base = [value.detach().clone() for value in self._parameters]

    def lead(self) -> None:
        """The state stays as it is; what `rebase` would need is let go."""
        self._base = None

    def anchor(self, info: StateInfo) -> bytes:
        """Weights and running statistics with their lineage. ``info.updates`` is 0: there are no optimiser slots. Or the whole state."""
        if self._whole_anchors:
            return self.snapshot(info)
        return serialise(self._anchor_schema, replace(info, updates=0), self._weights_and_buffers())

    def check_anchor(self, anchor: bytes) -> StateInfo:
        """What an anchor says about itself. Raises Corrupt."""
        return self._parsed(anchor, self._anchor_schema)[0]

    def delta(self, codec: str, anchor: bytes, *, is_late: bool = False) -> bytes:
        """How far the weights are from ``anchor`` or the base; they are that anchor then. What the codec lost stays on top, unless it is a whole state."""
        buffers, base = {name: _array(buffer) for name, buffer in self._ready().named_buffers()}, self._based()
        info, arrays = self._parsed(anchor, self._anchor_schema)
        own = dict(zip(self._names, map(_array, self._parameters), strict=True))
        begun = {f"w/{name}": _array(value) for name, value in zip(self._names, base, strict=True)}
        data, rest = measured(own, buffers, begun if is_late else arrays, codec, self._schema)
        self._stand(info, arrays, {} if self._whole_anchors else {name: self._tensor(value) for name, value in rest.items()}, {})
        return data

    def check_delta(self, data: bytes, codec: str) -> DeltaValues:
        """A delta of this stage, decoded. Raises Corrupt and InvalidInput."""
        return decode(data, codec, self._schema)

    def rebase(self, anchor: bytes, *, keep_after: bool, taken_back: DeltaValues | None = None, share: float = 0.0) -> StateInfo:
        """Weights on a new anchor; running statistics are the anchor's unless what was learned after the open delta is kept."""
        module, base = self._ready(), self._based()
        info, arrays = self._parsed(anchor, self._anchor_schema)
        top: dict[str, Tensor] = {}
        if keep_after:
            top = {name: value.detach() - begun for name, value, begun in zip(self._names, self._parameters, base, strict=True)}
        for name, moved in taken_back.weights.items() if taken_back is not None else ():
            part = share * self._tensor(moved)
            top[name] = top[name] + part if name in top else part
        self._stand(info, arrays, top, {name: buffer.clone() for name, buffer in module.named_buffers()} if keep_after else {})
        return info

    def _stand(
        self, info: StateInfo, arrays: Mapping[str, Array], top: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> None:
        """On that anchor, with what is on top of its weights, and these running statistics or its own."""
        anchor = {name: self._tensor(array) for name, array in arrays.items() if name[:2] in ("w/", "b/")}
        self._base = [anchor[f"w/{name}"] for name in self._names]
        weights = {name: value + top[name] if name in top else value for name, value in zip(self._names, self._base, strict=True)}
        own = {name[2:]: value for name, value in anchor.items() if name[:2] == "b/"}
        self._take_over(self._ready(), Merged(weights, own | {**buffers}))
        if self._whole_anchors:
            self._take_slots(info, arrays)

    def merge(
        self, deltas: Sequence[DeltaValues], num_batches: Sequence[int], shares: Sequence[float], *, centred: bool = False,
        bears: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """The outer step for each delta in turn (`vnode.torch_merging.outer_step`); all of them or none, also where ``bears`` raises."""
        module = self._ready()
        with torch.no_grad():
            weights = {name: value.detach().clone() for name, value in zip(self._names, self._parameters, strict=True)}
            buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
            before = state = Merged(weights, buffers, (self._centre or begun(weights)) if centred else None)
            for delta, count, share in zip(deltas, num_batches, shares, strict=True):
                state = outer_step(state, delta, count, share)
        self._take_over(module, state)
        is_borne = False
        try:
            is_borne = bears()
        finally:
            if not is_borne:
                self._take_over(module, before)
        if not is_borne:
            raise Refused("with these deltas its loss on held-out batches is clearly higher", code="worsens", vnode=self._stage.id)
        self._centre = state.centre

    def _take_over(self, module: StageModule, state: Merged) -> None:
        with torch.no_grad():
            for parameter, name in zip(self._parameters, self._names, strict=True):
                parameter.copy_(state.weights[name])
            for name, buffer in module.named_buffers():
                buffer.copy_(state.buffers[name])

    def _based(self) -> list[Tensor]:
        if self._base is None:
            raise InvariantBroken("this replica leads: it has no base", code="no_base", vnode=self._stage.id)
        return self._base

    def _take_slots(self, info: StateInfo, arrays: Mapping[str, Array]) -> None:
        """What a state holds besides weights and running statistics."""
        self._slots = {slot: [self._tensor(arrays[f"o/{name}/{slot}"]) for name in self._names] for slot in self._slot_names}
        self._updates, self._centre = info.updates, None
        if DISTANCES in arrays:
            moved = {name: self._tensor(arrays[f"m/{name}"]) for name in self._names}
            self._centre = Centre(moved, torch.tensor(arrays[DISTANCES]))

    def _weights_and_buffers(self) -> dict[str, Array]:
        tensors = {f"b/{name}": _array(buffer) for name, buffer in self._ready().named_buffers()}
        tensors.update({f"w/{name}": _array(value) for name, value in zip(self._names, self._parameters, strict=True)})
        return tensors

    def _parsed(self, data: bytes, schema: StateSchema) -> tuple[StateInfo, dict[str, Array]]:
        info, arrays = parse(data, schema)
        if info.num_batches != self._num_batches or info.seed != self._seed:
            raise Corrupt(
                "the state belongs to another job (number of batches or seed)",
                code="bad_state_job",
                num_batches=info.num_batches,
                seed=info.seed,
            )
        return info, arrays

    def _ready(self) -> StageModule:
        if self._module is None:
            raise InvariantBroken("no state was restored: this replica has no weights", code="not_restored", vnode=self._stage.id)
        return self._module

    def _set(self, module: StageModule, batch: int, mode: Mode) -> None:
        learning = mode in (Mode.TRAIN, Mode.FORWARD_ONLY)
        if module.training is not learning:  # a walk over all layers
            module.train(learning)
        module.key(self._seed, batch if learning else None)

    @contextmanager
    def _statistics(self, module: StageModule) -> Iterator[Any]:
        """Puts buffers (running statistics) back at the end unless the yielded function was called."""
        before = [(buffer, buffer.clone()) for buffer in module.buffers()]
        kept: list[bool] = []
        try:
            yield lambda: kept.append(True)
        finally:
            if not kept:
                with torch.no_grad():
                    for buffer, value in before:
                        buffer.copy_(value)

    def _tensor(self, array: Array) -> Tensor:
        """A copy on the device: states are parsed as views of bytes that do not belong to torch."""
        return torch.tensor(array, device=self._device)

    def _as_tensor(self, value: Any) -> Tensor:
        tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(_writable(value))
        return tensor.to(self._device)

    def _inputs(self, inputs: Sequence[Any], mode: Mode) -> list[Tensor]:
        """Detached inputs on the device. Raises RemoteFault as `vnode.torch_inputs.check_inputs`."""
        if len(inputs) != len(self._stage.inputs):
            raise InvariantBroken(f"{len(inputs)} inputs, not {len(self._stage.inputs)}", code="bad_inputs", vnode=self._stage.id)
        tensors = [self._as_tensor(value) for value in inputs]
        check_inputs(self._stage.inputs, tensors, mode, room=self.ROOM)
        return tensors

    def _target(self, target: Any, batch_size: int) -> Tensor:
        y = self._as_tensor(target).long()
        shape = (batch_size, *self._stage.target.shape)
        if y.shape != shape or int(y.min()) < 0 or int(y.max()) >= self._stage.num_classes:
            raise Corrupt(f"the target is not {list(shape)} class numbers below {self._stage.num_classes}", code="bad_target")
        return y


def _whole(state: bytes | memoryview | Path) -> bytes:
    if isinstance(state, Path):
        if state.stat().st_size > MAX_OBJECT_BYTES:
            raise Corrupt(f"state refused: more than {MAX_OBJECT_BYTES} bytes", code="bad_state_size")
        return state.read_bytes()
    return bytes(state)


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array


def _correct(logits: Tensor, y: Tensor) -> tuple[int, int]:
    return int((logits.argmax(dim=-1) == y).sum()), y.numel()


class _Lent:
    """Shows an array's memory without its read-only mark, so that torch takes it without copying; nothing here writes to inputs."""

    def __init__(self, array: Array) -> None:
        self._array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def _writable(value: Any) -> Array:
    array = np.asarray(value)
    return array if array.flags.writeable else np.asarray(_Lent(array))
