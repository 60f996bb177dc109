"""Messages for PNodes whose control streams end here: who has something to say to one need not know its stream."""

from __future__ import annotations

from collections.abc import Callable

from dcnr.errors import RemoteFault
from dcnr.v1 import orchestrator_pb2

Put = Callable[[orchestrator_pb2.OrchestratorMessage], None]
"""Raises RemoteFault where the PNode does not read."""


class Mailbox:
    """By PNode: its newest stream."""

    def __init__(self) -> None:
        self._streams: dict[str, Put] = {}

    def opened(self, node_id: str, put: Put) -> None:
        """A stream begins; an older one of that PNode gets nothing more."""
        self._streams[node_id] = put

    def closed(self, node_id: str, put: Put) -> None:
        """That stream is over."""
        if self._streams.get(node_id) is put:
            del self._streams[node_id]

    def send(self, node_id: str, message: orchestrator_pb2.OrchestratorMessage) -> bool:
        """Whether the message is on its way; False where that PNode has no stream here, or does not read it."""
        put = self._streams.get(node_id)
        if put is None:
            return False
        try:
            put(message)
        except RemoteFault:
            return False
        return True
