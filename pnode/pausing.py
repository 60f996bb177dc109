"""Whether the owner lets this machine work: a pause has an end or lasts until it is resumed, and a restart does not end it."""

from __future__ import annotations

import contextlib
import json
import math
import time
from pathlib import Path
from typing import Final

from dcnr.errors import InvalidInput, Unavailable, disk_trouble
from dcnr.ports import Clock
from pnode.home import write_atomically

LONGEST_S: Final = 366 * 86_400.0


class Pausing:
    """``path`` holds the pause while there is one. Ends are wall clock times: people mean the clock on the wall."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._clock = path, clock
        self._until_wall: float | None = None
        self._load()

    def begin(self, for_s: float) -> None:
        """From now on nothing is computed, for so many seconds or (0) until `end`. Raises InvalidInput; Unavailable where the disk takes no note of it: it is
        paused all the same, and the next start knows nothing of that.
        """
        if not 0.0 <= for_s <= LONGEST_S:
            raise InvalidInput(
                "a pause lasts at most a year", code="bad_pause", remedy="leave the time out to pause until `pnode resume`"
            )
        until = self._clock.wall() + for_s if for_s else math.inf
        self._until_wall = until
        try:
            write_atomically(self._path, json.dumps({"until": None if until == math.inf else until}).encode())
        except Unavailable as error:
            raise Unavailable(
                f"it pauses now, but the next start would work again: {error.message}", code=error.code, remedy=error.remedy
            ) from error

    def end(self) -> None:
        """The owner lets it work again. Raises Unavailable where the disk keeps the note: the next start would pause again."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise disk_trouble("the note of the pause cannot be removed", error) from error
        self._until_wall = None

    @property
    def is_paused(self) -> bool:
        """Whether nothing may be computed now. A pause whose time is up is forgotten."""
        if self._until_wall is not None and self._clock.wall() >= self._until_wall:
            self._until_wall = None
            with contextlib.suppress(OSError):  # a note that stays says a time that is over
                self._path.unlink(missing_ok=True)
        return self._until_wall is not None

    @property
    def reason(self) -> str:
        """For screens and orchestrators."""
        if self._until_wall is None or self._until_wall == math.inf:
            return "paused by its owner until it is resumed"
        return f"paused by its owner until {time.strftime('%Y-%m-%d %H:%M', time.localtime(self._until_wall))}"

    def _load(self) -> None:
        """Takes up the pause of an earlier run; one that cannot be read counts: in doubt nothing runs on a volunteer's machine."""
        try:
            until = json.loads(self._path.read_bytes())["until"]
            self._until_wall = math.inf if until is None else float(until)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            self._until_wall = math.inf
