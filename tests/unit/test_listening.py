"""Goal: no relay is given up for good, whatever ends a stream to it; opening one has a limit and typed errors; a relay that refuses makes room for another, and
gets its place back later and later.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence, Set
from types import SimpleNamespace
from typing import Any

import pytest

import membership.relays
import pnode.listening
from dcnr.errors import DcnrError, Refused, RemoteFault, TimedOut, Unavailable
from dcnr.ids import NodeId
from dcnr.system import SystemClock
from dcnr.v1 import membership_pb2
from membership.relay_streams import NUMBER_BYTES
from membership.relays import NUM_RELAYS, NUM_VOLUNTEERS, in_order, open_stream
from pnode.listening import MAX_OF_VOLUNTEERS, MAX_TAKEN, REFUSED_MAX_S, REFUSED_S, RETRY_MIN_S, Listening

WORKER = NodeId("1" * 40)
RELAYS = in_order(WORKER, [(NodeId(digit * 40), ("h:1",)) for digit in "2345"])
LISTEN = membership_pb2.RelayMessage(listen=membership_pb2.RelayListen())
SECONDS = 20.0


async def asked(
    connection: Callable[[NodeId], Awaitable[Any]], enough: asyncio.Event, known: Sequence[tuple[NodeId, Sequence[str]]],
    volunteers: Set[NodeId] = frozenset(),
) -> None:  # fmt: skip
    """A worker listens at those relays, some of them PNodes, to which it is connected that way, until it is enough."""

    async def connect(relay_id: NodeId, where: object) -> Any:
        return await connection(relay_id)

    relays: Any = SimpleNamespace(known=lambda: known, connection=connect)
    listener = Listening(
        WORKER, 1, relays, SystemClock(), random.Random(1), lambda *_: None, lambda: None, volunteers=lambda: volunteers
    )
    listener.want(True)
    running = asyncio.ensure_future(listener.run())
    try:
        async with asyncio.timeout(SECONDS):
            await enough.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_a_relay_whose_channel_somebody_closed_is_asked_again() -> None:
    async def story() -> None:
        times, again = list[NodeId](), asyncio.Event()

        async def connection(relay_id: NodeId) -> Any:
            times.append(relay_id)
            if len(times) > 1:
                again.set()
            raise asyncio.CancelledError  # as gRPC does in whoever waits for a call

        await asked(connection, again, RELAYS[:1])

    asyncio.run(story())


@pytest.mark.parametrize(
    "refusal",
    [Refused("no", code="not_a_relay"), RemoteFault("no", code="unimplemented"), Unavailable("no", code="overloaded")],
    ids=lambda error: error.code,
)
def test_a_relay_that_refuses_makes_room_for_the_next_one(refusal: DcnrError) -> None:
    async def story() -> None:
        next_one = asyncio.Event()

        async def connection(relay_id: NodeId) -> Any:
            if relay_id == RELAYS[NUM_RELAYS][0]:
                next_one.set()
            raise refusal

        await asked(connection, next_one, RELAYS[: NUM_RELAYS + 1])

    asyncio.run(story())


def test_a_worker_listens_at_pnodes_besides_orchestrators() -> None:
    """Else nobody reaches it once all orchestrators are dead."""
    many = in_order(WORKER, [(NodeId(f"{number:040x}"), ("h:1",)) for number in range(12)])
    offering = frozenset(relay_id for relay_id, _ in many[:6])
    wanted = {relay_id for relay_id, _ in many[:NUM_VOLUNTEERS] + many[6 : 6 + NUM_RELAYS]}

    async def story() -> None:
        tried, all_tried = set[NodeId](), asyncio.Event()

        async def connect(relay_id: NodeId) -> Any:
            tried.add(relay_id)
            if len(tried) == len(wanted):
                all_tried.set()
            await asyncio.Event().wait()

        await asked(connect, all_tried, many, offering)
        assert tried == wanted

    asyncio.run(story())


def test_a_relay_that_refuses_again_and_again_gets_its_place_back_later_and_later() -> None:
    """Else the worker would leave a relay that takes it each minute, for one that does not."""
    bad = RELAYS[0][0]

    async def story() -> None:
        now_s, times = 0.0, list[float]()

        async def connect(relay_id: NodeId, where: object) -> Any:
            if relay_id == bad:
                times.append(now_s)
                raise Refused("no", code="not_a_relay")
            await asyncio.Event().wait()

        relays: Any = SimpleNamespace(known=lambda: RELAYS, connection=connect)
        clock: Any = SimpleNamespace(monotonic=lambda: now_s)
        listener = Listening(WORKER, 1, relays, clock, random.Random(1), lambda *_: None, lambda: None)
        running = asyncio.ensure_future(listener.run())
        while now_s < 4 * REFUSED_MAX_S:
            listener.want(True)
            for _ in range(9):  # turns of the loop until it has looked, asked and heard
                await asyncio.sleep(0)
            now_s += REFUSED_S / 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        pauses = [after - before for before, after in itertools.pairwise(times)]
        assert pauses[:6] == [REFUSED_S * 2**number for number in range(6)]
        assert set(pauses[6:]) == {REFUSED_MAX_S}

    asyncio.run(story())


def test_a_closed_channel_and_a_silent_relay_are_typed_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership.relays, "OPEN_S", 0.05)

    async def closed() -> Any:
        raise asyncio.CancelledError

    async def story() -> None:
        broken: Any = SimpleNamespace(fresh_metadata=closed)
        with pytest.raises(Unavailable) as error:
            await open_stream(broken, LISTEN)
        assert error.value.code == "relay_broken"
        silent: Any = SimpleNamespace(fresh_metadata=asyncio.Event().wait)
        with pytest.raises(TimedOut) as late:
            await open_stream(silent, LISTEN)
        assert late.value.code == "connect_timeout"
        cancelled = asyncio.ensure_future(open_stream(silent, LISTEN))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    asyncio.run(story())


class Announcing:
    """A stream at which so many connections are announced, once ``begin`` is set; then it is silent, or ends."""

    def __init__(self, count: int, begin: asyncio.Event, done: asyncio.Event, *, ends: bool) -> None:
        self._left, self._begin, self._done, self._ends = count, begin, done, ends

    async def read(self) -> membership_pb2.RelayMessage | None:
        await self._begin.wait()
        self._left -= 1
        if self._left >= 0:
            await asyncio.sleep(0)  # what is announced is taken meanwhile
            return membership_pb2.RelayMessage(incoming=membership_pb2.RelayIncoming(number=bytes(NUMBER_BYTES)))
        self._done.set()
        if not self._ends:
            await asyncio.Event().wait()
        return None

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("answers", [False, True])
def test_a_pnode_that_does_not_relay_as_it_says_is_not_dialled_all_the_time(
    *, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its address is a stranger's word: else whoever is named there would be dialled by every worker that listens at relays."""
    stranger = RELAYS[0][0]

    async def ends(*_: Any) -> Any:
        done = asyncio.Event()
        done.set()
        return Announcing(0, done, done, ends=True)

    monkeypatch.setattr(pnode.listening, "open_stream", ends)

    async def story() -> None:
        now_s, times = 0.0, list[float]()

        async def connect(relay_id: NodeId, where: object) -> Any:
            times.append(now_s)
            if not answers:
                raise Unavailable("nobody is there", code="unreachable")

        relays: Any = SimpleNamespace(known=lambda: RELAYS[:1], connection=connect)
        clock: Any = SimpleNamespace(monotonic=lambda: now_s)
        listener = Listening(
            WORKER, 1, relays, clock, random.Random(1), lambda *_: None, lambda: None, volunteers=lambda: {stranger}
        )
        listener.want(True)
        running = asyncio.ensure_future(listener.run())
        for number in range(12):
            listener.want(True)
            for _ in range(9):  # turns of the loop until it has looked, asked and heard
                await asyncio.sleep(0)
            if number == 0:
                await asyncio.sleep(3 * RETRY_MIN_S)
                assert len(times) == 1
            now_s += REFUSED_S
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert 1 < len(times) <= 12

    asyncio.run(story())


def test_a_pnode_that_announces_connections_without_end_takes_no_place_from_orchestrators(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger, orchestrator = RELAYS[0][0], RELAYS[1][0]

    async def story() -> None:
        flooded, came, taken = asyncio.Event(), asyncio.Event(), Counter[NodeId]()
        begin = asyncio.Event()
        begin.set()

        async def open_(connection: Any, first: membership_pb2.RelayMessage) -> Any:
            if first.WhichOneof("kind") == "listen":
                is_stranger = connection.peer_id == stranger
                return Announcing(
                    2 * MAX_TAKEN if is_stranger else 1, begin if is_stranger else flooded, flooded if is_stranger else asyncio.Event(), ends=False
                )  # fmt: skip
            taken[connection.peer_id] += 1
            if connection.peer_id == orchestrator:
                came.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(pnode.listening, "open_stream", open_)

        async def connect(relay_id: NodeId) -> Any:
            return SimpleNamespace(peer_id=relay_id)

        await asked(connect, came, RELAYS[:2], {stranger})
        assert taken == {stranger: MAX_OF_VOLUNTEERS, orchestrator: 1}

    asyncio.run(story())
