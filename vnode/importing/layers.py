"""Single layers of a traced module as components: linear maps, convolutions with what follows them, and what has no weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from vnode.importing.claims import EPSILON, MOMENTUM, Claim, Unsuitable, pair
from vnode.importing.operations import Array, Operation, Reading

Rule = Callable[[Reading, Operation], Claim]
"""The claim that begins with an operation. Raises Unsuitable."""


def linear(reading: Reading, operation: Operation) -> Claim:
    """``linear``."""
    source, weight, bias = operation.text("input"), operation.text("weight"), operation.text("bias")
    if not reading.fixed(weight):
        raise Unsuitable("its weight is computed from the input", "a linear layer with weights of its own")
    if len(reading.sample(source)) not in (1, 2):
        raise Unsuitable("it reads more than one dimension of positions", "flatten before it")
    tensors = {"component.weight": reading.value(weight), **({"component.bias": reading.value(bias)} if bias else {})}
    config: dict[str, Any] = {"out_features": operation.shape[-1], **({} if bias else {"bias": False})}
    return Claim("linear", config, (source,), operation.name, frozenset({operation.name}), tensors, _named(weight, bias))


def conv_block(reading: Reading, operation: Operation) -> Claim:
    """``conv_block``: a convolution with the normalisation, activation, dropout and max pool that follow it in the block's order."""
    config = _convolution(reading, operation)
    tensors: dict[str, Array] = {"component.conv.weight": reading.value(operation.text("weight"))}
    bias_name = operation.text("bias")
    bias = reading.value(bias_name) if bias_name else np.zeros(operation.shape[1], np.float32)
    weights = list(_named(operation.text("weight"), bias_name))
    notes: tuple[str, ...] = ()
    covers, last = [operation.name], operation.name
    config |= {"norm": "none", "activation": "none"}
    while (following := reading.next(last)) is not None:
        step = _step(reading, following, config)
        if not step:
            break
        config |= step
        if following.kind == "batch_norm":
            tensors |= _normalisation(reading, following, bias)
            weights += _named(*(following.text(name) for name in ("weight", "bias", "running_mean", "running_var")))
        covers.append(following.name)
        last = following.name
    if config["norm"] == "none":
        tensors["component.conv.bias"] = bias
        notes = () if bias_name else (f"{operation.name} gets a bias, which starts at zero",)
    return Claim("conv_block", config, (operation.text("input"),), last, frozenset(covers), tensors, tuple(weights), notes)


def _convolution(reading: Reading, operation: Operation) -> dict[str, Any]:
    given = operation.arguments
    weight = operation.text("weight")
    if not reading.fixed(weight):
        raise Unsuitable("its weight is computed from the input", "a convolution with weights of its own")
    kernel = reading.by_name[weight].shape[2:]
    stride, dilation = pair(given.get("stride", 1)), pair(given.get("dilation", 1))
    if kernel[0] != kernel[1] or kernel[0] % 2 == 0 or kernel[0] > 31:
        raise Unsuitable(f"its kernel is {list(kernel)}; conv_block has square, odd ones up to 31", "another kernel size")
    half = kernel[0] // 2
    padding = (half, half) if given.get("padding") == "same" else pair(given.get("padding", 0))
    if padding != (half, half):
        raise Unsuitable(f"its padding is {given.get('padding')}; conv_block pads by half of the kernel", f"padding={half}")
    if dilation != (1, 1) or given.get("groups", 1) != 1:
        raise Unsuitable("it is dilated or grouped", "dilation=1 and groups=1")
    if stride is None or stride[0] != stride[1]:
        raise Unsuitable("its stride differs between height and width", "one stride for both")
    settings = {"out_channels": operation.shape[1], "kernel": kernel[0]}
    return settings | ({"stride": stride[0]} if stride[0] != 1 else {})


def _step(reading: Reading, following: Operation, config: Mapping[str, Any]) -> dict[str, Any]:
    """What ``following`` adds to the block; nothing where it does not belong to it. A max pool and a ReLU give the same in either order."""
    plain = config["activation"] == "none" and "dropout" not in config
    match following.kind:
        case "batch_norm" if config["norm"] == "none" and plain and "pool" not in config and _is_plain_norm(following):
            return {"norm": "batch"}
        case "relu" if plain:
            return {"activation": "relu"}
        case "gelu" if plain and "pool" not in config and following.arguments.get("approximate") == "none":
            return {"activation": "gelu"}
        case "dropout" if "pool" not in config and "dropout" not in config and _drop(following) <= 0.9:
            return {"dropout": _drop(following)}
        case "max_pool2d" if "pool" not in config and (side := _pool(following)):
            return {"pool": side}
    return {}


def _is_plain_norm(operation: Operation) -> bool:
    given = operation.arguments
    parts = all(operation.text(name) for name in ("weight", "bias", "running_mean", "running_var"))
    return parts and math.isclose(given["eps"], EPSILON) and math.isclose(given["momentum"], MOMENTUM)


