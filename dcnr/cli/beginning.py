"""Where the installed commands begin: Ctrl-C ends them without a traceback also while they are still being loaded, which can take seconds."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

INTERRUPTED: Final = 130
"""The exit code of a command that Ctrl-C ended."""


def pnode() -> None:
    """The command ``pnode``."""
    _begin("pnode")


def orchestrator() -> None:
    """The command ``orchestrator``."""
    _begin("orchestrator")


def dcnr() -> None:
    """The command ``dcnr``."""
    _begin("dcnr")


def _begin(name: str) -> None:
    try:
        import_module(f"dcnr.cli.{name}").main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
