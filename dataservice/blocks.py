"""A file that goes out block by block, read in threads, and is closed whenever whoever sends it is cut off."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import BinaryIO

from dcnr.errors import disk_trouble


class Blocks:
    """A file that is read from its beginning. `read` blocks, and raises Unavailable where the disk refuses; `close` waits for nobody."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._lock, self._is_over = threading.Lock(), False
        """Whoever sends it may be cut off while a thread opens or reads it: then that thread closes it."""

    def read(self, num_bytes: int) -> bytes:
        """The next bytes; nothing after the end."""
        try:
            with self._lock:
                if self._is_over:
                    return b""
                self._file = self._file or self._path.open("rb")
                return self._file.read(num_bytes)
        except OSError as error:
            raise disk_trouble(f"{self._path.name} cannot be read", error) from error
        finally:
            if self._is_over:
                self.close()

    def close(self) -> None:
        """It is read no more."""
        self._is_over = True
        if self._lock.acquire(blocking=False):
            try:
                if self._file is not None:
                    self._file.close()
            finally:
                self._lock.release()