def _normalisation(reading: Reading, operation: Operation, bias: Array) -> dict[str, Array]:
    """The convolution before it has no bias in a block: it only moves the mean."""
    return {
        "component.norm.weight": reading.value(operation.text("weight")),
        "component.norm.bias": reading.value(operation.text("bias")),
        "component.norm.running_mean": reading.value(operation.text("running_mean")) - bias,
        "component.norm.running_var": reading.value(operation.text("running_var")),
    }


def _drop(operation: Operation) -> float:
    return float(operation.arguments.get("p", 1.0))


def _pool(operation: Operation) -> int:
    """The side of a pool that a block can have; 0 for any other."""
    given = operation.arguments
    sides, stride = pair(given.get("kernel_size")), pair(given.get("stride") or given.get("kernel_size"))
    plain = pair(given.get("padding", 0)) == (0, 0) and pair(given.get("dilation", 1)) == (1, 1) and not given.get("ceil_mode")
    return sides[0] if plain and sides is not None and sides == stride and sides[0] == sides[1] and 1 < sides[0] <= 16 else 0


def relu(reading: Reading, operation: Operation) -> Claim:
    """``relu``."""
    return _bare("relu", {}, operation, operation.text("self"))


def gelu(reading: Reading, operation: Operation) -> Claim:
    """``gelu``, exact."""
    if operation.arguments.get("approximate") != "none":
        raise Unsuitable("it is approximated", "the exact GELU: nn.GELU()")
    return _bare("gelu", {}, operation, operation.text("self"))


def dropout(reading: Reading, operation: Operation) -> Claim:
    """``dropout``."""
    if not 0.0 < _drop(operation) <= 0.9:
        raise Unsuitable(f"it drops {_drop(operation):g}", "a dropout of at most 0.9")
    return _bare("dropout", {"dropout": _drop(operation)}, operation, operation.text("input"))


def add(reading: Reading, operation: Operation) -> Claim:
    """``add`` of equal shapes."""
    names = operation.text("self"), operation.text("other")
    if not all(names) or any(reading.fixed(name) for name in names):
        raise Unsuitable("it adds a constant or a parameter", "a bias of the layer before it")
    if operation.arguments.get("alpha", 1) != 1 or reading.by_name[names[0]].shape != reading.by_name[names[1]].shape:
        raise Unsuitable("it adds scaled or unequal shapes", "a sum of equal shapes")
    return _bare("add", {}, operation, *names)


def concat(reading: Reading, operation: Operation) -> Claim:
    """``concat`` along any dimension but the batch."""
    dim = int(operation.arguments.get("dim", 0))
    dim = dim + len(operation.shape) if dim < 0 else dim
    if dim == 0 or len(operation.reads) < 2 or any(reading.fixed(name) for name in operation.reads):
        raise Unsuitable("it joins along the batch, or a constant", "torch.cat of values along another dimension")
    return _bare("concat", {"dim": dim - 1}, operation, *operation.reads)


def shape(reading: Reading, operation: Operation) -> Claim:
    """``flatten`` or ``reshape``."""
    before = reading.by_name[operation.reads[0]]
    if not operation.shape or operation.shape[0] != before.shape[0]:
        raise Unsuitable("it changes the batch", "a reshape that keeps the first dimension")
    if len(operation.shape) == 2:
        return _bare("flatten", {}, operation, before.name)
    return _bare("reshape", {"shape": list(operation.shape[1:])}, operation, before.name)


def average_pool(reading: Reading, operation: Operation) -> Claim:
    """``average_pool``: to a number of places, or over all of them."""
    source = operation.reads[0]
    sample = reading.sample(source)
    if operation.kind == "mean":
        side = 1 if averages_all(operation, len(sample)) else 0
        keeps = len(operation.shape) == 4
    else:
        sides = pair(operation.arguments.get("output_size"))
        side, keeps = (sides[0] if sides and sides[0] == sides[1] else 0), True
    if len(sample) != 3 or not side or not keeps or side > min(sample[1:]):
        raise Unsuitable("it averages something else than the places of an image", "nn.AdaptiveAvgPool2d of one side")
    return _bare("average_pool", {"side": side}, operation, source)


def averages_all(operation: Operation, rank: int) -> bool:
    """Whether a mean is that of all places of an image."""
    dims = operation.arguments.get("dim")
    return rank == 3 and isinstance(dims, tuple) and {dim % 4 for dim in dims if isinstance(dim, int)} == {2, 3}


def _bare(component: str, config: Mapping[str, Any], operation: Operation, *reads: str) -> Claim:
    return Claim(component, config, reads, operation.name, frozenset({operation.name}))


def _named(*names: str) -> tuple[str, ...]:
    return tuple(name for name in names if name)


RULES: Final[Mapping[str, Rule]] = {
    "linear": linear, "conv2d": conv_block, "relu": relu, "gelu": gelu, "dropout": dropout, "add": add, "cat": concat,
    "concat": concat, "flatten": shape, "view": shape, "reshape": shape, "unflatten": shape, "squeeze": shape, "unsqueeze": shape,
    "adaptive_avg_pool2d": average_pool, "mean": average_pool,
}  # fmt: skip
"""By the kind of the operation."""
