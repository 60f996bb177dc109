"""Desired states as they lie beside the plan: each is read once however many streams ask, and one listing serves all PNodes that the plan does not name."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dataservice import keys
from dataservice.listing import all_below
from dcnr import limits
from dcnr.errors import Corrupt, NotFound
from dcnr.ports import Clock, ObjectStore
from dcnr.v1 import identity_pb2
from orchestrator.documents import open_desired
from orchestrator.publishing import Published
from trust.network import NetworkPolicy

if TYPE_CHECKING:
    from orchestrator.view import ModelView

ABSENT_S: Final = 2.0
"""What is not in the store is looked for again after this long."""
MAX_CACHED: Final = 8192


class DesiredReader:
    """The signed desired states of one model's plans."""

    def __init__(self, store: ObjectStore, policy: Callable[[], NetworkPolicy], clock: Clock) -> None:
        self._store, self._policy, self._clock = store, policy, clock
        self._known: OrderedDict[tuple[str, str], identity_pb2.Envelope] = OrderedDict()
        self._looked: tuple[str, float] = ("", -ABSENT_S)
        self._present: frozenset[str] = frozenset()
        self._looking = asyncio.Lock()

    async def of(self, view: ModelView, pnode_id: str) -> identity_pb2.Envelope | None:
        """That of a PNode under the view's plan; None if the plan has none for it. Raises Unavailable, Corrupt."""
        digest = view.head.plan_digest
        key = (digest, pnode_id)
        if key in self._known or not digest:
            return self._known.get(key)
        if not view.hosted_by(pnode_id) and pnode_id not in await self._listed(view):
            return None
        try:
            stored = await self._store.get(keys.desired(view.model, digest, pnode_id), max_bytes=limits.MAX_ENVELOPE_BYTES)
        except NotFound:
            return None
        desired = open_desired(stored.data, self._policy(), view.model)
        if (desired.plan_digest, desired.pnode_id) != key or desired.sequence != view.head.plan_sequence:
            raise Corrupt("a desired state that belongs to another plan or PNode", code="wrong_desired")
        self._remember(key, identity_pb2.Envelope.FromString(stored.data))
        return self._known[key]

    def wrote(self, made: Published) -> None:
        """What was stored from here is not read back."""
        for pnode_id, one in made.desired.items():
            self._remember((str(made.stored.digest), pnode_id), one.envelope)

    def _remember(self, key: tuple[str, str], envelope: identity_pb2.Envelope) -> None:
        self._known[key] = envelope
        while len(self._known) > MAX_CACHED:
            self._known.popitem(last=False)

    async def _listed(self, view: ModelView) -> frozenset[str]:
        """PNodes for which the plan's directory holds one, as of at most `ABSENT_S` ago."""
        digest = view.head.plan_digest
        async with self._looking:
            now = self._clock.monotonic()
            if self._looked[0] != digest or now - self._looked[1] >= ABSENT_S:
                prefix = keys.desired_prefix(view.model, digest)
                self._present = frozenset(row.key.removeprefix(prefix) for row in await all_below(self._store, prefix))
                self._looked = (digest, now)
            return self._present
