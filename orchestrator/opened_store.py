"""The store of an orchestrator at its start: one of others, or the embedded one that ends with this process; asked until it answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from dataservice.addresses import AddressRule
from dataservice.embedded import EmbeddedStore, StoreFile, read_store_file
from dataservice.probe import probe_store
from dataservice.s3 import S3Store, StoreAddress
from dcnr import limits
from dcnr.errors import Refused, Unavailable
from dcnr.settings import OrchestratorSettings
from dcnr.v1 import identity_pb2
from trust.network import NetworkPolicy

PROBE_RETRY_S: Final = 1.0
PROBE_LONGEST_S: Final = 10.0
_log = structlog.get_logger("orchestrator")


@contextlib.asynccontextmanager
async def opened_store(
    settings: OrchestratorSettings, home: Path, policy: NetworkPolicy, store_file: Path | None
) -> AsyncIterator[S3Store]:
    """The external store of the settings, or the embedded one, which ends with this process. Raises Refused (``store_not_named``)."""
    known = _known(policy.document)
    check_public(settings.store_public_url, policy.document)
    public = settings.store_public_url or known
    embedded: EmbeddedStore | None = None
    if settings.store_url:
        found = await asyncio.to_thread(read_store_file, store_file or home / "store.json")
        file = replace(found, endpoint=settings.store_url, bucket=settings.store_bucket)
    else:
        embedded = EmbeddedStore(
            home / "store", port=settings.store_port, listen=settings.store_listen, public_url=settings.store_public_url,
            bucket=settings.store_bucket,
        )  # fmt: skip
        file = await asyncio.to_thread(embedded.start)
    store = S3Store(_address_of(file, public))
    try:
        yield store
    finally:
        store.close()
        if embedded is not None:
            await asyncio.to_thread(embedded.stop, note=lambda text: _log.info("store_stopping", note=text))


def check_public(url: str, document: identity_pb2.NetworkDocument) -> None:
    """Raises Refused (``store_not_named``) for an address that the network document does not allow: PNodes connect to no other, so nothing would be read
    or written, while without an address of its own this orchestrator gives out the document's, or passes the bytes on.
    """
    if not url:
        return
    known = _known(document)
    try:
        AddressRule(stores=(known,) if known else (), data_hosts=tuple(document.data_hosts)).check(f"{url.rstrip('/')}/")
    except Refused as error:
        if error.code != "address_not_allowed":
            raise
        raise Refused(
            f"the network document names {known or 'no store'}: no PNode would read or write at {url}", code="store_not_named",
            remedy=f"dcnr network amend --store {url}, and start with the document that it makes; or leave --store-public-url out: "
            + ("the document's address is given out" if known else "bytes go through orchestrators"),
        ) from None  # fmt: skip


def _known(document: identity_pb2.NetworkDocument) -> str:
    return f"{document.store_scheme or 'https'}://{document.store_address}" if document.store_address else ""


def _address_of(file: StoreFile, public: str) -> StoreAddress:
    return replace(file.address(), public_endpoint=public)


async def probed(store: S3Store, stop: asyncio.Event) -> bool | None:
    """Whether uploads must be proxied; None where this process is to end first. Waits for a store that does not answer, and says so once for each
    kind of trouble. Raises Refused for one that ignores preconditions.
    """
    told, pause_s = "", PROBE_RETRY_S
    while not stop.is_set():
        try:
            async with asyncio.timeout(3 * limits.STORE_TIMEOUT_S):
                return (await probe_store(store)).proxy_uploads
        except (Unavailable, TimeoutError) as error:
            kind, why = (error.code, error.message) if isinstance(error, Unavailable) else ("timeout", "no answer in time")
            if kind != told:
                told, pause_s = kind, PROBE_RETRY_S
                reason = f"{store.address.endpoint} does not answer: {why}; it is asked again by itself"
                _log.warning(
                    "store_away",
                    reason=reason,
                    cause=repr(error.__cause__),
                    remedy="see whether the store runs there, or name another one with --store-url",
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()
            pause_s = min(PROBE_LONGEST_S, 2 * pause_s)
    return None
