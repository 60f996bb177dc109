"""Which replica of a VNode takes which batches: everyone who knows the same shares finds the same owner, without asking anyone.

Batches are shared out in units, runs of ``unit_batches`` consecutive numbers: unit u is [u * unit_batches, (u + 1) * unit_batches). The
owner of a unit is drawn by weighted rendezvous hashing (Thaler & Ravishankar 1998; the score is that of Schindelhauer & Schomaker
2005): each replica's score for a unit is -weight / ln(h), h in (0, 1) from SHA-256 of unit and replica, and the highest score owns
it. A replica with weight w of W owns w/W of all units on average; where one replica joins, leaves or changes its weight, only units
from or to it move.

Every replica shares out anew with every plan, its own VNode's batches and those of each it reads from, and all of them at the same moment: that must cost
next to nothing. What is drawn by hashing depends on neither plan nor weights and is kept, and so are the newest results: replicas of one process
mostly ask for the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import numpy as np

from dcnr.errors import InvalidInput
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet

_HASH_BITS: Final = 52
MAX_DRAWS: Final = 64
"""Replicas whose draws are kept: 8 bytes for each unit of the job, so half a megabyte for a million batches in units of sixteen."""
MAX_SPLITS: Final = 32
"""Results that are kept."""


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


def check_unit(unit_batches: int) -> int:
    """The size of a unit. Raises InvalidInput (``bad_unit``) for one without batches."""
    if unit_batches < 1:
        raise InvalidInput(
            f"unit_batches is {unit_batches}: a unit has at least one batch",
            code="bad_unit",
            remedy="1 or more",
            field="unit_batches",
        )
    return unit_batches


def split(shares: Sequence[Share], num_batches: int, unit_batches: int) -> Mapping[ReplicaId, IntervalSet]:
    """The batches of [0, num_batches) that each replica owns: disjoint, and together everything unless all weights are 0.

    Raises InvalidInput for a unit of no batches. Where one replica has all the weight it owns everything, whatever the units.
    """
    check_unit(unit_batches)
    return _split(tuple(sorted(shares, key=lambda share: share.replica)), num_batches, unit_batches)


@lru_cache(maxsize=MAX_SPLITS)
def _split(shares: tuple[Share, ...], num_batches: int, unit_batches: int) -> Mapping[ReplicaId, IntervalSet]:
    owned = dict.fromkeys((share.replica for share in shares), IntervalSet.empty())
    weighty = [share for share in shares if share.weight > 0]
    if len(weighty) == 1:
        owned[weighty[0].replica] = IntervalSet.span(0, num_batches)
    elif weighty and num_batches > 0:
        owners = _owners(weighty, -(-num_batches // unit_batches))
        for index, share in enumerate(weighty):
            owned[share.replica] = _batches(owners == index, num_batches, unit_batches)
    return MappingProxyType(owned)


def _owners(weighty: Sequence[Share], num_units: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each unit, which of these owns it: they are in the order of their ids, of which the highest counts among equals."""
    best = -weighty[0].weight / _draws(weighty[0].replica, num_units)
    owners = np.zeros(num_units, np.int64)
    for index, share in enumerate(weighty[1:], start=1):
        scores = -share.weight / _draws(share.replica, num_units)
        owners[scores >= best] = index
        np.maximum(best, scores, out=best)
    return owners


def _batches(units: np.ndarray[tuple[int], np.dtype[np.bool_]], num_batches: int, unit_batches: int) -> IntervalSet:
    """The batches of those units: neighbouring units are one interval."""
    padded = np.concatenate(([False], units, [False]))
    edges = np.flatnonzero(padded[1:] != padded[:-1]) * unit_batches
    return IntervalSet(tuple(np.minimum(edges, num_batches).tolist()))


def owned(replica: ReplicaId, shares: Sequence[Share], num_batches: int, unit_batches: int) -> IntervalSet:
    """The batches that ``replica`` owns; none where the shares do not name it. Raises InvalidInput for a unit of no batches."""
    return split(shares, num_batches, unit_batches).get(replica, IntervalSet.empty())


def _score(unit: int, share: Share) -> float:
    return -share.weight / _draw(unit, share.replica)


def _draw(unit: int, replica: ReplicaId) -> float:
    """ln(h): below 0."""
    digest = hashlib.sha256(f"{unit}|{replica}".encode()).digest()
    number = int.from_bytes(digest[:8], "big") >> (64 - _HASH_BITS)
    return math.log((number + 0.5) / 2.0**_HASH_BITS)


@lru_cache(maxsize=MAX_DRAWS)
def _draws(replica: ReplicaId, num_units: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    draws = np.fromiter((_draw(unit, replica) for unit in range(num_units)), np.float64, num_units)
    draws.flags.writeable = False
    return draws
