"""Goal: who announces a message and does not send it holds a server's memory in few calls and for a bounded time, and keeps nobody else from theirs."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rpc_rig import CLIENT, SERVER, House, connected, in_house, probe, until
from test_strangers_connections import anybody

from dcnr import limits
from dcnr.rpc import reading
from dcnr.v1 import membership_pb2

JOIN = "/dcnr.v1.MembershipService/Join"
DATA, HEADERS, RST_STREAM, SETTINGS = 0, 1, 3, 4
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(path: str) -> bytes:
    """As HPACK has them without its tables."""
    fields = {
        ":method": "POST",
        ":scheme": "https",
        ":path": path,
        ":authority": SERVER.node_id,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in fields.items())


class Halves:
    """One stranger's connection, with calls of which the server waits for the rest."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._num = reader, writer, 0
        self.ended = list[int]()
        """Calls that the server has ended, in that order."""

    def begin(self, count: int) -> None:
        """So many more calls, each with the beginning of a message as large as one may be."""
        for _ in range(count):
            stream, self._num = 2 * self._num + 1, self._num + 1
            self._writer.write(frame(HEADERS, END_HEADERS, stream, headers(JOIN)))
            self._writer.write(frame(DATA, 0, stream, struct.pack(">BI", 0, limits.MAX_MESSAGE_BYTES) + bytes(1024)))

    async def listen(self) -> None:
        """Until cancelled."""
        while True:
            head = await self._reader.readexactly(9)
            await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            call = int.from_bytes(head[5:], "big") // 2
            if (head[3] == RST_STREAM or (head[3] == HEADERS and head[4] & END_STREAM)) and call not in self.ended:
                self.ended.append(call)


@asynccontextmanager
async def stranger(house: House) -> AsyncIterator[Halves]:
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port, ssl=anybody())
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b""))
    halves = Halves(reader, writer)
    listening = asyncio.create_task(halves.listen())
    try:
        yield halves
    finally:
        listening.cancel()
        writer.transport.abort()


async def joins(house: House) -> bool:
    answer, _ = await house.dialer().join(house.address, membership_pb2.JoinRequest())
    return answer.observed_address == "open"


def test_halves_of_messages_take_few_places_and_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALL_TIMEOUT_S", 5.0)
    monkeypatch.setattr(reading, "AT_ONCE_S", 0.1)

    async def scene(house: House) -> None:
        async with stranger(house) as halves:
            halves.begin(10)
            await until(lambda: len(halves.ended) == 10 - reading.MAX_SLOW_PER_SUBNET, "what has no place ends soon")
            assert await joins(house), "whole messages come through"
            async with connected(house) as member:
                assert await probe(member)
            assert len(halves.ended) == 10 - reading.MAX_SLOW_PER_SUBNET, "what has a place keeps it for its time"
            await until(lambda: len(halves.ended) == 10, "in the end all are over")
            halves.begin(reading.MAX_SLOW_PER_SUBNET + 1)
            await until(lambda: len(halves.ended) == 11, "the places are free again, and no more than before")

    in_house(scene)


def test_calls_of_strangers_beyond_their_bound_are_refused_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "AT_ONCE_S", 600.0)
    bound = 3

    async def scene(house: House) -> None:
        async with stranger(house) as halves:
            halves.begin(5)
            await until(lambda: len(halves.ended) == 2, "two too many")
            assert sorted(halves.ended) == [bound, bound + 1]

    in_house(scene, max_concurrent_per_peer=4 * bound)


def test_who_has_a_session_gets_the_time_that_a_slow_line_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a large message over a slow line is read whole."""
    monkeypatch.setattr(reading, "AT_ONCE_S", 0.05)
    monkeypatch.setattr(limits, "CALL_TIMEOUT_S", 0.05)  # of those who have none
    assert reading.SESSION_READ_S >= limits.MAX_MESSAGE_BYTES / limits.SLOWEST_BYTES_S

    async def scene(house: House) -> None:
        async with connected(house) as connection:
            call: Any = connection.channel.stream_unary(
                "/dcnr.v1.MembershipService/Probe",
                membership_pb2.ProbeRequest.SerializeToString,
                membership_pb2.ProbeResponse.FromString,
            )(metadata=connection.metadata)
            slow = house.server._guard._reading._slow
            await until(lambda: slow.total() == 1, "it comes slowly")
            await call.write(membership_pb2.ProbeRequest(node_id=CLIENT.node_id))
            assert (await call).reachable
            assert not slow, "its place is free again"

    in_house(scene)
