"""Whether the owner lets this machine work: a pause has an end or lasts until it is resumed, and a restart does not end it.

What the owner wants is said in the loop, and `keep`, in a thread, brings the note on the disk to it: a disk that stands still delays no pause.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
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
        self._wanted: float | None = None
        self._turn, self._noted = threading.Lock(), _read(path)
        """What the note may say. Only who has the turn changes it, in a thread."""

    def begin(self, for_s: float) -> None:
        """From now on nothing is computed, for so many seconds or (0) until `end`. Raises InvalidInput."""
        if not 0.0 <= for_s <= LONGEST_S:
            raise InvalidInput(
                "a pause lasts at most a year", code="bad_pause", remedy="leave the time out to pause until `pnode resume`"
            )
        self._wanted = self._clock.wall() + for_s if for_s else math.inf

    def end(self) -> None:
        """The owner lets it work again: from when `keep` has removed the note."""
        self._wanted = None

    def keep(self) -> None:
        """The disk says what the owner wants, also to the next start. Blocks. Raises Unavailable where it takes no note of a pause: it is paused all the same,
        and the next start knows nothing of that; or where it keeps a note: the next start would pause again, and so it is paused.
        """
        with self._turn:
            if (wanted := self._wanted) is not None:
                self._noted = wanted
                self._write(wanted)
                return
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                raise disk_trouble("the note of the pause cannot be removed", error) from error
            self._noted = None

    def tidy(self) -> None:
        """Removes the note of a pause that is over, if the disk lets it: one that stays says a time that is over. Blocks."""
        with contextlib.suppress(Unavailable):
            self.keep()

    @property
    def is_paused(self) -> bool:
        """Whether nothing may be computed now. A pause whose time is up is forgotten."""
        if self._wanted is not None and self._clock.wall() >= self._wanted:
            self._wanted = None
        return self._until_wall is not None and self._clock.wall() < self._until_wall

    @property
    def reason(self) -> str:
        """For screens and orchestrators."""
        if (until := self._until_wall) is None or until == math.inf:
            return "paused by its owner until it is resumed"
        return f"paused by its owner until {time.strftime('%Y-%m-%d %H:%M', time.localtime(until))}"

    @property
    def _until_wall(self) -> float | None:
        return self._noted if self._wanted is None else self._wanted

    def _write(self, until: float) -> None:
        try:
            write_atomically(self._path, json.dumps({"until": None if until == math.inf else until}).encode())
        except Unavailable as error:
            raise Unavailable(
                f"it pauses now, but the next start would work again: {error.message}", code=error.code, remedy=error.remedy
            ) from error


def _read(path: Path) -> float | None:
    """The pause of an earlier run; one that cannot be read counts: in doubt nothing runs on a volunteer's machine."""
    try:
        noted = json.loads(path.read_bytes())["until"]
        until = math.inf if noted is None else float(noted)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return math.inf
    return math.inf if math.isnan(until) else until
