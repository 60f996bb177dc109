"""Goal: callers that take no words, whatever they do with their connections, take no place for calls for longer than their calls last."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

from dcnr import limits
from dcnr.rpc.guard import Guard
from dcnr.system import SystemClock
from trust.session import SessionBook


class Caller:
    """A call's context. A deaf one lets its connection fill, so that the words with which a call ends never leave."""

    def __init__(self, *, is_deaf: bool) -> None:
        self._is_deaf = is_deaf

    def peer(self) -> str:
        return "ipv4:192.0.2.1:5000"

    async def abort(self, *words: Any) -> None:
        assert self._is_deaf, words
        await asyncio.Event().wait()


def test_who_is_refused_and_does_not_listen_is_neither_served_nor_counted_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALL_TIMEOUT_S", 0.01)
    book = SessionBook(server_id="a" * 40, certificate_sha256=b"", network_id="b" * 40, random_bytes=secrets.token_bytes)
    guard = Guard(
        book, clock=SystemClock(), open_methods=frozenset({"/open"}), max_concurrent=2, max_concurrent_per_peer=2, apart=False
    )
    served: list[str] = []

    async def serve(request: str, context: Any) -> str:
        served.append(request)
        return request

    async def story() -> None:
        for _ in range(3):
            await guard._guarded(serve, "/closed", b"no session of this connection")("refused", Caller(is_deaf=True))
        assert await guard._guarded(serve, "/open", None)("good", Caller(is_deaf=False)) == "good"

    asyncio.run(story())
    assert served == ["good"]
