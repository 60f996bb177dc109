"""Goal: whoever reads the chain of manifests comes to the same ledger and standings; a chain that contradicts itself is refused; faults need evidence."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr.errors import Corrupt
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import common_pb2, model_pb2
from trust.folding import AUDITS_DRAWN, FIRST, NEXT, Chronicle, Folding, Proof, chronicle_of, standing_of, standings_of
from trust.going_back import Cause, gone_back, way_back
from trust.ledger import Verdict
from trust.standing import SHADOW_UNITS, ShadowPassed, Standing, State

NODES = {letter: digest_of(letter.encode())[:40] for letter in "xyz"}
BEHIND = {"a": frozenset("b"), "b": frozenset[str]()}
SPARED, PASSED, OPEN, FAILED = Verdict.SPARED, Verdict.PASSED, Verdict.OPEN, Verdict.FAILED


def name_of(text: str) -> str:
    """A digest for a readable name."""
    return digest_of(text.encode())


@dataclass
class Chain:
    """A chain of manifests in the making, as a holder writes it. Manifest 0 names a checkpoint of each VNode."""

    manifests: list[model_pb2.Manifest] = field(default_factory=lambda: [manifest("a", "b")])
    low: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    told: dict[str, model_pb2.Contribution] = field(default_factory=dict)
    now_ms: int = 1_000_000_000

    def next(self) -> model_pb2.Manifest:
        """A manifest that names what the one before named."""
        before, made = self.manifests[-1], model_pb2.Manifest(number=len(self.manifests), audits=AUDITS_DRAWN)
        made.entries.extend(before.entries)
        made.retracted.extend(before.retracted)
        self.manifests.append(made)
        self.now_ms += 1000
        return made

    def learned(self, vnode: str, *pieces: tuple[str, str, Verdict], batches: int = 4) -> None:
        """A new checkpoint with these intervals: name, PNode, what the draw said."""
        made = self.next()
        for name, node, verdict in pieces:
            low = self.low[vnode]
            self.low[vnode] = low + batches
            one = made.contributions.add(
                vnode=vnode, replica=f"{vnode}.0", pnode_id=NODES[node], interval=name_of(name), verdict=verdict.value,
                decided_unix_ms=self.now_ms, batches=common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=low, end=low + batches)]),
            )  # fmt: skip
            self.told[name] = one
        entry = next(entry for entry in made.entries if entry.vnode == vnode)
        newest = model_pb2.Checkpoint(vnode=vnode, digest=name_of("checkpoint of " + pieces[-1][0]))
        kept = list(entry.working)
        del entry.working[:]
        entry.working.extend([newest, *kept])

    def judged(self, name: str, verdict: Verdict, evidence: str = "") -> model_pb2.Manifest:
        """A manifest with a verdict."""
        made = self.next()
        one = made.contributions.add()
        one.CopyFrom(self.told[name])
        one.verdict, one.evidence, one.decided_unix_ms = verdict.value, evidence, self.now_ms
        return made

    def fails(self, name: str, cause: Cause) -> None:
        """Verdict and way back in one manifest."""
        way = way_back(self.read().ledger, name_of(name), cause, BEHIND)
        made = self.judged(name, way.verdict, name_of("evidence"))
        by_digest = {one.interval: one for one in self.told.values()}
        for names, verdict in ((way.void, Verdict.VOID), (way.dropped, Verdict.DROPPED)):
            for interval in sorted(names):
                one = made.contributions.add()
                one.CopyFrom(by_digest[interval])
                one.verdict, one.decided_unix_ms = verdict.value, self.now_ms
        for vnode, found in way.returns.items():
            made.retracted.extend(found.retracted)
            entry = next(entry for entry in made.entries if entry.vnode == vnode)
            kept = [one for one in entry.working if one.digest not in found.retracted]
            del entry.working[:]
            entry.working.extend(kept)
            self.low[vnode] -= len(found.needed_again)

    def read(self) -> Chronicle:
        stored = {one.digest for made in self.manifests for entry in made.entries for one in entry.working}
        return chronicle_of(self.manifests, stored)


def proofs_in(chain: Chain) -> set[Proof]:
    """Every failure that is told is verified."""
    return {one.proof for one in chain.read().told if one.verdict is FAILED}


def manifest(*vnodes: str) -> model_pb2.Manifest:
    entries = [
        model_pb2.ManifestEntry(vnode=one, working=[model_pb2.Checkpoint(vnode=one, digest=name_of(f"first of {one}"))])
        for one in vnodes
    ]
    return model_pb2.Manifest(entries=entries)


def story() -> Chain:
    chain = Chain()
    chain.learned("a", ("a1", "x", SPARED))
    chain.learned("b", ("b1", "y", OPEN))
    chain.learned("a", ("a2", "x", OPEN), ("a3", "z", SPARED))
    chain.judged("b1", PASSED)
    return chain


def test_a_chain_gives_lines_verdicts_and_what_is_cleared() -> None:
    ledger = story().read().ledger
    assert [ledger.num_cleared(vnode) for vnode in "ab"] == [2, 2]
    assert [one.verdict for one in ledger.intervals.values()] == [SPARED, PASSED, OPEN, SPARED]
    assert ledger.held("a", 2) == IntervalSet.span(0, 12)
    assert ledger.credit({"a": 1.0, "b": 10.0}) == {NODES["x"]: 4.0, NODES["y"]: 40.0}


def test_states_that_the_store_has_no_more_are_no_place_to_return_to() -> None:
    ledger = chronicle_of(story().manifests, {name_of("checkpoint of a1")}).ledger
    assert [one.is_kept for one in ledger.lines["a"]] == [False, True, False]


def test_verdict_and_way_back_in_one_manifest_give_the_ledger_that_they_say() -> None:
    chain = story()
    before = chain.read().ledger
    chain.fails("a2", Cause.FAULT)
    ledger = chain.read().ledger
    assert ledger == gone_back(before, way_back(before, name_of("a2"), Cause.FAULT, BEHIND))
    assert [one.digest for one in ledger.lines["a"]] == [name_of("first of a")]
    chain.learned("a", ("a4", "y", SPARED))
    assert chain.read().ledger.held("a", 1) == IntervalSet.span(0, 4), "what was lost is learned again by somebody else"


def test_standings_follow_from_the_chain_and_faults_from_verified_evidence_only() -> None:
    chain = story()
    chain.fails("a2", Cause.FAULT)
    believed = standings_of(chain.read(), proofs_in(chain), now_s=chain.now_ms / 1000)
    assert {node: standing.state for node, standing in believed.items()} == {
        NODES["x"]: State.QUARANTINED, NODES["y"]: State.PROBATION, NODES["z"]: State.PROBATION,
    }  # fmt: skip
    assert believed[NODES["y"]].passes.amount == 1.0
    assert believed[NODES["x"]].evidence == name_of("evidence")
    assert standings_of(chain.read(), (), now_s=chain.now_ms / 1000)[NODES["x"]].state is State.PROBATION, (
        "a holder's word alone weighs nothing"
    )


def test_an_interval_that_nobody_can_verify_blames_nobody() -> None:
    chain = story()
    chain.fails("a2", Cause.UNVERIFIABLE)
    standing = standings_of(chain.read(), proofs_in(chain), now_s=chain.now_ms / 1000)[NODES["x"]]
    assert (standing.state, standing.num_quarantines) == (State.PROBATION, 0)
    chain = Chain()
    for number in range(40):
        chain.learned("a", (f"i{number}", "x", OPEN))
        chain.judged(f"i{number}", PASSED)
    assert standings_of(chain.read(), (), now_s=chain.now_ms / 1000)[NODES["x"]].state is State.ACTIVE
    chain.learned("a", ("last", "x", OPEN))
    chain.fails("last", Cause.UNVERIFIABLE)
    assert 19 < standings_of(chain.read(), (), now_s=chain.now_ms / 1000)[NODES["x"]].passes.amount < 20


def test_after_rehab_new_work_counts_and_old_offences_do_not() -> None:
    chain = Chain()
    chain.learned("a", ("a1", "x", OPEN), ("a2", "x", OPEN))
    chain.fails("a1", Cause.FAULT)
    end_s = chain.now_ms / 1000 + 900
    own = {NODES["x"]: [ShadowPassed(end_s)] * SHADOW_UNITS}
    chain.now_ms += 3_600_000
    chain.judged("a2", FAILED, name_of("evidence"))

    def standing() -> Standing:
        return standings_of(chain.read(), proofs_in(chain), own, now_s=chain.now_ms / 1000)[NODES["x"]]

    assert (standing().state, standing().num_quarantines) == (State.PROBATION, 1)
    assert standings_of(chain.read(), proofs_in(chain), now_s=chain.now_ms / 1000)[NODES["x"]].state is State.REHAB, (
        "without the own record it begins again"
    )
    chain.learned("a", ("a3", "x", OPEN))
    chain.fails("a3", Cause.FAULT)
    assert (standing().state, standing().num_quarantines) == (State.QUARANTINED, 2)


def test_an_interval_counts_once_however_often_it_is_opened_and_passes() -> None:
    """One that was opened and passed again and again made its PNode one of the most trusted, by the holder's word; honest ones counted twice after a liar."""
    chain, passes = Chain(), list[float]()

    def noted() -> None:
        passes.append(round(standings_of(chain.read(), (), now_s=chain.now_ms / 1000)[NODES["x"]].passes.amount, 2))

    chain.learned("a", ("a1", "x", OPEN), ("a2", "x", OPEN))
    chain.judged("a2", PASSED)
    for _ in range(12):
        chain.judged("a1", PASSED)
        noted()
        chain.judged("a1", OPEN)
        noted()
    assert passes == [2.0, 1.0] * 12, "what is open again has not passed"
    chain.judged("a1", PASSED)
    assert standings_of(chain.read(), (), now_s=chain.now_ms / 1000)[NODES["x"]].state is State.PROBATION
    told = chain.read().told
    both = standing_of([told, told], (), (), now_s=chain.now_ms / 1000)
    assert round(both.passes.amount) == 2, "nor does it count again where another chain tells of it"
    assert round(both.batches.amount) == 8
    chain.judged("a1", OPEN)
    chain.judged("a1", Verdict.UNVERIFIABLE)
    noted()
    assert passes[-1] == 0.5, "its pass is gone, and half of the other"


