"""Goal: a store that ignores preconditions is refused at start; one that does not check uploads has them proxied."""

from __future__ import annotations

import asyncio
import hashlib
import http.server
import random
import threading
from collections.abc import Iterator
from typing import ClassVar
from urllib.parse import urlsplit

import pytest

from dataservice.memory import MemoryStore
from dataservice.probe import check_preconditions, probe_store
from dataservice.s3 import S3Store, StoreAddress
from dcnr.errors import Refused, Stale


class Careless(http.server.BaseHTTPRequestHandler):
    """The smallest S3: paths to bytes, every request believed. ``honours`` lists the headers that it does look at."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar[dict[str, bytes]] = {}
    honours: ClassVar[set[str]] = set()

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        path = urlsplit(self.path).path
        old = self.objects.get(path)
        signed_url = "X-Amz-Signature" in self.path
        if not signed_url and "if-none-match" in self.honours and self.headers["if-none-match"] and old is not None:
            return self.answer(412, b"")
        if "if-match" in self.honours and self.headers["if-match"] and (old is None or etag(old) != self.headers["if-match"]):
            return self.answer(412, b"")
        self.objects[path] = body
        return self.answer(200, b"", body)

    def do_GET(self) -> None:
        body = self.objects.get(urlsplit(self.path).path)
        self.answer(404 if body is None else 200, body or b"", body)

    def do_DELETE(self) -> None:
        self.objects.pop(urlsplit(self.path).path, None)
        self.answer(204, b"")

    def answer(self, status: int, body: bytes, tagged: bytes | None = None) -> None:
        self.send_response(status)
        if tagged is not None:
            self.send_header("etag", etag(tagged))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


@pytest.fixture
def careless() -> Iterator[tuple[S3Store, type[Careless]]]:
    class Handler(Careless):
        objects: ClassVar[dict[str, bytes]] = {}
        honours: ClassVar[set[str]] = set()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    store = S3Store(StoreAddress(f"http://127.0.0.1:{server.server_address[1]}", "bucket", "key", "secret"))
    yield store, Handler
    store.close()
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_embedded_store_enforces_everything(embedded_store: StoreAddress) -> None:
    store = S3Store(embedded_store)
    report = asyncio.run(probe_store(store))
    assert (report.size_enforced, report.digest_enforced, report.absence_enforced) == (True, True, True)
    assert not report.proxy_uploads
    assert [row.key for row in asyncio.run(store.list("probe/")) if row.key != "probe/start"] == []
    store.close()


@pytest.mark.parametrize("honours", [set[str](), {"if-match"}, {"if-none-match"}])
def test_a_store_that_ignores_preconditions_is_refused(careless: tuple[S3Store, type[Careless]], honours: set[str]) -> None:
    store, handler = careless
    handler.honours = honours
    with pytest.raises(Refused) as caught:
        asyncio.run(probe_store(store))
    assert caught.value.code == "store_without_preconditions"
    assert handler.objects == {}


def test_a_store_that_checks_no_uploads_has_them_proxied(careless: tuple[S3Store, type[Careless]]) -> None:
    store, handler = careless
    handler.honours = {"if-match", "if-none-match"}
    report = asyncio.run(probe_store(store))
    assert (report.size_enforced, report.digest_enforced, report.absence_enforced) == (False, False, False)
    assert report.proxy_uploads
    assert handler.objects == {}


class Clock:
    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0


def test_the_memory_store_passes_and_its_answers_are_stale_errors() -> None:
    store = MemoryStore(Clock(), random.Random(0))
    asyncio.run(check_preconditions(store, "x"))
    assert store.keys() == []
    with pytest.raises(Stale):
        asyncio.run(store.put("k", b"", if_match='"0"'))
