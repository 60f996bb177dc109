"""Whoever misspells a name is told the known one that is most like it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

MAX_TEXT: Final = 256
"""Characters of a name that are compared."""
ALIKE: Final = 0.5


def nearest(name: str, known: Iterable[str], *, alike: float = ALIKE) -> str:
    """The one of ``known`` that is most like ``name``; empty where none reaches ``alike``, from 0 (nothing in common) to 1."""
    found = difflib.get_close_matches(name[:MAX_TEXT], sorted(known), n=1, cutoff=alike)
    return found[0] if found else ""


def told_nearest(name: str, known: Iterable[str], *, lead: str = ", nearest: ") -> str:
    """To follow an unknown name in an error: ``, nearest: 'known'``; empty where nothing is like it."""
    found = nearest(name, known)
    return f"{lead}{found!r}" if found else ""
