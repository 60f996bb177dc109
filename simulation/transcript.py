"""What happened in a history, line by line: the newest part in memory, the whole in a file where one is wanted. Equal seeds give equal bytes."""

from __future__ import annotations

from collections import deque
from typing import Final, TextIO

KEPT_LINES: Final = 400


class Transcript:
    """Lines are put into words only when somebody reads them, so that keeping the newest costs next to nothing."""

    def __init__(self) -> None:
        self._newest: deque[tuple[float, str, tuple[object, ...]]] = deque(maxlen=KEPT_LINES)
        self._file: TextIO | None = None
        self.num_lines = 0

    def into(self, file: TextIO) -> None:
        """Every line from now on is written there too."""
        self._file = file

    def note(self, now_s: float, kind: str, facts: tuple[object, ...]) -> None:
        """One line."""
        self.num_lines += 1
        self._newest.append((now_s, kind, facts))
        if self._file is not None:
            self._file.write(_line(now_s, kind, facts) + "\n")

    def newest(self, count: int = KEPT_LINES) -> list[str]:
        """The last lines, oldest first."""
        return [_line(*entry) for entry in list(self._newest)[-count:]]


def _line(now_s: float, kind: str, facts: tuple[object, ...]) -> str:
    return " ".join((f"{now_s:11.4f}", kind, *(str(fact) for fact in facts)))
