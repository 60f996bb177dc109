"""What goes into and comes out of `HeadCore`, and the times of a term. Events carry the monotonic time at which they happened."""

from __future__ import annotations

from dataclasses import dataclass

from dcnr import limits
from dcnr.v1 import model_pb2


@dataclass(frozen=True, slots=True)
class HeadTimes:
    """The term's times in seconds; see limits."""

    ttl_s: float = limits.HEAD_TTL_S
    renew_s: float = limits.HEAD_RENEW_S
    poll_s: float = limits.HEAD_POLL_S
    request_timeout_s: float = limits.STORE_TIMEOUT_S

    @property
    def stop_s(self) -> float:
        """After sending the last successful renewal the holder decides for this long."""
        return self.ttl_s * limits.HEAD_STOP_FRACTION

    @property
    def take_s(self) -> float:
        """A taker sees one ETag for this long first."""
        return self.ttl_s * limits.HEAD_TAKE_FRACTION

    @property
    def retry_s(self) -> float:
        """After a request without a plain answer the next of its kind waits this long."""
        return self.ttl_s / 32

    @property
    def gap_s(self) -> float:
        """Successful GETs further apart than this start the taker's wait again."""
        return self.ttl_s / 4 + self.request_timeout_s


# Events


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes; ``wall_unix_ms`` is for people only."""

    now: float
    wall_unix_ms: int


@dataclass(frozen=True, slots=True)
class GetAnswered:
    """The outstanding GET brought an object."""

    now: float
    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class GetAbsent:
    """The outstanding GET found nothing (404 and nothing else)."""

    now: float


@dataclass(frozen=True, slots=True)
class GetFailed:
    """The outstanding GET brought nothing."""

    now: float
    reason: str


@dataclass(frozen=True, slots=True)
class PutAnswered:
    """The outstanding PUT was acknowledged."""

    now: float
    etag: str


@dataclass(frozen=True, slots=True)
class PutUnknown:
    """409, 412, 503, a timeout: it may have landed, may land, or never."""

    now: float
    reason: str


@dataclass(frozen=True, slots=True)
class HeadShown:
    """A PNode has a head of a listed orchestrator that is newer than what the store shows, or names another holder of the same term: the next term is above
    it. Where that has been so for longer than any read is late, no PNode may obey the present one.
    """

    now: float
    epoch: int
    sequence: int
    holder: str
    has_stayed: bool = True


HeadEvent = Tick | GetAnswered | GetAbsent | GetFailed | PutAnswered | PutUnknown | HeadShown

# Instructions


@dataclass(frozen=True, slots=True)
class Get:
    """Read the head."""


@dataclass(frozen=True, slots=True)
class Put:
    """Write the head, in one attempt; without ``if_match`` only if absent."""

    data: bytes
    if_match: str | None


@dataclass(frozen=True, slots=True)
class HeadSeen:
    """A head that was not known before: read, or acknowledged. What follows from a head follows from this."""

    head: model_pb2.Head
    data: bytes


@dataclass(frozen=True, slots=True)
class Landed:
    """These changes are in an acknowledged or read-back head."""

    tickets: tuple[int, ...]
    head: model_pb2.Head


@dataclass(frozen=True, slots=True)
class Dropped:
    """This process will not write this change any more. Whether a lost answer hid that it was written, the head itself tells."""

    ticket: int
    reason: str


@dataclass(frozen=True, slots=True)
class TermGained:
    """This process holds the head now."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TermLost:
    """It does not any more."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class StoreWentBack:
    """The store answers with an older head than one seen before: restored from a backup, or a stale read. (epoch, sequence) of both; zeros: without a head."""

    seen: tuple[int, int]
    read: tuple[int, int]

    @property
    def reason(self) -> str:
        """In words."""
        found = f"epoch {self.read[0]}, sequence {self.read[1]}" if any(self.read) else "nothing"
        return f"{found} was read after epoch {self.seen[0]}, sequence {self.seen[1]} had been seen"


HeadInstruction = Get | Put | HeadSeen | Landed | Dropped | TermGained | TermLost | StoreWentBack


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A head with the bytes and the ETag it had."""

    head: model_pb2.Head
    data: bytes
    etag: str
