"""The one service of the data plane, as the worker serves it: Links, merges, donations and questions, each only to whoever has a session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from dcnr.rpc.guard import peer_of
from dcnr.v1 import vnode_pb2, vnode_pb2_grpc
from pnode.donors import Donor
from pnode.infer_desk import InferDesk
from pnode.links import SERVICE, LinkService
from pnode.merge_calls import serve_merge
from pnode.merge_desk import MergeDesk
from pnode.uplink import Uplink


class DataPlane(vnode_pb2_grpc.VNodeServiceServicer):
    """``peer`` names the PNode behind a call's session or raises Refused; ``desk`` finds the hosted replica that is asked to merge."""

    def __init__(
        self, links: LinkService, *, peer: Callable[[Any], str], desk: Callable[[str], MergeDesk], donor: Donor, uplink: Uplink,
        infer: InferDesk,
    ) -> None:  # fmt: skip
        self._links, self._peer, self._desk, self._donor, self._uplink, self._infer = links, peer, desk, donor, uplink, infer

    def add_to(self, server: Any) -> None:
        """Serves the contract's methods; messages of a Link and of an Infer stream come and go as bytes."""
        streams = {name: grpc.stream_stream_rpc_method_handler(getattr(self, name)) for name in ("Link", "Infer")}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, streams),))  # the first one found is used
        vnode_pb2_grpc.add_VNodeServiceServicer_to_server(self, server)
        server.add_registered_method_handlers(SERVICE, streams)  # the last one registered is used, before all others

    async def Link(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # a stream handler may write itself
        """See `pnode.links`."""
        await self._links.serve(request_iterator, context)

    async def Infer(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # a stream handler may write itself
        """See `pnode.infer_desk`."""
        await self._infer.serve(context, peer_of(context))

    def Merge(self, request_iterator: Any, context: Any) -> AsyncIterator[vnode_pb2.MergeResponse]:
        """See `pnode.merge_calls`."""
        return serve_merge(request_iterator, self._peer(context), self._desk, self._uplink)

    def Donate(self, request: vnode_pb2.DonateRequest, context: Any) -> AsyncIterator[vnode_pb2.DonateResponse]:
        """See `pnode.donors`."""
        return self._donor.give(request, self._peer(context))
