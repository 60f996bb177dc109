"""How a worker gives way to everything else that runs on its machine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

NICE: Final = 10
AUTOGROUP: Final = Path("/proc/self/autogroup")


def give_way() -> None:
    """Lowers this process, and its session where that is its own, to niceness 10. What the system refuses stays as it is.

    Linux may share the processor among sessions before it looks at processes (autogroups, on by default; sched(7)). Niceness then counts only
    between processes of one session, and a worker is alone in its own: against the volunteer's programs it would count for nothing.
    """
    with contextlib.suppress(OSError):
        os.nice(max(0, NICE - os.nice(0)))
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            AUTOGROUP.write_text(str(NICE), encoding="ascii")
