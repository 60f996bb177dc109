"""The routes that stream: a job's events, the network's, as server-sent events or over a WebSocket; with heartbeats, and an end for who does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Response, WebSocket, WebSocketDisconnect

from dcnr.errors import DcnrError
from dcnr.limits import MIB
from dcnr.v1 import common_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from gateway.context import Context
from gateway.errors import RestError, from_typed
from gateway.feeds import Feed, Frame, Item, Overtaken, Source
from gateway.gate import KEY, deny
from gateway.reading import JobId, read_stats
from gateway.shapes import shown
from gateway.stats import ENDED

HEARTBEAT_S: Final = 10.0
STALLED_S: Final = 10.0
WATCH_TIMEOUT_S: Final = 3600.0
WATCH_INTERVAL_S: Final = 1.0
POLL_S: Final = 1.0
RETRY_MS: Final = 2000
PIECE_BYTES: Final = MIB // 4
LastEventId = Annotated[str, Header(alias="Last-Event-ID", max_length=128, description="Goes on behind this event.")]
Tell = Callable[[Frame | None], Awaitable[None]]
"""Sends a frame, or the sign that the stream lives."""
STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


def routes(context: Context) -> APIRouter:
    """The routes over one network."""
    router = APIRouter()

    @router.get("/v1/events", summary="What happens in the network, and its figures, as server-sent events", responses=STREAM)
    async def network_events(last_event_id: LastEventId = "") -> Response:
        await context.views.status()
        return EventStream(context, "network", lambda: network_items(context), last_event_id)

    @router.get("/v1/jobs/{job_id}/events", summary="A job and what happens, as server-sent events until it has ended", responses=STREAM)  # fmt: skip
    async def job_events(job_id: JobId, last_event_id: LastEventId = "") -> Response:
        await context.views.job(job_id)
        return EventStream(context, f"job {job_id}", lambda: job_items(context, job_id), last_event_id)

    @router.websocket("/v1/events")
    async def network_socket(socket: WebSocket, last_event_id: str = "") -> None:
        await _opened(context, socket, "network", lambda: network_items(context), context.views.status(), last_event_id)

    @router.websocket("/v1/jobs/{job_id}/events")
    async def job_socket(socket: WebSocket, job_id: str, last_event_id: str = "") -> None:
        asked = context.views.job(job_id)
        await _opened(context, socket, f"job {job_id}", lambda: job_items(context, job_id), asked, last_event_id)

    return router


async def _opened(context: Context, socket: WebSocket, name: str, source: Source, known: Awaitable[Any], last_id: str) -> None:
    """Watches once ``known`` says that there is something to watch; else the request is answered with the error."""
    try:
        await known
        await watch_socket(context, socket, name, source, last_id)
    except (RestError, DcnrError) as error:
        await deny(socket.send, error if isinstance(error, RestError) else from_typed(error))


async def network_items(context: Context) -> AsyncIterator[Item]:
    """Events as ``event``, figures as ``stats``; never ends."""
    while True:
        status = await context.views.status()
        for event in status.events:
            yield _event(event)
        yield Item("stats", (await read_stats(context)).model_dump())
        await asyncio.sleep(POLL_S)


async def job_items(context: Context, job_id: str) -> AsyncIterator[Item]:
    """Views as ``job``, events as ``event``; ``end`` with the last view when the job has ended."""
    after = 0
    reporter = ""
    while True:
        request = orchestrator_pb2.WatchJobRequest(job_id=job_id, interval_s=WATCH_INTERVAL_S, after_event=after)
        stream = context.views.orchestrators.stream(OrchestratorServiceStub, "WatchJob", request, timeout_s=WATCH_TIMEOUT_S)
        async for message in stream:
            if message.job.reporter != reporter:
                reporter, after = message.job.reporter, 0
            for event in message.events:
                after = max(after, int(event.sequence))
                yield _event(event)
            view = shown(message.job)
            yield Item("job", view)
            if message.job.state in ENDED:
                yield Item("end", view)
                return
        await asyncio.sleep(POLL_S)


def _event(event: common_pb2.Event) -> Item:
    return Item("event", shown(event), f"{event.reporter[:12]}.{event.sequence}")


class EventStream(Response):
    """A feed to one client."""

    def __init__(self, context: Context, name: str, source: Source, last_id: str) -> None:
        super().__init__(media_type="text/event-stream")
        self._context, self._name, self._source, self._last_id = context, name, source, last_id

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends until the feed ends, the client goes, or reads too little: then its connection is cut. Raises RestError where there are too many."""
        feed = self._context.feeds.enter(self._name, self._source)
        listening = asyncio.create_task(gone(receive))
        try:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await push(send, f"retry: {RETRY_MS}\n\n".encode())
            await follow(
                feed,
                self._last_id,
                lambda frame: push(send, frame.sse() if frame is not None else b": here\n\n"),
                listening,
                _still(self._context, scope),
            )
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (TimeoutError, Overtaken) as error:
            self._context.metrics.dropped("stalled" if isinstance(error, TimeoutError) else "slow")
            scope["state"]["abort"]()
            await asyncio.wait({listening}, timeout=STALLED_S)
        finally:
            listening.cancel()
            self._context.feeds.leave(feed)


