"""Blocks of several operations that one component stands for: embedded bytes, causal transformer blocks, residual linear blocks.

They are recognised by what reads what. Whether heads and positions are arranged as the component arranges them is not derived here: every import is
computed and compared with the module before it is given out (`vnode.importing.comparison`).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from vnode.components.byte_embedding import NUM_BYTES
from vnode.importing.claims import EPSILON, Claim, Unsuitable, affine
from vnode.importing.operations import Array, Operation, Reading

_ARRANGING: Final = frozenset((
    "view", "reshape", "permute", "transpose", "split", "split_with_sizes", "chunk", "unbind", "select", "slice", "getitem", "contiguous", "clone",
    "squeeze", "unsqueeze", "unflatten", "flatten", "_unsafe_view", "swapaxes", "movedim",
))  # fmt: skip
_BLOCK: Final = (
    "pre-norm blocks: x + proj(F.scaled_dot_product_attention(q, k, v, is_causal=True)), then x + out(gelu(in(norm(x))))"
)


def embedding(reading: Reading, operation: Operation) -> Claim:
    """``byte_embedding`` without blocks: tokens, the positions added to them, and a dropout."""
    table, ids = operation.text("weight"), operation.text("indices")
    weight = reading.value(table)
    if ids != reading.traced.input or len(operation.shape) != 3:
        raise Unsuitable("it embeds something else than the input", "nn.Embedding of the input itself, [batch, positions]")
    if weight.shape[0] != NUM_BYTES:
        raise Unsuitable(f"it knows {weight.shape[0]} tokens", f"bytes: nn.Embedding({NUM_BYTES}, width)")
    _, length, width = operation.shape
    position: Array = np.zeros((length, width), np.float32)
    covers, last, notes = [operation.name], operation.name, ["the embedding gets learned positions, which start at zero"]
    following = reading.next(last)
    if following is not None and following.kind == "add" and following.arguments.get("alpha", 1) == 1:
        other = next((name for name in following.reads if name != last), "")
        if reading.fixed(other) and reading.value(other).shape in ((length, width), (1, length, width)):
            position = np.ascontiguousarray(reading.value(other).reshape(length, width), np.float32)
            covers, last, notes = [*covers, following.name], following.name, []
            following = reading.next(last)
    config: dict[str, Any] = {"width": width}
    if following is not None and following.kind == "dropout" and following.arguments["p"] <= 0.9:
        config["dropout"] = float(following.arguments["p"])
        covers, last = [*covers, following.name], following.name
    tensors = {"component.token.weight": weight, "component.position.weight": position}
    return Claim("byte_embedding", config, (ids,), last, frozenset(covers), tensors, (table,), tuple(notes))


def normed(reading: Reading, operation: Operation) -> Claim:
    """The block that begins with this normalisation of x, which it adds at its end."""
    if not _is_plain(reading, operation):
        raise Unsuitable(f"it is not over the last dimension with eps {EPSILON:g}", "nn.LayerNorm(width)")
    maps = reading.users.get(operation.name, [])
    if len(maps) == 1 and (block := _linear_block(reading, operation, maps[0])) is not None:
        return block
    return _transformer_block(reading, operation, maps)


def _linear_block(reading: Reading, norm: Operation, inner: Operation) -> Claim | None:
    walk = _Walk(reading, norm)
    source = norm.text("input")
    width = norm.shape[-1]
    outer_at = walk.mlp(norm.name, width, width)
    if outer_at is None or len(norm.shape) not in (2, 3):
        return None
    outer, drop, last = outer_at
    if walk.residual(last, source) is None:
        return None
    inner_weight, inner_bias = walk.map(inner)
    scale = affine(reading, norm)
    if scale is not None:  # the component's normalisation has neither: they go into the map behind it
        inner_bias = inner_bias + inner_weight @ scale[1]
        inner_weight = inner_weight * scale[0][None, :]
    outer_weight, outer_bias = walk.map(outer)
    tensors = {
        "component.inner.weight": inner_weight, "component.inner.bias": inner_bias,
        "component.outer.weight": outer_weight, "component.outer.bias": outer_bias,
    }  # fmt: skip
    return walk.claim("linear_block", {"dropout": drop} if drop else {}, source, tensors)


def _transformer_block(reading: Reading, norm: Operation, maps: list[Operation]) -> Claim:
    walk = _Walk(reading, norm)
    source, width = norm.text("input"), norm.shape[-1]
    if len(norm.shape) != 3 or affine(reading, norm) is None or not maps or any(one.kind != "linear" for one in maps):
        raise Unsuitable("no block of ours begins like this", _BLOCK)
    attention = walk.meeting(maps)
    if attention is None or attention.kind != "scaled_dot_product_attention" or not _is_causal(attention):
        raise Unsuitable("what follows is no causal attention", _BLOCK)
    ordered = [walk.behind(attention.text(name)) for name in ("query", "key", "value")]
    if [one.name for one in ordered] != [maps[0].name] * 3 and len({one.name for one in ordered}) != 3:
        raise Unsuitable("query, key and value do not come from one map or three", _BLOCK)
    pieces = [walk.map(one) for one in {one.name: one for one in ordered}.values()]
    weight, bias = np.concatenate([piece[0] for piece in pieces]), np.concatenate([piece[1] for piece in pieces])
    heads = attention.shape[1] if len(attention.shape) == 4 else 0
    if weight.shape != (3 * width, width) or not heads or width % heads:
        raise Unsuitable(f"its attention is of {list(weight.shape)}, not of {[3 * width, width]}", _BLOCK)
    projection = walk.meeting([attention], seek="linear")
    if projection is None:
        raise Unsuitable("no map follows its attention", _BLOCK)
    walk.take(projection)
    first_drop, last = walk.dropped(projection.name)
    middle = walk.residual(last, source)
    second = next((one for one in reading.users.get(middle, []) if one.kind == "layer_norm"), None) if middle else None
    found = None
    if second is not None and _is_plain(reading, second) and affine(reading, second) is not None:
        walk.take(second)
        found = walk.mlp(second.name, width, 4 * width)
    if middle is None or second is None or found is None or walk.residual(found[2], middle) is None or found[1] != first_drop:
        raise Unsuitable(f"behind the attention is no residual MLP of {4 * width} with an exact GELU", _BLOCK)
    outer, drop, _ = found
    inner = reading.users[second.name][0]
    named = {"qkv": (weight, bias), "projection": walk.map(projection), "mlp_in": walk.map(inner), "mlp_out": walk.map(outer)}
    named |= {"attention_norm": _pair(reading, norm), "mlp_norm": _pair(reading, second)}
    tensors = {
        f"component.{name}.{part}": value[index] for name, value in named.items() for index, part in enumerate(("weight", "bias"))
    }
    return walk.claim("transformer_block", {"heads": heads, **({"dropout": drop} if drop else {})}, source, tensors)


class _Walk:
    """Follows one block and remembers what belongs to it."""

    def __init__(self, reading: Reading, start: Operation) -> None:
        self._reading = reading
        self._covers = [start]
        self._bare: list[str] = []
        self._last = start.name

    def take(self, operation: Operation) -> None:
        """It belongs to the block."""
        self._covers.append(operation)

    def map(self, operation: Operation) -> tuple[Array, Array]:
        """Weight and bias of a linear map; a bias that it has not is zero."""
        weight, bias = operation.text("weight"), operation.text("bias")
        if not self._reading.fixed(weight):
            raise Unsuitable("its weight is computed from the input", _BLOCK)
        if not bias:
            self._bare.append(operation.name)
        zeros: Array = np.zeros(operation.shape[-1], np.float32)
        return self._reading.value(weight), self._reading.value(bias) if bias else zeros

    def meeting(self, starts: list[Operation], seek: str = "") -> Operation | None:
        """The one operation in which everything that only rearranges ``starts`` ends; of kind ``seek`` if given."""
        if not seek:
            self._covers += starts
        found: dict[str, Operation] = {}
        open_names = [one.name for one in starts]
        for name in open_names:  # grows while it is read
            if name == self._reading.output:
                return None
            for user in self._reading.users.get(name, []):
                if user.kind in _ARRANGING:
                    if user.name not in open_names:
                        open_names.append(user.name)
                        self._covers.append(user)
                else:
                    found[user.name] = user
        meeting = next(iter(found.values()), None)
        if len(found) != 1 or meeting is None or (seek and meeting.kind != seek):
            return None
        if not seek:
            self._covers.append(meeting)
        return meeting

    def behind(self, name: str) -> Operation:
        """The operation that ``name`` rearranges."""
        operation = self._reading.by_name[name]
        while operation.kind in _ARRANGING and operation.reads:
            operation = self._reading.by_name[operation.reads[0]]
        return operation

    def mlp(self, name: str, width: int, hidden: int) -> tuple[Operation, float, str] | None:
        """Linear to ``hidden``, exact GELU, linear to ``width``, dropout: the last map, what is dropped, the last operation."""
        chain: list[Operation] = []
        for kind in ("linear", "gelu", "linear"):
            following = self._reading.next(name)
            if following is None or following.kind != kind:
                return None
            chain.append(following)
            name = following.name
        if chain[0].shape[-1] != hidden or chain[2].shape[-1] != width or chain[1].arguments.get("approximate") != "none":
            return None
        self._covers += chain
        return (chain[2], *self.dropped(name))

    def dropped(self, name: str) -> tuple[float, str]:
        """What a dropout behind ``name`` drops (0 without one), and what is then the last operation."""
        following = self._reading.next(name)
        if following is None or following.kind != "dropout" or following.arguments["p"] > 0.9:
            return 0.0, name
        self._covers.append(following)
        return float(following.arguments["p"]), following.name

    def residual(self, name: str, source: str) -> str | None:
        """The sum of ``name`` and ``source``; None where that does not follow."""
        following = self._reading.next(name)
        if (
            following is None
            or following.kind != "add"
            or set(following.reads) != {name, source}
            or following.arguments.get("alpha", 1) != 1
        ):
            return None
        self._covers.append(following)
        self._last = following.name
        return following.name

    def claim(self, component: str, config: dict[str, Any], source: str, tensors: dict[str, Array]) -> Claim:
        """The block. Raises Unsuitable if somebody outside reads what is inside."""
        covers = frozenset(operation.name for operation in self._covers)
        for name in covers - {self._last}:
            if name == self._reading.output or any(user.name not in covers for user in self._reading.users.get(name, [])):
                raise Unsuitable(f"{name} inside the block is read by others", _BLOCK)
        notes = tuple(f"{name} gets a bias, which starts at zero" for name in self._bare)
        used = tuple(name for one in self._covers for name in one.reads if name in self._reading.traced.identities)
        arrays = {name: np.ascontiguousarray(value, np.float32) for name, value in tensors.items()}
        return Claim(component, config, (source,), self._last, covers, arrays, used, notes)


def _is_plain(reading: Reading, operation: Operation) -> bool:
    given = operation.arguments
    shape = given.get("normalized_shape")
    known = all(not operation.text(name) or reading.fixed(operation.text(name)) for name in ("weight", "bias"))
    return known and shape == (operation.shape[-1],) and math.isclose(given.get("eps", EPSILON), EPSILON)


def _is_causal(operation: Operation) -> bool:
    given = operation.arguments
    width = operation.shape[-1] if operation.shape else 0
    usual = given.get("scale") is None or math.isclose(given["scale"], width**-0.5)
    return bool(given.get("is_causal")) and not operation.text("attn_mask") and usual and not given.get("dropout_p")


def _pair(reading: Reading, norm: Operation) -> tuple[Array, Array]:
    return reading.value(norm.text("weight")), reading.value(norm.text("bias"))
