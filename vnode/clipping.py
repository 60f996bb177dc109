"""What keeps one bad delta from moving the weights far: centred clipping with momentum, and a plain bound where few replicas learn. Pure.

From `vnode.merging.MIN_CONTRIBUTORS` contributors on, a delta counts as far as it lies within a radius around the centre, an average of what was taken in
before: Karimireddy, He and Jaggi 2021 (arXiv 2012.10333), x' = v + (x - v) min(1, tau / |x - v|), with their momentum at the one place that nobody but the
primary can write. Deltas come one by one and bring different numbers of batches, so v, x and tau are per batch; tau is the median distance of the last deltas
(ours: a constant would have to follow the learning rate). What is remembered lies in the state, so whoever restores it merges alike.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from vnode.state import NUM_DISTANCES

MOMENTUM: Final = 0.9
MIN_KNOWN: Final = 4
"""Distances without which there is no median; until then only the plain bound holds."""
LEAST: Final = 2.0**-126
"""As far as that a delta is remembered to have been, also where it lay on the centre: that is so by last bits, and whoever sends it there would decide by them
whether there is a median. The smallest normal number, which every machine keeps.
"""
MAX_MOVE: Final = 1.0
"""No delta moves the weights of a VNode further than this part of their own norm."""

Moved = Mapping[str, Tensor]
"""A displacement of the weights, by parameter."""


@dataclass(frozen=True, slots=True)
class Centre:
    """What merges remember."""

    moved: Moved
    """Per batch, float32."""
    distances: Tensor
    """Of the last deltas from the centre as it was, per batch, oldest first; 0 where there was none."""


def begun(weights: Moved) -> Centre:
    """Before the first delta."""
    zeros = {name: torch.zeros_like(value) for name, value in weights.items()}
    return Centre(zeros, torch.zeros(NUM_DISTANCES))


def bounded(moved: Moved, weights: Moved) -> Moved:
    """The displacement, no longer than `MAX_MOVE` of the weights. All values finite."""
    length, most = _norm(moved), MAX_MOVE * _norm(weights)
    return moved if length <= most else {name: value * (most / length) for name, value in moved.items()}


def clipped(moved: Moved, num_batches: int, centre: Centre) -> tuple[Moved, Centre]:
    """What counts of a displacement that ``num_batches`` made, and the centre after it. The first few count whole, and move no centre."""
    away = {name: value / num_batches - centre.moved[name] for name, value in moved.items()}
    distance, radius = _norm(away), _radius(centre.distances)
    distances = torch.cat([centre.distances[1:], torch.tensor([max(distance, LEAST)], dtype=torch.float32)])
    if radius is None:
        return moved, Centre(centre.moved, distances)
    factor = min(1.0, radius / distance) if distance > 0 else 1.0
    taken = {name: centre.moved[name] + factor * value for name, value in away.items()}
    after = {name: torch.lerp(taken[name], value, MOMENTUM) for name, value in centre.moved.items()}
    return {name: num_batches * value for name, value in taken.items()}, Centre(after, distances)


def _radius(distances: Tensor) -> float | None:
    known = sorted(float(value) for value in distances if value > 0)
    if len(known) < MIN_KNOWN:
        return None
    return statistics.median(known)


def _norm(values: Moved) -> float:
    """Euclidean, over all tensors, in float64."""
    return math.sqrt(sum(float(value.double().square().sum()) for value in values.values()))