def change(**fields: object) -> Callable[[Chain], None]:
    """Something else in the last contribution."""

    def done(chain: Chain) -> None:
        one = chain.manifests[-1].contributions[-1]
        for key, value in fields.items():
            one.ClearField(key)  # type: ignore[arg-type]
            one.MergeFrom(model_pb2.Contribution(**{key: value}))  # type: ignore[arg-type]

    return done


def unretract(chain: Chain) -> None:
    chain.fails("a2", Cause.FAULT)
    entry = next(one for one in chain.manifests[-1].entries if one.vnode == "a")
    entry.working.insert(0, model_pb2.Checkpoint(vnode="a", digest=name_of("checkpoint of a3")))


def batches_again(chain: Chain) -> None:
    chain.low["b"] = 2
    chain.learned("b", ("b2", "x", OPEN))


def unnamed(chain: Chain) -> None:
    chain.learned("b", ("b2", "x", OPEN))
    del chain.manifests[-1].entries[1].working[0]


def nameless(chain: Chain) -> None:
    chain.learned("b", ("b2", "x", OPEN))
    del chain.manifests[-1].entries[1]


def newest(chain: Chain, name: str) -> None:
    """A checkpoint of that name is the newest of "a" from the last manifest on."""
    entry = next(one for one in chain.manifests[-1].entries if one.vnode == "a")
    entry.working.insert(0, model_pb2.Checkpoint(vnode="a", digest=name_of(name)))


