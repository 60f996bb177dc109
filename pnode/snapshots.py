"""Snapshots on this machine: kept until a manifest names them or a newer one, found again after a restart.

Commits are small and all go up, in order, so that the ancestry of every stored state is whole; of the states themselves only the newest waits while the
store is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, DcnrError, Unavailable, disk_trouble
from dcnr.ids import Digest, check_digest, digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import local_pb2, model_pb2
from pnode.disk import on_disk
from pnode.frames import intervals_of
from pnode.home import read_message, write_atomically

_SUFFIX = ".snapshot"
_NOWHERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""What the system says of a path at which nothing can lie."""
MAX_LEFT = 2
"""States that a manifest names and that replicas left which are placed here no more: nobody's disk budget has room for them."""


@dataclass(frozen=True, slots=True)
class StartingState:
    """A state file to restore from, and where it came from. ``commit_digest`` is empty for one that is not of this job."""

    path: Path
    digest: str
    commit_digest: str
    lineage: IntervalSet
    origin: str
    is_of_earlier_job: bool = False
    size_bytes: int = field(default=0, compare=False)
    maker: str = field(default="", compare=False)
    """PNode that made it; of a checkpoint that a manifest names."""
    replica: str = field(default="", compare=False)
    """Who made it, of one that lies on this machine."""
    work_digest: str = field(default="", compare=False)
    """Of what its job was to learn, of one that lies on this machine; empty: not known."""


@dataclass(slots=True)
class Held:
    """One snapshot with how far it has come."""

    ready: local_pb2.SnapshotReady
    note: Path
    noted: bool = False
    """Whether a restart finds it."""
    commit_stored: bool = False
    uploaded: bool = False
    named: bool = False
    num_lost: int = 0
    """How often the holder did not find it in the store."""
    not_hosted: int = 0
    """How often an orchestrator said that the plan does not place its VNode here."""

    @property
    def order(self) -> tuple[int, int]:
        """(incarnation, step): later snapshots of a replica have a higher one."""
        return int(self.ready.checkpoint.incarnation), int(self.ready.checkpoint.step)


