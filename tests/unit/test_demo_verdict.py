"""Goal: the demo ends with 0 only where every point held: each of them can fail alone, is named then, and its words follow from the facts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dcnr.audit_ledger import LedgerAudit
from dcnr.audit_lineage import VNodeLineage
from dcnr.demo.examples import Example
from dcnr.demo.facts import WHOLE_LIMIT_S, Compared, Facts
from dcnr.demo.run import Options, in_time, run_demo
from dcnr.demo.story import Accused, Kill, Resumed, Story
from dcnr.demo.verdict import MAX_BITS, MIN_ACCURACY, verdict_of
from dcnr.errors import TimedOut
from dcnr.intervals import IntervalSet
from dcnr.ledger_check import JobLedger
from dcnr.v1 import model_pb2, orchestrator_pb2
from trust.exposure import Exposure
from trust.folding import Chronicle
from trust.ledger import Interval, Ledger, Named
from trust.ledger import Verdict as Judgement

N = 100
CHEAT, HONEST = "c" * 40, "a" * 40
EVIDENCE = "e" * 64
JOB_DONE = "job completed"
IN_TIME = "all of it took at most 15 minutes"
LINEAGES = "every stored lineage is exactly [0, N), each batch once"
KILLED = "after SIGKILL of PNode p1 training went on"
RESTORED = "what PNode p1 held was restored from a checkpoint above 0"
TAKEN_OVER = "after SIGKILL of orchestrator o1 training went on"
BOTH = "a PNode and the deciding orchestrator were killed"
CAUGHT = "the PNode that cheats, p6, was caught with evidence"
JUDGED = "the chain of manifests has failed audits of what p6 did"
TAKEN_BACK = "nothing that p6 did is in the model"
AGAIN = "others learned again what p6 had learned"
NOBODY_ELSE = "no honest PNode was accused"
LEDGER = "the trust ledger holds"
ACCURATE = "test accuracy of the last exit is at least 99.0%"
SAME_IMAGES = "the export in plain torch gives the same number of correct images"
FEW_BITS = "the last exit has at most 2.45 bits per byte"
DEEPER = "and is at least 0.03 better than the first"
SAME_BITS = "the export in plain torch gives the same bits per byte"
COMPARED = "the comparison with backprop was made"
COMMON = {
    JOB_DONE,
    IN_TIME,
    LINEAGES,
    KILLED,
    RESTORED,
    TAKEN_OVER,
    BOTH,
    CAUGHT,
    JUDGED,
    TAKEN_BACK,
    AGAIN,
    NOBODY_ELSE,
    LEDGER,
    COMPARED,
}


def ledger(
    *, in_line: bool = False, accepted: bool = True, verdict: Judgement = Judgement.FAILED, num_again: int = 10, trouble: str = "",
    faults: Mapping[str, str] | None = None,
) -> LedgerAudit:  # fmt: skip
    """Of a job in which the cheat had ten batches of ``b`` accepted, which its audit then failed, and so many of which others learned."""
    others = IntervalSet.of(*([] if in_line else [(0, num_again)]), (10, N))
    intervals = {
        "h1": Interval("h1", 0, "a", "a.1", HONEST, IntervalSet.span(0, N), Judgement.PASSED),
        "h2": Interval("h2", 2, "b", "b.2", HONEST, others, Judgement.SPARED),
    }
    if accepted:
        intervals["bad"] = Interval("bad", 1, "b", "b.1", CHEAT, IntervalSet.span(0, 10), verdict)
    lines = {
        "a": (Named("a0", ()), Named("a1", ("h1",))),
        "b": (Named("b0", ()), Named("b1", ("bad", "h2") if in_line else ("h2",))),
    }
    chronicle = Chronicle(Ledger(lines, intervals))
    chronicle.ledger.check()
    found = {EVIDENCE: CHEAT} if faults is None else dict(faults)
    return LedgerAudit(
        (JobLedger("job", 7, chronicle),), (Exposure(1.5, 2 * N, 0.5),), trouble=trouble, num_receipts=3, faults=found
    )


WELL = Resumed(num_durable=20, num_learned=20, is_from_start=False)
OVER = replace(WELL, is_from_start=True)


def kill(kind: str, name: str, *vnodes: str, training_s: float | None = 14.0, resumed: Resumed | None = WELL) -> Kill:
    return Kill(
        kind, name, name, 10.0, vnodes, suspected_s=11.0, gone_s=11.0, decided_s=12.0, training_s=training_s,
        resumed={} if resumed is None else dict.fromkeys(vnodes, resumed),
    )  # fmt: skip


def story(*kills: Kill, accused: tuple[str, ...] = (CHEAT,)) -> Story:
    told = Story(cheats=frozenset({CHEAT}), first_learned_s=5.0, last_learned_s=65.0, relearned=3)
    told.kills.extend(kills or (kill("PNode", "p1", "a"), kill("orchestrator", "o1")))
    told.accused.update({node_id: Accused(9.0, "interval bad failed its audit", EVIDENCE) for node_id in accused})
    told.first_hosted_s[CHEAT] = 4.0
    told.learned.update(a=N, b=N)
    told.primaries.update(("a.1", "b.1"))
    told.lookups.update({HONEST: 5, CHEAT: 2})
    return told


def job(
    *, correct: int = 995, bits: tuple[float, float] = (2.3, 2.2), complete: bool = True,
    state: model_pb2.JobState.ValueType = model_pb2.JOB_STATE_COMPLETED,
) -> orchestrator_pb2.JobView:  # fmt: skip
    shown = orchestrator_pb2.JobView(num_batches=N, state=state)
    for vnode, loss in zip("ab", bits, strict=True):
        shown.vnodes.add(vnode=vnode).curve.add(
            vnode=vnode, split="test", count=1000, correct=correct, sum_loss=1000 * loss * math.log(2), complete=complete
        )
    return shown


def lineage(vnode: str, *pnodes: str, num_batches: int = N, exact: bool = True) -> VNodeLineage:
    learned = tuple((f"{vnode}.1", pnode_id, num_batches) for pnode_id in pnodes or (HONEST,))
    return VNodeLineage(vnode, "d" * 64, num_batches, 4, exact, "" if exact else "twice", learned, exact)


LINES = (lineage("a"), lineage("b"))
BACKPROP = Compared((("a", 0.98, 2.3 * math.log(2)), ("b", 0.996, 2.2 * math.log(2))), took_s=12.0, threads=2)
IMAGES = Facts(
    example="mnist", time_limit_s=180.0, story=story(), names={CHEAT: "p6", HONEST: "p1"}, order=("a", "b"), job=job(), took_s=200.0,
    are_kills_wanted=True, reference=BACKPROP, plain={"correct": 995, "count": 1000}, lineages=LINES, durable={"a": N, "b": N}, ledger=ledger(),
    manifest="m", export="e",
)  # fmt: skip
TEXTS = replace(IMAGES, example="text", plain={"bits_per_byte": 2.2001, "sample": "def"})
Change = Callable[[Facts], Facts]
OF_ALL: list[tuple[str, Change, set[str]]] = [
    ("cancelled", lambda f: replace(f, job=job(state=model_pb2.JOB_STATE_CANCELLED)), {JOB_DONE}),
    ("too slow", lambda f: replace(f, took_s=WHOLE_LIMIT_S + 0.1), {IN_TIME}),
    ("a batch twice", lambda f: replace(f, lineages=(lineage("a", num_batches=N + 1), LINES[1])), {LINEAGES}),
    ("not by its commits", lambda f: replace(f, lineages=(lineage("a", exact=False), LINES[1])), {LINEAGES}),
    ("a VNode without a lineage", lambda f: replace(f, lineages=LINES[:1]), {LINEAGES}),
    ("not all durable", lambda f: replace(f, durable={"a": N, "b": N - 1}), {LINEAGES}),
    ("unreadable commits", lambda f: replace(f, lineages=(), no_lineages="gone"), {LINEAGES, TAKEN_BACK}),
    ("nobody goes on", lambda f: replace(f, story=story(kill("PNode", "p1", "a", training_s=None), kill("orchestrator", "o1"))), {KILLED}),
    ("it starts over", lambda f: replace(f, story=story(kill("PNode", "p1", "a", resumed=OVER), kill("orchestrator", "o1"))), {RESTORED}),
    ("nothing is seen of it", lambda f: replace(f, story=story(kill("PNode", "p1", "a", resumed=None), kill("orchestrator", "o1"))), {RESTORED}),
    ("nobody takes over", lambda f: replace(f, story=story(kill("PNode", "p1", "a"), kill("orchestrator", "o1", training_s=None))), {TAKEN_OVER}),
    ("no orchestrator killed", lambda f: replace(f, story=story(kill("PNode", "p1", "a"))), {BOTH}),
    ("no PNode killed", lambda f: replace(f, story=story(kill("orchestrator", "o1"))), {BOTH}),
    ("not quarantined", lambda f: replace(f, story=story(accused=())), {CAUGHT}),
    ("no evidence in the store", lambda f: replace(f, ledger=ledger(faults={})), {CAUGHT}),
    ("evidence against another", lambda f: replace(f, ledger=ledger(faults={EVIDENCE: HONEST})), {CAUGHT, NOBODY_ELSE}),
    ("slander", lambda f: replace(f, story=story(accused=(CHEAT, HONEST))), {NOBODY_ELSE}),
    ("its work still counts", lambda f: replace(f, ledger=ledger(in_line=True)), {TAKEN_BACK, AGAIN}),
    ("nobody learned it again", lambda f: replace(f, ledger=ledger(num_again=9)), {AGAIN}),
    ("nobody blames it", lambda f: replace(f, ledger=ledger(verdict=Judgement.DROPPED)), {JUDGED}),
    ("caught before it did any", lambda f: replace(f, ledger=ledger(accepted=False)), {JUDGED, AGAIN}),
    ("its work is in a state", lambda f: replace(f, lineages=(LINES[0], lineage("b", HONEST, CHEAT))), {TAKEN_BACK}),
    ("no comparison", lambda f: replace(f, reference=Compared(trouble="reference failed: no such array")), {COMPARED}),
    ("a false ledger", lambda f: replace(f, ledger=ledger(trouble="interval h1 credits other batches")), {LEDGER}),
    ("an unreadable ledger", lambda f: replace(f, ledger=None, no_ledger="gone"), {CAUGHT, JUDGED, TAKEN_BACK, AGAIN, LEDGER}),
]  # fmt: skip
OF_IMAGES: list[tuple[str, Change, set[str]]] = [
    ("inaccurate", lambda f: replace(f, job=job(correct=989), plain={"correct": 989, "count": 1000}), {ACCURATE}),
    ("half evaluated", lambda f: replace(f, job=job(complete=False)), {ACCURATE}),
    ("another export", lambda f: replace(f, plain={"correct": 994, "count": 1000}), {SAME_IMAGES}),
    ("a mute script", lambda f: replace(f, plain={}), {SAME_IMAGES}),
]
OF_TEXTS: list[tuple[str, Change, set[str]]] = [
    ("too many bits", lambda f: replace(f, job=job(bits=(2.6, 2.46)), plain={"bits_per_byte": 2.46}), {FEW_BITS}),
    ("half evaluated", lambda f: replace(f, job=job(complete=False)), {FEW_BITS}),
    ("no deeper", lambda f: replace(f, job=job(bits=(2.22, 2.2))), {DEEPER}),
    ("another export", lambda f: replace(f, plain={"bits_per_byte": 2.21}), {SAME_BITS}),
    ("a mute script", lambda f: replace(f, plain={}), {SAME_BITS}),
]
CASES = [
    *((f"images: {name}", change(IMAGES), failing) for name, change, failing in (*OF_ALL, *OF_IMAGES)),
    *((f"texts: {name}", change(TEXTS), failing) for name, change, failing in (*OF_ALL, *OF_TEXTS)),
]


def test_a_run_in_which_everything_held_ends_with_0() -> None:
    for facts, own in ((IMAGES, {ACCURATE, SAME_IMAGES}), (TEXTS, {FEW_BITS, DEEPER, SAME_BITS})):
        verdict = verdict_of(facts)
        assert {point.what for point in verdict.points} == COMMON | own
        assert verdict.exit_code == 0, verdict.lines()
        assert verdict.lines()[-1] == "the demo held in every point"
        assert "FAILED" not in "\n".join(verdict.lines())


@pytest.mark.parametrize(("facts", "failing"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_point_fails_alone_and_is_named(facts: Facts, failing: set[str]) -> None:
    verdict = verdict_of(facts)
    assert {point.what for point in verdict.points if not point.good} == failing
    assert verdict.exit_code == 1
    lines = verdict.lines()
    assert all(any(f"[FAILED] {what}: " in line for line in lines) for what in failing)
    assert lines[-1] == f"the demo FAILED in {len(failing)} of {len(verdict.points)} points"


def test_every_point_was_seen_failing() -> None:
    """Goal: a point that is added without a case here is noticed."""
    seen = {what for _, facts, failing in CASES for what in failing}
    assert seen == {point.what for facts in (IMAGES, TEXTS) for point in verdict_of(facts).points}


def test_a_run_without_kills_is_not_held_to_them() -> None:
    told = story()
    told.kills.clear()
    verdict = verdict_of(replace(IMAGES, story=told, are_kills_wanted=False))
    assert verdict.exit_code == 0
    assert not any("SIGKILL" in point.what or "killed" in point.what for point in verdict.points)


def test_a_comparison_that_is_late_fails_nothing_and_is_said_loudly() -> None:
    """Goal: a slow machine is not wrong, and nobody overlooks that a figure is missing."""
    late = verdict_of(replace(IMAGES, reference=Compared(trouble="reference took longer than 900 s", is_late=True)))
    assert late.exit_code == 0
    assert dict(late.figures)["backprop, same graph and budget"] == "NOT MEASURED"
    assert COMPARED not in {point.what for point in late.points}
    assert late.lines()[-3:] == [
        "NOT MEASURED: backprop, same graph and budget: reference took longer than 900 s",
        "",
        "the demo held in every point",
    ]


def test_who_asks_for_no_comparison_gets_none() -> None:
    verdict = verdict_of(replace(IMAGES, reference=None))
    assert verdict.exit_code == 0
    assert not any("backprop" in line for line in verdict.lines())


def figures(facts: Facts) -> dict[str, str]:
    return dict(verdict_of(facts).figures)


def test_every_state_of_batches_has_a_row() -> None:
    shown = figures(IMAGES)
    assert shown["batches learned"] == "100 of 100 in every VNode"
    assert shown["batches merged, of replicas that only contributed"] == "0 of 100 in every VNode"
    assert shown["batches learned and not merged"] == "0 of 100 in every VNode"
    assert shown["batches durable"] == "100 of 100 in every VNode"
    assert shown["batches needed still"] == "0 of 100 in every VNode"
    assert shown["batches by verdict, taken back ones too"] == "10 failed, 100 passed, 100 spared"
    assert shown["batches learned again after a restore / forwarded again"] == "3 / 0"
    assert "batches cleared" not in shown, "where no audits are in force"


def test_states_of_batches_are_told_by_vnode_where_they_differ() -> None:
    ended = job()
    ended.audited = True
    beside = ended.vnodes[1].replicas.add()
    beside.assignment.role, beside.report.num_unmerged = model_pb2.ROLE_CONTRIBUTOR, 7
    merged = replace(LINES[1], learned=(("b.1", HONEST, 60), ("b.4", "d" * 40, 40)))
    shown = figures(
        replace(IMAGES, job=ended, lineages=(LINES[0], merged), durable={"a": 100, "b": 99}, cleared={"a": 100, "b": 80})
    )
    assert shown["batches merged, of replicas that only contributed"] == "of 100: a 0, b 40"
    assert shown["batches learned and not merged"] == "of 100: a 0, b 7"
    assert shown["batches durable"] == "of 100: a 100, b 99"
    assert shown["batches cleared"] == "of 100: a 100, b 80"
    assert shown["batches needed still"] == "of 100: a 0, b 1"
    assert "batches merged, of replicas that only contributed" not in figures(replace(IMAGES, lineages=(), no_lineages="gone"))


def test_look_ups_of_killed_pnodes_count() -> None:
    assert figures(IMAGES)["DHT look-ups of PNodes"] == "7"
    killed = story(replace(kill("PNode", "p1", "a"), node_id=HONEST), kill("orchestrator", "o1"))
    assert figures(replace(IMAGES, story=killed))["DHT look-ups of PNodes"] == "7, 5 of them by PNodes that were killed"
    del killed.lookups[HONEST]
    assert figures(replace(IMAGES, story=killed))["DHT look-ups of PNodes"] == "2; not told by p1"


def test_what_was_restored_is_told() -> None:
    def said(resumed: Resumed | None) -> str:
        told = story(kill("PNode", "p1", "a", resumed=resumed), kill("orchestrator", "o1"))
        return next(point.detail for point in verdict_of(replace(IMAGES, story=told)).points if point.what == RESTORED)

    assert said(WELL) == "a: from 20 batches, 20 were durable"
    assert said(OVER) == "a: from checkpoint 0, 20 were durable"
    assert said(replace(OVER, num_durable=0)) == "a: nothing of it was durable yet"
    assert said(None) == "a: not seen"


def test_the_table_says_how_much_of_the_cheats_work_was_taken_back_and_learned_again() -> None:
    def said(facts: Facts, what: str = TAKEN_BACK) -> str:
        return next(point.detail for point in verdict_of(facts).points if point.what == what)

    assert said(IMAGES, JUDGED) == "1 of 1 intervals that manifests had accepted"
    assert said(IMAGES, AGAIN) == "10 batches of b"
    assert said(replace(IMAGES, ledger=ledger(num_again=9)), AGAIN) == "not 1 of 10 batches of b"
    assert said(IMAGES) == "10 batches that manifests had accepted were taken back"
    assert said(replace(IMAGES, ledger=ledger(accepted=False))) == "no manifest had accepted any of it"
    assert said(replace(IMAGES, ledger=ledger(in_line=True))) == "still in b: 10 batches of it were accepted"


def test_the_aims_are_those_of_the_table() -> None:
    assert (MIN_ACCURACY, MAX_BITS, WHOLE_LIMIT_S) == (0.99, 2.45, 15 * 60)


class Clock:
    """Goes when it is told to."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s


