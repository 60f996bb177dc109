"""Carries probes out: tries a node directly and through helpers at once, within `PROBE_BUDGET_S`. Each node is probed once at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from dcnr.errors import DcnrError
from dcnr.ids import NodeId
from dcnr.ports import Random
from dcnr.rpc.dialer import Dialer
from dcnr.v1 import membership_pb2
from membership.partners import Partners
from membership.probing import PROBE_BUDGET_S, Answer, Findings, helpers_for
from trust.records import VerifiedAdvert

MAX_PROBES_AT_ONCE: Final = 32
"""Own probes; those beyond wait for a place."""


class Prober:
    """One per node. ``members`` are those that may help, ``in_trouble`` those that lately did not answer."""

    def __init__(
        self, dialer: Dialer, partners: Partners, rng: Random, *, members: Callable[[], Sequence[VerifiedAdvert]],
        in_trouble: Callable[[], Sequence[str]],
    ) -> None:  # fmt: skip
        self._dialer, self._partners, self._rng = dialer, partners, rng
        self._members, self._in_trouble = members, in_trouble
        self._places = asyncio.Semaphore(MAX_PROBES_AT_ONCE)
        self._under_way: dict[NodeId, asyncio.Task[Findings]] = {}

    async def probe(self, subject: VerifiedAdvert) -> Findings:
        """What this node and its helpers find now. Never raises for what others do."""
        task = self._under_way.get(subject.node_id)
        if task is None:
            task = self._under_way[subject.node_id] = asyncio.create_task(self._probe(subject), name=f"probe {subject.node_id}")
            task.add_done_callback(lambda done: self._under_way.pop(subject.node_id, None))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Ends all probes."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _probe(self, subject: VerifiedAdvert) -> Findings:
        helpers = helpers_for(subject.node_id, self._members(), self._rng, avoid=self._in_trouble())
        async with self._places:
            direct = asyncio.create_task(self._reach(subject))
            asked = [asyncio.create_task(self._ask(helper, subject.node_id)) for helper in helpers]
            try:
                await asyncio.wait([direct, *asked], timeout=PROBE_BUDGET_S)
            finally:
                for task in (direct, *asked):
                    task.cancel()
                await asyncio.wait([direct, *asked])
        answers = [answer for task in asked if not task.cancelled() and (answer := task.result()) is not None]
        reached = not direct.cancelled() and direct.result()
        return Findings(subject.node_id, reached, len(helpers), tuple(answers))

    async def _reach(self, subject: VerifiedAdvert) -> bool:
        """A connection of its own: an old one may look open long after the machine is gone."""
        try:
            connection = await self._dialer.connect(subject.node_id, subject.advert.control_addresses, own_connection=True)
        except DcnrError:
            return False
        await connection.close()
        return True

    async def _ask(self, helper: VerifiedAdvert, node_id: NodeId) -> Answer | None:
        try:
            found = await self._partners.probe(helper, membership_pb2.ProbeRequest(node_id=node_id))
        except DcnrError:  # it does not know the node, has too much to do, or is silent itself
            return None
        return Answer(helper.node_id, found.reachable, found.incarnation)
