"""Data sets enter the network here: read from plain formats, shuffled once, cut into shards, stored with the manifest last.

A reader who finds the manifest therefore finds every shard. Formats are read without unpickling anything.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import math
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataservice import keys
from dataservice.addresses import AddressRule
from dataservice.batches import Indices, permutation
from dataservice.dataset_manifest import DatasetManifest, FieldSpec, ShardRef, check_manifest
from dataservice.transfer import download
from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, InvalidInput, NotFound, Refused, Unavailable
from dcnr.ids import Digest, check_digest, check_name, digest_of

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Put = Callable[[str, bytes], Awaitable[object]]

SHARD_BYTES: Final = 8 * limits.MIB
"""Aim for the largest field; the other fields are cut at the same samples."""
MAX_SOURCE_BYTES: Final = limits.MAX_OBJECT_BYTES
"""Of one file that data sets are made from."""
SOURCE_TIMEOUT_S: Final = 3600.0
"""For the transfer of one such file: the largest one at 10 Mbit/s."""
SIGNED_S: Final = 600
"""How long the address of an object in the store may be used: it is used at once."""
BAD_ARRAY: Final = (ValueError, TypeError, SyntaxError, tokenize.TokenError, OverflowError, RecursionError, MemoryError)
"""What numpy raises for an array in a file that is not as its header says, whose header is none, or that no memory could hold."""
_S3: Final = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(?P<key>[^\x00-\x1f\x7f]{1,1024})")
_GZIP: Final = b"\x1f\x8b"
_IDX_DTYPES: Final = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4"}


@dataclass(frozen=True, slots=True)
class Description:
    """What people should know about a data set, and its fields."""

    name: str
    fields: Mapping[str, FieldSpec]
    licence: str
    source: str
    version: int = 1


async def stage(
    put: Put, description: Description, splits: Mapping[str, Arrays], *, seed: int, shard_bytes: int = SHARD_BYTES
) -> DatasetManifest:
    """Stores shards, then the manifest, through ``put`` (which must be fine with an object that is there already); returns the manifest.

    Raises InvalidInput naming the field for arrays that do not fit the description, and what ``put`` raises.
    """
    name = check_name(description.name)
    largest = max(spec.stored_bytes_per_sample for spec in description.fields.values())
    per_shard = max(1, shard_bytes // max(1, largest))
    shards: dict[tuple[str, str], tuple[ShardRef, ...]] = {}
    counts = {split: _check_split(description, split, arrays) for split, arrays in splits.items()}
    for split, arrays in splits.items():
        count = counts[split]
        order = permutation(count, "staging", seed, split)
        num_shards = max(1, math.ceil(count / per_shard))
        bounds = [count * number // num_shards for number in range(num_shards + 1)]
        for field, spec in description.fields.items():
            refs: list[ShardRef] = []
            for first, end in pairwise(bounds):
                data = np.ascontiguousarray(arrays[field][order[first:end]], dtype=spec.stored).tobytes()
                digest = digest_of(data)
                await put(keys.shard(name, digest), data)
                reached("shard.staged")
                refs.append(ShardRef(digest, first, end - first))
            shards[field, split] = tuple(refs)
    manifest = DatasetManifest(
        name=name,
        version=description.version,
        fields=dict(description.fields),
        splits=counts,
        shards=shards,
        licence=description.licence,
        source=description.source,
    )
    try:
        check_manifest(manifest)
    except ValueError as error:
        raise InvalidInput(f"the data set cannot be staged: {error}", code="bad_dataset") from None
    await put(keys.dataset_manifest(name, manifest.digest), manifest.to_bytes())
    reached("dataset.staged")
    return manifest


def cut(arrays: Arrays, shares: Mapping[str, float], *, seed: int) -> dict[str, Arrays]:
    """Splits by share, each sample in exactly one: ``shares`` for all but ``train``, which gets the rest. Raises InvalidInput."""
    num = len(next(iter(arrays.values())))
    if "train" in shares or not all(0 < share < 1 for share in shares.values()) or sum(shares.values()) >= 1:
        raise InvalidInput("shares are for the splits other than train, each and in sum between 0 and 1", code="bad_shares")
    order = permutation(num, "splits", seed)
    chosen: dict[str, Indices] = {}
    taken = 0
    for split, share in sorted(shares.items()):
        size = max(1, round(num * share))
        chosen[split] = order[taken : taken + size]
        taken += size
    if taken >= num:
        raise InvalidInput(f"{num} samples are too few for these shares", code="bad_shares")
    chosen["train"] = order[taken:]
    return {split: {field: array[which] for field, array in arrays.items()} for split, which in chosen.items()}


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an npz file. Raises Corrupt for objects (they would need unpickling) and damage."""
    return npz_in(path, path.name)


