"""Certificates that nodes showed or are said to show: who knows the one of a node pins it without fetching it first, which saves two round trips.

Nobody is believed: a certificate counts for the id of its key, and whoever shows it has to hold that key. One that turns out not to be shown is fetched.
"""

from __future__ import annotations

from typing import Final

from dcnr.errors import Corrupt
from dcnr.ids import NodeId
from trust.tls import certificate_id

MAX_KNOWN: Final = 1024


class Certificates:
    """Of one process, in DER; those learned longest ago give way."""

    def __init__(self) -> None:
        self._known: dict[NodeId, bytes] = {}

    def of(self, node_id: NodeId) -> bytes | None:
        """The one of that node."""
        return self._known.get(node_id)

    def shown(self, node_id: NodeId, certificate: bytes) -> None:
        """That node showed it, and its key is that node's."""
        self._known.pop(node_id, None)
        self._known[node_id] = certificate
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def told(self, node_id: NodeId, certificate: bytes) -> None:
        """Somebody says that the node shows it: counts where it is of the node's key, and the node showed us none."""
        if not certificate or node_id in self._known:
            return
        try:
            is_its = certificate_id(certificate) == node_id
        except Corrupt:
            return
        if is_its:
            self.shown(node_id, certificate)
