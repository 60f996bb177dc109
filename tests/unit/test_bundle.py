"""Goal: what was written into a bundle is read from it byte for byte, and a bundle that breaks a rule is refused before anything of it is believed."""

from __future__ import annotations

import contextlib
import hashlib
import random
from pathlib import Path

import pytest

from dcnr.errors import Corrupt, InvariantBroken, NotFound, Refused
from dcnr.v1 import model_pb2
from vnode.bundle import BundleLimits, BundleWriter, Written, read_bundle

STATE, INPUT, OUTPUT = model_pb2.EVIDENCE_KIND_STATE, model_pb2.EVIDENCE_KIND_INPUT, model_pb2.EVIDENCE_KIND_OUTPUT


def part(kind: model_pb2.EvidenceKind.ValueType, *, entry: int = 0, batch: int = 0, port: int = 0) -> model_pb2.EvidencePart:
    return model_pb2.EvidencePart(kind=kind, entry=entry, batch=batch, port=port)


def written(folder: Path) -> Written:
    state = folder / "state"
    state.write_bytes(b"s" * 3_000_000)
    with BundleWriter(folder / "bundle") as writer:
        writer.add_file(part(STATE), state)
        proof = model_pb2.FrameProof(source_replica="a.0", shape=[4, 2], signature=b"signed")
        writer.add(model_pb2.EvidencePart(kind=INPUT, batch=7, port=1, frame=proof), b"input")
        writer.add(part(OUTPUT, batch=7), memoryview(b"output"))
        writer.add(part(OUTPUT, batch=7, entry=1), b"")
        return writer.close()


def framed(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(4, "big") + header + data


def test_what_was_written_is_read(tmp_path: Path) -> None:
    done = written(tmp_path)
    assert done.digest == hashlib.sha256(done.path.read_bytes()).hexdigest()
    assert done.size_bytes == done.path.stat().st_size
    with read_bundle(done.path) as bundle:
        assert bytes(bundle.data(STATE)) == b"s" * 3_000_000
        assert bytes(bundle.data(INPUT, batch=7, port=1)) == b"input"
        assert bundle.part(INPUT, batch=7, port=1).frame.shape == [4, 2]
        assert [(one.entry, one.size_bytes) for one in bundle.parts(OUTPUT)] == [(0, 6), (1, 0)]
        assert not bundle.has(INPUT, batch=7)
        with pytest.raises(NotFound, match="INPUT 0 of batch 8"):
            bundle.data(INPUT, batch=8)


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    for error, action in (
        (OSError, lambda writer: writer.add_file(part(STATE), tmp_path / "missing")),
        (InvariantBroken, lambda writer: [writer.add(part(STATE), b"") for _ in range(2)]),
        (InvariantBroken, lambda writer: writer.add(model_pb2.EvidencePart(), b"")),
        (Refused, lambda writer: writer.add(part(STATE), b"x" * 100)),
    ):
        with pytest.raises(error), BundleWriter(tmp_path / "bundle", max_bytes=100) as writer:
            action(writer)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0",
        framed(b""),
        framed(b"\xff\xff"),
        framed(model_pb2.EvidencePart(size_bytes=1).SerializeToString(), b"x"),
        framed(model_pb2.EvidencePart(kind=99).SerializeToString()),  # type: ignore[arg-type]
        framed(part(STATE).SerializeToString()) * 2,
        framed(model_pb2.EvidencePart(kind=STATE, size_bytes=2).SerializeToString(), b"x"),
        framed(model_pb2.EvidencePart(kind=STATE, size_bytes=2**63).SerializeToString(), b"x"),
        framed(part(STATE).SerializeToString()) + b"\0",
        framed(b"\x08\x83\x00"),
        b"\xff\xff\xff\xff" + b"x" * 100,
    ],
    ids=["empty", "short", "no_header", "no_message", "no_kind", "unknown_kind", "twice", "cut", "huge", "rest", "other_form", "long_header"],
)  # fmt: skip
def test_a_broken_bundle_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bundle").write_bytes(data)
    with pytest.raises(Corrupt) as refused:
        read_bundle(tmp_path / "bundle")
    assert refused.value.code == "bad_bundle"


@pytest.mark.parametrize(
    "bounds",
    [BundleLimits(total_bytes=1000), BundleLimits(part_bytes=1000), BundleLimits(num_parts=3), BundleLimits(header_bytes=40)],
)
def test_a_reader_keeps_its_limits(tmp_path: Path, bounds: BundleLimits) -> None:
    done = written(tmp_path)
    with pytest.raises(Corrupt):
        read_bundle(done.path, bounds)


def test_no_mutation_does_more_than_be_refused_or_be_another_bundle(tmp_path: Path) -> None:
    """What is wrong in the bytes of a part is for whoever knows their digest."""
    rng = random.Random(5)
    with BundleWriter(tmp_path / "good") as writer:
        for entry in range(8):
            writer.add(part(INPUT, entry=entry, batch=entry), bytes(entry))
        good = writer.close().path.read_bytes()
    for _ in range(2000):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        (tmp_path / "bad").write_bytes(bad[: rng.randint(1, len(bad))])
        with contextlib.suppress(Corrupt), read_bundle(tmp_path / "bad") as bundle:
            for one in bundle.parts(INPUT):
                assert len(bundle.data(INPUT, entry=one.entry, batch=one.batch, port=one.port)) == one.size_bytes
