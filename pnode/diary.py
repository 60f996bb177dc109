"""What this machine did in the last seven days, hour by hour, as its daemon saw it: in one small file in the home directory, told to nobody.

It is for the owner's note (`pnode note`). Time that nobody saw, while the machine slept or the daemon did not run, is in no hour: it is not known.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dataservice.tidying import tidied
from dcnr.errors import DcnrError
from dcnr.ports import Clock
from pnode.home import write_atomically

FORMAT: Final = "dcnr-diary-1"
HOUR_S: Final = 3600
HOURS: Final = 7 * 24
LOOK_S: Final = 10.0
STOOD_S: Final = 3 * LOOK_S
"""Two looks that far apart: the machine slept in between, and nobody knows what the time was."""
SAVE_S: Final = 300.0
"""A killed daemon loses so much of its diary at most."""
FIRST_SAVE_S: Final = 60.0
MAX_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Seen:
    """How the daemon is: its state in one word, and what it counted since it began."""

    state: str
    num_learned: int
    num_questions: int


@dataclass(slots=True)
class Hour:
    """What is known of one hour: seconds by state, batches that VNodes here learned themselves, questions of which they computed a part."""

    seconds: dict[str, float] = field(default_factory=dict)
    num_learned: int = 0
    num_questions: int = 0


@dataclass(frozen=True, slots=True)
class Week:
    """Seven days as far as they are known; times are Unix seconds."""

    known_since_s: float
    """When the diary was begun, or the first hour of these days of which anything is known."""
    as_of_s: float
    seconds: dict[str, float]
    num_learned: int
    num_questions: int


class Diary:
    """``seen``: how the daemon is now. `run` keeps the file."""

    def __init__(self, path: Path, clock: Clock, seen: Callable[[], Seen]) -> None:
        self._path, self._clock, self._seen = path, clock, seen
        found = _read(path)
        self._hours = found.hours
        self._begun_s = found.begun_s if found.hours else clock.wall()
        self._before: tuple[float, Seen] = clock.monotonic(), Seen("", 0, 0)
        self._page, self._turn = b"", threading.Lock()

    async def run(self) -> None:
        """Until cancelled; then what was seen is written. It is written in threads: a disk that stands still keeps no look from being taken."""
        saving = asyncio.create_task(self._save_now_and_then(), name="diary")
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                self.look()
        finally:
            saving.cancel()
            self._turn_page()
            await tidied(self._try_to_write)

    async def _save_now_and_then(self) -> None:
        await asyncio.sleep(FIRST_SAVE_S)
        while True:
            self._turn_page()
            await asyncio.to_thread(self._try_to_write)
            await asyncio.sleep(SAVE_S)

    def look(self) -> None:
        """Notes the time since the last look under the present state."""
        (looked_s, before), now_s, seen = self._before, self._clock.monotonic(), self._seen()
        self._before = now_s, seen
        hour = self._hours.setdefault(int(self._clock.wall()) // HOUR_S, Hour())
        hour.num_learned += max(0, seen.num_learned - before.num_learned)
        hour.num_questions += max(0, seen.num_questions - before.num_questions)
        if now_s - looked_s < STOOD_S:
            hour.seconds[seen.state] = hour.seconds.get(seen.state, 0.0) + now_s - looked_s

    def save(self) -> None:
        """Writes the file. Blocks. Raises Unavailable (the disk takes no note)."""
        self._turn_page()
        self._write()

    def _turn_page(self) -> None:
        """What is to be written next, as it is known now."""
        wall_s = self._clock.wall()
        self._hours = _newest(self._hours, wall_s)
        rows = [
            {
                "hour": number, "seconds": {state: round(seconds, 1) for state, seconds in sorted(hour.seconds.items())},
                "learned": hour.num_learned, "questions": hour.num_questions,
            }
            for number, hour in sorted(self._hours.items())
        ]  # fmt: skip
        table = {"format": FORMAT, "begun_s": round(self._begun_s, 1), "as_of_s": round(wall_s, 1), "hours": rows}
        self._page = json.dumps(table).encode()

    def _write(self) -> None:
        with self._turn:  # whoever comes last writes the newest page, however long an earlier one waited for the disk
            write_atomically(self._path, self._page)

    def _try_to_write(self) -> None:
        with contextlib.suppress(DcnrError):  # a full disk takes no note: the next time, it may
            self._write()


def week_begins_s(wall_s: float) -> float:
    """The hour with which the seven days until now begin."""
    return float((int(wall_s) // HOUR_S - HOURS + 1) * HOUR_S)


def read_week(path: Path, wall_s: float) -> Week | None:
    """What the diary at ``path`` says of the seven days until now; None where it says nothing, or cannot be read."""
    found = _read(path)
    known = _newest(found.hours, wall_s)
    if not known:
        return None
    seconds: dict[str, float] = {}
    for hour in known.values():
        for state, spent_s in hour.seconds.items():
            seconds[state] = seconds.get(state, 0.0) + spent_s
    learned, questions = (
        sum(counts) for counts in zip(*((one.num_learned, one.num_questions) for one in known.values()), strict=True)
    )
    return Week(max(found.begun_s, float(min(known) * HOUR_S)), found.as_of_s, seconds, learned, questions)


def _newest(hours: dict[int, Hour], wall_s: float) -> dict[int, Hour]:
    first, last = int(week_begins_s(wall_s)) // HOUR_S, int(wall_s) // HOUR_S
    return {number: hour for number, hour in hours.items() if first <= number <= last}


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the file holds. ``begun_s`` is 0 where it does not say; ``as_of_s``: when it was written."""

    hours: dict[int, Hour] = field(default_factory=dict)
    begun_s: float = 0.0
    as_of_s: float = 0.0


def _read(path: Path) -> _Kept:
    """No hours of a file that is not there, or no diary."""
    try:
        with path.open("rb") as file:
            table = json.loads(file.read(MAX_BYTES))
        if table["format"] != FORMAT:
            return _Kept()
        begun_s = float(table.get("begun_s", 0.0))
        if not 0 <= begun_s < math.inf:
            return _Kept()
        return _Kept({int(row["hour"]): _hour(row) for row in table["hours"]}, begun_s, float(table["as_of_s"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return _Kept()


def _hour(row: dict[str, Any]) -> Hour:
    """Raises ValueError where it can be none."""
    seconds = {str(state): float(spent_s) for state, spent_s in row["seconds"].items()}
    hour = Hour(seconds, int(row["learned"]), int(row["questions"]))
    if (
        not all(math.isfinite(spent_s) and spent_s >= 0 for spent_s in seconds.values())
        or min(hour.num_learned, hour.num_questions) < 0
    ):
        raise ValueError("no hour")
    return hour
