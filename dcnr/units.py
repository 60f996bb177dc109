"""Which replica of a VNode takes which batches: everyone who knows the same shares finds the same owner, without asking anyone.

Batches are shared out in units, runs of ``unit_batches`` consecutive numbers: unit u is [u * unit_batches, (u + 1) * unit_batches). The
owner of a unit is drawn by weighted rendezvous hashing (Thaler & Ravishankar 1998; the score is that of Schindelhauer & Schomaker
2005): each replica's score for a unit is -weight / ln(h), h in (0, 1) from SHA-256 of unit and replica, and the highest score owns
it. A replica with weight w of W owns w/W of all units on average; where one replica joins, leaves or changes its weight, only units
from or to it move.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dcnr.errors import InvalidInput
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet

_HASH_BITS: Final = 52


@dataclass(frozen=True, slots=True)
class Share:
    """A replica of a VNode with its weight: 0 owns nothing (a standby). Raises InvalidInput for a weight that is none."""

    replica: ReplicaId
    weight: float

    def __post_init__(self) -> None:
        if not (0 <= self.weight < math.inf):
            raise InvalidInput(f"a weight is at least 0 and finite, not {self.weight!r}", code="bad_weight", field="weight")


def owner_of(unit: int, shares: Sequence[Share]) -> ReplicaId | None:
    """Who owns that unit; None where no share has a weight. The order of ``shares`` does not matter."""
    candidates = [(_score(unit, share), share.replica) for share in shares if share.weight > 0]
    return max(candidates)[1] if candidates else None


def split(shares: Sequence[Share], num_batches: int, unit_batches: int) -> dict[ReplicaId, IntervalSet]:
    """The batches of [0, num_batches) that each replica owns: disjoint, and together everything unless all weights are 0.

    Raises InvalidInput for a unit of no batches. Where one replica has all the weight it owns everything, whatever the units.
    """
    if unit_batches < 1:
        raise InvalidInput("a unit has at least one batch", code="bad_unit", field="unit_batches")
    owned: dict[ReplicaId, list[tuple[int, int]]] = {share.replica: [] for share in shares}
    weighty = [share for share in shares if share.weight > 0]
    if len(weighty) == 1:
        owned[weighty[0].replica] = [(0, num_batches)]
    elif weighty:
        for unit, first in enumerate(range(0, num_batches, unit_batches)):
            owner = owner_of(unit, weighty)
            if owner is not None:
                owned[owner].append((first, min(first + unit_batches, num_batches)))
    return {replica: IntervalSet.of(*pairs) for replica, pairs in owned.items()}


def owned(replica: ReplicaId, shares: Sequence[Share], num_batches: int, unit_batches: int) -> IntervalSet:
    """The batches that ``replica`` owns; none where the shares do not name it. Raises InvalidInput for a unit of no batches."""
    return split(shares, num_batches, unit_batches).get(replica, IntervalSet.empty())


def _score(unit: int, share: Share) -> float:
    digest = hashlib.sha256(f"{unit}|{share.replica}".encode()).digest()
    number = int.from_bytes(digest[:8], "big") >> (64 - _HASH_BITS)
    return -share.weight / math.log((number + 0.5) / 2.0**_HASH_BITS)
