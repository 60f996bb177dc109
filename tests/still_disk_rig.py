"""A disk that stands still for as long as a test says: whoever asks it waits, in a thread; and whether a loop would have had to wait."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WITHIN_S = 60.0
"""After which a test whose loop the disk holds up fails, instead of hanging."""


class StillDisk:
    """Calls of `os` with what lies there that wait until the disk goes on."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.goes_on, self.waiting, self.holds_loop_up = threading.Event(), threading.Event(), False

    def standing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, on that disk."""

        def stand(*arguments: Any, **options: Any) -> Any:
            if not str(arguments[0]).startswith(str(self._place)):
                return call(*arguments, **options)
            self.waiting.set()
            if threading.current_thread() is threading.main_thread():
                self.holds_loop_up = True
            else:
                assert self.goes_on.wait(WITHIN_S)
            return call(*arguments, **options)

        return stand


@contextmanager
def standing_still(monkeypatch: pytest.MonkeyPatch, place: Path, call: str) -> Iterator[StillDisk]:
    """The disk stands still for that call of `os`, below that place, until this ends."""
    disk = StillDisk(place)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, disk.standing(getattr(os, call)))
        try:
            yield disk
        finally:
            disk.goes_on.set()
    assert not disk.holds_loop_up
