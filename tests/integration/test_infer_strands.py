"""Goal: over a far link large questions go in parts over further connections of their stream and arrive as they were sent; near, or where the other side is an
older node, they go whole. A strand that breaks with a part breaks the stream, one that ends without is replaced, and nobody joins a stream that is not his.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpc import aio
from test_infer_ways import CALLER, CLOCK, NETWORK, WITHIN_S, WORKER, Ends, a_worker, ends, eventually, kinds, question

from dcnr import question_strands
from dcnr.question_outbox import TAKES_SEVERAL
from dcnr.question_strands import AGAIN_S, MAX_STRANDS, MAX_STRANDS_OUT, NAME_BYTES, STRAND_METADATA, TAKES_PARTS, Strands
from dcnr.question_wire import Chunk, Heard
from dcnr.rpc.connection import Connection
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.errors import error_from_rpc
from orchestrator.infer_streams import InferStream, InferStreams
from pnode import infer_strands
from pnode.links import SERVICE

LARGE = (8, 4096)
"""128 KiB."""


async def ask(both: Ends, times: int = 1) -> list[str | None]:
    """Large questions, one after the other; what came back of all so far."""
    for _ in range(times):
        before = len(both.back)
        await both.ask(LARGE)
        await eventually(lambda before=before: len(both.back) > before)
    return kinds(both.back)


def num_strands(both: Ends) -> int:
    return both.desk._strands._num_strands


@asynccontextmanager
async def wide(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ends]:
    """Ends that are far from each other, with all strands."""
    monkeypatch.setattr(question_strands, "FAR_S", 0.0)
    async with ends() as both:
        await ask(both, 2)
        await eventually(lambda: num_strands(both) == MAX_STRANDS)
        yield both


def test_large_questions_go_in_parts_and_arrive_as_they_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    data_of = infer_strands._data_of

    async def noted(strand: Any) -> bytes:
        data = await data_of(strand)
        parts.append(len(data))
        return data

    monkeypatch.setattr(infer_strands, "_data_of", noted)

    async def story() -> None:
        async with wide(monkeypatch) as both:
            assert not parts
            while not parts:  # the opener takes a strand when it hears that it was taken
                await ask(both)
            parts.clear()
            assert await ask(both) == ["answer"] * len(both.back), "what arrives is held against its digest"
            assert parts, "it went over strands"
            parts.clear()
            await both.ask()
            await eventually(lambda: len(both.back) > 4)
            assert not parts, "what is small goes whole"
            both.clock.ahead_s += 3600
            await eventually(lambda: num_strands(both) == 0)  # they end with their stream

    asyncio.run(story())


@pytest.mark.parametrize("why", ["near", "near after all", "an older node"])
def test_elsewhere_questions_go_whole(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_strands, "FAR_S", 0.0 if why == "an older node" else 1000.0)
    if why == "an older node":
        monkeypatch.setattr(infer_strands, "_named", lambda context: b"")

    async def story() -> None:
        async with ends() as both:
            if why == "near after all":
                both.clock.ahead_s = 0.0
                began = Strands.begins

                def slowly(strands: Strands) -> Any:
                    found = began(strands)
                    both.clock.ahead_s += 2000.0  # this once
                    return found

                monkeypatch.setattr(Strands, "begins", slowly)
            await ask(both, 3)
            if why != "near":
                await eventually(lambda: len(both.dialled) == 2)
                await eventually(lambda: both.ways._room.free == MAX_STRANDS_OUT)  # all have ended
            assert await ask(both, 2) == ["answer"] * 5
            assert len(both.dialled) == (1 if why == "near" else 2), "one finds it out"

    asyncio.run(story())


def test_a_strand_that_breaks_with_a_part_breaks_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with wide(monkeypatch) as both:
            (stream,) = both.desk._strands._streams.values()
            stream.strands.clear()
            while await ask(both) == ["answer"] * len(both.back):
                pass
            failure = both.back[-1].failure
            assert failure.code == "successor_unreachable"
            assert (await ask(both))[-1] == "answer", "the next question opens it again"

    asyncio.run(story())


def test_strands_that_ended_are_replaced_with_a_later_question(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with wide(monkeypatch) as both:
            (stream,) = both.desk._strands._streams.values()
            for connection in both.connections[2:4]:
                await connection.close()
            await eventually(lambda: num_strands(both) == MAX_STRANDS - 2)
            await ask(both)
            assert len(both.dialled) == 1 + MAX_STRANDS, "not at once"
            both.clock.ahead_s += AGAIN_S
            await ask(both)
            await eventually(lambda: num_strands(both) == MAX_STRANDS)
            assert set(stream.strands) - set(range(1, MAX_STRANDS + 1)) == {MAX_STRANDS + 1, MAX_STRANDS + 2}, (
                "under numbers of their own"
            )
            assert await ask(both, 2) == ["answer"] * len(both.back)

    asyncio.run(story())


class Waiting:
    """For the answer to one question of an orchestrator."""

    def __init__(self) -> None:
        self.told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def heard(self, pnode_id: str, message: Heard) -> None:
        if not isinstance(message, Chunk) and not self.told.done():
            self.told.set_result(message.WhichOneof("kind") or "")

    def lost(self, pnode_id: str, reason: str) -> None:
        if not self.told.done():
            self.told.set_result(reason)


def put(stream: InferStream, shape: tuple[int, ...] = LARGE) -> asyncio.Future[str]:
    """A question of an orchestrator; what becomes of it."""
    words, waiting = question(shape), Waiting()
    stream.listen(words.question, waiting)
    stream.ask(words, None)
    return waiting.told


@asynccontextmanager
async def held(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[InferStream, asyncio.Future[str], asyncio.Event, asyncio.Event]]:
    """An orchestrator's stream with one strand, to a worker that reads none of what is on its way over it, and the question that it is of. Then what
    lets the other strands be dialled, and what lets the worker read.
    """
    monkeypatch.setattr(question_strands, "FAR_S", 0.0)
    dialling, reading, data_of, over = asyncio.Event(), asyncio.Event(), infer_strands._data_of, Strands._over
    connections: list[Connection] = []
    writing: list[object] = []
    dialer = Dialer(CALLER, NETWORK, clock=CLOCK, rng=secrets.token_bytes, own_connections=True)

    async def dial(worker_id: str, addresses: Sequence[str]) -> Connection:
        if len(connections) == 2:
            await dialling.wait()
        connections.append(await dialer.connect(worker_id, addresses))
        return connections[-1]

    async def later(strand: Any) -> bytes:
        await reading.wait()
        return await data_of(strand)

    async def noted(strands: Strands, call: Any, data: bytes) -> None:
        writing.append(part := object())
        await over(strands, call, data)
        writing.remove(part)

    async def stuck() -> None:
        """A part is being written over the strand, and was before a call over the same connection went there and back: gRPC takes no more of it unread."""
        before: object = None
        while not writing or writing[-1] is not before:
            before = writing[-1] if writing else None
            metadata = (*connections[1].metadata, (STRAND_METADATA, bytes(NAME_BYTES + 1)))
            with pytest.raises(aio.AioRpcError, match="no such stream"):
                await connections[1].channel.stream_stream(f"/{SERVICE}/Infer")(metadata=metadata).read()

    monkeypatch.setattr(infer_strands, "_data_of", later)
    monkeypatch.setattr(Strands, "_over", noted)
    async with ends() as both, asyncio.timeout(WITHIN_S):
        streams = InferStreams(dial, CLOCK)
        running = asyncio.ensure_future(streams.run())
        await asyncio.sleep(0)
        try:
            stream = await streams.opened(both.worker)
            assert await put(stream) == await put(stream) == "answer"
            await eventually(lambda: len(stream._strands._open) == 1)
            told = put(stream, (8, 512 * 1024))
            await stuck()
            yield stream, told, dialling, reading
        finally:
            running.cancel()
            await asyncio.wait([running])


def test_a_strand_that_looks_near_takes_none_away_from_a_question_that_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with held(monkeypatch) as (stream, told, dialling, reading):
            monkeypatch.setattr(question_strands, "FAR_S", 1000.0)
            dialling.set()
            await eventually(lambda: len(stream._strands._open) in (0, MAX_STRANDS))
            reading.set()
            assert await told == "answer"

    asyncio.run(story())


def test_an_orchestrator_hears_of_a_strand_that_was_closed_while_it_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with held(monkeypatch) as (stream, told, _, _):
            (call,) = stream._strands._open.values()
            call.cancel()
            assert await told == "a strand of the stream was closed"

    asyncio.run(story())


def test_only_the_caller_of_a_stream_joins_it_with_each_number_once_and_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        worker, stranger = a_worker(), Dialer(CALLER, NETWORK, clock=CLOCK, rng=secrets.token_bytes, own_connections=True)
        async with ends() as both, contextlib.AsyncExitStack() as stack, asyncio.timeout(WITHIN_S):

            async def called(dialer: Dialer, name: bytes) -> Any:
                connection = await dialer.connect(WORKER.node_id, [both.address])
                stack.push_async_callback(connection.close)
                metadata = (*connection.metadata, (STRAND_METADATA, name))
                return connection.channel.stream_stream(f"/{SERVICE}/Infer")(metadata=metadata)

            name = bytes(NAME_BYTES)
            stream = await called(worker, name)
            assert await stream.read() == TAKES_SEVERAL
            strand = await called(worker, name + b"\1")
            assert await strand.read() == TAKES_PARTS
            another = await called(worker, name + b"\2")
            assert await another.read() == TAKES_PARTS
            another.cancel()
            await eventually(lambda: num_strands(both) == 1)

            async def refused(dialer: Dialer, other: bytes) -> str:
                with pytest.raises(aio.AioRpcError) as error:
                    await (await called(dialer, other)).read()
                return error_from_rpc(error.value).code

            for dialer, other in [(stranger, name + b"\3"), *((worker, name + end) for end in (b"\0", b"\1", b"\2", b""))]:
                assert await refused(dialer, other) == "bad_strand"
            for most, code in (
                ("MAX_STRANDS", "bad_strand"),
                ("MAX_STRANDS_IN", "overloaded"),
                ("MAX_STRANDS_OF_ONE", "overloaded"),
            ):
                with monkeypatch.context() as patched:
                    patched.setattr(infer_strands, most, 1)
                    assert await refused(worker, name + b"\3") == code, most
            stream.cancel()
            assert await strand.read() == aio.EOF

    asyncio.run(story())
