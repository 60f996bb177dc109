"""Goal: who does not reach the store has its bytes carried by an orchestrator, and waits for the store once in a while, not for every object."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import threading
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dataservice import objects, tidying
from dataservice.addresses import AddressRule
from dataservice.objects import ObjectClient
from dataservice.pacing import Pace, Paced
from dcnr import limits
from dcnr.errors import Corrupt, NotFound, Refused, TimedOut, Unavailable, disk_trouble
from dcnr.ids import digest_of
from dcnr.v1 import data_pb2

DATA = b"bytes of an object"
DIGEST = digest_of(DATA)
REF = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_SHARD, owner="dots", digest=DIGEST)
SLOW, DEAD = TimedOut("no answer", code="transfer_timeout"), Unavailable("refused", code="transfer_broken")


class Orchestrators:
    """They grant what they are told to, and carry bytes while they are well."""

    Write = channel = None

    def __init__(self, grant: data_pb2.Grant) -> None:
        self.grant, self.is_well, self.num_read = grant, True, 0
        self.written: list[bytes] = []
        self.data, self.chunk_bytes, self.pause_s = DATA, len(DATA), 0.0
        """How they carry what: so much at once, with a pause after it."""
        self.carriers: list[str] = []
        """Who was to give something out."""
        self.behind: list[str] = []
        """Others, whose view of the plan lags: they take nothing."""

    def known(self) -> list[tuple[str, list[str]]]:
        return [*((name, []) for name in self.behind), ("o", [])]

    async def one_of_many(self, node_id: str, addresses: list[str]) -> Any:
        async def refuse(*request: Any, **options: Any) -> None:
            raise Refused("not placed there", code="not_hosted")

        return SimpleNamespace(channel=None, call=refuse) if node_id in self.behind else self

    async def call(self, stub: Any, *request: Any, timeout_s: float = 0.0, prefer: str | None = None) -> Any:
        if request[0] == "Grant":
            return data_pb2.GrantResponse(grants=[self.grant])
        self._look()
        assert timeout_s >= limits.BULK_TIMEOUT_S + len(self.data) / limits.SLOWEST_BYTES_S
        parts = []
        async for part in request[0]:
            parts.append(part.chunk)
            await asyncio.sleep(self.pause_s)
        self.written.append(b"".join(parts))
        return data_pb2.WriteResponse()

    async def answered(self, stub: Any, *request: Any, without: Sequence[str] = ()) -> tuple[str, Any]:
        node_id = next((node_id for node_id, _ in self.known() if node_id not in without), "")
        if not node_id:
            raise Unavailable("nobody is left", code="no_orchestrator")
        return node_id, await self.call(stub, *request)

    async def stream(
        self, *request: Any, timeout_s: float, prefer: str, without: Sequence[str]
    ) -> AsyncIterator[data_pb2.ReadResponse]:
        self._look()
        assert prefer not in without
        self.carriers.append(prefer)
        self.num_read += 1
        assert timeout_s >= limits.BULK_TIMEOUT_S + len(self.data) / limits.SLOWEST_BYTES_S
        for start in range(0, len(self.data), self.chunk_bytes):
            yield data_pb2.ReadResponse(size_bytes=len(self.data), chunk=self.data[start : start + self.chunk_bytes])
            await asyncio.sleep(self.pause_s)

    def _look(self) -> None:
        if not self.is_well:
            raise Unavailable("away", code="no_orchestrator")


class World:
    """A client, the orchestrators that it knows, and a store that answers with an error, or not."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.error, self.num_tried = directory, SLOW, 0
        self.orchestrators = Orchestrators(data_pb2.Grant(url="http://store/object"))
        self.own, self.share = Pace.unlimited(), Pace.unlimited()
        stand_in: Any = self.orchestrators
        self.client = ObjectClient(stand_in, AddressRule, up=self.own, held=lambda num_bytes: [self.share])
        monkeypatch.setattr(objects, "download", self._download)
        monkeypatch.setattr(objects, "upload", self._upload)
        monkeypatch.setattr(objects, "DataServiceStub", lambda channel: self.orchestrators)

    error: Unavailable | None

    async def read(self) -> None:
        assert await self.client.read_bytes(REF, max_bytes=len(DATA), directory=self.directory) == DATA

    async def write(self) -> None:
        assert await self.client.write_bytes(REF, DATA, directory=self.directory) == DIGEST

    async def _download(self, url: str, dest: Path, **rest: Any) -> None:
        self._tried()
        dest.write_bytes(DATA)

    async def _upload(self, url: str, path: Path, *, pace: Paced, **rest: Any) -> None:
        self._tried()
        pace.wait_s(len(DATA))

    def _tried(self) -> None:
        self.num_tried += 1
        if self.error is not None:
            raise self.error

    @property
    def carried(self) -> tuple[int, int]:
        """Objects that orchestrators gave out and took."""
        assert set(self.orchestrators.written) <= {DATA}
        return self.orchestrators.num_read, len(self.orchestrators.written)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    async def played(story: Callable[[World], Awaitable[None]]) -> None:
        await story(World(tmp_path, monkeypatch))

    return lambda story: asyncio.run(played(story))


