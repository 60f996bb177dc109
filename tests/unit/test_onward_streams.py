"""Goal: a worker hears once to whom questions go on from there, with the certificate that is known of them, and again when its connection may have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dcnr import limits
from dcnr.errors import Unavailable
from dcnr.question_strands import Room, Strands
from dcnr.system import SystemClock
from dcnr.v1 import vnode_pb2
from orchestrator.infer_streams import MAX_EARLY, MAX_SAID, MAX_STREAMS, SAID_S, Dial, InferStream, InferStreams
from trust.delegation import VerifiedDelegation, make_delegation, open_delegation
from trust.identity import NodeKey

NETWORK = "7" * 40
NOBODY: Any = None
PNODE = NodeKey.generate()


def worker() -> VerifiedDelegation:
    made = make_delegation(PNODE, NETWORK, NodeKey.generate().public_der, 1, ["127.0.0.1:1"], 1000.0)
    return open_delegation(made, network_id=NETWORK, now_wall=1000.0)


def said(stream: InferStream) -> list[vnode_pb2.InferMessage]:
    """And takes it away."""
    found = [words.message for words in stream._outbox._unsent]
    stream._outbox._unsent.clear()
    return found


def test_it_is_said_once_and_again_only_when_nothing_went_there_for_a_while() -> None:
    connection: Any = SimpleNamespace(certificate=b"its own")
    stream, one, other = (
        InferStream("p", connection, SystemClock(), Strands(NOBODY, "", SystemClock(), Room(0))),
        worker(),
        worker(),
    )
    stream.goes_on([(one, b"shown"), (other, b"")], 0.0)
    (message,) = said(stream)
    assert message.WhichOneof("kind") is None, "older nodes take it for a sign of life"
    assert [(near.delegation, near.certificate) for near in message.soon] == [(one.envelope, b"shown"), (other.envelope, b"")]
    stream.goes_on([(one, b"shown")], SAID_S - 1)
    assert not said(stream)
    stream.goes_on([(one, b"shown"), (other, b"")], SAID_S + 1)
    (message,) = said(stream)
    assert [near.delegation for near in message.soon] == [other.envelope], "questions went on to the first one meanwhile"


def test_what_is_said_in_one_message_and_remembered_is_bounded() -> None:
    connection: Any = SimpleNamespace(certificate=b"")
    stream, many = (
        InferStream("p", connection, SystemClock(), Strands(NOBODY, "", SystemClock(), Room(0))),
        [(worker(), b"") for _ in range(limits.MAX_NEIGHBOURS + 1)],
    )
    stream.goes_on(many, 0.0)
    assert [len(message.soon) for message in said(stream)] == [limits.MAX_NEIGHBOURS, 1]
    for _ in range(MAX_SAID):
        stream.goes_on([(worker(), b"")], 0.0)
    assert len(stream._said) == MAX_SAID


@asynccontextmanager
async def streams_that(dial: Dial) -> AsyncIterator[InferStreams]:
    streams = InferStreams(dial, SystemClock())
    running = asyncio.create_task(streams.run())
    await asyncio.sleep(0)
    try:
        yield streams
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_streams_that_no_question_needs_yet_leave_room_for_those_that_one_does() -> None:
    dialled: list[str] = []

    async def dial(worker_id: str, addresses: Sequence[str]) -> Any:
        dialled.append(worker_id)
        await asyncio.Event().wait()

    async def story() -> None:
        async with streams_that(dial) as streams:
            early = [asyncio.create_task(streams._open_early([(worker(), ()) for _ in range(MAX_EARLY - 1)])) for _ in range(2)]
            while len(dialled) < MAX_EARLY:  # noqa: ASYNC110  of a task that has no event for it
                await asyncio.sleep(0)
            needed = [asyncio.create_task(streams.opened(worker())) for _ in range(MAX_STREAMS - MAX_EARLY + 1)]
            done, _ = await asyncio.wait(needed, return_when=asyncio.FIRST_COMPLETED)
            assert done == {needed[-1]}
            with pytest.raises(Unavailable) as refused:
                await needed[-1]
            assert refused.value.code == "too_many_streams"
            assert len(dialled) == MAX_STREAMS
        for task in needed[:-1]:
            with pytest.raises(Unavailable):  # nobody is left waiting where this process ends
                await task
        await asyncio.gather(*early)

    asyncio.run(story())


@pytest.mark.parametrize("error", [Unavailable("nobody is there", code="unreachable"), ValueError("a mistake of ours")])
def test_all_that_need_a_worker_wait_for_one_dial_and_hear_of_its_end_at_once(error: Exception) -> None:
    dialled: list[asyncio.Future[Any]] = []

    async def dial(worker_id: str, addresses: Sequence[str]) -> Any:
        dialled.append(asyncio.get_running_loop().create_future())
        return await dialled[-1]

    async def story() -> None:
        one = worker()
        async with streams_that(dial) as streams:
            for number in range(2):
                waiting = [asyncio.create_task(streams.opened(one)) for _ in range(3)]
                while len(dialled) <= number:  # noqa: ASYNC110  of a task that has no event for it
                    await asyncio.sleep(0)
                waiting[0].cancel()
                await asyncio.wait(waiting[:1])
                dialled[-1].set_exception(error)
                for task in waiting[1:]:
                    with pytest.raises(type(error)):
                        await task
                assert len(dialled) == number + 1

    asyncio.run(story())


class Astray:
    """A call over which something comes that was thought of nowhere."""

    async def read(self) -> bytes:
        raise ValueError("not thought of")

    def cancel(self) -> None:
        return None


def test_what_was_thought_of_nowhere_ends_the_stream_and_not_the_process() -> None:
    """All streams of an orchestrator are in one task group, and its end is that of the process."""
    lost: list[str] = []

    async def story() -> None:
        async def nothing() -> tuple[()]:
            return ()

        channel = SimpleNamespace(stream_stream=lambda name: lambda metadata: Astray())
        connection: Any = SimpleNamespace(fresh_metadata=nothing, channel=channel, close=nothing)
        stream = InferStream("p", connection, SystemClock(), Strands(NOBODY, "", SystemClock(), Room(0)))
        listener: Any = SimpleNamespace(lost=lambda pnode_id, reason: lost.append(reason))
        stream.listen(b"question", listener)
        await stream.run()

    asyncio.run(story())
    assert lost == ["ValueError"], "what the text of such an error holds is for the log alone"
