"""The directory port: signed, expiring records under 160-bit keys, whoever carries them.

A record is opaque bytes of at most `dcnr.limits.MAX_DHT_RECORD_BYTES`. What makes one valid is decided by the ``Verify`` function that each adapter is
given: it checks the signature over (domain, key, value, sequence, expiry) and says whose it is. Adapters only compare sequences and expiries.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dcnr.errors import InvalidInput
from dcnr.ids import NodeId
from dcnr.limits import MAX_DHT_RECORD_BYTES

KEY_BYTES: Final = 20


@dataclass(frozen=True, slots=True)
class VerifiedRecord:
    """What a valid record says about itself: the key it belongs under, who signed it, its place in order and when it ends (wall clock, s)."""

    key: bytes
    owner: NodeId
    sequence: int
    expires_wall: float


Verify = Callable[[bytes, bytes, float], VerifiedRecord | None]
"""``verify(key, record, now_wall)``: the facts of a valid record, or None. Must not raise on any bytes and must not block."""


class Directory(Protocol):
    """Exact look-ups of last resort: plan, cached adverts and gossip come first, and no training or inference step waits for it."""

    async def put(self, key: bytes | str, record: bytes) -> int:
        """Number of *other* nodes that said they keep the record; 0 means nobody does. Raises InvalidInput for a record that does not verify."""
        ...

    async def get(self, key: bytes | str) -> bytes | None:
        """The newest valid record among the answers (see `best_answer`), or None."""
        ...


def record_key(key: bytes | str) -> bytes:
    """The 20 bytes under which a record lies: bytes name themselves, a text is hashed (SHA-256, first 160 bits). Raises InvalidInput."""
    if isinstance(key, str):
        return hashlib.sha256(key.encode()).digest()[:KEY_BYTES]
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise InvalidInput("a directory key is a text or exactly 20 bytes", code="bad_key")
    return key


def best_answer(answers: Sequence[tuple[VerifiedRecord, bytes]]) -> bytes | None:
    """What a reader believes of valid answers: the owner whom most answers name, and of that owner's records the newest.

    Owners differ only where somebody signs for a key that is another's; one keeper that gives such a record out does not win by its sequence.
    """
    votes = Counter(facts.owner for facts, _ in answers)
    ranked = max(answers, key=lambda a: (votes[a[0].owner], a[0].sequence, a[1]), default=None)
    return ranked[1] if ranked else None


def checked_record(key: bytes, record: bytes, verify: Verify, now_wall: float) -> VerifiedRecord:
    """The facts of a record that is about to be published. Raises InvalidInput (``record_too_large``, ``bad_record``, ``record_expired``)."""
    if not isinstance(record, bytes) or not 0 < len(record) <= MAX_DHT_RECORD_BYTES:
        raise InvalidInput(f"a directory record has 1 to {MAX_DHT_RECORD_BYTES} bytes", code="record_too_large")
    facts = verify(key, record, now_wall)
    if facts is None or facts.key != key:
        raise InvalidInput("the record does not verify under this key", code="bad_record")
    if facts.expires_wall <= now_wall:
        raise InvalidInput("the record has expired already", code="record_expired")
    return facts
