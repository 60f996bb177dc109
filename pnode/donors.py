"""States handed from machine to machine: who restores a replica takes its state from a sibling, so that the store is spared and need not be reachable.

Whoever asks knows the digest from a signed manifest and believes nothing else, so a donor can delay, not deceive.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

import grpc

from dataservice.blocks import Blocks
from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import NotFound, Refused, RemoteFault, TimedOut, Unavailable
from dcnr.ids import Digest, check_digest
from dcnr.patience import Moved, paced_s, patience
from dcnr.rpc.errors import calls_let_go, error_from_rpc
from dcnr.v1 import vnode_pb2, vnode_pb2_grpc
from pnode.links import Connection, Dial
from pnode.uplink import Uplink
from trust.delegation import VerifiedDelegation

DONATIONS_AT_ONCE: Final = 2
DONATION_S: Final = 5 * limits.BULK_TIMEOUT_S
"""Of a state on its way, beside the time of what has come of it (`dcnr.patience`)."""
SILENCE_S: Final = limits.CALL_TIMEOUT_S
"""A donor that sends nothing for so long is given up."""
CONNECT_S: Final = 1.0
"""A donor that is not there is given up sooner than other peers: the store has the same bytes."""
RELAYED_S: Final = limits.CONNECT_TIMEOUT_S
"""The same for one that is reached through a relay only."""

StateFile = Callable[[str, str, Digest], Path]
"""Where the state of a model's VNode with that digest lies. Raises NotFound."""


class Donor:
    """Gives what lies here to nodes of this network: one state at a time to each, `DONATIONS_AT_ONCE` to all."""

    def __init__(self, network_id: str, state_file: StateFile, uplink: Uplink) -> None:
        self._network_id, self._state_file, self._uplink = network_id, state_file, uplink
        self._giving: Counter[str] = Counter()

    async def give(self, request: vnode_pb2.DonateRequest, caller: str) -> AsyncIterator[vnode_pb2.DonateResponse]:
        """The state's bytes. Raises Refused, NotFound, Unavailable (``overloaded``)."""
        if request.network_id != self._network_id:
            raise Refused("another network", code="wrong_network")
        path = self._state_file(request.model, request.vnode, check_digest(request.digest))
        if self._giving[caller] or self._giving.total() >= DONATIONS_AT_ONCE:
            raise Unavailable("states are being given away already", code="overloaded")
        self._giving[caller] += 1
        try:
            async with patience(DONATION_S) as moved, contextlib.aclosing(self._parts(path, moved)) as parts:
                async for part in parts:
                    yield part
        except TimeoutError:
            raise TimedOut("the state was taken too slowly", code="donation_timeout") from None
        finally:
            self._giving[caller] -= 1
            self._giving += Counter()  # keeps what is above zero

    async def _parts(self, path: Path, moved: Moved) -> AsyncGenerator[vnode_pb2.DonateResponse, None]:
        try:
            size_bytes = (await asyncio.to_thread(path.stat)).st_size
        except OSError as error:
            raise NotFound("no such state lies here", code="no_such_state") from error
        with contextlib.closing(Blocks(path)) as blocks:
            while chunk := await asyncio.to_thread(blocks.read, self._uplink.chunk_bytes):
                moved(len(chunk), await self._uplink.take(len(chunk)))
                yield vnode_pb2.DonateResponse(size_bytes=size_bytes, chunk=chunk)
                size_bytes = 0  # said once


async def receive(
    dial: Dial, worker: VerifiedDelegation, request: vnode_pb2.DonateRequest, *, size_bytes: int, destination: Path
) -> None:
    """Writes what the donor gives: exactly ``size_bytes``; the digest is for the caller to compare.

    Raises the donor's typed error, RemoteFault, Unavailable, TimedOut.
    """
    try:
        async with asyncio.timeout(CONNECT_S if worker.addresses else RELAYED_S):
            connection = await dial(worker.worker_id, worker.addresses)
    except TimeoutError:
        raise TimedOut("the donor does not answer", code="connect_timeout") from None
    try:
        with calls_let_go():
            await _given(connection, request, size_bytes, destination)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error
    except OSError as error:
        raise Unavailable(f"{destination.name} cannot be written: {error.strerror}", code="disk_trouble") from error
    finally:
        await connection.close()


async def _given(connection: Connection, request: vnode_pb2.DonateRequest, size_bytes: int, destination: Path) -> None:
    call: Any = vnode_pb2_grpc.VNodeServiceStub(connection.channel).Donate(request, metadata=connection.metadata)
    try:
        with destination.open("wb") as file:
            async with patience(DONATION_S) as moved:
                await _write(call, file, size_bytes, moved)
        reached("donation.received")
    except TimeoutError:
        raise TimedOut("the donor gives too slowly", code="donation_timeout") from None
    finally:
        call.cancel()


async def _write(call: Any, file: BinaryIO, size_bytes: int, moved: Moved) -> None:
    missing = size_bytes
    while missing:
        try:
            async with asyncio.timeout(SILENCE_S):
                part = await call.read()
        except TimeoutError:
            raise TimedOut(f"the donor sent nothing for {SILENCE_S:g} s", code="donation_stalled") from None
        if part is grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the stubs
            raise RemoteFault(f"the donor stopped {missing} bytes early", code="bad_donation")
        first = missing == size_bytes
        if part.size_bytes != (size_bytes if first else 0) or not 0 < len(part.chunk) <= min(limits.MAX_CHUNK_BYTES, missing):
            raise RemoteFault(f"a donor's part of {len(part.chunk)} bytes where {missing} are missing", code="bad_donation")
        await asyncio.to_thread(file.write, part.chunk)
        missing -= len(part.chunk)
        moved(len(part.chunk), paced_s(len(part.chunk)))
