"""Host names looked up in few threads of their own: strangers name hosts, whose name servers may take as long as they like over an answer.

Whoever waits may give up; the thread cannot. So a place counts until its thread is done, and where all are taken a name is refused at once. Never the default
executor of the loop: everything else that blocks waits there.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from dcnr.errors import Unavailable, for_others

PLACES: Final = 8
"""Names that are looked up at a time."""
MAX_FOUND: Final = 4
"""Addresses of one name that are tried."""
Resolve = Callable[[str, int], Awaitable[tuple[str, ...]]]
"""IP addresses of a host. Raises Unavailable (``unreachable``)."""


async def numeric_only(host: str, port: int) -> tuple[str, ...]:
    """An IP address as it is; of no name."""
    if not _is_ip(host):
        raise Unavailable(f"{host}:{port} is no IP address", code="unreachable")
    return (host,)


class Resolver:
    """One per dialer, and one per directory. Its threads begin with the first name."""

    def __init__(self, places: int = PLACES) -> None:
        self._threads = ThreadPoolExecutor(places, thread_name_prefix="resolver")
        self._places = threading.Semaphore(places)

    async def resolve(self, host: str, port: int, family: int = socket.AF_UNSPEC) -> tuple[str, ...]:
        """The first IP addresses of ``host``, of a name those of ``family``; the caller bounds the time. Raises Unavailable (``unreachable``), at once
        where all places are taken.
        """
        if _is_ip(host):
            return (host,)
        if not self._places.acquire(blocking=False):
            raise Unavailable(f"too many names are looked up: {host} is not", code="unreachable")
        look = asyncio.wrap_future(self._threads.submit(self._look, host, port, family))
        look.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to hear of it
        try:
            # whoever gives up leaves the thread alone: one that never began would never free its place
            return await asyncio.shield(look)
        except (OSError, ValueError) as error:  # UnicodeError: no name at all
            raise Unavailable(f"{host} is the name of no host: {for_others(error)}", code="unreachable") from error

    def _look(self, host: str, port: int, family: int) -> tuple[str, ...]:
        try:
            rows = socket.getaddrinfo(host, port, family, type=socket.SOCK_STREAM)
            return tuple(dict.fromkeys(str(row[4][0]) for row in rows))[:MAX_FOUND]
        finally:
            self._places.release()


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
