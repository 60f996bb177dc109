"""Goal: the figures of the trust policy are those that were decided: who changes one changes it here too, knowingly and not by a slip of the hand.

All other tests use the names, so that they hold for any value; here stand the values.
"""

from __future__ import annotations

import hmac

from dcnr.limits import KIB, MIB
from trust.addresses import MAX_ADDRESS_CHARS, MAX_ADDRESSES
from trust.caps import IDS_PER_SUBNET, PROBATION_VNODES
from trust.commits import DELTA_CODECS, MAX_COMMIT_BYTES, MAX_DELTA_BYTES
from trust.decay import DAY_S, Faded
from trust.delegation import MAX_DELEGATION_BYTES, MAX_OPENED
from trust.draw import (
    CANARY_RATE,
    FIRST_CANARY_RATE,
    FIRST_PASSES,
    FLOOR,
    FULL_PASSES,
    LOWEST_FLOOR,
    MAX_SECRET_BYTES,
    MIN_SECRET_BYTES,
    TRUSTED_DIVISOR,
    Floors,
    Secret,
    floors_of,
)
from trust.envelope import MAX_SIGNATURES
from trust.evidence import MAX_CHALLENGED, MAX_RECORD_BYTES, MAX_STATEMENTS, SEED_BYTES
from trust.exposure import CAUGHT, intervals_until_caught
from trust.findings import DOUBT_FACTOR
from trust.identity import MAX_KEY_FILE_BYTES, MAX_SIGNATURE_BYTES, PUBLIC_KEY_BYTES
from trust.late_draw import AT_ONCE, MAX_SPARED, SPARED_KEPT_S, UNLEARNED
from trust.ledger import MAX_UNCLEARED
from trust.network import (
    MAX_DOCUMENT_BYTES,
    MAX_HISTORY,
    MAX_MAINTAINERS,
    MAX_ORCHESTRATORS,
    MAX_REHAB_UNITS,
    MAX_TRUSTED_PNODES,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    TRUSTED_S,
)
from trust.network_file import MAX_FILE_BYTES as MAX_NETWORK_FILE_BYTES
from trust.ownership import MAX_OWNERSHIP_BYTES
from trust.rates import MAX_NAMES, Rate
from trust.records import DHT_KEY_BYTES
from trust.scores import BAD_FRACTION, FULL_SCORE, RELIABILITY_HALF_LIFE_S
from trust.session import (
    ID_RATE,
    MAX_PROOF_BYTES,
    NONCE_BYTES,
    NONCE_LIFETIME_S,
    SESSION_LIFETIME_S,
    SUBNET_RATE,
    TOKEN_BYTES,
    SessionLimits,
)
from trust.standing import (
    ACTIVE_PASSES,
    FIRST_QUARANTINE_S,
    LONGEST_QUARANTINE_S,
    MAX_DOUBTS,
    ORDINARY,
    PASSES_HALF_LIFE_S,
    QUARANTINE_GROWTH,
    REAUDIT_S,
    REAUDITORS,
    SHADOW_UNITS,
    UNVERIFIED_PART,
    State,
    Terms,
    begun,
)
from trust.step_logs import MAX_ENTRIES, MAX_LOG_BYTES, TENSOR_DIGEST_BYTES
from trust.tls import MAX_CERTIFICATE_BYTES
from trust.trusted import MAX_FILE_BYTES, MAX_LINES


def test_how_often_work_is_checked() -> None:
    assert (FULL_PASSES, FLOOR, LOWEST_FLOOR, TRUSTED_DIVISOR) == (20.0, 0.05, 0.01, 5.0)
    assert floors_of(0.0) == Floors(0.05, 0.01)
    assert floors_of(0.5) == Floors(0.5, 0.1)
    assert (CANARY_RATE, FIRST_CANARY_RATE, FIRST_PASSES) == (0.05, 0.5, 8)
    assert (CAUGHT, intervals_until_caught(0.05)) == (0.99, 90)
    assert (UNLEARNED, AT_ONCE, MAX_SPARED, SPARED_KEPT_S, MAX_UNCLEARED) == (4, 4, 16, 28800.0, 4)
    assert DOUBT_FACTOR == 2.0


