"""The four encodings of a flat array: sizes follow from codec, dtype and count alone, and no codec changes a value's kind in silence.

================ ===================== =============================================================================================
codec            bytes for n values    what happens to NaN, infinities, -0.0 and denormals
================ ===================== =============================================================================================
``raw``          n · itemsize          everything is kept bit by bit
``fp16``         2 n                   NaN, infinities and -0.0 kept; finite values that would become infinite are refused
``bf16``         2 n                   the same; round to nearest, ties to even; denormals kept
``int8``         n + 4 ⌈n / 128⌉       NaN and infinities are refused; -0.0 becomes 0.0; error at most half a 127th of the block's maximum
================ ===================== =============================================================================================

``int8`` holds the float32 scales of all blocks of 128 consecutive values, then the values; about 0.65 % relative error on Gaussian
data. Everything is little-endian. Work proceeds in slabs that stay in the processor's cache, so memory beyond input and output is small.
Refusals are InvalidInput when encoding (our array) and Corrupt when decoding (someone's bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dcnr.errors import Corrupt, InvalidInput

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

NUMPY_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "int64": np.dtype("<i8"), "int32": np.dtype("<i4"),
    "int16": np.dtype("<i2"), "int8": np.dtype("i1"), "uint8": np.dtype("u1"), "bool": np.dtype("?"),
}  # fmt: skip
"""The dtypes that travel, as little-endian numpy types."""
CODECS: Final = ("raw", "fp16", "bf16", "int8")
BLOCK_VALUES: Final = 128
"""Values that share one int8 scale."""
_SLAB_VALUES: Final = 1 << 16
_LEVELS: Final = np.float32(127)
_MIN_SCALE: Final = np.finfo(np.float32).tiny
"""Scales stay normal numbers: the same result where a thread flushes denormals to zero."""
_BF16_LIMIT: Final = np.uint32(0x7F7F8000)
"""Magnitudes from these bits on round to infinity in bf16."""
_INFINITY: Final = np.uint32(0x7F800000)


def codecs_sent(declared: str) -> tuple[str, ...]:
    """In which of them frames of training go where a graph declares that one for its edges, or ``auto``: what a lossy one cannot hold goes raw.

    No two of them give as many bytes for as many values, so the bytes alone say which array they are. ``fp16`` and ``bf16`` would.
    """
    if declared in ("", "auto"):
        return ("raw", "int8")
    return ("raw",) if declared == "raw" else ("raw", declared)


def encoded_bytes(codec: str, dtype: str, num_values: int) -> int:
    """The exact size of ``num_values`` values of ``dtype`` in ``codec``; both must be known names."""
    match codec:
        case "raw":
            return num_values * NUMPY_DTYPES[dtype].itemsize
        case "int8":
            return num_values + 4 * -(-num_values // BLOCK_VALUES)
        case _:
            return 2 * num_values


def encode_values(codec: str, values: Array) -> Bytes:
    """The encoding of a flat, contiguous, little-endian array, in memory of its own. Raises InvalidInput (see the table)."""
    if codec == "raw":
        return np.frombuffer(bytearray(values.view(np.uint8)), np.uint8)
    return _ENCODERS[codec](values)


def decode_values(codec: str, dtype: str, payload: Bytes, num_values: int) -> Array:
    """``num_values`` decoded values in memory of their own; ``payload`` has the size that `encoded_bytes` gives. Raises Corrupt."""
    values = np.empty(num_values, NUMPY_DTYPES[dtype])
    if codec != "raw":
        _DECODERS[codec](payload, values)
        return values
    if dtype == "bool" and num_values and payload.max() > 1:
        raise Corrupt("a bool is neither 0 nor 1", code="bad_tensor_bytes")
    values.view(np.uint8)[...] = payload
    return values


def _slabs(num_values: int) -> Iterator[slice]:
    for start in range(0, num_values, _SLAB_VALUES):
        yield slice(start, min(start + _SLAB_VALUES, num_values))


def _out_of_range(codec: str) -> InvalidInput:
    return InvalidInput(f"a finite value is too large for {codec}", code="out_of_range", remedy="use bf16 or raw, or scale it down")


def _encode_fp16(values: Array) -> Bytes:
    out = np.empty(values.size, "<f2")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for slab in _slabs(values.size):
            out[slab] = values[slab]
            infinite = np.isinf(out[slab])
            if infinite.any() and not np.isinf(values[slab][infinite]).all():
                raise _out_of_range("fp16")
    return out.view(np.uint8)


def _decode_fp16(payload: Bytes, values: Array) -> None:
    with np.errstate(invalid="ignore"):
        values[...] = payload.view("<f2")


def _encode_bf16(values: Array) -> Bytes:
    out = np.empty(values.size, "<u2")
    scratch = np.empty(min(values.size, _SLAB_VALUES), np.uint32)
    for slab in _slabs(values.size):
        bits = values[slab].view("<u4")
        rounded = scratch[: bits.size]
        np.bitwise_and(bits, np.uint32(0x7FFFFFFF), out=rounded)
        if rounded.max() >= _BF16_LIMIT:
            _refuse_overflow(rounded)
            out[slab] = _bf16_with_specials(bits)
            continue
        np.right_shift(bits, np.uint32(16), out=rounded)
        rounded &= np.uint32(1)
        rounded += np.uint32(0x7FFF)
        rounded += bits
        rounded >>= np.uint32(16)
        out[slab] = rounded
    return out.view(np.uint8)


def _refuse_overflow(magnitudes: NDArray[np.uint32]) -> None:
    if ((magnitudes >= _BF16_LIMIT) & (magnitudes < _INFINITY)).any():
        raise _out_of_range("bf16")


def _bf16_with_specials(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """As the fast path, but NaNs keep their sign and upper payload and stay NaN (rounding could carry them over to infinity or zero)."""
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > _INFINITY
    return np.where(is_nan, quiet, rounded)


def _decode_bf16(payload: Bytes, values: Array) -> None:
    bits, halves = values.view("<u4"), payload.view("<u2")
    for slab in _slabs(values.size):
        part = bits[slab]
        part[...] = halves[slab]
        part <<= np.uint32(16)


def _encode_int8(values: Array) -> Bytes:
    num_blocks = -(-values.size // BLOCK_VALUES)
    out = np.empty(4 * num_blocks + values.size, np.uint8)
    scales, levels = out[: 4 * num_blocks].view("<f4"), out[4 * num_blocks :].view(np.int8)
    scratch = np.empty(min(values.size, _SLAB_VALUES), np.float32)
    for start, stop, width in _block_runs(values.size):
        blocks = values[start:stop].reshape(-1, width)
        work = scratch[: stop - start].reshape(-1, width)
        first_block = start // BLOCK_VALUES
        np.abs(blocks, out=work)
        scale = _scales_for(work.max(axis=1))
        scales[first_block : first_block + len(scale)] = scale
        np.multiply(blocks, (1 / scale)[:, None], out=work)
        np.rint(work, out=work)
        levels[start:stop].reshape(-1, width)[...] = work
    return out


def _scales_for(maxima: NDArray[np.float32]) -> NDArray[np.float32]:
    """One finite, positive, normal scale per block, such that 127 of it is finite too. Raises InvalidInput for NaN and infinities."""
    if not np.isfinite(maxima).all():
        raise InvalidInput("int8 cannot hold NaN or infinities", code="not_finite", remedy="use fp16, bf16 or raw")
    scale: NDArray[np.float32] = np.maximum(maxima / _LEVELS, _MIN_SCALE)
    with np.errstate(over="ignore"):
        too_large = np.isinf(scale * _LEVELS)
    scale[too_large] = np.nextafter(scale[too_large], np.float32(0))
    return scale


def _decode_int8(payload: Bytes, values: Array) -> None:
    num_blocks = -(-values.size // BLOCK_VALUES)
    scales, levels = payload[: 4 * num_blocks].view("<f4"), payload[4 * num_blocks :].view(np.int8)
    if not num_blocks:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        usable = bool(((scales >= _MIN_SCALE) & np.isfinite(scales * _LEVELS)).all())
    if not usable or levels.min() == -128:
        raise Corrupt("an int8 scale or level is outside its range", code="bad_tensor_bytes")
    for start, stop, width in _block_runs(values.size):
        blocks = values[start:stop].reshape(-1, width)
        first_block = start // BLOCK_VALUES
        blocks[...] = levels[start:stop].reshape(-1, width)
        blocks *= scales[first_block : first_block + len(blocks), None]


def _block_runs(num_values: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, block width): slabs of whole blocks, then the last block if it is shorter."""
    whole = num_values - num_values % BLOCK_VALUES
    for slab in _slabs(whole):
        yield slab.start, slab.stop, BLOCK_VALUES
    if whole < num_values:
        yield whole, num_values, num_values - whole


_ENCODERS: Final[Mapping[str, Callable[[Array], Bytes]]] = {"fp16": _encode_fp16, "bf16": _encode_bf16, "int8": _encode_int8}
_DECODERS: Final[Mapping[str, Callable[[Bytes, Array], None]]] = {"fp16": _decode_fp16, "bf16": _decode_bf16, "int8": _decode_int8}
