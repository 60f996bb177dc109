"""Merges on the wire: one call for each delta, or for the anchor alone. Everything is bounded before it is kept, and what leaves is paced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

import grpc

from dcnr import limits
from dcnr.errors import DcnrError, InvalidInput, RemoteFault, TimedOut, Unavailable
from dcnr.patience import Moved, paced_s, patience
from dcnr.rpc.errors import calls_let_go, error_from_rpc
from dcnr.v1 import identity_pb2, vnode_pb2, vnode_pb2_grpc
from pnode.anchors import VERDICTS, Reply
from pnode.chain import MAX_COMMITS, MAX_COMMITS_BYTES
from pnode.links import Connection, Dial
from pnode.merge_desk import Answer, MergeDesk
from pnode.merge_turns import REPLACED
from pnode.uplink import Uplink
from trust.delegation import VerifiedDelegation

CHUNK_S: Final = limits.CALL_TIMEOUT_S
"""A side that sends nothing for so long in the middle of its bytes loses the call."""
MERGE_S: Final = 5 * limits.BULK_TIMEOUT_S
"""Each direction of a call ends by then, beside the time of what it moves (`dcnr.patience`): where audits are drawn anchors are whole states."""
MAX_ANSWER_BYTES: Final = MAX_COMMITS_BYTES + 2 * limits.MAX_ENVELOPE_BYTES
"""Of the commits in an answer: a primary stops to make anchors once there are more than `MAX_COMMITS_BYTES`."""
DRAIN_S: Final = 5.0
"""A refusal waits at most so long for what its caller is still sending."""
_NUMBER_OF: Final = {verdict: number for number, verdict in VERDICTS.items()}


async def serve_merge(
    messages: Any, caller: str, desk: Callable[[str], MergeDesk], uplink: Uplink
) -> AsyncIterator[vnode_pb2.MergeResponse]:
    """Our end of a call that a sibling made from PNode ``caller``. Raises what `MergeDesk.asked` raises; then nothing holds the answer any more."""
    requests = aiter(messages)
    first = await _next(requests)
    if first is None or first.WhichOneof("kind") != "open":
        raise InvalidInput("a merge begins with its opening", code="bad_message")
    answer: Answer | None = None
    try:
        found = desk(first.open.primary)
        async with patience(MERGE_S) as moved, found.asked(first.open, caller, partial(_weights, requests, moved)) as answer:
            yield vnode_pb2.MergeResponse(answer=_answer_message(answer, found.incarnation))
            if answer.anchor is None:
                return
            for commit in answer.anchor.commits:
                moved(commit.ByteSize(), await uplink.take(commit.ByteSize()))
                yield vnode_pb2.MergeResponse(commit=commit)
            async for chunk in paced(answer.anchor.data, uplink, moved):
                yield vnode_pb2.MergeResponse(chunk=chunk)
    except TimeoutError:
        failure: DcnrError = TimedOut("the merge took too long", code="merge_timeout")
    except DcnrError as error:
        if error.code != REPLACED:
            await _drain(requests)
            raise
        failure = Unavailable(error.message, code=REPLACED)
    else:
        return
    answer = None  # whoever did not read it may not read of its end either: that is waited for
    raise failure


async def _weights(requests: Any, moved: Moved, size_bytes: int) -> AsyncIterator[bytes]:
    """The chunks that follow an opening, of so many bytes in all. Raises InvalidInput, RemoteFault, TimedOut."""
    missing = size_bytes
    while missing:
        message = await _next(requests)
        if message is None or message.WhichOneof("kind") != "chunk":
            raise InvalidInput(f"the weights ended after {size_bytes - missing} of {size_bytes} bytes", code="bad_chunk_size")
        if not 0 < len(message.chunk) <= min(limits.MAX_CHUNK_BYTES, missing):
            raise RemoteFault(f"a chunk of {len(message.chunk)} bytes", code="bad_chunk_size")
        missing -= len(message.chunk)
        moved(len(message.chunk), paced_s(len(message.chunk)))
        yield message.chunk


async def _drain(requests: Any) -> None:
    """Drops what is still on its way: a refusal that overtakes it ends the stream, and may be heard as a broken one, without its code."""
    with contextlib.suppress(TimeoutError, TimedOut):
        async with asyncio.timeout(DRAIN_S):
            while await _next(requests) is not None:
                continue


class MergeCalls:
    """The calls that this worker makes."""

    def __init__(self, dial: Dial, uplink: Uplink) -> None:
        self._dial, self.uplink = dial, uplink

    async def ask(
        self, worker: VerifiedDelegation, opening: vnode_pb2.MergeOpen, weights: bytes, *, max_anchor_bytes: int
    ) -> Reply:
        """The primary's reply, in bounds but not checked. Raises the primary's typed error, RemoteFault, Unavailable, TimedOut."""
        connection = await self._dial(worker.worker_id, worker.addresses)
        try:
            with calls_let_go():
                return await self._asked(connection, opening, weights, max_anchor_bytes)
        except TimeoutError:
            raise TimedOut("the primary did not answer in time", code="merge_timeout") from None
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        finally:
            await connection.close()

    async def _asked(self, connection: Connection, opening: vnode_pb2.MergeOpen, weights: bytes, max_anchor_bytes: int) -> Reply:
        async with patience(MERGE_S) as moved:
            stub = vnode_pb2_grpc.VNodeServiceStub(connection.channel)
            call: Any = stub.Merge(self._requests(opening, weights, moved), metadata=connection.metadata)
            try:
                return await _read_reply(call, max_anchor_bytes, moved)
            finally:
                call.cancel()

    async def _requests(self, opening: vnode_pb2.MergeOpen, weights: bytes, moved: Moved) -> AsyncIterator[vnode_pb2.MergeRequest]:
        yield vnode_pb2.MergeRequest(open=opening)
        async for chunk in paced(weights, self.uplink, moved):
            yield vnode_pb2.MergeRequest(chunk=chunk)


async def _read_reply(call: Any, max_anchor_bytes: int, moved: Moved) -> Reply:
    answer: vnode_pb2.MergeAnswer | None = None
    commits: list[identity_pb2.Envelope] = []
    commits_bytes = 0
    anchor = bytearray()
    while (message := await _read(call, None if answer is None else CHUNK_S)) is not None:
        kind = message.WhichOneof("kind")
        if (kind == "answer") is not (answer is None):
            raise RemoteFault("an answer that does not begin with its verdict", code="bad_message")
        match kind:
            case "answer":
                answer = message.answer
                moved(0, MERGE_S)  # of the other direction
                if not (answer.sequence == 0) <= answer.anchor_bytes <= max_anchor_bytes:
                    raise RemoteFault(f"an anchor of {answer.anchor_bytes} bytes", code="bad_anchor")
            case "commit":
                commits.append(message.commit)
                commits_bytes += message.commit.ByteSize()
                if anchor or len(commits) > MAX_COMMITS or commits_bytes > MAX_ANSWER_BYTES:
                    raise RemoteFault("too many commits, or they are too large", code="bad_answer")
            case "chunk":
                assert answer is not None
                if not 0 < len(message.chunk) <= min(limits.MAX_CHUNK_BYTES, answer.anchor_bytes - len(anchor)):
                    raise RemoteFault(f"a chunk of {len(message.chunk)} bytes", code="bad_chunk_size")
                anchor += message.chunk
                moved(len(message.chunk), paced_s(len(message.chunk)))
            case _:
                raise RemoteFault("an empty answer", code="bad_message")
    if answer is None or len(anchor) != answer.anchor_bytes:
        raise RemoteFault("the answer ended before the anchor did", code="bad_answer")
    return Reply(answer, commits, bytes(anchor))


def _answer_message(answer: Answer, incarnation: int) -> vnode_pb2.MergeAnswer:
    return vnode_pb2.MergeAnswer(
        verdict=_NUMBER_OF[answer.verdict],
        code=answer.code,
        reason=answer.reason[:200],
        sequence=answer.sequence,
        primary_incarnation=incarnation,
        anchor_digest=answer.anchor.digest if answer.anchor is not None else "",
        anchor_bytes=len(answer.anchor.data) if answer.anchor is not None else 0,
    )


async def paced(data: bytes, uplink: Uplink, moved: Moved) -> AsyncIterator[bytes]:
    """The data in chunks, as fast as the line may carry them; ``moved`` hears of each."""
    size = uplink.chunk_bytes
    for at in range(0, len(data), size):
        chunk = data[at : at + size]
        moved(len(chunk), await uplink.take(len(chunk)))
        yield chunk


async def _read(call: Any, within_s: float | None) -> vnode_pb2.MergeResponse | None:
    async with asyncio.timeout(within_s):
        message = await call.read()
    if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the stubs
        return None
    result: vnode_pb2.MergeResponse = message
    return result


async def _next(requests: Any) -> vnode_pb2.MergeRequest | None:
    try:
        async with asyncio.timeout(CHUNK_S):
            message: vnode_pb2.MergeRequest = await anext(requests)
            return message
    except StopAsyncIteration:
        return None
    except TimeoutError:
        raise TimedOut(f"nothing came for {CHUNK_S:g} s", code="merge_stalled") from None
