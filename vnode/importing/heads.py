"""The end of a module: its classifier becomes the head of the VNode before it, so that the exit there answers what the module answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from vnode.importing.claims import affine, pair
from vnode.importing.layers import averages_all
from vnode.importing.operations import Array, Operation, Reading
from vnode.objectives.head import MAX_POOL

_SCORES: Final = "objective.head.scores"


@dataclass(frozen=True, slots=True)
class Head:
    """What of the module is a head: ``config`` of the objective, first values, and the operation behind which it stands."""

    source: str
    covers: frozenset[str]
    config: Mapping[str, Any]
    tensors: Mapping[str, Array]
    gives: str
    num_classes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Operations at the end that the objective makes itself."""

    covers: frozenset[str]
    said: tuple[str, ...]


def tail_of(reading: Reading) -> tuple[str, LeftOut]:
    """The operation that gives the scores, and what is left out behind it: the loss takes scores, not probabilities."""
    last = reading.by_name[reading.output]
    if last.kind in ("softmax", "log_softmax") and last.arguments.get("dim") in (-1, len(last.shape) - 1):
        return last.reads[0], LeftOut(
            frozenset({last.name}), (f"{last.kind} at the end is left out: every objective makes its own",)
        )
    return reading.output, LeftOut(frozenset(), ())


def head_of(reading: Reading, scores: str) -> Head | None:
    """The head that ends in ``scores``; None where no objective has such a head."""
    last = reading.by_name[scores]
    if last.kind != "linear" or not reading.fixed(last.text("weight")):
        return None
    return _of_text(reading, last) if len(last.shape) == 3 else _of_sample(reading, last) if len(last.shape) == 2 else None


def identity_head(num_classes: int) -> dict[str, Array]:
    """Values with which a head gives back the scores that it reads."""
    return {f"{_SCORES}.weight": np.eye(num_classes, dtype=np.float32), f"{_SCORES}.bias": np.zeros(num_classes, np.float32)}


def _of_text(reading: Reading, last: Operation) -> Head | None:
    norm = reading.by_name[last.text("input")]
    scale = affine(reading, norm) if norm.kind == "layer_norm" else None
    if (
        scale is None
        or last.text("bias")
        or norm.arguments.get("normalized_shape") != (norm.shape[-1],)
        or not _alone(reading, norm.name)
    ):
        return None
    tensors = {
        "objective.head.norm.weight": scale[0],
        "objective.head.norm.bias": scale[1],
        f"{_SCORES}.weight": reading.value(last.text("weight")),
    }
    return Head(
        norm.text("input"), frozenset({last.name, norm.name}), {}, tensors, last.name, last.shape[-1], _shared(reading, last)
    )


def _of_sample(reading: Reading, last: Operation) -> Head | None:
    covers, name = [last.name], last.text("input")
    config: dict[str, Any] = {}
    operation = reading.by_name[name]
    if (
        operation.kind in ("flatten", "view", "reshape", "squeeze")
        and _alone(reading, name)
        and len(reading.by_name[operation.reads[0]].shape) == 4
    ):
        covers.append(name)
        name = operation.reads[0]
        operation = reading.by_name[name]
    if operation.kind in ("adaptive_avg_pool2d", "mean") and _alone(reading, name):
        if not (side := _side(reading, operation)):
            return None
        config["pool"] = side
        covers.append(name)
        name = operation.reads[0]
    elif len(operation.shape) == 4 and max(operation.shape[2:]) > MAX_POOL:
        return None
    operation = reading.by_name[name]
    if operation.kind in ("relu", "gelu") and _alone(reading, name) and reading.by_name[operation.reads[0]].kind == "linear":
        if operation.arguments.get("approximate", "none") != "none":
            return None
        config["activation"] = operation.kind
        covers.append(name)
        name = operation.reads[0]
    bias = last.text("bias")
    zeros: Array = np.zeros(last.shape[-1], np.float32)
    tensors = {f"{_SCORES}.weight": reading.value(last.text("weight")), f"{_SCORES}.bias": reading.value(bias) if bias else zeros}
    return Head(name, frozenset(covers), config, tensors, last.name, last.shape[-1], _shared(reading, last))


def _alone(reading: Reading, name: str) -> bool:
    return reading.next(name) is not None


def _side(reading: Reading, operation: Operation) -> int:
    """The ``pool`` with which a head averages as this operation does; 0 if none."""
    sample = reading.sample(operation.reads[0])
    if operation.kind == "mean":
        return 1 if averages_all(operation, len(sample)) else 0
    sides = pair(operation.arguments.get("output_size"))
    if sides is None or len(sample) != 3 or max(sides) > MAX_POOL:
        return 0
    side = max(sides)
    return side if sides == (min(side, sample[1]), min(side, sample[2])) else 0


def _shared(reading: Reading, last: Operation) -> tuple[str, ...]:
    key = reading.traced.identities.get(last.text("weight"))
    names = [name for name, other in reading.traced.identities.items() if other == key]
    users = {user.name for name in names for user in reading.users.get(name, [])}
    return ("the scores shared their weights with another layer; they learn apart from here on",) if len(users) > 1 else ()
