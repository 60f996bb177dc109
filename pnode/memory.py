"""What the worker's process takes of this machine's memory."""

from __future__ import annotations

import psutil


def rss_bytes() -> int:
    """Of this process; 0 where the system does not say, as when no file can be opened now."""
    try:
        return int(psutil.Process().memory_info().rss)
    except (OSError, psutil.Error):
        return 0
