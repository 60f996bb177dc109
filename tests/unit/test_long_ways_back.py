"""Goal: however much goes back at once, the manifest that says so is one that every reader takes, and readers come to the ledger that its writer meant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from audited_rig import BEHIND, JOB, NODES, Job, drawn, judged, name_of, piece

from dataservice.manifest_form import AUDITS_DRAWN, CheckpointRecord, Entry, Manifest, to_proto
from dataservice.manifests import MAX_CONDEMNED, VERDICT_BYTES, Rules
from dcnr import limits
from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2
from orchestrator import audited, verdicts
from orchestrator.audit_events import Decision
from orchestrator.audited import audited_manifest
from orchestrator.chain import Chain
from orchestrator.verdicts import MAX_RETRACTED, contribution, news, take
from trust.folding import Chronicle
from trust.going_back import Cause
from trust.late_draw import drawn_of_the_found_out, left_behind
from trust.ledger import Interval, Ledger, Named, Verdict

EVIDENCE = name_of("evidence")
NUM_CHECKPOINTS, PER_CHECKPOINT = 6000, 4
"""Of each VNode: more than can be remembered as retracted, with more intervals than a manifest has room for."""


def long_ledger() -> Ledger:
    """x has hosted a since the job began; at b one interval in ten waits for its audit."""
    lines, intervals = dict[str, tuple[Named, ...]](), dict[str, Interval]()
    for vnode, node in (("a", "x"), ("b", "y")):
        line = [Named(name_of(f"{vnode}0"), ())]
        for number in range(NUM_CHECKPOINTS):
            names = tuple(name_of(f"{vnode}-{number}-{part}") for part in range(PER_CHECKPOINT))
            for part, name in enumerate(names):
                low = PER_CHECKPOINT * number + part
                verdict = Verdict.OPEN if vnode == "b" and not low % 100 else Verdict.SPARED
                intervals[name] = Interval(
                    name, len(intervals), vnode, f"{vnode}.0", NODES[node], IntervalSet.span(low, low + 1), verdict
                )
            line.append(Named(name_of(f"{vnode}{number + 1}"), names))
        lines[vnode] = tuple(line)
    return Ledger(lines, intervals)


def test_a_way_back_over_a_whole_job_fits_a_manifest_and_what_is_told_first_matters_most() -> None:
    ledger = long_ledger()
    failed = Decision(name_of("a-0-0"), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE)
    taken = take(ledger, [failed], BEHIND, frozenset(one.digest for line in ledger.lines.values() for one in line), 1)
    assert sum(len(one.SerializeToString()) for one in map(as_message, taken.contributions)) <= VERDICT_BYTES
    assert (taken.contributions[0].interval, taken.contributions[0].verdict) == (name_of("a-0-0"), "failed")
    assert taken.contributions[0].evidence == EVIDENCE
    assert taken.ledger is not None
    assert [[one.digest for one in line] for line in taken.ledger.lines.values()] == [[name_of("a0")], [name_of("b0")]]
    void = [one.interval for one in taken.contributions if one.verdict == "void"]
    assert len(void) > 1000
    assert len(taken.contributions) == 1 + len(void), "the accused's come first"


def as_message(one: verdicts.Contribution) -> model_pb2.Contribution:
    return verdicts.contribution_to_proto(one)


def test_the_manifest_is_one_that_every_reader_takes_whatever_else_it_holds() -> None:
    ledger = long_ledger()
    firsts = {vnode: model_pb2.Checkpoint(vnode=vnode, digest=name_of(f"{vnode}0")) for vnode in "ab"}
    chain = Chain(Chronicle(ledger), {one.digest: one for one in firsts.values()})
    zero = {
        vnode: CheckpointRecord(vnode, "", "", 0, name_of(f"{vnode}0"), 9, IntervalSet.empty(), 0, "", "", 0, "") for vnode in "ab"
    }
    newest = {
        vnode: replace(one, digest=name_of(f"{vnode}{NUM_CHECKPOINTS}"), job_id=JOB, lineage=IntervalSet.span(0, 10**6))
        for vnode, one in zero.items()
    }
    parent = Manifest(
        "e" * 40, "m" * 60, 10**6, "p" * 64, JOB, 1, "h" * 40, "g" * 64,
        {vnode: Entry((newest[vnode],), zero[vnode]) for vnode in "ab"}, audits=AUDITS_DRAWN,
        retracted=tuple(name_of(f"retracted {number}") for number in range(MAX_RETRACTED)),
        condemned=tuple(name_of(f"condemned {number}") for number in range(MAX_CONDEMNED)),
    )  # fmt: skip
    passes = [Decision(one.name, Verdict.PASSED, "why") for one in ledger.intervals.values() if one.verdict is Verdict.OPEN]
    failed = Decision(name_of("a-0-0"), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE)
    kept = frozenset(name_of(f"{vnode}0") for vnode in "ab")
    taken = take(ledger, news(chain, [*passes, failed]), BEHIND, kept, 1)
    rules = Rules(JOB, 1, "h" * 40, "g" * 64, {"a": "a.0", "b": "b.0"}, [], 1, 3_600_000, first=zero)
    made = audited_manifest(chain, parent, "d" * 64, [], taken, rules, lambda _: Verdict.SPARED, 7).manifest
    assert made is not None
    assert to_proto(made).ByteSize() <= limits.MAX_MANIFEST_BYTES - 16 * limits.KIB
    assert {vnode: entry.working[0].digest for vnode, entry in made.entries.items()} == {"a": name_of("a0"), "b": name_of("b0")}
    assert made.fences == {"a": 7, "b": 7}


def test_verdicts_without_a_way_back_are_told_as_far_as_they_fit_and_the_rest_next_time() -> None:
    pieces = IntervalSet.of(*((2 * number, 2 * number + 1) for number in range(1500)))
    names = [name_of(f"wide {number}") for number in range(200)]
    intervals = {name: Interval(name, number, "a", "a.0", NODES["x"], pieces, Verdict.OPEN) for number, name in enumerate(names)}
    ledger = Ledger({"a": (Named(name_of("a0"), ()),)}, intervals)
    taken = take(ledger, [Decision(name, Verdict.PASSED, "why") for name in names], BEHIND, frozenset(), 1)
    size = sum(as_message(one).ByteSize() for one in taken.contributions)
    assert 0.9 * verdicts.JUDGED_BYTES < size <= verdicts.JUDGED_BYTES
    assert (
        [one.interval for one in taken.decisions] == [one.interval for one in taken.contributions] == names[: len(taken.decisions)]
    )


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Job:
    """Room for two verdicts of a way back, and for one digest that was retracted. a is learned by x, b by y, of which an interval is open."""
    one = contribution(Interval(name_of("a"), 0, "a", "a.0", NODES["x"], IntervalSet.span(0, 4), Verdict.OPEN), Verdict.DROPPED, 1)
    monkeypatch.setattr(verdicts, "VERDICT_BYTES", 1000 + 2 * (as_message(one).ByteSize() + 16))
    monkeypatch.setattr(verdicts, "JUDGED_BYTES", 1000)
    for module in (verdicts, audited):
        monkeypatch.setattr(module, "MAX_RETRACTED", 1)
    job = Job()
    for number in range(5):
        low = 4 * number
        job.named(
            judged(f"a{number + 1}", f"a{number}", piece(f"a-{number}", low, low + 4), held=[(0, low + 4)]),
            judged(f"b{number + 1}", f"b{number}", piece(f"b-{number}", low, low + 4, "y"), held=[(0, low + 4)]),
            draw=drawn("b-2"),
        )
    return job


def test_what_a_manifest_has_no_room_to_name_leaves_the_lines_all_the_same(narrow: Job) -> None:
    narrow.named(decisions=[Decision(name_of("a-1"), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE)])
    assert len(narrow.newest.retracted) == 1
    assert [one.verdict for one in narrow.newest.contributions] == ["failed", "void", "void"]
    assert (narrow.line("a"), narrow.line("b")) == ([name_of("a0")], [name_of("b0")])
    ledger = narrow.chain().ledger
    assert ledger.credit({"a": 1.0, "b": 1.0}) == {}
    assert not narrow.chain().open_intervals(), "nobody waits for the audit of what counts no more"
    narrow.primaries = {"a": "a.7", "b": "b.7"}
    narrow.named(
        judged("a9", "a0", piece("a-9", 0, 8, "y", "a.7"), held=[(0, 8)], replica="a.7"),
        judged("b9", "b0", piece("b-9", 0, 8, "z", "b.7"), held=[(0, 8)], replica="b.7"),
    )
    assert (narrow.line("a"), narrow.line("b")) == ([name_of("a0"), name_of("a9")], [name_of("b0"), name_of("b9")])
    assert narrow.chain().ledger.credit({"a": 1.0, "b": 1.0}) == {NODES["y"]: 8.0, NODES["z"]: 8.0}


def test_an_open_interval_that_counts_no_more_takes_no_place_of_a_late_draw(narrow: Job) -> None:
    for number in range(5):
        narrow.named(
            judged(
                f"a{number + 6}", f"a{number + 5}", piece(f"a-{number + 5}", 20 + number, 21 + number, "z"), held=[(0, 21 + number)]
            ),
            draw=drawn(*(f"a-{one}" for one in range(5, 10))),
        )
    narrow.named(decisions=[Decision(name_of("a-0"), Verdict.FAILED, "why", Cause.FAULT, EVIDENCE)])
    narrow.primaries["a"] = "a.7"
    narrow.named(judged("ax", "a0", piece("a-x", 0, 4, "z", "a.7"), held=[(0, 4)], replica="a.7"))
    chronicle, now_s = narrow.chain().chronicle, narrow.now_ms / 1000
    left = left_behind(chronicle.ledger, chronicle.told, {NODES["z"]: now_s}, now_s)
    assert drawn_of_the_found_out(chronicle.ledger, left) == (name_of("a-x"),)
