"""Tensors on the wire: a header is checked in full before memory is taken for it, and bytes are used only if they match its digest.

The digest covers the *encoded* bytes: sender, receiver and auditor decode the same bytes to the same array, whatever the codec loses
(see `dcnr.codecs`). Nothing here knows torch, protobuf or pickle. Faults of a peer are RemoteFault (the header or the transfer breaks the
protocol, or L0 of the validation ladder: values not finite, norm over its bound) or Corrupt (bytes do not match digest or format).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from dcnr import codecs, limits
from dcnr.errors import Corrupt, InvalidInput, InvariantBroken, RemoteFault

Array = NDArray[Any]
Payload = bytes | bytearray | memoryview

_HEX64: Final = re.compile(r"[0-9a-f]{64}")
_NAMES: Final = {dtype: name for name, dtype in codecs.NUMPY_DTYPES.items()}
"""numpy puts the name of a dtype together anew each time that it is asked."""
_MAGNITUDE_VALUES: Final = 1 << 16
"""Values looked at together: they stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What is coming: ``dtype`` and ``shape`` before encoding, the codec, the exact size, and the `tensor_digest` of the encoded bytes."""

    dtype: str
    shape: tuple[int, ...]
    codec: str
    encoded_bytes: int
    digest: str

    @property
    def num_values(self) -> int:
        """Values in the tensor; 1 for shape ()."""
        return math.prod(self.shape)

    @property
    def decoded_bytes(self) -> int:
        """Size of the array after decoding; ``dtype`` must have been checked."""
        return self.num_values * codecs.NUMPY_DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class EncodedTensor:
    """A header and the read-only bytes it describes."""

    header: TensorHeader
    payload: memoryview
    is_view: bool = False
    """The payload is the memory of the array that it was made from."""


def tensor_digest(payload: Payload) -> str:
    """BLAKE3 of encoded bytes, 64 hex characters. Objects in the store are named by SHA-256 (`dcnr.ids.digest_of`)."""
    return blake3(payload).hexdigest()


def encode(array: Array, codec: str) -> EncodedTensor:
    """The wire form of ``array``, in memory of its own. Raises InvalidInput for a dtype, size or value that may not travel, or not in this codec."""
    header, flat = _prepared(array, codec)
    return _digested(header, codecs.encode_values(codec, flat))


def encode_final(array: Array, codec: str) -> EncodedTensor:
    """As `encode`, for an array that nobody will ever write to again: raw bytes are a view of it, not a copy, where its layout is theirs."""
    if codec != "raw":
        return encode(array, codec)
    header, flat = _prepared(array, codec)
    return _digested(header, flat.view(np.uint8), is_view=np.may_share_memory(flat, array))


def _prepared(array: Array, codec: str) -> tuple[TensorHeader, Array]:
    """The header without its digest, and the values flat, contiguous and little-endian."""
    dtype = _dtype_name(array)
    size = codecs.encoded_bytes(codec, dtype, array.size) if codec in codecs.CODECS else 0
    header = TensorHeader(dtype, tuple(int(n) for n in array.shape), codec, size, "0" * 64)
    try:
        check_header(header)
    except RemoteFault as fault:
        raise InvalidInput(fault.message, code="bad_tensor", remedy=fault.remedy) from fault
    return header, np.ascontiguousarray(array, codecs.NUMPY_DTYPES[dtype]).reshape(-1)


def _digested(header: TensorHeader, encoded: NDArray[np.uint8], *, is_view: bool = False) -> EncodedTensor:
    payload = encoded.data.toreadonly()
    digested = TensorHeader(header.dtype, header.shape, header.codec, header.encoded_bytes, tensor_digest(payload))
    return EncodedTensor(digested, payload, is_view)


def decode(header: TensorHeader, payload: Payload) -> Array:
    """A new, writable array. Raises RemoteFault for the header, Corrupt where size, digest or format do not hold."""
    return reader(header, payload)()


def reader(header: TensorHeader, payload: Payload) -> Callable[[], Array]:
    """What decodes it, as often as it is called, into a new, writable array; raises Corrupt where the format does not hold. The payload stays as it is.

    Raises RemoteFault for the header, Corrupt where size or digest do not hold.
    """
    check_header(header)
    if len(payload) != header.encoded_bytes:
        raise Corrupt(f"{len(payload)} bytes instead of {header.encoded_bytes}", code="tensor_size")
    if tensor_digest(payload) != header.digest:
        raise Corrupt("tensor bytes do not match their digest", code="tensor_digest", digest=header.digest)
    return partial(_decode_checked, header, np.frombuffer(payload, np.uint8))


def check_header(
    header: TensorHeader, *, max_bytes: int = limits.MAX_TENSOR_BYTES, allowed_codecs: Collection[str] = codecs.CODECS
) -> None:
    """Returns only if every field is of its type, in its range and consistent with the others; allocates nothing.

    ``max_bytes`` bounds the tensor encoded and decoded. Zero dimensions do not hide huge ones. Raises RemoteFault with code
    ``bad_tensor_header`` whose ``details['field']`` names the field.
    """
    dtype, shape, codec = header.dtype, header.shape, header.codec
    if not isinstance(dtype, str) or dtype not in codecs.NUMPY_DTYPES:
        raise _bad_header("dtype", dtype, f"one of {', '.join(codecs.NUMPY_DTYPES)}")
    if not isinstance(codec, str) or codec not in codecs.CODECS or codec not in allowed_codecs:
        raise _bad_header("codec", codec, f"one of {', '.join(sorted(allowed_codecs))}")
    if codec != "raw" and dtype != "float32":
        raise _bad_header("codec", codec, f"raw for {dtype}")
    if not isinstance(shape, tuple) or len(shape) > limits.MAX_TENSOR_RANK:
        raise _bad_header("shape", shape, f"a tuple of at most {limits.MAX_TENSOR_RANK} dimensions")
    room = max_bytes // codecs.NUMPY_DTYPES[dtype].itemsize
    volume = 1
    for length in shape:
        if type(length) is not int or not 0 <= length <= room:
            raise _bad_header("shape", shape, f"whole numbers from 0 to {room}")
        volume *= max(length, 1)
    if volume > room:
        raise _bad_header("shape", shape, f"at most {max_bytes} bytes")
    wanted = codecs.encoded_bytes(codec, dtype, header.num_values)
    if type(header.encoded_bytes) is not int or header.encoded_bytes != wanted or wanted > max_bytes:
        raise _bad_header("encoded_bytes", header.encoded_bytes, f"{wanted} and at most {max_bytes}")
    if not isinstance(header.digest, str) or _HEX64.fullmatch(header.digest) is None:
        raise _bad_header("digest", header.digest, "64 lower-case hexadecimal characters")


def check_finite(array: Array) -> None:
    """L0: no NaN, no infinity, a root of the mean square of at most `limits.MAX_TENSOR_RMS`; arrays of whole numbers pass.

    Raises RemoteFault (``not_finite``, ``norm_bound``).
    """
    if array.dtype.kind == "f":
        magnitude = _Magnitude()
        magnitude.add(array.reshape(-1))
        magnitude.check(array.size)


class _Magnitude:
    """The sum of squares of values that come in pieces, and whether all of them are finite."""

    def __init__(self) -> None:
        self._squares = 0.0
        self._finite = True

    def add(self, flat: Array) -> None:
        """Counts these values in."""
        with np.errstate(all="ignore"):
            for start in range(0, flat.size, _MAGNITUDE_VALUES):
                part = flat[start : start + _MAGNITUDE_VALUES]
                square = float(np.dot(part, part)) if part.dtype == np.float32 else math.inf
                if not math.isfinite(square):
                    self._finite = self._finite and bool(np.isfinite(part).all())
                    wide = part.astype(np.float64)
                    square = float(np.dot(wide, wide))
                self._squares += square

    def check(self, num_values: int) -> None:
        """All of them have been added. Raises RemoteFault."""
        if not self._finite:
            raise RemoteFault("a tensor holds NaN or infinity", code="not_finite")
        norm, most = math.sqrt(self._squares), limits.MAX_TENSOR_RMS * math.sqrt(num_values)
        if norm > most:
            raise RemoteFault(
                f"a tensor's norm {norm:.6g} is over {most:.6g}, {limits.MAX_TENSOR_RMS:g} for each value", code="norm_bound",
                remedy="normalise inputs; a model that gives such outputs has diverged: submit it with a lower learning rate",
            )  # fmt: skip


def chunks(encoded: EncodedTensor, *, chunk_bytes: int = limits.MAX_CHUNK_BYTES) -> Iterator[memoryview]:
    """The payload in order, in views of at most ``chunk_bytes`` and without copies; nothing for an empty tensor."""
    if not 0 < chunk_bytes <= limits.MAX_CHUNK_BYTES:
        raise InvalidInput(f"chunks are 1 to {limits.MAX_CHUNK_BYTES} bytes, not {chunk_bytes}", code="bad_chunk_size")
    for start in range(0, len(encoded.payload), chunk_bytes):
        yield encoded.payload[start : start + chunk_bytes]


class TensorAssembler:
    """Puts one tensor together from chunks in order: memory is taken once, after the header check, and never grows.

    Any error ends the transfer: throw the assembler away. Hashing and looking at raw values go along with the chunks, while they are in
    the processor's cache, so what remains at the end is quick.
    """

    def __init__(self, header: TensorHeader, *, max_bytes: int = limits.MAX_TENSOR_BYTES) -> None:
        check_header(header, max_bytes=max_bytes)
        self.header = header
        self._buffer = np.empty(header.encoded_bytes, np.uint8)
        dtype = codecs.NUMPY_DTYPES[header.dtype]
        self._values = self._buffer.view(dtype) if header.codec == "raw" and dtype.kind != "b" else None
        """The memory of a tensor that needs no decoding and has no bit pattern that is none of its values."""
        self._magnitude = _Magnitude()
        self._num_seen = 0
        self._hash = blake3()
        self._filled_bytes = 0
        self._finished = False

    @property
    def missing_bytes(self) -> int:
        """What has yet to come; at 0 call `finish`."""
        return self.header.encoded_bytes - self._filled_bytes

    def add(self, chunk: Payload) -> None:
        """Takes the next chunk, 1 to ``limits.MAX_CHUNK_BYTES`` bytes. Raises RemoteFault for any other size or more than announced."""
        size = len(chunk)
        if not 0 < size <= limits.MAX_CHUNK_BYTES:
            raise RemoteFault(f"a chunk of {size} bytes", code="bad_chunk_size", size_bytes=size)
        if size > self.missing_bytes:
            raise RemoteFault(f"{size - self.missing_bytes} bytes more than announced", code="tensor_overlong")
        if self._finished:
            raise InvariantBroken("a chunk after the end", code="tensor_finished")
        self._buffer[self._filled_bytes : self._filled_bytes + size] = np.frombuffer(chunk, np.uint8)
        self._hash.update(chunk)
        self._filled_bytes += size
        if self._values is not None and self._values.dtype.kind == "f":
            complete = self._filled_bytes // self._values.itemsize
            self._magnitude.add(self._values[self._num_seen : complete])
            self._num_seen = complete

    def finish(self) -> EncodedTensor:
        """The complete tensor, still encoded (as spools and evidence keep it). Raises Corrupt if short or not as its digest says."""
        if self.missing_bytes:
            raise Corrupt(f"{self.missing_bytes} bytes are missing", code="tensor_short")
        if not self._finished and self._hash.hexdigest() != self.header.digest:
            raise Corrupt("tensor bytes do not match their digest", code="tensor_digest", digest=self.header.digest)
        self._finished = True
        return EncodedTensor(self.header, self._buffer.data.toreadonly())

    def array(self) -> Array:
        """The decoded tensor as a new, writable array. Raises as `finish`, and Corrupt where the bytes break the codec's format."""
        self.finish()
        if self._values is not None:  # the assembler's memory becomes the array's: nothing to copy or to check
            return self._values.reshape(self.header.shape)
        return _decode_checked(self.header, self._buffer)

    def finite_array(self) -> Array:
        """`array` that has passed L0 (`check_finite`). Raises as both."""
        array = self.array()
        if self._values is not None:
            self._magnitude.check(array.size)
        else:
            check_finite(array)
        return array


def _decode_checked(header: TensorHeader, payload: NDArray[np.uint8]) -> Array:
    return codecs.decode_values(header.codec, header.dtype, payload, header.num_values).reshape(header.shape)


def _dtype_name(array: Array) -> str:
    known = _NAMES.get(array.dtype)
    if known is not None:
        return known
    name = array.dtype.name
    if name not in codecs.NUMPY_DTYPES:
        raise InvalidInput(f"dtype {name} does not travel", code="bad_tensor", remedy=f"use {', '.join(codecs.NUMPY_DTYPES)}")
    return name


def _bad_header(field: str, value: object, wanted: str) -> RemoteFault:
    if isinstance(value, tuple | str | bytes) and len(value) > 80:  # a stranger's: not printed in full to show its start
        value = value[: 2 * limits.MAX_TENSOR_RANK]
    try:
        shown = repr(value)[:80]
    except ValueError:  # an int of more digits than Python prints
        shown = "a very large number"
    return RemoteFault(f"tensor header: {field} is {shown}, must be {wanted}", code="bad_tensor_header", field=field, value=shown)
