"""Answers too large to be told in JSON: kept for a while, for the key that asked, and fetched as they are.

What is kept is bounded for each key and altogether. A result is named by 128 random bits and given to nobody but the key that it was made for; it is gone when
its time is up, when that key has asked for more than is kept for one, and with the gateway.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dcnr import limits
from dcnr.errors import NotFound, Unavailable
from dcnr.ports import Clock

KEPT_S: Final = 600.0
MAX_KEY_BYTES: Final = 32 * limits.MIB
MAX_KEPT_BYTES: Final = 256 * limits.MIB
_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Result:
    """One answer that is kept. ``until_s`` is the clock's monotonic time, ``expires_unix_ms`` the same for people."""

    id: str
    key: str
    content: bytes
    sha256: str
    until_s: float
    expires_unix_ms: int


class Results:
    """The results of one gateway. ``rng`` gives that many random bytes."""

    def __init__(self, clock: Clock, rng: Callable[[int], bytes]) -> None:
        self._clock, self._rng = clock, rng
        self._kept: OrderedDict[str, Result] = OrderedDict()
        self.num_bytes = 0

    def keep(self, key: str, content: bytes) -> Result:
        """Keeps ``content`` for that key; its oldest ones make room. Raises Unavailable (``results_full``) where all keys together have too much."""
        now = self._clock.monotonic()
        self._forget([one.id for one in self._kept.values() if one.until_s <= now])
        mine = [one for one in self._kept.values() if one.key == key]
        over = sum(len(one.content) for one in mine) + len(content) - MAX_KEY_BYTES
        for one in mine:
            if over > 0:
                over -= len(one.content)
                self._forget([one.id])
        if self.num_bytes + len(content) > MAX_KEPT_BYTES:
            raise Unavailable("too many large answers wait to be fetched", code="results_full", retry_after_s=KEPT_S / 10)
        expires_unix_ms = int(1000 * (self._clock.wall() + KEPT_S))
        made = Result(self._rng(_ID_BYTES).hex(), key, content, hashlib.sha256(content).hexdigest(), now + KEPT_S, expires_unix_ms)
        self._kept[made.id] = made
        self.num_bytes += len(content)
        return made

    def find(self, key: str, result_id: str) -> Result:
        """The result of that name, if that key asked for it and its time is not up. Raises NotFound (``no_such_result``)."""
        found = self._kept.get(result_id)
        if found is None or found.key != key or found.until_s <= self._clock.monotonic():
            raise NotFound(
                f"there is no result {result_id}, or no longer", code="no_such_result",
                remedy=f"ask again: large answers are kept for {KEPT_S:g} s, at the gateway that gave them",
            )  # fmt: skip
        return found

    def _forget(self, ids: list[str]) -> None:
        for name in ids:
            self.num_bytes -= len(self._kept.pop(name).content)
