"""A disk in memory with the few paths and calls that a PNode's home needs: what was written is there after a crash, unless the disk is lost. It may be full
for a while, and now and then the whole machine waits for it.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from dcnr.errors import Corrupt, Unavailable

if TYPE_CHECKING:
    from simulation.control_pnode import PNodeShell

SLOW_S: Final = 4.0
"""A slow disk lets a machine wait for at most so long."""

M = TypeVar("M", bound=Message)


class Disk(dict[str, bytes]):
    """One PNode's. The checkers hear of every file as it is written."""

    def __init__(self, pnode: PNodeShell) -> None:
        super().__init__()
        self._pnode = pnode
        self._rng = pnode.world.kernel.rng(f"disk/{pnode.host}")
        self._full_until_s = -1.0

    def fill(self, for_s: float) -> None:
        """No room for anything new for so long."""
        self._full_until_s = self._pnode.world.kernel.now_s + for_s

    @property
    def is_full(self) -> bool:
        """Whether writes fail now."""
        return self._pnode.world.kernel.now_s < self._full_until_s

    def __setitem__(self, path: str, data: bytes) -> None:
        world = self._pnode.world
        if self.is_full and not path.endswith("/incarnation"):
            raise Unavailable(f"{path} cannot be written: no space is left", code="disk_trouble")
        world.checkers.persisted(self._pnode, path, data)
        super().__setitem__(path, data)
        if world.is_unsafe and self._rng.random() < world.knobs.slow_disk_rate:
            self._pnode.process.pause(self._rng.uniform(0.2, SLOW_S))


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
