"""The README's blocks of code, each with the mark above it that says where tests run it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

README: Final = Path(__file__).resolve().parents[2] / "README.md"
HERE: Final = "run"
TERMINAL: Final = "run in a terminal"
AUDITED: Final = "run where audits are drawn"
_BLOCK: Final = re.compile(r"(?:^<!-- ([a-z ]+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One of them. ``mark``: empty where it has none."""

    mark: str
    language: str
    body: str


def blocks(text: str) -> list[Block]:
    """In their order."""
    return [Block(*found) for found in _BLOCK.findall(text)]


def lines_where_audited() -> list[str]:
    """Commands that need a network in which audits are drawn."""
    return [line for block in blocks(README.read_text("utf-8")) if block.mark == AUDITED for line in block.body.splitlines()]
