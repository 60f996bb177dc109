"""Goal: tensors arrive as they were sent within what their codec promises, and nothing a stranger sends is used, crashes or takes memory."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dcnr import limits
from dcnr.codecs import BLOCK_VALUES, CODECS, NUMPY_DTYPES
from dcnr.errors import Corrupt, InvalidInput, RemoteFault
from dcnr.tensor import (
    EncodedTensor,
    TensorAssembler,
    TensorHeader,
    check_finite,
    check_header,
    chunks,
    decode,
    encode,
    encode_final,
    tensor_digest,
)

LOSSY = ("fp16", "bf16", "int8")
SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple)
SIZES = st.sampled_from(
    [0, 1, 2, BLOCK_VALUES - 1, BLOCK_VALUES, BLOCK_VALUES + 1, 1000, (1 << 16) - 1, (1 << 16) + BLOCK_VALUES + 5]
)
SEEDS = st.integers(0, 2**32 - 1)
F32 = np.float32
Floats = NDArray[np.float32]


def normal(seed: int, size: int, scale: float = 1.0) -> Floats:
    """Gaussian values."""
    return np.asarray(np.random.default_rng(seed).standard_normal(size) * scale, F32)


def bits(array: NDArray[Any]) -> bytes:
    """The exact content, NaNs included."""
    return array.tobytes()


def assembled(encoded: EncodedTensor, chunk_bytes: int) -> NDArray[Any]:
    """The tensor after a trip in chunks."""
    assembler = TensorAssembler(encoded.header)
    for chunk in chunks(encoded, chunk_bytes=chunk_bytes):
        assembler.add(bytes(chunk))
    assert assembler.missing_bytes == 0
    assert assembler.finish().payload == encoded.payload
    return assembler.array()


@given(st.sampled_from(sorted(NUMPY_DTYPES)), SHAPES, SEEDS, st.integers(1, 5000))
def test_raw_is_exact_for_every_dtype_shape_and_chunking(dtype: str, shape: tuple[int, ...], seed: int, chunk_bytes: int) -> None:
    kind = NUMPY_DTYPES[dtype]
    count = int(np.prod(shape, dtype=int))
    data = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, count * kind.itemsize, np.uint8)
    array = data.view(kind).reshape(shape)
    encoded = encode(array, "raw")
    for back in (decode(encoded.header, encoded.payload), assembled(encoded, chunk_bytes)):
        assert (back.dtype, back.shape) == (kind, shape)
        assert bits(back) == bits(array)
        assert back.flags.writeable
        assert back.flags.c_contiguous


@settings(max_examples=60)
@given(st.sampled_from(LOSSY), SIZES, SEEDS, st.sampled_from([1e-3, 1.0, 100.0]))
def test_lossy_codecs_stay_within_their_error(codec: str, size: int, seed: int, scale: float) -> None:
    array = normal(seed, size, scale)
    encoded = encode(array, codec)
    back = decode(encoded.header, encoded.payload)
    assert bits(back) == bits(assembled(encoded, 1000))
    error = np.abs(back - array)
    if codec == "int8":
        for start in range(0, size, BLOCK_VALUES):
            block = slice(start, start + BLOCK_VALUES)
            assert error[block].max() <= np.abs(array[block]).max() / 127 * 0.5001
    else:
        relative, tiny = (2**-11, 2**-24) if codec == "fp16" else (2**-8, 0.0)
        assert (error <= np.abs(array) * relative + tiny).all()


def test_int8_error_on_gaussian_data_is_below_one_percent() -> None:
    array = normal(0, 1 << 18)
    encoded = encode(array, "int8")
    error = np.linalg.norm(decode(encoded.header, encoded.payload) - array) / np.linalg.norm(array)
    assert 0.004 < error < 0.007
    assert encoded.header.encoded_bytes == array.size * (1 + 4 / BLOCK_VALUES)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=300))
def test_bf16_equals_the_definition_on_any_bits(patterns: list[int]) -> None:
    array = np.array(patterns, np.uint32).view(F32)
    magnitudes = np.array(patterns, np.uint32) & 0x7FFFFFFF
    if ((magnitudes >= 0x7F7F8000) & (magnitudes < 0x7F800000)).any():
        with pytest.raises(InvalidInput):
            encode(array, "bf16")
        return
    encoded = encode(array, "bf16")
    back = decode(encoded.header, encoded.payload)
    for before, after, value in zip(patterns, back.view(np.uint32).tolist(), back.tolist(), strict=True):
        low, rest = before >> 16, before & 0xFFFF
        up = rest > 0x8000 or (rest == 0x8000 and low & 1)
        if (before & 0x7FFFFFFF) > 0x7F800000:
            assert value != value
            assert after >> 31 == before >> 31
        else:
            assert after == (low + up) << 16


@pytest.mark.parametrize("codec", ["raw", "fp16", "bf16"])
def test_specials_survive(codec: str) -> None:
    nans = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000], np.uint32).view(F32)
    array = np.concatenate([np.array([np.inf, -np.inf, -0.0, 0.0], F32), nans])
    encoded = encode(array, codec)
    back = decode(encoded.header, encoded.payload)
    assert bits(back[:4]) == bits(array[:4])
    assert np.isnan(back[4:]).all()


def test_denormals() -> None:
    denormals = (np.arange(1, 400, dtype=np.uint32) << 14).view(F32)
    for codec, allowed in (("raw", 0.0), ("bf16", 2**-134), ("fp16", 2**-25), ("int8", 2**-127)):
        encoded = encode(denormals, codec)
        back = decode(encoded.header, encoded.payload)
        assert np.abs(back.astype(np.float64) - denormals).max() <= allowed


@pytest.mark.parametrize("position", [0, 127, 128, 70_000])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_int8_and_l0_refuse_what_is_not_finite_at_every_position(position: int, value: float) -> None:
    array = normal(1, 70_001)
    check_finite(array)
    array[position] = value
    with pytest.raises(InvalidInput):
        encode(array, "int8")
    with pytest.raises(RemoteFault, match="NaN or inf"):
        check_finite(array)


def test_extremes_of_int8_and_overflow_of_halves() -> None:
    largest = np.finfo(F32).max
    array = np.array([largest, -largest, 0.0, -0.0] + [0.0] * 200, F32)
    encoded = encode(array, "int8")
    back = decode(encoded.header, encoded.payload)
    assert np.isfinite(back).all()
    assert abs(back[0] / largest - 1) < 1e-6
    assert not np.signbit(back[2:]).any()
    for codec in ("fp16", "bf16"):
        with pytest.raises(InvalidInput, match="too large"):
            encode(array, codec)


def test_norm_bound() -> None:
    """The root of the mean square counts: a large value among small ones passes, of many large ones none does."""
    bound = limits.MAX_TENSOR_RMS
    few, half = np.zeros(70_001, F32), np.full(70_001, 0.5 * bound, F32)
    few[-1] = 200 * bound
    for fine in (few, half, np.array([bound], F32), np.array([], F32), np.array([2**62]), np.full(3, 6e4, np.float16)):
        check_finite(fine)
    half[:30_000] = 2 * bound
    few[-1] = 300 * bound
    for array in (few, half, np.array([1.001 * bound], F32), np.array([0.0, 3e38], F32), np.full(70_001, 3e38, F32)):
        with pytest.raises(RemoteFault, match="norm") as caught:
            check_finite(array)
        assert caught.value.code == "norm_bound"


def test_what_may_not_travel() -> None:
    for array, codec in (
        (np.zeros(3, np.float64), "raw"),
        (np.zeros(3, object), "raw"),
        (np.zeros(3, "U3"), "raw"),
        (np.zeros(3, np.int64), "bf16"),
        (np.zeros(3, np.float16), "fp16"),
        (np.zeros(3, F32), "zstd"),
        (np.zeros((1,) * 9, F32), "raw"),
        (np.broadcast_to(np.zeros(1, F32), (1 << 40,)), "raw"),
    ):
        with pytest.raises(InvalidInput):
            encode(array, codec)


def test_layouts_and_ownership() -> None:
    array = np.arange(12, dtype=">f4").reshape(3, 4).T
    encoded = encode(array, "raw")
    assert (decode(encoded.header, encoded.payload) == array).all()
    source = np.ones(4, F32)
    kept = encode(source, "raw")
    source[:] = 7
    back = decode(kept.header, kept.payload)
    assert (back == 1).all(), "what was hashed must not change with the array"
    back[:] = 9
    assert (decode(kept.header, kept.payload) == 1).all()
    assert kept.payload.readonly


def test_a_final_array_is_not_copied_and_says_the_same() -> None:
    array = normal(4, 300).reshape(3, 100)
    for codec in CODECS:
        final, copied = encode_final(array, codec), encode(array, codec)
        assert (final.header, final.payload) == (copied.header, copied.payload)
        assert final.payload.readonly
        assert not copied.is_view
        assert final.is_view == (codec == "raw") == np.may_share_memory(np.frombuffer(final.payload, np.uint8), array)
    for other in (array.T, array[:, ::2], array.astype(">f4")):
        final = encode_final(other, "raw")
        assert not final.is_view
        assert (decode(final.header, final.payload) == other).all()
    assert encode_final(np.zeros((0, 3), F32), "raw").payload == b""


@settings(max_examples=40)
@given(
    st.sampled_from(["raw", "fp16"]), st.integers(0, 70_000), st.sampled_from([np.nan, np.inf, -np.inf]), st.integers(201, 300_000)
)
@example("raw", 65_536, np.nan, 1)
def test_values_that_are_not_finite_are_found_wherever_chunks_end(
    codec: str, position: int, value: float, chunk_bytes: int
) -> None:
    array = normal(1, 70_001)
    for bad in (False, True):
        if bad:
            array[position] = value
        encoded = encode(array, codec)
        assembler = TensorAssembler(encoded.header)
        for chunk in chunks(encoded, chunk_bytes=chunk_bytes):
            assembler.add(chunk)
        if bad:
            with pytest.raises(RemoteFault, match="NaN or inf"):
                assembler.finite_array()
        else:
            assert bits(assembler.finite_array()) == bits(decode(encoded.header, encoded.payload))


@settings(max_examples=40)
@given(st.sampled_from(["raw", "int8"]), st.integers(1, 70_001), st.integers(201, 300_000))
def test_a_norm_is_measured_over_all_chunks(codec: str, size: int, chunk_bytes: int) -> None:
    array = np.ones(size, F32)
    for part, is_fine in ((0.99, True), (1.02, False)):
        encoded = encode(array * F32(part * limits.MAX_TENSOR_RMS), codec)
        assembler = TensorAssembler(encoded.header)
        for chunk in chunks(encoded, chunk_bytes=chunk_bytes):
            assembler.add(chunk)
        if is_fine:
            assert assembler.finite_array().shape == array.shape
        else:
            with pytest.raises(RemoteFault, match="norm"):
                assembler.finite_array()


def test_a_wrong_digest_comes_before_a_wrong_value() -> None:
    encoded = encode(normal(2, 8), "raw")
    bad = bytearray(encoded.payload)
    bad[0:4] = np.array([np.nan], F32).tobytes()
    assembler = TensorAssembler(encoded.header)
    assembler.add(bad)
    with pytest.raises(Corrupt):
        assembler.finite_array()


@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_is_found(codec: str) -> None:
    encoded = encode(normal(2, 33), codec)
    for index in range(len(encoded.payload)):
        bad = bytearray(encoded.payload)
        bad[index] ^= 1 << (index % 8)
        with pytest.raises(Corrupt):
            decode(encoded.header, bad)
        assembler = TensorAssembler(encoded.header)
        assembler.add(bad)
        with pytest.raises(Corrupt):
            assembler.array()


def test_transfers_of_the_wrong_size() -> None:
    encoded = encode(normal(3, 100), "raw")
    for wrong in (encoded.payload[:-1], bytes(encoded.payload) + b"x", b""):
        with pytest.raises(Corrupt):
            decode(encoded.header, wrong)
    assembler = TensorAssembler(encoded.header)
    for chunk in (b"", bytes(401), bytes(limits.MAX_CHUNK_BYTES + 1)):
        with pytest.raises(RemoteFault):
            assembler.add(chunk)
    assembler.add(encoded.payload[:399])
    with pytest.raises(Corrupt, match="1 bytes are missing"):
        assembler.array()
    assembler.add(encoded.payload[399:])
    assert bits(assembler.array()) == bytes(encoded.payload)
    with pytest.raises(InvalidInput):
        next(chunks(encoded, chunk_bytes=limits.MAX_CHUNK_BYTES + 1))


def signed(payload: bytes, dtype: str, codec: str, size: int) -> TensorHeader:
    """A header whose digest fits, as a liar would send it."""
    return TensorHeader(dtype, (size,), codec, len(payload), tensor_digest(payload))


def test_well_digested_nonsense_is_refused() -> None:
    scales: list[float] = [float("nan"), float("inf"), -1.0, 0.0, 1e-45, 3e38]
    bad = [(np.array([scale], "<f4").tobytes() + b"\x01\x02", "float32", "int8", 2) for scale in scales]
    bad += [(np.array([1.0], "<f4").tobytes() + b"\x80\x02", "float32", "int8", 2), (b"\x00\x02", "bool", "raw", 2)]
    for payload, dtype, codec, size in bad:
        with pytest.raises(Corrupt):
            decode(signed(payload, dtype, codec, size), payload)


HOSTILE: list[object] = [
    None, True, -1, 0, 1, 3, 8, 2**31, 2**62, 2**63, 2**64 + 3, -(2**70), 10**5000, 1.5, float("nan"), "", "raw", "int8", "float32", "object",
    "float64", "uint8", "bool", "bfloat16", "x" * 99, "0" * 64, "A" * 64, b"raw", (), (0, 2**63), (2**32, 2**32), (1,) * 9, (-1,), (2.0,), (True,),
    (2**28,), (2**26 + 1,), (2**26,), (10**5000,), [3], {}, ("3",), (0, 0), (3, 5),
]  # fmt: skip


def test_the_digest_is_blake3_as_published() -> None:
    assert tensor_digest(b"") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert tensor_digest(b"\x00") == "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"


def test_fuzzed_headers_are_answered_with_typed_errors_and_no_memory() -> None:
    rng = random.Random(20)
    good = [encode(normal(4, 15).reshape(3, 5), codec) for codec in CODECS]
    names = [field.name for field in dataclasses.fields(TensorHeader)]
    accepted = 0
    tracemalloc.start()
    try:
        for _ in range(20_000):
            encoded = rng.choice(good)
            changes: dict[str, Any] = {name: rng.choice(HOSTILE) for name in rng.sample(names, rng.randint(1, 3))}
            header = dataclasses.replace(encoded.header, **changes)
            try:
                check_header(header)
                accepted += 1
                assert header.decoded_bytes <= limits.MAX_TENSOR_BYTES
                decode(header, encoded.payload)
            except (RemoteFault, Corrupt):
                continue
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert 0 < accepted < 4_000


def test_header_bounds_are_exact() -> None:
    room = limits.MAX_TENSOR_BYTES // 4
    check_header(TensorHeader("float32", (room,), "raw", 4 * room, "0" * 64))
    check_header(TensorHeader("float32", (), "int8", 5, "0" * 64), max_bytes=8)
    for header, kwargs in (
        (TensorHeader("float32", (room + 1,), "raw", 4 * room + 4, "0" * 64), {}),
        (TensorHeader("float32", (3,), "raw", 12, "0" * 64), {"max_bytes": 11}),
        (TensorHeader("float32", (3,), "raw", 12, "0" * 64), {"allowed_codecs": ("int8",)}),
        (TensorHeader("float32", (0, 2**60), "raw", 0, "0" * 64), {}),
        (TensorHeader("float32", (0, 2**25, 2**25), "raw", 0, "0" * 64), {}),
    ):
        with pytest.raises(RemoteFault) as caught:
            check_header(header, **kwargs)
        assert caught.value.details["field"] in {"shape", "codec"}
