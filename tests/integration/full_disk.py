"""Run as a program in a user and mount namespace of its own, with a directory: mounts a small disk there and fills it under a spool, a snapshot, a file of
evidence, a file of the home and a log. Prints one JSON object: what each said, and whether it went on once there was room.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from dcnr.errors import Unavailable
from dcnr.tensor import encode
from pnode.evidence import Interval
from pnode.home import write_atomically
from pnode.hosted import write_whole
from pnode.spool import Frame, Spool
from vnode.vocabulary import TRAIN_LANE

DISK_BYTES: Final = 1 << 20
STATE: Final = b"s" * (DISK_BYTES // 4)
NEWER: Final = b"n" * (DISK_BYTES // 2)
LOG: Final = """
import sys
import structlog
from dcnr.logs import configure
configure(level="info", as_json=True)
for line in sys.stdin:
    structlog.get_logger("test").info(line.strip())
    print("alive", flush=True)
"""


def frame(seed: int) -> Frame:
    """Some 80 kB."""
    return Frame(encode(np.random.default_rng(seed).standard_normal(20_000).astype(np.float32), "raw"), seed)


class Disk:
    """What fills it up is one file of nobody's."""

    def __init__(self, path: Path) -> None:
        self.path, self._ballast = path, path / "ballast"

    def fill(self, *, but_bytes: int = 0) -> None:
        """Until the kernel says that there is no room, or but for so much."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while file.write(b"\0" * 4096):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            file.truncate(max(0, file.tell() - but_bytes))

    def empty(self) -> None:
        """There is room again."""
        self._ballast.unlink()

    def files(self) -> list[str]:
        """Names of all files but the ballast."""
        return sorted(path.name for path in self.path.rglob("*") if path.is_file() and path != self._ballast)


def refused(write: Callable[[], object]) -> str:
    """What it raised."""
    try:
        write()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    except Unavailable as error:
        return f"{error.code}: {error}"
    return ""


def spooled(disk: Disk) -> Any:
    """Frames that were there stay; the next one goes in once there is room."""
    spool = Spool(disk.path / "spool", max_bytes=8 * DISK_BYTES, segment_bytes=DISK_BYTES)
    spool.put(TRAIN_LANE, 0, frame(0))
    disk.fill(but_bytes=20_000)  # a part of the next frame fits
    said = refused(lambda: spool.put(TRAIN_LANE, 1, frame(1)))
    kept = spool.get(TRAIN_LANE, 0).step == 0
    disk.empty()
    spool.put(TRAIN_LANE, 1, frame(1))
    goes_on = spool.get(TRAIN_LANE, 1).step == 1
    spool.close()
    return {"said": said, "kept": kept, "goes_on": goes_on, "left": disk.files()}


def replaced(disk: Disk, write: Callable[[bytes], object], path: Path) -> Any:
    """A file that was there stays whole, and no half of a newer one takes the room that is left."""
    write(STATE)
    disk.fill(but_bytes=len(NEWER) // 2)
    said = refused(lambda: write(NEWER))
    kept, left = path.read_bytes() == STATE, disk.files()
    disk.empty()
    write(NEWER)
    goes_on = path.read_bytes() == NEWER
    path.unlink()
    return {"said": said, "kept": kept, "goes_on": goes_on, "left": left}


def logged(disk: Disk) -> Any:
    """Whoever logs lives on, and is heard again."""
    path = disk.path / "log"
    with path.open("ab") as log, subprocess.Popen(
        [sys.executable, "-c", LOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
    ) as writer:  # fmt: skip
        assert writer.stdin is not None
        assert writer.stdout is not None

        def says(word: str) -> bool:
            print(word, file=writer.stdin, flush=True)
            return writer.stdout.readline() == "alive\n"

        alive = [says("before")]
        disk.fill()
        alive += [says("x" * 8192)]
        disk.empty()
        alive += [says("after")]
        writer.stdin.close()
        code = writer.wait(60)
    text = path.read_text()
    path.unlink()
    return {"alive": alive, "code": code, "before": "before" in text, "after": "after" in text}


def main(directory: Path) -> None:
    """Everything on one disk, one after the other."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)], check=True, timeout=30)
    disk = Disk(directory)
    state, home, folder = directory / "snapshots" / "a.safetensors", directory / "settings", directory / "interval"
    folder.mkdir()
    print(
        json.dumps({
            "spool": spooled(disk),
            "snapshot": replaced(disk, lambda data: write_whole(state, data), state),
            "evidence": replaced(disk, lambda data: Interval(folder).write("begin", data), folder / "begin"),
            "home": replaced(disk, lambda data: write_atomically(home, data), home),
            "log": logged(disk),
        })
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
