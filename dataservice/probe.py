"""A store is used only if it honours preconditions; what else it enforces decides how uploads travel. Found out at every start.

All decisions on a model are conditional writes, so a store that ignores ``If-Match`` or ``If-None-Match`` is refused. A store that lets a
presigned upload differ in size or digest, or overwrite, still works: uploads then pass through an orchestrator, which checks them.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace

import urllib3
import urllib3.exceptions

from dataservice import keys
from dataservice.s3 import PresignedPut, S3Store, for_who_begins
from dcnr import limits
from dcnr.errors import DcnrError, Refused, Stale
from dcnr.ids import digest_of
from dcnr.ports import ObjectStore

BODY = b"dcnr store probe"


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What presigned uploads are held to by the store."""

    size_enforced: bool
    digest_enforced: bool
    absence_enforced: bool

    @property
    def proxy_uploads(self) -> bool:
        """Uploads must pass through an orchestrator."""
        return not (self.size_enforced and self.digest_enforced and self.absence_enforced)


async def probe_store(store: S3Store) -> ProbeReport:
    """Tries the store out with small objects under ``probe/``, which it removes again.

    Raises Refused (``store_without_preconditions``, ``store_denied``) or what the store's port raises.
    """
    token = secrets.token_hex(8)
    inner = S3Store(replace(store.address, public_endpoint=""))
    try:
        await check_preconditions(store, token)
        return await _probe_uploads(inner, token)
    except DcnrError as error:
        raise for_who_begins(error) from error
    finally:
        inner.close()


async def check_preconditions(store: ObjectStore, token: str) -> None:
    """Returns if conditional writes hold. Raises Refused (``store_without_preconditions``)."""
    key = keys.probe(f"c-{token}")
    try:
        first = await store.put(key, b"1", if_none_match=True)
        if not await _stale(store, key, b"2", if_none_match=True):
            raise _ignores("If-None-Match", key)
        second = await store.put(key, b"3", if_match=first)
        if not await _stale(store, key, b"4", if_match=first):
            raise _ignores("If-Match", key)
        read = await store.get(key, max_bytes=16)
        if (read.data, read.etag) != (b"3", second):
            raise _ignores("the order of writes", key)
    finally:
        await store.delete(key)


async def _stale(store: ObjectStore, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> bool:
    try:
        await store.put(key, data, if_match=if_match, if_none_match=if_none_match)
    except Stale:
        return True
    return False


def _ignores(what: str, key: str) -> Refused:
    return Refused(
        f"the store ignores {what}",
        code="store_without_preconditions",
        remedy="use a store with conditional writes: the embedded one, SeaweedFS, MinIO or AWS S3",
        key=key,
    )


async def _probe_uploads(store: S3Store, token: str) -> ProbeReport:
    longer, other, again = (keys.probe(f"{word}-{token}") for word in ("size", "digest", "again"))
    try:
        signed = store.presign_put(longer, len(BODY), digest_of(BODY), 60)
        size = not await _upload(signed, BODY + b"!", {"content-length": str(len(BODY) + 1)})
        signed = store.presign_put(other, len(BODY), digest_of(BODY), 60)
        digest = not await _upload(signed, BODY[::-1], {})
        signed = store.presign_put(again, len(BODY), digest_of(BODY), 60)
        absence = await _upload(signed, BODY, {}) and not await _upload(signed, BODY, {})
        return ProbeReport(size_enforced=size, digest_enforced=digest, absence_enforced=absence)
    finally:
        for key in (longer, other, again):
            await store.delete(key)


async def _upload(signed: PresignedPut, body: bytes, changed: dict[str, str]) -> bool:
    """Whether the store took it. A connection it breaks off counts as a refusal."""

    def send() -> int:
        timeout = urllib3.Timeout(connect=limits.CONNECT_TIMEOUT_S, read=limits.STORE_TIMEOUT_S)
        with urllib3.PoolManager(retries=False, timeout=timeout) as pool:
            return pool.request("PUT", signed.url, body=body, headers=dict(signed.headers) | changed).status

    try:
        return await asyncio.to_thread(send) < 300
    except urllib3.exceptions.HTTPError:
        return False