class Shelf:
    """All snapshots of this machine, in a directory of notes beside their state files. What touches the disk does so in a thread, one thing after the other:
    a disk that stands still holds no loop up, and takes one thread.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: list[Held] = []
        self._unread: set[str] = set()
        """Digests of states whose notes the disk could not read when this life began."""
        self._discarded: list[Held] = []
        """Forgotten, with files that are still to go."""
        self._disk = asyncio.Lock()
        self._placed: dict[str, tuple[str, frozenset[str]]] = {}
        """By model: its job, and the replicas that the plan has here. Of a model that is not in it nothing is known, and all of it stays."""

    def load(self) -> list[str]:
        """Takes up what an earlier life left behind; remarks on what was unusable, and is removed where the disk lets it go. What the disk cannot read now
        stays: a state waits for it, a note for the next start. Reads every state: for a thread.
        """
        intact: list[Held] = []
        without_state: list[Held] = []
        damaged: list[Path] = []
        remarks: list[str] = []
        for note in sorted(self._directory.glob(f"*{_SUFFIX}")):
            try:
                ready = read_message(note, local_pb2.SnapshotReady)
            except Unavailable as error:
                self._unread.add(note.stem)
                remarks.append(f"{error.message}; it is left to the next start")
                continue
            except DcnrError:
                ready = None
            if ready is None:
                damaged.append(note)
            else:
                (without_state if _is_lost(ready) else intact).append(Held(ready, note, noted=True))
        newest = _newest(intact)
        for held in without_state:
            later = newest.get(held.ready.replica)
            if later is not None and later.order > held.order and is_gone(Path(held.ready.path)):
                intact.append(held)  # only its commits still go up (`thin`)
            else:
                damaged.append(held.note)
        self._held += sorted(intact, key=lambda held: held.order)
        return remarks + [_removed(note) for note in damaged]

    async def loaded(self, stopped: asyncio.Event) -> list[str] | None:
        """As `load`, which may take minutes; None where this is stopped before."""
        try:
            return await on_disk(self.load, stopped)
        except Unavailable:
            if stopped.is_set():
                return None
            raise

    def sweep(self, work: Path) -> None:
        """Removes from ``work`` what a dead worker left behind: spools, drafts, states that nobody was told of. For a thread, before the
        next one starts. Raises Unavailable where the disk keeps some of it.
        """
        kept, trouble = {Path(held.ready.path) for held in list(self._held)}, None
        for directory, _, names in os.walk(work, topdown=False):
            for path in (Path(directory) / name for name in names):
                try:
                    if path not in kept and path.stem not in self._unread:
                        path.unlink(missing_ok=True)
                except OSError as error:
                    trouble = error
            with contextlib.suppress(OSError):  # not empty
                if Path(directory) != work:
                    Path(directory).rmdir()
        if trouble is not None:
            raise disk_trouble("what the last worker left cannot be removed", trouble)

    async def add(self, ready: local_pb2.SnapshotReady) -> None:
        """Keeps a new snapshot; the note is on disk before this returns. Raises Unavailable where the disk takes no note: then it is kept in
        memory only, until `write_notes`. Raises InvalidInput for a digest that is none.
        """
        note = self._directory / f"{check_digest(ready.checkpoint.digest)}{_SUFFIX}"
        self._held.append(Held(ready, note))
        await self.write_notes()
        reached("note.kept")

    async def write_notes(self) -> None:
        """Notes that the disk took not yet, oldest first and none before an older one: a later commit is of no use to a restart that does not find those
        before it. Raises Unavailable where the disk takes one not now either.
        """
        async with self._disk:
            for held in [held for held in self._held if not (held.noted or held.named)]:
                await asyncio.to_thread(write_atomically, held.note, held.ready.SerializeToString())
                held.noted = True
                if held not in self._held:  # it was brought, and discarded, meanwhile
                    self.discard(held)

    def pending(self) -> Iterator[Held]:
        """What no manifest names yet, oldest first."""
        return iter([held for held in self._held if not held.named])

    def superseded(self, held: Held) -> bool:
        """Whether a newer snapshot of the same replica exists."""
        newest = _newest(self._held).get(held.ready.replica)
        return newest is not None and newest.order > held.order

    async def thin(self) -> None:
        """Removes the states that no manifest names and that nobody will bring, since a newer one of their replica waits; their commits still go up.

        Without it a store that is away costs the disk a state for each checkpoint that was due. Not to be called while one is being brought. Raises
        Unavailable where the disk keeps one.
        """
        async with self._disk:
            newest = _newest(self._held)
            waiting = [held for held in self._held if not held.named and newest[held.ready.replica].order > held.order]
            kept = {held.ready.path for held in self._held if held not in waiting}
            try:
                await asyncio.to_thread(_unlink, [Path(held.ready.path) for held in waiting if held.ready.path not in kept])
            except OSError as error:
                raise disk_trouble("a state that a newer one replaces cannot be removed", error) from error

    def named(self, replica: str, step: int) -> None:
        """A manifest names a checkpoint of that replica with ``step`` batches: older snapshots are not needed any more."""
        for held in [h for h in self._held if h.ready.replica == replica and int(h.ready.checkpoint.step) < step]:
            self.discard(held)

    def places(self, model: str, job_id: str, replicas: Iterable[str]) -> None:
        """The plan of that model, for that job, has these replicas here and no others."""
        self._placed[model] = job_id, frozenset(replicas)

    def outlived(self, model: str, newest: model_pb2.Checkpoint) -> bool:
        """A manifest names that as the newest checkpoint of its VNode: what it replaces goes, of replicas that are placed here no more: whether
        anything does.
        """
        num_before = len(self._held)
        for held in self._left():
            ready = held.ready
            if (ready.model, ready.checkpoint.vnode) != (model, newest.vnode):
                continue
            is_followed = ready.job_id == newest.job_id and int(ready.checkpoint.step) <= int(newest.step)
            if (is_followed and ready.replica != newest.replica) or ready.job_id != self._placed[model][0]:
                self.discard(held)
        return len(self._held) < num_before

    def let_go(self) -> None:
        """Of what replicas left that are placed here no more the newest few stay: of a VNode that has gone from here no news comes."""
        for held in self._left()[:-MAX_LEFT]:
            self.discard(held)

    def _left(self) -> list[Held]:
        """Named, and of replicas that are placed here no more."""
        return [held for held in self._held if held.named and not self._may_be_placed(held.ready)]

    def _may_be_placed(self, ready: local_pb2.SnapshotReady) -> bool:
        known = self._placed.get(ready.model)
        return known is None or ready.replica in known[1]

    def lost(self, held: Held) -> None:
        """The store does not have it (any more): it is brought again."""
        held.commit_stored = held.uploaded = held.named = False
        held.num_lost += 1

    async def unnamed(self, model: str, named: model_pb2.Checkpoint) -> Held | None:
        """The newest snapshot of that VNode, if it was named once and a manifest now has nothing newer than ``named``: it waits again."""
        mine = [
            held
            for held in self._held
            if (held.ready.model, held.ready.checkpoint.vnode) == (model, named.vnode)
            and self._may_be_placed(held.ready)  # of others the holder takes nothing
        ]
        there = await asyncio.to_thread(lambda: [held for held in mine if Path(held.ready.path).exists()])
        newest = max(there, key=lambda held: held.order, default=None)
        if newest is None or newest not in self._held or not newest.named or newest.ready.checkpoint.digest == named.digest:
            return None
        step = int(named.step) if named.job_id == newest.ready.job_id else 0
        if int(newest.ready.checkpoint.step) <= step:
            return None
        self.lost(newest)
        return newest

    def discard(self, held: Held) -> None:
        """Forgets a snapshot; its files go with the next `tidy`."""
        if held in self._held:
            self._held.remove(held)
        self._discarded.append(held)

    async def tidy(self) -> None:
        """Removes the files of what was discarded. Raises Unavailable where the disk keeps some."""
        async with self._disk:
            while self._discarded:
                held = self._discarded[0]
                try:
                    if not any(other.note == held.note for other in self._held):
                        await asyncio.to_thread(_unlink, [held.note])
                        reached("note.removed")
                    if not any(other.ready.path == held.ready.path for other in self._held):
                        await asyncio.to_thread(_unlink, [Path(held.ready.path)])
                except OSError as error:
                    raise disk_trouble("a snapshot that is not needed any more cannot be removed", error) from error
                del self._discarded[0]

    async def candidates(self, model: str, job_id: str, vnode: str) -> list[StartingState]:
        """States of that VNode on this machine whose bytes still have their digest, and whose lineage can be read."""
        found: list[StartingState] = []
        for held in list(self._held):
            ready, checkpoint = held.ready, held.ready.checkpoint
            if (ready.model, ready.job_id, checkpoint.vnode) != (model, job_id, vnode):
                continue
            with contextlib.suppress(Corrupt):
                lineage = intervals_of(checkpoint.lineage)
                if await asyncio.to_thread(_intact, ready):
                    found.append(
                        StartingState(
                            Path(ready.path),
                            checkpoint.digest,
                            commit_digest(ready),
                            lineage,
                            "local",
                            replica=ready.replica,
                            work_digest=ready.work_digest,
                        )
                    )
        return found


def commit_digest(ready: local_pb2.SnapshotReady) -> Digest:
    """The digest that names a snapshot's commit envelope."""
    return digest_of(ready.commit.SerializeToString(deterministic=True))


