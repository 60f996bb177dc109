"""What a worker's seats keep of texts between their passes: how many, how large, for whom and for how long. Pure.

A session belongs to one caller and one way through the pipeline: each of its seats keeps one thing for it, of a size that is known before it is taken.
Where there is no room, what was used longest ago gives way, unless it was used a moment ago: of more texts than there is room for some go on, and the
others bring their whole windows. Whoever does not find what was kept any more begins anew, so nothing here has to last.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from dcnr.errors import InvariantBroken
from pnode.seating import Key

T = TypeVar("T")
IDLE_S: Final = 60.0
"""What nobody went on with for so long is forgotten."""
FRESH_S: Final = 2.0
"""What was used within this time does not give way to a newcomer."""
MAX_KEPT: Final = 4096
"""Sessions, each counted once per seat, of one worker,"""
MAX_OF_A_CALLER: Final = MAX_KEPT // 2
"""and of one orchestrator."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """One session at one seat."""

    caller: str
    session: bytes
    seat: Key


@dataclass(slots=True)
class _Kept(Generic[T]):
    thing: T
    num_bytes: int
    used_s: float


class TextSessions(Generic[T]):
    """One per worker. ``T``: what is kept; it is let go of here, and whoever still computes with it holds it a moment longer."""

    def __init__(self, *, max_kept: int = MAX_KEPT, max_of_a_caller: int = MAX_OF_A_CALLER) -> None:
        self._max_kept, self._max_of_a_caller = max_kept, max_of_a_caller
        self._kept: OrderedDict[SessionKey, _Kept[T]] = OrderedDict()
        """Used longest ago first."""
        self._by_caller: dict[str, int] = {}
        self._max_bytes = 0
        self.num_bytes = 0
        self.num_evicted = 0
        """Gave way to others, or to less memory."""

    @property
    def num_kept(self) -> int:
        """Of all callers and seats."""
        return len(self._kept)

    def limit(self, max_bytes: int) -> None:
        """So much memory is lent from now on; what is above goes at once."""
        self._max_bytes = max_bytes
        while self.num_bytes > max_bytes:
            self._evict(next(iter(self._kept)))

    def begin(self, key: SessionKey, thing: T, num_bytes: int, now_s: float) -> bool:
        """Keeps ``thing`` in the place of what was kept under ``key``; False where there is no room."""
        self._drop(key)
        if num_bytes > self._max_bytes:
            return False
        while self._by_caller.get(key.caller, 0) >= self._max_of_a_caller:
            oldest = next(one for one in self._kept if one.caller == key.caller)
            if not self._gives_way(oldest, now_s):
                return False
        while len(self._kept) >= self._max_kept or self.num_bytes + num_bytes > self._max_bytes:
            if not self._gives_way(next(iter(self._kept)), now_s):
                return False
        self._kept[key] = _Kept(thing, num_bytes, now_s)
        self._by_caller[key.caller] = self._by_caller.get(key.caller, 0) + 1
        self.num_bytes += num_bytes
        return True

    def find(self, key: SessionKey, now_s: float) -> T | None:
        """What is kept under ``key``, used now."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        kept.used_s = now_s
        self._kept.move_to_end(key)
        return kept.thing

    def end(self, caller: str, session: bytes) -> None:
        """Nobody goes on with it."""
        for key in [key for key in self._kept if key.session == session and key.caller == caller]:
            self._drop(key)

    def leave(self, seat: Key) -> None:
        """That seat is gone."""
        for key in [key for key in self._kept if key.seat == seat]:
            self._drop(key)

    def review(self, now_s: float) -> None:
        """What is idle goes."""
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            if now_s - kept.used_s < IDLE_S:
                return
            self._drop(key)

    def by_seat(self) -> dict[Key, tuple[int, int]]:
        """How many are kept, and their bytes, of each seat that keeps some."""
        found: dict[Key, tuple[int, int]] = {}
        for key, kept in self._kept.items():
            count, num_bytes = found.get(key.seat, (0, 0))
            found[key.seat] = count + 1, num_bytes + kept.num_bytes
        return found

    def check(self) -> None:
        """Raises InvariantBroken where the books do not add up, or hold more than they may."""
        by_caller: dict[str, int] = {}
        for key in self._kept:
            by_caller[key.caller] = by_caller.get(key.caller, 0) + 1
        used = [kept.used_s for kept in self._kept.values()]
        sound = (
            self.num_bytes == sum(kept.num_bytes for kept in self._kept.values()) <= self._max_bytes
            and len(self._kept) <= self._max_kept
            and by_caller == self._by_caller
            and max(by_caller.values(), default=0) <= self._max_of_a_caller
            and used == sorted(used)
        )
        if not sound:
            raise InvariantBroken("the books of text sessions do not add up", code="bad_sessions")

    def _gives_way(self, key: SessionKey, now_s: float) -> bool:
        if now_s - self._kept[key].used_s < FRESH_S:
            return False
        self._evict(key)
        return True

    def _evict(self, key: SessionKey) -> None:
        self.num_evicted += 1
        self._drop(key)

    def _drop(self, key: SessionKey) -> None:
        kept = self._kept.pop(key, None)
        if kept is None:
            return
        self.num_bytes -= kept.num_bytes
        left = self._by_caller[key.caller] - 1
        self._by_caller[key.caller] = left
        if not left:
            del self._by_caller[key.caller]
