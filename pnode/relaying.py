"""The daemon's word to its worker about relays: who passes bytes on to workers that nobody can dial, and whether this one is such a worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from dcnr.client import Known
from dcnr.v1 import local_pb2

MAX_RELAYS: Final = 64


def reach_of(host: str) -> dict[str, object]:
    """What the advert of a machine says before its ports are known: nothing, or that nobody can dial it (``host`` is empty)."""
    return {} if host else {"control_addresses": [], "dht_address": ""}


class Relaying:
    """``known``: the orchestrators of the network with their addresses; ``listen``: whether the worker waits for connections at relays."""

    def __init__(self, known: Known, send: Callable[[local_pb2.ToWorker], Awaitable[bool]], *, listen: bool) -> None:
        self._known, self._send, self._listen = known, send, listen
        self._told = local_pb2.WorkerRelays()

    async def worker_up(self) -> None:
        """A new worker knows none."""
        self._told = local_pb2.WorkerRelays()
        await self.refresh()

    async def refresh(self) -> None:
        """Tells the worker what has changed."""
        known = sorted(self._known())[:MAX_RELAYS]
        relays = [local_pb2.RelayAddress(node_id=node_id, addresses=where) for node_id, where in known]
        news = local_pb2.WorkerRelays(relays=relays, listen=self._listen)
        if relays and news != self._told and await self._send(local_pb2.ToWorker(relays=news)):
            self._told = news
