"""`S3Store` is the `dcnr.ports.ObjectStore` over any S3 endpoint: one attempt per call, every call bounded, errors typed.

boto3 is synchronous, so calls run in two bounded executors: small ones (head, plan, manifest) never queue behind bulk. A caller
that stops waiting leaves a thread behind for at most the socket timeouts; for a write the outcome is then unknown, as the port
says. Nothing is read from the environment: no proxies, no ambient credentials.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

import boto3.session
import botocore.exceptions
import botocore.session
import botocore.utils
import urllib3.exceptions
from botocore.config import Config

from dataservice import keys
from dataservice.memory import (
    conflict,
    denied,
    is_full,
    not_found,
    precondition_failed,
    store_full,
    timed_out,
    too_large,
    unavailable,
)
from dcnr import limits
from dcnr.errors import DcnrError, InvalidInput, Refused, for_others
from dcnr.ids import Digest, check_digest
from dcnr.ports import ObjectInfo, StoredObject

SMALL_BYTES: Final = limits.MAX_MANIFEST_BYTES
"""Requests that may move more than this count as bulk."""
SMALL_THREADS: Final = 8
BULK_THREADS: Final = 4
READ_BYTES: Final = 1 * limits.MIB
LIST_PAGE: Final = 1000
_ENDPOINT: Final = re.compile(r"https?://[^\s/?#@]+/?")

_MAKING: Final = threading.Lock()
"""A session makes one client at a time."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a store is and how to sign for it. ``public_endpoint`` is what other machines use in presigned URLs."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"
    public_endpoint: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidInput (``bad_address``) for an endpoint that is no URL of a host."""
        for endpoint in (self.endpoint, self.public_endpoint):
            if endpoint and not _ENDPOINT.fullmatch(endpoint):
                remedy = f"write http://{endpoint}" if "://" not in endpoint else "write http://HOST:PORT or https://HOST[:PORT]"
                raise InvalidInput(f"{endpoint!r} is no address of a store", code="bad_address", remedy=remedy)

    def __repr__(self) -> str:
        return f"StoreAddress(endpoint={self.endpoint!r}, bucket={self.bucket!r})"


@dataclass(frozen=True, slots=True)
class PresignedPut:
    """A URL and exactly the headers that its signature covers: size, SHA-256 and *only if absent*."""

    url: str
    headers: tuple[tuple[str, str], ...]


class S3Store:
    """See the module. Close it when done."""

    def __init__(self, address: StoreAddress, *, timeout_s: float = limits.STORE_TIMEOUT_S) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._client = _client(address, address.endpoint, timeout_s)
        public = address.public_endpoint
        self._signer = _client(address, public, timeout_s) if public and public != address.endpoint else self._client
        self._small = ThreadPoolExecutor(SMALL_THREADS, thread_name_prefix="store")
        self._bulk = ThreadPoolExecutor(BULK_THREADS, thread_name_prefix="store-bulk")

    def close(self) -> None:
        """Drops queued calls and the connections; running ones end by their own timeout."""
        for executor in (self._small, self._bulk):
            executor.shutdown(wait=False, cancel_futures=True)
        self._client.close()
        if self._signer is not self._client:
            self._signer.close()

    async def get(self, key: str, *, max_bytes: int) -> StoredObject:
        """The whole object; Corrupt if larger than ``max_bytes``, checked before the body is read."""
        return await self._call("get", key, max_bytes, lambda: self._get(key, max_bytes))

    async def get_range(self, key: str, *, first: int, num_bytes: int) -> bytes:
        """Part of the object."""
        return await self._call("get", key, num_bytes, lambda: self._get_range(key, first, num_bytes))

    async def head(self, key: str) -> ObjectInfo:
        """Size, ETag and modification time."""

        def ask() -> ObjectInfo:
            answer = self._client.head_object(Bucket=self.address.bucket, Key=key)
            return ObjectInfo(key, int(answer["ContentLength"]), str(answer["ETag"]), answer["LastModified"].timestamp())

        return await self._call("head", key, 0, ask)

    async def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """Writes in one attempt, with the SHA-256 for the store to check; returns the new ETag."""

        def send() -> str:
            condition: dict[str, str] = {}
            if if_match is not None:
                condition["IfMatch"] = if_match
            if if_none_match:
                condition["IfNoneMatch"] = "*"
            checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
            answer = self._client.put_object(Bucket=self.address.bucket, Key=key, Body=data, ChecksumSHA256=checksum, **condition)
            return str(answer["ETag"])

        return await self._call("put", key, len(data), send)

    async def delete(self, key: str) -> None:
        """Removes the object; absent is fine."""
        await self._call("delete", key, 0, lambda: self._client.delete_object(Bucket=self.address.bucket, Key=key))

    async def list(self, prefix: str, *, max_keys: int = 1000, after: str = "") -> Sequence[ObjectInfo]:
        """Objects in key order from the first key that sorts behind ``after``, over as many pages as ``max_keys`` needs."""
        return await self._call("list", prefix, 0, lambda: self._list(prefix, max_keys, after))

    def presign_get(self, key: str, expires_s: int) -> str:
        """A URL that reads exactly this object (no version, no range) for ``expires_s`` seconds; no request is made."""
        params = {"Bucket": self.address.bucket, "Key": key}
        return str(self._signer.generate_presigned_url("get_object", Params=params, ExpiresIn=expires_s, HttpMethod="GET"))

    def presign_put(self, key: str, size_bytes: int, sha256: Digest, expires_s: int) -> PresignedPut:
        """A URL that writes exactly ``size_bytes`` bytes of that digest under an absent key; all three are in the signature."""
        headers = (
            ("content-length", str(size_bytes)),
            ("if-none-match", "*"),
            ("x-amz-checksum-sha256", base64.b64encode(bytes.fromhex(check_digest(sha256))).decode()),
        )
        params = {
            "Bucket": self.address.bucket,
            "Key": key,
            "ContentLength": size_bytes,
            "ChecksumSHA256": headers[2][1],
            "IfNoneMatch": "*",
        }
        url = self._signer.generate_presigned_url("put_object", Params=params, ExpiresIn=expires_s, HttpMethod="PUT")
        return PresignedPut(str(url), headers)

    async def _call(self, operation: str, key: str, size_bytes: int, work: Callable[[], T]) -> T:
        """Runs ``work`` in the executor for its size and within its time."""
        small = size_bytes <= SMALL_BYTES
        bound_s = self._timeout_s if small else limits.BULK_TIMEOUT_S
        try:
            async with asyncio.timeout(bound_s):
                return await asyncio.get_running_loop().run_in_executor(self._small if small else self._bulk, work)
        except TimeoutError:
            raise timed_out(operation, key) from None
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError, urllib3.exceptions.HTTPError, OSError) as error:
            raise typed_error(error, operation, key) from error

    def _get(self, key: str, max_bytes: int) -> StoredObject:
        deadline = time.monotonic() + limits.BULK_TIMEOUT_S
        answer = self._client.get_object(Bucket=self.address.bucket, Key=key)
        body = answer["Body"]
        try:
            size_bytes = int(answer["ContentLength"])
            if size_bytes > max_bytes:
                raise too_large(key, size_bytes, max_bytes)
            data = bytearray()
            while block := body.read(min(READ_BYTES, size_bytes - len(data) + 1)):
                data += block
                if len(data) > size_bytes:
                    raise too_large(key, len(data), size_bytes)
                if time.monotonic() > deadline:
                    raise timed_out("get", key)
        finally:
            body.close()
        if len(data) != size_bytes:
            raise unavailable(key, f"the answer ended after {len(data)} of {size_bytes} bytes")
        return StoredObject(bytes(data), str(answer["ETag"]))

    def _get_range(self, key: str, first: int, num_bytes: int) -> bytes:
        try:
            answer = self._client.get_object(Bucket=self.address.bucket, Key=key, Range=f"bytes={first}-{first + num_bytes - 1}")
        except botocore.exceptions.ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 416:  # nothing lies there
                return b""
            raise
        body = answer["Body"]
        try:
            data: bytes = body.read(num_bytes + 1)
        finally:
            body.close()
        if len(data) > num_bytes:
            raise unavailable(key, "the store does not answer with the part that was asked for")
        return data

    def _list(self, prefix: str, max_keys: int, after: str) -> Sequence[ObjectInfo]:
        rows: list[ObjectInfo] = []
        token = {"StartAfter": after} if after else {}
        while len(rows) < max_keys:
            page = self._client.list_objects_v2(
                Bucket=self.address.bucket, Prefix=prefix, MaxKeys=min(LIST_PAGE, max_keys - len(rows)), **token
            )
            for item in page.get("Contents", []):
                rows.append(ObjectInfo(item["Key"], int(item["Size"]), str(item["ETag"]), item["LastModified"].timestamp()))
            if not page.get("IsTruncated") or not page.get("Contents"):
                break
            token = {"ContinuationToken": page["NextContinuationToken"]}
        if after and any(row.key <= after for row in rows):
            raise unavailable(prefix, "the store lists from elsewhere than it was told")
        return rows[:max_keys]


def why_unhealthy(address: StoreAddress, *, timeout_s: float) -> str:
    """Empty if a small object can be written and read back, else what failed. Blocks: for the start of the embedded store."""
    client = _client(address, address.endpoint, timeout_s)
    key = keys.probe("start")
    try:
        body = secrets.token_bytes(64)
        client.put_object(Bucket=address.bucket, Key=key, Body=body)
        if client.get_object(Bucket=address.bucket, Key=key)["Body"].read(65) != body:
            return "it read back other bytes than were written"
    except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError, urllib3.exceptions.HTTPError, OSError) as error:
        return for_others(error)
    finally:
        client.close()
    return ""


def make_bucket(address: StoreAddress) -> None:
    """Makes the bucket of that address, which must not exist. Blocks. Raises Refused (``store_denied``), Unavailable."""
    _on_bucket(address, lambda client: client.create_bucket(Bucket=address.bucket))


def remove_bucket(address: StoreAddress) -> None:
    """Removes the bucket of that address, which must be empty. Blocks. Raises Refused (``store_denied``), Unavailable."""
    _on_bucket(address, lambda client: client.delete_bucket(Bucket=address.bucket))


def _on_bucket(address: StoreAddress, work: Callable[[Any], object]) -> None:
    client = _client(address, address.endpoint, limits.STORE_TIMEOUT_S)
    try:
        work(client)
    except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError, urllib3.exceptions.HTTPError, OSError) as error:
        raise for_who_begins(typed_error(error, "bucket", address.bucket)) from error
    finally:
        client.close()


def for_who_begins(error: DcnrError) -> DcnrError:
    """The error for whoever tries a store out: credentials that open nothing are refused with what would change that, not tried again for ever."""
    if error.code != "store_denied":
        return error
    return Refused(error.message, code="store_denied", remedy="check the store's credentials, its clock and this machine's")


def typed_error(error: Exception, operation: str, key: str) -> DcnrError:
    """The error of the port for what the client library raised."""
    match error:
        case botocore.exceptions.ClientError():
            return _answered(error, operation, key)
        case (
            botocore.exceptions.ReadTimeoutError()
            | botocore.exceptions.ConnectTimeoutError()
            | urllib3.exceptions.TimeoutError()
            | TimeoutError()
        ):
            return timed_out(operation, key)
        case _:
            return unavailable(key, for_others(error))


def _answered(error: Any, operation: str, key: str) -> DcnrError:
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    word = str(error.response.get("Error", {}).get("Code", ""))
    if word == "NoSuchBucket":
        # Not `NotFound`: an absent bucket must never look like an absent head.
        return unavailable(key, "the bucket does not exist")
    if operation == "put" and status == 404 and word != "NoSuchKey":
        # Somebody before the store, or a store that is being set up: an object that is brought is not looked for.
        return unavailable(key, f"{status} {word}")
    if is_full(status, word):
        return store_full(key, f"{status} {word}")
    match status:
        case 404:
            return not_found(key)
        case 412:
            return precondition_failed(key)
        case 409:
            return conflict(key)
        case 401 | 403:
            return denied(key, word or str(status))
        case _:
            return unavailable(key, f"{status} {word}")


def _client(address: StoreAddress, endpoint: str, timeout_s: float) -> Any:
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path"},
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=min(limits.CONNECT_TIMEOUT_S, timeout_s),
        read_timeout=timeout_s,
        max_pool_connections=SMALL_THREADS + BULK_THREADS,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        proxies={},
        user_agent="dcnr",  # its own one is put together anew for each call, and takes a tenth of it
    )
    with _MAKING:
        return _session().client(
            "s3", endpoint_url=endpoint, config=config, region_name=address.region,
            aws_access_key_id=address.access_key, aws_secret_access_key=address.secret_key,
        )  # fmt: skip


@functools.cache
def _session() -> boto3.session.Session:
    """Of this process, without credentials: with each further one boto would read its description of S3 anew, 20 times what a client costs otherwise."""
    session = botocore.session.Session()
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=when)
    return boto3.session.Session(botocore_session=session)


def when(text: Any) -> datetime:
    """A time in a store's answer, as boto reads it; the two forms that S3 has without boto's general parser, which takes half of the time of a list.

    Raises ValueError.
    """
    with contextlib.suppress(TypeError, ValueError):
        if text[10:11] == "T":
            return datetime.fromisoformat(text)
        if text[3:5] == ", ":
            return parsedate_to_datetime(text)
    found: datetime = botocore.utils.parse_timestamp(text)
    return found
