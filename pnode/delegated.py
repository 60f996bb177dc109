"""The worker's delegation, renewed at half its life with the same key and incarnation, and where its replicas are told to live.

Its life is counted by network time, in which others judge it: a monotonic clock may stand still while the machine sleeps, and a wall clock may have been
wrong when it was signed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from dcnr import limits
from dcnr.errors import DcnrError
from dcnr.ports import Clock
from dcnr.v1 import identity_pb2, local_pb2
from membership.node import Membership
from pnode.models import Hosted
from pnode.supervisor import Worker
from trust.addresses import join_address
from trust.delegation import make_delegation
from trust.identity import NodeKey

KEEP_S: Final = 1.0
"""Between one look at what is due and the next."""


class Delegated:
    """One per daemon; `begin` for each worker, `run` beside everything else."""

    def __init__(
        self,
        *,
        key: NodeKey,
        network_id: str,
        membership: Membership,
        host: Callable[[], str],
        near_host: Callable[[], str],
        send: Callable[[local_pb2.ToWorker], Awaitable[bool]],
        clock: Clock,
    ) -> None:
        """``host``: where others dial the worker now; ``near_host``: where machines of the same house do, though nobody else can. Empty: they cannot."""
        self._key, self._network_id, self._membership = key, network_id, membership
        self._host, self._near_host = host, near_host
        self._send, self._clock = send, clock
        self._worker: Worker | None = None
        self._delegation: identity_pb2.Envelope | None = None
        self._signed_s = self._signed_wall = 0.0
        self._published: dict[str, float] = {}
        """By replica, when the directory last took its location."""
        self._locations: dict[str, str] = {}
        """Replicas with their models, of which something was published."""

    @property
    def delegation(self) -> identity_pb2.Envelope | None:
        """Of the worker that runs; None where none does."""
        return self._delegation if self._worker is not None else None

    async def begin(self, worker: Worker) -> None:
        """A new worker has said hello: it gets its delegation, and everybody hears of it."""
        self._worker, self._published = worker, {}
        self._sign(worker)
        await self._send(local_pb2.ToWorker(delegation=self._delegation))
        self._membership.update_self(delegation=self._delegation)

    @property
    def data_port(self) -> int:
        """Of the worker that runs; 0 where none does."""
        return self._worker.hello.data_port if self._worker is not None else 0

    async def renew(self) -> None:
        """Others dial the worker elsewhere from now on, or cannot any more."""
        if self._worker is not None:
            await self.begin(self._worker)

    async def woke_up(self) -> None:
        """This machine stood still: everybody hears that it is here, its worker under a delegation that is good."""
        if not await self._renewed():
            self._membership.update_self()

    def end(self) -> None:
        """The worker is gone, and its replicas live nowhere."""
        self._worker = None
        for replica, model in self._locations.items():
            self._membership.withdraw_location(model, replica)
        self._locations.clear()

    async def run(self, hosted: Callable[[], Sequence[Hosted]]) -> None:
        """Keeps all, one thing after the other, until cancelled. The directory may take seconds for each replica: nothing else may wait for this."""
        while True:
            await asyncio.sleep(KEEP_S)
            await self.keep(hosted())

    async def keep(self, hosted: Sequence[Hosted]) -> None:
        """Renews the delegation at half its life, and where it begins only later; publishes locations until somebody keeps them, and again when they are due;
        withdraws those of replicas that are not here any more. The directory being away is no trouble. A worker that goes meanwhile takes the rest with it.
        """
        worker = self._worker
        if worker is None or self._delegation is None:
            return
        await self._renewed()
        if self._worker is not worker:
            return
        now = self._clock.monotonic()
        here = {item.assignment.replica: item.model for item in hosted}
        for replica in [replica for replica in self._locations if replica not in here]:
            self._membership.withdraw_location(self._locations.pop(replica), replica)
            self._published.pop(replica, None)
        for replica, model in sorted(here.items()):
            if self._worker is not worker:
                return
            if now - self._published.get(replica, float("-inf")) < limits.DHT_REPUBLISH_S:
                continue
            self._locations[replica] = model
            with contextlib.suppress(DcnrError):
                delegation = self._delegation
                if await self._membership.publish_location(model, replica, delegation) and delegation is self._delegation:
                    self._published[replica] = now

    async def _renewed(self) -> bool:
        """Whether a new delegation was due, and sent."""
        if self._worker is None:
            return False
        age_s, network_time = self._clock.monotonic() - self._signed_s, self._membership.network_time()
        earliest, half_s = self._signed_wall - limits.MAX_CLOCK_SKEW_S, limits.DELEGATION_LIFETIME_S / 2
        if age_s <= half_s and earliest <= network_time < self._signed_wall + half_s:
            return False
        await self.begin(self._worker)
        return True

    def _sign(self, worker: Worker) -> None:
        addresses, near = (
            [join_address(host, worker.hello.data_port)] if host else [] for host in (self._host(), self._near_host())
        )
        self._signed_s, self._signed_wall = self._clock.monotonic(), self._membership.network_time()
        self._delegation = make_delegation(
            self._key,
            self._network_id,
            worker.hello.public_key,
            worker.incarnation,
            addresses,
            self._signed_wall,
            near=near,
        )
