"""`MemoryStore` behaves like the S3 adapter to the last precondition, in memory, with faults on demand: the store of the simulator.

ETags are the quoted MD5 of the bytes, as S3 stores make them: two equal bodies have equal ETags. A fault is decided per call by
a `Faults` port before anything happens; the store then acts the way a real one does (a timeout may hide a write that landed, a
torn upload is never visible).
"""

from __future__ import annotations

import asyncio
import bisect
import enum
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from dcnr.errors import Corrupt, NotFound, Stale, TimedOut, Unavailable
from dcnr.ports import Clock, ObjectInfo, Random, StoredObject

AFTER_ALL: Final = "\U0010ffff"
"""Greater than every character of a key."""
STORE_REMEDY = "nothing is lost and it is tried again by itself; see whether the store runs: orchestrator status"
FULL_WORDS = frozenset(
    ("InsufficientStorage", "QuotaExceeded", "BucketQuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded")
)


class Operation(enum.Enum):
    """The calls of the port."""

    GET = "get"
    HEAD = "head"
    PUT = "put"
    DELETE = "delete"
    LIST = "list"


class Fault(enum.Enum):
    """What may go wrong with one call."""

    NONE = "none"
    CONFLICT = "conflict"
    """409: nothing was written."""
    PRECONDITION = "precondition"
    """412 although the write landed: a proxy sent the request twice and passed on the second answer."""
    UNAVAILABLE = "unavailable"
    """503: nothing happened."""
    DENIED = "denied"
    """403: nothing happened, and nothing was said of what lies there."""
    TIMEOUT_BEFORE = "timeout_before"
    """No answer, and the write did not land."""
    TIMEOUT_AFTER = "timeout_after"
    """No answer, but the write landed."""
    TORN = "torn"
    """The connection broke half-way through the body: nothing becomes visible."""
    STALE_READ = "stale_read"
    """A read that answers with the previous version."""


class Faults(Protocol):
    """Decides what befalls a call; pure but for the randomness it is given."""

    def pick(self, operation: Operation, key: str, random: Random) -> Fault:
        """The fault for this call."""
        ...


@dataclass(frozen=True, slots=True)
class NoFaults:
    """A store that works."""

    def pick(self, operation: Operation, key: str, random: Random) -> Fault:
        """Always `Fault.NONE`."""
        return Fault.NONE


@dataclass(frozen=True, slots=True)
class RandomFaults:
    """Each call meets at most one fault, with the probabilities given per fault; ``only_prefix`` limits them to some keys."""

    rates: Mapping[Fault, float]
    only_prefix: str = ""

    def pick(self, operation: Operation, key: str, random: Random) -> Fault:
        """One draw per call; the order of faults is their order in `Fault`."""
        draw = random.random()
        if not key.startswith(self.only_prefix):
            return Fault.NONE
        for fault in Fault:
            draw -= self.rates.get(fault, 0.0)
            if draw < 0:
                return fault
        return Fault.NONE


@dataclass(slots=True)
class PlannedFaults:
    """Faults set by a test, each used once: the first entry whose operation and key prefix match."""

    plan: list[tuple[Operation, str, Fault]] = field(default_factory=list)

    def pick(self, operation: Operation, key: str, random: Random) -> Fault:
        """Takes the first matching entry out of the plan."""
        for position, (wanted, prefix, fault) in enumerate(self.plan):
            if wanted is operation and key.startswith(prefix):
                del self.plan[position]
                return fault
        return Fault.NONE


@dataclass(frozen=True, slots=True)
class _Version:
    data: bytes
    etag: str
    last_modified: float


