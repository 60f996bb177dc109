"""A data set enters the network from a maintainer's machine: a plain file becomes shards that are uploaded under grants.

A source is an npz or safetensors file with arrays ``<split>_x`` and ``<split>_y`` (or ``<split>_input`` and ``<split>_target``), sample first.
Targets are class numbers. What readers get is exactly what the file holds, unless ``as_bytes`` asks to keep multiples of 1/255 as bytes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dataservice import staging
from dataservice.addresses import AddressRule
from dataservice.dataset_manifest import DatasetManifest, FieldSpec
from dataservice.objects import ObjectClient
from dataservice.staging import Array, Description
from dcnr.errors import InvalidInput
from dcnr.ids import Digest, check_digest, check_name
from dcnr.sdk.progress import Progress
from dcnr.v1 import data_pb2

_SUFFIXES: Final = {"x": "input", "y": "target", "input": "input", "target": "target"}
_BYTE_TOLERANCE: Final = 1e-6

Splits = dict[str, dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a data set comes from and what people should know about it."""

    uri: str
    """A path, or ``https://`` of a host that the network document allows."""
    name: str
    licence: str
    origin: str
    version: int = 1
    num_classes: int = 0
    """0: one more than the highest target."""
    as_bytes: bool = False
    sha256: str = ""
    """Needed for ``https://``."""
    seed: int = 0
    """Of the one shuffle at staging."""


async def stage_source(
    source: Source, objects: ObjectClient, rule: AddressRule, *, scratch: Path, progress: Progress
) -> DatasetManifest:
    """Reads, checks, shuffles and uploads; readers who find the manifest find every shard. Raises InvalidInput, Corrupt, Refused, Unavailable."""
    check_name(source.name)
    digest: Digest | None = check_digest(source.sha256) if source.sha256 else None
    path = await staging.obtain(source.uri, scratch, sha256=digest, rule=rule)
    splits = await asyncio.to_thread(read_splits, path)
    description, splits = await asyncio.to_thread(described, source, splits)
    total = num_objects(description.fields, splits)
    done = 0

    async def put(key: str, data: bytes) -> None:
        nonlocal done
        progress("objects", done, total)
        await objects.write_bytes(ref_of(key), data, directory=scratch)
        done += 1

    manifest = await staging.stage(put, description, splits, seed=source.seed)
    progress("objects", total, total)
    return manifest


def read_splits(path: Path) -> Splits:
    """The arrays of a file by split and field. Raises InvalidInput, Corrupt."""
    arrays = staging.read_safetensors(path) if path.suffix == ".safetensors" else staging.read_npz(path)
    splits: Splits = {}
    for name, array in sorted(arrays.items()):
        split, separator, suffix = name.rpartition("_")
        if not separator or suffix not in _SUFFIXES:
            raise InvalidInput(
                f"array {name!r} is not named <split>_x or <split>_y",
                code="bad_dataset",
                remedy="rename it, or leave it out of the file",
            )
        splits.setdefault(check_name(split), {})[_SUFFIXES[suffix]] = array
    for split, fields in splits.items():
        if set(fields) != {"input", "target"}:
            raise InvalidInput(f"split {split!r} needs both {split}_x and {split}_y", code="bad_dataset")
    if "train" not in splits:
        raise InvalidInput("there is no split named train", code="bad_dataset", remedy="name its arrays train_x and train_y")
    return splits


def described(source: Source, splits: Splits) -> tuple[Description, Splits]:
    """The data set's description and its arrays as they are stored. Raises InvalidInput."""
    inputs = {split: arrays["input"] for split, arrays in splits.items()}
    spec = _input_spec(inputs["train"])
    if source.as_bytes:
        inputs = {split: _as_bytes(split, array) for split, array in inputs.items()}
        spec = FieldSpec("float32", spec.shape, "uint8", scale=1 / 255)
    targets = {split: arrays["target"] for split, arrays in splits.items()}
    for split, array in targets.items():
        if array.dtype.kind not in "iu" or (array.size and int(array.min()) < 0):
            raise InvalidInput(
                f"targets of split {split} are not class numbers (integers from 0)", code="bad_dataset",
                remedy=f"correct {split}_y and stage the file again", split=split, field="target",
            )  # fmt: skip
    num_classes = source.num_classes or 1 + max(int(array.max()) for array in targets.values() if array.size)
    target = targets["train"]
    dtype = "uint8" if target.dtype == np.uint8 else "int64"
    stored = "uint8" if num_classes <= 256 else "int32" if num_classes < 2**31 else "int64"
    fields = {"input": spec, "target": FieldSpec(dtype, tuple(target.shape[1:]), stored, num_classes=num_classes)}
    description = Description(source.name, fields, source.licence, source.origin or source.uri, source.version)
    return description, {split: {"input": inputs[split], "target": targets[split]} for split in splits}


def num_objects(fields: Mapping[str, FieldSpec], splits: Splits) -> int:
    """Shards and manifest that staging will store."""
    per_shard = max(1, staging.SHARD_BYTES // max(spec.stored_bytes_per_sample for spec in fields.values()))
    shards = sum(max(1, math.ceil(len(arrays["target"]) / per_shard)) for arrays in splits.values())
    return shards * len(fields) + 1


def ref_of(key: str) -> data_pb2.ObjectRef:
    """The reference to an object of a data set, from its key. Raises InvalidInput for any other key."""
    match key.split("/"):
        case ["datasets", name, "shards", digest]:
            kind = data_pb2.OBJECT_KIND_SHARD
        case ["datasets", name, "manifests", digest]:
            kind = data_pb2.OBJECT_KIND_DATASET_MANIFEST
        case _:
            raise InvalidInput(f"{key!r} is no object of a data set", code="bad_key")
    return data_pb2.ObjectRef(kind=kind, owner=check_name(name), digest=check_digest(digest))


def _input_spec(array: Array) -> FieldSpec:
    name = str(array.dtype)
    if name not in ("float32", "uint8", "int64", "int32"):
        raise InvalidInput(
            f"inputs of dtype {name} cannot be staged", code="bad_dataset", remedy="convert them to float32 or uint8", field="input"
        )
    return FieldSpec(name, tuple(array.shape[1:]), name)


def _as_bytes(split: str, array: Array) -> Array:
    scaled = np.asarray(array, dtype=np.float32) * np.float32(255)
    rounded: np.ndarray[Any, Any] = np.rint(scaled)
    if array.dtype == np.uint8:
        return array
    if rounded.size and (rounded.min() < 0 or rounded.max() > 255 or float(np.abs(scaled - rounded).max()) > 255 * _BYTE_TOLERANCE):
        raise InvalidInput(
            f"the inputs of {split} are not multiples of 1/255 in [0, 1]", code="bad_dataset", remedy="leave --as-bytes out"
        )
    return rounded.astype(np.uint8)