def _still(context: Context, scope: Any) -> Callable[[], bool]:
    """Says whether who asked would still be let in."""
    key = scope["state"].get(KEY)
    return lambda: context.ring.stays(key)


async def follow(feed: Feed, last_id: str, tell: Tell, listening: asyncio.Task[None], still: Callable[[], bool]) -> None:
    """Tells what the feed tells until it ends, the client is gone, or it may not watch any more. Raises Overtaken, and what ``tell`` raises."""
    sought, place, version = last_id, feed.place(""), 0
    while not listening.done() and still():
        news = asyncio.ensure_future(feed.news())
        frames: list[Frame] = []
        try:
            if sought and feed.has_begun:
                sought, place = "", feed.place(sought)
            if not sought:
                frames, place, version = feed.since(place, version)
            for frame in frames:
                await tell(frame)
            if frames:
                continue
            if feed.ended:
                return
            await asyncio.wait({news, listening}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if not news.done() and not listening.done():
                await tell(None)
        finally:
            news.cancel()


async def watch_socket(context: Context, socket: WebSocket, name: str, source: Source, last_id: str) -> None:
    """The same feed on a WebSocket: a message per event or view, ``{"event", "id", "data"}``; ``{"event": "here"}`` when nothing happens."""

    async def tell(frame: Frame | None) -> None:
        async with asyncio.timeout(STALLED_S):
            await socket.send_text(frame.text_message() if frame is not None else '{"event":"here"}')

    feed = context.feeds.enter(name, source)
    listening = asyncio.create_task(asyncio.sleep(0))
    try:
        await socket.accept()
        listening = asyncio.create_task(gone(socket.receive))
        await follow(feed, last_id, tell, listening, _still(context, socket.scope))
        if not listening.done():
            await socket.close()
    except (TimeoutError, Overtaken) as error:
        context.metrics.dropped("stalled" if isinstance(error, TimeoutError) else "slow")
        socket.scope["state"]["abort"]()
        await asyncio.wait({listening}, timeout=STALLED_S)
    except WebSocketDisconnect:
        pass
    finally:
        listening.cancel()
        context.feeds.leave(feed)


async def push(send: Any, data: bytes) -> None:
    """Sends in pieces, each within `STALLED_S`. Raises TimeoutError."""
    for first in range(0, len(data), PIECE_BYTES):
        async with asyncio.timeout(STALLED_S):
            await send({"type": "http.response.body", "body": data[first : first + PIECE_BYTES], "more_body": True})


async def gone(receive: Any) -> None:
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass
