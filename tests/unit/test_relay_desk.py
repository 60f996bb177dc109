"""Goal: a relay's desk takes nothing that is too large, too much or somebody else's, says so with a typed error, and keeps nothing of what has ended."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

import membership.relay_desk
from dcnr.errors import DcnrError, NotFound, Refused, RemoteFault, Unavailable
from dcnr.ids import NodeId
from dcnr.system import SystemClock
from dcnr.v1 import membership_pb2
from membership.relay_desk import LANE_PARTS, Lane, RelayDesk
from membership.relay_streams import MAX_DATA_BYTES
from membership.relays import in_order
from trust.session import Peer

WORKER, NODE, CALLER, OTHER, FRIEND, RELAY = (NodeId(digit * 40) for digit in "123456")
Message = membership_pb2.RelayMessage
LISTEN = Message(listen=membership_pb2.RelayListen())
CONNECT = Message(connect=membership_pb2.RelayConnect(worker_id=WORKER))
SECONDS = 20.0


class Talk:
    """A stream whose other side is the test."""

    def __init__(self, desk: RelayDesk, peer: Peer, first: Message) -> None:
        self.heard: asyncio.Queue[Message | None] = asyncio.Queue()
        self.said: asyncio.Queue[Message] = asyncio.Queue()
        self.heard.put_nowait(first)
        self.serving = asyncio.ensure_future(desk.serve(self, peer))

    async def read(self) -> Message | None:
        return await self.heard.get()

    async def write(self, message: Message) -> None:
        await self.said.put(message)

    async def next(self, kind: str) -> Message:
        """What the desk says next, which is of that kind."""
        async with asyncio.timeout(SECONDS):
            message = await self.said.get()
        assert message.WhichOneof("kind") == kind
        return message

    async def failure(self) -> DcnrError:
        """With what the desk ended it."""
        with pytest.raises(DcnrError) as failed:
            async with asyncio.timeout(SECONDS):
                await self.serving
        return failed.value

    async def end(self) -> None:
        """Ends it from this side."""
        self.heard.put_nowait(None)
        async with asyncio.timeout(SECONDS):
            await asyncio.wait([self.serving])


def peer(node_id: NodeId, pnode_id: NodeId | None = None) -> Peer:
    return Peer(node_id, node_id if pnode_id else None, pnode_id, "")


def at_desk(test: Callable[[RelayDesk], Awaitable[None]]) -> None:
    numbers = itertools.count()

    async def run() -> None:
        desk = RelayDesk(
            SystemClock(), lambda size: next(numbers).to_bytes(size, "big"), may_use=lambda one: one.node_id != OTHER,
            is_orchestrator=lambda name: name == RELAY, bytes_s=1e9,
        )  # fmt: skip
        await test(desk)
        assert desk.num_connections == 0, "nothing is left"

    asyncio.run(run())


async def listening(desk: RelayDesk) -> Talk:
    talk = Talk(desk, peer(WORKER, NODE), LISTEN)
    await talk.next("opened")
    return talk


async def joined(desk: RelayDesk, listener: Talk, caller_id: NodeId = CALLER) -> tuple[Talk, Talk]:
    """Both ends of a connection."""
    caller = Talk(desk, peer(caller_id), CONNECT)
    number = (await listener.next("incoming")).incoming.number
    worker = Talk(desk, peer(WORKER, NODE), Message(accept=membership_pb2.RelayAccept(number=number)))
    await worker.next("opened")
    await caller.next("opened")
    return caller, worker


def test_bytes_go_both_ways_and_the_last_ones_arrive() -> None:
    async def scene(desk: RelayDesk) -> None:
        listener = await listening(desk)
        caller, worker = await joined(desk, listener)
        caller.heard.put_nowait(Message(data=b"question"))
        assert (await worker.next("data")).data == b"question"
        worker.heard.put_nowait(Message(data=b"answer"))
        await worker.end()
        assert (await caller.next("data")).data == b"answer"
        async with asyncio.timeout(SECONDS):
            await caller.serving
        await listener.end()
        assert desk.num_listeners == 0

    at_desk(scene)


def test_everything_ends_when_its_owner_wants_that_and_what_comes_later_is_served() -> None:
    async def scene(desk: RelayDesk) -> None:
        listener = await listening(desk)
        caller, worker = await joined(desk, listener)
        desk.end_all()
        async with asyncio.timeout(SECONDS):
            await asyncio.wait([talk.serving for talk in (listener, caller, worker)])
        assert (desk.num_listeners, desk.num_connections) == (0, 0)
        listener = await listening(desk)
        caller, worker = await joined(desk, listener)
        for talk in (caller, worker, listener):
            await talk.end()

    at_desk(scene)


def test_who_listens_anew_takes_the_place_of_its_older_stream() -> None:
    async def scene(desk: RelayDesk) -> None:
        older = await listening(desk)
        newer = await listening(desk)
        async with asyncio.timeout(SECONDS):
            await older.serving
        caller, worker = await joined(desk, newer)
        await newer.end()
        caller.heard.put_nowait(Message(data=b"still here"))
        assert (await worker.next("data")).data == b"still here", "a connection needs the stream only to begin"
        await caller.end()
        await worker.end()

    at_desk(scene)


def test_workers_of_one_node_take_few_places_and_the_newest_keep_theirs() -> None:
    async def scene(desk: RelayDesk) -> None:
        talks = [Talk(desk, peer(worker_id, NODE), LISTEN) for worker_id in (WORKER, FRIEND, RELAY)]
        for talk in talks[1:]:
            await talk.next("opened")
        async with asyncio.timeout(SECONDS):
            await talks[0].serving
        assert desk.num_listeners == 2
        assert (await Talk(desk, peer(CALLER), CONNECT).failure()).code == "not_listening"
        stranger = Talk(desk, peer(WORKER, CALLER), LISTEN)
        await stranger.next("opened")
        assert desk.num_listeners == 3, "another PNode has places of its own"
        for talk in (*talks[1:], stranger):
            await talk.end()
        assert desk.num_listeners == 0

    at_desk(scene)


def test_forged_and_oversized_words_are_refused() -> None:
    async def scene(desk: RelayDesk) -> None:
        assert isinstance(await Talk(desk, peer(OTHER), CONNECT).failure(), Refused)
        assert (await Talk(desk, peer(CALLER), LISTEN).failure()).code == "not_a_worker"
        assert (await Talk(desk, peer(CALLER), CONNECT).failure()).code == "not_listening"
        for wrong in (Message(), Message(data=b"x"), Message(opened=membership_pb2.RelayOpened())):
            assert isinstance(await Talk(desk, peer(CALLER), wrong).failure(), RemoteFault)
        listener = await listening(desk)
        caller = Talk(desk, peer(CALLER), CONNECT)
        accept = Message(accept=membership_pb2.RelayAccept(number=(await listener.next("incoming")).incoming.number))
        assert isinstance(await Talk(desk, peer(CALLER, OTHER), accept).failure(), NotFound), "another's connection"
        worker = Talk(desk, peer(WORKER, NODE), accept)
        await worker.next("opened")
        await caller.next("opened")
        assert isinstance(await Talk(desk, peer(WORKER, NODE), accept).failure(), NotFound), "taken already"
        caller.heard.put_nowait(Message(data=bytes(MAX_DATA_BYTES + 1)))
        assert isinstance(await caller.failure(), RemoteFault)
        async with asyncio.timeout(SECONDS):
            await worker.serving
        listener.heard.put_nowait(LISTEN)
        assert isinstance(await listener.failure(), RemoteFault)

    at_desk(scene)


def test_what_is_too_much_is_refused_and_what_nobody_takes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership.relay_desk, "MAX_OF_A_NODE", 1)
    monkeypatch.setattr(membership.relay_desk, "OPEN_S", 0.05)

    async def scene(desk: RelayDesk) -> None:
        listener = await listening(desk)
        lonely = Talk(desk, peer(CALLER), CONNECT)
        await listener.next("incoming")
        assert (await lonely.failure()).code == "not_accepted"
        monkeypatch.setattr(membership.relay_desk, "OPEN_S", SECONDS)
        caller, worker = await joined(desk, listener)
        assert (await Talk(desk, peer(CALLER), CONNECT).failure()).code == "too_many_connections"
        assert (await Talk(desk, peer(FRIEND), CONNECT).failure()).code == "too_many_connections", "the worker has its own bound"
        await caller.end()
        await worker.end()
        again, taken = await joined(desk, listener)
        await again.end()
        await taken.end()

    at_desk(scene)


def test_a_stranger_makes_no_worker_unreachable_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership.relay_desk, "MAX_OF_A_PAIR", 1)
    monkeypatch.setattr(membership.relay_desk, "MAX_OF_A_NODE", 2)

    async def scene(desk: RelayDesk) -> None:
        listener = await listening(desk)
        ends = list(await joined(desk, listener))
        assert (await Talk(desk, peer(CALLER), CONNECT).failure()).code == "too_many_connections"
        ends += await joined(desk, listener, FRIEND)
        for _ in range(3):
            ends += await joined(desk, listener, RELAY)  # an orchestrator comes through beside all of them
        for talk in ends:
            await talk.end()
        for talk in await joined(desk, listener):
            await talk.end()

    at_desk(scene)


def test_a_lane_waits_for_who_takes_and_ends_at_once() -> None:
    async def scene() -> None:
        lane = Lane()
        for number in range(LANE_PARTS):
            await lane.put(bytes((number,)))
        waiting = asyncio.ensure_future(lane.put(b"more"))
        await asyncio.sleep(0)
        assert not waiting.done(), "there is no room"
        assert await lane.get() == b"\0"
        async with asyncio.timeout(SECONDS):
            await waiting
        lane.end()
        with pytest.raises(Unavailable):
            await lane.put(b"late")
        assert [await lane.get() for _ in range(LANE_PARTS + 1)] == [b"\1", b"\2", b"\3", b"more", None]

    asyncio.run(scene())


def test_worker_and_caller_meet_at_the_first_relay_and_a_further_one_moves_few() -> None:
    relays = [(NodeId(f"{number:040x}"), ("h:1",)) for number in range(12)]
    workers = [f"{number:040x}" for number in range(500)]
    for worker in workers:
        assert in_order(worker, relays) == in_order(worker, relays[::-1])
    moved = sum(in_order(worker, relays)[0] != in_order(worker, relays[:-1])[0] for worker in workers)
    assert 0 < moved < len(workers) / 4
