"""How many batches of a job are in which state when it has ended, VNode by VNode. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dcnr.demo.facts import Facts
from dcnr.sdk.reported import num_unmerged
from dcnr.sdk.siblings import siblings


def batch_states(facts: Facts) -> Iterator[tuple[str, str]]:
    """Each state with how many batches are in it: learned and not merged are the network's own word, the others are read from its store."""
    total = int(facts.job.num_batches)
    yield "batches learned", _by_vnode(facts, facts.story.learned, total)
    if not facts.no_lineages:
        yield "batches merged, of replicas that only contributed", _by_vnode(facts, _merged(facts), total)
    yield "batches learned and not merged", _by_vnode(facts, _unmerged(facts), total)
    yield "batches durable", _by_vnode(facts, facts.durable, total)
    if facts.job.audited:
        yield "batches cleared", _by_vnode(facts, facts.cleared, total)
    yield "batches needed still", _by_vnode(facts, {vnode: total - facts.durable.get(vnode, 0) for vnode in facts.order}, total)
    if facts.ledger is not None:
        yield "batches by verdict, taken back ones too", _by_verdict(facts)


def _merged(facts: Facts) -> dict[str, int]:
    """By the commits behind the states: what replicas brought that never led."""
    primaries = facts.story.primaries
    return {item.vnode: sum(count for replica, _, count in item.learned if replica not in primaries) for item in facts.lineages}


def _unmerged(facts: Facts) -> dict[str, int]:
    return {item.vnode: sum(num_unmerged(other.report) for other in siblings(item)) for item in facts.job.vnodes}


def _by_verdict(facts: Facts) -> str:
    """Of all VNodes together."""
    assert facts.ledger is not None
    found: dict[str, int] = {}
    for one in facts.ledger.ledger.chronicle.ledger.intervals.values():
        found[one.verdict.value] = found.get(one.verdict.value, 0) + len(one.batches)
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items())) or "none"


def _by_vnode(facts: Facts, counts: Mapping[str, int], total: int) -> str:
    """One figure where it is the same for all."""
    row = [counts.get(vnode, 0) for vnode in facts.order]
    if len(set(row)) == 1:
        return f"{row[0]} of {total} in every VNode"
    return f"of {total}: " + ", ".join(f"{vnode} {count}" for vnode, count in zip(facts.order, row, strict=True))
