"""A data set enters the network from a maintainer's machine: plain files become shards that are uploaded under grants.

A source is one npz or safetensors file with arrays ``<split>_x`` and ``<split>_y`` (or ``<split>_input`` and ``<split>_target``), sample first; an IDX
file for each of these arrays (images get their one channel); or texts, of any bytes, one for each split or one in all. Targets are class numbers, of a
text each position's next byte. What readers get is exactly what the files hold, unless ``as_bytes`` asks to keep multiples of 1/255 as bytes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np

from dataservice import staging
from dataservice.addresses import AddressRule
from dataservice.dataset_manifest import DatasetManifest, FieldSpec
from dataservice.objects import ObjectClient
from dataservice.staging import Array, Arrays, Description
from dcnr.errors import InvalidInput
from dcnr.ids import check_digest, check_name
from dcnr.sdk.progress import Progress
from dcnr.v1 import data_pb2

FORMATS: Final[Mapping[str, tuple[str, ...]]] = {
    "npz": (".npz",), "safetensors": (".safetensors",), "idx": (".idx", ".idx.gz", "-ubyte", "-ubyte.gz"), "bytes": (".txt", ".text", ".bin"),
}  # fmt: skip
"""What a source may be, and how names of such files end."""
_SUFFIXES: Final = {"x": "input", "y": "target", "input": "input", "target": "target"}
_BYTE_TOLERANCE: Final = 1e-6

Splits = dict[str, dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a data set comes from and what people should know about it."""

    uri: str | Mapping[str, str]
    """A path, ``https://`` of a host that the network document allows, or ``s3://BUCKET/KEY`` of the network's store. Of IDX files one for each array
    (``train_x``, ``train_y``), of texts one for each split, or one alone.
    """
    name: str
    licence: str
    origin: str
    version: int = 1
    num_classes: int = 0
    """0: one more than the highest target; of a text 256."""
    as_bytes: bool = False
    """Of inputs that are bytes already: they are read as multiples of 1/255."""
    sha256: str | Mapping[str, str] = ""
    """Needed for ``https://`` and ``s3://``; named as ``uri`` is."""
    seed: int = 0
    """Of the one shuffle at staging, and of ``shares``."""
    form: str = ""
    """One of `FORMATS`; empty: as the file's name ends."""
    window: int = 0
    """Bytes of a text in one sample."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Splits that are cut off from train, each with its share of it."""
    store_file: Path | None = None
    """Credentials of the store (store.json, 0600), for ``s3://``."""

    @property
    def uris(self) -> Mapping[str, str]:
        """By array or split; one that stands alone has no name."""
        return {"": self.uri} if isinstance(self.uri, str) else self.uri


async def stage_source(
    source: Source, objects: ObjectClient, rule: AddressRule, *, scratch: Path, progress: Progress
) -> DatasetManifest:
    """Reads, checks, shuffles and uploads; readers who find the manifest find every shard.

    Raises InvalidInput, Corrupt, Refused, NotFound, NotRunning (no file of credentials), Unavailable.
    """
    check_name(source.name)
    form = form_of(source)
    digests = {"": source.sha256} if isinstance(source.sha256, str) else source.sha256
    files: dict[str, Path] = {}
    for name, uri in source.uris.items():
        digest = check_digest(digests[name]) if digests.get(name) else None
        files[name] = await staging.obtain(uri, scratch, sha256=digest, rule=rule, store_file=source.store_file)
    splits = await asyncio.to_thread(read_splits, form, files, window=source.window)
    if source.shares:
        splits = await asyncio.to_thread(_with_shares, splits, source)
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


def form_of(source: Source) -> str:
    """The one format of a source's files, by ``form`` or by how their names end. Raises InvalidInput."""
    known = ", ".join(FORMATS)
    if source.form:
        if source.form not in FORMATS:
            raise InvalidInput(f"{source.form!r} is no format of data", code="bad_source", remedy=f"choose one of {known}")
        return source.form
    found = {name: _form_of_name(_file_name(uri)) for name, uri in source.uris.items()}
    for name, form in found.items():
        if not form:
            raise InvalidInput(
                f"{_file_name(source.uris[name])!r:.80} does not end like a format of data", code="bad_source",
                remedy=f"give --format, one of {known}",
            )  # fmt: skip
    if len(set(found.values())) != 1:
        raise InvalidInput(
            f"the sources are of {len(set(found.values()))} formats", code="bad_source", remedy=f"give --format, one of {known}"
        )
    return next(iter(found.values()))


