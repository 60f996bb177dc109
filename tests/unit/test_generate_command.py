"""``dcnr generate`` shows a text as it comes, then what it is worth; --json has all of it; a text that breaks off is an error behind what has come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from schemas_rig import check_value
from typer.testing import CliRunner

from dcnr import limits
from dcnr.cli.dcnr import app
from dcnr.cli.session import Session
from dcnr.errors import InvalidInput, Unavailable
from dcnr.sdk.writing import Write, request_of
from dcnr.texts import Part
from dcnr.v1 import orchestrator_pb2


def last(**changes: Any) -> orchestrator_pb2.GenerateResponse:
    known: dict[str, Any] = {
        "finish_reason": "stop", "model": "toy", "manifest_digest": "cd" * 32, "exit": "deep", "deepest": "deep", "seed": 2**63, "num_tokens": 5,
        "num_passes": 2, "num_prompt_tokens": 3, "stages": [orchestrator_pb2.StageAnswer(vnode="deep", pnode_id="ab" * 20, step=7)],
    }  # fmt: skip
    return orchestrator_pb2.GenerateResponse(**(known | changes))


class Client:
    """Writes these parts; an error among them is raised in its place."""

    def __init__(self, *parts: Part | Exception) -> None:
        self._parts, self.asked = parts, [(b"", Write())]

    async def generate(self, prompt: bytes, wanted: Write) -> AsyncIterator[Part]:
        self.asked.append((prompt, wanted))
        for part in self._parts:
            if isinstance(part, Exception):
                raise part
            yield part


def call(monkeypatch: pytest.MonkeyPatch, client: Client, *arguments: str, data: bytes = b"") -> Any:
    monkeypatch.setattr(Session, "run", lambda _, work: asyncio.run(work(client)))
    return CliRunner().invoke(app, ["generate", "toy", *arguments], input=data, catch_exceptions=True)


def parts(**changes: Any) -> tuple[Part, Part]:
    return Part("one ", "", orchestrator_pb2.GenerateResponse(model="toy")), Part("two", "stop", last(**changes))


def test_what_is_written_steers_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    steers = Part("\x1b[2J\x1b]0;owned\x07one\n", "", orchestrator_pb2.GenerateResponse(model="toy"))
    written = (steers, Part("ä\x9bH", "stop", last()))
    assert call(monkeypatch, Client(*written), "--prompt", "abc").stdout == "".join(part.text for part in written) + "\n"
    monkeypatch.setattr("dcnr.cli.output.is_terminal", lambda: True)
    assert call(monkeypatch, Client(*written), "--prompt", "abc").stdout == "[2J]0;ownedone\näH\n"


def test_the_text_comes_alone_and_what_it_is_worth_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(*parts())
    shown = call(monkeypatch, client, "--prompt", "abc", "--max-tokens", "9", "--stop", "x", "--stop", "y", "--seed", "3")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == "one two\n"
    assert f"version {'cd' * 32}, exit deep of deep, 5 tokens in 2 passes, stop" in shown.stderr
    prompt, wanted = client.asked[-1]
    assert (prompt, wanted.max_tokens, wanted.stop, wanted.seed) == (b"abc", 9, ("x", "y"), 3)
    call(monkeypatch, client, "--prompt", "ä\udcff")
    assert client.asked[-1][0] == "ä".encode() + b"\xff", "bytes that are no text come from a shell as they were typed"
    degraded = call(monkeypatch, Client(*parts(degraded=True, degraded_reason="nobody serves deep now")), "--prompt", "abc")
    assert "nobody serves deep now" in degraded.stderr


def test_no_probability_is_none_and_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: 0, which stands for 1 on the wire, is refused as REST refuses it, in the SDK too and before anybody is dialled."""
    client = Client(*parts())
    shown = call(monkeypatch, client, "--prompt", "abc", "--top-p", "0", "--temperature", "1")
    assert isinstance(shown.exception, InvalidInput)
    assert (shown.exception.code, len(client.asked)) == ("bad_generation", 1)
    for top_p in (0.0, -0.5, 1.5, float("nan")):
        with pytest.raises(InvalidInput, match="top_p is above 0"):
            request_of("abc", Write(top_p=top_p))


def test_json_has_all_of_it_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(*parts())
    shown = call(monkeypatch, client, "--prompt", "-", "--json", data="é".encode())
    found = json.loads(shown.stdout)
    check_value("dcnr generate", found)
    assert (found["text"], found["finish_reason"], found["seed"], found["stages"][0]["step"]) == ("one two", "stop", 2**63, 7)
    assert client.asked[-1][0] == "é".encode()


def test_what_breaks_off_and_what_is_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Unavailable("nobody is left", code="no_server")
    shown = call(monkeypatch, Client(parts()[0], gone), "--prompt", "abc")
    assert shown.exception is gone
    assert shown.stdout == "one "
    long = call(monkeypatch, Client(), "--prompt", "-", data=b"x" * (limits.MAX_PROMPT_BYTES + 1))
    assert isinstance(long.exception, InvalidInput)