@pytest.mark.parametrize("until_s", [WHOLE_LIMIT_S - 0.1, WHOLE_LIMIT_S, WHOLE_LIMIT_S + 0.1])
def test_what_has_not_ended_after_15_minutes_is_ended(until_s: float) -> None:
    clock, ended = Clock(), list[str]()

    async def work() -> str:
        clock.now_s = until_s
        try:
            await (asyncio.sleep(0) if until_s < WHOLE_LIMIT_S else asyncio.Event().wait())
        finally:
            ended.append("work")
        return "facts"

    if until_s < WHOLE_LIMIT_S:
        assert asyncio.run(in_time(work(), clock, WHOLE_LIMIT_S)) == "facts"
    else:
        with pytest.raises(TimedOut) as caught:
            asyncio.run(in_time(work(), clock, WHOLE_LIMIT_S))
        assert caught.value.code == "demo_timeout"
    assert ended == ["work"]


def test_a_demo_that_cannot_go_on_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: an error on the way is a failure too, and says what happened."""
    (tmp_path / "prepare.py").write_text("raise SystemExit('there is no such data set')")
    chosen = Example("none", "none", tmp_path, "CC0", "nowhere", 1.0, as_bytes=False)
    assert run_demo(Options(directory=tmp_path / "demo"), environment={}, chosen=chosen) == 1
    said = capsys.readouterr().out
    assert "the demo failed: preparing the data failed: there is no such data set" in said
