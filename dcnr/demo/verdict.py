"""What the demo proves, and the table at its end: a function of the run's facts. Pure.

Each point is decided by what is in the network's store, or by code that shares nothing with it; a view of the network alone decides only what it alone can
know: how soon a kill was noticed, and who is in quarantine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dcnr.audit_ledger import LedgerAudit
from dcnr.demo.batch_states import batch_states
from dcnr.demo.facts import WHOLE_LIMIT_S, Compared, Facts
from dcnr.demo.story import Kill, Resumed
from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2
from trust.exposure import together
from trust.ledger import Interval
from trust.ledger import Verdict as Judgement

MIN_ACCURACY: Final = 0.99
MAX_BITS: Final = 2.45
MIN_GAIN_BITS: Final = 0.03
BACKPROP: Final = "backprop, same graph and budget"
SAME_BITS: Final = 2e-3
"""Two sums of losses over the test split, each of single precision, differ by less."""


@dataclass(frozen=True, slots=True)
class Point:
    """One thing that must hold."""

    what: str
    good: bool
    detail: str

    def __str__(self) -> str:
        return f"[{'ok' if self.good else 'FAILED'}] {self.what}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Points that must hold, and figures that are only printed."""

    points: tuple[Point, ...]
    figures: tuple[tuple[str, str], ...]
    not_measured: str = ""
    """What a slow machine did not come to, and why; nothing fails for it."""

    @property
    def exit_code(self) -> int:
        """0 only where every point held."""
        return 0 if all(point.good for point in self.points) else 1

    def lines(self) -> list[str]:
        """The table as text."""
        width = max(len(name) for name, _ in self.figures)
        failed = sum(not point.good for point in self.points)
        result = ["", "figures", *(f"  {name:<{width}}  {value}" for name, value in self.figures), "", "what had to hold"]
        result += [f"  {point}" for point in self.points]
        return [
            *result,
            "",
            *([f"NOT MEASURED: {self.not_measured}", ""] if self.not_measured else []),
            f"the demo FAILED in {failed} of {len(self.points)} points" if failed else "the demo held in every point",
        ]


def verdict_of(facts: Facts) -> Verdict:
    """The table for that run."""
    late = facts.reference if facts.reference is not None and facts.reference.is_late else None
    return Verdict(tuple(_points(facts)), tuple(_figures(facts)), f"{BACKPROP}: {late.trouble}" if late is not None else "")


def _points(facts: Facts) -> Iterator[Point]:
    job = facts.job
    yield Point("job completed", job.state == model_pb2.JOB_STATE_COMPLETED, model_pb2.JobState.Name(job.state))
    yield Point(f"all of it took at most {WHOLE_LIMIT_S / 60:.0f} minutes", facts.took_s <= WHOLE_LIMIT_S, f"{facts.took_s:.1f} s")
    yield _lineages(facts)
    if facts.are_kills_wanted:
        yield from _kills(facts.story.kills)
    if facts.story.cheats:
        yield from _cheats(facts)
    yield from (_images if facts.example == "mnist" else _texts)(facts)
    if facts.reference is not None and not facts.reference.is_late:
        yield Point(
            "the comparison with backprop was made",
            not facts.reference.trouble,
            facts.reference.trouble or _backprop(facts.reference),
        )


def _lineages(facts: Facts) -> Point:
    """Every VNode's stored state: exactly [0, N), each batch once by the commits of its ancestry."""
    what, num_batches = "every stored lineage is exactly [0, N), each batch once", int(facts.job.num_batches)
    wrong = {item.vnode for item in facts.lineages if item.num_batches != num_batches or not item.exact}
    wrong |= {vnode for vnode in facts.order if facts.durable.get(vnode) != num_batches}
    wrong |= set(facts.order) - {item.vnode for item in facts.lineages}
    if facts.no_lineages or wrong or not facts.lineages:
        return Point(what, False, facts.no_lineages or f"wrong: {', '.join(sorted(wrong)) or 'there are none'}")
    commits = sum(item.num_commits for item in facts.lineages)
    return Point(what, True, f"N = {num_batches}, {len(facts.lineages)} VNodes, {commits} signed commits walked to checkpoint 0")


