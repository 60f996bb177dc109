"""Rows of a long measurement, kept as they come: one that was broken off goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.result import Row


class Kept:
    """Rows by what they follow from, in a file that grows by a line with each; with None nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[str, Row] = {}
        if path is not None and path.exists():
            whole, newline, _ = path.read_text().rpartition("\n")
            path.write_text(whole + newline)  # without a line that was broken off
            self._rows = dict(json.loads(line) for line in whole.splitlines())

    def row(self, key: str, measure: Callable[[], Row]) -> Row:
        """The row that follows from what ``key`` stands for: measured, unless it was before."""
        if key not in self._rows:
            self._rows[key] = measure()
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a") as file:
                    file.write(json.dumps([key, self._rows[key]]) + "\n")
        return self._rows[key]


def key_of(parts: Iterable[bytes]) -> str:
    """Another one wherever a part is another."""
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def judging(*own: str) -> Iterator[bytes]:
    """All code on which a finding of checks may depend, and the tolerances; ``own``: patterns of further files."""
    for pattern in ("vnode/**/*", "trust/**/*", *own):
        for path in sorted(ROOT.glob(pattern)):
            if path.suffix in (".py", ".json"):
                yield path.read_bytes()
