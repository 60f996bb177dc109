"""How far claimed values lie from those a checker found, as numbers that do not depend on scale, width or codec. Torch-free.

All sums are in float64. Every residual is infinite where shapes differ or a claimed value is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dcnr.codecs import BLOCK_VALUES
from vnode.state import DISTANCES, Array

ULP = 2.0**-23
"""Distance of float32 numbers next to each other, relative."""
ROW_VALUES = 1024
"""Squares that are summed in float32 at a time."""
SLAB_VALUES = 1 << 16
"""Values that stay near the processor while they are gone through several times."""
SQUARES_FLOAT32 = (1e-24, 1e30)
"""Between these a sum of squares says that none of them was too large for float32, and that those too small for it do not matter."""
FAR = 1e30
"""Units that what moved is off by where nothing should have: above every tolerance, and no less than finite, since last bits may decide whether it moves."""
HALF_STEP = 0.5 + 1e-4
"""Steps of an int8 code that rounding moves a value by at most, with room for the last bits of its scale."""
LOSS_FLOOR = 0.1
"""Nats: losses below it are compared as if they were as large."""
OUTPUT_FLOOR = 0.1
"""Outputs of a smaller rms are compared as if they were as large: what an activation leaves of almost nothing is rounding."""


@dataclass(frozen=True, slots=True)
class StateResidual:
    """Of one tensor of a state. ``part``: weights, slots or buffers; bulk: of all weights, or of one slot of all of them."""

    part: str
    name: str
    residual: float


def output_residual(claimed: Array, found: Array, codec: str) -> float:
    """Rms of what the codec cannot explain, relative to the rms of what was found: an honest output lies within half a quantum."""
    if not _alike(claimed, found):
        return math.inf
    with np.errstate(over="ignore", invalid="ignore"):
        excess = _beyond_quanta(claimed, found) if codec == "int8" else _beyond(claimed, found, codec)
    if not math.isfinite(excess):
        return math.inf
    return excess / max(rms(found), OUTPUT_FLOOR) if excess else 0.0


def _beyond(claimed: Array, found: Array, codec: str) -> float:
    """For every codec; also values that are not finite, for which it is not finite either."""
    excess = claimed - found  # in float32: exact where the two are within a factor of two
    if codec == "raw":
        return rms(excess)
    np.abs(excess, out=excess)
    half = half_quantum(claimed, codec)
    excess -= half
    twice = np.add(
        excess, np.abs(excess, out=half), out=excess
    )  # of what is above zero: exact, and half as dear as numpy's maximum
    return rms(twice) / 2


def _beyond_quanta(claimed: Array, found: Array) -> float:
    """For int8: some blocks at a time, which stay near the processor; of an honest output nothing is left to be squared."""
    theirs, mine, squares = claimed.reshape(-1), found.reshape(-1), 0.0
    scratch = np.empty(min(theirs.size, SLAB_VALUES), np.result_type(claimed, found))
    for start, stop, width in _runs_of_blocks(theirs.size):
        given, apart = theirs[start:stop].reshape(-1, width), scratch[: stop - start].reshape(-1, width)
        half = _half_of_blocks(np.abs(given, out=apart).reshape(-1), width)
        if not np.isfinite(half).all():
            return math.inf
        np.subtract(given, mine[start:stop].reshape(-1, width), out=apart)
        np.abs(apart, out=apart)
        apart -= half[:, None]
        if not apart.max() <= 0.0:  # nor where it is no number
            squares += float(np.square(np.maximum(apart, 0.0), dtype=np.float64).sum())
    return math.sqrt(squares / max(theirs.size, 1))


def value_residual(claimed: Array, found: Array, scale: float) -> float:
    """Rms of the difference in units of ``scale``; a scale of zero is a fault of whoever claims."""
    return _relative(rms(claimed.astype(np.float64) - found), scale) if _comparable(claimed, found) else math.inf


def largest_residual(claimed: Array, found: Array) -> float:
    """The largest difference of all, relative to the rms of what was found: for values each of which decides something by itself."""
    if not _comparable(claimed, found):
        return math.inf
    return _relative(float(np.abs(claimed - found).max(initial=0.0)), rms(found))


def loss_residual(claimed: float, found: float) -> float:
    """Relative difference of two losses."""
    return abs(claimed - found) / (abs(found) + LOSS_FLOOR) if math.isfinite(claimed) else math.inf


def rate_residual(claimed: float, found: float) -> float:
    """Relative difference of two learning rates; both come from the same few float64 operations."""
    return abs(claimed - found) / max(abs(found), 1e-30) if math.isfinite(claimed) else math.inf


def state_residuals(
    first: Mapping[str, Array], claimed: Mapping[str, Array], found: Mapping[str, Array], num_steps: int, *, with_bulk: bool = False
) -> Iterator[StateResidual]:
    """At least one residual per tensor: the distance in units of what the tensor should have moved from ``first``.

    A tensor that moves less than others of its part is measured by their rms movement: gradients that are zero up to rounding say nothing. From
    the distance is taken what float32 cannot tell: one unit in the last place per step, as a random walk. Integers have to be equal.

    An optimiser that divides by the size of gradients (it keeps their ``square``) moves weights without a gradient as far as others, in a
    direction that rounding decides. Its weights are therefore compared twice: times the size of their gradient, which is what the loss feels, and
    plainly (``wander``), with a tolerance of its own.

    ``with_bulk``: also how far most values are off, which a few that honest machines have otherwise do not move.
    """
    felt = [_Residuals(first, found, num_steps, "weights", _gradient_sizes(found))] if _has_squares(found) else []
    plain = _Residuals(first, found, num_steps, "wander" if felt else "weights", {})
    for name in sorted(claimed.keys() - found.keys()):
        yield StateResidual(_part(name), name, math.inf)
    for name in sorted(found):
        mine, theirs = found[name], claimed.get(name)
        if theirs is None or not _comparable(theirs, mine):
            yield StateResidual(_part(name), name, math.inf)
        elif mine.dtype.kind != "f":
            yield StateResidual(_part(name), name, 0.0 if np.array_equal(mine, theirs) else math.inf)
        else:
            yield plain.residual(name, theirs)
            if name.startswith("w/"):
                yield from (weighted.residual(name, theirs) for weighted in felt)
    if with_bulk:
        kinds = [(kind, felt[0] if felt and kind == "w" else plain) for kind in sorted(plain.kinds)]
        yield from (StateResidual("bulk", kind, of.bulk(kind, claimed)) for kind, of in kinds)


def restated_residuals(before: Mapping[str, Array], claimed: Mapping[str, Array]) -> Iterator[StateResidual]:
    """Of a state behind which nothing was learned or merged: 0 for each tensor that is the one before it, value by value, else infinite. Whoever computes
    nothing rounds nothing, and last bits that may move with every statement would add up.
    """
    for name in sorted(before.keys() | claimed.keys()):
        mine, theirs = before.get(name), claimed.get(name)
        is_same = (
            mine is not None and theirs is not None and mine.dtype == theirs.dtype and np.array_equal(mine, theirs, equal_nan=True)
        )
        yield StateResidual(_part(name), name, 0.0 if is_same else math.inf)


class _Residuals:
    """Distances of one state, each value times its weight, if it has one."""

    def __init__(
        self, first: Mapping[str, Array], found: Mapping[str, Array], num_steps: int, part: str, weights: Mapping[str, Array]
    ) -> None:
        self._first, self._found, self._num_steps, self._part, self._weights = first, found, num_steps, part, weights
        self._moved = {
            name: norm(self._weighted(name, _moved(name, first, found))) for name in found if found[name].dtype.kind == "f"
        }
        self._sums: dict[str, list[float]] = {}
        for name, moved in self._moved.items():
            sums = self._sums.setdefault(_kind(name), [0.0, 0.0])
            sums[0] += moved**2
            sums[1] += found[name].size

    @property
    def kinds(self) -> frozenset[str]:
        """Weights, and each slot."""
        return frozenset(_kind(name) for name in self._moved if name.startswith(("w/", "o/")))

    def residual(self, name: str, claimed: Array) -> StateResidual:
        """Of a tensor that can be compared."""
        distance = max(norm(self._weighted(name, claimed.astype(np.float64) - self._found[name])) - self._rounding(name), 0.0)
        residual = min(_relative(distance, self._scale(name)), FAR)
        return StateResidual(self._part if name.startswith("w/") else _part(name), name, residual)

    def bulk(self, kind: str, claimed: Mapping[str, Array]) -> float:
        """The median, over all values of that kind that can be compared, of how far each is off: in units of the rms of what its tensor should have moved."""
        apart: list[Array] = []
        for name in (name for name in self._moved if _kind(name) == kind and name in claimed):
            theirs, mine = claimed[name], self._found[name]
            if _comparable(theirs, mine):
                distances = np.abs(self._weighted(name, theirs.astype(np.float64) - mine)).reshape(-1)
                beyond = np.maximum(distances - self._rounding(name) / math.sqrt(max(mine.size, 1)), 0.0)
                unit = self._scale(name) / math.sqrt(max(mine.size, 1))
                with np.errstate(over="ignore"):
                    apart.append((beyond / unit if unit > 0 else np.where(beyond > 0, FAR, 0.0)).astype(np.float32))
        return float(np.median(np.concatenate(apart))) if apart else 0.0

    def _scale(self, name: str) -> float:
        squares, size = self._sums[_kind(name)]
        return max(self._moved[name], math.sqrt(squares / max(size, 1.0) * self._found[name].size))

    def _rounding(self, name: str) -> float:
        return ULP * norm(self._weighted(name, self._found[name])) * math.sqrt(self._num_steps)

    def _weighted(self, name: str, values: Array) -> Array:
        weight = self._weights.get(name)
        return values if weight is None else values * weight


def _has_squares(state: Mapping[str, Array]) -> bool:
    return any(name.startswith("o/") and name.endswith("/square") for name in state)


def _gradient_sizes(state: Mapping[str, Array]) -> dict[str, Array]:
    """By weight, the root of the mean square of its gradients."""
    return {f"w/{name[2:-7]}": np.sqrt(state[name].astype(np.float64)) for name in state if name.endswith("/square")}


def half_quantum(decoded: Array, codec: str) -> Array:
    """The largest error that encoding alone can have made of each decoded value."""
    match codec:
        case "int8":
            flat = np.abs(decoded).reshape(-1)
            half = _half_of_blocks(flat, BLOCK_VALUES)
            return np.repeat(half, BLOCK_VALUES)[: flat.size].reshape(decoded.shape)
        case "fp16":
            return np.maximum(np.abs(decoded) * 2.0**-11, 2.0**-25) * (1 + 1e-3)
        case "bf16":
            return np.abs(decoded) * 2.0**-8 * (1 + 1e-3)
        case _:
            return np.zeros(decoded.shape)


def half_ulp(values: Array) -> Array:
    """The largest error that rounding to float32 alone can have made of each value, which is far from the smallest ones."""
    half: Array = np.abs(values.astype(np.float64)) * 2.0**-24
    return half


def _half_of_blocks(magnitudes: Array, width: int) -> Array:
    half: Array = np.maximum.reduceat(magnitudes, np.arange(0, magnitudes.size, width)) / 127 * HALF_STEP
    return half


def _runs_of_blocks(num_values: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, values of a block): as many whole blocks as fit in a slab at a time, and what is left as one block of its own."""
    whole = num_values - num_values % BLOCK_VALUES
    for start in range(0, whole, SLAB_VALUES):
        yield start, min(start + SLAB_VALUES, whole), BLOCK_VALUES
    if whole < num_values:
        yield whole, num_values, num_values - whole


