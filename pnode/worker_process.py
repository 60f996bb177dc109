"""The process of a worker. What it loads before it works is set aside from the search for garbage, which would go through torch a dozen times at each start."""

from __future__ import annotations

import gc
import sys


def main() -> int:
    """Entry point: ``python -m pnode.worker_process --fd N``."""
    gc.disable()
    from pnode import worker  # torch

    gc.freeze()
    gc.enable()
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
