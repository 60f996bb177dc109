"""How many files this process may have open at once, and so how many connections strangers may hold."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

WANTED: Final = 16_384


def let_open() -> None:
    """Lets this process have `WANTED` files open, or as many as its owner's limits allow: often a process begins with 1024, and may have more."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if most == resource.RLIM_INFINITY else min(most, WANTED)
    if files != resource.RLIM_INFINITY and wanted > files:
        with contextlib.suppress(OSError, ValueError):  # a system with a bound of its own: then it stays at what it has
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def room_for(most: int) -> int:
    """So many connections, but only for half of the files that this process may have: the other half is for whatever else it does."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else min(most, files // 2)
