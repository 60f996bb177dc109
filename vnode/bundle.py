"""A bundle of evidence: everything that one interval can be checked from, as one file of parts, each behind a header of its own (`model.proto`,
EvidencePart). Torch-free; shared by the accused, who writes it, and by auditors, who read what a stranger wrote.

Read, nothing is believed besides the form: sizes, kinds, numbers, no part twice. What a part's bytes are bound to is for the reader of the parts to verify.

How parts are numbered, beyond what EvidencePart says: STATEMENT and STEPS by ``entry``, which of them, oldest first (an interval of a primary holds the commits
of anchors, each with its log, before the commit of its last state). INPUT and OUTPUT by ``entry`` over the whole interval, with the step's ``batch``;
``port`` is which input, or which of the step's outputs. STATE by how many entries of the interval come before it, and which
statement names it (`places_of_states`). DISPLACEMENT by ``entry``, which of the
merges, in order.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

from google.protobuf.message import DecodeError

from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, InvariantBroken, NotFound, Refused
from dcnr.v1 import model_pb2

MAX_HEADER_BYTES: Final = 64 * limits.KIB
MAX_HEADERS_BYTES: Final = 64 * limits.MIB
MAX_PARTS: Final = 65_536
"""Above 4096 entries with a few inputs and outputs each, states and displacements."""
_LENGTH_BYTES: Final = 4
_COPY_BYTES: Final = 1 * limits.MIB
_KINDS: Final = frozenset(model_pb2.EvidenceKind.values()) - {model_pb2.EVIDENCE_KIND_UNSPECIFIED}

PartKey = tuple[int, int, int, int]
"""kind, entry, batch, port."""


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """What a reader takes at most."""

    total_bytes: int = limits.MAX_OBJECT_BYTES
    part_bytes: int = limits.MAX_OBJECT_BYTES
    num_parts: int = MAX_PARTS
    header_bytes: int = MAX_HEADERS_BYTES
    """Of all headers together: these are held in memory."""


@dataclass(frozen=True, slots=True)
class Written:
    """A whole bundle on disk: what its name in the store is made of."""

    path: Path
    digest: str
    """SHA-256, hex."""
    size_bytes: int


class BundleWriter:
    """Writes ``path`` part by part; nothing lies there before `close` was called. A context manager: left with an error, it leaves nothing behind.

    Raises OSError where the disk refuses, Refused (``bundle_too_large``) above ``max_bytes``, InvariantBroken for a part that no reader would take.
    """

    def __init__(self, path: Path, max_bytes: int = limits.MAX_OBJECT_BYTES) -> None:
        self._path, self._unfinished, self._max_bytes = path, path.with_name(f"{path.name}.part"), max_bytes
        self._hash, self._size_bytes, self._seen = hashlib.sha256(), 0, set[PartKey]()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = self._unfinished.open("wb")

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._file.closed:
            self._file.close()
            self._unfinished.unlink(missing_ok=True)

    def add(self, part: model_pb2.EvidencePart, data: bytes | memoryview) -> None:
        """One part; its size is filled in."""
        self._begin(part, len(data))
        self._write(data)

    def add_file(self, part: model_pb2.EvidencePart, path: Path) -> None:
        """One part whose bytes are those of a file. Raises OSError also where it is missing or changes meanwhile."""
        with path.open("rb") as source:
            size_bytes = os.fstat(source.fileno()).st_size
            self._begin(part, size_bytes)
            while size_bytes > 0:
                piece = source.read(min(size_bytes, _COPY_BYTES))
                if not piece:
                    raise OSError(f"{path.name} became shorter while it was read")
                self._write(piece)
                size_bytes -= len(piece)

    def close(self) -> Written:
        """The bundle lies there, whole. It is made to be sent off: after a crash of the machine it is made again, so nobody waits for the disk."""
        self._file.close()
        reached("bundle.written")
        self._unfinished.replace(self._path)
        reached("bundle.renamed")
        return Written(self._path, self._hash.hexdigest(), self._size_bytes)

    def _begin(self, part: model_pb2.EvidencePart, size_bytes: int) -> None:
        key = key_of(part)
        if key in self._seen or part.kind not in _KINDS or len(self._seen) >= MAX_PARTS:
            raise InvariantBroken(f"a part that no reader would take: {key}", code="bad_part")
        self._seen.add(key)
        header = header_bytes(part, size_bytes)
        if self._size_bytes + len(header) + size_bytes > self._max_bytes:
            raise Refused(f"the bundle would be larger than {self._max_bytes} bytes", code="bundle_too_large")
        self._write(header)

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._size_bytes += len(data)


def header_bytes(part: model_pb2.EvidencePart, size_bytes: int) -> bytes:
    """What stands before the bytes of a part: a file of such pairs is a bundle. Raises InvariantBroken for a part that no reader would take."""
    header = model_pb2.EvidencePart()
    header.CopyFrom(part)
    header.size_bytes = size_bytes
    text = header.SerializeToString(deterministic=True)
    if len(text) > MAX_HEADER_BYTES:
        raise InvariantBroken(f"a header of {len(text)} bytes", code="bad_part")
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text


def key_of(part: model_pb2.EvidencePart) -> PartKey:
    """What no two parts of a bundle have in common."""
    return part.kind, part.entry, part.batch, part.port


def places_of_states(entries: Sequence[int]) -> list[tuple[int, int]]:
    """Entry and port of the part that holds the state which each statement names, oldest first; ``entries``: how many entries each one's log has."""
    ends = list(accumulate(entries))
    last = len(ends)
    return [*((end, number) for number, end in enumerate(ends[:-1], start=1)), (ends[-1], 0 if ends[-1] else last)]


