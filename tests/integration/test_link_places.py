"""Goal: whoever has keys, however many, takes no place on a worker's Links from the neighbours that its plans name, nor holds one that it has no use for."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from links_rig import CLOCK, NETWORK, Recorder, eventually, rig, run

from dcnr.errors import Unavailable
from dcnr.ids import NodeId, ReplicaId
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.server import RpcServer
from dcnr.v1 import local_pb2, vnode_pb2
from pnode import links, sending
from pnode.links import SERVICE, LinkService
from pnode.making import Making
from pnode.pipe import LocalPipe
from pnode.rpc import HeldPort, pnode_of
from pnode.sending import SendingExchange
from pnode.service import DataPlane
from pnode.worker import Worker
from trust.delegation import make_delegation
from trust.identity import NodeKey
from vnode import events as ev
from vnode.registry import default_registry
from vnode.vocabulary import Peer

OPENING = vnode_pb2.LinkMessage(
    edge=1,
    open=vnode_pb2.OpenEdge(
        network_id=NETWORK, model="m", job_id="j", source_replica="a.1", target_replica="b.1", target_incarnation=1
    ),
)
Heard = str
"""What came first over a Link: a kind of message ("" for a sign of life), or "refused"."""


class Caller:
    """One PNode's worker, which opens Links and keeps them."""

    def __init__(self) -> None:
        self.node, worker = NodeKey.generate(), NodeKey.generate()
        delegation = make_delegation(self.node, NETWORK, worker.public_der, 1, ["127.0.0.1:1"], CLOCK.wall())
        self._dialer = Dialer(worker, NETWORK, clock=CLOCK, rng=secrets.token_bytes, delegation=lambda: delegation)
        self._kept: list[Any] = []

    async def links(self, server: NodeId, port: int, count: int, said: bytes = b"") -> list[Heard]:
        """What each of so many Links hears first."""
        connection = await self._dialer.connect(server, [f"127.0.0.1:{port}"])
        open_link = connection.channel.stream_stream(f"/{SERVICE}/Link")
        calls = [open_link(metadata=connection.metadata) for _ in range(count)]
        self._kept += [connection, *calls]

        async def first(call: Any) -> Heard:
            try:
                await call.write(said)
                data = await call.read()
            except (grpc.RpcError, asyncio.InvalidStateError):
                return "refused"
            return "refused" if data is grpc.aio.EOF else vnode_pb2.LinkMessage.FromString(data).WhichOneof("kind") or ""

        return list(await asyncio.gather(*(first(call) for call in calls)))

    async def close(self) -> None:
        connection, *calls = self._kept
        for call in calls:
            call.cancel()
        await connection.close()


@asynccontextmanager
async def served(*planned: str) -> AsyncIterator[RpcServer]:
    """A real server with one replica, ``a.1``, whose plan names those PNodes."""
    key, source = NodeKey.generate(), Recorder(Peer(ReplicaId("a.1"), 3), None)
    unused: Any = None
    server = RpcServer(key, NETWORK, clock=CLOCK, rng=secrets.token_bytes)
    service = LinkService(CLOCK, key, lambda name: source, pnode_of, lambda *_: None, lambda: frozenset(planned))
    server.add(DataPlane(service, peer=pnode_of, desk=unused, donor=unused, uplink=unused, infer=unused).add_to)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop(0)


def test_one_key_takes_a_few_links_and_a_planned_neighbour_finds_room() -> None:
    async def scenario() -> None:
        stranger, neighbour = Caller(), Caller()
        async with served(neighbour.node.node_id) as server:
            heard = await stranger.links(server.node_id, server.port, links.MAX_LINKS)
            assert await neighbour.links(server.node_id, server.port, 1, OPENING.SerializeToString()) == ["opened"]
            assert heard.count("") == links.MAX_LINKS_OF_ONE
            await stranger.close()
            await neighbour.close()

    run(scenario)


