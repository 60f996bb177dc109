"""What commands print: results on standard output (plain text, or only JSON), everything else on standard error. No colours, no rich."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

JsonFlag = bool
FAR_S = 1e9
"""Thirty years: nobody is told how much longer."""
_ESCAPED = {code: f"\\u{code:04x}" for code in range(127, 160)}
"""Control characters that JSON may hold as they are."""
_DROPPED = dict.fromkeys((*(code for code in range(32) if code not in b"\n\t"), *range(127, 160)))
"""Control characters, but for line ends and tabs."""


def emit(data: Any, text: Callable[[], str], *, as_json: JsonFlag) -> None:
    """``data`` as JSON, or what ``text`` makes of it. Other nodes' words may be in it, so nothing that steers a terminal stays."""
    words = (
        json.dumps(data, indent=2, ensure_ascii=not _knows_all_letters()).translate(_ESCAPED)
        if as_json
        else text().translate(_DROPPED)
    )
    print(words)  # noqa: T201


def _knows_all_letters() -> bool:
    """Whether standard output can write them; where not, JSON has its own way."""
    encoding = getattr(sys.stdout, "encoding", None)
    return not encoding or codecs.lookup(encoding).name == "utf-8"


def say(text: str) -> None:
    """A line for people, on standard error; nothing that steers a terminal stays."""
    print(text.translate(_DROPPED), file=sys.stderr, flush=True)  # noqa: T201


def write(text: str) -> None:
    """A part of a text on standard output as it comes: as it is for a file or another program, without what steers a terminal where somebody watches."""
    sys.stdout.write(text.translate(_DROPPED) if is_terminal() else text)
    sys.stdout.flush()


def is_terminal() -> bool:
    """Whether somebody watches standard output."""
    return sys.stdout.isatty()


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Left-aligned columns, two spaces apart; numbers to the right."""
    if not rows:
        return "(none)"
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(header), *texts]) for column in range(len(header))]
    right = [all(isinstance(row[column], int | float) for row in rows) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if flush else cell.ljust(width) for cell, width, flush in zip(cells, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(list(header)), *(line(row) for row in texts)])


def duration(seconds: float) -> str:
    """Seconds for people: ``9 s``, ``4 min 10 s``, ``3 h 20 min``; any number, also one that an orchestrator should not have told."""
    if not seconds < FAR_S:
        return "longer than anybody waits"
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(num_bytes: float) -> str:
    """Bytes for people, in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"


def short(identifier: str) -> str:
    """The first eight characters of an id or digest."""
    return identifier[:8] or "-"


class Steps:
    """Progress of long work on standard error: one line that is rewritten in a terminal, one line per tenth where it is piped."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._last: tuple[str, int] | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """``done`` of ``total`` parts of ``what``."""
        tenth = 10 * done // max(total, 1)
        if self._terminal:
            end = "\n" if done >= total else ""
            print(f"\r{what}: {done}/{total}", end=end, file=sys.stderr, flush=True)  # noqa: T201
        elif self._last != (what, tenth):
            say(f"{what}: {done}/{total}")
        self._last = (what, tenth)
