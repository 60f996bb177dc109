"""A data set as data: which fields, which splits, which shards. Equal manifests have equal bytes; foreign bytes are checked whole.

A shard is the raw C-order array of one field for consecutive samples of one split; dtype and shape come from here, so a shard needs no
header and no unpickling. All fields of a split are cut at the same samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dcnr import limits
from dcnr.errors import Corrupt, InvalidInput
from dcnr.ids import Digest, check_digest, check_name, digest_of
from dcnr.specs import DTYPE_BYTES

FORMAT_VERSION: Final = 1
STORED_DTYPES: Final = frozenset(DTYPE_BYTES) - {"bfloat16"}
MAX_FIELDS: Final = 64
MAX_SPLITS: Final = 16
MAX_SHARDS: Final = 1_000_000
MAX_MANIFEST_BYTES: Final = 32 * limits.MIB
MAX_SAMPLES: Final = 2**40
MAX_TEXT_CHARS: Final = 4096
_CUT: Final = "cut it into smaller shards, as `dcnr data stage` does"


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One tensor per sample: ``dtype`` and ``shape`` as readers get it, ``stored`` as it lies in the shards.

    Where they differ, float values are ``x * scale + offset`` (in float32), integers are widened.
    """

    dtype: str
    shape: tuple[int, ...]
    stored: str
    scale: float = 1.0
    offset: float = 0.0
    num_classes: int = 0
    """For targets: valid values are 0…num_classes − 1. 0 for anything else."""

    @property
    def stored_bytes_per_sample(self) -> int:
        """Bytes of one sample in a shard."""
        return math.prod(self.shape) * DTYPE_BYTES[self.stored]


