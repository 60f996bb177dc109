"""Streams of events: one question to an orchestrator however many watch, and a watcher that does not read costs nobody anything.

A feed keeps the newest `KEPT` events in a ring, and of views (a job, the figures) only the newest. A watcher has a place in the ring and no queue of its
own: one that falls out of the ring, or whose connection takes nothing for long, is dropped. A feed lives while somebody watches, and `LINGER_S` longer,
so that who comes back with Last-Event-ID finds its place.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from dcnr.errors import DcnrError, NotFound
from dcnr.ports import Clock
from gateway.errors import RestError, from_typed

KEPT: Final = 1024
MAX_FEEDS: Final = 64
LINGER_S: Final = 10.0
AGAIN_S: Final = 1.0
_log = structlog.get_logger("gateway")


@dataclass(frozen=True, slots=True)
class Item:
    """One thing told: an event with its id, or a view (no id) of which only the newest counts."""

    kind: str
    data: Any
    id: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """An item as it is sent, made once for all watchers."""

    id: str
    kind: str
    text: str

    def sse(self) -> bytes:
        """As a server-sent event."""
        head = f"id: {self.id}\n" if self.id else ""
        return f"{head}event: {self.kind}\ndata: {self.text}\n\n".encode()

    def text_message(self) -> str:
        """As a message on a WebSocket."""
        head = f'"id":{json.dumps(self.id)},' if self.id else ""
        return f'{{"event":{json.dumps(self.kind)},{head}"data":{self.text}}}'


class Overtaken(Exception):
    """A watcher read so slowly that events which it had not seen are no longer kept."""


Source = Callable[[], AsyncIterator[Item]]
"""What a feed tells; ends when there is nothing more to come. Raises DcnrError, and is then begun again."""


class Feed:
    """One stream for many watchers."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._ring: deque[Frame] = deque(maxlen=KEPT)
        self._told = 0
        self._views: dict[str, tuple[int, Frame]] = {}
        self._version = 0
        self._news = asyncio.Event()
        self.num_watchers = 0
        self.idle_since: float | None = None
        self.ended = False

    @property
    def first(self) -> int:
        """Number of the oldest event that is kept."""
        return self._told - len(self._ring)

    @property
    def has_begun(self) -> bool:
        """Whether it has told what was there when it was begun: events come before the first view. Before that nobody's place can be known."""
        return self._version > 0 or self.ended

    def place(self, last_id: str) -> int:
        """Where who has seen the event of that id goes on; the oldest kept one where it is unknown."""
        for offset, frame in enumerate(self._ring):
            if last_id and frame.id == last_id:
                return self.first + offset + 1
        return self.first

    def since(self, place: int, version: int) -> tuple[list[Frame], int, int]:
        """What is new behind a place and a version of the views, with the next ones. Raises Overtaken where the place is out of the ring."""
        if place < self.first:
            raise Overtaken
        views = sorted((item for item in self._views.values() if item[0] > version), key=lambda item: item[0])
        events = [self._ring[index] for index in range(place - self.first, len(self._ring))]
        return [*events, *(frame for _, frame in views)], self._told, self._version

    async def news(self) -> None:
        """Returns when there is something new, or the feed has ended."""
        await self._news.wait()

    def tell(self, item: Item) -> None:
        """Tells all watchers."""
        frame = Frame(item.id, item.kind, json.dumps(item.data, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
        if item.id:
            if any(known.id == item.id for known in self._ring):
                return
            self._ring.append(frame)
            self._told += 1
        else:
            self._version += 1
            self._views[item.kind] = (self._version, frame)
        self._wake()

    def end(self) -> None:
        """No more will come."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Follows the source until it has ended. Trouble is told, and the source begun again; what is gone for good ends the feed."""
        while True:
            try:
                async for item in self._source():
                    self.tell(item)
                    self._views.pop("trouble", None)
                break
            except NotFound as error:
                self.tell(Item("trouble", from_typed(error).body()))
                break
            except DcnrError as error:
                self.tell(Item("trouble", from_typed(error).body()))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # not this feed: gRPC cancels what waits on a connection that a request has found broken
                self.tell(Item("trouble", RestError("UNAVAILABLE", "the connection to the network broke").body()))
            except Exception as error:  # noqa: BLE001  one feed's bug must not leave its watchers waiting for ever, nor end the others
                _log.error("feed_failed", exc_info=error)
                self.tell(Item("trouble", RestError("INTERNAL", "internal error").body()))
            await asyncio.sleep(AGAIN_S)
        self.end()


class Feeds:
    """All feeds of a gateway, by name."""

    def __init__(self, clock: Clock, max_watchers: int, count: Callable[[int], None]) -> None:
        self._clock, self._max, self._count = clock, max_watchers, count
        self._feeds: dict[str, tuple[Feed, asyncio.Task[None]]] = {}
        self._closed = False

    @property
    def num_watchers(self) -> int:
        """Over all feeds."""
        return sum(feed.num_watchers for feed, _ in self._feeds.values())

    def enter(self, name: str, source: Source) -> Feed:
        """The feed of that name with one watcher more; `leave` it. Raises RestError (``TOO_MANY_WATCHERS``)."""
        self._sweep()
        if self._closed or self.num_watchers >= self._max:
            raise RestError("TOO_MANY_WATCHERS", f"{self.num_watchers} streams are open", headers={"Retry-After": "5"})
        found = self._feeds.get(name)
        if found is None or found[0].ended:
            if len(self._feeds) >= MAX_FEEDS:
                raise RestError("TOO_MANY_WATCHERS", f"{MAX_FEEDS} different things are watched", headers={"Retry-After": "5"})
            feed = Feed(source)
            found = self._feeds[name] = (feed, asyncio.create_task(feed.run(), name=f"feed {name}"))
        found[0].num_watchers += 1
        found[0].idle_since = None
        self._count(self.num_watchers)
        return found[0]

    def leave(self, feed: Feed) -> None:
        """One watcher less."""
        feed.num_watchers -= 1
        if feed.num_watchers == 0:
            feed.idle_since = self._clock.monotonic()
        self._count(self.num_watchers)

    async def run(self) -> None:
        """Ends feeds that nobody watches, until cancelled; then ends all."""
        try:
            while True:
                self._sweep()
                await asyncio.sleep(LINGER_S / 4)
        finally:
            await self.close()

    async def close(self) -> None:
        """Ends all feeds, and with them their watchers."""
        self._closed = True
        running = [task for _, task in self._feeds.values()]
        for feed, task in self._feeds.values():
            task.cancel()
            feed.end()
        await asyncio.gather(*running, return_exceptions=True)

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        for name, (feed, task) in list(self._feeds.items()):
            if feed.idle_since is not None and now - feed.idle_since >= LINGER_S:
                task.cancel()
                del self._feeds[name]
