"""Exchanges with partners: what this node tells them, and what it hears; nobody who is silent holds up the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from dcnr.errors import DcnrError
from dcnr.ids import NodeId
from dcnr.ports import Random
from dcnr.v1 import identity_pb2, membership_pb2
from membership.agreeing import Agreeing
from membership.gossip import View
from membership.network_time import NetworkTime
from membership.partners import Asked, Partners
from membership.seeking import Seeker
from trust.records import VerifiedAdvert

PATIENCE_S: Final = 1.0
"""A round waits so long for its partners; who answers later is heard all the same, and the next round has begun."""
MAX_AT_ONCE: Final = 16
"""Exchanges under way: where so many partners are silent, a round begins with whom there is room for."""
_log = structlog.get_logger("membership")


@dataclass(frozen=True, slots=True)
class Told:
    """Who hears what an exchange brings: adverts, who is called dead, and which partner did not answer."""

    adverts: Callable[[Iterable[identity_pb2.Envelope]], None]
    suspects: Callable[[Sequence[membership_pb2.KnownNode]], None]
    silent: Callable[[str], None]


class Exchanges:
    """Of one node. A partner is asked nothing more while an exchange with it is under way."""

    def __init__(
        self, view: View, partners: Partners, time: NetworkTime, rng: Random, seeker: Seeker, agreeing: Agreeing, told: Told
    ) -> None:
        self._view, self._partners, self._time, self._rng, self._seeker = view, partners, time, rng, seeker
        self._agreeing, self._told = agreeing, told
        self._under_way: set[NodeId] = set()

    async def round(self, group: asyncio.TaskGroup, chosen: Sequence[VerifiedAdvert]) -> None:
        """Begins an exchange with each of ``chosen``, in ``group``; returns when all are over, after `PATIENCE_S` at the latest."""
        free = [partner for partner in chosen if partner.node_id not in self._under_way]
        free = free[: max(0, MAX_AT_ONCE - len(self._under_way))]
        if not free:
            return
        entries = [str(entry) for entry in self._seeker.entries_for_others()]
        same = membership_pb2.ExchangeRequest(adverts=self._view.news(), bootstrap=entries, suspects=self._view.push_suspects())
        asked = zip(free, self._view.known(self._rng, len(free)), strict=True)
        await asyncio.wait([self._begin(group, partner, Asked(same, known)) for partner, known in asked], timeout=PATIENCE_S)

    async def last(self, chosen: Sequence[VerifiedAdvert]) -> None:
        """A round of which every exchange is waited for."""
        async with asyncio.TaskGroup() as group:
            await self.round(group, chosen)

    def _begin(self, group: asyncio.TaskGroup, partner: VerifiedAdvert, asked: Asked) -> asyncio.Task[None]:
        self._under_way.add(partner.node_id)
        task = group.create_task(self._exchange(partner, asked), name=f"exchange {partner.node_id}")
        task.add_done_callback(lambda done: self._under_way.discard(partner.node_id))
        return task

    async def _exchange(self, partner: VerifiedAdvert, asked: Asked) -> None:
        own = self._view.own
        try:
            response = await self._partners.exchange(partner, asked, own.envelope if own is not None else None)
        except DcnrError as error:
            self._view.failed(partner.node_id, self._time.monotonic())
            self._told.silent(partner.node_id)
            _log.debug("exchange_failed", partner=partner.node_id, code=error.code)
            return
        self._view.answered(partner.node_id)
        self._told.adverts(response.adverts)
        self._seeker.heard_from_others()
        self._seeker.hear_of(response.bootstrap, partner.node_id)
        self._told.suspects(response.suspects)
        await self._agreeing.with_partner(partner, int(response.document_version))
