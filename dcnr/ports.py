"""What cores and shells ask of the world outside: time, randomness, objects. Adapters live elsewhere; tests run one suite over all of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

Random = random.Random
"""Seeded source of randomness, one per purpose, given through constructors."""


class Clock(Protocol):
    """Two clocks: ``monotonic`` for terms and timeouts, ``wall`` (seconds since 1970 UTC) for what others read."""

    def monotonic(self) -> float:
        """Seconds that never run backwards; meaningful only inside this process."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 UTC, as this machine believes."""
        ...


@runtime_checkable
class DoubtingClock(Clock, Protocol):
    """One that notices where its wall clock was set, or the machine slept."""

    @property
    def is_unsure(self) -> bool:
        """Whether nobody has said yet which of the two: by its wall time nothing is ended or thrown away."""
        ...


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Bytes of an object together with the ETag they had when read."""

    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One row of a listing or a HEAD request. ``last_modified`` is the store's own clock, seconds since 1970."""

    key: str
    size_bytes: int
    etag: str
    last_modified: float


class ObjectStore(Protocol):
    """An S3-compatible store with conditional writes.

    Every method is bounded in time by the adapter and raises: `dcnr.errors.Unavailable` (not reached, denied, 503, timeout: for a write the
    outcome is *unknown*), `dcnr.errors.NotFound` (get, head), `dcnr.errors.Stale` with code ``precondition_failed`` (412) or ``conflict`` (409).
    Keys come from `dataservice.keys` only.
    """

    async def get(self, key: str, *, max_bytes: int) -> StoredObject:
        """The whole object. Raises Corrupt if it is larger than ``max_bytes`` (checked before the body is read)."""
        ...

    async def get_range(self, key: str, *, first: int, num_bytes: int) -> bytes:
        """``num_bytes`` (at least 1) from offset ``first`` on, fewer where the object ends before; empty where it ends before ``first``."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Size, ETag and modification time."""
        ...

    async def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """Writes and returns the new ETag. ``if_match``: only over that ETag; ``if_none_match``: only if absent.

        Exactly one attempt is made: the client library's own retries are off.
        """
        ...

    async def delete(self, key: str) -> None:
        """Removes the object; absent is fine."""
        ...

    async def list(self, prefix: str, *, max_keys: int = 1000, after: str = "") -> Sequence[ObjectInfo]:
        """Up to ``max_keys`` objects whose key starts with ``prefix``, in key order, from the first key that sorts behind ``after``."""
        ...
