"""Bytes over presigned URLs without credentials: what arrives is whole and has the wanted digest, or nothing arrives.

Every exchange is bounded in bytes and time, connects only where an `AddressRule` allows, follows no redirect and makes one attempt. Bytes that move gain
the time that they take at `limits.SLOWEST_BYTES_S`: who moves them faster is never out of time, who moves next to none is after ``timeout_s``. The
blocking work runs in threads (of ``executor`` where one is given: bulk must not take those that small requests need); a caller that is cancelled or out
of time closes the connection, and no file appears after that. Time that a ``pace`` asks to wait does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import os
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, TypeVar

import urllib3.exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.response import BaseHTTPResponse

from dataservice.addresses import AddressRule
from dataservice.memory import is_full, store_full
from dataservice.pacing import Pace, Paced
from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, DcnrError, NotFound, Refused, TimedOut, Unavailable, disk_trouble, for_others
from dcnr.ids import Digest

ERROR_BYTES: Final = 4 * limits.KIB
NEXT_ADDRESS_S: Final = 1.0
"""A store that has several addresses is tried at the next one where it is silent for so long."""
LONGEST_NAP_S: Final = 0.25
"""A paced transfer that was given up ends within this time."""
MAX_SHARING: Final = 8
"""Transfers that may share a pace: each takes so many times as long as alone."""
MAX_UNSENT_BYTES: Final = 4 * limits.MIB
"""What a socket may hold of an upload when all of it was handed over: the answer comes after that."""
T = TypeVar("T")


async def download(
    url: str, dest: Path, *, max_bytes: int, sha256: Digest | None, rule: AddressRule, timeout_s: float = limits.BULK_TIMEOUT_S,
    pace: Paced | None = None, executor: Executor | None = None,
) -> int:  # fmt: skip
    """Streams the object into ``dest`` and returns its size; ``dest`` appears only when whole and (where ``sha256`` is given) right.

    Raises Corrupt (digest, size), NotFound, Refused (address, redirect), Unavailable (also ``grant_refused``, ``disk_trouble``) or TimedOut.
    """

    def work(exchange: _Exchange) -> int:
        temporary = dest.with_name(f".{dest.name}.{secrets.token_hex(6)}.part")
        try:
            digest, size_bytes = hashlib.sha256(), 0
            with exchange.open("GET", {}) as response, temporary.open("xb") as file:
                for block in exchange.body(response, max_bytes):
                    digest.update(block)
                    size_bytes += file.write(block)
                file.flush()
                os.fsync(file.fileno())
            if sha256 and digest.hexdigest() != sha256:
                raise Corrupt(f"the object has digest {digest.hexdigest()}, not {sha256}", code="wrong_digest", digest=sha256)
            reached("download.drafted")
            exchange.commit(lambda: temporary.replace(dest))
            return size_bytes
        finally:
            temporary.unlink(missing_ok=True)

    return await _run(url, rule, timeout_s, work, pace, max_bytes, executor)


async def fetch_small(
    url: str, max_bytes: int, *, rule: AddressRule, timeout_s: float = limits.STORE_TIMEOUT_S
) -> tuple[bytes, str]:
    """A small object and its ETag (the head of a model: it has no digest to be known by). Raises as `download`."""

    def work(exchange: _Exchange) -> tuple[bytes, str]:
        with exchange.open("GET", {}) as response:
            return b"".join(exchange.body(response, max_bytes)), str(response.headers.get("etag", ""))

    return await _run(url, rule, timeout_s, work)


async def upload(
    url: str,
    path: Path,
    *,
    headers: Mapping[str, str],
    size_bytes: int,
    sha256: Digest,
    rule: AddressRule,
    timeout_s: float = limits.BULK_TIMEOUT_S,
    pace: Paced | None = None,
    executor: Executor | None = None,
) -> bool:
    """Sends the file with exactly the granted ``headers``; False if an object was there already. The file is checked before it is sent.

    Raises Corrupt (the file is another), Refused (address, redirect), Unavailable (also ``store_full``, ``grant_refused``, ``disk_trouble``) or TimedOut.
    """

    def work(exchange: _Exchange) -> bool:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != size_bytes or hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise Corrupt(f"{path.name} is not the file that was granted", code="wrong_digest", digest=sha256)
            file.seek(0)
            try:
                with exchange.open("PUT", {**headers, "content-length": str(size_bytes)}, exchange.blocks(file.read)):
                    reached("upload.sent")
                    return True
            except _Exists:
                return False

    return await _run(url, rule, timeout_s, work, pace, size_bytes, executor)


class _Exists(Exception):
    """412 to an upload: somebody stored this object before."""


class _Exchange:
    """One request on one connection, with a deadline that also holds against a peer who sends a byte at a time."""

    def __init__(self, url: str, rule: AddressRule, timeout_s: float, pace: Paced | None, max_bytes: int) -> None:
        self._target = rule.check(url)
        self._rule = rule
        self._pace: Paced = pace if pace is not None else Pace.unlimited()
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s + max_bytes / limits.SLOWEST_BYTES_S
        """While it waits for a thread, behind others that may take so long."""
        self._connection: HTTPConnection | None = None
        self._lock = threading.Lock()
        self._aborted = False

    def begin(self) -> None:
        """It has a thread: from now on what moves counts."""
        self._deadline = time.monotonic() + self._timeout_s

    def left_s(self) -> float:
        """Until it is out of time, if nothing moves."""
        return self._deadline - time.monotonic()

    def abort(self) -> None:
        """Ends the exchange from another thread: no `commit` succeeds after this."""
        with self._lock:
            self._aborted = True
            sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def commit(self, act: Callable[[], object]) -> None:
        """Runs ``act`` unless the caller has given up."""
        with self._lock:
            self._check()
            act()

    @contextlib.contextmanager
    def open(self, method: str, headers: Mapping[str, str], body: Iterator[bytes] | None = None) -> Iterator[BaseHTTPResponse]:
        """The answer with status 200, headers read; the connection is closed at the end."""
        connection = self._connected(self._rule.resolve(self._target))
        with self._lock:
            self._check()
            self._connection = connection
        try:
            host = self._target.host if self._target.port in (80, 443) else f"{self._target.host}:{self._target.port}"
            sent = {"host": host, "accept-encoding": "identity", "user-agent": "dcnr", **headers}
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent: the answer says why
                connection.request(method, self._target.path, body=body, headers=sent, preload_content=False, decode_content=False)
            unsent = min(int(headers.get("content-length", 0)), MAX_UNSENT_BYTES)
            connection.timeout = limits.STORE_TIMEOUT_S + unsent / limits.SLOWEST_BYTES_S  # in force from the answer on
            with contextlib.closing(connection.getresponse()) as response:
                _expect_ok(response, method, self._target.path)
                yield response
        finally:
            connection.close()

    def body(self, response: BaseHTTPResponse, max_bytes: int) -> Iterator[bytes]:
        """The body in blocks. Raises Corrupt as soon as it is known to be larger than ``max_bytes``, or shorter than announced."""
        announced = response.headers.get("content-length", "")
        if announced and (not announced.isdigit() or int(announced) > max_bytes):
            raise Corrupt(f"the object has {announced:.20} bytes, at most {max_bytes} are allowed", code="object_too_large")
        received = 0
        while block := response.read1(self._pace.block_bytes):
            self._wait(len(block))
            received += len(block)
            if received > max_bytes:
                raise Corrupt(f"the object has more than {max_bytes} bytes", code="object_too_large")
            yield block
        if announced and received != int(announced):
            raise Unavailable(f"the answer ended after {received} of {announced} bytes", code="transfer_broken")

    def blocks(self, read: Callable[[int], bytes]) -> Iterator[bytes]:
        """The blocks of a file to send."""
        while block := read(self._pace.block_bytes):
            self._wait(len(block))
            yield block

    def _connected(self, addresses: Sequence[str]) -> HTTPConnection:
        *others, last = addresses
        for address in others:
            with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
                return self._connect(address, NEXT_ADDRESS_S)
            self._check()
        return self._connect(last, limits.CONNECT_TIMEOUT_S)

    def _connect(self, address: str, timeout: float) -> HTTPConnection:
        if self._target.scheme == "http":
            connection = HTTPConnection(address, self._target.port, timeout=timeout)
        else:
            name = self._target.host.strip("[]")
            connection = HTTPSConnection(
                address, self._target.port, timeout=timeout, server_hostname=name, assert_hostname=name,
                ssl_context=ssl.create_default_context(), cert_reqs="CERT_REQUIRED",
            )  # fmt: skip
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            connection.sock.settimeout(limits.STORE_TIMEOUT_S)
        return connection

    def _wait(self, num_bytes: int) -> None:
        """Keeps the pace; the deadline waits too, and for what the bytes may take."""
        left_s = self._pace.wait_s(num_bytes)
        self._deadline += left_s + num_bytes / limits.SLOWEST_BYTES_S
        self._check()
        while left_s > 0:
            nap_s = min(left_s, LONGEST_NAP_S)
            time.sleep(nap_s)
            left_s -= nap_s
            self._check()

    def _check(self) -> None:
        if self._aborted or time.monotonic() > self._deadline:
            raise TimedOut("the transfer took too long", code="transfer_timeout")


def _expect_ok(response: BaseHTTPResponse, method: str, path: str) -> None:
    word = _error_word(response) if response.status == 404 or (response.status in (403, 507) and method == "PUT") else ""
    if is_full(response.status, word):
        raise store_full(path.partition("?")[0].lstrip("/"), f"{response.status} {word}".rstrip())
    match response.status:
        case 200 | 201 | 204:
            return
        case 404 if method == "PUT" or word == "NoSuchBucket":  # where objects should lie is missing, which says nothing of any
            raise Unavailable(f"the store answered 404 {word}".rstrip(), code="store_unavailable")
        case 404:
            raise NotFound("the store has no such object", code="no_such_object")
        case 412 if method == "PUT":
            raise _Exists
        case 400 if method == "PUT":  # the file was found right before it was sent
            raise Unavailable("the bytes were damaged on their way to the store", code="transfer_broken")
        case 301 | 302 | 303 | 307 | 308:
            raise Refused("the store answered with a redirect, which is not followed", code="redirect_refused")
        case 401 | 403:
            raise Unavailable(
                "the store refused the grant",
                code="grant_refused",
                remedy="ask for a new grant: this one expired, or the store's clock or keys have changed since",
            )
        case status:
            raise Unavailable(f"the store answered {status}", code="store_unavailable")


def _error_word(response: BaseHTTPResponse) -> str:
    """The code in the beginning of an S3 error, or nothing."""
    found = re.search(rb"<Code>([A-Za-z]{1,64})</Code>", response.read1(ERROR_BYTES))
    return found.group(1).decode() if found else ""


async def _run(
    url: str, rule: AddressRule, timeout_s: float, work: Callable[[_Exchange], T], pace: Paced | None = None, max_bytes: int = 0,
    executor: Executor | None = None,
) -> T:  # fmt: skip
    """``work`` in a thread. The exchange itself ends a slow peer in time; the limit here also holds if the thread hangs, or gets no place."""
    exchange = _Exchange(url, rule, timeout_s, pace, max_bytes)
    paced_s = MAX_SHARING * pace.seconds(max_bytes) if pace is not None else 0.0
    working = asyncio.get_running_loop().run_in_executor(executor, _typed, work, exchange)
    try:
        while not working.done():
            left_s = exchange.left_s() + paced_s
            if left_s <= 0.0:
                raise TimedOut("the transfer took too long", code="transfer_timeout")
            await asyncio.wait((working,), timeout=min(left_s, timeout_s))
        return working.result()
    finally:
        working.cancel()
        exchange.abort()


def _typed(work: Callable[[_Exchange], T], exchange: _Exchange) -> T:
    exchange.begin()
    try:
        return work(exchange)
    except DcnrError:
        raise
    except urllib3.exceptions.TimeoutError as error:
        raise TimedOut(f"the store did not answer in time: {for_others(error)}", code="transfer_timeout") from error
    except (
        urllib3.exceptions.HTTPError,
        http.client.HTTPException,
        ConnectionError,
        ssl.SSLError,
        TimeoutError,
        socket.gaierror,
    ) as error:
        raise Unavailable(f"the transfer broke: {for_others(error)}", code="transfer_broken") from error
    except OSError as error:
        raise disk_trouble("the file cannot be read or written", error) from error