def _newest(snapshots: Iterable[Held]) -> dict[str, Held]:
    """By replica."""
    found: dict[str, Held] = {}
    for held in snapshots:
        known = found.setdefault(held.ready.replica, held)
        if held.order > known.order:
            found[held.ready.replica] = held
    return found


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _removed(note: Path) -> str:
    """What is said of a damaged note: one that the disk keeps is met again at the next start."""
    try:
        note.unlink(missing_ok=True)
    except OSError as error:
        return f"snapshot {note.stem[:12]} is damaged and cannot be removed: {error.strerror}"
    return f"snapshot {note.stem[:12]} is damaged and was removed"


def is_gone(path: Path) -> bool:
    """Whether nothing lies there; not where the disk does not say."""
    try:
        path.lstat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def is_spoiled(ready: local_pb2.SnapshotReady) -> bool:
    """Whether its state is gone from the disk, or is another than was written; not where the disk does not say. Reads all of it: for a thread."""
    try:
        return is_gone(Path(ready.path)) or not _matches(ready)
    except OSError:
        return False


def _is_lost(ready: local_pb2.SnapshotReady) -> bool:
    """Whether its state is gone or another one, for good; not where the disk does not say now. Reads all of it."""
    try:
        return not _matches(ready)
    except OSError as error:
        return error.errno in _NOWHERE


def _intact(ready: local_pb2.SnapshotReady) -> bool:
    try:
        return _matches(ready)
    except OSError:
        return False


def _matches(ready: local_pb2.SnapshotReady) -> bool:
    path = Path(ready.path)
    if path.stat().st_size != ready.checkpoint.size_bytes or ready.checkpoint.size_bytes > limits.MAX_OBJECT_BYTES:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == ready.checkpoint.digest
