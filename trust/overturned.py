"""What an auditor pays for a finding that did not hold, and which intervals have to be audited again because of it. Pure.

Whoever passes what is wrong, or faults what is right, is treated as whoever computes wrong: it is a fault of its own. The truth is known for canaries, or from
a fault record that this orchestrator verified itself. Who is found out for whatever it did is believed no more either: it pays nothing for what it said, but
what passed on its word alone is audited again too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

AGAIN_S: Final = 2700.0
"""So long after its evidence came an interval is audited again since its auditor was found out: until then the store keeps that for sure."""


class Finding(Enum):
    """What an auditor says of an interval."""

    PASS = "pass"
    DOUBT = "doubt"
    FAULT = "fault"


class Truth(Enum):
    """What is known of an interval or canary without that auditor."""

    RIGHT = "right"
    WRONG = "wrong"


class Payment(Enum):
    """What an auditor is at fault for."""

    WAVED_THROUGH = "it passed what is wrong"
    SLANDERED = "it faulted what is right"


@dataclass(frozen=True, slots=True)
class Heard:
    """A signed finding, in the order in which they came (``number``)."""

    number: int
    auditor: str
    interval: str
    finding: Finding
    is_canary: bool
    bundle: str = ""
    """Digest of the evidence that was looked at; empty: not known."""


def payments(heard: Iterable[Heard], truth: Mapping[str, Truth]) -> dict[str, Payment]:
    """Who pays, by auditor; a doubt is never wrong. Of several faults the first counts."""
    found: dict[str, Payment] = {}
    for one in sorted(heard, key=lambda one: one.number):
        known = truth.get(one.interval)
        if known is Truth.WRONG and one.finding is Finding.PASS:
            found.setdefault(one.auditor, Payment.WAVED_THROUGH)
        elif known is Truth.RIGHT and one.finding is Finding.FAULT:
            found.setdefault(one.auditor, Payment.SLANDERED)
    return found


def audited_again(heard: Iterable[Heard], truth: Mapping[str, Truth], payers: Collection[str]) -> dict[str, str]:
    """Intervals that count as audited on the word of payers alone, each with the first of them that passed it: their audits are open again. Of what a payer
    passed before its last wrong canary that it found out it is believed.
    """
    told = sorted(heard, key=lambda one: one.number)
    honest = (one for one in told if one.is_canary and truth.get(one.interval) is Truth.WRONG and one.finding is Finding.FAULT)
    since = {one.auditor: one.number for one in honest}
    found: dict[str, str] = {}
    believed: set[str] = set()
    for one in told:
        if one.finding is Finding.PASS and one.auditor in payers and one.number > since.get(one.auditor, -1):
            found.setdefault(one.interval, one.auditor)
        elif one.finding is Finding.PASS:
            believed.add(one.interval)
    return {name: auditor for name, auditor in found.items() if name not in believed and name not in truth}