class Bundle:
    """The parts of a file that `read_bundle` opened; their bytes are read when they are asked for. Close it when all views of it are done with."""

    def __init__(self, mapped: mmap.mmap, parts: Mapping[PartKey, tuple[model_pb2.EvidencePart, int]]) -> None:
        self._mapped, self._view, self._parts = mapped, memoryview(mapped), parts

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Lets the file go; a view that somebody still holds keeps it mapped until it is gone."""
        self._view.release()
        try:
            self._mapped.close()
        except BufferError:
            return

    def parts(self, kind: model_pb2.EvidenceKind.ValueType) -> Iterator[model_pb2.EvidencePart]:
        """Headers of one kind, by entry, batch and port."""
        for key in sorted(key for key in self._parts if key[0] == kind):
            yield self._parts[key][0]

    def has(self, kind: model_pb2.EvidenceKind.ValueType, *, entry: int = 0, batch: int = 0, port: int = 0) -> bool:
        """Whether there is such a part."""
        return (kind, entry, batch, port) in self._parts

    def part(
        self, kind: model_pb2.EvidenceKind.ValueType, *, entry: int = 0, batch: int = 0, port: int = 0
    ) -> model_pb2.EvidencePart:
        """The header of that part. Raises NotFound (``no_part``)."""
        return self._found(kind, entry, batch, port)[0]

    def data(self, kind: model_pb2.EvidenceKind.ValueType, *, entry: int = 0, batch: int = 0, port: int = 0) -> memoryview:
        """The bytes of that part, not copied. Raises NotFound (``no_part``)."""
        part, at = self._found(kind, entry, batch, port)
        return self._view[at : at + part.size_bytes]

    def _found(self, kind: int, entry: int, batch: int, port: int) -> tuple[model_pb2.EvidencePart, int]:
        found = self._parts.get((kind, entry, batch, port))
        if found is None:
            name = model_pb2.EvidenceKind.Name(model_pb2.EvidenceKind.ValueType(kind))
            raise NotFound(f"the bundle holds no {name} {entry} of batch {batch}, {port}", code="no_part")
        return found


def read_bundle(path: Path, bounds: BundleLimits = BundleLimits(), *, may_be_cut: bool = False) -> Bundle:
    """The bundle in ``path``; headers are read, bytes are mapped. Raises Corrupt (``bad_bundle``) for the first rule broken, OSError.

    ``may_be_cut``: a last part that is not whole counts as not there.
    """
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if not 0 < size_bytes <= bounds.total_bytes:
            raise _bad(f"{size_bytes} bytes")
        mapped = mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ)
    try:
        return Bundle(mapped, _index(mapped, size_bytes, bounds, may_be_cut))
    except BaseException:
        mapped.close()
        raise


def _index(
    data: mmap.mmap, size_bytes: int, bounds: BundleLimits, may_be_cut: bool
) -> dict[PartKey, tuple[model_pb2.EvidencePart, int]]:
    parts: dict[PartKey, tuple[model_pb2.EvidencePart, int]] = {}
    at = headers_bytes = 0
    while at < size_bytes:
        begin = at + _LENGTH_BYTES
        length = int.from_bytes(data[at:begin], "big")
        if may_be_cut and begin + length > size_bytes:
            break
        headers_bytes += length
        if not 0 < length <= MAX_HEADER_BYTES or begin + length > size_bytes or headers_bytes > bounds.header_bytes:
            raise _bad("a header without an end, or too many")
        part = _header(data[begin : begin + length])
        at = begin + length
        if may_be_cut and part.size_bytes > size_bytes - at:
            break
        if part.size_bytes > min(bounds.part_bytes, size_bytes - at):
            raise _bad(f"a part of {part.size_bytes} bytes")
        key = key_of(part)
        if key in parts:
            raise _bad(f"a part is there twice: {key}")
        if len(parts) >= bounds.num_parts:
            raise _bad(f"more than {bounds.num_parts} parts")
        parts[key] = part, at
        at += part.size_bytes
    return parts


def _header(data: bytes) -> model_pb2.EvidencePart:
    try:
        part = model_pb2.EvidencePart.FromString(data)
    except DecodeError as error:
        raise _bad("a header that is none") from error
    if part.kind not in _KINDS:
        raise _bad(f"a part of kind {part.kind}")
    if part.SerializeToString(deterministic=True) != data:
        raise _bad("a header that is not in its one form")
    return part


def _bad(message: str) -> Corrupt:
    return Corrupt(f"bundle refused: {message}", code="bad_bundle")
