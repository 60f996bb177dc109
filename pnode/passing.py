"""What this machine passes on for others that nobody can dial, where its owner lets it: a relay's desk in the daemon, at the owner's rate.

Off unless a rate is set, while the machine is paused or leaves, and while tests do not find that others can dial it; then whatever goes through ends at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final

from dcnr.ids import NodeId
from dcnr.ports import Clock
from membership.node import Membership
from membership.relay_desk import RelayDesk
from pnode.telling import Condition
from trust.network import NetworkPolicy
from trust.session import Peer

MAX_LISTENERS: Final = 64
MAX_CONNECTIONS: Final = 32
BYTES_PER_MBIT: Final = 125_000


class Passing:
    """One per daemon. ``mbit``: the owner's rate; ``may_now``: whether it may at the moment; ``tell`` records an event and tells everybody what is lent."""

    def __init__(
        self, mbit: float, membership: Membership, policy: Callable[[], NetworkPolicy], now: Condition, clock: Clock, *, may_now: Callable[[], bool],
        tell: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._tell = tell
        self._mbit, self._membership, self._policy, self._now, self._may_now = mbit, membership, policy, now, may_now
        self._desk = RelayDesk(
            clock, secrets.token_bytes, may_use=self.may_use, is_orchestrator=lambda name: policy().is_orchestrator(name),
            bytes_s=mbit * BYTES_PER_MBIT, together=1, max_listeners=MAX_LISTENERS, max_connections=MAX_CONNECTIONS,
        )  # fmt: skip

    def review(self) -> None:
        """Begins or ends where that is due. To be called every second or so."""
        self._now.num_passed_on = self._desk.num_connections
        rate = self._mbit if self._mbit and self._may_now() else 0.0
        if rate == self._now.relay_mbit:
            return
        self._now.relay_mbit = rate
        self._membership.servicer.relay = self._desk if rate else None
        if not rate:
            self._desk.end_all()
        self._tell(
            "passing_on_changed", f"what others say is passed on at {rate:g} Mbit/s" if rate else "nothing is passed on for others"
        )

    def others(self) -> list[tuple[NodeId, Sequence[str]]]:
        """PNodes that offer the same, with their addresses."""
        return [
            (one.node_id, tuple(one.advert.control_addresses))
            for one in self._membership.pnodes()
            if one.advert.capability.relay_mbit > 0 and one.advert.control_addresses
        ]

    def may_use(self, peer: Peer) -> bool:
        """Whether this machine knows of that node."""
        name = peer.pnode_id or peer.node_id
        return self._policy().is_orchestrator(name) or self._membership.find(name) is not None
