"""Who holds a home directory: one process at a time, by a lock that the operating system frees when its holder dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from dcnr.errors import Refused, Unavailable

LOCK_FILE: Final = "run.lock"


class HomeLock:
    """Taken when it is made. ``whose`` names the holder (a PNode, an orchestrator), ``remedy`` what to do where another one has it.

    Raises Refused (``already_running``) if a living process has it, Unavailable (``home_unusable``) if the disk does not let us.
    """

    def __init__(self, root: Path, whose: str, remedy: str) -> None:
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unavailable(
                f"the home directory {root} cannot be used: {error.strerror}",
                code="home_unusable",
                remedy="choose another --home, where this user may write",
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise Refused(f"{whose} already runs on {root}", code="already_running", remedy=remedy) from error
        self._lock: int | None = lock

    def close(self) -> None:
        """Frees it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def is_held(root: Path) -> bool:
    """Whether a living process has the lock of that home."""
    try:
        lock = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
