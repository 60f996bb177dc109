"""The browser that tests, pictures and measurements of the dashboard drive: any Chromium on the PATH, else the one that ``playwright install chromium`` brings.

``python -m benchmarks.browser`` says where it is, or ends with 1 and says what to do.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip
"""A browser that asks nobody else, also where it runs as root."""
BROUGHT: Final = "chromium-*/chrome-linux*/chrome"
"""Below the directory of playwright's own browsers."""
REMEDY: Final = (
    "the dashboard is looked at with a real browser: as root, apt-get install chromium; else put any Chromium on the PATH,"
    " or take playwright's own: .venv/bin/playwright install chromium"
)


def chromium(environment: Mapping[str, str] = os.environ) -> str:
    """The browser's path. Raises RuntimeError with what to do where there is none."""
    found = [path for name in NAMES if (path := shutil.which(name, path=environment.get("PATH", "")))]
    own = Path(environment.get("PLAYWRIGHT_BROWSERS_PATH") or "~/.cache/ms-playwright").expanduser()
    found += sorted((str(path) for path in own.glob(BROUGHT)), reverse=True)
    if not found:
        raise RuntimeError(REMEDY)
    return found[0]


if __name__ == "__main__":
    try:
        print(chromium())
    except RuntimeError as error:
        sys.exit(str(error))
