"""Goal: a way back finds a state near where it has to end, and evidence stays as long as somebody may look at it, no longer."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from audited_rig import NODES, Job, drawn, judged, name_of, piece

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.ids import digest_of
from dcnr.v1 import model_pb2
from orchestrator import audit_retention
from orchestrator.audit_events import Decision
from orchestrator.audit_retention import EvidenceKeeper, kept_for_return
from trust.folding import Told
from trust.going_back import Cause
from trust.ledger import Verdict

MODEL, HOUR_MS = "m", 3_600_000


class Wall:
    """A clock that is set."""

    now_s = 1_800_000_000.0

    def wall(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


def grown(count: int, *opened: str) -> Job:
    """VNode a with that many checkpoints, of one interval each."""
    job = Job()
    for number in range(1, count + 1):
        piece_of = piece(f"a-{number}", number - 1, number)
        job.named(judged(f"a{number}", f"a{number - 1}", piece_of, held=[(0, number)]), draw=drawn(*opened))
    return job


def test_kept_are_the_first_those_before_open_intervals_and_cleared_ones_at_doubling_distances() -> None:
    kept = kept_for_return(grown(20, "a-15", "a-18").chain().ledger)
    assert kept == {name_of(f"a{at}") for at in (0, 14, 13, 12, 10, 6, 17)} | {name_of("b0")}


def test_evidence_of_what_is_decided_goes_and_that_of_failures_stays() -> None:
    clock = Wall()
    store, job = MemoryStore(clock, random.Random(1)), grown(3, "a-2")
    bundle, other, young = b"bundle of a fault", b"bundle of a pass", b"just written"
    record = model_pb2.FaultRecord(bundle_digest=digest_of(bundle)).SerializeToString()

    async def left(now_s: float) -> set[str]:
        clock.now_s = now_s
        keeper = EvidenceKeeper(store)
        await keeper.sweep(MODEL, await asyncio.to_thread(job.chain), int(now_s * 1000), HOUR_MS)
        return {key.rpartition("/")[2] for key in store.keys()}  # noqa: SIM118  not a mapping

    async def scenario() -> None:
        for data in (bundle, other, record):
            await store.put(keys.evidence(MODEL, "a", digest_of(data)), data)
        everything = {digest_of(data) for data in (bundle, other, record)}
        assert await left(clock.now_s + 9000) == everything, "an interval of that VNode has been open since: it may be about that"
        failed = Decision(name_of("a-2"), Verdict.FAILED, "wrong", Cause.FAULT, digest_of(record))
        await asyncio.to_thread(job.named, decisions=[failed])
        await store.put(keys.evidence(MODEL, "a", digest_of(young)), young)
        assert await left(clock.now_s + 1) == {digest_of(bundle), digest_of(record), digest_of(young)}

    asyncio.run(scenario())


def test_evidence_of_what_was_left_aside_stays_while_it_is_open() -> None:
    clock = Wall()
    store, job = MemoryStore(clock, random.Random(1)), grown(1, "a-1")
    job.named(judged("a9", "a0", piece("a-9", 1, 2, "y"), held=[(1, 2)], node="y"))
    chain = job.chain()
    assert chain.open_intervals() == ()
    decided = [Decision(name_of("a-1"), Verdict.PASSED, "why")]

    async def scenario() -> None:
        key = keys.evidence(MODEL, "a", digest_of(b"bundle"))
        await store.put(key, b"bundle")
        clock.now_s += 9000
        await EvidenceKeeper(store).sweep(MODEL, chain, int(clock.now_s * 1000), HOUR_MS)
        assert list(store.keys()) == [key]
        await asyncio.to_thread(lambda: job.named(decisions=decided))
        await EvidenceKeeper(store).sweep(MODEL, await asyncio.to_thread(job.chain), int(clock.now_s * 1000), HOUR_MS)
        assert list(store.keys()) == []

    asyncio.run(scenario())


def test_evidence_of_failures_in_earlier_jobs_stays() -> None:
    """Whoever committed one is barred by those that have verified it; an orchestrator that starts later has to find it."""
    clock = Wall()
    store, bundle, other = MemoryStore(clock, random.Random(1)), b"bundle of a fault", b"bundle of a pass"
    record = model_pb2.FaultRecord(bundle_digest=digest_of(bundle)).SerializeToString()
    failed = Told(NODES["x"], name_of("of an earlier job"), Verdict.FAILED, 1.0, 1.0, digest_of(record))
    chain = replace(grown(1).chain(), earlier=(failed,))

    async def scenario() -> None:
        for data in (bundle, other, record):
            await store.put(keys.evidence(MODEL, "b", digest_of(data)), data)
        clock.now_s += 9000
        await EvidenceKeeper(store).sweep(MODEL, chain, int(clock.now_s * 1000), HOUR_MS)
        assert {key.rpartition("/")[2] for key in store.keys()} == {digest_of(bundle), digest_of(record)}  # noqa: SIM118

    asyncio.run(scenario())


def test_evidence_about_a_vnode_that_the_model_does_not_have_goes_too() -> None:
    clock, chain = Wall(), grown(1).chain()
    store = MemoryStore(clock, random.Random(1))

    async def scenario() -> None:
        for vnode in ("a", "nobody"):
            await store.put(keys.evidence(MODEL, vnode, digest_of(b"junk")), b"junk")
        await store.put(keys.evidence("other", "nobody", digest_of(b"junk")), b"junk")
        clock.now_s += 9000
        assert not await EvidenceKeeper(store).sweep(MODEL, chain, int(clock.now_s * 1000), HOUR_MS), (
            "nothing is left that could go"
        )
        assert list(store.keys()) == [keys.evidence("other", "nobody", digest_of(b"junk"))]

    asyncio.run(scenario())


def test_evidence_that_has_to_stay_keeps_none_behind_it_from_going(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever hosted the VNode of the first name could fill what is listed with objects of a byte: all other evidence stayed, until the store was full."""
    monkeypatch.setattr(audit_retention, "MAX_LISTED", 8)
    clock, chain = Wall(), grown(1, "a-1").chain()
    store = MemoryStore(clock, random.Random(1))

    async def scenario() -> None:
        stay = {keys.evidence(MODEL, "a", digest_of(bytes([at]))) for at in range(16)}
        for key in sorted(stay):
            await store.put(key, b"!")
        await store.put(keys.evidence(MODEL, "b", digest_of(b"old")), b"old")
        clock.now_s += 9000
        keeper, left = EvidenceKeeper(store), True
        for _ in range(4):
            assert left, "it goes on until all was looked at"
            left = await keeper.sweep(MODEL, chain, int(clock.now_s * 1000), HOUR_MS)
            if not left:
                break
        assert set(store.keys()) == stay
        assert await keeper.sweep(MODEL, chain, int(clock.now_s * 1000), HOUR_MS), "and then begins anew"

    asyncio.run(scenario())
