"""Two ends of the data plane over real gRPC: recorders for replicas, one real server, one real hub."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dcnr.errors import Stale
from dcnr.ids import ReplicaId
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.server import RpcServer
from dcnr.specs import TensorSpec
from dcnr.system import SystemClock
from dcnr.tensor import EncodedTensor
from pnode.exchange import Way
from pnode.frames import Expected
from pnode.hub import LinkHub
from pnode.links import LinkService, PeerLinks
from pnode.outbox import Outbox
from pnode.rpc import pnode_of
from pnode.service import DataPlane
from pnode.spool import Frame, Spool
from trust.delegation import make_delegation, open_delegation
from trust.identity import NodeKey
from vnode import events as ev
from vnode.vocabulary import TRAIN_LANE, Lane, Mode, Peer

NETWORK = "7" * 40
CLOCK = SystemClock()
MIB = 1 << 20


async def eventually(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  conditions of parts that have no event for it
            await asyncio.sleep(0.01)


@dataclass
class Recorder:
    """A hosted replica that keeps its events and sends what the test tells it to."""

    peer: Peer
    outbox: Any
    spec: TensorSpec = field(default_factory=lambda: TensorSpec("float32", (1024,)))
    batch_size: int = 1 << 15
    network_id: str = NETWORK
    model: str = "m"
    job_id: str = "j"
    events: list[ev.Event] = field(default_factory=list)
    ways: dict[int, Way] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    stale_below: int = 0

    def post(self, event: ev.Event) -> None:
        self.events.append(event)
        self.news.set()

    def expected(self, edge: int) -> Expected:
        return Expected(self.spec, self.batch_size, ("raw",))

    def attach(self, target: Peer, pnode_id: str, way: Way) -> int:
        if target.incarnation < self.stale_below:
            raise Stale("a newer incarnation is connected", code="stale_incarnation")
        link = len(self.ways) + 1
        self.ways[link] = way
        self.post(ev.LinkUp(0.0, link, target))
        return link

    def detach(self, link: int) -> None:
        self.post(ev.LinkDown(0.0, link))

    def carried(self, num_bytes: int, seconds: float) -> None:
        pass

    async def until(self, kind: type[Any], count: int = 1, within_s: float = 60.0) -> list[Any]:
        async with asyncio.timeout(within_s):
            while len(found := [event for event in self.events if isinstance(event, kind)]) < count:
                self.news.clear()
                await self.news.wait()
        return found


@dataclass
class Rig:
    source: Recorder
    target: Recorder
    hub: LinkHub
    told: list[tuple[str, str, str]]
    lost: list[tuple[str, str, bool]]
    server: RpcServer
    outbox: Outbox

    async def until_told(self, code: str) -> None:
        await eventually(lambda: any(kind == "link_fault" and code in reason for kind, _, reason in self.told))

    async def send(self, batch: int, array: np.ndarray[Any, Any]) -> None:
        self.target.batch_size = len(array)
        await self.outbox.keep(TRAIN_LANE, batch, array, batch)
        next(reversed(self.source.ways.values())).send(TRAIN_LANE, batch, Mode.TRAIN)


@asynccontextmanager
async def rig(
    tmp_path: Path,
    *,
    claimed: int = 3,
    stale_below: int = 0,
    signing: NodeKey | None = None,
    alter: Callable[[Frame], Frame] | None = None,
) -> AsyncIterator[Rig]:
    """A source behind a real server, a target that dials it. ``claimed``: the source's incarnation as its worker states it (3 is delegated)."""
    node, worker, other_node, other = (NodeKey.generate() for _ in range(4))
    executor = ThreadPoolExecutor(2)
    outbox = Outbox(Spool(tmp_path / "spool", max_bytes=256 * MIB), executor, lambda: "raw")
    told: list[tuple[str, str, str]] = []
    lost: list[tuple[str, str, bool]] = []
    source = Recorder(Peer(ReplicaId("a.1"), claimed), outbox if alter is None else Altered(outbox, alter))
    source.stale_below = stale_below
    target = Recorder(Peer(ReplicaId("b.1"), 5), None)

    def find(name: str) -> Any:
        return hub_of_source.find(name)

    hub_of_source = LinkHub(CLOCK, node.node_id, None, lambda *_: None)  # type: ignore[arg-type]
    hub_of_source.add(source)
    server = RpcServer(worker, NETWORK, clock=CLOCK, rng=secrets.token_bytes)
    nothing: Any = None
    links = LinkService(CLOCK, signing or worker, find, pnode_of, lambda *said: told.append(said))
    server.add(DataPlane(links, peer=pnode_of, desk=nothing, donor=nothing, uplink=nothing, infer=nothing).add_to)
    port = await server.start("127.0.0.1", 0)
    now = CLOCK.wall()
    theirs = make_delegation(node, NETWORK, worker.public_der, 3, [f"127.0.0.1:{port}"], now)
    mine = make_delegation(other_node, NETWORK, other.public_der, 5, ["127.0.0.1:1"], now)
    dialer = Dialer(other, NETWORK, clock=CLOCK, rng=secrets.token_bytes, delegation=lambda: mine, own_connections=True)
    peers = PeerLinks(
        CLOCK, random.Random(1), executor, dialer.connect, lambda *said: lost.append(said), lambda *said: told.append(said)
    )
    hub = LinkHub(CLOCK, other_node.node_id, peers, lambda *said: lost.append(said))
    running = [asyncio.ensure_future(peers.run()), asyncio.ensure_future(hub.run())]
    try:
        hub.add(target)
        hub.neighbour(ReplicaId("a.1"), open_delegation(theirs, network_id=NETWORK, now_wall=now))
        hub.want(target, 0, {ReplicaId("a.1"): node.node_id})
        yield Rig(source, target, hub, told, lost, server, outbox)
    finally:
        hub.remove(target)
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        await server.stop(0)
        executor.shutdown()
        outbox.close()


class Altered:
    """An outbox whose frames are changed on the way out."""

    def __init__(self, outbox: Outbox, alter: Callable[[Frame], Frame]) -> None:
        self._outbox, self._alter = outbox, alter

    def newest(self, lane: Lane, batch: int) -> None:
        return None

    async def frame(self, lane: Lane, batch: int) -> Frame:
        return self._alter(await self._outbox.frame(lane, batch))


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


def _flipped(frame: Frame) -> Frame:
    payload = bytearray(frame.encoded.payload)
    payload[0] ^= 1
    return replace(frame, encoded=EncodedTensor(frame.encoded.header, memoryview(bytes(payload))))


def _header(**changes: Any) -> Callable[[Frame], Frame]:
    return lambda frame: replace(frame, encoded=EncodedTensor(replace(frame.encoded.header, **changes), frame.encoded.payload))