@dataclass(frozen=True, slots=True)
class ShardRef:
    """``count`` samples from sample ``first`` of the split, in the object with that digest."""

    digest: Digest
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class DatasetManifest:
    """See the module. ``shards`` maps (field, split) to its shards in order."""

    name: str
    version: int
    fields: Mapping[str, FieldSpec]
    splits: Mapping[str, int]
    shards: Mapping[tuple[str, str], tuple[ShardRef, ...]]
    licence: str
    source: str

    def shard_counts(self, split: str) -> tuple[int, ...]:
        """Samples per shard of a split: what a batch index is made from. Raises InvalidInput for an unknown split."""
        return tuple(shard.count for shard in self.shards_of(next(iter(self.fields)), split))

    def shards_of(self, field: str, split: str) -> tuple[ShardRef, ...]:
        """The shards of one field. Raises InvalidInput for an unknown field or split."""
        if (found := self.shards.get((field, split))) is None:
            raise InvalidInput(
                f"data set {self.name} has no field {field!r} in split {split!r}",
                code="no_such_field",
                remedy=f"fields: {', '.join(self.fields)}; splits: {', '.join(self.splits)}",
            )
        return found

    def shard_sizes(self) -> dict[Digest, int]:
        """Bytes of each shard."""
        return {
            one.digest: one.count * self.fields[field].stored_bytes_per_sample
            for (field, _), shards in self.shards.items()
            for one in shards
        }

    def size_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(self.fields[field].stored_bytes_per_sample * self.splits[split] for field, split in self.shards)

    def to_bytes(self) -> bytes:
        """The canonical JSON: sorted keys, no spaces, ASCII."""
        content = {
            "format": FORMAT_VERSION,
            "name": self.name,
            "version": self.version,
            "fields": {
                name: {
                    "dtype": spec.dtype,
                    "shape": list(spec.shape),
                    "stored": spec.stored,
                    "scale": spec.scale,
                    "offset": spec.offset,
                    "num_classes": spec.num_classes,
                }
                for name, spec in self.fields.items()
            },
            "splits": dict(self.splits),
            "shards": {
                field: {split: [[one.digest, one.first, one.count] for one in self.shards[field, split]] for split in self.splits}
                for field in self.fields
            },
            "licence": self.licence,
            "source": self.source,
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @property
    def digest(self) -> Digest:
        """What the data set is known by."""
        return digest_of(self.to_bytes())


def parse_manifest(data: bytes) -> DatasetManifest:
    """The manifest in ``data``. Raises Corrupt for anything that is not exactly what `DatasetManifest.to_bytes` writes."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise Corrupt("the data set manifest is too large", code="bad_dataset_manifest")
    try:
        content = json.loads(data)
        manifest = _read(content)
        if manifest.to_bytes() != data:
            raise ValueError("not in canonical form")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidInput, OverflowError) as error:
        raise Corrupt(f"not a data set manifest: {str(error)[:200]}", code="bad_dataset_manifest") from None
    return manifest


def check_manifest(manifest: DatasetManifest) -> None:
    """Raises ValueError if shards do not cover their split without gap, fields are cut differently, or a bound is passed."""
    check_name(manifest.name)
    _require(1 <= len(manifest.fields) <= MAX_FIELDS and 1 <= len(manifest.splits) <= MAX_SPLITS, "too many or no fields or splits")
    _require(1 <= manifest.version < 2**31, "version out of range")
    _require(len(manifest.licence) <= MAX_TEXT_CHARS and len(manifest.source) <= MAX_TEXT_CHARS, "licence or source too long")
    for name, spec in manifest.fields.items():
        check_name(name)
        _check_field(spec)
    for split, count in manifest.splits.items():
        check_name(split)
        _require(0 < count <= MAX_SAMPLES, f"split {split} has {count} samples")
        cuts = {tuple((shard.first, shard.count) for shard in manifest.shards[field, split]) for field in manifest.fields}
        _require(len(cuts) == 1, f"the fields of split {split} are cut differently")
        expected, (widest, field) = 0, max((spec.stored_bytes_per_sample, name) for name, spec in manifest.fields.items())
        for first, size in cuts.pop():
            _require(first == expected and size > 0, f"the shards of split {split} leave a gap or overlap")
            what = f"the shard of split {split} from sample {first} on has"
            _require(size <= limits.MAX_SHARD_SAMPLES, f"{what} {size} samples, more than {limits.MAX_SHARD_SAMPLES}: {_CUT}")
            _require(
                size * widest <= limits.MAX_OBJECT_BYTES,
                f"{what} {size * widest} bytes of {field}, more than {limits.MAX_OBJECT_BYTES}: {_CUT}",
            )
            expected += size
        _require(expected == count, f"the shards of split {split} hold {expected} samples, not {count}")
    _require(len(manifest.shards) == len(manifest.fields) * len(manifest.splits), "shards of unknown fields")
    _require(sum(map(len, manifest.shards.values())) <= MAX_SHARDS, "too many shards")


def _check_field(spec: FieldSpec) -> None:
    _require(spec.dtype in STORED_DTYPES and spec.stored in STORED_DTYPES, f"unknown dtype {spec.dtype} or {spec.stored}")
    _require(len(spec.shape) <= limits.MAX_TENSOR_RANK and all(0 < size < 2**31 for size in spec.shape), "shape out of range")
    _require(spec.stored_bytes_per_sample <= limits.MAX_TENSOR_BYTES, "a sample is too large")
    _require(math.isfinite(spec.scale) and math.isfinite(spec.offset) and spec.scale != 0, "scale or offset is not usable")
    plain = spec.scale == 1.0 and spec.offset == 0.0
    _require(plain or spec.dtype == "float32", "scale and offset give float32")
    _require(0 <= spec.num_classes < 2**31, "num_classes out of range")


def _read(content: dict[str, Any]) -> DatasetManifest:
    _require(content["format"] == FORMAT_VERSION, "unknown format")
    fields = {
        _text(name): FieldSpec(
            dtype=_text(one["dtype"]),
            shape=tuple(_integer(size) for size in one["shape"]),
            stored=_text(one["stored"]),
            scale=_number(one["scale"]),
            offset=_number(one["offset"]),
            num_classes=_integer(one["num_classes"]),
        )
        for name, one in content["fields"].items()
    }
    splits = {_text(name): _integer(count) for name, count in content["splits"].items()}
    shards = {
        (field, split): tuple(ShardRef(check_digest(digest), _integer(first), _integer(count)) for digest, first, count in rows)
        for field, by_split in content["shards"].items()
        for split, rows in by_split.items()
    }
    manifest = DatasetManifest(
        name=_text(content["name"]),
        version=_integer(content["version"]),
        fields=fields,
        splits=splits,
        shards=shards,
        licence=_text(content["licence"]),
        source=_text(content["source"]),
    )
    check_manifest(manifest)
    return manifest


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a text")
    return value


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.40} is not an integer")
    return value


def _number(value: object) -> float:
    if type(value) is not float:
        raise TypeError(f"{value!r:.40} is not a number")
    return value
