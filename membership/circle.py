"""Whom a node exchanges with: a few nodes, each for a while, over connections that stay. Pure.

A new connection is a TLS handshake, a session and some 8 kB on a volunteer's line, so partners drawn from the whole view each time cost more than all that is
exchanged with them. A circle is drawn from the view, and its oldest member makes room for another one from time to time: what links the circles of all
nodes stays a random graph, on which news spreads in as many rounds as on a complete one, but for a constant (HyParView's active view: Leitão, Pereira and
Rodrigues, DSN 2007, section 4). Who behaves how has no influence on how long it stays, so nobody can fill a circle by being quick, nor by having others
in it fail: the oldest goes when its time has come, however many left before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from dcnr.ids import NodeId
from dcnr.ports import Random
from trust.records import VerifiedAdvert

CIRCLE: Final = 8
"""Nodes in a circle."""
TURN_S: Final = 30.0
"""So often another node takes the place of the oldest."""


class Circle:
    """Of one node; its view says who is there."""

    def __init__(self) -> None:
        self._ids: list[NodeId] = []
        """The oldest first."""
        self._turned_s = float("-inf")

    @property
    def ids(self) -> Collection[NodeId]:
        """Who is in it."""
        return frozenset(self._ids)

    def partners(
        self, rng: Random, willing: Sequence[VerifiedAdvert], again: Collection[str], count: int, now_s: float
    ) -> list[VerifiedAdvert]:
        """Up to ``count`` of those that are ``willing``: one of them that did not answer and is due ``again``, so that halves of a network that was parted
        find one another as soon as they may; the others from the circle, from which who is not willing is gone at once.
        """
        there = {advert.node_id: advert for advert in willing}
        self._turn(rng, there, now_s)
        due = sorted(there.keys() & set(again))
        first = rng.sample(due, min(1, len(due), count))
        rest = [node_id for node_id in self._ids if node_id not in first]
        return [there[node_id] for node_id in first + rng.sample(rest, min(count - len(first), len(rest)))]

    def _turn(self, rng: Random, there: Collection[NodeId], now_s: float) -> None:
        self._ids = [node_id for node_id in self._ids if node_id in there]
        outside = [node_id for node_id in there if node_id not in self._ids]
        if len(there) > CIRCLE and now_s >= self._turned_s + TURN_S:
            del self._ids[:1]
            self._turned_s = now_s
        self._ids += rng.sample(outside, min(CIRCLE - len(self._ids), len(outside)))