def test_draws_are_the_same_for_whoever_has_the_key() -> None:
    """In any process, at any time and in later versions: the first 53 bits of an HMAC over purpose and names, each behind its length."""
    assert (MIN_SECRET_BYTES, MAX_SECRET_BYTES) == (32, 1024)
    said = b"\0\0\0\x07purpose" + b"\0\0\0\x01a" + b"\0\0\0\x02\xc3\xa4"
    told = int.from_bytes(hmac.digest(b"k" * 32, said, "sha256")[:8], "big")
    assert Secret(b"k" * 32).number(b"purpose", "a", "ä") == (told >> 11) / 2**53
    assert Secret(b"k" * 32).number(b"purpose", "aä") != Secret(b"k" * 32).number(b"purpose", "a", "ä")


def test_what_a_fault_costs_and_how_a_record_fades() -> None:
    assert (DAY_S, PASSES_HALF_LIFE_S, RELIABILITY_HALF_LIFE_S) == (86_400.0, 30 * 86_400.0, 7 * 86_400.0)
    assert (ACTIVE_PASSES, UNVERIFIED_PART, REAUDITORS, REAUDIT_S, MAX_DOUBTS) == (10.0, 0.5, 2, 60.0, 64)
    assert (FIRST_QUARANTINE_S, QUARANTINE_GROWTH, LONGEST_QUARANTINE_S, SHADOW_UNITS) == (900.0, 4.0, 7 * 86_400.0, 20)
    assert Terms() == ORDINARY == Terms(900.0, 20)
    assert [ORDINARY.quarantine_s(number) for number in (0, 1, 2, 3, 6, 99)] == [
        900.0,
        900.0,
        3600.0,
        14_400.0,
        604_800.0,
        604_800.0,
    ]
    assert Terms(1e-6).quarantine_s(99) == 1e-6 * 4.0**16, "no power is too large to be computed"
    new = begun(5.0)
    assert (new.state, new.since_s, new.until_s, new.num_quarantines, new.num_shadows) == (State.PROBATION, 5.0, 0.0, 0, 0)
    assert new.passes == Faded(30 * 86_400.0) == Faded(30 * 86_400.0, 0.0, 0.0)
    assert (BAD_FRACTION, FULL_SCORE) == (0.2, 100)


def test_what_a_newcomer_may_have() -> None:
    assert (PROBATION_VNODES, IDS_PER_SUBNET, TRUSTED_S) == (2, 2, 365 * 86_400.0)


def test_how_many_sessions_and_how_often() -> None:
    assert (NONCE_BYTES, TOKEN_BYTES, NONCE_LIFETIME_S, SESSION_LIFETIME_S, MAX_PROOF_BYTES) == (32, 32, 10.0, 3600.0, 1024)
    assert (Rate(100.0, 600.0), Rate(10.0, 120.0), 8192) == (SUBNET_RATE, ID_RATE, MAX_NAMES)
    assert SessionLimits() == SessionLimits(4096, 16_384, 64, 4096, SUBNET_RATE, ID_RATE)


def test_how_much_a_stranger_may_say() -> None:
    assert (MAX_ADDRESSES, MAX_ADDRESS_CHARS, MAX_SIGNATURES, DHT_KEY_BYTES) == (8, 255, 32, 20)
    assert (MAX_COMMIT_BYTES, MAX_DELTA_BYTES, DELTA_CODECS) == (MIB, 256 * KIB, ("raw", "int8"))
    assert (MAX_DELEGATION_BYTES, MAX_OPENED, MAX_OWNERSHIP_BYTES) == (3 * KIB, 1024, 512)
    assert (MAX_RECORD_BYTES, MAX_CHALLENGED, MAX_STATEMENTS, SEED_BYTES) == (3 * MIB, 1024, 64, 32)
    assert (MAX_LOG_BYTES, MAX_ENTRIES, TENSOR_DIGEST_BYTES) == (2 * MIB, 4096, 32)
    assert (MAX_KEY_FILE_BYTES, MAX_SIGNATURE_BYTES, PUBLIC_KEY_BYTES, MAX_CERTIFICATE_BYTES) == (16 * KIB, 80, 91, 8 * KIB)
    assert (MAX_DOCUMENT_BYTES, MAX_HISTORY, MAX_NETWORK_FILE_BYTES) == (256 * KIB, 17, 34 * 256 * KIB)
    assert (MAX_MAINTAINERS, MAX_ORCHESTRATORS, MAX_TRUSTED_PNODES, MAX_REHAB_UNITS) == (32, 256, 1024, 1000)
    assert (PROTOCOL_MIN, PROTOCOL_MAX) == (1, 1)
    assert (MAX_LINES, MAX_FILE_BYTES) == (4096, 512 * KIB)
