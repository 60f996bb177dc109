"""The daemon's word to its worker about relays: who passes bytes on to workers that nobody can dial, and whether this one is such a worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from dcnr.client import Known
from dcnr.v1 import local_pb2

MAX_RELAYS: Final = 32
"""Orchestrators,"""
MAX_VOLUNTEERS: Final = 256
"""and PNodes: all that a view of the network holds. With fewer, whoever makes ids that sort first would be all of them, for everybody."""


class Relaying:
    """``known``: the orchestrators of the network with their addresses; ``volunteers``: PNodes that offer to pass on; ``listen``: whether the worker is to
    wait for connections at relays now.
    """

    def __init__(
        self, known: Known, volunteers: Known, send: Callable[[local_pb2.ToWorker], Awaitable[bool]], *, listen: Callable[[], bool]
    ) -> None:
        self._known, self._volunteers, self._send, self._listen = known, volunteers, send, listen
        self._told = local_pb2.WorkerRelays()

    async def worker_up(self) -> None:
        """A new worker knows none."""
        self._told = local_pb2.WorkerRelays()
        await self.refresh()

    async def refresh(self) -> None:
        """Tells the worker what has changed."""
        relays = [
            local_pb2.RelayAddress(node_id=node_id, addresses=where, volunteer=is_volunteer)
            for known, is_volunteer, most in ((self._known, False, MAX_RELAYS), (self._volunteers, True, MAX_VOLUNTEERS))
            for node_id, where in sorted(known())[:most]
        ]
        news = local_pb2.WorkerRelays(relays=relays, listen=self._listen())
        if relays and news != self._told and await self._send(local_pb2.ToWorker(relays=news)):
            self._told = news
