"""A bucket of our own in a store that others run: fresh, in a store that has been probed, and gone with all that is in it at the end.

Nothing else in that store is read, written or removed. Whoever is killed in between leaves the bucket behind; its name has been told before.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import Final

from dataservice.addresses import AddressRule
from dataservice.embedded import StoreFile
from dataservice.probe import probe_store
from dataservice.s3 import S3Store, make_bucket, remove_bucket
from dcnr.errors import DcnrError, InvalidInput, Refused

PREFIX: Final = "dcnr-demo-"
"""How the names of such buckets begin."""
AT_ONCE: Final = 8
"""Objects that are removed side by side."""
PAGE: Final = 1000
MAX_PAGES: Final = 100
"""A store that goes on listing what it was told to remove is left with it."""


@contextlib.contextmanager
def borrowed_bucket(url: str, credentials: StoreFile, say: Callable[[str], None]) -> Iterator[StoreFile]:
    """Where the bucket is, while the block lasts. ``url``: ``http(s)://host:port`` of the store; ``credentials``: only their two keys count.

    Blocks: not for a running event loop. Raises InvalidInput (``bad_address``), Refused (``store_denied``, ``store_without_preconditions``), Unavailable.
    """
    _check(url)
    file = StoreFile(url, f"{PREFIX}{secrets.token_hex(6)}", credentials.access_key, credentials.secret_key)
    say(f"making the bucket {file.bucket} at {url}; nothing else in that store is touched, and it is removed at the end")
    make_bucket(file.address())
    try:
        asyncio.run(_probe(file, say))
        yield file
    finally:
        try:
            asyncio.run(_emptied(file))
            remove_bucket(file.address())
            say(f"removed the bucket {file.bucket}")
        except DcnrError as error:
            say(f"the bucket {file.bucket} at {url} could not be removed: {error}")


def _check(url: str) -> None:
    """Raises InvalidInput (``bad_address``) for anything but scheme, host and port."""
    wrong = InvalidInput(f"{url!r:.80} is not the address of a store", code="bad_address", remedy="give it as http://HOST:PORT")
    try:
        target = AddressRule(stores=(url,)).check(f"{url}/")
    except Refused:
        raise wrong from None
    if target.path != "/" or not url.endswith(f":{target.port}"):
        raise wrong


async def _probe(file: StoreFile, say: Callable[[str], None]) -> None:
    store = S3Store(file.address())
    try:
        report = await probe_store(store)
    finally:
        store.close()
    ways = "uploads go through orchestrators: the store does not check them" if report.proxy_uploads else "it checks uploads itself"
    say(f"the store honours preconditions; {ways}")


async def _emptied(file: StoreFile) -> None:
    """Removes every object of the bucket. Raises what the store's port raises."""
    store = S3Store(file.address())
    try:
        for _ in range(MAX_PAGES):
            found = await store.list("", max_keys=PAGE)
            if not found:
                return
            for first in range(0, len(found), AT_ONCE):
                gone = await asyncio.gather(
                    *(store.delete(one.key) for one in found[first : first + AT_ONCE]), return_exceptions=True
                )
                for error in gone:
                    if error is not None:
                        raise error
    finally:
        store.close()
