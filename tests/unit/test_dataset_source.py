"""Goal: a plain file becomes exactly the data set that graphs and readers expect, and files that are not what they should be are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataservice import keys
from dcnr.errors import DcnrError, InvalidInput
from dcnr.sdk.staging import Source, described, num_objects, read_splits, ref_of
from dcnr.v1 import data_pb2

SOURCE = Source("toy.npz", "toy", "CC0", "made up")


def arrays(**changed: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for split, count in (("train", 30), ("validation", 4), ("test", 6)):
        made[f"{split}_x"] = (rng.integers(0, 256, (count, 2, 3)) / 255).astype(np.float32)
        made[f"{split}_y"] = rng.integers(0, 7, count)
    return {name: array for name, array in {**made, **changed}.items() if array is not None}


def saved(path: Path, content: dict[str, Any]) -> Path:
    if path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file(content, path)
    else:
        np.savez(path, **content)
    return path


@pytest.mark.parametrize("name", ["toy.npz", "toy.safetensors"])
def test_fields_as_graphs_name_them(tmp_path: Path, name: str) -> None:
    content = arrays()
    content["train_y"][0] = 6
    description, splits = described(SOURCE, read_splits(saved(tmp_path / name, content)))
    assert set(splits) == {"train", "validation", "test"}
    image, target = description.fields["input"], description.fields["target"]
    assert (image.dtype, image.shape, image.stored, image.scale) == ("float32", (2, 3), "float32", 1.0)
    assert (target.dtype, target.shape, target.stored, target.num_classes) == ("int64", (), "uint8", 7)
    np.testing.assert_array_equal(splits["test"]["input"], content["test_x"])
    assert num_objects(description.fields, splits) == 3 * 2 + 1


def test_bytes_stay_bytes(tmp_path: Path) -> None:
    text = {f"{split}_{part}": np.zeros((3, 8), np.uint8) for split in ("train", "test") for part in ("x", "y")}
    description, _ = described(Source("t", "text", "x", "y", num_classes=256), read_splits(saved(tmp_path / "t.npz", text)))
    assert [(field.dtype, field.stored) for field in description.fields.values()] == [("uint8", "uint8")] * 2


def test_images_as_bytes_lose_nothing_or_are_refused(tmp_path: Path) -> None:
    as_bytes = Source("toy.npz", "toy", "CC0", "made up", as_bytes=True)
    content = arrays()
    description, splits = described(as_bytes, read_splits(saved(tmp_path / "toy.npz", content)))
    field, stored = description.fields["input"], splits["train"]["input"]
    assert (field.dtype, field.stored, str(stored.dtype)) == ("float32", "uint8", "uint8")
    np.testing.assert_allclose(stored * np.float32(field.scale), content["train_x"], atol=1e-7)
    for bad in (content["train_x"] * np.float32(1.01), content["train_x"] - 1, content["train_x"] + np.float32(1e-3)):
        with pytest.raises(InvalidInput, match="train"):
            described(as_bytes, read_splits(saved(tmp_path / "bad.npz", arrays(train_x=bad))))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"train_x": None}, "train_x and train_y"), ({"other": np.zeros(3)}, "other"), ({"train_y": np.zeros(30)}, "class numbers"),
        ({"train_x": np.zeros((30, 2), np.float64)}, "float64"), ({"train_x": None, "train_y": None}, "train"),
    ],
)  # fmt: skip
def test_wrong_files_are_refused(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        described(SOURCE, read_splits(saved(tmp_path / "toy.npz", arrays(**changed))))


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "evil.npz", train_x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DcnrError):
        read_splits(tmp_path / "evil.npz")


def test_keys_and_references_agree() -> None:
    shard, manifest = ref_of(keys.shard("toy", "a" * 64)), ref_of(keys.dataset_manifest("toy", "b" * 64))
    assert (shard.kind, shard.owner, shard.digest) == (data_pb2.OBJECT_KIND_SHARD, "toy", "a" * 64)
    assert (manifest.kind, manifest.owner, manifest.digest) == (data_pb2.OBJECT_KIND_DATASET_MANIFEST, "toy", "b" * 64)
    with pytest.raises(InvalidInput):
        ref_of("models/toy/head")
