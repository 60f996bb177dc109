"""A store that gives trouble: a proxy in front of the real one that meets chosen requests with chosen faults, counted and bounded.

Requests pass byte for byte, host and signature included, so that the real store still judges them. A fault that is not met any more costs nothing.
"""

from __future__ import annotations

import http.client
import http.server
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import psutil

CONNECT_S = 5.0
UPSTREAM_S = 60.0
HOP = frozenset(("connection", "expect", "keep-alive", "transfer-encoding"))
SLOW_PART_BYTES = 64 * 1024
MAX_KEPT_BYTES = 64 * 1024
"""Objects up to this size can be read stale."""


class Fault(Enum):
    """What may befall a request."""

    DELAY = "it is passed on after ``seconds``"
    REFUSE = "it is answered with ``status`` and S3's ``word``; nothing is written"
    CUT = "a PUT breaks off after ``num_bytes`` and writes nothing; the answer to any other method breaks off after them"
    LOSE_ANSWER = "it reaches the store, and its answer never comes"
    TWICE = "it reaches the store twice, and the second answer comes"
    STALE = "a GET is answered with what was there before the last write"
    SLOW = "its body is taken at ``num_bytes`` per second"
    HANG = "nothing happens until the trouble is over"
    DROP = "the connection is closed"


@dataclass
class Trouble:
    """Befalls requests of these ``methods`` (empty: all) on keys with ``prefix``, at most ``times`` of them; ``met`` counts. A listing's key is a question
    mark and what it lists.
    """

    fault: Fault
    methods: frozenset[str] = frozenset()
    prefix: str = ""
    times: int = 1_000_000
    seconds: float = 0.0
    status: int = 503
    word: str = "SlowDown"
    num_bytes: int = 0
    met: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def wants(self, method: str, key: str) -> bool:
        """Whether the request is one for this trouble."""
        fits = (not self.methods or method in self.methods) and key.startswith(self.prefix)
        return fits and self.met < self.times and not self.over.is_set()


