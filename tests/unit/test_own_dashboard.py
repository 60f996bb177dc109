"""Goal: the owner's page opens with an orchestrator to ask, waits for the first one no longer than it must, and opens without a daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from dcnr.cli import own_dashboard
from dcnr.cli.local_door import SOCKET
from dcnr.cli.own_dashboard import first_known
from dcnr.ids import NodeId
from dcnr.v1 import local_pb2, local_pb2_grpc

KNOWN = local_pb2.StatusResponse(orchestrators=[local_pb2.Contact(node_id="a" * 40, address="127.0.0.1:1", attached=True)])


class Daemon(local_pb2_grpc.LocalServiceServicer):
    """Knows nobody the first times it is asked."""

    def __init__(self, num_empty: int) -> None:
        self.num_empty, self.num_asked = num_empty, 0

    async def Status(self, request: local_pb2.StatusRequest, context: Any) -> local_pb2.StatusResponse:
        self.num_asked += 1
        return KNOWN if self.num_asked > self.num_empty else local_pb2.StatusResponse()


def known_with(home: Path, daemon: Daemon) -> list[tuple[NodeId, Sequence[str]]]:
    async def story() -> list[tuple[NodeId, Sequence[str]]]:
        server = grpc.aio.server()
        local_pb2_grpc.add_LocalServiceServicer_to_server(daemon, server)
        server.add_insecure_port(f"unix:{home / SOCKET}")
        await server.start()
        known: list[tuple[NodeId, Sequence[str]]] = []
        try:
            await first_known(home, known)
        finally:
            await server.stop(None)
        return known

    return asyncio.run(story())


def test_the_first_orchestrator_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_dashboard, "FIRST_WITHIN_S", 60.0)
    monkeypatch.setattr(own_dashboard, "LOOK_S", 0.0)
    assert known_with(tmp_path, Daemon(3)) == [("a" * 40, ("127.0.0.1:1",))]


def test_it_is_not_waited_for_longer_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_dashboard, "FIRST_WITHIN_S", 0.3)
    daemon = Daemon(10**9)
    assert known_with(tmp_path, daemon) == []


def test_without_a_daemon_the_page_opens_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_dashboard, "FIRST_WITHIN_S", 3600.0)
    known: list[tuple[NodeId, Sequence[str]]] = []
    asyncio.run(first_known(tmp_path, known))
    assert known == []
