"""Whether others can dial a port of this machine, judged by what orchestrators found who tried. Pure.

One tester is believed neither alone nor at once: a port is given up, or told again, when more of those that were asked say so than say otherwise, twice in
a row; whoever says nothing certain counts for nothing. A port that was given up is told again after a time only, which grows each time that this was
wrong, so that nobody flaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final

from dcnr.ids import NodeId
from dcnr.v1 import membership_pb2
from trust.addresses import is_loopback, is_public

AGREE: Final = 2
"""Rounds in a row that change what is told."""
AGAIN_S: Final = 5.0
"""To the next round after one that speaks against what is told."""
OPEN_S: Final = 600.0
"""To the next round while a port is told."""
CLOSED_S: Final = 300.0
"""To the next round while it is not."""
UNTESTED_S: Final = 30.0
"""To the next round after one in which nobody said anything certain; twice as long after each further one, up to `OPEN_S`."""
HOLD_S: Final = 60.0
"""A port that was given up stays so at least this long, and twice as long each further time."""
MAX_HOLD_S: Final = 3600.0

REACHED: Final = membership_pb2.REACH_RESULT_REACHED
UNREACHED: Final = membership_pb2.REACH_RESULT_UNREACHED
UNSURE: Final = membership_pb2.REACH_RESULT_UNSURE
CERTAIN: Final = (REACHED, UNREACHED)


@dataclass(frozen=True, slots=True)
class Look:
    """What one tester found at ``host``, where it sees this machine; ``at_s`` monotonic."""

    tester: NodeId
    host: str
    control: membership_pb2.ReachResult.ValueType
    data: membership_pb2.ReachResult.ValueType
    at_s: float


@dataclass(frozen=True, slots=True)
class Where:
    """``told``: the addresses that others are told, as they resolve; ``own``: all addresses of this machine."""

    told: Set[str]
    own: Set[str]


def meant(look: Look, result: membership_pb2.ReachResult.ValueType, where: Where) -> membership_pb2.ReachResult.ValueType:
    """What a result at the address where the tester sees this machine says about the addresses that others are told.

    Seen elsewhere it says nothing, except where only private addresses are told and the one seen is not of this machine: a router stands in between. Where
    only loopback is told, whoever sees this machine elsewhere cannot dial it.
    """
    if result not in CERTAIN:
        return UNSURE
    if look.host in where.told:
        return result
    if where.told and all(is_loopback(host) for host in where.told) and not is_loopback(look.host):
        return UNREACHED
    if look.host in where.own or not where.told or any(is_public(host) for host in where.told):
        return UNSURE
    return UNREACHED


def from_outside(looks: Sequence[Look]) -> Sequence[Look]:
    """Without those of testers in the same house, if any tester is out on the internet; without those on this machine, if any is on another one."""
    elsewhere = [look for look in looks if not is_loopback(look.host)]
    return [look for look in elsewhere if is_public(look.host)] or elsewhere or looks


def verdict(results: Iterable[membership_pb2.ReachResult.ValueType]) -> bool | None:
    """Whether most of those that are certain reach the port; None where as many do as do not."""
    certain = [result for result in results if result in CERTAIN]
    reached = sum(result == REACHED for result in certain)
    return None if 2 * reached == len(certain) else 2 * reached > len(certain)


class Port:
    """One port of this machine: told to others at first, as its owner set it."""

    def __init__(self) -> None:
        self.is_told = True
        self._num_against = 0
        self._closed_at_s, self._hold_s = 0.0, HOLD_S / 2
        self._untested_s = UNTESTED_S / 2
        self._is_known = False

    def heard(self, found: bool | None, now_s: float) -> bool:
        """What a round came to; whether that changes what others are told."""
        self._is_known = found is not None
        self._untested_s = UNTESTED_S / 2 if self._is_known else min(OPEN_S, 2 * self._untested_s)
        if found is None:
            return False
        if found == self.is_told:
            self._num_against = 0
            return False
        self._num_against += 1
        if self._num_against < AGREE or (found and now_s < self._closed_at_s + self._hold_s):
            return False
        self._num_against, self.is_told = 0, found
        if not found:
            self._closed_at_s, self._hold_s = now_s, min(MAX_HOLD_S, 2 * self._hold_s)
        return True

    def forget(self) -> None:
        """What stands behind it is another one: what spoke against the port before counts no more."""
        self._num_against = 0

    @property
    def next_s(self) -> float:
        """How long to wait until the next round."""
        if not self._is_known:
            return max(UNTESTED_S, self._untested_s)
        if 0 < self._num_against < AGREE:
            return AGAIN_S
        return OPEN_S if self.is_told else CLOSED_S

    def check(self) -> None:
        """Asserts what must always hold."""
        assert self._num_against >= 0
        assert self._hold_s <= MAX_HOLD_S
        assert self.next_s >= AGAIN_S
