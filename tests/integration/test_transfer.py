"""Goal: without credentials, objects travel over presigned URLs whole and verified or not at all, and never past a redirect or deadline."""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataservice import keys
from dataservice.addresses import AddressRule
from dataservice.pacing import BURST_S, BYTES_PER_MBIT, Pace
from dataservice.s3 import S3Store, StoreAddress
from dataservice.transfer import download, fetch_small, upload
from dcnr.errors import Corrupt, NotFound, Refused, TimedOut, Unavailable
from dcnr.ids import Digest, digest_of

DATA = bytes(range(256)) * 4096
MAX = len(DATA)
STEADY_BYTES, STEADY_S = 64 * 1024, 0.04
"""What a slow line carries at once, and its pause after that."""


@pytest.fixture
def store(embedded_store: StoreAddress) -> Iterator[S3Store]:
    store = S3Store(embedded_store)
    yield store
    store.close()


@pytest.fixture
def rule(embedded_store: StoreAddress) -> AddressRule:
    return AddressRule(stores=(embedded_store.endpoint,))


def test_up_and_down(store: S3Store, rule: AddressRule, fresh_model: Callable[[], str], tmp_path: Path) -> None:
    async def work() -> None:
        digest = digest_of(DATA)
        key = keys.state(fresh_model(), "conv1", digest)
        source, dest = tmp_path / "source", tmp_path / "dest"
        source.write_bytes(DATA)
        signed = store.presign_put(key, len(DATA), digest, 60)
        headers = dict(signed.headers)
        assert await upload(signed.url, source, headers=headers, size_bytes=len(DATA), sha256=digest, rule=rule) is True
        assert await upload(signed.url, source, headers=headers, size_bytes=len(DATA), sha256=digest, rule=rule) is False
        url = store.presign_get(key, 60)
        assert await download(url, dest, max_bytes=MAX, sha256=digest, rule=rule) == len(DATA)
        assert dest.read_bytes() == DATA
        assert await fetch_small(url, MAX, rule=rule) == (DATA, (await store.head(key)).etag)

        dest.unlink()
        with pytest.raises(Corrupt):
            await download(url, dest, max_bytes=MAX - 1, sha256=digest, rule=rule)
        with pytest.raises(Corrupt):
            await download(url, dest, max_bytes=MAX, sha256=Digest("0" * 64), rule=rule)
        with pytest.raises(Refused):
            await download(url, dest, max_bytes=MAX, sha256=digest, rule=AddressRule())
        with pytest.raises(Unavailable) as troubled:  # the disk's word: it is tried again
            await download(url, tmp_path / "nowhere" / "dest", max_bytes=MAX, sha256=digest, rule=rule)
        assert troubled.value.code == "disk_trouble"
        with pytest.raises(Unavailable) as caught:  # the store's word on the caller, not on the object
            await download(url[:-4] + "0000", dest, max_bytes=MAX, sha256=digest, rule=rule)
        assert caught.value.code == "grant_refused"
        with pytest.raises(NotFound):
            await fetch_small(store.presign_get(keys.head(fresh_model()), 60), MAX, rule=rule)
        source.write_bytes(DATA[::-1])
        with pytest.raises(Corrupt):
            await upload(signed.url, source, headers=headers, size_bytes=len(DATA), sha256=digest, rule=rule)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]

    asyncio.run(work())


class Odd(http.server.BaseHTTPRequestHandler):
    """A server that misbehaves as its path says."""

    def do_GET(self) -> None:
        match self.path:
            case "/redirect":
                self.send_response(302)
                self.send_header("location", "http://127.0.0.1:1/secret")
                self.end_headers()
            case "/endless":
                self.send_response(200)
                self.end_headers()
                try:
                    while True:
                        self.wfile.write(b"x" * 65536)
                except OSError:
                    pass
            case "/liar":
                self.send_response(200)
                self.send_header("content-length", "1000")
                self.end_headers()
                self.wfile.write(b"x" * 10)
            case "/trickle":
                self.send_response(200)
                self.send_header("content-length", "1000")
                self.end_headers()
                try:
                    while True:
                        self.wfile.write(b"x")
                        self.wfile.flush()
                        time.sleep(0.02)
                except OSError:
                    pass
            case "/silent":
                time.sleep(2)
            case "/no-bucket":
                self.send_response(404)
                self.end_headers()
                self.wfile.write(b"<Error><Code>NoSuchBucket</Code></Error>")
            case "/steady":
                self.send_response(200)
                self.send_header("content-length", str(MAX))
                self.end_headers()
                for start in range(0, MAX, STEADY_BYTES):
                    self.wfile.write(DATA[start : start + STEADY_BYTES])
                    self.wfile.flush()
                    time.sleep(STEADY_S)

    def do_PUT(self) -> None:
        left = int(self.headers["content-length"])
        while left:
            left -= len(self.rfile.read(min(left, STEADY_BYTES)))
            time.sleep(STEADY_S)
        self.send_response(404 if self.path.startswith("/no-bucket") else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def odd() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, STEADY_BYTES)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("path", "error"),
    [("/redirect", Refused), ("/endless", Corrupt), ("/liar", Unavailable), ("/trickle", TimedOut), ("/silent", TimedOut)],
)
def test_misbehaving_servers_leave_nothing_behind(odd: str, tmp_path: Path, path: str, error: type[Exception]) -> None:
    began = time.monotonic()
    with pytest.raises(error):
        asyncio.run(
            download(f"{odd}{path}", tmp_path / "x", max_bytes=MAX, sha256=None, rule=AddressRule(stores=(odd,)), timeout_s=0.5)
        )
    assert time.monotonic() - began < 20
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_missing_says_nothing_of_the_objects_in_it(odd: str, tmp_path: Path) -> None:
    """As while a store is set up anew: what is brought there is neither damaged nor gone, and is brought again; what is looked for may come back."""
    rule, url, source = AddressRule(stores=(odd,)), f"{odd}/no-bucket", tmp_path / "source"
    source.write_bytes(DATA[:100])
    digest = digest_of(DATA[:100])
    for exchange in (
        upload(url, source, headers={}, size_bytes=100, sha256=digest, rule=rule),
        download(url, tmp_path / "dest", max_bytes=MAX, sha256=digest, rule=rule),
        fetch_small(url, MAX, rule=rule),
    ):
        with pytest.raises(Unavailable):
            asyncio.run(exchange)
    behind = S3Store(StoreAddress(odd, "no-bucket", "key", "secret"))
    try:
        with pytest.raises(Unavailable):
            asyncio.run(behind.put(keys.probe("brought"), b"1", if_none_match=True))
    finally:
        behind.close()