def _kills(kills: Sequence[Kill]) -> Iterator[Point]:
    for kill in kills:
        done = ("relocated" if kill.vnodes else "taken over") if kill.settled else "not seen"
        yield Point(f"after SIGKILL of {kill.kind} {kill.name} training went on", kill.settled, done)
        if kill.kind == "PNode":
            yield _restored(kill)
    both = {"PNode", "orchestrator"} <= {kill.kind for kill in kills}
    yield Point("a PNode and the deciding orchestrator were killed", both, f"{len(kills)} kills")


def _restored(kill: Kill) -> Point:
    """A copy in its place that starts over would train, too, and lose what was durable."""
    told = {vnode: kill.resumed.get(vnode) for vnode in kill.vnodes}
    good = all(resumed is not None and resumed.good for resumed in told.values())
    detail = ", ".join(f"{vnode}: {_with(resumed)}" for vnode, resumed in told.items())
    return Point(f"what PNode {kill.name} held was restored from a checkpoint above 0", good, detail or "it held nothing")


def _with(resumed: Resumed | None) -> str:
    if resumed is None:
        return "not seen"
    if resumed.num_durable == 0:
        return "nothing of it was durable yet"
    return (
        f"from {'checkpoint 0' if resumed.is_from_start else f'{resumed.num_learned} batches'}, {resumed.num_durable} were durable"
    )


def _cheats(facts: Facts) -> Iterator[Point]:
    """Whoever cheats is found out, by evidence that is in the store and that it signed itself; what it did is taken back; nobody else is accused."""
    ledger = facts.ledger
    faults = {} if ledger is None else ledger.faults
    for node_id in sorted(facts.story.cheats):
        name, found = facts.names[node_id], facts.story.accused.get(node_id)
        evidence = sorted(digest for digest, accused in faults.items() if accused == node_id)
        detail = "not found out" if found is None else found.reason
        detail += f" (evidence {evidence[0][:16]})" if evidence else "; no evidence with its signature is in the ledger"
        yield Point(f"the PNode that cheats, {name}, was caught with evidence", found is not None and bool(evidence), detail)
        yield _judged(facts, node_id, name)
        yield _taken_back(facts, node_id, name)
        yield _learned_again(facts, node_id, name)
    blamed = {*facts.story.accused, *faults.values()} - facts.story.cheats
    honest = sorted(facts.names.get(node_id, node_id[:8]) for node_id in blamed)
    yield Point(
        "no honest PNode was accused", not honest, ", ".join(honest) or f"{len(facts.names) - len(facts.story.cheats)} of them"
    )
    if ledger is None:
        yield Point("the trust ledger holds", False, facts.no_ledger)
    else:
        told = ledger.trouble or f"{ledger.ledger.num_manifests} manifests, {ledger.num_receipts} receipts"
        yield Point("the trust ledger holds", ledger.holds, told)


def _judged(facts: Facts, node_id: str, name: str) -> Point:
    """The chain of manifests names work of a cheat whose audit failed: a quarantine alone would take nothing back."""
    what = f"the chain of manifests has failed audits of what {name} did"
    if facts.ledger is None:
        return Point(what, False, facts.no_ledger)
    accepted = _accepted(facts.ledger, node_id)
    failed = sum(one.verdict is Judgement.FAILED for one in accepted)
    return Point(what, failed > 0, f"{failed} of {len(accepted)} intervals that manifests had accepted")


def _accepted(audit: LedgerAudit, node_id: str) -> list[Interval]:
    """What manifests ever named of a PNode's work, whatever became of it."""
    return [one for one in audit.ledger.chronicle.ledger.intervals.values() if one.pnode_id == node_id]


def _counting(audit: LedgerAudit) -> set[str]:
    """Names of the intervals that the newest manifest counts."""
    return {name for line in audit.ledger.chronicle.ledger.lines.values() for one in line for name in one.intervals}