class StoreProxy:
    """See the module. `at` gives its own endpoint for the store's; `meet` begins a trouble, `heal` ends all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._troubles: list[Trouble] = []
        self.upstream = ""
        self.versions: dict[str, list[tuple[bytes, str]]] = {}
        """By key: the newest two small bodies that were written through here, with their ETags."""
        self.visitors: set[int] | None = None
        """Ids of all processes that opened a connection here, 0 of one that had gone; None: nobody looks, which takes time."""
        proxy = self

        class Handler(_Handler):
            owner = proxy

        class Server(http.server.ThreadingHTTPServer):
            def verify_request(self, request: object, client_address: tuple[str, int]) -> bool:  # type: ignore[override]
                """Before anything is read: whoever waits for an answer is still there."""
                if proxy.visitors is not None:
                    proxy.visitors.add(_process_at(client_address[1], self.server_address[1]))
                return True

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="store-proxy")
        self._thread.start()

    def at(self, endpoint: str) -> str:
        """Where everybody finds the store that is at ``endpoint``."""
        self.upstream = endpoint.partition("://")[2]
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def meet(self, trouble: Trouble) -> Trouble:
        """From now on, until it is over."""
        with self._lock:
            self._troubles.append(trouble)
        return trouble

    def heal(self) -> None:
        """All troubles are over; whoever waits in one goes on."""
        with self._lock:
            healed, self._troubles = self._troubles, []
        for trouble in healed:
            trouble.over.set()

    def trouble_for(self, method: str, key: str) -> Trouble | None:
        """The first that wants this request; it is counted."""
        with self._lock:
            for trouble in self._troubles:
                if trouble.wants(method, key):
                    trouble.met += 1
                    return trouble
        return None

    def close(self) -> None:
        """Ends the server."""
        self.heal()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def store_proxy() -> Iterator[StoreProxy]:
    """One proxy for the length of the block."""
    proxy = StoreProxy()
    try:
        yield proxy
    finally:
        proxy.close()


def _process_at(port: int, peer_port: int) -> int:
    """Whose end of a connection on this machine it is; 0 if nobody's."""
    for found in psutil.net_connections("tcp"):
        if found.laddr and found.raddr and (found.laddr.port, found.raddr.port) == (port, peer_port):
            return int(found.pid or 0)
    return 0


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: ClassVar[StoreProxy]
    timeout = UPSTREAM_S

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_HEAD = do_DELETE = do_POST = do_GET

    def _serve(self) -> None:
        try:
            self._meet()
        except (OSError, http.client.HTTPException):
            self.close_connection = True

    def _meet(self) -> None:
        asked = urlsplit(self.path)
        key = asked.path.lstrip("/").partition("/")[2]
        if not key and (listed := parse_qs(asked.query).get("prefix")):
            key = f"?{listed[0]}"
        trouble = self.owner.trouble_for(self.command, key)
        length = int(self.headers.get("content-length") or 0)
        fault = trouble.fault if trouble is not None else None
        if trouble is not None and fault is Fault.CUT and self.command == "PUT":
            self.rfile.read(min(length, trouble.num_bytes))
            return self._hang_up()
        if fault is Fault.DROP:
            return self._hang_up()
        body = self._slowly(length, trouble) if trouble is not None and fault is Fault.SLOW else self.rfile.read(length)
        if trouble is not None and fault in (Fault.DELAY, Fault.HANG):
            trouble.over.wait(trouble.seconds if fault is Fault.DELAY else UPSTREAM_S)
        if trouble is not None and fault is Fault.REFUSE:
            text = f"<?xml version='1.0'?><Error><Code>{trouble.word}</Code><Message>trouble</Message></Error>"
            return self._answer(_Answer(trouble.status, {"content-type": "application/xml"}, text.encode()))
        if fault is Fault.STALE and self.command == "GET" and len(kept := self.owner.versions.get(key, [])) == 2:
            data, etag = kept[0]
            return self._answer(_Answer(200, {"etag": etag}, data))
        answer = self._upstream(body)
        if fault is Fault.TWICE:
            answer = self._upstream(body)
        self._keep(key, body, answer)
        if fault is Fault.LOSE_ANSWER:
            return self._hang_up()
        return self._answer(answer, cut=trouble.num_bytes if trouble is not None and fault is Fault.CUT else None)

    def _slowly(self, length: int, trouble: Trouble) -> bytes:
        began_s, body = time.monotonic(), bytearray()
        while len(body) < length and (part := self.rfile.read(min(SLOW_PART_BYTES, length - len(body)))):
            body += part
            trouble.over.wait(max(0.0, began_s + len(body) / trouble.num_bytes - time.monotonic()))
        return bytes(body)

    def _upstream(self, body: bytes) -> _Answer:
        host, _, port = self.owner.upstream.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=UPSTREAM_S)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            response = connection.getresponse()
            return _Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def _keep(self, key: str, body: bytes, answer: _Answer) -> None:
        if self.command == "PUT" and answer.status == 200 and len(body) <= MAX_KEPT_BYTES:
            etag = next((value for name, value in answer.headers.items() if name.lower() == "etag"), "")
            self.owner.versions[key] = [*self.owner.versions.get(key, []), (body, etag)][-2:]

    def _answer(self, answer: _Answer, *, cut: int | None = None) -> None:
        self.send_response_only(answer.status)
        lengths = [value for name, value in answer.headers.items() if name.lower() == "content-length"]
        length = lengths[0] if self.command == "HEAD" and lengths else str(len(answer.body))
        for name, value in answer.headers.items():
            if name.lower() not in HOP | {"content-length"}:
                self.send_header(name, value)
        if answer.status not in (204, 304):
            self.send_header("content-length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body if cut is None else answer.body[:cut])
        if cut is not None and cut < len(answer.body):
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""