def test_a_store_is_reached_where_the_first_of_its_addresses_does_not_work(odd: str) -> None:
    """As in a house whose line has no IPv6 while the store's name has an address of it."""
    store = f"http://store.example:{odd.rpartition(':')[2]}"
    rule = AddressRule(stores=(store,), resolver=lambda host, port: ["::1", "127.0.0.1"])
    assert asyncio.run(fetch_small(f"{store}/steady", MAX, rule=rule))[0] == DATA
    nowhere = AddressRule(stores=(store,), resolver=lambda host, port: ["::1", "127.0.0.2", "::1"])
    with pytest.raises(Unavailable):
        asyncio.run(fetch_small(f"{store}/steady", MAX, rule=nowhere))


@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
def test_a_line_that_is_slow_and_steady_has_the_time_that_the_bytes_take(odd: str, tmp_path: Path, up: bool) -> None:
    """Longer than is allowed beside that; faster all the while than the slowest line that carries bulk."""
    rule, limit_s, source = AddressRule(stores=(odd,)), 0.5, tmp_path / "source"
    began = time.monotonic()
    if up:
        source.write_bytes(data := DATA * 4)  # more than the buffers between the two hold
        sending = upload(
            f"{odd}/steady", source, headers={}, size_bytes=len(data), sha256=digest_of(data), rule=rule, timeout_s=limit_s
        )
        assert asyncio.run(sending) is True
    else:
        fetching = download(f"{odd}/steady", tmp_path / "x", max_bytes=MAX, sha256=digest_of(DATA), rule=rule, timeout_s=limit_s)
        assert asyncio.run(fetching) == MAX
    assert time.monotonic() - began > limit_s


def test_a_rate_is_kept_and_a_paced_transfer_outlives_its_limit_of_time(
    store: S3Store, rule: AddressRule, fresh_model: Callable[[], str], tmp_path: Path
) -> None:
    """Half a megabyte at 0.8 megabits takes five seconds, though four were allowed: waiting for the own limit does not count."""
    mbit, limit_s = 0.8, 4.0
    halves = {name: DATA[start:][: 512 * 1024] for name, start in (("up", 0), ("down", 1))}
    model = fresh_model()
    least_s = 512 * 1024 / (mbit * BYTES_PER_MBIT) - BURST_S
    assert least_s > limit_s

    async def bring(name: str, timeout_s: float, pace: Pace) -> str:
        data = halves[name]
        digest = digest_of(data)
        key = keys.state(model, name, digest)
        (tmp_path / name).write_bytes(data)
        signed = store.presign_put(key, len(data), digest, 60)
        assert await upload(
            signed.url, tmp_path / name, headers=dict(signed.headers), size_bytes=len(data), sha256=digest, rule=rule, timeout_s=timeout_s, pace=pace
        )  # fmt: skip
        return key

    async def up() -> float:
        began = time.monotonic()
        await bring("up", limit_s, Pace(mbit, time.monotonic))
        return time.monotonic() - began

    async def down(key: str) -> float:
        began = time.monotonic()
        await download(
            store.presign_get(key, 60), tmp_path / "dest", max_bytes=MAX, sha256=digest_of(halves["down"]), rule=rule, timeout_s=limit_s,
            pace=Pace(mbit, time.monotonic),
        )  # fmt: skip
        return time.monotonic() - began

    async def both() -> list[float]:
        key = await bring("down", 60.0, Pace.unlimited())
        return await asyncio.gather(up(), down(key))

    assert min(asyncio.run(both())) >= least_s