Play = Callable[[Callable[[World], Awaitable[None]]], None]


def test_a_store_that_does_not_answer_in_time_is_left_alone_for_a_while(play: Play) -> None:
    async def story(world: World) -> None:
        for _ in range(3):
            await world.read()
            await world.write()
        assert (world.num_tried, world.carried) == (1, (3, 3))

    play(story)


def test_it_is_tried_again_after_that_while(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        monkeypatch.setattr(objects, "OUT_OF_REACH_S", 0.0)
        await world.read()
        world.error = None
        await world.read()
        await world.write()
        assert (world.num_tried, world.carried) == (3, (1, 0))

    play(story)


def test_it_is_tried_again_at_once_where_orchestrators_cannot_do_it_either(play: Play) -> None:
    async def story(world: World) -> None:
        world.orchestrators.is_well = False
        for bring in (world.read, world.write):
            with pytest.raises(Unavailable):
                await bring()
        assert world.num_tried == 2
        world.error = None
        await world.read()
        assert (world.num_tried, world.carried) == (3, (0, 0))

    play(story)


def test_one_that_breaks_off_at_once_is_tried_for_every_object(play: Play) -> None:
    async def story(world: World) -> None:
        world.error = DEAD
        await world.read()
        await world.write()
        assert (world.num_tried, world.carried) == (2, (1, 1))

    play(story)


def test_a_disk_that_is_full_is_told_as_such_and_nobody_else_carries_the_bytes(play: Play) -> None:
    """Whoever wanted them tries again when there is room; an orchestrator's answer would be refused by the same disk."""

    async def story(world: World) -> None:
        world.error = disk_trouble("the file cannot be written", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        for bring in (world.read, world.write):
            with pytest.raises(Unavailable) as failed:
                await bring()
            assert failed.value.code == "disk_trouble"
        world.error = None
        await world.read()
        assert (world.num_tried, world.carried) == (3, (0, 0))

    play(story)


def test_what_an_orchestrator_carried_waits_for_the_disk_too(play: Play, tmp_path: Path) -> None:
    async def story(world: World) -> None:
        with pytest.raises(Unavailable) as failed:
            await world.client.read_file(REF, tmp_path / "nowhere" / "object", max_bytes=len(DATA))
        assert failed.value.code == "disk_trouble"
        assert world.carried == (1, 0)

    play(story)


def test_who_carries_bytes_slowly_and_steadily_has_the_time_that_they_take_and_who_carries_next_to_none_has_not(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        monkeypatch.setattr(limits, "BULK_TIMEOUT_S", 0.2)
        carriers, large = world.orchestrators, bytes(4 * limits.MIB)
        world.error, carriers.data, carriers.pause_s = DEAD, large, 0.04
        carriers.chunk_bytes = len(large) // 16
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_SHARD, owner="dots", digest=digest_of(large))
        assert await world.client.read_bytes(ref, max_bytes=len(large), directory=world.directory) == large
        await world.client.write_bytes(ref, large, directory=world.directory)
        assert carriers.written == [large]
        carriers.data, carriers.chunk_bytes = large[:100], 1
        with pytest.raises(TimedOut):
            await world.client.read_bytes(ref, max_bytes=len(large), directory=world.directory)
        carriers.pause_s = 30.0
        with pytest.raises(TimedOut):
            await world.client.write_bytes(ref, large, directory=world.directory)

    play(story)


def test_without_an_address_in_the_grant_nothing_is_tried(play: Play) -> None:
    async def story(world: World) -> None:
        world.orchestrators.grant = data_pb2.Grant(proxied=True)
        await world.read()
        await world.write()
        assert (world.num_tried, world.carried) == (0, (1, 1))

    play(story)


def test_an_orchestrator_that_does_not_see_the_place_in_the_plan_ends_no_write_that_another_would_carry(play: Play) -> None:
    async def story(world: World) -> None:
        world.error, world.orchestrators.behind = DEAD, ["behind"]
        await world.write()
        assert world.carried == (0, 1)

    play(story)


def test_what_orchestrators_carry_keeps_the_owners_limit_and_no_share_of_the_line(play: Play) -> None:
    """They take the place back from who is slower than a whole line has to be: a share of one would bring nothing."""

    async def story(world: World) -> None:
        world.error = None
        await world.write()
        assert (world.own.num_bytes, world.share.num_bytes) == (len(DATA), len(DATA))
        world.error = DEAD
        await world.write()
        assert world.carried == (0, 1)
        assert (world.own.num_bytes, world.share.num_bytes) == (2 * len(DATA), len(DATA))

    play(story)


def test_what_an_orchestrator_carries_passes_through_no_memory(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: four shards at once fit beside a daemon, however large they are."""

    async def story(world: World) -> None:
        carriers, piece = world.orchestrators, bytes(limits.MAX_CHUNK_BYTES)
        carriers.grant, num_pieces = data_pb2.Grant(proxied=True), 64
        digest = hashlib.sha256()
        for _ in range(num_pieces):
            digest.update(piece)

        async def stream(*request: Any, **_: Any) -> AsyncIterator[data_pb2.ReadResponse]:
            for number in range(num_pieces):
                yield data_pb2.ReadResponse(size_bytes=0 if number else num_pieces * len(piece), chunk=bytes(len(piece)))

        monkeypatch.setattr(carriers, "stream", stream)
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_SHARD, owner="dots", digest=digest.hexdigest())
        destination = world.directory / "object"
        tracemalloc.start()
        try:
            await world.client.read_file(ref, destination, max_bytes=limits.MAX_OBJECT_BYTES)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert destination.stat().st_size == num_pieces * len(piece)
        assert peak_bytes < 8 * limits.MIB
        assert list(world.directory.iterdir()) == [destination]

    play(story)


@pytest.mark.parametrize(("said", "bound"), [(0, 3), (3, 1000), (1000, 3)])
def test_who_carries_more_than_an_object_has_is_stopped_there(
    play: Play, monkeypatch: pytest.MonkeyPatch, said: int, bound: int
) -> None:
    """It is known from the start, or said first."""

    async def story(world: World) -> None:
        carried = list[int]()

        async def stream(*request: Any, **_: Any) -> AsyncIterator[data_pb2.ReadResponse]:
            for number in range(bound + said + 5):
                carried.append(number)
                yield data_pb2.ReadResponse(size_bytes=0 if number else said, chunk=b"x")

        world.orchestrators.grant = data_pb2.Grant(proxied=True)
        monkeypatch.setattr(world.orchestrators, "stream", stream)
        with pytest.raises(Corrupt) as refused:
            await world.client.read_file(REF, world.directory / "object", max_bytes=bound)
        assert refused.value.code == "too_large"
        assert len(carried) == (1 if said > bound else min(said or bound, bound) + 1)
        assert not list(world.directory.iterdir())

    play(story)


def test_one_that_carries_other_bytes_is_not_the_last_one_asked(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an orchestrator that lies keeps nobody from an object that others would give out; where nobody is left, what it said is believed."""

    async def story(world: World) -> None:
        carriers, honest = world.orchestrators, world.orchestrators.stream

        async def stream(*request: Any, prefer: str, **options: Any) -> AsyncIterator[data_pb2.ReadResponse]:
            carriers.data = DATA if prefer == "o" else b"lies of an object!"
            async for message in honest(*request, prefer=prefer, **options):
                yield message

        monkeypatch.setattr(carriers, "stream", stream)
        carriers.grant, carriers.behind = data_pb2.Grant(proxied=True), ["liar"]
        await world.read()
        assert carriers.carriers == ["liar", "o"]
        carriers.behind = ["liar", "liar too", "and a third one"]
        with pytest.raises(Corrupt):
            await world.read()
        assert len(carriers.carriers) == 2 + objects.MAX_ASKED
        carriers.behind = ["liar"]
        answered = carriers.answered

        async def alone(*request: Any, without: Sequence[str]) -> tuple[str, Any]:
            if without:
                raise Unavailable("away", code="no_orchestrator")
            return await answered(*request, without=without)

        monkeypatch.setattr(carriers, "answered", alone)
        with pytest.raises(Corrupt):
            await world.read()

    play(story)


def test_one_whose_address_leads_to_nothing_is_not_the_last_one_asked(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        async def download(url: str, dest: Path, **rest: Any) -> None:
            world.num_tried += 1
            if world.num_tried == 1:
                raise NotFound("the store has no such object", code="no_such_object")
            dest.write_bytes(DATA)

        monkeypatch.setattr(objects, "download", download)
        world.orchestrators.behind = ["stale"]
        await world.read()
        assert (world.num_tried, world.carried) == (2, (0, 0))

    play(story)


def test_a_read_that_is_given_up_on_a_disk_that_stands_still_holds_up_nobody(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        monkeypatch.setattr(tidying, "TIDY_S", 0.05)
        stands, goes_on = threading.Event(), threading.Event()

        def stand_still(descriptor: int) -> None:
            stands.set()
            goes_on.wait(20)

        monkeypatch.setattr(objects.os, "fsync", stand_still)
        world.orchestrators.grant = data_pb2.Grant(proxied=True)
        reading = asyncio.create_task(world.read())
        assert await asyncio.to_thread(stands.wait, 20)
        reading.cancel()
        late = threading.Timer(10, goes_on.set)
        late.start()
        for _ in range(5):
            await asyncio.sleep(0)
        is_free = not goes_on.is_set()
        ended, _ = await asyncio.wait([reading], timeout=8)
        late.cancel()
        goes_on.set()
        await asyncio.wait([reading])
        assert is_free, "the loop stood still with the disk"
        assert ended, "who gave up had to wait for the disk"
        await asyncio.get_running_loop().shutdown_default_executor()
        assert not list(world.directory.iterdir())

    play(story)


def test_a_read_that_is_given_up_leaves_nothing(play: Play) -> None:
    async def story(world: World) -> None:
        carriers = world.orchestrators
        carriers.grant, carriers.chunk_bytes, carriers.pause_s = data_pb2.Grant(proxied=True), 1, 30.0
        reading = asyncio.create_task(world.client.read_file(REF, world.directory / "object", max_bytes=len(DATA)))
        while not any(world.directory.iterdir()):  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        assert not list(world.directory.iterdir())
        carriers.data, carriers.pause_s = b"something else", 0.0
        with pytest.raises(Corrupt) as refused:
            await world.client.read_file(REF, world.directory / "object", max_bytes=len(DATA))
        assert refused.value.code == "wrong_digest"
        assert not list(world.directory.iterdir())

    play(story)


def test_two_that_read_or_write_the_same_object_at_once_have_a_file_each(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: who is done first takes nothing away from the other."""

    async def story(world: World) -> None:
        world.error, first_is_done = None, asyncio.Event()
        slow: list[str] = []

        async def download(url: str, dest: Path, **rest: Any) -> None:
            dest.write_bytes(DATA)
            if not slow:
                slow.append(dest.name)
                await first_is_done.wait()

        async def upload(url: str, path: Path, **rest: Any) -> None:
            if not slow:
                slow.append(path.name)
                await first_is_done.wait()
            assert path.read_bytes() == DATA

        monkeypatch.setattr(objects, "download", download)
        monkeypatch.setattr(objects, "upload", upload)
        for work in (world.read, world.write):
            slow.clear()
            first_is_done.clear()
            first = asyncio.create_task(work())
            while not slow:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0)
            await work()
            first_is_done.set()
            await first
        assert not list(world.directory.iterdir())

    play(story)


def test_a_write_that_is_cut_off_while_its_file_is_opened_leaves_it_closed(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an orchestrator that refuses before the first byte leaves no file open in a daemon that lives for months."""

    async def story(world: World) -> None:
        path = world.directory / "state"
        path.write_bytes(DATA)
        opened, opening, may_open = list[Any](), threading.Event(), threading.Event()
        really_open = Path.open

        def held_up(which: Path, *rest: Any) -> Any:
            opening.set()
            may_open.wait(10.0)
            opened.append(really_open(which, *rest))
            return opened[-1]

        monkeypatch.setattr(Path, "open", held_up)
        world.orchestrators.grant = data_pb2.Grant(proxied=True)
        writing = asyncio.create_task(world.client.write_file(REF, path, size_bytes=len(DATA), sha256=DIGEST))
        await asyncio.to_thread(opening.wait)
        writing.cancel()
        await asyncio.sleep(0)
        may_open.set()
        await asyncio.wait([writing])
        await asyncio.get_running_loop().shutdown_default_executor()
        assert [file.closed for file in opened] == [True]

    play(story)
