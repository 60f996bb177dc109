"""A sketch of an interval: every step checked without making the large products, for stages whose maps a component declares.

The checker follows secret projections of each map's weight (`vnode.checks.torch_projection`) and, in full, the few other parameters: biases, norms,
head. Per step it compares the claimed output Z of each map with its own, (Z - b)·S against X·(Wᵀ·S), recomputes from the *claimed* Z everything
after it up to the loss, takes the gradient G of Z from there, compares the claimed gradient of the map's input where there is one, and updates
the projections from G·S and X with the stage's own optimiser. At the end what it followed is compared with the claimed state. So errors do not build up from
step to step: each starts from the worker's values.

Where a kink (ReLU, max pool) reads values that two machines round differently, the worker says these too, each is compared with the checker's own, and
the checker goes on from the worker's: the sides of a kink are those that the worker took.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dcnr.errors import Corrupt, InvariantBroken
from dcnr.specs import Registry
from dcnr.stages import Stage
from trust.comparison import Comparison
from vnode.checks import residuals
from vnode.checks.claims import Claim, ClaimedStep
from vnode.checks.plan import StageChecks
from vnode.checks.replay import lineage_residual
from vnode.checks.tolerances import Tolerances
from vnode.checks.torch_projection import MapKind, Projection
from vnode.checks.torch_quanta import is_within_quanta
from vnode.state import Array, parse
from vnode.torch_stage import StageModule, optimizer_of, schema_of, skeleton
from vnode.vocabulary import Mode


@dataclass(slots=True)
class _Product:
    """Of a map in one step."""

    output: Tensor
    """As claimed."""
    size: float
    """Its rms."""
    input: Tensor
    """As found."""
    taken: Tensor
    """The same, projected; nothing for the first map."""


class _Claimed(nn.Module):
    """In the place of a map: gives the claimed output, remembers the input. Keeps the bias under its own name."""

    bias: nn.Parameter | None

    def __init__(self, kind: MapKind, weight: Tensor, bias: nn.Parameter | None, product: _Product) -> None:
        super().__init__()
        self.register_parameter("bias", bias)
        self._kind, self._shape, self._product = kind, weight.shape, product

    def forward(self, x: Tensor) -> Tensor:
        """The claimed output, whatever the input. Raises RuntimeError if it has not the size that the map would give."""
        product = self._product
        if self._kind.output_shape(x.shape, self._shape) != tuple(product.output.shape):
            raise RuntimeError("a claimed product of another size")
        product.input = x
        return product.output


class _Behind(torch.autograd.Function):
    """The claimed values in the place of those found; gradients pass to those found."""

    @staticmethod
    def forward(_: Any, found: Tensor, claimed: Tensor) -> Tensor:
        return claimed.view_as(claimed)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _BeforeKink:
    """Behind a part of the module: gives what was claimed of it, remembers what was found."""

    def __init__(self, name: str, part: nn.Module) -> None:
        self.name = name
        self.claimed: Tensor = torch.empty(0)
        self.found: Tensor = torch.empty(0)
        part.register_forward_hook(lambda _, __, made: self._of(made))

    def _of(self, made: Tensor) -> Tensor:
        if made.shape != self.claimed.shape:
            raise RuntimeError("claimed values of another size")
        self.found = made.detach()
        given: Tensor = _Behind.apply(made, self.claimed)  # type: ignore[no-untyped-call]
        return given


@dataclass(frozen=True, slots=True)
class _Map:
    """One sketched map. ``inward`` is None for the first: nobody asks for the gradient of its input."""

    name: str
    kind: MapKind
    claimed: _Product
    bias: str
    """Its name in a state; "" without one."""
    outward: Projection
    inward: Projection | None

    @property
    def weight(self) -> str:
        """The weight's name in a state."""
        return f"{self.name}.weight"

    def projections(self) -> Iterator[tuple[str, Projection, int]]:
        """(name of what is followed, how it is projected, over which dimension of the weight)."""
        yield self.weight, self.outward, 0
        if self.inward is not None:
            yield f"{self.weight}.inward", self.inward, 1