def npz_in(source: Path | io.BytesIO, name: str) -> dict[str, Array]:
    """As `read_npz`, of what is called ``name``."""
    try:
        with zipfile.ZipFile(source) as members:  # before numpy, which takes any other file for a pickle or leaves it open
            members.infolist()
        if isinstance(source, io.BytesIO):
            source.seek(0)
        with np.load(source, allow_pickle=False) as content:
            arrays = {member: content[member] for member in content.files}
    except zipfile.BadZipFile as error:
        raise _bad_source(name, "npz", str(error).lower()) from None
    except BAD_ARRAY:
        raise _bad_source(name, "npz", "an array holds objects, is larger than memory, or is damaged") from None
    except (EOFError, OSError, KeyError, RuntimeError, zlib.error) as error:  # RuntimeError: encrypted, or packed otherwise
        raise _bad_source(name, "npz", str(error)) from None
    for member, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise _bad_source(name, "npz", f"{member!r:.80} in it is no array")
    return arrays


def read_safetensors(path: Path) -> dict[str, Array]:
    """All tensors of a safetensors file. Raises Corrupt."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(str(path)))
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise _bad_source(path.name, "safetensors", str(error)) from None


def _bad_source(name: str, form: str, why: str) -> Corrupt:
    return Corrupt(
        f"{name} is not a plain {form} file: {why}", code="bad_source", remedy="save plain arrays as .npz (numpy.savez) or .safetensors"
    )  # fmt: skip


def read_idx(path: Path, *, max_bytes: int = MAX_SOURCE_BYTES) -> Array:
    """One array in the IDX format of MNIST, gzipped or not. Raises Corrupt."""
    data = read_bytes(path, max_bytes=max_bytes)
    if data.startswith(_GZIP):
        try:
            with gzip.open(path, "rb") as file:
                data = file.read(max_bytes + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise _bad_idx(path, str(error)) from None
    if len(data) > max_bytes or len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX_DTYPES:
        raise _bad_idx(path, "its first bytes are others, or it is too large")
    rank = data[3]
    if not 0 < rank <= limits.MAX_TENSOR_RANK or len(data) < 4 + 4 * rank:
        raise _bad_idx(path, f"it has {rank} dimensions")
    shape = struct.unpack(f">{rank}I", data[4 : 4 + 4 * rank])
    dtype = np.dtype(_IDX_DTYPES[data[2]])
    if len(data) - 4 - 4 * rank != math.prod(shape) * dtype.itemsize:
        raise _bad_idx(path, f"it does not have the size of its shape {shape}")
    return np.frombuffer(data, dtype, offset=4 + 4 * rank).reshape(shape).astype(dtype.newbyteorder("="))


def _bad_idx(path: Path, why: str) -> Corrupt:
    return Corrupt(
        f"{path.name} is not an IDX file: {why}", code="bad_source", remedy="fetch the file again, as it was published (.gz or not)"
    )


def read_bytes(path: Path, *, max_bytes: int = MAX_SOURCE_BYTES) -> bytes:
    """The whole file as it is. Raises Corrupt if it is larger than ``max_bytes`` or cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise Corrupt(f"{path.name} cannot be read: {error.strerror}", code="bad_source", remedy="check the file") from None
    if len(data) > max_bytes:
        raise Corrupt(f"{path.name} has more than {max_bytes} bytes", code="bad_source", remedy="stage a part of it")
    return data


def byte_windows(data: bytes, length: int) -> dict[str, Array]:
    """Text as bytes: windows of ``length`` without overlap; ``target`` is each position's next byte. Raises InvalidInput if too short."""
    num = (len(data) - 1) // length if length > 0 else 0
    if num < 1:
        raise InvalidInput(
            f"{len(data)} bytes do not fill a window of {length} and its next byte",
            code="bad_source",
            remedy="choose a smaller window",
        )
    values = np.frombuffer(data, np.uint8)
    return {"input": values[: num * length].reshape(num, length), "target": values[1 : num * length + 1].reshape(num, length)}


