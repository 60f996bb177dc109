"""Where VNodes return to when an interval fails or cannot be verified: what is retracted, which batches are needed again, whose credit is void. Pure.

- The VNode of a failed interval returns to its newest kept checkpoint that holds nothing of the accused since its last passed audit there, cleared or not. The
  interval of that audit was replayed, so it stays.
- What was sent after a wrong step was computed from it, by whoever went on from it too. So every VNode behind returns to its newest kept checkpoint that has
  learned none of the batches that the failed interval holds, or that go back with it.
- An interval that nobody can verify is dropped with what stands on it; nobody is blamed.

The result is a function of the ledger and the cause, so whoever takes over in the middle finds the same. An interval fails once: told again, nothing
follows. One that went back already takes its own VNode no further back, but those behind that learned from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from dcnr.errors import InvariantBroken, NotFound
from dcnr.intervals import IntervalSet
from trust.ledger import Interval, Ledger, Verdict

FINAL: Final = frozenset((Verdict.FAILED, Verdict.UNVERIFIABLE))


class Cause(Enum):
    """Why an interval does not count."""

    FAULT = "it does not follow from its inputs"
    UNVERIFIABLE = "nobody has its inputs any more"


@dataclass(frozen=True, slots=True)
class Return:
    """One VNode's way back."""

    target: str
    """Digest of the checkpoint that it goes on from."""
    retracted: tuple[str, ...]
    """Digests never named again, oldest first."""
    needed_again: IntervalSet


@dataclass(frozen=True, slots=True)
class WayBack:
    """Everything that follows. ``returns`` has an entry for each VNode of which something is retracted."""

    interval: str
    verdict: Verdict
    """Of that interval from now on."""
    accused: str
    """Empty where nobody is to blame."""
    returns: Mapping[str, Return] = field(default_factory=dict)
    void: frozenset[str] = frozenset()
    """Further intervals of the accused that give no credit."""
    dropped: frozenset[str] = frozenset()
    """Intervals of others that went back with them."""


def way_back(ledger: Ledger, interval: str, cause: Cause, behind: Mapping[str, frozenset[str]]) -> WayBack:
    """What follows from ``cause``. ``behind``: of each VNode all VNodes that its outputs reach. Raises NotFound, InvariantBroken."""
    failed = ledger.intervals.get(interval)
    if failed is None:
        raise NotFound(f"no manifest names the interval {interval[:12]}", code="unknown_interval")
    if failed.verdict in FINAL:
        return WayBack(interval, failed.verdict, "" if failed.verdict is Verdict.UNVERIFIABLE else failed.pnode_id)
    is_blamed = cause is not Cause.UNVERIFIABLE
    tainted = _since_last_pass(ledger, failed) if is_blamed else {interval}
    tests: dict[str, Callable[[Interval], bool]] = {}
    if any(interval in one.intervals for one in ledger.lines[failed.vnode]):
        tests[failed.vnode] = lambda one: one.name in tainted
    if is_blamed:
        own = _return(ledger, failed.vnode, tests[failed.vnode]) if failed.vnode in tests else None
        wrong = failed.batches if own is None else failed.batches | own.needed_again
        for vnode in behind.get(failed.vnode, frozenset()) & ledger.lines.keys() - {failed.vnode}:
            tests[vnode] = lambda one: not one.batches.isdisjoint(wrong)
    found = {vnode: _return(ledger, vnode, tests[vnode]) for vnode in sorted(tests)}
    returns = {vnode: one for vnode, one in found.items() if one is not None}
    retracted = {digest for one in returns.values() for digest in one.retracted}
    gone = {name for line in ledger.lines.values() for one in line if one.digest in retracted for name in one.intervals} - {
        interval
    }
    void = gone & tainted
    verdict = Verdict.FAILED if is_blamed else Verdict.UNVERIFIABLE
    return WayBack(interval, verdict, failed.pnode_id if is_blamed else "", returns, frozenset(void), frozenset(gone - void))


def gone_back(ledger: Ledger, way: WayBack) -> Ledger:
    """The ledger afterwards."""
    verdicts = {**dict.fromkeys(way.dropped, Verdict.DROPPED), **dict.fromkeys(way.void, Verdict.VOID), way.interval: way.verdict}
    intervals = {name: replace(one, verdict=verdicts.get(name, one.verdict)) for name, one in ledger.intervals.items()}
    retracted = {digest for one in way.returns.values() for digest in one.retracted}
    lines = {vnode: tuple(one for one in line if one.digest not in retracted) for vnode, line in ledger.lines.items()}
    return Ledger(lines, intervals)


def _since_last_pass(ledger: Ledger, failed: Interval) -> set[str]:
    """The failed interval and what the accused did at its VNode since its last passed audit before it."""
    mine = [one for one in ledger.intervals.values() if (one.vnode, one.pnode_id) == (failed.vnode, failed.pnode_id)]
    passed = [one.number for one in mine if one.verdict is Verdict.PASSED and one.number < failed.number]
    since = max(passed, default=-1)
    return {one.name for one in mine if one.number > since}


def _return(ledger: Ledger, vnode: str, is_bad: Callable[[Interval], bool]) -> Return | None:
    """To the newest kept checkpoint before the first that holds something bad; None where none does."""
    line = ledger.lines[vnode]
    first_bad = next((at for at, one in enumerate(line) if any(is_bad(ledger.intervals[name]) for name in one.intervals)), None)
    if first_bad is None:
        return None
    target = next((at for at in range(first_bad - 1, -1, -1) if line[at].is_kept), None)
    if target is None:
        raise InvariantBroken(f"no checkpoint of {vnode} is left to return to, not even the first", code="no_way_back")
    needed_again = ledger.held(vnode, len(line) - 1) - ledger.held(vnode, target)
    return Return(line[target].digest, tuple(one.digest for one in line[target + 1 :]), needed_again)
