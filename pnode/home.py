"""The PNode's home directory: who holds it, what survives a restart. Every write is atomic (temporary file, fsync, rename).

A second daemon on the same home is refused by a lock that the operating system frees when its holder dies.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
from pathlib import Path
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, Refused, Unavailable, disk_trouble
from dcnr.home_lock import LOCK_FILE, HomeLock
from dcnr.ids import check_name
from dcnr.settings import CONFIG_FILE
from pnode.budget import AUDIT, CACHE

M = TypeVar("M", bound=Message)
LOST_AND_FOUND: Final = "lost+found"
"""What a file system that was just made has in its root."""
_OF_DESKTOPS: Final = frozenset((".DS_Store", ".directory", ".localized"))
"""What file managers leave in each directory that somebody has looked into."""
_DRAFT: Final = re.compile(
    r"\.(key\.pem|network\.pb|owner\.pb|nodes\.json|paused\.json|diary\.json|incarnation|(desired|head)-.+\.pb)\.([0-9a-z_]+|[0-9]+\.tmp)"
)
"""Names of what is being written in the root of a home, by whichever of the writers of its files."""


class Home:
    """Paths and small durable facts of one PNode."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.key = root / "key.pem"
        self.network = root / "network.pb"
        self.owner = root / "owner.pb"
        self.contacts = root / "nodes.json"
        self.socket = root / "run.sock"
        self.paused = root / "paused.json"
        self.diary = root / "diary.json"
        self.snapshots = root / "snapshots"
        self.cache = root / "cache"
        self.work = root / "work"
        self.audits = root / "audits"
        self.evidence = root / "evidence"
        self.log = root / "log"
        self._made = (self.snapshots, self.cache, self.work, self.evidence, self.log)
        self._lock: HomeLock | None = None
        self._numbering = threading.Lock()

    def open(self) -> None:
        """Makes the directories and takes the lock. Raises Refused if another daemon has it, or somebody else's files lie there (``directory_in_use``),
        Unavailable if the disk does not let us.
        """
        self._check_ours()
        lock = HomeLock(self.root, "a PNode", "see `pnode status`, or choose another --home")
        try:
            for path in self._made:
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            lock.close()
            raise Unavailable(
                f"the home directory {self.root} cannot be used: {error.strerror}",
                code="home_unusable",
                remedy="choose another --home, where this user may write",
            ) from error
        self._lock = lock
        self._remove_drafts()

    def close(self) -> None:
        """Frees the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _check_ours(self) -> None:
        """A daemon empties directories of its home: none is opened where somebody else keeps something. Plain files beside ours do no harm."""
        try:
            names = sorted(os.listdir(self.root)) if self.root.is_dir() else []
            if (
                "incarnation" in names
                or self.network.name in names
                or {LOCK_FILE, *(path.name for path in self._made)} <= set(names)
            ):
                return  # one has run here, or has begun to
            is_marked = not {LOCK_FILE, CONFIG_FILE, self.key.name, self.owner.name}.isdisjoint(names)
            emptied = [
                path for path in (self.work, self.cache, self.audits, self.evidence, self.snapshots) if _holds_something(path)
            ]
            strange = [name for name in names if not is_marked and self._is_strange(name)]
        except OSError as error:
            raise Unavailable(
                f"the home directory {self.root} cannot be used: {error.strerror}",
                code="home_unusable",
                remedy="choose another --home, where this user may write",
            ) from error
        if found := [*(path.name for path in emptied), *strange]:
            raise Refused(
                f"{self.root} holds other things than a PNode's, such as {found[0]}: a PNode removes what it finds in its home",
                code="directory_in_use", remedy="choose an empty directory with --home or PNODE_HOME",
            )  # fmt: skip

    def _is_strange(self, name: str) -> bool:
        if name.startswith("."):
            return name not in _OF_DESKTOPS and _DRAFT.fullmatch(name) is None
        return name != LOST_AND_FOUND and (self.root / name).is_dir()

    def _remove_drafts(self) -> None:
        """What an earlier life was writing when it died has no name yet: nobody misses it, and what the disk keeps of it goes at a later start."""
        for directory in (self.root, self.snapshots, self.cache):
            for path in directory.glob(".*"):
                with contextlib.suppress(OSError):
                    if (directory != self.root or _DRAFT.fullmatch(path.name)) and path.is_file():
                        path.unlink(missing_ok=True)

    def next_incarnation(self, wall_s: float) -> int:
        """A number above every one given before, also after a lost disk as long as the clock is not far back. Blocks. Threads take turns."""
        path = self.root / "incarnation"
        with self._numbering:
            try:
                last = int(path.read_text())
            except (OSError, ValueError):
                last = 0
            number = max(last + 1, int(wall_s))
            write_atomically(path, str(number).encode())
            reached("incarnation.taken")
        return number

    def desired_path(self, model: str) -> Path:
        """Where the newest accepted desired state of a model lies."""
        return self.root / f"desired-{check_name(model)}.pb"

    def head_path(self, model: str) -> Path:
        """Where the newest confirmed head of a model lies."""
        return self.root / f"head-{check_name(model)}.pb"

    def forget(self, model: str) -> None:
        """A restart takes nothing up of that model; what the disk keeps of it, it takes up and forgets again."""
        for path in (self.desired_path(model), self.head_path(model)):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def disk_bytes(self) -> int:
        """Bytes of all files below the home. Blocks."""
        return _bytes_below(self.root)

    def used_bytes(self) -> dict[str, int]:
        """Bytes of what each replica has on the disk, of the cache, and of the audit under way, by the names in the budget. Blocks."""
        used = {CACHE: _bytes_below(self.cache), AUDIT: _bytes_below(self.audits)}
        for folder in (self.work, self.evidence):
            with contextlib.suppress(OSError):
                for path in folder.iterdir():
                    used[path.name] = used.get(path.name, 0) + _bytes_below(path)
        return used


def _bytes_below(root: Path) -> int:
    """Of each file once, under however many names it lies there."""
    found: dict[tuple[int, int], int] = {}
    for directory, _, names in os.walk(root):  # the worker's directories come and go, which `rglob` does not bear,
        for name in names:
            with contextlib.suppress(OSError):  # and so do its files
                status = os.lstat(os.path.join(directory, name))
                if stat.S_ISREG(status.st_mode):
                    found[status.st_dev, status.st_ino] = status.st_size
    return sum(found.values())


def _holds_something(directory: Path) -> bool:
    return directory.is_dir() and any(name != LOST_AND_FOUND for name in os.listdir(directory))


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """``path`` holds the old or the new bytes, never a mixture, whenever the power fails. Raises Unavailable (disk full, read-only)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        reached("home.drafted")
        temporary.replace(path)
        reached("home.renamed")
    except OSError as error:
        with contextlib.suppress(OSError):  # where no directory is there is no draft
            temporary.unlink()
        raise Unavailable(
            f"{path.name} cannot be written: {error.strerror}",
            code="disk_trouble",
            remedy="free disk space, or choose another place",
        ) from error


def read_whole(path: Path) -> bytes:
    """The bytes of a file that is to be there, such as one that was just fetched. Raises Unavailable: it is fetched again, or the disk comes back."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise disk_trouble(f"{path.name} cannot be read", error) from error


def read_message(path: Path, message_class: type[M], *, max_bytes: int = limits.MAX_MESSAGE_BYTES) -> M | None:
    """The message stored at ``path``, None if there is none. Raises Corrupt, and Unavailable where the disk does not say now."""
    try:
        if path.stat().st_size > max_bytes:
            raise Corrupt(f"{path.name} is larger than {max_bytes} bytes", code="damaged_file")
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_trouble(f"{path.name} cannot be read", error) from error
    message = message_class()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise Corrupt(f"{path.name} is damaged", code="damaged_file", remedy=f"remove {path.name}") from error
    return message
