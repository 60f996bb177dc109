"""Goal: long work shows its progress where somebody watches, and stays silent in a pipe unless lines are asked for."""

from __future__ import annotations

import io
from typing import Any

import pytest

from dcnr.errors import InvalidInput
from dcnr.sdk.progress import Shown, shown


class Stream(io.StringIO):
    """Standard error, piped or a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def work(wanted: Shown, *, is_terminal: bool) -> str:
    stream = Stream(is_terminal=is_terminal)
    with shown(wanted, error=stream) as tell:
        for done in range(41):
            tell("states", done, 40)
        tell("objects", 2, 2)
    return stream.getvalue()


def test_a_terminal_shows_a_bar_for_each_kind_of_work() -> None:
    text = work(True, is_terminal=True)
    assert "states" in text
    assert "40/40" in text
    assert "2/2" in text


def test_a_pipe_is_silent_unless_lines_are_asked_for() -> None:
    assert work(True, is_terminal=False) == ""
    assert work(False, is_terminal=True) == ""
    lines = work("lines", is_terminal=False).splitlines()
    assert lines == [f"states: {4 * tenth}/40" for tenth in range(11)] + ["objects: 2/2"]


def test_a_call_of_ones_own_hears_every_step() -> None:
    heard: list[tuple[str, int, int]] = []
    assert work(lambda *step: heard.append(step), is_terminal=True) == ""
    assert (len(heard), heard[-1]) == (42, ("objects", 2, 2))


def test_anything_else_is_refused() -> None:
    wrong: Any = "bars"
    with pytest.raises(InvalidInput, match="bars"), shown(wrong):
        pass
