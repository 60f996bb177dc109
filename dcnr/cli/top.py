"""``pnode top``: the daemon on this machine as it works, a screen that is drawn anew, plain lines where output is piped, or JSON."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Protocol, Self

import typer

from dcnr.cli.homes import HomeOption, JsonOption, home_of
from dcnr.settings import PNodeSettings

if TYPE_CHECKING:
    from rich.live import Live

    from dcnr.cli.top_view import Look, Rates

MIN_INTERVAL_S: Final = 0.2
MAX_INTERVAL_S: Final = 3600.0


class Show(Protocol):
    """Shows moments; a context manager around what it does to the terminal."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def show(self, now: Look, rates: Rates) -> None:
        """Takes in the newest moment."""
        ...


def add(app: typer.Typer) -> None:
    """Puts the command into ``app``."""
    app.command()(top)


def top(
    interval: Annotated[float, typer.Option(min=MIN_INTERVAL_S, max=MAX_INTERVAL_S, help="Seconds between two looks.")] = 2.0,
    count: Annotated[int, typer.Option(min=0, help="End after so many looks; 0: with Ctrl-C.")] = 0,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch this node at work until Ctrl-C. State, VNodes, what it uses of its limits, questions, events. With --json one object per line and look.

    Example: pnode top --interval 5
    """
    directory = home_of(PNodeSettings, home)
    shown: Show = _Json() if as_json else _Screen() if sys.stdout.isatty() else _Lines()
    with shown, contextlib.suppress(KeyboardInterrupt):
        before: Look | None = None
        for now in _looks(directory, interval, count):
            from dcnr.cli.top_view import rates_between

            shown.show(now, rates_between(before, now))
            before = now


def _looks(home: Path, interval_s: float, count: int) -> Iterator[Look]:
    """One per interval. Raises NotRunning as soon as the daemon does not answer."""
    from dcnr.cli.local_door import status_of_home
    from dcnr.cli.top_view import Look

    number, due_s = 0, time.monotonic()
    while not count or number < count:
        number += 1
        status = status_of_home(home)
        yield Look(time.monotonic(), status)
        if number != count:
            now_s = time.monotonic()
            due_s = max(due_s + interval_s, now_s)
            time.sleep(due_s - now_s)


class _Lines:
    """One line per look."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return

    def show(self, now: Look, rates: Rates) -> None:
        """Prints it."""
        from dcnr.cli.top_view import top_line

        print(top_line(now, rates), flush=True)  # noqa: T201


class _Json(_Lines):
    """One JSON object per look."""

    def show(self, now: Look, rates: Rates) -> None:
        """Prints it."""
        import json

        from dcnr.cli.top_view import top_data

        print(json.dumps(top_data(now, rates, int(time.time() * 1000)), ensure_ascii=False), flush=True)  # noqa: T201


class _Screen(_Lines):
    """The whole terminal, drawn anew; what was there before comes back at the end."""

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        console = Console(no_color=bool(os.environ.get("NO_COLOR")), highlight=False)
        self._live: Live = Live(console=console, auto_refresh=False, screen=True)
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def show(self, now: Look, rates: Rates) -> None:
        """Draws it."""
        from rich.console import Group
        from rich.text import Text

        from dcnr.cli.top_view import top_screen

        first, state, rest = top_screen(now, rates).split("\n", 2)
        styled = ((first, "bold"), (state, _style(now.status.state)), (rest, ""))
        parts = [Text(text, style=style, no_wrap=True, overflow="ellipsis") for text, style in styled]
        self._live.update(Group(*parts), refresh=True)


def _style(state: str) -> str:
    return {"working": "green", "serving": "green", "idle": "green", "quarantined": "red", "refusing": "red"}.get(state, "yellow")