def read_splits(form: str, files: Mapping[str, Path], *, window: int = 0) -> Splits:
    """The arrays of the files by split and field; ``files`` are named as `Source.uri` says. Raises InvalidInput, Corrupt."""
    if (form == "bytes") != (window > 0):
        raise InvalidInput(
            "a text needs a window, nothing else has one", code="bad_window", remedy="give --window BYTES with --format bytes"
        )
    if form == "bytes":
        splits: Splits = {
            check_name(split or "train"): staging.byte_windows(staging.read_bytes(path), window) for split, path in files.items()
        }
    elif form == "idx":
        splits = _by_split({name: staging.read_idx(path) for name, path in files.items()})
        for fields in splits.values():
            if fields["input"].ndim == 3:  # images without channels
                fields["input"] = fields["input"][:, np.newaxis]
            if fields["target"].dtype.kind in "iu":
                fields["target"] = fields["target"].astype(np.int64)
    elif list(files) != [""]:
        raise InvalidInput(f"one {form} file holds all arrays", code="bad_source", remedy="give one SOURCE, without NAME=")
    else:
        read = staging.read_safetensors if form == "safetensors" else staging.read_npz
        splits = _by_split(read(files[""]))
    if "train" not in splits:
        raise InvalidInput(
            "there is no split named train", code="bad_dataset", remedy="name its arrays train_x and train_y (of a text: train)"
        )
    return splits


def _by_split(arrays: Arrays) -> Splits:
    splits: Splits = {}
    for name, array in sorted(arrays.items()):
        split, separator, suffix = name.rpartition("_")
        if not separator or suffix not in _SUFFIXES:
            raise InvalidInput(
                f"array {name!r} is not named <split>_x or <split>_y", code="bad_dataset",
                remedy="rename it, or leave it out of the file (of IDX files: train_x=FILE train_y=FILE)",
            )  # fmt: skip
        if array.ndim < 1:
            raise InvalidInput(f"array {name!r} has no samples", code="bad_dataset", remedy="samples come first in its shape")
        splits.setdefault(check_name(split), {})[_SUFFIXES[suffix]] = array
    for split, fields in splits.items():
        if set(fields) != {"input", "target"}:
            raise InvalidInput(f"split {split!r} needs both {split}_x and {split}_y", code="bad_dataset")
    return splits


def _with_shares(splits: Splits, source: Source) -> Splits:
    """With the splits that are cut off from train. Raises InvalidInput."""
    for split in source.shares:
        if split in splits:
            raise InvalidInput(f"there is a split {check_name(split)!r} already", code="bad_shares", remedy="leave its --share out")
    train = splits["train"]
    if len(train["input"]) != len(train["target"]):
        raise InvalidInput("train_x and train_y differ in length", code="bad_dataset", remedy="correct the files")
    cut = staging.cut(train, {check_name(split): share for split, share in source.shares.items()}, seed=source.seed)
    return {**splits, **{split: dict(arrays) for split, arrays in cut.items()}}


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
    num_classes = (
        source.num_classes
        or (256 if source.window else 0)
        or 1 + max((int(array.max()) for array in targets.values() if array.size), default=0)
    )
    are_bytes = all(array.dtype == np.uint8 for array in targets.values())  # of one split alone say nothing of the others
    dtype = "uint8" if are_bytes else "int64"
    stored = "uint8" if are_bytes or num_classes <= 256 else "int32" if num_classes < 2**31 else "int64"
    fields = {"input": spec, "target": FieldSpec(dtype, tuple(targets["train"].shape[1:]), stored, num_classes=num_classes)}
    description = Description(source.name, fields, source.licence, source.origin or ", ".join(source.uris.values()), source.version)
    return description, {split: {"input": inputs[split], "target": targets[split]} for split in splits}


def num_objects(fields: Mapping[str, FieldSpec], splits: Splits) -> int:
    """Shards and manifest that staging will store."""
    per_shard = max(1, staging.SHARD_BYTES // max(1, *(spec.stored_bytes_per_sample for spec in fields.values())))
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


def _file_name(uri: str) -> str:
    path = uri.partition("?")[0] if uri.startswith(("https://", "http://")) else uri
    return PurePosixPath(path).name


def _form_of_name(name: str) -> str:
    return next((form for form, endings in FORMATS.items() if name.lower().endswith(endings)), "")


def _input_spec(array: Array) -> FieldSpec:
    name = str(array.dtype)
    if name not in ("float32", "uint8", "int64", "int32"):
        raise InvalidInput(
            f"inputs of dtype {name} cannot be staged", code="bad_dataset", remedy="convert them to float32 or uint8", field="input"
        )
    return FieldSpec(name, tuple(array.shape[1:]), name)


def _as_bytes(split: str, array: Array) -> Array:
    if array.dtype == np.uint8:
        return array
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite compares with nothing, and so is no byte
        scaled = np.asarray(array, dtype=np.float32) * np.float32(255)
        rounded: np.ndarray[Any, Any] = np.rint(scaled)
        are_bytes = (rounded >= 0) & (rounded <= 255) & (np.abs(scaled - rounded) <= 255 * _BYTE_TOLERANCE)
    if not are_bytes.all():
        raise InvalidInput(
            f"the inputs of {split} are not multiples of 1/255 in [0, 1]", code="bad_dataset", remedy="leave --as-bytes out"
        )
    return rounded.astype(np.uint8)
