"""From a traced module to VNodes: every operation is claimed by one of them, or named with the reason why none can. Pure; no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vnode.importing.blocks import embedding, normed
from vnode.importing.claims import Claim, Unsuitable
from vnode.importing.heads import Head, head_of, tail_of
from vnode.importing.layers import RULES, Rule
from vnode.importing.operations import Operation, Reading, Traced, Unsupported, UnsupportedOperations

_RULES: Final[Mapping[str, Rule]] = {**RULES, "embedding": embedding, "layer_norm": normed}
_OWN: Final = "a component of your own, named by the setting components, in a graph that you write"
_INSTEAD: Final[tuple[tuple[str, str, str], ...]] = (
    ("lstm|gru|rnn_.*", "no component has a state from place to place", "transformer_block: causal attention over the places"),
    ("sigmoid|tanh|silu|leaky_relu|elu|selu|hardtanh|hardswish|mish|prelu|softplus", "there is no such activation", "ReLU or the exact GELU"),
    ("batch_norm", "it is known only directly behind a Conv2d, affine, with eps 1e-05 and momentum 0.1", "nn.BatchNorm2d(channels) behind nn.Conv2d"),
    ("max_pool2d", "it is known only behind a convolution and its activation, square and without padding", "nn.MaxPool2d(side) there"),
    ("avg_pool2d|max_pool1d|avg_pool1d|adaptive_max_pool2d", "there is no such pool", "nn.AdaptiveAvgPool2d, or a convolution with a stride"),
    ("conv1d|conv3d|conv_transpose.*", "conv_block works on images [channels, height, width]", "nn.Conv2d"),
    ("group_norm|instance_norm|rms_norm", "there is no such normalisation", "nn.BatchNorm2d behind a convolution, nn.LayerNorm inside a block"),
    ("matmul|bmm|mm|einsum|softmax|scaled_dot_product_attention|multi_head_attention.*|_transformer_encoder_layer_fwd",
     "attention is known only as a whole block", "F.scaled_dot_product_attention with is_causal=True in a pre-norm block"),
    ("permute|transpose|t|numpy_T|swapaxes|movedim", "no component moves dimensions", "data staged in the order that the model wants"),
    ("mul|sub|div|rsub|neg|pow|sqrt|exp", "no component computes it", "a constant inside the neighbouring weights, or a sum of equal shapes"),
    ("dropout2d|feature_dropout|alpha_dropout", "it drops whole channels", "nn.Dropout"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MappedVNode:
    """A VNode that is to be: ``inputs`` are VNodes or ``input``; ``objective`` is the configuration that its head should have."""

    id: str
    claim: Claim
    inputs: tuple[str, ...]
    objective: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mapped:
    """All VNodes in the order of the computation. ``head`` is the end of the module where that became the exit of a VNode."""

    vnodes: tuple[MappedVNode, ...]
    head: Head | None
    head_vnode: str
    scores: str
    """The operation that gives the module's answer, probabilities undone."""
    notes: tuple[str, ...]


def mapped(traced: Traced, stateful: frozenset[str]) -> Mapped:
    """The VNodes of a traced module; ``stateful`` names the components with weights. Raises UnsupportedOperations with all that has none."""
    reading = Reading(traced)
    scores, left_out = tail_of(reading)
    head = head_of(reading, scores)
    claims, unsupported = _claims(reading, left_out.covers | (head.covers if head else frozenset()))
    if head is not None and not any(claim.gives == head.source and claim.component in stateful for claim in claims):
        head = None
        claims, unsupported = _claims(reading, left_out.covers)
    if unsupported:
        raise UnsupportedOperations(unsupported)
    return _named(reading, claims, head, scores, left_out.said)


def _claims(reading: Reading, covered: frozenset[str]) -> tuple[list[Claim], list[Unsupported]]:
    """What stands for the operations that are not ``covered``, and those for which nothing does."""
    claims: list[Claim] = []
    unsupported: list[Unsupported] = []
    done = set(covered)
    weights: dict[int, str] = {}
    for operation in reading:
        if operation.name in done:
            continue
        done.add(operation.name)
        try:
            claim = _claim(reading, operation)
            taken = next((weights[key] for key in _keys(reading, claim) if key in weights), "")
            if taken:
                raise Unsuitable(f"it shares its weights with {taken}", "weights of its own: every VNode owns those that it learns")
        except Unsuitable as why:
            if operation.kind != "getitem" or not any(one.node in operation.reads for one in unsupported):
                unsupported.append(why.about(operation))
            continue
        weights |= dict.fromkeys(_keys(reading, claim), operation.name)
        claims.append(claim)
        done |= claim.covers
    return claims, unsupported


def _claim(reading: Reading, operation: Operation) -> Claim:
    rule = _RULES.get(operation.kind) if operation.target.startswith("aten.") else None
    if operation.in_place and len(reading.users.get(operation.reads[0], [])) > 1:
        raise Unsuitable("it changes in place what others read", "the same without inplace=True")
    if rule is None:
        raise next(
            (Unsuitable(why, instead) for pattern, why, instead in _INSTEAD if re.fullmatch(pattern, operation.kind)),
            Unsuitable("no component computes it", _OWN),
        )
    return rule(reading, operation)


def _keys(reading: Reading, claim: Claim) -> list[int]:
    return [reading.traced.identities[name] for name in claim.weights if name in reading.traced.identities]


def _named(reading: Reading, claims: list[Claim], head: Head | None, scores: str, notes: Iterable[str]) -> Mapped:
    """Claims as VNodes that name each other."""
    ids: dict[str, str] = {reading.traced.input: "input"}
    vnodes: list[MappedVNode] = []
    for claim in claims:
        vnode = _free_id(reading, claim, set(ids.values()))
        following = reading.next(claim.gives)
        own: dict[str, Any] = {}
        if claim.component == "linear" and following is not None and following.kind in ("relu", "gelu"):
            own = {"activation": following.kind}
        if head is not None and claim.gives == head.source:
            own = dict(head.config)
        vnodes.append(MappedVNode(vnode, claim, tuple(ids[name] for name in claim.reads), own))
        ids[claim.gives] = vnode
    said = [*notes, *(note for claim in claims for note in claim.notes), *(head.notes if head else ())]
    return Mapped(tuple(vnodes), head, ids[head.source] if head else "", scores, tuple(said))


def _free_id(reading: Reading, claim: Claim, taken: set[str]) -> str:
    """The path of the submodule as a name; where several parts make one VNode, of what they share."""
    owners = [reading.by_name[name].owner.split(".") for name in claim.covers if reading.by_name[name].owner]
    first = next(name for name in reading.by_name if name in claim.covers)
    path = owners[0] if owners else []
    if claim.component in ("transformer_block", "linear_block", "byte_embedding"):
        shared = [parts[0] for parts in zip(*owners, strict=False) if len(set(parts)) == 1]
        path = shared or [claim.component]
    elif reading.by_name[first].owner:
        path = reading.by_name[first].owner.split(".")
    text = re.sub(r"[^a-z0-9_-]", "-", "-".join(path or [first]).lower()).strip("_-")[:56] or "vnode"
    text = f"layer{text}" if text[0].isdigit() else text
    number = 1
    while (name := text if number == 1 else f"{text}-{number}") in taken:
        number += 1
    return name
