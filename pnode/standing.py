"""The worker's standing: its delegation, renewed at half its life with the same key and incarnation, and where its replicas are told to live."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

from dcnr import limits
from dcnr.errors import DcnrError
from dcnr.ports import Clock
from dcnr.v1 import identity_pb2, local_pb2
from membership.node import Membership
from pnode.duties import Hosted
from pnode.supervisor import Worker
from trust.delegation import make_delegation
from trust.identity import NodeKey


class Standing:
    """One per daemon; `begin` for each worker, `keep` now and then."""

    def __init__(
        self,
        *,
        key: NodeKey,
        network_id: str,
        membership: Membership,
        host: str,
        send: Callable[[local_pb2.ToWorker], Awaitable[bool]],
        clock: Clock,
    ) -> None:
        self._key, self._network_id, self._membership, self._host = key, network_id, membership, host
        self._send, self._clock = send, clock
        self._worker: Worker | None = None
        self._delegation: identity_pb2.Envelope | None = None
        self._signed_at = self._published_at = 0.0
        self._published: frozenset[str] = frozenset()

    async def begin(self, worker: Worker) -> None:
        """A new worker has said hello: it gets its delegation, and everybody hears of it."""
        self._worker, self._published = worker, frozenset()
        self._sign(worker)
        await self._send(local_pb2.ToWorker(delegation=self._delegation))
        self._membership.update_self(delegation=self._delegation)

    def end(self) -> None:
        """The worker is gone."""
        self._worker = None

    async def keep(self, hosted: Sequence[Hosted]) -> None:
        """Renews the delegation at half its life; publishes locations when they are new or due. The directory being away is no trouble."""
        worker, now = self._worker, self._clock.monotonic()
        if worker is None or self._delegation is None:
            return
        if now - self._signed_at > limits.DELEGATION_LIFETIME_S / 2:
            await self.begin(worker)
        replicas = frozenset(item.assignment.replica for item in hosted)
        if replicas <= self._published and now - self._published_at < limits.DHT_REPUBLISH_S:
            return
        self._published, self._published_at = replicas, now
        for item in hosted:
            with contextlib.suppress(DcnrError):
                await self._membership.publish_location(item.model, item.assignment.replica, self._delegation)

    def _sign(self, worker: Worker) -> None:
        addresses = [f"{self._host}:{worker.hello.data_port}"]
        self._signed_at = self._clock.monotonic()
        self._delegation = make_delegation(
            self._key, self._network_id, worker.hello.public_key, worker.incarnation, addresses, self._membership.network_time()
        )