def test_many_keys_take_the_places_of_strangers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_LINKS_OF_STRANGERS", links.MAX_LINKS_OF_ONE + 1)

    async def scenario() -> None:
        first, second, neighbour = Caller(), Caller(), Caller()
        async with served(neighbour.node.node_id) as server:
            assert (await first.links(server.node_id, server.port, 8)).count("") == links.MAX_LINKS_OF_ONE
            assert (await second.links(server.node_id, server.port, 8)).count("") == 1
            assert await neighbour.links(server.node_id, server.port, 1, OPENING.SerializeToString()) == ["opened"]
            for one in (first, second, neighbour):
                await one.close()

    run(scenario)


def test_a_worker_keeps_room_for_whom_its_orders_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the replica is ready: whoever reads from it connects as early as that."""
    monkeypatch.setattr(links, "MAX_LINKS_OF_STRANGERS", 0)

    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        daemon = await LocalPipe.over(ours, local_pb2.FromWorker)
        pipe = await LocalPipe.over(theirs, local_pb2.ToWorker)
        key, held, stranger, neighbour = NodeKey.generate(), HeldPort("127.0.0.1", 0), Caller(), Caller()
        subject = Worker(pipe, key, CLOCK, local_pb2.WorkerHello(device="cpu"), Making(), registry=default_registry())
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(subject.run(held))
            assert await daemon.receive() is not None
            delegation = make_delegation(NodeKey.generate(), NETWORK, key.public_der, 1, ["127.0.0.1:1"], CLOCK.wall())
            await daemon.send(local_pb2.ToWorker(delegation=delegation))
            order = local_pb2.HostReplica(state_path=str(tmp_path / "none"))
            order.assignment.replica = "a.1"
            order.assignment.successors.add(replica="b.1", pnode_id=neighbour.node.node_id)
            await daemon.send(local_pb2.ToWorker(host=order))
            while message := await daemon.receive():
                if message.WhichOneof("kind") == "report" and message.report.replicas:
                    break
            said = OPENING.SerializeToString()
            assert await stranger.links(key.node_id, held.port, 1, said) == ["refused"]
            assert await neighbour.links(key.node_id, held.port, 1, said) == ["closed"]
            await stranger.close()
            await neighbour.close()
            await daemon.close()
        await pipe.close()

    run(scenario)


class Beating:
    """A stream on which a second passes with every message: what the test puts there, then signs of life without end."""

    def __init__(self, *said: bytes) -> None:
        self.now_s, self._said = 0.0, list(said)

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s

    async def read(self) -> bytes | None:
        self.now_s += 1.0
        await asyncio.sleep(0)
        return self._said.pop(0) if self._said else b""

    async def write(self, message: bytes) -> None:
        return


@pytest.mark.parametrize("used_s", [0, 30])
def test_a_link_that_has_no_edge_any_more_ends(used_s: int) -> None:
    async def scenario() -> None:
        closing = vnode_pb2.LinkMessage(edge=1, closed=vnode_pb2.EdgeClosed(code="released"))
        used = [OPENING.SerializeToString(), *[b""] * (used_s - 2), closing.SerializeToString()] if used_s else []
        stream, source = Beating(*used), Recorder(Peer(ReplicaId("a.1"), 1), None)
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable) as ended:
                await SendingExchange(stream, NodeKey.generate(), lambda name: source, "p").run(stream)
        assert ended.value.code == "unused_link"
        assert used_s + sending.UNUSED_S <= stream.now_s <= used_s + sending.UNUSED_S + 1

    run(scenario)


def test_a_link_on_which_no_edge_was_up_is_not_told_as_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other end may have no use for it yet: that is no evidence against anybody. Once there is one, the edge opens."""
    monkeypatch.setattr(sending, "UNUSED_S", 0.0)

    async def scenario() -> None:
        async with asyncio.timeout(60), rig(tmp_path, stale_below=6) as r:
            await eventually(lambda: len(r.lost) >= 2)
            assert not any(broken for _, _, broken in r.lost)
            r.source.stale_below = 0
            await r.target.until(ev.EdgeUp)

    run(scenario)
