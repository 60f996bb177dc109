"""Standard gRPC health checking (``grpc.health.v1.Health/Check``) without its package; ``Watch`` is not implemented, which the standard allows.

The two messages have the wire form of protobuf's own wrappers: the request is one string in field 1, the answer one enum number in field 1.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import grpc
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from grpc import aio

from dcnr.errors import NotFound

SERVICE: Final = "grpc.health.v1.Health"
CHECK: Final = f"/{SERVICE}/Check"
SERVING: Final = 1
NOT_SERVING: Final = 2


class Health:
    """Says SERVING for the server (empty name) and each of its services until `stop` is called."""

    def __init__(self, services: Collection[str]) -> None:
        self._services, self._serving = services, True

    def stop(self) -> None:
        """From now on the answer is NOT_SERVING."""
        self._serving = False

    def register(self, server: aio.Server) -> None:
        """Adds the service to a server."""
        handler = grpc.unary_unary_rpc_method_handler(
            self._check, request_deserializer=StringValue.FromString, response_serializer=Int32Value.SerializeToString
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Check": handler}),))

    async def _check(self, request: StringValue, context: Any) -> Int32Value:
        if request.value and request.value not in self._services:
            raise NotFound("no such service here", code="unknown_service")
        return Int32Value(value=SERVING if self._serving else NOT_SERVING)
