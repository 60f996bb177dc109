"""Goal: what other nodes say and a command prints does nothing to the terminal of whoever reads it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator

import pytest

from dcnr.cli.output import emit, say, write
from dcnr.texts import parts_of
from dcnr.v1 import orchestrator_pb2

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


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_letter_that_the_locale_lacks_ends_no_command(*, as_json: bool, encoding: str) -> None:
    """Also a name of a file whose bytes are no letters; JSON stays what it is."""
    name = "· Ä 值 \udcff"
    program = (
        "import sys, typer\nfrom dcnr.cli import errors, output\napp = typer.Typer()\n"
        f"@app.command()\ndef c(): output.emit({{'name': {name!r}}}, lambda: {name!r}, as_json={as_json})\n"
        "errors.run(app, 'x')"
    )
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if as_json:
        assert json.loads(done.stdout.decode(encoding)) == {"name": name}
    else:
        assert done.stdout == f"{name}\n".encode(encoding, "backslashreplace")


class Terminal(io.StringIO):
    """Somebody watches."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stdout", "shown"), [(Terminal(), "Ä 值\n\t[2J0;no]"), (io.StringIO(), "Ä 值\n\t\x1b[2J\x9b0;no]\x07\r")])
def test_a_text_that_comes_in_parts_steers_no_terminal_and_is_what_it_is_elsewhere(
    stdout: io.StringIO, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However its bytes are cut, also within a character."""
    text = "Ä 值\n\t\x1b[2J\x9b0;no]\x07\r".encode()
    monkeypatch.setattr(sys, "stdout", stdout)

    async def told(size: int) -> AsyncGenerator[orchestrator_pb2.GenerateResponse, None]:
        for start in range(0, len(text), size):
            is_last = start + size >= len(text)
            yield orchestrator_pb2.GenerateResponse(text=text[start : start + size], finish_reason="stop" if is_last else "")

    async def written() -> None:
        for size in (1, 2, 3, len(text)):
            async for part in parts_of(told(size)):
                write(part.text)

    asyncio.run(written())
    assert stdout.getvalue() == 4 * shown
