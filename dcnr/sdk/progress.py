"""How long work is shown: bars in a terminal or a notebook, plain lines where they are asked for, otherwise a call of one's own or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

from dcnr.errors import InvalidInput
from dcnr.v1 import orchestrator_pb2

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, int, int], None]
"""(what is done, how many of it are done, of how many)."""
Shown = Progress | bool | Literal["lines"]
"""True: bars where somebody watches, nothing where standard error is piped; ``lines``: a line for each tenth, wherever it goes; False: nothing."""

LINES: Final = "lines"


@contextmanager
def shown(wanted: Shown, *, error: TextIO | None = None) -> Iterator[Progress]:
    """What work tells its steps to, for as long as it lasts. ``error`` stands for standard error. Raises InvalidInput (``bad_progress``)."""
    stream = error or sys.stderr
    if callable(wanted):
        yield wanted
    elif wanted == LINES:
        yield _Lines(stream)
    elif not isinstance(wanted, bool):
        raise InvalidInput(f"progress is True, False, {LINES!r} or a callable, not {wanted!r}", code="bad_progress")
    elif wanted and (console := _console(stream)) is not None:
        with _Bars(console) as bars:
            yield bars
    else:
        yield _nobody


def batches_of(job: orchestrator_pb2.JobView) -> tuple[int, int]:
    """(batches that every VNode has learned, N): the slowest VNode counts."""
    learned = [int(item.report.num_learned) for item in job.vnodes]
    return (min(learned) if learned else 0), int(job.num_batches)


def _nobody(what: str, done: int, total: int) -> None:
    """Tells nobody."""


def _console(stream: TextIO) -> Console | None:
    """Where bars can be drawn; None where nobody watches."""
    from rich.console import Console

    console = Console(file=stream)
    return console if console.is_terminal or console.is_jupyter else None


class _Lines:
    """One line per tenth of each kind of work."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if self._last.get(what) != tenth:
            self._last[what] = tenth
            print(f"{what}: {done}/{total}", file=self._stream, flush=True)


class _Bars:
    """One bar for each kind of work."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Rows

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._rows = Rows(*columns, console=console)
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> _Bars:
        self._rows.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._rows.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._rows.add_task(what, total=total)
        self._rows.update(self._tasks[what], completed=done, total=total)