def told_again(name: str) -> Callable[[Chain], None]:
    """An interval that is told with the verdict that it has, and a checkpoint of its own."""

    def done(chain: Chain) -> None:
        chain.judged(name, chain.read().ledger.intervals[name_of(name)].verdict, name_of("evidence"))
        newest(chain, "another")

    return done


def failed_again(chain: Chain) -> None:
    chain.fails("a2", Cause.FAULT)
    told_again("a2")(chain)


def unheard_of(chain: Chain) -> None:
    chain.next().entries.add(vnode="c", working=[model_pb2.Checkpoint(vnode="c", digest=name_of("first of c"))])
    chain.low["c"] = 0
    chain.learned("c", ("c1", "x", OPEN))
    del chain.manifests[-2]


def digest_of_words(chain: Chain) -> None:
    chain.learned("b", ("b2", "x", OPEN))
    chain.manifests[-1].entries[1].working[0].digest = "words"


LIES: dict[str, Callable[[Chain], None]] = {
    "another node": change(pnode_id=NODES["z"]),
    "another VNode": change(vnode="a"),
    "another replica": change(replica="b.7"),
    "no verdict": change(verdict="fine"),
    "spared afterwards": change(verdict="spared"),
    "failed without evidence": change(verdict="failed"),
    "no interval": change(interval=""),
    "other batches": lambda chain: chain.manifests[-1].contributions[-1].batches.intervals.add(first=90, end=91),
    "an interval of another form": lambda chain: (chain.learned("b", ("b2", "x", OPEN)), change(interval="x")(chain))[0],
    "told twice alike": told_again("a3"),
    "failed twice": failed_again,
    "a VNode that the job did not begin with": unheard_of,
    "a checkpoint of another form": digest_of_words,
    "begins as passed": lambda chain: chain.learned("b", ("b2", "x", PASSED)),
    "no node": lambda chain: (chain.learned("b", ("b2", "x", OPEN)), change(pnode_id="x")(chain))[0],
    "a retracted state named again": unretract,
    "batches that count already": batches_again,
    "no checkpoint of its own": unnamed,
    "no checkpoint at all": nameless,
    "another beginning": lambda chain: setattr(chain.manifests[0].entries[1].working[0], "digest", name_of("other")),
    "audits not in force": lambda chain: setattr(chain.manifests[2], "audits", "none"),
    "nothing at all": lambda chain: chain.manifests.clear(),
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.replace(" ", "-"))
def test_a_chain_that_contradicts_itself_is_refused(lie: str) -> None:
    chain = story()
    chain.read()
    LIES[lie](chain)
    with pytest.raises(Corrupt) as refused:
        chronicle_of(chain.manifests, ())
    assert refused.value.code == "bad_ledger"
    assert not re.search("[0-9a-f]{13}", refused.value.message), "names are shown by their first twelve digits"


