"""Objects of the store for those who hold no credentials: a grant and a direct transfer, or a stream through an orchestrator.

Whatever comes back has the wanted digest; whatever goes up is refused by the store or by the orchestrator if size or digest differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import math
import os
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from dataservice.addresses import AddressRule
from dataservice.blocks import Blocks
from dataservice.pacing import Outgoing, Pace, Paced, Sent
from dataservice.tidying import tidied
from dataservice.transfer import download, upload
from dcnr import limits
from dcnr.client import Orchestrators, better, goes_on
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, DcnrError, NotFound, Refused, TimedOut, Unavailable, disk_trouble
from dcnr.ids import Digest, NodeId, digest_of
from dcnr.patience import Moved, patience
from dcnr.v1 import data_pb2
from dcnr.v1.data_pb2_grpc import DataServiceStub

Ref = data_pb2.ObjectRef
TRANSFERS_AT_ONCE: Final = 6
"""Threads that carry bytes; a transfer that finds none free waits for one, and keeps no small request waiting."""
MAX_ASKED: Final = 3
"""Orchestrators whose word is taken on an object that is said not to be there, or that comes with other bytes: each may cost its bytes once more."""
OUT_OF_REACH_S: Final = 60.0
"""A store that did not answer in time is not tried again for so long: where a firewall drops what is sent there, every object would wait for seconds."""


class ObjectClient:
    """Reads and writes single objects by reference. ``rule`` says which store address presigned URLs may name; ``up`` and ``down`` are its rates.

    A disk that refuses, or is full, is Unavailable (``disk_trouble``), and no orchestrator is asked in its place.

    ``held``: asked as an upload of so many bytes begins, what else that upload is to keep. ``sent`` hears what each upload took.
    """

    def __init__(
        self, orchestrators: Orchestrators, rule: Callable[[], AddressRule], *, up: Pace | None = None, down: Pace | None = None,
        held: Callable[[int], Sequence[Pace]] = lambda num_bytes: (), sent: Callable[[Sent], None] = lambda sent: None,
    ) -> None:  # fmt: skip
        self._orchestrators, self._rule, self._held, self._sent = orchestrators, rule, held, sent
        self._up, self._down = up or Pace.unlimited(), down or Pace.unlimited()
        self._threads = ThreadPoolExecutor(TRANSFERS_AT_ONCE, thread_name_prefix="transfer")
        self._store_from_s = -math.inf
        """On the loop's clock: until then orchestrators carry everything."""

    async def read_file(self, ref: Ref, destination: Path, *, max_bytes: int) -> None:
        """``destination`` holds the object, whole and with the digest of ``ref``. Raises Corrupt, NotFound, Unavailable.

        That it is not there, or another one, is believed of no orchestrator alone: up to `MAX_ASKED` have a try, as far as they answer.
        """
        told: Corrupt | NotFound | None = None
        asked: list[NodeId] = []
        while told is None or len(asked) < min(MAX_ASKED, len(self._orchestrators.known())):
            try:
                node_id, grant = await self._read_grant(ref, asked)
            except Unavailable:
                if told is None:
                    raise
                break
            try:
                return await self._read_with(grant, node_id, asked, ref, destination, max_bytes)
            except (Corrupt, NotFound) as error:
                told = told or error
                asked.append(node_id)
        raise told

    async def _read_with(
        self, grant: data_pb2.Grant, granter: NodeId, without: Sequence[NodeId], ref: Ref, destination: Path, max_bytes: int
    ) -> None:
        straight = partial(
            download, grant.url, destination, max_bytes=max_bytes, sha256=Digest(ref.digest), rule=self._rule(), pace=self._down,
            executor=self._threads,
        )  # fmt: skip
        if not grant.proxied and await self._by_store(straight):
            return
        with self._by_orchestrator():
            await self._read_through(ref, destination, max_bytes, granter, without)

    async def read_bytes(self, ref: Ref, *, max_bytes: int, directory: Path) -> bytes:
        """A small object. ``directory`` is for the temporary file."""
        path = directory / f".read-{secrets.token_hex(6)}"  # its own: others may read the same at once
        try:
            await self.read_file(ref, path, max_bytes=max_bytes)
            return await asyncio.to_thread(_read, path)
        finally:
            await tidied(partial(_remove, path))

    async def write_file(self, ref: Ref, path: Path, *, size_bytes: int, sha256: Digest, prefer: NodeId | None = None) -> None:
        """The object is in the store (also if it was there before). ``prefer`` is asked first whether it may be. Raises Refused, Corrupt, Unavailable."""
        item = data_pb2.GrantItem(object=ref, access=data_pb2.ACCESS_WRITE, size_bytes=size_bytes, sha256=sha256)
        grant = await self._grant(item, prefer)
        if grant.exists:
            return

        async def straight() -> None:
            outgoing = Outgoing(self._up, *self._held(size_bytes))
            if await upload(
                grant.url, path, headers=dict(grant.headers), size_bytes=size_bytes, sha256=sha256, rule=self._rule(), pace=outgoing,
                executor=self._threads,
            ):  # fmt: skip
                self._sent(outgoing.answered())

        if not grant.proxied and await self._by_store(straight):
            return
        with self._by_orchestrator():
            await self._write_through(item, path)

    async def write_bytes(self, ref: Ref, data: bytes, *, directory: Path, prefer: NodeId | None = None) -> Digest:
        """Stores ``data``; its digest. Otherwise as `write_file`."""
        digest = digest_of(data)
        path = directory / f".write-{secrets.token_hex(6)}"
        try:
            await asyncio.to_thread(_write, path, data)
            await self.write_file(ref, path, size_bytes=len(data), sha256=digest, prefer=prefer)
        finally:
            await tidied(partial(_remove, path))
        return digest

    async def _by_store(self, straight: Callable[[], Awaitable[object]]) -> bool:
        """Whether the store itself did it; False where it is not reached from here, and an orchestrator has to carry the bytes."""
        now_s = asyncio.get_running_loop().time
        if now_s() < self._store_from_s:
            return False
        try:
            await straight()
        except TimedOut:
            self._store_from_s = now_s() + OUT_OF_REACH_S
            return False
        except Unavailable as error:
            if error.code == "disk_trouble":  # nobody else's bytes would fare better here
                raise
            return False
        return True

    @contextlib.contextmanager
    def _by_orchestrator(self) -> Iterator[None]:
        """Where orchestrators cannot do it either, the store is tried at the next time."""
        try:
            yield
        except Unavailable as error:
            if error.code != "disk_trouble":  # our own disk's: it says nothing of them
                self._store_from_s = -math.inf
            raise

    async def _grant(self, item: data_pb2.GrantItem, prefer: NodeId | None = None) -> data_pb2.Grant:
        return _only(await self._orchestrators.call(DataServiceStub, "Grant", data_pb2.GrantRequest(items=[item]), prefer=prefer))

    async def _read_grant(self, ref: Ref, without: Sequence[NodeId]) -> tuple[NodeId, data_pb2.Grant]:
        """Of another orchestrator than those, with its id."""
        request = data_pb2.GrantRequest(items=[data_pb2.GrantItem(object=ref, access=data_pb2.ACCESS_READ)])
        node_id, answer = await self._orchestrators.answered(DataServiceStub, "Grant", request, without=without)
        return node_id, _only(answer)

    async def _read_through(self, ref: Ref, destination: Path, max_bytes: int, granter: NodeId, without: Sequence[NodeId]) -> None:
        """Chunk by chunk: what is large passes through no memory."""
        timeout_s, request = _longest_s(max_bytes, self._down), data_pb2.ReadRequest(object=ref)
        messages = self._orchestrators.stream(
            DataServiceStub, "Read", request, timeout_s=timeout_s, prefer=granter, without=without
        )
        async with _drafted(destination) as draft:
            async with contextlib.aclosing(messages), _patience() as moved:
                async for message in messages:
                    size_bytes = draft.num_bytes + len(message.chunk)
                    if max(size_bytes, message.size_bytes) > max_bytes:
                        raise Corrupt(f"the object has more than {max_bytes} bytes", code="too_large")
                    max_bytes = int(message.size_bytes) or max_bytes  # it said itself how large it is
                    moved(len(message.chunk), wait_s := self._down.wait_s(len(message.chunk)))
                    await asyncio.sleep(wait_s)
                    await asyncio.to_thread(draft.add, message.chunk)
            await asyncio.to_thread(draft.lay, ref.digest)

    async def _write_through(self, item: data_pb2.GrantItem, path: Path) -> None:
        last: DcnrError | None = None
        for node_id, addresses in self._orchestrators.known():
            try:
                connection = await self._orchestrators.one_of_many(node_id, addresses)
                outgoing = Outgoing(self._up)  # places there are few, and who is slow loses its own: only the owner's limit holds
                timeout_s = _longest_s(int(item.size_bytes), outgoing)
                async with _patience() as moved:
                    with contextlib.closing(Blocks(path)) as blocks:
                        parts = _parts(item, blocks, outgoing, moved)
                        await connection.call(DataServiceStub(connection.channel).Write, parts, timeout_s=timeout_s)
                self._sent(outgoing.answered())
                return
            except (Unavailable, Refused) as error:
                if not goes_on(error):
                    raise
                last = better(last, error)
        raise last or Unavailable("no orchestrator is known", code="no_orchestrator")


