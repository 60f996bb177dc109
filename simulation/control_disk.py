"""A disk in memory with the few paths and calls that a PNode's home needs: what was written is there after a crash, unless the disk is lost."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from dcnr.errors import Corrupt

M = TypeVar("M", bound=Message)


class WatchedDisk(dict[str, bytes]):
    """Tells of every file as it is written."""

    def __init__(self, on_write: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self._on_write = on_write

    def __setitem__(self, path: str, data: bytes) -> None:
        self._on_write(path, data)
        super().__setitem__(path, data)


@dataclass(frozen=True, slots=True)
class SimPath:
    """A path on one such disk."""

    disk: dict[str, bytes]
    path: str

    def __truediv__(self, name: str) -> SimPath:
        return SimPath(self.disk, f"{self.path}/{name}")

    def __lt__(self, other: SimPath) -> bool:
        return self.path < other.path

    def __str__(self) -> str:
        return self.path

    @property
    def name(self) -> str:
        """Last part."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def stem(self) -> str:
        """Last part without its ending."""
        return self.name.rsplit(".", 1)[0]

    def glob(self, pattern: str) -> list[SimPath]:
        """Files directly below."""
        below = [path for path in sorted(self.disk) if path.rsplit("/", 1)[0] == self.path]
        return [SimPath(self.disk, path) for path in below if fnmatch.fnmatch(path.rsplit("/", 1)[-1], pattern)]

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Removes the file."""
        self.disk.pop(self.path, None)

    def read_bytes(self) -> bytes:
        """The whole file."""
        return self.disk[self.path]


def write_atomically(path: SimPath, data: bytes, *, mode: int = 0o600) -> None:
    """In place of `pnode.home.write_atomically`."""
    path.disk[path.path] = data


def read_message(path: SimPath, message_class: type[M], *, max_bytes: int = 0) -> M | None:
    """In place of `pnode.home.read_message`."""
    data = path.disk.get(path.path)
    if data is None:
        return None
    try:
        return message_class.FromString(data)
    except DecodeError as error:
        raise Corrupt(f"{path.name} is damaged", code="damaged_file") from error