def norm(values: Array) -> float:
    """Euclidean. Of float32 values to a few parts in 10⁷ and in one pass through memory: short rows in float32, their sums in float64. Everything else, and
    what float32 has no room for, in float64; by numpy itself, since its BLAS would start threads for more than a row that no limit of torch holds.
    """
    if values.dtype == np.float32:
        flat = values.reshape(-1)
        whole = flat.size - flat.size % ROW_VALUES
        with np.errstate(over="ignore", invalid="ignore"):
            rows = flat[:whole].reshape(-1, ROW_VALUES)
            squares = float(np.vecdot(rows, rows).sum(dtype=np.float64))
            if whole < flat.size:
                squares += float(np.square(flat[whole:], dtype=np.float64).sum())
        if SQUARES_FLOAT32[0] < squares < SQUARES_FLOAT32[1]:
            return math.sqrt(squares)
    return math.sqrt(float(np.square(values, dtype=np.float64).sum()))


def rms(values: Array) -> float:
    """Root of the mean square; 0 for nothing."""
    return norm(values) / math.sqrt(max(values.size, 1))


def _relative(distance: float, scale: float) -> float:
    if distance == 0:
        return 0.0
    return distance / scale if scale > 0 else math.inf


def _alike(claimed: Array, found: Array) -> bool:
    return claimed.shape == found.shape and claimed.dtype.kind == found.dtype.kind


def _comparable(claimed: Array, found: Array) -> bool:
    return _alike(claimed, found) and bool(np.isfinite(claimed).all())


def _moved(name: str, first: Mapping[str, Array], found: Mapping[str, Array]) -> Array:
    """What the steps did to a tensor. Slots and the centre of merges forget where they began: their own size is the measure."""
    wide = found[name].astype(np.float64)
    return wide if name.startswith(("o/", "m/")) else wide - first[name]


def _part(name: str) -> str:
    return {"w": "weights", "o": "slots", "b": "buffers", "m": "weights"}[name[0]]


def _kind(name: str) -> str:
    """Tensors that are measured by one another's movement: weights, one slot of all of them, or their centre; buffers are not alike."""
    if name.startswith(("w/", "m/")) and name != DISTANCES:
        return name[0]
    return name.rpartition("/")[2] if name.startswith("o/") else name