def _longest_s(num_bytes: int, pace: Paced) -> float:
    """Nothing of that size takes longer: the bytes may be as slow as `limits.SLOWEST_BYTES_S`, and wait for ``pace``."""
    return limits.BULK_TIMEOUT_S + num_bytes / limits.SLOWEST_BYTES_S + pace.seconds(num_bytes)


@contextlib.asynccontextmanager
async def _patience() -> AsyncIterator[Moved]:
    """`limits.BULK_TIMEOUT_S`, and more with every byte that moves. Raises TimedOut."""
    try:
        async with patience(limits.BULK_TIMEOUT_S) as moved:
            yield moved
    except TimeoutError:
        raise TimedOut("the transfer took too long", code="transfer_timeout") from None


async def _parts(item: data_pb2.GrantItem, blocks: Blocks, pace: Paced, moved: Moved) -> AsyncIterator[Any]:
    yield data_pb2.WriteRequest(item=item)
    while chunk := await asyncio.to_thread(blocks.read, pace.block_bytes):
        moved(len(chunk), wait_s := pace.wait_s(len(chunk)))
        await asyncio.sleep(wait_s)
        yield data_pb2.WriteRequest(chunk=chunk)


def _only(answer: data_pb2.GrantResponse) -> data_pb2.Grant:
    if len(answer.grants) != 1:
        raise Corrupt("an orchestrator answered one wish with several grants", code="bad_grant")
    return answer.grants[0]


