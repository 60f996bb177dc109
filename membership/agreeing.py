"""Two nodes that meet end with the same network document: whoever called gives its own to who has an older one, or takes the newer one.

The caller alone acts, so that it works for nodes that nobody can dial. What comes is verified by `trust.in_force.InForce`; a partner that tells another
version at each exchange is believed once in `PAUSE_S`, and what it then sends is bounded before it is parsed.
"""

from __future__ import annotations

from typing import Final

import structlog

from dcnr.errors import DcnrError
from dcnr.ports import Clock
from dcnr.v1 import membership_pb2
from membership.partners import Partners
from trust.in_force import InForce
from trust.rates import Rate, TokenBuckets
from trust.records import VerifiedAdvert

PAUSE_S: Final = 10.0
_log = structlog.get_logger("membership")


class Agreeing:
    """One per node; `with_partner` is called after each exchange."""

    def __init__(self, network: InForce, partners: Partners, clock: Clock) -> None:
        self._network, self._partners, self._clock = network, partners, clock
        self._asked = TokenBuckets(Rate(per_s=1.0 / PAUSE_S, burst=1.0))

    async def with_partner(self, partner: VerifiedAdvert, version: int) -> None:
        """``version``: what that partner says it has; 0 where it does not say. A partner that fails or lies is no error here."""
        own = self._network.policy
        if version in (0, own.document.version) or self._asked.wait_s(partner.node_id, self._clock.monotonic()):
            return
        history = own.history if version < own.document.version else ()
        request = membership_pb2.DocumentRequest(version=own.document.version, history=history)
        try:
            response = await self._partners.document(partner, request)
            self._network.take(response.history, now_wall=self._clock.wall())
        except DcnrError as error:
            _log.debug("document_not_agreed", partner=partner.node_id, code=error.code, reason=error.message)
