"""Goal: what a PNode had looked up in the DHT is counted also after the demo has killed it."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from rich.console import Console

from dcnr.cli.local_door import SOCKET
from dcnr.demo.examples import Example
from dcnr.demo.gathering import ask_lookups
from dcnr.demo.run import Options, _Demo
from dcnr.demo.screen import Screen
from dcnr.ids import NodeId
from dcnr.system import SystemClock
from dcnr.testing import LocalNetwork, Process
from dcnr.v1 import local_pb2, local_pb2_grpc

P1 = NodeId("1" * 40)


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="dcnr-t-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


class Daemon(local_pb2_grpc.LocalServiceServicer):
    """Has looked up five times."""

    async def Status(self, request: local_pb2.StatusRequest, context: object) -> local_pb2.StatusResponse:
        return local_pb2.StatusResponse(dht_lookups=5)


async def killed(directory: Path, process: Process) -> dict[str, int]:
    """What is known of its look-ups when everybody was asked again after it was killed, and its place is empty."""
    chosen = Example("none", "none", directory, "CC0", "nowhere", 1.0, as_bytes=False)
    network = LocalNetwork(directory / "n")
    network.pnodes.append(process)
    demo = _Demo(Options(), chosen, directory, network, Screen(Console(quiet=True)), SystemClock())
    story = demo._story
    vnode = story.job.vnodes.add(vnode="a")
    vnode.assignment.pnode_id = P1
    story.durable["a"] = 7
    server = grpc.aio.server()
    local_pb2_grpc.add_LocalServiceServicer_to_server(Daemon(), server)
    server.add_insecure_port(f"unix:{directory / SOCKET}")
    await server.start()
    await demo._kill_pnode(P1)
    await server.stop(None)
    assert not process.alive
    assert [(kill.vnodes, kill.durable) for kill in story.kills] == [(("a",), {"a": 7})]
    await ask_lookups(story, network.pnodes)
    return story.lookups


def test_a_killed_pnode_keeps_what_it_told_last(short: Path) -> None:
    process = Process("p1", [sys.executable, "-c", "import sys; sys.stdin.read()"], short / "p1.log", short, P1)
    process.start()
    try:
        assert asyncio.run(killed(short, process)) == {P1: 5}
    finally:
        process.send(9)


def test_who_does_not_answer_keeps_what_it_told_before(short: Path) -> None:
    demo = _Demo(
        Options(), Example("none", "none", short, "CC0", "nowhere", 1.0, as_bytes=False), short, LocalNetwork(short / "n"),
        Screen(Console(quiet=True)), SystemClock(),
    )  # fmt: skip
    process = Process("p1", [sys.executable, "-c", "import sys; sys.stdin.read()"], short / "p1.log", short, P1)
    process.start()
    try:
        demo._story.lookups[P1] = 3
        asyncio.run(ask_lookups(demo._story, [process]))
    finally:
        demo._network.kill(process)
    assert demo._story.lookups == {P1: 3}