def left_aside(**changed: object) -> Chain:
    """A checkpoint is left aside, and what it held is taken up again by the next one."""
    chain = Chain()
    chain.learned("a", ("a1", "x", SPARED))
    made = chain.next()
    made.retracted.append(name_of("checkpoint of a1"))
    del next(entry for entry in made.entries if entry.vnode == "a").working[0]
    chain.judged("a1", SPARED)
    change(**changed)(chain)
    newest(chain, "again")
    return chain


def test_what_is_taken_up_again_is_the_same_as_before() -> None:
    ledger = left_aside().read().ledger
    assert [one.intervals for one in ledger.lines["a"]] == [(), (name_of("a1"),)]
    for changed in ({"pnode_id": NODES["z"]}, {"replica": "a.7"}, {"batches": common_pb2.IntervalSet()}):
        with pytest.raises(Corrupt, match="another than before"):
            left_aside(**changed).read()


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ("told twice alike", "told twice alike"),
        ("failed twice", "told twice alike"),
        ("a VNode that the job did not begin with", "no checkpoint of their own"),
    ],
)
def test_what_a_manifest_alone_cannot_say_is_refused_as_it_is_read(lie: str, told: str) -> None:
    chain = story()
    LIES[lie](chain)
    folding = Folding(chain.manifests[0])
    for one in chain.manifests[1:-1]:
        folding.read(one)
    with pytest.raises(Corrupt, match=told):
        folding.read(chain.manifests[-1])


@pytest.mark.parametrize("first", Verdict)
@pytest.mark.parametrize("then", Verdict)
def test_only_known_ways_lead_from_verdict_to_verdict(first: Verdict, then: Verdict) -> None:
    chain = Chain()
    chain.learned("a", ("a1", "x", SPARED if first in (SPARED, Verdict.VOID, Verdict.DROPPED) else OPEN))
    if first not in FIRST:
        chain.judged("a1", first, name_of("evidence"))
    chain.judged("a1", then, name_of("evidence"))
    if then in NEXT[first]:
        assert next(iter(chain.read().ledger.intervals.values())).verdict is then
    else:
        with pytest.raises(Corrupt):
            chain.read()


STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.sampled_from(Verdict), st.sampled_from(Cause)), max_size=14
)


@settings(max_examples=40)
@given(STEPS)
def test_whatever_happens_the_chain_reads_as_the_holder_meant_it(steps: list[tuple[str, str, Verdict, Cause]]) -> None:
    chain = Chain()
    for number, (vnode, node, verdict, cause) in enumerate(steps):
        chain.learned(vnode, (f"i{number}", node, SPARED if verdict is SPARED else OPEN))
        before = chain.read().ledger
        if verdict is PASSED:
            chain.judged(f"i{number}", PASSED)
        elif verdict is FAILED:
            chain.fails(f"i{number}", cause)
            assert chain.read().ledger == gone_back(before, way_back(before, name_of(f"i{number}"), cause, BEHIND))
    ledger = chain.read().ledger
    for vnode in "ab":
        assert ledger.held(vnode, len(ledger.lines[vnode]) - 1) == IntervalSet.span(0, chain.low[vnode])
