"""What a replica keeps on disk until its intervals are decided: one folder per interval, parts appended as they come, found again after a restart.

In a folder: ``order`` (HostReplica as this replica was hosted), ``begin`` (the state with which the interval begins), ``parts`` (inputs and outputs, a bundle
without the rest), ``state-<n>`` (that after n entries, where such states are small), ``statement-<n>`` and ``steps-<n>`` per signed statement, ``delta-<n>``
per displacement merged, ``anchor-<n>`` that statement n names, ``end`` (the state that it ends with), ``measured`` (the
anchor that the delta which ends it was measured against), ``idle`` where nothing was learned or merged (then
``parts`` is empty), and last ``name``, which says that the interval is whole.
The statement of an anchor ends an interval too where another replica goes on from it as the primary: so a folder has one name for each anchor, that of its
statement, and one for all of it. A folder without any is of an interval that nobody signed: nobody will ask for it. Everything blocks: for a thread, one
caller at a time per replica.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final

from dcnr.crashpoints import reached
from dcnr.errors import InvalidInput
from dcnr.ids import check_digest, digest_of
from dcnr.v1 import model_pb2
from vnode.bundle import header_bytes

STATES_SHARE: Final = 0.125
"""States between the first and the last of an interval are kept while they take no more than this part of what its inputs and outputs do."""
MAX_IDLE: Final = 8
"""Intervals in which nothing was learned that are kept, each a state more on the disk. There is one for each place that a primary gets, and for each log
that is full of what was computed again.
"""
_NAME: Final = "name"
_IDLE: Final = "idle"


@dataclass(frozen=True, slots=True)
class Interval:
    """One folder."""

    path: Path

    def write(self, name: str, data: bytes) -> None:
        """A file whole or not at all, as far as a process's death goes. Raises OSError; no half of it keeps a full disk full then."""
        draft = self.path / f".{name}"
        try:
            draft.write_bytes(data)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
        reached("evidence.drafted")
        draft.replace(self.path / name)
        reached("evidence.renamed")

    def take(self, name: str, source: Path) -> None:
        """A state that lies elsewhere: it stays here when it goes there."""
        target = self.path / name
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
        reached("evidence.taken")

    def idle(self) -> None:
        """Nothing was learned in it: its states and words are all that anybody looks at."""
        os.truncate(self.path / "parts", 0)
        for path in [*self.path.glob("state-*"), self.path / "lost"]:
            path.unlink(missing_ok=True)
        self.write(_IDLE, b"")

    def close(self, digest: str) -> None:
        """It is whole, and of that name."""
        self.write(_NAME, check_digest(digest).encode())


class EvidenceFolder:
    """All intervals of one replica. Methods raise OSError."""

    def __init__(self, directory: Path) -> None:
        self._directory = self._newest = directory
        self._next = 1
        self._signed: dict[Path, list[str]] = {}
        self._spared: tuple[str, ...] = ()
        self._idle: list[str] = []
        self._sizes: dict[Path, int] = {}
        self._parts: BinaryIO | None = None

    def load(self) -> None:
        """Takes up what an earlier worker left, and removes what no statement names."""
        directory = self._directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._next = 1 + max((int(path.name) for path in directory.iterdir() if path.name.isdigit()), default=0)
        self._signed = signed_in(directory)
        for path in directory.iterdir():
            if path not in self._signed:
                _remove(path)
        self._idle = [names[-1] for path, names in self._signed.items() if (path / _IDLE).exists()]
        self._sizes = {path: 0 if names[-1] in self._idle else _size(path) for path, names in self._signed.items()}

    @property
    def num_bytes(self) -> int:
        """Of all intervals."""
        return sum(self._sizes.values())

    def open(self, order: bytes) -> Interval:
        """A new interval, to which parts are added from now on."""
        if self._parts is not None:
            self._parts.close()
        self._newest = path = self._directory / f"{self._next:08d}"
        self._next += 1
        path.mkdir(mode=0o700)
        self._parts = (path / "parts").open("wb", buffering=0)
        interval = Interval(path)
        interval.write("order", order)
        self._sizes[path] = 0
        return interval

    def add(self, part: model_pb2.EvidencePart, data: memoryview) -> int:
        """One more part of the newest interval; its bytes so far."""
        if self._parts is None:
            raise OSError("no interval is open")
        for piece in (memoryview(header_bytes(part, len(data))), data):
            while len(piece):
                piece = piece[self._parts.write(piece) :]
        reached("evidence.added")
        self._sizes[self._newest] = self._parts.tell()
        return self._sizes[self._newest]

    def between(self, interval: Interval, entry: int, state: bytes) -> None:
        """Keeps the state after so many entries of the newest interval where it is small; what is not kept is computed again when somebody asks for it."""
        with contextlib.suppress(OSError):
            kept = sum(path.stat().st_size for path in interval.path.glob("state-*"))
            if state and kept + len(state) <= STATES_SHARE * self._sizes.get(interval.path, 0):
                interval.write(f"state-{entry}", state)

    def closed(self, interval: Interval, digest: str, *, is_idle: bool = False) -> None:
        """That interval is whole; ``is_idle``: nothing was learned or merged in it."""
        if is_idle:
            interval.idle()
            self._idle.append(digest)
        interval.close(digest)
        self._signed[interval.path] = names_in(interval.path)
        self._sizes[interval.path] = 0 if is_idle else _size(interval.path)

    def drop(self, interval: Interval) -> None:
        """An interval that nobody will sign any more: it goes, but for what leads to anchors."""
        if names := names_in(interval.path):
            self._signed[interval.path], self._sizes[interval.path] = names, _size(interval.path)
            return
        self._sizes.pop(interval.path, None)
        _remove(interval.path)

    def decided(self, digests: Collection[str]) -> None:
        """These are kept no more; unknown ones are fine."""
        for path in _of(self._signed, digests):
            del self._signed[path]
            self._sizes.pop(path, None)
            _remove(path)

    def spared(self, digests: Sequence[str], max_bytes: int) -> None:
        """These, oldest first, are kept only as long as all intervals together take no more than ``max_bytes``."""
        self._spared = tuple(digests)
        self.shed(max_bytes)

    def shed(self, max_bytes: int) -> None:
        """The oldest spared ones go until the rest takes no more than ``max_bytes``, or none is left."""
        while self._spared and self.num_bytes > max_bytes:
            self.decided(self._spared[:1])
            self._spared = self._spared[1:]

    def shed_idle(self) -> None:
        """Of those in which nothing was learned all but the newest `MAX_IDLE` go: asking again and again fills no disk. They count to no room, which only what
        is named and judged makes free.
        """
        kept = {names[-1] for names in self._signed.values()}
        self._idle = [digest for digest in self._idle if digest in kept]
        self.decided(self._idle[:-MAX_IDLE])

    def close(self) -> None:
        """Nothing more is added; what is whole stays."""
        if self._parts is not None:
            self._parts.close()
            self._parts = None