class Sketch:
    """Checks claims about ``stage``. ``secret`` is drawn anew for every claim and known to nobody before the worker has committed.

    With None whole weights are followed: as dear as a replay, and the judge of stages with kinks, where two honest machines may take different
    sides of one and part; here the worker's own product says which side it took.
    """

    def __init__(
        self, stage: Stage, registry: Registry, checks: StageChecks, *, secret: bytes | None, num_batches: int, seed: int
    ) -> None:
        if not checks.maps:
            raise InvariantBroken("nothing in this stage is sketchable: replay it", code="not_sketchable")
        self._stage, self._num_batches, self._seed = stage, num_batches, seed
        self._schema = schema_of(stage, registry)
        optimizer = optimizer_of(stage, registry)
        self._schedule = optimizer.schedule(stage.optimizer_config)
        self._update = optimizer.build(stage.optimizer_config)
        self._slot_names = optimizer.slots()
        self._module: StageModule = skeleton(stage, registry)
        self._maps = [self._mapped(name, index, secret, linear=optimizer.is_linear) for index, name in enumerate(checks.maps)]
        self._before_kinks = [_BeforeKink(name, self._module.get_submodule(name)) for name in checks.before_kinks]
        self._values: dict[str, Tensor] = {}
        """Everything followed, by the name it has in a state: parameters in full and projections."""
        self._own: dict[str, nn.Parameter] = {}
        """The parameters in full that autograd sees: all but the biases of maps."""
        self._names: list[str] = []
        """Of everything that an update changes."""
        self._learned: list[Tensor] = []
        self._slots: dict[str, list[Tensor]] = {}

    def _mapped(self, name: str, index: int, secret: bytes | None, *, linear: bool) -> _Map:
        original = self._module.get_submodule(name)
        kind = MapKind.of(original)
        rows, columns = original.weight.shape[:2]  # type: ignore[index]
        claimed = _Product(torch.empty(0), 0.0, torch.empty(0), torch.empty(0))
        self._module.set_submodule(name, _Claimed(kind, original.weight, original.bias, claimed))  # type: ignore[arg-type]
        bias = "" if original.bias is None else f"w/{name}.bias"
        if secret is None:
            return _Map(name, kind, claimed, bias, Projection(), Projection() if index else None)
        inward = Projection.draw(secret, f"in {name}", int(columns), linear=linear) if index else None
        return _Map(name, kind, claimed, bias, Projection.draw(secret, f"out {name}", int(rows), linear=linear), inward)

    def check(self, claim: Claim, tolerances: Tolerances) -> Iterator[Comparison]:
        """From the first to the last state of the claim; states between them are not needed.

        Raises Corrupt where the form of the claim does not hold, or its first state is none of this stage.
        """
        claim.check()
        claim.check_is_alone()
        last = len(claim.steps)
        info, arrays = parse(claim.states[0], self._schema)
        if len(info.lineage) != claim.steps[0].num_learned:
            raise Corrupt("a state does not hold as many batches as its entry says", code="bad_claim")
        first = self._followed(arrays)
        self._take_over(first)
        updates = info.updates
        for index, step in enumerate(claim.steps):
            if not self._fits(step):
                yield tolerances.comparison(index, "map", math.inf)
                return
            try:
                yield from self._step(index, step, updates, tolerances)
            except InvariantBroken as error:
                if error.code != "not_finite":
                    raise
                yield tolerances.comparison(index, "loss", math.inf)
                return
            updates += step.mode is Mode.TRAIN
        claimed_info, claimed = parse(claim.states[last], self._schema)
        yield tolerances.comparison(last - 1, "lineage", lineage_residual(info, claimed_info, claim.steps))
        found = {name: value.detach().numpy() for name, value in self._values.items()}
        for item in residuals.state_residuals(first, self._followed(claimed), found, last):
            yield tolerances.comparison(last - 1, item.part, item.residual, item.name)

    # ---- the state that is followed -----------------------------------------------------------------------------------------------

    def _followed(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Of a whole state what a sketch follows: maps projected, everything else as it is."""
        weights = {item.weight: item for item in self._maps}
        result: dict[str, Array] = {}
        for name, array in arrays.items():
            kind, _, rest = name.partition("/")
            parameter, _, slot = rest.rpartition("/") if kind == "o" else (rest, "", "")
            if kind == "b" or parameter not in weights:
                result[name] = array
                continue
            for short, projection, dim in weights[parameter].projections():
                result[f"{kind}/{short}/{slot}" if slot else f"{kind}/{short}"] = projection.of_state(array, dim)
        return result

    def _take_over(self, arrays: Mapping[str, Array]) -> None:
        self._values = {name: torch.tensor(array) for name, array in arrays.items()}
        inside = {*dict(self._module.named_parameters()), *dict(self._module.named_buffers())}
        held = {name[2:]: value for name, value in self._values.items() if name[:2] in ("w/", "b/") and name[2:] in inside}
        self._module.load_state_dict(held, strict=True, assign=True)
        parameters = {f"w/{name}": parameter for name, parameter in self._module.named_parameters()}
        self._values.update(parameters)
        biases = {item.bias for item in self._maps}
        self._own = {name: parameter for name, parameter in parameters.items() if name not in biases}
        self._values.update({f"b/{name}": buffer for name, buffer in self._module.named_buffers()})
        self._names = sorted(name for name in self._values if name.startswith("w/"))
        self._learned = [self._values[name] for name in self._names]
        self._slots = {slot: [self._values[f"o/{name[2:]}/{slot}"] for name in self._names] for slot in self._slot_names}

    # ---- one step -----------------------------------------------------------------------------------------------------------------

    def _fits(self, step: ClaimedStep) -> bool:
        """Whether everything claimed is there, in the size of the inputs, and finite."""
        gradients = step.mode is Mode.TRAIN
        for item in self._maps:
            claim = step.maps.get(item.name)
            if claim is None or claim.output.dtype != np.float32 or claim.output.size == 0:
                return False
            if item.inward is not None and gradients and claim.input_gradient is None:
                return False
            item.claimed.size = residuals.rms(claim.output)
            if not item.claimed.size < math.inf:
                return False
        others = (step.maps.get(part.name) for part in self._before_kinks)
        return all(one is not None and one.output.dtype == np.float32 and residuals.rms(one.output) < math.inf for one in others)

    def _step(self, index: int, step: ClaimedStep, updates: int, tolerances: Tolerances) -> Iterator[Comparison]:
        module = self._module
        learning = step.mode is Mode.TRAIN
        buffers = [] if learning else [(buffer, buffer.clone()) for buffer in module.buffers()]
        module.key(self._seed, step.batch)
        for item in self._maps:
            item.claimed.output = _tensor(step.maps[item.name].output).requires_grad_(learning)
        for part in self._before_kinks:
            part.claimed = _tensor(step.maps[part.name].output)
        inputs, target = step.data()
        tensors = [_tensor(value) for value in inputs]
        try:
            with torch.set_grad_enabled(learning):
                output = module(tensors)
                loss = module.objective.step(output, tensors, torch.tensor(target).long())[0] if learning else output.sum()
        except RuntimeError:  # a claimed product of another shape than the stage's
            yield tolerances.comparison(index, "map", math.inf)
            return
        for item in self._maps:
            yield tolerances.comparison(index, "map", self._forward_residual(item, step), item.name)
        for part in self._before_kinks:
            residual = residuals.largest_residual(step.maps[part.name].output, part.found.numpy())
            yield tolerances.comparison(index, "map", residual, part.name)
        for sent, codec in step.sent:
            yield tolerances.comparison(index, "output", _output_residual(sent, output.detach(), codec))
        if not learning:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
            return
        yield tolerances.comparison(index, "loss", residuals.loss_residual(step.loss, float(loss.detach())))
        lr = self._schedule.rate(step.num_learned, self._num_batches)
        yield tolerances.comparison(index, "rate", residuals.rate_residual(step.lr, lr))
        yield from self._learn(index, step, loss, lr, updates, tolerances)

    def _forward_residual(self, item: _Map, step: ClaimedStep) -> float:
        """(Z - b)·S against X·(Wᵀ·S), in units of Z."""
        with torch.no_grad():
            z, x = item.claimed.output.detach(), item.claimed.input.detach()
            weight = self._values[f"w/{item.weight}"]
            if item.inward is None:
                mine = item.kind.product(x, weight)
            else:
                item.claimed.taken, mine = item.kind.forward(x, weight, item.inward)
            channel = item.kind.channel
            theirs = item.outward.take(z, channel)
            if item.bias:
                shift = item.outward.take(self._values[item.bias], 0)
                theirs = theirs - (shift if channel == -1 else shift.view(-1, 1, 1))
            return residuals.value_residual(theirs.numpy(), mine.numpy(), item.claimed.size * item.outward.scale)

    def _learn(
        self, index: int, step: ClaimedStep, loss: Tensor, lr: float, updates: int, tolerances: Tolerances
    ) -> Iterator[Comparison]:
        """Gradients from the claimed products, the claimed input gradients against the followed ones, and the update."""
        inner = [item for item in self._maps if item.inward is not None and item.claimed.input.requires_grad]
        claimed = {item.name: _tensor(given) for item in self._maps if (given := step.maps[item.name].input_gradient) is not None}
        passed_on = [claimed[item.name] for item in inner]
        wanted = [*(item.claimed.output for item in self._maps), *self._own.values()]
        inputs = [item.claimed.input for item in inner]
        if any((given.shape, given.dtype) != (x.shape, x.dtype) for given, x in zip(passed_on, inputs, strict=True)):
            yield tolerances.comparison(index, "input_gradient", math.inf)
            return
        made = torch.autograd.grad(  # of the loss, and of each inner input what was claimed
            [loss, *inputs], wanted, [torch.ones_like(loss), *passed_on], allow_unused=True, materialize_grads=True
        )
        gradients = dict(zip(self._own, made[len(self._maps) :], strict=True))
        for item, gradient in zip(self._maps, made, strict=False):
            if item.inward is None:
                taken = item.outward.take(gradient, item.kind.channel)
            else:
                taken, residual = self._backward(item, item.inward, gradient, claimed[item.name])
                yield tolerances.comparison(index, "input_gradient", residual, item.name)
            gradients.update(self._map_gradients(item, gradient, taken))
        with torch.no_grad():
            self._update(self._learned, [gradients[name].contiguous() for name in self._names], self._slots, lr, updates)

    def _backward(self, item: _Map, inward: Projection, gradient: Tensor, given: Tensor) -> tuple[Tensor, float]:
        """The gradient of the outputs as it is projected; D·T against G·(W·T), in units of D."""
        shape, channel = list(given.shape), item.kind.channel
        weight = self._values[f"w/{item.weight}.inward"]
        shape[channel] = weight.shape[1]
        with torch.no_grad():
            taken, mine = item.kind.backward(gradient, weight, item.outward, shape)
        theirs = inward.take(given, channel)
        return taken, residuals.value_residual(theirs.numpy(), mine.numpy(), residuals.rms(given.numpy()) * inward.scale)

    def _map_gradients(self, item: _Map, gradient: Tensor, taken: Tensor) -> dict[str, Tensor]:
        """Of what is followed of one map: its projected weight, and its bias, which autograd does not see. ``taken``: of the outputs, projected."""
        kind, outward = item.kind, f"w/{item.weight}"
        result = {outward: kind.weight_gradient(item.claimed.input.detach(), taken, self._values[outward].shape)}
        if item.inward is not None:
            name = f"{outward}.inward"
            result[name] = kind.weight_gradient(item.claimed.taken, gradient, self._values[name].shape)
        if item.bias:
            result[item.bias] = kind.bias_gradient(gradient)
        return result


def _output_residual(sent: Array, output: Tensor, codec: str) -> float:
    if codec == "int8" and is_within_quanta(_tensor(sent), output):
        return 0.0
    return residuals.output_residual(sent, output.numpy(), codec)


def _tensor(array: Array) -> Tensor:
    """Of the same memory, where torch takes it: nothing here is written to."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