def _taken_back(facts: Facts, node_id: str, name: str) -> Point:
    """No batch counts that a cheat learned: neither in the lines of the ledger, nor by the commits behind the states."""
    what = f"nothing that {name} did is in the model"
    if facts.ledger is None or facts.no_lineages:
        return Point(what, False, facts.no_ledger or facts.no_lineages)
    accepted, counting = _accepted(facts.ledger, node_id), _counting(facts.ledger)
    left = {one.vnode for one in accepted if one.name in counting}
    left |= {item.vnode for item in facts.lineages if node_id in item.pnodes}
    num_batches = sum(len(one.batches) for one in accepted)
    if left:
        return Point(what, False, f"still in {', '.join(sorted(left))}: {num_batches} batches of it were accepted")
    told = (
        f"{num_batches} batches that manifests had accepted were taken back" if accepted else "no manifest had accepted any of it"
    )
    return Point(what, True, told)


def _learned_again(facts: Facts, node_id: str, name: str) -> Point:
    """Every batch that manifests had accepted of a cheat counts as somebody else's at the end."""
    what = f"others learned again what {name} had learned"
    if facts.ledger is None:
        return Point(what, False, facts.no_ledger)
    intervals, counting = facts.ledger.ledger.chronicle.ledger.intervals, _counting(facts.ledger)
    accepted = _accepted(facts.ledger, node_id)
    others = [intervals[digest] for digest in counting if intervals[digest].pnode_id != node_id]
    vnodes = sorted({one.vnode for one in accepted})
    wanted = {vnode: _batches(vnode, accepted) for vnode in vnodes}
    missing = {vnode: len(wanted[vnode] - _batches(vnode, others)) for vnode in vnodes}
    lacking = [f"{count} of {len(wanted[vnode])} batches of {vnode}" for vnode, count in missing.items() if count]
    if lacking:
        return Point(what, False, f"not {', '.join(lacking)}")
    told = [f"{len(wanted[vnode])} batches of {vnode}" for vnode in vnodes]
    return Point(what, bool(told), ", ".join(told) or "no manifest had accepted any of it")


def _batches(vnode: str, intervals: Iterable[Interval]) -> IntervalSet:
    return IntervalSet.of(*(pair for one in intervals if one.vnode == vnode for pair in one.batches.pairs()))


def _images(facts: Facts) -> Iterator[Point]:
    exits = exits_of(facts)
    last = exits[-1]
    accuracy = last.correct / max(1, last.count)
    good = accuracy >= MIN_ACCURACY and all(item.complete for item in exits)
    yield Point(f"test accuracy of the last exit is at least {MIN_ACCURACY:.1%}", good, f"{accuracy:.2%}")
    correct, count = facts.plain.get("correct"), facts.plain.get("count")
    same = (correct, count) == (last.correct, last.count)
    yield Point(
        "the export in plain torch gives the same number of correct images", same, f"{correct} and {last.correct} of {last.count}"
    )


def _texts(facts: Facts) -> Iterator[Point]:
    exits = exits_of(facts)
    first, last, plain = _bits(exits[0]), _bits(exits[-1]), float(facts.plain.get("bits_per_byte", math.nan))
    yield Point(f"the last exit has at most {MAX_BITS} bits per byte", last <= MAX_BITS and exits[-1].complete, f"{last:.3f}")
    yield Point(
        f"and is at least {MIN_GAIN_BITS} better than the first", first - last >= MIN_GAIN_BITS, f"{first:.3f} - {last:.3f}"
    )
    yield Point("the export in plain torch gives the same bits per byte", abs(plain - last) < SAME_BITS, f"{plain:.4f}")