def signed_in(directory: Path) -> dict[Path, list[str]]:
    """The folders of a replica's directory that somebody may ask for, oldest first, each with the names of its intervals: of anchors, then of all of it."""
    return {path: names for path in sorted(folders_in(directory)) if (names := names_in(path))}


def names_in(path: Path) -> list[str]:
    """The names of the intervals that one folder holds, as `signed_in` gives them."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        for number in count():
            statement = path / f"statement-{number}"
            if not (statement.exists() and (path / f"anchor-{number}").exists()):
                break
            names.append(digest_of(statement.read_bytes()))
    whole = name_of(path)
    return [*names, whole] if whole else names


def name_of(path: Path) -> str:
    """The name of a folder's whole interval; empty where it is not whole."""
    with contextlib.suppress(OSError, ValueError, InvalidInput):
        return check_digest((path / _NAME).read_text("ascii"))
    return ""


def place_of(directory: Path, interval: str) -> tuple[Path, int | None] | None:
    """The folder that holds that interval, and how many statements lead to it (None: it is all of the folder); None where it is not here."""
    for path, names in signed_in(directory).items():
        if interval in names:
            return path, None if interval == name_of(path) else 1 + names.index(interval)
    return None


def told_by(names: Sequence[str], *known: Collection[str]) -> str:
    """Of a folder's names the first that manifests speak of, by the first of ``known`` that has one; else the last."""
    return next((name for some in known for name in names if name in some), names[-1])


def left_in(directory: Path, before_s: float, known: Collection[str] = ()) -> tuple[dict[str, tuple[int, float]], int]:
    """Of a replica that is not here any more: of what it signed, by name (`told_by`), the bytes and when it was signed; and the bytes of the rest. What nobody
    signed is removed where nothing was added to it since ``before_s``: its worker may be handing over still.
    """
    signed, rest = signed_in(directory), 0
    for path in folders_in(directory):
        with contextlib.suppress(OSError):
            if path in signed:
                continue
            if max(item.stat().st_mtime for item in (path, *path.iterdir())) < before_s:
                _remove(path)
            else:
                rest += _size(path)
    found: dict[str, tuple[int, float]] = {}
    for path, names in signed.items():
        with contextlib.suppress(OSError):
            said = path / _NAME if name_of(path) else path / f"statement-{len(names) - 1}"
            found[told_by(names, known)] = _size(path), said.stat().st_mtime
    return found, rest


def forget(directory: Path, digests: Collection[str]) -> None:
    """Removes signed intervals of a replica that does not run; another one may be open there."""
    for path in _of(signed_in(directory), digests):
        _remove(path)


def _of(signed: dict[Path, list[str]], digests: Collection[str]) -> list[Path]:
    """The folders that have these names."""
    return [path for path, names in signed.items() if any(name in digests for name in names)]


def folders_in(directory: Path) -> list[Path]:
    """Its directories; none where it cannot be read."""
    with contextlib.suppress(OSError):
        return [path for path in directory.iterdir() if path.is_dir()]
    return []


def _remove(path: Path) -> None:
    """The name goes first: what is left of a removal that was cut short is no whole interval."""
    with contextlib.suppress(OSError):
        (path / _NAME).unlink(missing_ok=True)
    reached("evidence.unnamed")
    shutil.rmtree(path, ignore_errors=True)


def _size(path: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        total = sum(item.stat().st_size for item in path.iterdir())
    return total
