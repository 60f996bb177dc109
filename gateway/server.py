"""The gateway's server in a running event loop: its socket is bound before anything else, and it ends with whoever runs it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dcnr.client import Orchestrators
from dcnr.errors import Unavailable
from dcnr.open_files import let_open, room_for
from dcnr.ports import Clock
from dcnr.settings import GatewaySettings
from dcnr.tracing import UNTRACED, Tracer
from gateway.access import Access
from gateway.app import create_app
from gateway.context import Context
from gateway.errors import RestError
from gateway.feeds import Feeds
from gateway.gate import MAX_HEADER_BYTES
from gateway.here import Here
from gateway.keys import FILE, KeyFile, KeyRing
from gateway.metrics import Metrics
from gateway.results import Results
from gateway.views import Views
from trust.addresses import join_address, split_address, subnet_of
from trust.network import NetworkPolicy

DEFAULT_LISTEN: Final = "127.0.0.1:7780"
BACKLOG: Final = 1024
MAX_WORD_BYTES: Final = 1024
"""Of a message on a WebSocket: clients have nothing to say on one."""
MAX_CONNECTIONS: Final = 4096
MAX_SUBNET_CONNECTIONS: Final = 1024
"""Of one subnet; this machine itself, where proxies are, has all of them."""
SILENT_S: Final = 15
"""A connection on which no whole request has come is closed."""
STOP_GRACE_S: Final = 3


def bound(listen: str) -> socket.socket:
    """A listening socket on ``host:port`` (port 0: a free one). Raises InvalidInput, Unavailable (``address_in_use``)."""
    host, _, port = listen.rpartition(":")
    host, number = (host.strip("[]"), 0) if port == "0" and host else split_address(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, number))
        found.listen(BACKLOG)
        found.setblocking(False)
    except OSError as error:
        found.close()
        raise Unavailable(
            f"the gateway cannot listen on {listen}: {error.strerror or error}", code="address_in_use",
            remedy="choose another address, or end what listens there",
        ) from error  # fmt: skip
    return found


def room() -> int:
    """Connections that may be open now."""
    return room_for(MAX_CONNECTIONS)


def address_of(listening: socket.socket) -> str:
    """Where it listens."""
    host, port = listening.getsockname()[:2]
    return join_address(host, port)


async def serve_gateway(
    settings: GatewaySettings, listening: socket.socket, orchestrators: Orchestrators, *, policy: Callable[[], NetworkPolicy], clock: Clock, home: Path,
    on_ready: Callable[[str], None] = lambda address: None, here: Here | None = None, tracer: Tracer = UNTRACED,
) -> None:  # fmt: skip
    """Serves on ``listening`` until cancelled. ``home`` holds the keys and the log of their use; ``here``: the machine of whoever serves for themselves.

    Raises Unavailable where the file of keys cannot be used.
    """
    let_open()
    ring = KeyRing(KeyFile(home / FILE), clock)
    await asyncio.to_thread(ring.file.keys)
    await ring.turn()
    host = str(listening.getsockname()[0])
    loopback = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    metrics = Metrics()
    feeds = Feeds(clock, settings.max_watchers, metrics.watchers)
    results = Results(clock, secrets.token_bytes)
    context = Context(Views(orchestrators, policy, clock), clock, metrics, feeds, ring, results, here, tracer=tracer)
    server = _Server(_config(create_app(context, Access(settings, ring, clock, loopback=loopback))))
    async with asyncio.TaskGroup() as group:
        beside = [group.create_task(ring.run()), group.create_task(feeds.run())]
        serving = group.create_task(server.serve(sockets=[listening]))
        on_ready(address_of(listening))
        try:
            await asyncio.wait([serving])
        finally:
            server.should_exit = True
            await feeds.close()
            await asyncio.shield(serving)
            for task in beside:
                task.cancel()


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app, http=_Protocol, ws="websockets-sansio", ws_max_size=MAX_WORD_BYTES, ws_per_message_deflate=False, lifespan="off",
        log_config=None, log_level="error", access_log=False, proxy_headers=False, server_header=False, timeout_keep_alive=SILENT_S,
        timeout_graceful_shutdown=STOP_GRACE_S, h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )  # fmt: skip


class _Server(uvicorn.Server):
    """Leaves the signals to the process that it is part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing is captured."""
        yield


class _Protocol(H11Protocol):
    """Closes connections on which no request comes, and those that are too many: an open one costs its owner nothing, and us a place."""

    def connection_made(self, transport: Any) -> None:
        """As before, and a clock runs until the first request."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, "abort": transport.abort}
        self._silence = self.loop.call_later(SILENT_S, self._close_silent)
        self.subnet = subnet_of(self.client[0]) if self.client else ""
        if len(self.connections) > room() or self._crowded():
            self._turn_away()

    def connection_lost(self, exc: Exception | None) -> None:
        """As before."""
        self._silence.cancel()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """As before, and the clock stops: the WebSocket has pings of its own."""
        self._silence.cancel()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """As before, and the clock runs until the next request."""
        self._silence.cancel()
        self._silence = self.loop.call_later(SILENT_S, self._close_silent)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is told so in the form of every error."""
        data = json.dumps(RestError("INVALID_PAYLOAD", msg, reason="no_http").body()).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(data))), ("connection", "close")]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=data), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _turn_away(self) -> None:
        """Told before a byte of the request is read; whoever hears nothing of it has its connection closed all the same."""
        error = RestError("TOO_MANY_CONNECTIONS", "as many connections are open as the gateway keeps")
        data = json.dumps(error.body()).encode()
        head = f"HTTP/1.1 {error.status} \r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\nretry-after: 5\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + data)
        self.transport.close()

    def _crowded(self) -> bool:
        if (
            len(self.connections) <= MAX_SUBNET_CONNECTIONS
            or self.client is None
            or ipaddress.ip_address(self.client[0]).is_loopback
        ):
            return False
        mine = [one for one in self.connections if getattr(one, "subnet", None) == self.subnet]
        return len(mine) > MAX_SUBNET_CONNECTIONS

    def _close_silent(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            return
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # closing would wait until the client has read what it does not read
        else:
            self.transport.close()
