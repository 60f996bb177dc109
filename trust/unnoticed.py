"""What of a job's release may be wrong without anybody having noticed, from the chain of manifests and the network document as everybody reads them. Pure.

No manifest says at which rate an interval was drawn. The rate follows from the record of its PNode when the interval was first named, which is folded here
from the verdicts told until then. Whatever is drawn beyond that is left out (what a job ends with, VNodes that are executed redundantly, what is drawn late,
PNodes under doubt or whose audits were lies), as is that a fault voids earlier passes: real rates are higher, and what is shown is no less than what follows
from them. Only whom an operator's own file trusts is drawn more rarely than anybody can read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trust.draw import Floors, floors_of, rate
from trust.exposure import Drawn, Exposure, Life, exposure_of
from trust.folding import Chronicle, Told
from trust.ledger import Ledger, Verdict
from trust.network import NetworkPolicy
from trust.standing import Passed, Standing, Unverified, after, begun

ENDS: Final = frozenset((Verdict.FAILED, Verdict.UNVERIFIABLE))
"""With such a verdict a life ends (`trust.exposure`)."""


@dataclass(frozen=True, slots=True)
class DrawRules:
    """By what a network draws: the lowest rates, and whether a PNode was trusted at a time (Unix time, seconds)."""

    floors: Floors
    trusts: Callable[[str, float], bool]


def rules_of(policy: NetworkPolicy) -> DrawRules:
    """Of a network: where versions of its document differ, those by which less is drawn."""
    versions = (*policy.past, policy.document)
    floors = min((floors_of(one.audit_floor) for one in versions), key=lambda one: one.untrusted)
    ends_s: dict[str, float] = {}
    for pnode in (pnode for one in versions for pnode in one.trusted_pnodes):
        ends_s[pnode.node_id] = max(ends_s.get(pnode.node_id, 0.0), pnode.expires_unix_ms / 1000)
    return DrawRules(floors, lambda pnode_id, at_s: at_s < ends_s.get(pnode_id, 0.0))


def exposure_of_job(chronicle: Chronicle, rules: DrawRules, earlier: Sequence[Told] = ()) -> Exposure:
    """Of what a job's VNodes have in their newest cleared checkpoints, where everybody never found out cheats as well as it can; steps are batches of VNodes.

    ``earlier``: verdicts of the model's jobs before this one, oldest first; records go on from there.
    """
    ledger = chronicle.ledger
    released = {name for vnode, line in ledger.lines.items() for one in line[: ledger.num_cleared(vnode)] for name in one.intervals}
    lives = _lives(ledger, released, _rates((*earlier, *chronicle.told), rules))
    num_steps = sum(len(ledger.intervals[name].batches) for name in released)
    return Exposure(min(exposure_of(lives).undetected_steps, num_steps), num_steps, cheaters=1.0)


def _lives(ledger: Ledger, released: set[str], rates: Mapping[str, float]) -> list[Life]:
    """Every life that is over, and of those that go on what counts: nobody gains by cheating in what was taken back."""
    over: list[Life] = []
    alive: dict[str, list[Drawn]] = {}
    for one in sorted(ledger.intervals.values(), key=lambda one: one.number):
        drawn = Drawn(len(one.batches), rates[one.name])
        if one.verdict in ENDS:
            over.append(Life((*alive.pop(one.pnode_id, ()), drawn), is_over=True))
        elif one.name in released:
            alive.setdefault(one.pnode_id, []).append(drawn)
    return over + [Life(intervals, is_over=False) for intervals in alive.values()]


def _rates(told: Iterable[Told], rules: DrawRules) -> dict[str, float]:
    """By interval: the rate at which it was drawn when it was first named."""
    rates: dict[str, float] = {}
    standings: dict[str, Standing] = {}
    found_out: set[str] = set()
    counted: set[tuple[str, Verdict]] = set()
    for one in told:
        standing = standings.get(one.pnode_id) or begun(one.committed_s)
        if one.interval not in rates:
            trusted = one.pnode_id not in found_out and rules.trusts(one.pnode_id, one.committed_s)
            rates[one.interval] = rate(
                standing.record(one.committed_s, one.num_batches), standing.state, rules.floors, trusted=trusted
            )
        if one.verdict is Verdict.FAILED:
            found_out.add(one.pnode_id)
            standing = begun(one.decided_s)  # quarantine and rehab, then this
        elif (one.interval, one.verdict) in counted:
            continue  # an interval counts once
        elif one.verdict is Verdict.PASSED:
            standing = after(standing, Passed(one.decided_s, one.committed_s, one.num_batches))
        elif one.verdict is Verdict.UNVERIFIABLE:
            standing = after(standing, Unverified(one.decided_s, one.committed_s))
        counted.add((one.interval, one.verdict))
        standings[one.pnode_id] = standing
    return rates
