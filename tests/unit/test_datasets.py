"""Goal: any replica computes any batch by its number alone, from shards that are what the manifest says, or gets a typed refusal."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import struct
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataservice import keys
from dataservice.addresses import AddressRule
from dataservice.batches import BatchIndex, eval_indices, num_eval_batches, permutation
from dataservice.dataset_manifest import DatasetManifest, FieldSpec, parse_manifest
from dataservice.datasets import DatasetReader, LocalCache
from dataservice.memory import MemoryStore, Operation, PlannedFaults
from dataservice.staging import (
    Description,
    byte_windows,
    cut,
    obtain,
    read_idx,
    read_npz,
    read_safetensors,
    stage,
)
from dcnr.errors import Corrupt, InvalidInput, NotFound, Refused, Stale
from dcnr.ids import Digest, digest_of

FIELDS = {
    "image": FieldSpec("float32", (2, 3), "uint8", scale=1 / 255, offset=-0.5),
    "label": FieldSpec("int64", (), "uint8", num_classes=10),
}
DESCRIPTION = Description("tiny", FIELDS, licence="CC0", source="made here")
IMAGES = np.random.default_rng(0).integers(0, 256, (100, 2, 3)).astype(np.uint8)
LABELS = np.arange(100) % 10
Arrays = dict[str, np.ndarray[Any, Any]]


class Clock:
    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0


def put_if_absent(store: MemoryStore) -> Callable[[str, bytes], Awaitable[None]]:
    """What exists already is the same object: its name is its digest."""

    async def put(key: str, data: bytes) -> None:
        try:
            await store.put(key, data, if_none_match=True)
        except Stale as error:
            if error.code != "precondition_failed":
                raise

    return put


def staged(shard_bytes: int = 100) -> tuple[MemoryStore, DatasetManifest]:
    store = MemoryStore(Clock(), random.Random(0))
    splits: dict[str, Arrays] = {"train": {"image": IMAGES, "label": LABELS}, "test": {"image": IMAGES[:7], "label": LABELS[:7]}}
    return store, asyncio.run(stage(put_if_absent(store), DESCRIPTION, splits, seed=1, shard_bytes=shard_bytes))


def reader_over(store: MemoryStore, manifest: DatasetManifest, folder: Path, max_open: int = 3) -> DatasetReader:
    def path(digest: Digest) -> Path:
        found = store.peek(keys.shard(manifest.name, digest))
        assert found is not None
        (folder / digest).write_bytes(found)
        return folder / digest

    return DatasetReader(manifest, path, max_open=max_open)


def test_every_sample_is_read_back_decoded_and_with_its_target(tmp_path: Path) -> None:
    store, manifest = staged()
    reader = reader_over(store, manifest, tmp_path)
    everything = np.arange(100)
    images, labels = reader.batch("train", "image", everything), reader.batch("train", "label", everything)
    assert (images.dtype.name, images.shape, labels.dtype.name, labels.shape) == ("float32", (100, 2, 3), "int64", (100,))
    order = permutation(100, "staging", 1, "train")
    assert np.array_equal(images, IMAGES[order].astype(np.float32) * np.float32(1 / 255) + np.float32(-0.5))
    assert np.array_equal(labels, LABELS[order])
    backwards = everything[::-1]
    assert np.array_equal(reader.batch("train", "image", backwards), images[::-1])
    assert len(manifest.shards_of("image", "train")) > 3


def test_the_manifest_is_stored_last_and_parses_back() -> None:
    store, manifest = staged()
    stored = store.peek(keys.dataset_manifest("tiny", manifest.digest))
    assert stored == manifest.to_bytes()
    assert parse_manifest(stored) == manifest
    assert manifest.size_bytes() == (100 + 7) * (6 + 1)

    written: list[str] = []

    async def record(key: str, data: bytes) -> None:
        written.append(key)

    again = asyncio.run(stage(record, DESCRIPTION, {"train": {"image": IMAGES, "label": LABELS}}, seed=1))
    assert written[-1] == keys.dataset_manifest("tiny", again.digest)
    assert all("/shards/" in key for key in written[:-1])


def test_a_batch_index_covers_each_pass_once_and_touches_two_shards() -> None:
    counts = (34, 33, 33)
    index = BatchIndex(seed=3, shard_counts=counts, batch_size=8, passes=2)
    assert index.num_batches == 2 * (100 // 8)
    passes = [[index.indices(batch) for batch in range(start, start + 12)] for start in (0, 12)]
    for batches in passes:
        seen = np.concatenate(batches)
        assert len(np.unique(seen)) == len(seen) == 96
        for one in batches:
            assert len(np.unique(np.searchsorted([34, 67], one, side="right"))) <= 2
    assert not np.array_equal(passes[0][0], passes[1][0])
    for wrong in (-1, 24):
        with pytest.raises(InvalidInput):
            index.indices(wrong)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.integers(1, 30),
    st.integers(1, 3),
    st.integers(0, 2**40),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60)
def test_batches_are_a_pure_function_of_their_number(
    counts: Sequence[int], size: int, passes: int, seed: int, order: random.Random
) -> None:
    if sum(counts) < size:
        return
    forwards, anywhere = (BatchIndex(seed, counts, size, passes) for _ in range(2))
    numbers = list(range(forwards.num_batches))
    expected = [forwards.indices(number).tolist() for number in numbers]
    order.shuffle(numbers)
    assert all(anywhere.indices(number).tolist() == expected[number] for number in numbers)
    for start in range(0, forwards.num_batches, forwards.batches_per_pass):
        seen = [sample for batch in expected[start : start + forwards.batches_per_pass] for sample in batch]
        assert len(set(seen)) == len(seen)
        assert all(0 <= sample < sum(counts) for sample in seen)


def test_the_numbers_are_fixed_for_ever() -> None:
    """Two machines with different numpy versions must agree: these values may never change."""
    assert permutation(8, "samples", 0, 0, 0).tolist() == GOLDEN
    assert permutation(8, "samples", 0, 0, 1).tolist() != GOLDEN


GOLDEN: list[int] = [5, 4, 2, 7, 6, 0, 3, 1]


def test_evaluation_reads_everything_in_order() -> None:
    assert num_eval_batches(7, 3) == 3
    assert [eval_indices(batch, 7, 3).tolist() for batch in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]
    with pytest.raises(InvalidInput):
        eval_indices(3, 7, 3)


def test_cut_puts_each_sample_into_one_split() -> None:
    parts = cut({"x": np.arange(100)}, {"validation": 0.1, "test": 0.2}, seed=5)
    assert {split: len(arrays["x"]) for split, arrays in parts.items()} == {"test": 20, "validation": 10, "train": 70}
    assert sorted(np.concatenate([arrays["x"] for arrays in parts.values()]).tolist()) == list(range(100))
    with pytest.raises(InvalidInput):
        cut({"x": np.arange(10)}, {"test": 1.0}, seed=0)


def test_wrong_arrays_are_refused_before_anything_is_stored() -> None:
    async def never(key: str, data: bytes) -> None:
        raise AssertionError("stored")

    wrong: list[Arrays] = [
        {"image": IMAGES},
        {"image": IMAGES, "label": LABELS[:5]},
        {"image": IMAGES[:, :1], "label": LABELS},
        {"image": IMAGES, "label": LABELS + 5},
        {"image": IMAGES, "label": LABELS + 300},
        {"image": IMAGES + 0.5, "label": LABELS},
        {"image": IMAGES[:0], "label": LABELS[:0]},
        {"image": IMAGES, "label": np.array([object()] * 100)},
    ]
    for arrays in wrong:
        with pytest.raises(InvalidInput):
            asyncio.run(stage(never, DESCRIPTION, {"train": arrays}, seed=0))


def test_damaged_manifests_are_refused() -> None:
    _, manifest = staged()
    good = json.loads(manifest.to_bytes())

    def changed(**what: object) -> bytes:
        return json.dumps(good | what, sort_keys=True, separators=(",", ":")).encode()

    assert parse_manifest(changed()) == manifest
    label = good["fields"]["label"]
    bad = [
        b"", b"{}", b"[]", b"null", b"\xff", manifest.to_bytes() + b" ", manifest.to_bytes()[:-1], b"[" * 100_000,
        changed(format=2), changed(name="../x"), changed(version=True), changed(extra=1), changed(splits={}), changed(fields={}),
        changed(splits={"train": 101, "test": 7}), changed(splits={"train": 100}), changed(splits={"train": 1e2, "test": 7}),
        changed(fields=good["fields"] | {"label": label | {"dtype": "object"}}), changed(fields=good["fields"] | {"label": label | {"shape": [-1]}}),
        changed(fields=good["fields"] | {"label": label | {"shape": [2**30, 2**30]}}), changed(fields=good["fields"] | {"label": label | {"scale": 0.5}}),
        changed(shards=good["shards"] | {"label": {"train": [], "test": []}}), changed(shards={}), changed(licence="x" * 5000),
        changed(shards=good["shards"] | {"label": good["shards"]["label"] | {"test": [["0" * 63, 0, 7]]}}),
    ]  # fmt: skip
    for data in bad:
        with pytest.raises(Corrupt):
            parse_manifest(data)


@pytest.mark.parametrize(
    ("count", "shape", "why"),
    [
        (2**33, [], r"split train from sample 0 on has 8589934592 samples, more than 16777216: cut it into smaller shards, as `dcnr data stage`"),
        (2**24, [300], r"split train from sample 0 on has 5033164800 bytes of x, more than 4294967296: cut it into smaller shards"),
    ],
    ids=["samples", "bytes"],
)  # fmt: skip
def test_a_shard_that_no_machine_could_put_in_order_is_refused(count: int, shape: list[int], why: str) -> None:
    """Less than a kilobyte of manifest asked every worker for 64 GiB, before the first batch."""
    fields = {
        name: {
            "dtype": "uint8",
            "shape": shape if name == "x" else [],
            "stored": "uint8",
            "scale": 1.0,
            "offset": 0.0,
            "num_classes": 0,
        }
        for name in ("x", "y")
    }
    shards = {field: {"train": [["0" * 64, 0, count]]} for field in fields}
    content = {
        "format": 1, "name": "d", "version": 1, "fields": fields, "splits": {"train": count}, "shards": shards, "licence": "CC0", "source": "s",
    }  # fmt: skip
    data = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    assert len(data) < 1000
    with pytest.raises(Corrupt, match=why):
        parse_manifest(data)


def test_orders_of_large_shards_are_not_kept_beside_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataservice.batches.KEPT_SAMPLES", 25)
    index = BatchIndex(1, [10] * 6, 10, 1)
    everything = np.concatenate([index.indices(batch) for batch in range(6)])
    assert sorted(everything) == list(range(60))
    assert sum(map(len, index._orders.values())) <= 25


def test_a_shard_of_the_wrong_size_or_class_is_named(tmp_path: Path) -> None:
    store, manifest = staged()
    ref = manifest.shards_of("label", "test")[0]
    store.rewind(keys.shard("tiny", ref.digest), b"\1" * (ref.count + 1))
    with pytest.raises(Corrupt, match=ref.digest):
        reader_over(store, manifest, tmp_path).batch("test", "label", np.arange(2))
    store.rewind(keys.shard("tiny", ref.digest), b"\x0b" * ref.count)
    with pytest.raises(Corrupt, match=ref.digest):
        reader_over(store, manifest, tmp_path).batch("test", "label", np.arange(2))
    for wrong in (
        ("test", "label", np.array([7])),
        ("test", "label", np.array([-1])),
        ("test", "nope", np.array([0])),
        ("no", "label", np.array([0])),
    ):
        with pytest.raises(InvalidInput):
            reader_over(store, manifest, tmp_path).batch(*wrong)


def test_the_cache_verifies_repairs_shares_and_evicts(tmp_path: Path) -> None:
    contents = {digest_of(bytes([number]) * 100): bytes([number]) * 100 for number in range(6)}
    digests = list(contents)
    fetched: list[Digest] = []
    liar: set[Digest] = set()

    async def fetch(digest: Digest, path: Path, max_bytes: int) -> None:
        fetched.append(digest)
        await asyncio.sleep(0)
        path.write_bytes(b"lie" if digest in liar else contents[digest])

    async def work() -> None:
        cache = LocalCache(tmp_path / "c", 350, fetch)
        paths = await asyncio.gather(*(cache.path(digests[0]) for _ in range(10)))
        assert fetched == [digests[0]], "ten callers share one fetch"
        assert paths[0].read_bytes() == contents[digests[0]]
        for digest in digests[1:3]:
            await cache.path(digest)
        await cache.path(digests[0])  # used again: number 1 is now the longest unused
        await cache.path(digests[3])
        assert {path.name for path in (tmp_path / "c").iterdir()} == {digests[0], digests[2], digests[3]}
        assert cache.cached(digests[0]) == paths[0]
        with pytest.raises(NotFound):
            cache.cached(digests[1])

        paths[0].write_bytes(b"damaged on disk")
        fetched.clear()
        later = LocalCache(tmp_path / "c", 350, fetch)  # the next run of the process
        assert (await later.path(digests[0])).read_bytes() == contents[digests[0]]
        await later.path(digests[2])
        assert fetched == [digests[0]], "damaged is fetched again, sound is not"

        liar.add(digests[5])
        with pytest.raises(Corrupt, match=digests[5]):
            await later.path(digests[5])
        with pytest.raises(Refused):
            await LocalCache(tmp_path / "d", 50, fetch).path(digests[4])
        assert not [path for path in (tmp_path / "c").iterdir() if path.name.startswith(".")]
        with pytest.raises(InvalidInput):
            await later.path(Digest("../../etc/passwd"))

    asyncio.run(work())


def test_sources(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=IMAGES, y=LABELS)
    assert np.array_equal(read_npz(tmp_path / "a.npz")["x"], IMAGES)
    np.savez(tmp_path / "evil.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(Corrupt):
        read_npz(tmp_path / "evil.npz")

    idx = b"\0\0\x08\x03" + struct.pack(">3I", *IMAGES.shape) + IMAGES.tobytes()
    (tmp_path / "i.idx").write_bytes(idx)
    (tmp_path / "i.idx.gz").write_bytes(gzip.compress(idx))
    for name in ("i.idx", "i.idx.gz"):
        assert np.array_equal(read_idx(tmp_path / name), IMAGES)
    for bad in (b"", b"\0\0\x08", idx[:-1], idx + b"x", b"\0\0\x07" + idx[3:], b"\0\0\x08\xff" + idx[4:]):
        (tmp_path / "bad").write_bytes(bad)
        with pytest.raises(Corrupt):
            read_idx(tmp_path / "bad")

    from safetensors.numpy import save_file

    save_file({"x": IMAGES}, str(tmp_path / "s.safetensors"))
    assert np.array_equal(read_safetensors(tmp_path / "s.safetensors")["x"], IMAGES)
    with pytest.raises(Corrupt):
        read_safetensors(tmp_path / "i.idx")


def test_text_as_byte_windows() -> None:
    text = b"to be, or not to be"
    arrays = byte_windows(text, 4)
    assert bytes(arrays["input"].reshape(-1)) == text[:16]
    assert bytes(arrays["target"].reshape(-1)) == text[1:17]
    with pytest.raises(InvalidInput):
        byte_windows(b"abcd", 4)


def test_obtaining_sources_by_address(tmp_path: Path) -> None:
    async def work() -> None:
        (tmp_path / "x").write_bytes(b"x")
        assert await obtain(str(tmp_path / "x"), tmp_path, sha256=None, rule=AddressRule()) == tmp_path / "x"
        for uri, sha256 in (
            ("https://a.example/x", None),
            ("s3://bucket/x", None),
            ("s3://bucket/x", digest_of(b"x")),
            ("s3://Bucket/x", digest_of(b"x")),
            ("ftp://a/x", None),
            (str(tmp_path / "none"), None),
        ):
            with pytest.raises(InvalidInput):
                await obtain(uri, tmp_path, sha256=sha256, rule=AddressRule())
        with pytest.raises(Refused):
            await obtain("https://127.0.0.1/x", tmp_path, sha256=digest_of(b"x"), rule=AddressRule())

    asyncio.run(work())


def test_staging_twice_is_one_data_set_and_faults_are_not_hidden() -> None:
    store, manifest = staged()
    before = store.keys()
    splits: dict[str, Arrays] = {"train": {"image": IMAGES, "label": LABELS}, "test": {"image": IMAGES[:7], "label": LABELS[:7]}}
    again = asyncio.run(stage(put_if_absent(store), DESCRIPTION, splits, seed=1, shard_bytes=100))
    assert (again, store.keys()) == (manifest, before)

    from dataservice.memory import Fault
    from dcnr.errors import Unavailable

    store.faults = PlannedFaults([(Operation.PUT, "datasets/", Fault.UNAVAILABLE)])
    with pytest.raises(Unavailable):
        asyncio.run(stage(put_if_absent(store), DESCRIPTION, splits, seed=2, shard_bytes=100))
