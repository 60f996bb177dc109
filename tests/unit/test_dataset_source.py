"""Goal: a plain file becomes exactly the data set that graphs and readers expect, and files that are not what they should be are refused by name."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dataservice import keys
from dcnr.cli import data
from dcnr.cli.session import Session
from dcnr.errors import Corrupt, DcnrError, InvalidInput
from dcnr.sdk.staging import FORMATS, Source, described, form_of, num_objects, read_splits, ref_of
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
    description, splits = described(SOURCE, read_splits(Path(name).suffix[1:], {"": saved(tmp_path / name, content)}))
    assert set(splits) == {"train", "validation", "test"}
    image, target = description.fields["input"], description.fields["target"]
    assert (image.dtype, image.shape, image.stored, image.scale) == ("float32", (2, 3), "float32", 1.0)
    assert (target.dtype, target.shape, target.stored, target.num_classes) == ("int64", (), "uint8", 7)
    np.testing.assert_array_equal(splits["test"]["input"], content["test_x"])
    assert num_objects(description.fields, splits) == 3 * 2 + 1


def test_bytes_stay_bytes(tmp_path: Path) -> None:
    text = {f"{split}_{part}": np.zeros((3, 8), np.uint8) for split in ("train", "test") for part in ("x", "y")}
    description, _ = described(
        Source("t", "text", "x", "y", num_classes=256), read_splits("npz", {"": saved(tmp_path / "t.npz", text)})
    )
    assert [(field.dtype, field.stored) for field in description.fields.values()] == [("uint8", "uint8")] * 2


@pytest.mark.parametrize(
    ("wide", "dtype", "stored"), [("", "uint8", "uint8"), ("train", "int64", "int32"), ("test", "int64", "int32")]
)
def test_classes_are_bytes_only_where_those_of_every_split_are(wide: str, dtype: str, stored: str) -> None:
    splits = {split: {"input": np.zeros((3, 2), np.float32), "target": np.arange(3, dtype=np.uint8)} for split in ("train", "test")}
    if wide:
        splits[wide]["target"] = np.array([0, 300, 1])
    spec = described(SOURCE, splits)[0].fields["target"]
    assert (spec.dtype, spec.stored, spec.num_classes) == (dtype, stored, 301 if wide else 3)


def test_images_as_bytes_lose_nothing_or_are_refused(tmp_path: Path) -> None:
    as_bytes = Source("toy.npz", "toy", "CC0", "made up", as_bytes=True)
    content = arrays()
    description, splits = described(as_bytes, read_splits("npz", {"": saved(tmp_path / "toy.npz", content)}))
    field, stored = description.fields["input"], splits["train"]["input"]
    assert (field.dtype, field.stored, str(stored.dtype)) == ("float32", "uint8", "uint8")
    np.testing.assert_allclose(stored * np.float32(field.scale), content["train_x"], atol=1e-7)
    wrong = [content["train_x"].copy() for _ in range(3)]
    for array, value in zip(wrong, (np.nan, np.inf, 3e38), strict=True):
        array[7, 1, 2] = value
    wrong += [content["train_x"] * np.float32(1.01), content["train_x"] - 1, content["train_x"] + np.float32(1e-3)]
    for bad in wrong:
        with pytest.raises(InvalidInput, match="train"):
            described(as_bytes, read_splits("npz", {"": saved(tmp_path / "bad.npz", arrays(train_x=bad))}))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"train_x": None}, "train_x and train_y"), ({"other": np.zeros(3)}, "other"), ({"train_y": np.zeros(30)}, "class numbers"),
        ({"train_x": np.zeros((30, 2), np.float64)}, "float64"), ({"train_x": None, "train_y": None}, "train"),
    ],
)  # fmt: skip
def test_wrong_files_are_refused(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        described(SOURCE, read_splits("npz", {"": saved(tmp_path / "toy.npz", arrays(**changed))}))


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "evil.npz", train_x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DcnrError):
        read_splits("npz", {"": tmp_path / "evil.npz"})


def idx(path: Path, array: np.ndarray[Any, Any]) -> Path:
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_idx_files_as_they_are_published_are_images_with_a_channel(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (20, 4, 5)), rng.integers(0, 10, 20)
    labels[0] = 9
    files = {"train_x": idx(tmp_path / "images", images), "train_y": idx(tmp_path / "labels.gz", labels)}
    source = Source({name: str(path) for name, path in files.items()}, "digits", "CC0", "", as_bytes=True, form="idx")
    description, splits = described(source, read_splits("idx", files))
    image, target = description.fields["input"], description.fields["target"]
    assert (image.dtype, image.shape, image.stored, image.scale) == ("float32", (1, 4, 5), "uint8", 1 / 255)
    assert (target.dtype, target.shape, target.stored, target.num_classes) == ("int64", (), "uint8", 10)
    np.testing.assert_array_equal(splits["train"]["input"][:, 0], images)
    np.testing.assert_array_equal(splits["train"]["target"], labels)
    nothing = {"train_x": idx(tmp_path / "none", images[:0]), "train_y": idx(tmp_path / "none.gz", labels[:0])}
    assert described(source, read_splits("idx", nothing))[0].fields["target"].num_classes == 1, "staging refuses it for its length"
    for wrong in ({"train_x": files["train_x"]}, {"train": files["train_x"]}, {"": files["train_x"]}):
        with pytest.raises(InvalidInput, match=r"train_y|_x or <split>_y"):
            read_splits("idx", wrong)


def test_texts_are_windows_of_bytes_and_the_bytes_that_follow(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"to be, or not to be")
    splits = read_splits("bytes", {"": tmp_path / "a.txt"}, window=4)
    assert splits["train"]["input"].tobytes() == b"to be, or not to"
    description, _ = described(Source("a.txt", "play", "CC0", "", window=4), splits)
    assert [(one.dtype, one.shape, one.num_classes) for one in description.fields.values()] == [
        ("uint8", (4,), 0),
        ("uint8", (4,), 256),
    ]
    assert set(read_splits("bytes", {"train": tmp_path / "a.txt", "test": tmp_path / "a.txt"}, window=8)) == {"train", "test"}
    for form, window in (("bytes", 0), ("npz", 4)):
        with pytest.raises(InvalidInput, match="window"):
            read_splits(form, {"": tmp_path / "a.txt"}, window=window)
    with pytest.raises(InvalidInput, match="smaller"):
        read_splits("bytes", {"": tmp_path / "a.txt"}, window=19)
    with pytest.raises(InvalidInput, match="train"):
        read_splits("bytes", {"test": tmp_path / "a.txt"}, window=4)


@pytest.mark.parametrize(
    ("uri", "form"),
    [
        ("a.npz", "npz"), ("https://data.example.org/a.safetensors?download=1", "safetensors"), ("s3://data/b/train-images-idx3-ubyte.gz", "idx"),
        ("file:///tmp/T10K-labels.idx1-ubyte", "idx"), ("/tmp/.npz/play.TXT", "bytes"),
    ],
)  # fmt: skip
def test_a_name_tells_the_format(uri: str, form: str) -> None:
    """Goal: also of what is fetched under another name."""
    assert form_of(Source(uri, "toy", "CC0", "")) == form
    assert form_of(Source(uri, "toy", "CC0", "", form="bytes")) == "bytes"


def test_the_command_offers_every_format() -> None:
    assert tuple(FORMATS) == data.FORMATS


def test_a_split_has_one_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(session: Session, staging: object) -> None:
        raise AssertionError("nothing is staged")

    monkeypatch.setattr(Session, "run", work)
    given = ["play.txt", "--name", "play", "--licence", "CC0", "--window", "4", "--share", "validation=0.1"]
    for more, why in (("validation=0.2", "'validation' has two shares"), ("test", "not SPLIT=SHARE")):
        refused = CliRunner().invoke(data.app, ["stage", *given, "--share", more]).exception
        assert isinstance(refused, InvalidInput), refused
        assert (refused.code, why in refused.message) == ("bad_shares", True)


def test_a_name_that_tells_no_format_is_refused() -> None:
    uris: list[str | dict[str, str]] = [
        "https://a.example/x?y=a.npz",
        "play.txt.gz",
        "data",
        {"train_x": "a.idx", "train_y": "b.npz"},
    ]
    for uri in uris:
        with pytest.raises(InvalidInput) as refused:
            form_of(Source(uri, "toy", "CC0", ""))
        assert "--format" in str(refused.value.remedy)
    with pytest.raises(InvalidInput, match="csv"):
        form_of(Source("a.npz", "toy", "CC0", "", form="csv"))
    with pytest.raises(InvalidInput, match="holds all"):
        read_splits("npz", {"train_x": Path("a.npz"), "train_y": Path("b.npz")})


def test_a_file_that_is_not_idx_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x1f\x8b not gzip")
    with pytest.raises(Corrupt, match="IDX"):
        read_splits("idx", {"train_x": tmp_path / "a", "train_y": tmp_path / "a"})


def test_keys_and_references_agree() -> None:
    shard, manifest = ref_of(keys.shard("toy", "a" * 64)), ref_of(keys.dataset_manifest("toy", "b" * 64))
    assert (shard.kind, shard.owner, shard.digest) == (data_pb2.OBJECT_KIND_SHARD, "toy", "a" * 64)
    assert (manifest.kind, manifest.owner, manifest.digest) == (data_pb2.OBJECT_KIND_DATASET_MANIFEST, "toy", "b" * 64)
    with pytest.raises(InvalidInput):
        ref_of("models/toy/head")