class _Draft:
    """A file in the making beside ``destination``, which is there whole and right, or not at all. Every call blocks; `add` and `lay` raise Unavailable
    where the disk refuses.
    """

    def __init__(self, destination: Path) -> None:
        self._destination, self._draft = destination, destination.with_name(f".{destination.name}.{secrets.token_hex(6)}.part")
        self._hash, self.num_bytes = hashlib.sha256(), 0
        self._file: BinaryIO | None = None
        self._lock, self._is_over = threading.Lock(), False
        """Who is cancelled closes it while a thread may still write."""

    def add(self, chunk: bytes) -> None:
        """The next bytes."""
        with self._writing() as file:
            file.write(chunk)
        self._hash.update(chunk)
        self.num_bytes += len(chunk)

    def lay(self, digest: str) -> None:
        """It is whole, and gets its name. Raises Corrupt where it does not have that digest (empty: any)."""
        if digest and self._hash.hexdigest() != digest:
            raise Corrupt("an object does not match its digest", code="wrong_digest", digest=digest)
        with self._writing() as file:
            file.flush()
            os.fsync(file.fileno())
            self._go_on()  # it may have taken long
            _lay(self._draft, self._destination)

    def close(self) -> None:
        """What was not laid is gone."""
        self._is_over = True
        with self._lock:
            if self._file is not None:
                with contextlib.suppress(OSError):  # what it had still to write nobody wants
                    self._file.close()
                _remove(self._draft)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[BinaryIO]:
        with self._lock:
            try:
                self._go_on()
                self._file = self._file or self._draft.open("xb")
                yield self._file
            except OSError as error:
                raise disk_trouble(f"{self._destination.name} cannot be written", error) from error

    def _go_on(self) -> None:
        if self._is_over:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))


@contextlib.asynccontextmanager
async def _drafted(destination: Path) -> AsyncIterator[_Draft]:
    draft = _Draft(destination)
    try:
        yield draft
    finally:
        await tidied(draft.close)


def _lay(draft: Path, destination: Path) -> None:
    reached("object.drafted")
    draft.replace(destination)


def _write(destination: Path, data: bytes) -> None:
    temporary = destination.with_name(f".{destination.name}.tmp")
    try:
        temporary.write_bytes(data)
        _lay(temporary, destination)
    except OSError as error:
        _remove(temporary)
        raise disk_trouble(f"{destination.name} cannot be written", error) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise disk_trouble(f"{path.name} cannot be read", error) from error


def _remove(path: Path) -> None:
    """Where the disk lets it: a disk that refuses has been told by what was written there."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
