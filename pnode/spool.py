"""Sent frames of one replica on disk, in wire codec: never more bytes than allowed, and never bytes other than those put in.

Frames are appended to segment files; the index is in memory, so a spool does not outlive its process: what a crash leaves behind is
removed by the next start. A segment without living frames is written over (twice as fast as a new file, or more), else removed. All methods may be
called from any thread; they block for one disk access.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, NotFound, Unavailable
from dcnr.intervals import IntervalSet
from dcnr.tensor import EncodedTensor, TensorHeader, tensor_digest
from vnode.vocabulary import Lane

MAX_SEGMENT_BYTES: Final = 32 * limits.MIB
_SPARE_SEGMENTS: Final = 2
"""Empty segments kept for the next frames."""
_SUFFIX: Final = ".segment"


@dataclass(frozen=True, slots=True)
class Frame:
    """An encoded tensor and the size of the sender's lineage when it was computed."""

    encoded: EncodedTensor
    step: int


@dataclass(slots=True)
class _Segment:
    number: int
    path: Path
    descriptor: int
    end: int = 0
    living: int = 0
    file_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Place:
    segment: _Segment
    offset: int
    header: TensorHeader
    step: int


@dataclass(slots=True)
class _Books:
    places: dict[Lane, dict[int, _Place]] = field(default_factory=dict)
    segments: dict[int, _Segment] = field(default_factory=dict)
    spare: list[_Segment] = field(default_factory=list)
    current: _Segment | None = None
    closed: bool = False
    next_number: int = 0
    living_bytes: int = 0


class Spool:
    """Frames of at most ``max_bytes`` together, in files of at most four segments more (gaps of dropped frames, spare segments)."""

    def __init__(self, directory: Path, *, max_bytes: int, segment_bytes: int | None = None) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes or max(limits.MIB, min(MAX_SEGMENT_BYTES, max_bytes // 8))
        self._books = _Books()
        self._lock = threading.Lock()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in sorted(directory.glob(f"*{_SUFFIX}")):
            path.unlink(missing_ok=True)

    @property
    def num_bytes(self) -> int:
        """Bytes of all living frames."""
        return self._books.living_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of all segment files, gaps and spare ones included."""
        with self._lock:
            return self._disk_bytes()

    def put(self, lane: Lane, batch: int, frame: Frame) -> None:
        """Keeps a frame, in place of an older one of that number. Raises Unavailable: ``spool_full``, or ``spool_write`` for a disk that refuses."""
        try:
            with self._lock:
                self._forget(lane, batch)
                place = self._reserved(frame)
            try:
                _write_all(place.segment.descriptor, frame.encoded.payload, place.offset)
                reached("spool.written")
            except OSError:
                with self._lock:
                    self._books.living_bytes -= place.header.encoded_bytes
                    self._let_go(place.segment)
                raise
        except OSError as error:
            raise Unavailable(f"the spool cannot be written: {error.strerror}", code="spool_write") from error
        with self._lock:
            if self._books.closed:
                self._let_go(place.segment)
                return
            self._forget(lane, batch)
            self._books.places.setdefault(lane, {})[batch] = place

    def get(self, lane: Lane, batch: int) -> Frame:
        """The frame, checked against its digest. Raises NotFound, and Corrupt for a damaged one, which is then forgotten."""
        with self._lock:
            place = self._books.places.get(lane, {}).get(batch)
            if place is None:
                raise NotFound(f"batch {batch} is not in the spool", code="not_in_spool")
            place.segment.living += 1  # held while it is read, so that nobody writes over it
        try:
            payload = _read_all(place.segment.descriptor, place.header.encoded_bytes, place.offset)
            if tensor_digest(payload) == place.header.digest:
                return Frame(EncodedTensor(place.header, memoryview(payload)), place.step)
        except OSError as error:
            raise Corrupt(f"the spool cannot be read: {error.strerror}", code="spool_read") from error
        finally:
            with self._lock:
                self._let_go(place.segment)
        self.drop(lane, IntervalSet.of((batch, batch + 1)))
        raise Corrupt(f"batch {batch} is damaged in the spool", code="spool_damaged")

    def drop(self, lane: Lane, batches: IntervalSet) -> None:
        """Frees the place of these frames; absent ones are fine."""
        with self._lock:
            places = self._books.places.get(lane)
            if places is None:
                return
            few = len(batches) <= len(places)
            for batch in [number for number in batches if number in places] if few else [n for n in places if n in batches]:
                self._forget(lane, batch)
            if not places:
                self._books.places.pop(lane, None)

    def close(self) -> None:
        """Removes all files; one that is being read or written goes right after that."""
        with self._lock:
            books = self._books
            if books.closed:
                return
            books.closed, books.living_bytes = True, 0
            for place in [place for places in books.places.values() for place in places.values()]:
                place.segment.living -= 1
            books.places.clear()
            for segment in [*books.spare, *(segment for segment in books.segments.values() if segment.living == 0)]:
                _remove(segment)

    def _disk_bytes(self) -> int:
        return sum(segment.file_bytes for segment in [*self._books.segments.values(), *self._books.spare])

    def _reserved(self, frame: Frame) -> _Place:
        """Room for a frame, taken before it is written so that others may write meanwhile."""
        size = len(frame.encoded.payload)
        if self._books.closed:
            raise Unavailable("the spool is closed", code="spool_closed")
        if self._books.living_bytes + size > self._max_bytes:
            raise Unavailable("the spool is full", code="spool_full", size_bytes=size)
        segment = self._segment_for(size)
        place = _Place(segment, segment.end, frame.encoded.header, frame.step)
        segment.end += size
        segment.file_bytes = max(segment.file_bytes, segment.end)
        segment.living += 1
        self._books.living_bytes += size
        return place

    def _forget(self, lane: Lane, batch: int) -> None:
        place = self._books.places.get(lane, {}).pop(batch, None)
        if place is not None:
            self._books.living_bytes -= place.header.encoded_bytes
            self._let_go(place.segment)

    def _let_go(self, segment: _Segment) -> None:
        """One frame, reader or writer less; the last one frees the segment."""
        segment.living -= 1
        if segment.living > 0:
            return
        if self._books.closed:
            _remove(segment)
            return
        segment.end = 0
        if segment is not self._books.current:
            self._retire(segment)

    def _retire(self, segment: _Segment) -> None:
        del self._books.segments[segment.number]
        if len(self._books.spare) < _SPARE_SEGMENTS:
            self._books.spare.append(segment)
        else:
            _remove(segment)

    def _segment_for(self, size: int) -> _Segment:
        """The segment to append ``size`` bytes to; a frame larger than a segment gets one of its own."""
        books = self._books
        current = books.current
        if current is not None and (current.end == 0 or current.end + size <= self._segment_bytes):
            return current
        if books.spare:
            segment = books.spare.pop()
        elif self._disk_bytes() + size > self._max_bytes + 4 * self._segment_bytes:
            raise Unavailable("the spool's files are full of gaps", code="spool_full", size_bytes=size)
        else:
            path = self._directory / f"{books.next_number:08d}{_SUFFIX}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            reached("spool.opened")
            segment = _Segment(books.next_number, path, descriptor)
            books.next_number += 1
        books.segments[segment.number] = segment
        books.current = segment
        if current is not None and current.living == 0:
            self._retire(current)
        return segment


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while len(data):
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _read_all(descriptor: int, size: int, offset: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _remove(segment: _Segment) -> None:
    """What the disk keeps of it goes before the next worker starts."""
    os.close(segment.descriptor)
    with contextlib.suppress(OSError):
        segment.path.unlink(missing_ok=True)
