"""Which intervals are audited: drawn after their commit, with a probability that falls with a record and never to zero, by a function only the drawer knows.

An interval is what lies between two signed statements of a replica: of a primary from one state to the next, of a contributor from anchor to delta. It is
named by the digest of the statement that ends it. The draw is HMAC-SHA256 over that name under a secret of the orchestrator, read as a number in
[0, 1): the same key draws the same interval at any time, and who does not know the key learns nothing from any number of earlier draws. A
probability that is raised draws everything that a lower one drew.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dcnr.errors import InvalidInput
from dcnr.intervals import IntervalSet
from trust.standing import State

MIN_SECRET_BYTES: Final = 32
MAX_SECRET_BYTES: Final = 1024
FULL_PASSES: Final = 20.0
"""p = 20 / (k + 1), k the passed audits that still count."""
FLOOR: Final = 0.05
"""Lowest rate for whom nobody trusts, where the network document sets none."""
LOWEST_FLOOR: Final = 0.01
"""No rate is ever lower, whoever trusts whom."""
TRUSTED_DIVISOR: Final = 5.0
"""A trusted PNode's rate is anybody's divided by this, from its first interval on."""
CANARY_RATE: Final = 0.05
"""Of all audits: the verifier repeats them, so that their answer is known."""
FIRST_PASSES: Final = 8
"""Of each auditor, as far as whoever draws has heard them."""
FIRST_CANARY_RATE: Final = 0.5
"""Of these: four more replays for the verifier, of a PNode of which it took ten passed audits to be asked."""
LAST_PART: Final = 64
LAST_BATCHES: Final = 64
"""A job ends with its last batches: one in so many, and no more than so many: of a long job that is next to nothing."""
LAST_AUDITORS: Final = 2
"""Find nothing in what a job ends with before it counts."""
ALWAYS: Final = frozenset((State.SUSPECT, State.QUARANTINED, State.REHAB, State.BANNED))
"""States in which every interval is audited, whoever trusts whom."""
_DRAW, _CANARY = b"dcnr/draw/v1\0", b"dcnr/canary/v1\0"
_HASH_BITS: Final = 53


class Task(Enum):
    """What an auditor is given; it cannot tell which."""

    REAL = "real"
    CANARY = "canary"


@dataclass(frozen=True, slots=True)
class Floors:
    """The lowest rates, for untrusted and trusted PNodes."""

    untrusted: float
    trusted: float


def floors_of(audit_floor: float) -> Floors:
    """The floors that a network document's ``audit_floor`` gives; 0 there: the default. Raises InvalidInput outside [0, 1]."""
    if not 0.0 <= audit_floor <= 1.0:
        raise InvalidInput(f"an audit floor lies in [0, 1], not {audit_floor!r}", code="bad_rate")
    untrusted = max(LOWEST_FLOOR, audit_floor or FLOOR)
    return Floors(untrusted, max(LOWEST_FLOOR, untrusted / TRUSTED_DIVISOR))


def rate(passes: float, state: State, floors: Floors, *, trusted: bool) -> float:
    """The probability in (0, 1] with which a PNode's interval is drawn. ``passes``: audits passed, as far as they still count and cover an
    interval of its size (`trust.standing.Standing.record`).
    """
    if state in ALWAYS:
        return 1.0
    anybodys = 1.0 if state is State.PROBATION else min(1.0, FULL_PASSES / (max(0.0, passes) + 1.0))
    return max(floors.trusted, anybodys / TRUSTED_DIVISOR) if trusted else max(floors.untrusted, anybodys)


class Secret:
    """What an orchestrator draws with: 32 to 1024 bytes that it never tells and keeps over restarts. Raises InvalidInput for fewer or more."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
            raise InvalidInput(f"a secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes, not {len(key)}", code="bad_secret")
        self._key = key

    def __repr__(self) -> str:
        return "Secret(...)"

    def number(self, purpose: bytes, *names: str) -> float:
        """A number in [0, 1) that depends on everything named; names of any length never run into each other."""
        parts = b"".join(len(name.encode()).to_bytes(4) + name.encode() for name in names)
        digest = hmac.new(self._key, len(purpose).to_bytes(4) + purpose + parts, hashlib.sha256).digest()
        return (int.from_bytes(digest[:8]) >> (64 - _HASH_BITS)) / 2.0**_HASH_BITS


def is_drawn(secret: Secret, interval: str, probability: float) -> bool:
    """Whether that interval is audited. ``interval``: the digest of the statement that ends it. Raises InvalidInput for a rate of zero."""
    if not 0.0 < probability <= 1.0:
        raise InvalidInput(f"a rate lies in (0, 1], not {probability!r}: nothing is never checked", code="bad_rate")
    return secret.number(_DRAW, interval) < probability


def is_last(batches: IntervalSet, num_held: int, num_batches: int) -> bool:
    """Whether a job ends with an interval: it holds any of the last batches, or comes last, whatever it holds: with its checkpoint its VNode has all but so
    few (``num_held``: how many). Such are always drawn, and audited by `LAST_AUDITORS`: nothing learned later would mend what they spoil, nor would a later
    host find that it cannot learn from them. Of a job whose size is not known (0) none is.
    """
    highest = batches.highest()
    first = num_batches - max(1, min(num_batches // LAST_PART, LAST_BATCHES))
    return num_batches > 0 and (num_held >= first or (highest is not None and highest >= first))


def canary_rate(num_passes: int) -> float:
    """Of the audits of an auditor that has passed so many intervals: who waves everything through is found sooner where its first passes are looked at."""
    return max(CANARY_RATE, FIRST_CANARY_RATE) if num_passes < FIRST_PASSES else CANARY_RATE


def task_of(secret: Secret, interval: str, auditor: str, attempt: int, num_passes: int = FIRST_PASSES) -> Task:
    """Whether what this auditor, which has passed ``num_passes`` before, finds is repeated by the verifier. What canaries are is as secret as the draw."""
    return Task.CANARY if secret.number(_CANARY, interval, auditor, str(attempt)) < canary_rate(num_passes) else Task.REAL
