"""Dead PNodes leave the view within seconds: whoever does not answer, or is called dead by somebody, is probed here, and buried if nobody reaches it.

A claim costs at most one probe of a node in `AGAIN_S`, all claims together at most `CLAIM_RATE`, and kills nobody: each node believes its own probe and its
own helpers only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from dcnr.ids import NodeId
from membership.network_time import NetworkTime
from membership.prober import Prober
from membership.probing import Findings, Verdict
from trust.rates import Rate, TokenBuckets
from trust.records import VerifiedAdvert

AGAIN_S: Final = 5.0
"""A node is probed for a doubt at most once in this time."""
MAX_DOUBTS: Final = 32
"""Doubts that are looked into at once; further ones come up again."""
CLAIM_RATE: Final = Rate(per_s=4.0, burst=24.0)
"""Probes for what others claim, of all nodes together: a look costs connections, ours and those of the helpers. Further claims come up again."""
MAX_REMEMBERED: Final = 1024
_log = structlog.get_logger("membership")


class Doubts:
    """``dead`` is told of every PNode that neither this node nor a helper reaches."""

    def __init__(self, prober: Prober, time: NetworkTime, dead: Callable[[VerifiedAdvert], None]) -> None:
        self._prober, self._time, self._dead = prober, time, dead
        self._looked_at: OrderedDict[NodeId, float] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._claims = TokenBuckets(CLAIM_RATE)

    def claimed(self, adverts: Iterable[VerifiedAdvert]) -> None:
        """Somebody calls them dead: as `about`, as far as `CLAIM_RATE` goes."""
        now = self._time.monotonic()
        self.about(advert for advert in adverts if self._is_due(advert, now) and not self._claims.wait_s("", now))

    def about(self, adverts: Iterable[VerifiedAdvert]) -> None:
        """This node itself had no answer of them: begins to look into each of them; returns at once."""
        now = self._time.monotonic()
        for advert in adverts:
            if not self._is_due(advert, now):
                continue
            self._looked_at[advert.node_id] = now
            self._looked_at.move_to_end(advert.node_id)
            if len(self._looked_at) > MAX_REMEMBERED:
                self._looked_at.popitem(last=False)
            task = asyncio.create_task(self._look_into(advert), name=f"doubt {advert.node_id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends all probes."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._prober.close()

    def _is_due(self, advert: VerifiedAdvert, now: float) -> bool:
        """Where nobody can dial it a probe would say nothing: it goes when its advert expires."""
        is_again = now - self._looked_at.get(advert.node_id, float("-inf")) < AGAIN_S
        return bool(advert.advert.control_addresses) and len(self._tasks) < MAX_DOUBTS and not is_again

    async def _look_into(self, advert: VerifiedAdvert) -> None:
        found = await self._prober.probe(advert)
        if _is_dead(found):
            _log.info("node_dead", node=advert.node_id, reason=found.reason)
            self._dead(advert)


def _is_dead(found: Findings) -> bool:
    """Without any helper's answer the broken way may be our own: such a node stays until its advert expires."""
    return found.verdict is Verdict.UNREACHED and bool(found.answers)