def _figures(facts: Facts) -> Iterator[tuple[str, str]]:
    story = facts.story
    for node_id in sorted(story.cheats & story.accused.keys()):
        found_s = story.accused[node_id].at_s
        since_s = found_s - story.first_hosted_s.get(node_id, found_s)
        yield f"{facts.names[node_id]} cheats from its first batch on", f"in quarantine after {since_s:.1f} s"
    if facts.ledger is not None:
        yield from _trust(facts.ledger)
    for depth, (vnode, result) in enumerate(zip(facts.order, exits_of(facts), strict=True), 1):
        yield f"exit {depth} ({vnode}), test split", _one(result)
    if story.first_learned_s is not None and story.last_learned_s is not None:
        took = story.last_learned_s - story.first_learned_s
        yield "first to last learned batch, kills included", f"{took:.1f} s (aim: {facts.time_limit_s:.0f} s on 2 idle cores)"
    total = story.total()
    yield from batch_states(facts)
    yield "batches learned again after a restore / forwarded again", f"{story.relearned} / {total.forwarded}"
    yield "frames that came twice and were dropped", str(total.duplicates)
    yield "PNodes that hosted a VNode", str(len(story.pnodes_used))
    for kill in story.kills:
        yield f"SIGKILL of {kill.kind} {kill.name}", _after_kill(kill)
    yield "DHT look-ups of PNodes", _lookups(facts)
    yield "manifest", facts.manifest
    yield "export", facts.export
    if "sample" in facts.plain:
        yield "generated text", repr(facts.plain["sample"])
    if facts.reference is not None:
        yield BACKPROP, _backprop(facts.reference)


def _backprop(compared: Compared) -> str:
    if compared.trouble:
        return "NOT MEASURED"
    exits = " / ".join(f"{accuracy:.2%} ({loss / math.log(2):.3f} bits)" for _, accuracy, loss in compared.exits)
    return f"{exits} in {compared.took_s:.0f} s, one process, {compared.threads} threads"


def _lookups(facts: Facts) -> str:
    """As each last told; killed ones just before."""
    lookups, killed = facts.story.lookups, {kill.node_id for kill in facts.story.kills}
    text = str(sum(lookups.values()))
    gone = sum(count for node_id, count in lookups.items() if node_id in killed)
    text += f", {gone} of them by PNodes that were killed" if gone else ""
    silent = sorted(name for node_id, name in facts.names.items() if node_id not in lookups)
    return f"{text}; not told by {', '.join(silent)}" if silent else text


def _trust(ledger: LedgerAudit) -> Iterator[tuple[str, str]]:
    yield "intervals by verdict", ", ".join(f"{count} {name}" for name, count in ledger.counts().items() if count)
    whole = together(ledger.exposures)
    yield "steps that may be wrong unnoticed, at most", f"{whole.undetected_steps:.1f} of {whole.num_steps}"


def exits_of(facts: Facts) -> list[model_pb2.ExitResult]:
    """Of every VNode: the newest result on the test split, or one without counts."""
    curves = {item.vnode: item.curve for item in facts.job.vnodes}
    return [
        next((result for result in reversed(curves.get(vnode, ())) if result.split == "test"), model_pb2.ExitResult())
        for vnode in facts.order
    ]


def _bits(result: model_pb2.ExitResult) -> float:
    return result.sum_loss / max(1, result.count) / math.log(2)


def _one(result: model_pb2.ExitResult) -> str:
    if not result.count:
        return "no result"
    return f"{result.correct / result.count:.2%} ({result.correct} of {result.count}), {_bits(result):.3f} bits each"


def _after_kill(kill: Kill) -> str:
    if kill.kind != "PNode":
        return f"another decides {_after(kill.decided_s, kill.at_s)}, next batch seen {_after(kill.training_s, kill.at_s)}"
    text = f"suspected {_after(kill.suspected_s, kill.at_s)}, taken for gone {_after(kill.gone_s, kill.at_s)}, "
    return text + f"placed elsewhere {_after(kill.decided_s, kill.at_s)}, training again {_after(kill.training_s, kill.at_s)}"


def _after(at_s: float | None, began_s: float) -> str:
    return f"after {at_s - began_s:.1f} s" if at_s is not None else "not seen"