class MemoryStore:
    """A `dcnr.ports.ObjectStore` in memory. ``delay`` is awaited twice per call (request, answer): a simulator orders them so."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        *,
        faults: Faults | None = None,
        delay: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._clock, self._random = clock, random
        self.faults: Faults = faults or NoFaults()
        self._delay = delay or _yield_once
        self._objects: dict[str, _Version] = {}
        self._order: list[str] = []
        """The keys in order, so that listing a prefix costs what it returns."""
        self._previous: dict[str, _Version | None] = {}

    def peek(self, key: str) -> bytes | None:
        """The bytes now under ``key``, without faults or delay: for checkers, not for protocol code."""
        version = self._objects.get(key)
        return version.data if version else None

    def keys(self) -> list[str]:
        """All keys in order, without faults or delay: for checkers."""
        return list(self._order)

    def rewind(self, key: str, data: bytes | None) -> None:
        """Puts other bytes (or nothing) under ``key``, as a restored backup does."""
        self._write(key, data)

    async def get(self, key: str, *, max_bytes: int) -> StoredObject:
        """The whole object; Corrupt if larger than ``max_bytes``."""
        version = await self._read(Operation.GET, key)
        if len(version.data) > max_bytes:
            raise too_large(key, len(version.data), max_bytes)
        return StoredObject(version.data, version.etag)

    async def get_range(self, key: str, *, first: int, num_bytes: int) -> bytes:
        """Part of the object."""
        version = await self._read(Operation.GET, key)
        return version.data[first : first + num_bytes]

    async def head(self, key: str) -> ObjectInfo:
        """Size, ETag and modification time."""
        version = await self._read(Operation.HEAD, key)
        return ObjectInfo(key, len(version.data), version.etag, version.last_modified)

    async def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        """Writes under the precondition; the check and the write are one step."""
        data = bytes(data)
        fault = await self._start(Operation.PUT, key)
        if fault in (Fault.TIMEOUT_BEFORE, Fault.TORN):
            await self._delay()
            raise timed_out("put", key)
        if fault is Fault.CONFLICT:
            raise conflict(key)
        current = self._objects.get(key)
        held = (not if_none_match or current is None) and (if_match is None or (current is not None and current.etag == if_match))
        if held:
            self._write(key, data)
        await self._delay()
        if fault is Fault.TIMEOUT_AFTER:
            raise timed_out("put", key)
        if not held or (fault is Fault.PRECONDITION and (if_match is not None or if_none_match)):
            raise precondition_failed(key)
        return etag_of(data)

    async def delete(self, key: str) -> None:
        """Removes the object; absent is fine."""
        fault = await self._start(Operation.DELETE, key)
        if fault not in (Fault.TIMEOUT_BEFORE, Fault.TORN, Fault.CONFLICT) and key in self._objects:
            self._write(key, None)
        await self._delay()
        if fault is Fault.CONFLICT:
            raise conflict(key)
        if fault in (Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER, Fault.TORN):
            raise timed_out("delete", key)

    async def list(self, prefix: str, *, max_keys: int = 1000, after: str = "") -> Sequence[ObjectInfo]:
        """Objects in key order, from the first key that sorts behind ``after``."""
        fault = await self._start(Operation.LIST, prefix)
        rows: list[ObjectInfo] = []
        for key in self._below(prefix, fault):
            version = self._version(key, fault)
            if version is not None and key > after and len(rows) < max_keys:
                rows.append(ObjectInfo(key, len(version.data), version.etag, version.last_modified))
        await self._delay()
        if fault in (Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER, Fault.TORN):
            raise timed_out("list", prefix)
        return rows

    async def _start(self, operation: Operation, key: str) -> Fault:
        fault = self.faults.pick(operation, key, self._random)
        await self._delay()
        if fault is Fault.UNAVAILABLE:
            raise unavailable(key, "503 SlowDown")
        if fault is Fault.DENIED:
            raise denied(key, "AccessDenied")
        return fault

    async def _read(self, operation: Operation, key: str) -> _Version:
        fault = await self._start(operation, key)
        version = self._version(key, fault)
        await self._delay()
        if fault in (Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER, Fault.TORN):
            raise timed_out(operation.value, key)
        if version is None:
            raise not_found(key)
        return version

    def _below(self, prefix: str, fault: Fault) -> Sequence[str]:
        """Keys that begin so, in order; a stale listing may also show what was deleted."""
        first = bisect.bisect_left(self._order, prefix)
        found = self._order[first : bisect.bisect_left(self._order, prefix + AFTER_ALL, first)]
        if fault is Fault.STALE_READ:
            found = sorted({*found, *(key for key in self._previous if key.startswith(prefix))})
        return found

    def _version(self, key: str, fault: Fault) -> _Version | None:
        if fault is Fault.STALE_READ and key in self._previous:
            return self._previous[key]
        return self._objects.get(key)

    def _write(self, key: str, data: bytes | None) -> None:
        self._previous[key] = self._objects.get(key)
        if data is None:
            if self._objects.pop(key, None) is not None:
                del self._order[bisect.bisect_left(self._order, key)]
        else:
            if key not in self._objects:
                bisect.insort(self._order, key)
            self._objects[key] = _Version(data, etag_of(data), self._clock.wall())


async def _yield_once() -> None:
    await asyncio.sleep(0)


def etag_of(data: bytes) -> str:
    """The ETag of a body that was uploaded in one piece: its quoted MD5 (a name for a version, not a safeguard)."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def not_found(key: str) -> NotFound:
    """404."""
    return NotFound(f"no object {key} in the store", code="no_such_object", key=key)


def precondition_failed(key: str) -> Stale:
    """412."""
    return Stale(f"the store's {key} is not what the write expected", code="precondition_failed", key=key)


def conflict(key: str) -> Stale:
    """409."""
    return Stale(f"another write of {key} was under way", code="conflict", key=key)


def unavailable(key: str, why: str) -> Unavailable:
    """503, or not reached."""
    return Unavailable(f"the store could not serve {key}: {why}", code="store_unavailable", key=key, remedy=STORE_REMEDY)


def denied(key: str, why: str) -> Unavailable:
    """401 or 403: keys that were changed, clocks that differ, a store that has just begun. Nothing is said of what lies there, so nothing is judged by it."""
    return Unavailable(
        f"the store refused {key}: {why}", code="store_denied", key=key,
        remedy="check the store's credentials, its clock and this machine's; it is tried again by itself",
    )  # fmt: skip


def is_full(status: int, word: str) -> bool:
    """Whether an answer says that there is no room: 507, or one of the words that S3 stores have for it."""
    return status == 507 or word in FULL_WORDS


def store_full(key: str, why: str) -> Unavailable:
    """507, or a quota that is used up: nothing was written."""
    return Unavailable(
        f"the store is full ({why}): it did not take {key}", code="store_full", key=key,
        remedy="free space in the store or raise its quota: what waits is brought again by itself",
    )  # fmt: skip


def timed_out(operation: str, key: str) -> TimedOut:
    """No answer: for a write the outcome is unknown."""
    return TimedOut(f"the store did not answer {operation} {key} in time", code="store_timeout", key=key, remedy=STORE_REMEDY)


def too_large(key: str, size_bytes: int, max_bytes: int) -> Corrupt:
    """The object is larger than the reader allows."""
    return Corrupt(f"{key} has {size_bytes} bytes, at most {max_bytes} are allowed", code="object_too_large", key=key)
