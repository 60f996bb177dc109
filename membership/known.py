"""What a node has on a stretch of the ring of ids, as an exchange tells it: at length, or briefly to a partner that reads that. Pure.

Briefly, an id is four bytes of a keyed hash, under another key for each exchange: two ids that are one under a key are two under the next, and nobody can make
an id that hides another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from dcnr.errors import InvalidInput
from dcnr.ids import NodeId
from dcnr.v1 import membership_pb2
from membership.ring import WHOLE, Stretch

MAX_KNOWN_PER_EXCHANGE: Final = 1024
SALT_BYTES: Final = 8
MARK_BYTES: Final = 4

Order = tuple[int, int]
"""Of a node's adverts: incarnation and sequence."""


@dataclass(frozen=True, slots=True)
class Known:
    """Orders of adverts by node id, on ``stretch``; ``room``: for so many PNodes besides there is room, None: for all."""

    orders: Mapping[str, Order] = field(default_factory=dict)
    stretch: Stretch = WHOLE
    room: int | None = None
    salt: bytes = bytes(SALT_BYTES)
    """Of the marks that stand for ids where it is told briefly."""
    is_brief: bool = False
    """Whether ``orders`` are by mark instead of by node id."""

    def order_of(self, node_id: NodeId | str) -> Order | None:
        """Of the newest advert that is known of a node."""
        return self.orders.get(_mark_of(node_id, self.salt).hex() if self.is_brief else node_id)

    def put_into(self, request: membership_pb2.ExchangeRequest, *, briefly: bool) -> None:
        """Says so in a request."""
        request.known_from, request.known_before = self.stretch.first, self.stretch.before
        if self.room is not None:
            request.room = self.room
        if not briefly:
            request.known.extend(
                membership_pb2.KnownNode(node_id=node_id, incarnation=order[0], sequence=order[1])
                for node_id, order in self.orders.items()
            )
            return
        request.known_briefly.CopyFrom(
            membership_pb2.KnownBriefly(
                salt=self.salt,
                marks=b"".join(_mark_of(node_id, self.salt) for node_id in self.orders),
                incarnations=[order[0] for order in self.orders.values()],
                sequences=[order[1] for order in self.orders.values()],
            )
        )

    @classmethod
    def told(cls, request: membership_pb2.ExchangeRequest) -> Self:
        """What a request says. Raises InvalidInput where it says too much (``exchange_too_large``) or nothing that can be read (``bad_known``)."""
        stretch, room = Stretch(request.known_from, request.known_before), request.room if request.HasField("room") else None
        brief, salt = request.known_briefly, request.known_briefly.salt
        if max(len(request.known), len(brief.incarnations)) > MAX_KNOWN_PER_EXCHANGE:
            raise InvalidInput("more known nodes than an exchange may hold", code="exchange_too_large")
        if not request.HasField("known_briefly"):
            return cls({one.node_id: (one.incarnation, one.sequence) for one in request.known}, stretch, room)
        count = len(brief.incarnations)
        if len(salt) != SALT_BYTES or len(brief.marks) != count * MARK_BYTES or len(brief.sequences) != count:
            raise InvalidInput(
                f"what is known briefly needs a salt of {SALT_BYTES} bytes, and of each node {MARK_BYTES} bytes and two numbers",
                code="bad_known",
            )
        marks = [brief.marks[at : at + MARK_BYTES].hex() for at in range(0, len(brief.marks), MARK_BYTES)]
        orders = dict(zip(marks, zip(brief.incarnations, brief.sequences, strict=True), strict=True))
        return cls(orders, stretch, room, salt, is_brief=True)


NOTHING: Final = Known()


def _mark_of(node_id: str, salt: bytes) -> bytes:
    return hashlib.blake2b(node_id.encode(), key=salt, digest_size=MARK_BYTES).digest()
