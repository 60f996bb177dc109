"""Goal: what other nodes say and a command prints does nothing to the terminal of whoever reads it."""

from __future__ import annotations

import json

import pytest

from dcnr.cli.output import emit, say

SAID = "relay_refused: \x1b]0;owned\x07\x1b[2J\x9bHno\r"


@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_that_is_printed_steers_the_terminal(*, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    emit({"reason": SAID}, lambda: f"events\n\tÄ 值 {SAID}", as_json=as_json)
    say(SAID)
    printed, said = capsys.readouterr()
    assert not any(letter in printed for letter in "\x1b\x07\x9b\r")
    assert said == "relay_refused: ]0;owned[2JHno\n"
    if as_json:
        assert json.loads(printed) == {"reason": SAID}
    else:
        assert printed == "events\n\tÄ 值 relay_refused: ]0;owned[2JHno\n"