async def obtain(
    uri: str, directory: Path, *, sha256: Digest | None, rule: AddressRule, store_file: Path | None = None,
    max_bytes: int = MAX_SOURCE_BYTES,
) -> Path:  # fmt: skip
    """The file that ``uri`` names: a local path as it is; ``https://`` of an allowed host; ``s3://BUCKET/KEY``, signed for with ``store_file``.

    What comes from elsewhere needs its digest and goes where ``rule`` allows, also with credentials: the store is the network's. Raises Refused
    (address, credentials), InvalidInput (form, missing digest), NotFound, Corrupt (digest, size), NotRunning (no such file of credentials), or what
    the transfer raises.
    """
    path = Path(uri.removeprefix("file://"))
    if not uri.startswith(("https://", "http://", "s3://")):
        if "://" in uri.removeprefix("file://") or not path.is_file():
            raise InvalidInput(
                f"{uri!r} is neither a file nor an https:// or s3:// address",
                code="bad_source",
                remedy="check the path of the file",
            )
        if sha256:
            found_digest = await asyncio.to_thread(_digest_of_file, path)
            if found_digest != sha256:
                raise Corrupt(
                    f"{path.name} has sha256 {found_digest}, not {sha256}", code="wrong_digest", remedy="fetch the file again"
                )
        return path
    if sha256 is None:
        raise InvalidInput(
            f"{uri!r:.80} is on another machine: the digest of the file is needed", code="bad_source",
            remedy="give --sha256 DIGEST, from a place that you trust",
        )  # fmt: skip
    dest = directory / f"source-{check_digest(sha256)}"
    url = await asyncio.to_thread(_signed, uri, store_file) if uri.startswith("s3://") else uri
    try:
        await download(url, dest, max_bytes=max_bytes, sha256=sha256, rule=rule, timeout_s=SOURCE_TIMEOUT_S)
    except NotFound:
        raise NotFound(f"there is nothing at {uri!r:.200}", code="no_such_object", remedy="check the address") from None
    except Unavailable as error:
        if error.code != "grant_refused":
            raise
        raise Refused(f"{uri!r:.200} may not be read", code="store_denied", remedy="check the credentials: --store-file") from None
    return dest


def _signed(uri: str, store_file: Path | None) -> str:
    """The address of an object for whoever has the credentials in ``store_file``; nothing is asked for. Raises as `obtain`."""
    from dataservice.embedded import read_store_file  # boto3, for those who need it
    from dataservice.s3 import S3Store

    found = _S3.fullmatch(uri)
    if found is None:
        raise InvalidInput(f"{uri!r:.80} is not s3://BUCKET/KEY", code="bad_source", remedy="write s3://BUCKET/KEY")
    if store_file is None:
        raise InvalidInput(
            f"{uri!r:.80} is read with the store's credentials", code="bad_source",
            remedy="give --store-file store.json (of the machine where the store runs, mode 0600)",
        )  # fmt: skip
    try:
        store = S3Store(replace(read_store_file(store_file).address(), bucket=found["bucket"]))
    except (ValueError, InvalidInput) as error:
        raise Corrupt(f"{store_file}: {error}", code="bad_store_file", remedy="correct its endpoint") from None
    try:
        return store.presign_get(found["key"], SIGNED_S)
    finally:
        store.close()


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_split(description: Description, split: str, arrays: Arrays) -> int:
    """Samples of the split, all fields being what the description says."""
    check_name(split)
    if set(arrays) != set(description.fields):
        raise InvalidInput(f"split {split} has the fields {sorted(arrays)}, not {sorted(description.fields)}", code="bad_dataset")
    num = {field: len(array) for field, array in arrays.items()}
    if len(set(num.values())) != 1 or not min(num.values()):
        raise InvalidInput(f"the fields of split {split} differ in length or are empty: {num}", code="bad_dataset")
    for field, spec in description.fields.items():
        array = arrays[field]
        if not array.size:
            raise _bad_field(split, field, f"has shape {array.shape[1:]} per sample, which is nothing")
        if array.shape[1:] != spec.shape:
            raise _bad_field(split, field, f"has shape {array.shape[1:]} per sample, not {spec.shape}")
        if array.dtype != spec.stored and not _fits(array, spec):
            raise _bad_field(split, field, f"({array.dtype}) does not fit into {spec.stored}")
        if spec.num_classes and not (int(array.min()) >= 0 and int(array.max()) < spec.num_classes):
            raise _bad_field(split, field, f"has classes outside 0…{spec.num_classes - 1}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise _bad_field(split, field, "holds values that are not finite")
    return next(iter(num.values()))


def _bad_field(split: str, field: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{field} of split {split} {why}", code="bad_dataset", remedy="correct the arrays and stage them again", split=split, field=field
    )  # fmt: skip


def _fits(array: Array, spec: FieldSpec) -> bool:
    """Whether storing changes no value."""
    if array.dtype.hasobject or array.dtype.kind not in "biuf":
        return False
    with np.errstate(all="ignore"):
        return bool(np.array_equal(array.astype(spec.stored).astype(array.dtype), array))
