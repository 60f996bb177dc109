"""The daemon's side of donations: asks another PNode's worker for a state and keeps what it gives only if it has the digest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dcnr.errors import Unavailable
from dcnr.ids import NodeId
from dcnr.rpc.connection import Connection
from dcnr.v1 import data_pb2, vnode_pb2
from membership.relays import RelayDialer
from pnode.cache import ObjectCache
from pnode.donors import receive
from trust.records import VerifiedAdvert

Find = Callable[[str], VerifiedAdvert | None]
"""The newest advert of a node, as far as it is known here."""


class Gifts:
    """`pnode.provision.Donated`, over the data plane and into the cache."""

    def __init__(self, dialer: RelayDialer, network_id: str, node_id: NodeId, find: Find, cache: ObjectCache) -> None:
        self._dialer, self._network_id, self._node_id, self._find, self._cache = dialer, network_id, node_id, find, cache

    async def state(self, pnode_id: str, ref: data_pb2.ObjectRef, size_bytes: int) -> Path:
        """A local file with that state. Raises Unavailable (``no_donor``), Corrupt (``wrong_digest``), and what the donor or the line says."""
        advert = self._find(pnode_id) if pnode_id != self._node_id else None
        worker = advert.delegation if advert is not None else None
        if worker is None:
            raise Unavailable(f"{pnode_id[:8]} is not known here, or has no worker", code="no_donor")
        request = vnode_pb2.DonateRequest(network_id=self._network_id, model=ref.model, vnode=ref.owner, digest=ref.digest)

        async def give(destination: Path) -> None:
            await receive(self._dial, worker, request, size_bytes=size_bytes, destination=destination)

        return await self._cache.given(ref, size_bytes, give)

    async def _dial(self, worker_id: NodeId, addresses: Sequence[str]) -> Connection:
        return await self._dialer.connect(worker_id, addresses, own_connection=True)
